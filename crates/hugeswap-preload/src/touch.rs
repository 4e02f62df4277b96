//! A touch of the program's memory: the page is brought in, and nothing changes.

use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;

/// Touches the byte at `addr`.
///
/// # Safety
/// The program may read the byte and, if `write` is true, write it.
pub unsafe fn touch(addr: usize, write: bool) {
    // (A volatile read and a compare-exchange: the compiler removes a plain load, and an "or" with 0
    // whose result is not used.)
    // SAFETY: the caller's.
    let now = unsafe { std::ptr::read_volatile(addr as *const u8) };
    if write {
        // SAFETY: as above. Storing the value that is there changes nothing, even if another thread
        // writes there.
        let byte = unsafe { AtomicU8::from_ptr(addr as *mut u8) };
        let _ = byte.compare_exchange(now, now, Relaxed, Relaxed);
    }
}
