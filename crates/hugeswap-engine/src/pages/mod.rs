//! What an engine keeps for its base-mapped units: a record of each ([`record`]), buffers, and pages that are charged and free.
//!
//! Concurrency: records change under their units' locks; the rest are atomics. Nothing here allocates after construction, and the
//! rules of the fault path hold.

pub(crate) mod record;

use crate::PAGE;
use crate::store::BUFFER;
use crate::zeroed::Zeroed;
use hugeswap_policy::defrag::frames::Credits;
use hugeswap_policy::swapin::granularity::LONGEST;
use hugeswap_sys::process;
use hugeswap_sys::{Result, mm};
use record::{PageTurns, Records};
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicU64};

const BUFFERS: usize = 32;
/// The first few are long enough for the longest run that a fault brings in; all of them would keep 16 MiB
/// of memory once so many threads had needed one at a time.
const LONG: u32 = 4;
const STEP: usize = LONGEST as usize * PAGE;

/// What an engine keeps for its base-mapped units.
pub(crate) struct Base {
    pub records: Records,
    /// When each page last left, in turns of its unit: see [`hugeswap_policy::advisor`].
    pub turns: Zeroed<PageTurns>,
    /// Pages that are charged (by the frame) and not in use.
    credits: Credits<AtomicU64>,
    buffers: usize,
    buffers_used: AtomicU32,
}

impl Base {
    /// For the units of a window.
    pub fn new(units: u32) -> Result<Base> {
        let records = Records::new(units)?;
        let turns = Zeroed::new(units as usize)?;
        let buffers = mm::map_own(BUFFERS * STEP, mm::PROT_RW)?;
        Ok(Base {
            records,
            turns,
            credits: Credits::default(),
            buffers,
            buffers_used: AtomicU32::new(0),
        })
    }

    /// In a forked child, where nothing is registered and no page is ours: starts anew.
    pub fn reset_in_child(&self) {
        self.credits.forget();
        self.buffers_used.store(0, Relaxed);
    }

    /// Pages that are charged and free.
    pub fn credits(&self) -> &Credits<AtomicU64> {
        &self.credits
    }

    /// A buffer of at least [`BUFFER`] bytes. Waits while all are taken.
    pub(crate) fn take_buffer(&self) -> Buffer<'_> {
        loop {
            let used = self.buffers_used.load(Relaxed);
            let free = (!used).trailing_zeros();
            if free < BUFFERS as u32
                && self
                    .buffers_used
                    .compare_exchange_weak(used, used | 1 << free, AcqRel, Relaxed)
                    .is_ok()
            {
                return Buffer {
                    base: self,
                    number: free,
                };
            }
            // (A thread that has one may be reading from a device, and gives it back when that
            // answers or fails.)
            process::yield_now();
        }
    }
}

impl Drop for Base {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and the engine that owns the buffers is gone.
        let _ = unsafe { mm::unmap(self.buffers, BUFFERS * STEP) };
    }
}

/// A buffer taken, until it is dropped.
pub(crate) struct Buffer<'a> {
    base: &'a Base,
    number: u32,
}

impl Buffer<'_> {
    pub(crate) fn addr(&self) -> usize {
        self.base.buffers + self.number as usize * STEP
    }

    /// Its bytes.
    pub(crate) fn len(&self) -> usize {
        if self.number < LONG { STEP } else { BUFFER }
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        self.base
            .buffers_used
            .fetch_and(!(1 << self.number), AcqRel);
    }
}
