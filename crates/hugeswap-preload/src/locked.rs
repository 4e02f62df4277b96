//! Calls by which a program locks its memory. Locked memory must not move, so the engine first hands
//! its units to the kernel, and takes them back once nothing of them is locked any more.
//!
//! A unit stays the kernel's if the kernel was told anything else of it meanwhile ([`crate::marks`]),
//! if the process has forked (the child's memory is the same then), and after four turns.

use crate::mmap::{eject_to_lock, hand_over_all_reserved, pass};
use crate::owners::{keep, note_locked, note_unlocked};
use crate::parts::{by_parts, each, error, managed};
use crate::{extent, real, state};
use hugeswap_sys::{mm, raw};
use libc::{c_int, c_void, size_t};
use std::sync::atomic::AtomicI32;
use std::sync::atomic::Ordering::Relaxed;

const PAGE: usize = 4096;
const MLOCK_ONFAULT: usize = 1;

/// Locks a range by system call `nr`. Locked memory must not move, so it becomes the kernel's.
fn lock(nr: libc::c_long, addr: usize, len: usize, flags: usize) -> c_int {
    let inside = addr & (PAGE - 1);
    // (As in the kernel, a length that exceeds all addresses by less than a page is no length.)
    let len = len.wrapping_add(inside).wrapping_add(PAGE - 1) & !(PAGE - 1);
    if len == 0 {
        return 0;
    }
    if (addr - inside).checked_add(len).is_none() {
        return error(libc::EINVAL);
    }
    by_parts(addr - inside, len, false, |at, len| {
        lock_part(nr, at, len, flags)
    })
}

/// As [`lock`], of a range that is in one region of shared memory, or in none.
fn lock_part(nr: libc::c_long, addr: usize, len: usize, flags: usize) -> c_int {
    let start = addr & !(PAGE - 1);
    let end = addr
        .saturating_add(len.min(isize::MAX as usize))
        .next_multiple_of(PAGE);
    if let Some(engine) = state::engine().filter(|_| extent::meets_managed(addr, len)) {
        let private = !extent::in_shared(addr);
        if private && !engine.is_committed(start, end - start) {
            // (Memory without access cannot be brought in, but locked once it can be touched.)
            if flags & MLOCK_ONFAULT == 0 || !engine.is_mapped(start, end - start) {
                return error(libc::ENOMEM);
            }
            if let Err(e) = hand_over_all_reserved(engine, start, end - start) {
                return error(e.0);
            }
        }
        let _kept = keep();
        let begun = private.then(|| note_locked(start, end));
        let mut done = match eject_to_lock(engine, start, end - start) {
            Ok(()) => pass(nr, [addr, len, flags, 0, 0, 0]),
            Err(e) => error(e.0),
        };
        if done != 0 && begun == Some(true) {
            let errno = real::errno();
            unlock(start, end - start);
            done = error(errno);
        }
        return done;
    }
    pass(nr, [addr, len, flags, 0, 0, 0])
}

/// Unlocks memory of the kernel's in the window.
fn unlock(at: usize, len: usize) -> c_int {
    let done = pass(libc::SYS_munlock, [at, len, 0, 0, 0, 0]);
    if done == 0 && extent::in_window(at) {
        note_unlocked(at, at + len);
    }
    done
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock(addr: *const c_void, len: size_t) -> c_int {
    lock(libc::SYS_mlock, addr as usize, len, 0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock2(addr: *const c_void, len: size_t, flags: libc::c_uint) -> c_int {
    lock(libc::SYS_mlock2, addr as usize, len, flags as usize)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn munlock(addr: *const c_void, len: size_t) -> c_int {
    let at = addr as usize;
    let start = at & !(PAGE - 1);
    if managed(start, len.saturating_add(at - start)).is_none() {
        return pass(libc::SYS_munlock, [at, len, 0, 0, 0, 0]);
    }
    by_parts(start, len.saturating_add(at - start), false, |at, len| {
        match managed(at, len) {
            // (Memory that is managed is not locked.)
            Some((engine, whole)) => each(engine, at, whole, false, unlock, |_, _| 0, |_, _| 0),
            None => pass(libc::SYS_munlock, [at, len, 0, 0, 0, 0]),
        }
    })
}

/// How the program has locked all memory that it will have (`MCL_*`), before there was an engine; or 0.
static FUTURE: AtomicI32 = AtomicI32::new(0);

/// Accepts the call as advice, once there is an engine: managed memory keeps moving. Locking
/// everything would also hold the budget's frames and the reserved window in memory.
#[unsafe(no_mangle)]
unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    const WHAT: c_int = libc::MCL_CURRENT | libc::MCL_FUTURE;
    if flags & WHAT == 0 || flags & !(WHAT | libc::MCL_ONFAULT) != 0 {
        return error(libc::EINVAL);
    }
    if state::engine().is_some() {
        return 0;
    }
    let done = pass(libc::SYS_mlockall, [flags as usize, 0, 0, 0, 0, 0]);
    if done == 0 {
        let future = flags & libc::MCL_FUTURE != 0;
        FUTURE.store(if future { flags } else { 0 }, Relaxed);
    }
    done
}

/// What was locked by `mlock` is unlocked.
#[unsafe(no_mangle)]
unsafe extern "C" fn munlockall() -> c_int {
    let done = pass(libc::SYS_munlockall, [0; 6]);
    FUTURE.store(0, Relaxed);
    if done == 0 {
        note_unlocked(0, usize::MAX);
    }
    done
}

/// What is mapped from now on is not locked: the pool's segment, the engine's window and its frames
/// would be, with all that they have room for. What is there stays locked.
pub fn before_engine() {
    let flags = FUTURE.swap(0, Relaxed);
    if flags != 0 || is_future_locked() {
        let flags = flags & libc::MCL_ONFAULT | libc::MCL_CURRENT;
        // (It may be more than was allowed by now.)
        if pass(libc::SYS_mlockall, [flags as usize, 0, 0, 0, 0, 0]) != 0 {
            pass(libc::SYS_munlockall, [0; 6]);
        }
    }
}

/// Is new memory locked? (The program may have made the call by an instruction, which no filter has
/// seen yet.) Then it is in memory at once.
fn is_future_locked() -> bool {
    let Ok(page) = mm::map_own(PAGE, mm::PROT_RW) else {
        return false;
    };
    let mut there = 0u8;
    let a = [page, PAGE, &raw mut there as usize, 0, 0, 0];
    // SAFETY: a page mapped above, which nobody else knows, and a byte for the answer.
    unsafe {
        let _ = raw::call(libc::SYS_mincore, a);
        let _ = mm::unmap(page, PAGE);
    }
    there & 1 != 0
}

/// The raw answer to a call that locks or unlocks all memory; `None`: it is another one.
pub fn by_number(nr: i64, flags: usize) -> Option<isize> {
    let errno = real::errno();
    // SAFETY: calls that take a number.
    let done = unsafe {
        match nr {
            libc::SYS_mlockall => mlockall(flags as c_int),
            libc::SYS_munlockall => munlockall(),
            _ => return None,
        }
    };
    let raw = if done == 0 { 0 } else { -real::errno() };
    real::set_errno(errno);
    Some(raw as isize)
}
