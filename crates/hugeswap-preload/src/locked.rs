//! Calls by which a program locks its memory. Locked memory must not move, so the engine first hands
//! its units to the kernel; unlocked, they stay the kernel's.

use crate::mmap::{eject, hand_over_all_reserved, note_told, pass};
use crate::parts::{by_parts, each, error, managed};
use crate::{extent, state};
use libc::{c_int, c_void, size_t};

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
        if private {
            note_told(start, end - start);
        }
        if let Err(e) = eject(engine, start, end - start) {
            return error(e.0);
        }
    }
    pass(nr, [addr, len, flags, 0, 0, 0])
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
    let pass = |at, len| pass(libc::SYS_munlock, [at, len, 0, 0, 0, 0]);
    match managed(start, len.saturating_add(at - start)) {
        // Memory that is still managed was never locked.
        Some((engine, whole)) => each(engine, start, whole, false, pass, |_, _| 0, |_, _| 0),
        None => pass(at, len),
    }
}

/// Accepts the call as advice, once there is an engine: managed memory keeps moving. Locking
/// everything would also hold the budget's frames and the reserved window in memory.
#[unsafe(no_mangle)]
unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    if state::engine().is_some() {
        return 0;
    }
    pass(libc::SYS_mlockall, [flags as usize, 0, 0, 0, 0, 0])
}
