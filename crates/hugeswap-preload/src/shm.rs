//! System V shared memory at addresses in the window.
//!
//! The kernel owns the segments. Where a segment is attached in the window, its addresses are
//! claimed, and shmdt gives them back: the kernel unmaps what is left of the segment, and the hole
//! that remains is reserved again.

use crate::lock::Lock;
use crate::mmap::{end_claim, is_any_mapped, kernel, make_way, release};
use crate::real::set_errno;
use crate::static_program::attached;
use crate::{extent, state};
use hugeswap_engine::{Contents, Engine};
use hugeswap_sys::maps::{Mapping, Text};
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
    if extent::meets_several(at, len) {
        set_errno(libc::ENOMEM);
        return libc::MAP_FAILED;
    }
    let live = is_any_mapped(engine, at, len);
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
    let len = match ATTACHED.lock().remove(&at) {
        None if attached::is_on() => from_before(at),
        len => len,
    };
    let done = kernel(libc::SYS_shmdt, [at, 0, 0, 0, 0, 0]) as c_int;
    if let Some(len) = len
        && let Some(engine) = state::engine()
    {
        match done {
            0 => {
                let inside = extent::pieces(at, len).filter(|&(at, _)| extent::in_window(at));
                inside.for_each(|(at, len)| refill(engine, at, len));
            }
            _ => drop(ATTACHED.lock().insert(at, len)),
        }
    }
    done
}

/// Bytes from `at` to the end of a segment that was attached there before the program was: of what is left of it.
fn from_before(at: usize) -> Option<usize> {
    let text = Text::read().ok()?;
    // Access, offset, device and inode.
    let words = |line: &[u8]| {
        let line = std::str::from_utf8(line).ok()?.to_owned();
        let mut words = line.split_ascii_whitespace().skip(1);
        let offset = usize::from_str_radix(words.next()?, 16).ok()?;
        let file = [words.next()?.to_owned(), words.next()?.to_owned()];
        Some((offset, file))
    };
    // (As the kernel has it: what begins there may be gone.)
    let of_segment = |m: &Mapping, line| {
        let (offset, file) = words(line)?;
        (m.start.checked_sub(offset) == Some(at) && file[1] != "0").then_some(file)
    };
    let segment = text.all().find_map(|(m, line)| of_segment(&m, line))?;
    let of_it = text
        .all()
        .filter(|(m, line)| of_segment(m, line).as_ref() == Some(&segment));
    of_it.map(|(m, _)| m.end - at).max()
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
