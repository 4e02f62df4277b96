//! Base-mapped units: 512 base pages that come and go each by itself, or, where userfaultfd is refused, 64 KiB at a time.
//!
//! A touch of an absent page is a fault, which installs it read-only, so that a page that was only read is dropped without a
//! write. The [`backend`](crate::backend) puts it in place; the unit's [`record::Record`] says what each page is. In swap a unit
//! has a slot of 2 MiB, each page at its own offset in it, whether it is base-mapped or whole; or it is scattered over single slots
//! ([`crate::store`]).
//!
//! * `fault`: pages brought in; `evict`: pages written and dropped; `whole`: the ways to and from huge pages
//! * `tracked`: a unit in memory whose pages are to be told apart
//! * `present`: pages installed, protected and dropped, and the record of it
//! * `io`: pages of a slot read, written, copied; `place`: which slot that is; `part`: some pages of a unit, on the program's word
//!
//! Concurrency: everything happens under the unit's lock. Base-mapped units are never pinned: a caller that needs one held makes it
//! whole first. Only where the backend has parts of units: in signal mode.

mod bring;
mod copy;
mod evict;
mod fault;
mod io;
mod part;
mod place;
mod present;
pub(crate) mod record;
mod tracked;
mod whole;

pub(crate) use crate::PAGE;
use crate::memory::Memory;
pub(crate) use crate::store::BUFFER;
use crate::zeroed::Zeroed;
use hugeswap_policy::UNIT_PAGES;
use hugeswap_policy::defrag::frames::{self, Credits, Sources};
use hugeswap_sys::{Result, mm};
use record::{PageTurns, Records};
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicU64};
pub(crate) use tracked::Split;

const BUFFERS: usize = 32;

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
        let buffers = mm::map_own(BUFFERS * BUFFER, mm::PROT_RW)?;
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
            std::hint::spin_loop();
        }
    }
}

impl Drop for Base {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and the engine that owns the buffers is gone.
        let _ = unsafe { mm::unmap(self.buffers, BUFFERS * BUFFER) };
    }
}

/// A buffer taken, until it is dropped.
pub(crate) struct Buffer<'a> {
    base: &'a Base,
    number: u32,
}

impl Buffer<'_> {
    pub(crate) fn addr(&self) -> usize {
        self.base.buffers + self.number as usize * BUFFER
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        self.base
            .buffers_used
            .fetch_and(!(1 << self.number), AcqRel);
    }
}

impl Memory {
    /// Can another part of a unit come by itself now, or must it be the whole unit?
    pub(crate) fn pages_can_come(&self) -> bool {
        let can = self.backend.can();
        match can.parts_take_mappings {
            false => can.has_parts(),
            true => self.backend.has_mappings() && !self.mappings_are_short(),
        }
    }

    /// Charges `n` pages, if that is possible without waiting.
    pub(crate) fn take_pages_nowait(&self, n: u64) -> bool {
        let Some(left) = frames::take_pages(self, n, self.far_nodes()) else {
            return false;
        };
        if (left + n) / UNIT_PAGES != left / UNIT_PAGES {
            self.took_frame();
        } else if left < UNIT_PAGES {
            self.check_watermark();
        }
        true
    }

    /// Charges `n` pages, waiting if need be. Not with a base-mapped or present unit's lock held.
    pub(crate) fn take_pages(&self, n: u64) -> bool {
        self.wait_for_memory(None, || self.take_pages_nowait(n).then_some(()))
            .is_some()
    }

    /// Takes back a charge of `n` pages; their memory went back to the kernel before.
    pub(crate) fn put_pages(&self, n: u64) {
        self.credits().put(n);
    }
}
