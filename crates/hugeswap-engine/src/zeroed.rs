//! Long arrays of zeros that cost memory only where they are used.

use hugeswap_sys::{Result, mm};
use std::ops::Deref;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// Types of which zeros are a valid value, shared between threads, and that need not be dropped.
///
/// # Safety
/// All of that is so.
pub(crate) unsafe trait FromZeros: Sync + 'static {}

// SAFETY: an atomic number.
unsafe impl FromZeros for AtomicU8 {}
// SAFETY: an atomic number.
unsafe impl FromZeros for AtomicU32 {}
// SAFETY: an atomic number.
unsafe impl FromZeros for AtomicU16 {}
// SAFETY: an atomic number.
unsafe impl FromZeros for AtomicU64 {}

/// A mapping of its own, until it is dropped.
pub(crate) struct Zeroed<T: FromZeros>(&'static [T]);

impl<T: FromZeros> Zeroed<T> {
    /// An array of `n`.
    pub fn new(n: usize) -> Result<Zeroed<T>> {
        let at = mm::map_own((n * size_of::<T>()).max(1), mm::PROT_RW)?;
        leave_out_of_core_dumps(at, (n * size_of::<T>()).max(1));
        // SAFETY: zeroed, page-aligned, long enough, unmapped only in Drop; zeros are valid.
        Ok(Zeroed(unsafe {
            std::slice::from_raw_parts(at as *const T, n)
        }))
    }
}

/// Has a mapping of ours left out of core dumps: a table of millions of entries, of which the
/// program has no use there.
pub(crate) fn leave_out_of_core_dumps(at: usize, len: usize) {
    // SAFETY: advice that changes no contents. Refused, the dump is larger.
    let _ = unsafe { mm::advise(at, len.next_multiple_of(4096), libc::MADV_DONTDUMP) };
}

impl<T: FromZeros> Deref for Zeroed<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.0
    }
}

impl<T: FromZeros> Drop for Zeroed<T> {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; what it is dereferenced to does not outlive it.
        let _ = unsafe { mm::unmap(self.0.as_ptr() as usize, size_of_val(self.0).max(1)) };
    }
}
