//! Reads the bytes of units that are in swap or in a file.
//!
//! All of it is called under the unit's lock. Slots and transfers are the store's
//! ([`crate::store`]).

use crate::paging::Paging;
use crate::pool::losses::{Loss, LossKey};
use crate::store::scatter::Single;
use crate::{PAGE, PAGES, checksum};
use hugeswap_policy::UNIT_PAGES;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::unit::{Kind, Place, Word};
use hugeswap_sys::{Errno, Result};
use std::ops::Range;

/// A slot that something could not be read from is bad if so many more reads, of it alone, fail.
const READS: u32 = 2;

impl Paging {
    /// Reads all of a locked unit that is in swap, or in a file, to the frame at `at`. `doubt`: see
    /// [`Paging::read_cluster`].
    pub(crate) fn read_unit(&self, unit: u32, w: Word, at: usize, doubt: bool) -> Result<()> {
        match w.place() {
            Place::Nothing => Err(Errno::EIO),
            Place::File(place) => self.read_file_unit(unit, place, at),
            Place::Singles => self.store.read_singles(unit, at),
            Place::Cluster(cluster) => {
                self.read_cluster(cluster, at, doubt)?;
                self.count_swap_in(at);
                self.advise_came_back(unit);
                Ok(())
            }
        }
    }

    /// Reads pages of a locked unit that are in swap, or in a file, side by side in the unit, to
    /// `to`.
    pub(crate) fn read_stored(
        &self,
        unit: u32,
        w: Word,
        pages: Range<usize>,
        to: usize,
    ) -> Result<()> {
        match w.place() {
            Place::File(place) => self.read_file_pages(place, pages, to),
            place => self.store.read_stored(unit, place, pages, to),
        }
    }

    /// Why the bytes at `addr`, which are lost, could not be had from swap, if that is remembered.
    pub fn loss_at(&self, addr: usize) -> Option<Loss> {
        let unit = self.table.unit_of(addr)?;
        let w = self.table.load(unit);
        if w.kind() == Kind::Poisoned {
            return self.pool.loss(LossKey::Unit(self.pool.me(), unit));
        }
        let page = (addr - self.table.addr(unit)) / PAGE;
        let slot = self.store.slot_of(unit, w.place(), page)?;
        self.pool.loss(LossKey::Page(slot.number()))
    }

    /// A unit that is about to have no place in swap is lost: why is remembered by its own name.
    pub(crate) fn note_unit_lost(&self, unit: u32, w: Word) {
        let of_page = |page| {
            let slot = self.store.slot_of(unit, w.place(), page)?;
            self.pool.loss(LossKey::Page(slot.number()))
        };
        if let Some(loss) = (0..PAGES).find_map(of_page) {
            self.pool
                .note_loss(LossKey::Unit(self.pool.me(), unit), loss);
        }
    }

    /// Reads page `page` of a locked unit to `to` from its place in swap, and marks the slot if
    /// that fails again and again. `doubt`: as for [`Store::read`](crate::store::Store::read),
    /// whose errors it has.
    pub(crate) fn read_or_mark(
        &self,
        unit: u32,
        w: Word,
        page: usize,
        to: usize,
        doubt: bool,
    ) -> Result<(), Errno> {
        let Some(Single { cluster, at }) = self.store.slot_of(unit, w.place(), page) else {
            if w.place() != Place::Singles {
                return Err(Errno::EIO);
            }
            // SAFETY: the caller's memory.
            unsafe { std::ptr::write_bytes(to as *mut u8, 0, PAGE) };
            return Ok(());
        };
        // All that could be waited for was, before it came to this.
        let again = |attempt| attempt + 1 < READS;
        let result = self.store.read_until(cluster, at..at + 1, to, doubt, again);
        if result != Err(Errno::EIO) {
            return result;
        }
        let sums = self.pool.cluster_sums().get(cluster as usize);
        let known = sums.and_then(|s| s.get(at..at + 1));
        if !known.is_some_and(checksum::known) {
            self.pool.note_lost(cluster, at);
        } else if self.pool.mark_bad(cluster, at) && !self.is_in_memory(unit, w, page) {
            self.pool.count(Counter::Poisoned, 1);
        }
        result
    }

    pub(crate) fn is_in_memory(&self, unit: u32, w: Word, page: usize) -> bool {
        match w.kind() {
            Kind::Base => self.base.records.of(unit).present.get(page),
            kind => matches!(kind, Kind::Present | Kind::Cached),
        }
    }

    /// A read of all of a locked unit failed: reads it page by page to `to`, and marks what is bad.
    /// True if all of it could be read after all.
    pub(crate) fn read_unit_by_pages(&self, unit: u32, w: Word, to: usize) -> bool {
        let mut all = true;
        for page in 0..PAGES {
            all &= self
                .read_or_mark(unit, w, page, to + page * PAGE, false)
                .is_ok();
        }
        all
    }

    pub(crate) fn count_swap_in(&self, at: usize) {
        self.pool.count(Counter::PswpIn, UNIT_PAGES);
        let huge = self.backend.is_huge(at).unwrap_or(true);
        self.pool.count(
            if huge {
                Counter::ThpSwpIn
            } else {
                Counter::ThpSwpInFallback
            },
            1,
        );
    }

    /// Reads a cluster to `at` (a place of the arena) and verifies it. `doubt`: the caller is a
    /// program thread, whose descriptor table is the program's to change.
    pub(crate) fn read_cluster(&self, cluster: u64, at: usize, doubt: bool) -> Result<(), Errno> {
        self.store.read(cluster, 0..UNIT_PAGES as usize, at, doubt)
    }

    /// What is behind a unit could not be read. (For a file that was counted.)
    pub(crate) fn note_read_error(&self, w: Word) {
        if w.file().is_none() {
            self.pool.count(Counter::SwapReadError, 1);
        }
    }
}
