//! Calls by which a program locks its memory. Locked memory must not move, so the engine first hands
//! its units to the kernel, and takes them back once nothing of them is locked any more.
//!
//! A unit stays the kernel's if the kernel was told anything else of it meanwhile ([`crate::marks`]),
//! if the process has forked (the child's memory is the same then), and after four turns.

use crate::lock::Lock;
use crate::marks::{begin_release, is_noted, note_locked, units};
use crate::mmap::{eject_to_lock, hand_over_all_reserved, pass};
use crate::parts::{by_parts, each, error, managed};
use crate::real;
use crate::{extent, state};
use hugeswap_engine::Engine;
use hugeswap_engine::intervals::Intervals;
use hugeswap_sys::{mm, raw};
use libc::{c_int, c_void, size_t};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicI32};

const PAGE: usize = 4096;
const UNIT: usize = 2 << 20;
const MLOCK_ONFAULT: usize = 1;

/// What of the window is locked, or is about to be.
static LOCKED: Lock<Intervals> = Lock::new(Intervals::new());
/// Was anything ever locked?
static IS_ANY: AtomicBool = AtomicBool::new(false);

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
        let begun = private.then(|| begin(start, end));
        let mut done = match eject_to_lock(engine, start, end - start) {
            Ok(()) => pass(nr, [addr, len, flags, 0, 0, 0]),
            Err(e) => error(e.0),
        };
        if done != 0 && begun == Some(true) {
            let errno = real::errno();
            unlock(engine, start, end - start);
            done = error(errno);
        }
        return done;
    }
    pass(nr, [addr, len, flags, 0, 0, 0])
}

/// Notes that `[start, end)` is to be locked; before its units are the kernel's, for [`release`] looks
/// at that last. Was none of it locked?
fn begin(start: usize, end: usize) -> bool {
    IS_ANY.store(true, Relaxed);
    let mut locked = LOCKED.lock();
    let was_locked = locked.bytes_in(start, end) > 0;
    locked.insert(start, end);
    drop(locked);
    note_locked(start, end - start);
    !was_locked
}

/// Unlocks memory of the kernel's in the window.
fn unlock(engine: &Engine, at: usize, len: usize) -> c_int {
    let done = pass(libc::SYS_munlock, [at, len, 0, 0, 0, 0]);
    if done == 0 && IS_ANY.load(Relaxed) && extent::in_window(at) {
        LOCKED.lock().remove(at, at + len);
        release(engine, at, at + len);
    }
    done
}

/// Has the engine take back the units that `[start, end)` meets and that nothing else makes the
/// kernel's, now that this range is not locked any more.
fn release(engine: &Engine, start: usize, end: usize) {
    for unit in units(start, end) {
        let is_free = || LOCKED.lock().bytes_in(unit, unit + UNIT) == 0;
        if !is_free() || !engine.is_foreign(unit, UNIT) || !begin_release(unit) {
            continue;
        }
        // SAFETY: the kernel was told to lock pages of it, which is undone, and nothing else.
        unsafe { engine.take_back(unit, UNIT) };
        // Another thread may have told it something since, to which it was still the kernel's.
        if is_noted(unit, UNIT) {
            let _ = eject_to_lock(engine, unit, UNIT);
            let again: Vec<_> = LOCKED.lock().within(unit, unit + UNIT).collect();
            for (from, to) in again {
                pass(libc::SYS_mlock, [from, to - from, 0, 0, 0, 0]);
            }
        }
    }
}

/// `[at, at+len)` is unmapped, or is mapped anew: it is not locked.
pub fn forget(at: usize, len: usize) {
    if IS_ANY.load(Relaxed) {
        LOCKED.lock().remove(at, at.saturating_add(len));
    }
}

/// Takes this module's lock for the time of a fork; see [`Lock::before_fork`].
pub fn before_fork() {
    LOCKED.before_fork();
}

/// Releases the lock after a fork, in parent and child.
pub fn after_fork() {
    LOCKED.after_fork();
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
    match managed(start, len.saturating_add(at - start)) {
        Some((engine, whole)) => {
            let unlock = |at, len| unlock(engine, at, len);
            // (Memory that is managed is not locked.)
            each(engine, start, whole, false, unlock, |_, _| 0, |_, _| 0)
        }
        None => pass(libc::SYS_munlock, [at, len, 0, 0, 0, 0]),
    }
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
    if done == 0
        && let Some(engine) = state::engine()
    {
        let all = std::mem::take(&mut *LOCKED.lock());
        for (from, to) in all.within(0, usize::MAX) {
            release(engine, from, to);
        }
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
