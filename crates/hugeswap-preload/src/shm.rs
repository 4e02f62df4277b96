//! System V shared memory at addresses in the window.
//!
//! The kernel owns the segments. Where a segment is attached in the window, its addresses are
//! claimed, and shmdt gives them back: the kernel unmaps what is left of the segment, and the hole
//! that remains is reserved again.

use crate::lock::Lock;
use crate::mmap::{end_claim, kernel, make_way, release};
use crate::real::set_errno;
use crate::{extent, state};
use hugeswap_engine::{Contents, Engine};
use hugeswap_sys::mm;
use libc::{c_int, c_void};
use std::collections::BTreeMap;

const PAGE: usize = 4096;

/// Segments attached in the window: address to length.
static ATTACHED: Lock<BTreeMap<usize, usize>> = Lock::new(BTreeMap::new());

/// Takes this module's lock for the time of a fork; see [`Lock::before_fork`].
pub fn before_fork() {
    ATTACHED.before_fork();
}

/// Releases the lock after a fork, in parent and child.
pub fn after_fork() {
    ATTACHED.after_fork();
}

/// Length in bytes of segment `id`, rounded up to whole pages; `None` if the kernel does not tell.
fn length(id: c_int) -> Option<usize> {
    // SAFETY: all zeros is a valid structure to be overwritten.
    let mut info: libc::shmid_ds = unsafe { std::mem::zeroed() };
    let a = [
        id as usize,
        libc::IPC_STAT as usize,
        &raw mut info as usize,
        0,
        0,
        0,
    ];
    let done = kernel(libc::SYS_shmctl, a) == 0;
    done.then(|| info.shm_segsz.checked_next_multiple_of(PAGE))?
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmat(id: c_int, addr: *const c_void, flags: c_int) -> *mut c_void {
    let attach = |at: usize, flags: c_int| {
        kernel(libc::SYS_shmat, [id as usize, at, flags as usize, 0, 0, 0])
    };
    let mut at = addr as usize;
    if flags & libc::SHM_RND != 0 {
        at &= !(PAGE - 1);
    }
    let Some(engine) = state::engine().filter(|_| at != 0 && at.is_multiple_of(PAGE)) else {
        return attach(addr as usize, flags) as *mut c_void;
    };
    let Some(len) = length(id).filter(|&len| extent::meets_managed(at, len)) else {
        return attach(addr as usize, flags) as *mut c_void;
    };
    let live = engine.is_any_mapped(at, len);
    if live {
        if flags & libc::SHM_REMAP == 0 {
            set_errno(libc::EINVAL);
            return libc::MAP_FAILED;
        }
        // Memory that is mapped here must not be lost if the kernel refuses the segment.
        let tried = attach(0, flags & !(libc::SHM_REMAP | libc::SHM_RND));
        if tried == usize::MAX {
            return libc::MAP_FAILED;
        }
        kernel(libc::SYS_shmdt, [tried, 0, 0, 0, 0, 0]);
    }
    let contents = if live { Contents::Drop } else { Contents::Keep };
    let claim = match make_way(engine, at, len, contents) {
        Ok(claim) => claim,
        Err(e) => {
            set_errno(e.0);
            return libc::MAP_FAILED;
        }
    };
    let made = attach(at, flags | libc::SHM_REMAP);
    end_claim(engine, claim, made != usize::MAX);
    if made != usize::MAX {
        ATTACHED.lock().insert(at, len);
    }
    made as *mut c_void
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmdt(addr: *const c_void) -> c_int {
    let at = addr as usize;
    let done = kernel(libc::SYS_shmdt, [at, 0, 0, 0, 0, 0]) as c_int;
    if done == 0
        && extent::in_window(at)
        && let Some(engine) = state::engine()
    {
        let len = ATTACHED.lock().remove(&at);
        if let Some(len) = len {
            refill(engine, at, len);
        }
    }
    done
}

/// Reserves the holes in a range.
fn refill(engine: &Engine, at: usize, len: usize) {
    // SAFETY: a new mapping, only if nothing is there.
    match unsafe { mm::map_anon(at, len, mm::PROT_NONE, false) } {
        Ok(_) => release(engine, at, len),
        Err(_) if len > PAGE => {
            let half = (len / 2).next_multiple_of(PAGE);
            refill(engine, at, half);
            refill(engine, at + half, len - half);
        }
        Err(_) => {}
    }
}
