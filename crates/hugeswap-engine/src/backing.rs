//! Where the I/O of swap and of mapped files meets the device, and where tests make it fail.
//!
//! Every read and write of swap or of a mapped file goes through here. The settings `debug.swap_*` make some of them fail, with
//! the errors a device gives, or bring back changed bytes, by count, so that a run can be repeated.

use crate::pool::Pool;
use hugeswap_policy::knobs::Knob;
use hugeswap_sys::{Errno, Result, fs};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Counts of what was done, for the faults to be made. One for each engine.
#[derive(Default)]
pub(crate) struct Backing {
    reads: AtomicU64,
    writes: AtomicU64,
}

/// Is this the nth, with `every` one to be hit? 0: none.
fn hit(count: &AtomicU64, every: u64) -> bool {
    every != 0 && (count.fetch_add(1, Relaxed) + 1).is_multiple_of(every)
}

impl Backing {
    /// Reads `len` bytes at `offset` to `to`.
    ///
    /// # Safety
    /// `[to, to + len)` must be memory the caller may overwrite.
    pub unsafe fn read(
        &self,
        pool: &Pool,
        fd: i32,
        to: usize,
        len: usize,
        offset: u64,
    ) -> Result<()> {
        // SAFETY: passed on to the caller.
        unsafe { fs::read_exact_at(fd, to, len, offset) }?;
        let (fail, flip) = (pool.knob(Knob::SwapReadFail), pool.knob(Knob::SwapReadFlip));
        if fail | flip == 0 {
            return Ok(());
        }
        if hit(&self.reads, fail) {
            return Err(Errno::EIO);
        }
        if flip != 0 && self.reads.load(Relaxed).is_multiple_of(flip) {
            let at = to + (self.reads.load(Relaxed) as usize * 4099) % len;
            // SAFETY: within the caller's memory.
            unsafe { *(at as *mut u8) ^= 0x10 };
        }
        if fail == 0 {
            self.reads.fetch_add(1, Relaxed);
        }
        Ok(())
    }

    /// Writes `len` bytes from `from` to `offset`.
    ///
    /// # Safety
    /// `[from, from + len)` must be readable.
    pub unsafe fn write(
        &self,
        pool: &Pool,
        fd: i32,
        from: usize,
        len: usize,
        offset: u64,
    ) -> Result<()> {
        if hit(&self.writes, pool.knob(Knob::SwapWriteFail)) {
            return Err(Errno::EIO);
        }
        let space = pool.knob(Knob::SwapSpace);
        if space != 0 && offset + len as u64 > space {
            return Err(Errno::ENOSPC);
        }
        // SAFETY: passed on to the caller.
        unsafe { fs::write_all_at(fd, from, len, offset) }
    }

    /// Reads up to `len` bytes of a mapped file at `offset` to `to`, of which `enough` are wanted; how many there were.
    ///
    /// # Safety
    /// `[to, to + len)` must be memory the caller may overwrite.
    pub unsafe fn read_file(
        &self,
        pool: &Pool,
        fd: i32,
        to: usize,
        (len, enough): (usize, usize),
        offset: u64,
    ) -> Result<usize> {
        // Nothing is flipped: there is no sum that would notice.
        if hit(&self.reads, pool.knob(Knob::SwapReadFail)) {
            return Err(Errno::EIO);
        }
        // SAFETY: passed on to the caller.
        unsafe { fs::read_until(fd, to, len, enough, offset) }
    }

    /// Writes `len` bytes from `from` to a mapped file.
    ///
    /// # Safety
    /// `[from, from + len)` must be readable.
    pub unsafe fn write_file(
        &self,
        pool: &Pool,
        fd: i32,
        from: usize,
        len: usize,
        offset: u64,
    ) -> Result<()> {
        if hit(&self.writes, pool.knob(Knob::SwapWriteFail)) {
            return Err(Errno::EIO);
        }
        // SAFETY: passed on to the caller.
        unsafe { fs::write_all_at(fd, from, len, offset) }
    }
}
