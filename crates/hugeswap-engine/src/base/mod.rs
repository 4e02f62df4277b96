//! Base-mapped units: 512 base pages that come and go each by itself, or, where userfaultfd is
//! refused, 64 KiB at a time.
//!
//! A unit that is in swap, or watched, can become base-mapped in signal mode. A touch of an absent
//! page is a fault, and so is a write to a write-protected one. The [`backend`](crate::backend)
//! puts pages in place.
//!
//! * *In* ([`fault`], [`bring`]): pages are read from swap into one of 32 buffers of 64 KiB,
//!   verified, and put in place atomically, so other threads see a page whole or fault, too. They
//!   are write-protected, so that a page that was only read is dropped without a write. Two are
//!   not: the page that is being written, and a page that is read alone and was changed when it was
//!   last in memory. That one counts as dirty, and its sum says when it leaves whether it is what
//!   swap holds ([`io`]); not so where writes are tracked. The frame of a watched unit goes to the
//!   arena, the pages to be kept are copied back from there, and the frame is given up. That takes
//!   no I/O, since swap holds the same bytes.
//! * *Out* ([`evict`]), by kswapd, a unit at a time. The unit stays base-mapped.
//! * *Whole again* ([`whole`]): into a frame goes what is present (write-protected first, then
//!   copied), the rest is read or zero, and the frame takes the unit's place like any other.
//!
//! [`tracked`] has units in memory whose pages are told apart, [`present`] pages installed,
//! protected and dropped, [`place`] where pages go in swap, [`part`] pages that move on the
//! program's request.
//!
//! A unit's [`record::Record`] of 704 bytes (memory only for units that have been in swap) has a
//! bit for each page that is present, that is dirty, that is stored, that was changed when it was
//! last in memory (a hint), and that was present when the unit last left; and what the policy
//! remembers. A page neither present nor stored reads as zero. In swap a unit has a cluster, each
//! page at its own offset in it, whether it is base-mapped or whole; or it is scattered over single
//! slots ([`crate::store`]). Pages are charged to the pool by whole frames, of which a process
//! keeps what it has not used up; 512 free pages serve as a frame.
//!
//! Concurrency: everything happens under the unit's lock. Base-mapped units are never pinned: a
//! caller that needs one held makes it whole first. Message mode has none: there the kernel and
//! devices write to memory that is not pinned, and dropping a base page would not notice.

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
use hugeswap_sys::{Result, mm, process};
use record::{PageTurns, Records};
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicU64};
pub(crate) use tracked::Split;
pub(crate) use whole::Cause;

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

    /// A buffer of [`BUFFER`] bytes. Waits while all are taken.
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
