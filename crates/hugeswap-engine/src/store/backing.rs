//! Where the I/O of swap and of mapped files meets the device.
//!
//! Every read and write of swap or of a mapped file is a [`Transfer`] that goes through
//! [`Backing::carry_out`], to a device. In tests there is a faulty one before it
//! ([`super::faulty`]).

use super::faulty::Faulty;
use super::poll::Pollers;
use crate::pool::Member;
use hugeswap_sys::{Errno, Result, fs};
use std::sync::atomic::Ordering::Relaxed;

/// Bytes to move between memory and a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    /// To the file.
    pub write: bool,
    /// The file.
    pub fd: i32,
    /// Where in memory, and how much.
    pub memory: usize,
    pub len: usize,
    /// Bytes of a request at most.
    pub chunk: usize,
    /// How much of that will do: a file may end.
    pub enough: usize,
    /// Where in the file.
    pub offset: u64,
    /// The first page of swap, or `None` for a mapped file.
    pub page: Option<SwapPage>,
    /// How long it takes, as far as is known, if the thread may poll for it; 0: it may not.
    pub expected_ns: u64,
    /// The operation that this is an attempt at, and which.
    pub operation: u64,
    pub attempt: u32,
}

/// A page of swap.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SwapPage {
    /// Which area, and how many bytes of it are allocated.
    pub area: usize,
    pub allocated: u64,
    /// Number of the page over all areas.
    pub number: u64,
}

/// What came of a transfer that did not fail.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moved {
    /// Bytes.
    pub bytes: usize,
    /// What was read is known to be something else than what was written.
    pub spoilt: bool,
}

/// Why a transfer failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failed {
    pub error: Errno,
    /// It was made to, by a fault or by a write that an earlier one has spoilt.
    pub on_purpose: bool,
    /// The device did read, but something else than was written: the first such page of those asked
    /// for.
    pub changed: Option<usize>,
}

impl From<Errno> for Failed {
    fn from(error: Errno) -> Failed {
        Failed {
            error,
            on_purpose: false,
            changed: None,
        }
    }
}

impl From<Failed> for Errno {
    fn from(failed: Failed) -> Errno {
        failed.error
    }
}

/// What carries out transfers: the devices, and in tests a faulty one before them. One for each
/// engine.
pub(crate) struct Backing {
    pub faulty: Faulty,
    pub pollers: Pollers,
}

impl Backing {
    /// A number for an operation, of which there may be several attempts.
    pub fn operation(&self) -> u64 {
        self.faulty.operation()
    }

    /// Is there no faulty device before the real one?
    pub fn is_plain(&self, pool: &Member) -> bool {
        self.faulty.rules(pool).is_quiet() && !self.faulty.keeps_account()
    }

    /// Carries out a transfer.
    ///
    /// # Safety
    /// The transfer's memory must be readable; for a read, the caller's to overwrite.
    pub unsafe fn carry_out(&self, pool: &Member, t: &Transfer) -> Result<Moved, Failed> {
        let going_on = &pool.record().transferring;
        going_on.fetch_add(1, Relaxed);
        // SAFETY: passed on to the caller.
        let result = unsafe { self.carry_out_now(pool, t) };
        going_on.fetch_sub(1, Relaxed);
        result
    }

    /// # Safety
    /// As for [`Backing::carry_out`].
    unsafe fn carry_out_now(&self, pool: &Member, t: &Transfer) -> Result<Moved, Failed> {
        if !self.is_plain(pool) {
            let rules = self.faulty.rules(pool);
            // SAFETY: passed on to the caller.
            return unsafe { self.faulty.carry_out(pool, &rules, t) };
        }
        // SAFETY: passed on to the caller.
        let polled = t.expected_ns > 0 && unsafe { self.pollers.read(pool, t) };
        let bytes = match polled {
            true => t.len,
            // SAFETY: passed on to the caller.
            false => unsafe { t.of_device(usize::MAX) }?,
        };
        Ok(Moved {
            bytes,
            spoilt: false,
        })
    }
}

impl Transfer {
    /// Has the device do it, the first call for at most `first` bytes. How many were moved.
    ///
    /// # Safety
    /// As for [`Backing::carry_out`].
    pub unsafe fn of_device(&self, first: usize) -> Result<usize> {
        let done = fs::repeat(self.enough.min(self.len), |done| {
            let most = if done == 0 { first } else { usize::MAX };
            let len = (self.len - done).min(most).min(self.chunk);
            let at = self.memory + done;
            let offset = self.offset + done as u64;
            if self.write {
                // SAFETY: passed on to the caller, of whose memory it is a part.
                unsafe { fs::write_at(self.fd, at, len, offset) }
            } else {
                // SAFETY: as above.
                unsafe { fs::read_at(self.fd, at, len, offset) }
            }
        })?;
        // What swap holds was written whole, and a device that takes no more says why.
        if done < self.len && (self.write || self.page.is_some()) {
            return Err(Errno::EIO);
        }
        Ok(done)
    }
}
