//! Waiting on a 32-bit word.

use crate::raw::call;
use crate::{Errno, Result};
use std::sync::atomic::{AtomicU32, AtomicU64};

const PRIVATE: usize = libc::FUTEX_PRIVATE_FLAG as usize;

/// The low half of a 64-bit word, as the futex calls want it (little-endian).
pub fn low_half(word: &AtomicU64) -> &AtomicU32 {
    // SAFETY: on little-endian x86-64 the low half is the first four bytes of an
    // 8-aligned atomic, valid for as long as the borrow.
    unsafe { &*(word as *const AtomicU64).cast::<AtomicU32>() }
}

/// Sleeps while `*word == expected`, for at most `timeout_ns` (`None`: without limit). `shared`
/// says that several processes wait on the word. Returns at once if the word differs; spurious
/// wake-ups happen.
pub fn wait(word: &AtomicU32, expected: u32, timeout_ns: Option<u64>, shared: bool) {
    let ts = timeout_ns.map(|ns| libc::timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    });
    let ts_ptr = ts.as_ref().map_or(0, |t| t as *const _ as usize);
    let op = libc::FUTEX_WAIT as usize | if shared { 0 } else { PRIVATE };
    // SAFETY: `word` and the timespec outlive the call.
    let _ = unsafe {
        call(
            libc::SYS_futex,
            [
                word as *const _ as usize,
                op,
                expected as usize,
                ts_ptr,
                0,
                0,
            ],
        )
    };
}

/// Wakes up to `count` threads that wait on `word`.
pub fn wake(word: &AtomicU32, count: u32, shared: bool) {
    let op = libc::FUTEX_WAKE as usize | if shared { 0 } else { PRIVATE };
    // SAFETY: wake does not access the word's value.
    let _ = unsafe {
        call(
            libc::SYS_futex,
            [word as *const _ as usize, op, count as usize, 0, 0, 0],
        )
    };
}

/// True if the futex call is available. (Some sandboxes forbid it.)
pub fn probe() -> Result<()> {
    let word = AtomicU32::new(1);
    // SAFETY: as in `wait`.
    match unsafe {
        call(
            libc::SYS_futex,
            [
                &word as *const _ as usize,
                libc::FUTEX_WAIT as usize | PRIVATE,
                0,
                0,
                0,
                0,
            ],
        )
    } {
        Err(Errno::EAGAIN) | Ok(_) => Ok(()),
        Err(e) => Err(e),
    }
}
