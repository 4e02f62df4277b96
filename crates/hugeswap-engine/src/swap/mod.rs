//! Units between memory and swap: where the pages of a unit are there, reads of them, and all that goes over units because of swap: areas taken off
//! ([`off`], [`lose`]), the scrubber ([`scrub`]), whole clusters found again ([`compact`]).
//!
//! Under the unit's lock; slots and transfers are the store's ([`crate::store`]).

mod compact;
mod lose;
mod off;
pub(crate) mod scrub;

use crate::checksum;
use crate::engine::Engine;
use crate::pool::losses::{Loss, LossKey};
use crate::store::scatter::Places;
use crate::store::{PAGE, PAGES, Pages};
use hugeswap_policy::UNIT_PAGES;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::file::FilePlace;
use hugeswap_policy::unit::{Kind, SCATTERED, Word};
use hugeswap_sys::{Errno, Result};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// A slot that something could not be read from is bad if so many more reads, of it alone, fail.
const READS: u32 = 2;

impl Engine {
    /// Reads all of a locked unit that is in swap to the frame at `at`. `doubt`: see [`Engine::read_slot`].
    pub(crate) fn read_unit(&self, unit: u32, slot: u64, at: usize, doubt: bool) -> Result<()> {
        if let Some(place) = FilePlace::of_slot(slot) {
            return self.read_file_unit(unit, place, at);
        }
        if slot != SCATTERED {
            self.read_slot(slot, at, doubt)?;
            self.count_swap_in(at);
            self.advise_came_back(unit);
            return Ok(());
        }
        let places = self.store.scatter.of(unit).ok_or(Errno::EIO)?;
        let mut page = 0;
        while page < PAGES {
            let to = at + page * PAGE;
            if let Some((cluster, run)) = places.run(page..PAGES) {
                page += run.len();
                self.store.read_pages(cluster, run, to)?;
            } else {
                // SAFETY: the frame is the caller's.
                unsafe { std::ptr::write_bytes(to as *mut u8, 0, PAGE) };
                page += 1;
            }
        }
        Ok(())
    }

    /// Reads pages of a locked unit that are in swap, side by side in the unit, to `to`.
    pub(crate) fn read_stored(
        &self,
        unit: u32,
        w: Word,
        pages: Range<usize>,
        to: usize,
    ) -> Result<()> {
        let slot = w.slot().ok_or(Errno::EIO)?;
        if let Some(place) = FilePlace::of_slot(slot) {
            return self.read_file_pages(place, pages, to);
        }
        if slot != SCATTERED {
            return self.store.read_pages(slot, pages, to);
        }
        let places = self.store.scatter.of(unit).ok_or(Errno::EIO)?;
        let mut page = pages.start;
        while page < pages.end {
            let (cluster, run) = places.run(page..pages.end).ok_or(Errno::EIO)?;
            let at = to + (page - pages.start) * PAGE;
            page += run.len();
            self.store.read_pages(cluster, run, at)?;
        }
        Ok(())
    }

    /// Why the bytes at `addr`, which are lost, could not be had from swap, if that is remembered.
    pub fn loss_at(&self, addr: usize) -> Option<Loss> {
        let unit = self.table.unit_of(addr)?;
        let w = self.table.load(unit);
        if w.kind() == Kind::Poisoned {
            return self.pool.loss(LossKey::Unit(self.pool.me(), unit));
        }
        let page = (addr - self.table.addr(unit)) / PAGE;
        let (cluster, at) = self.place_of(unit, w, page)?;
        let number = cluster * UNIT_PAGES + at as u64;
        self.pool.loss(LossKey::Page(number))
    }

    /// A unit that is about to have no place in swap is lost: why is remembered by its own name.
    pub(crate) fn note_unit_lost(&self, unit: u32, w: Word) {
        let of_page = |page| {
            let (cluster, at) = self.place_of(unit, w, page)?;
            self.pool
                .loss(LossKey::Page(cluster * UNIT_PAGES + at as u64))
        };
        if let Some(loss) = (0..PAGES).find_map(of_page) {
            self.pool
                .note_loss(LossKey::Unit(self.pool.me(), unit), loss);
        }
    }

    /// Is a unit's place, as far as it can be seen, partly bad, so that what can be read of it has to come by the page?
    pub(crate) fn is_partly_bad(&self, unit: u32, w: Word) -> bool {
        self.is_bad_anywhere(unit, w, 0..PAGES)
    }

    /// The same of some of its pages.
    pub(crate) fn is_bad_anywhere(&self, unit: u32, w: Word, mut pages: Range<usize>) -> bool {
        match w.slot() {
            _ if self.pool.header().losses.load(Relaxed) == 0 => false,
            _ if FilePlace::of(w).is_some() => false,
            None => false,
            Some(SCATTERED) => {
                let places = self.store.scatter.of(unit);
                let bad = |p| {
                    let s = places.and_then(|s| s.get(p));
                    s.is_some_and(|s| self.pool.is_bad_or_lost(s.cluster, s.at..s.at + 1))
                };
                pages.any(bad)
            }
            Some(cluster) => self.pool.is_bad_or_lost(cluster, pages),
        }
    }

    /// Has a locked unit with a place in swap something there for page `page`?
    pub(super) fn is_somewhere(&self, unit: u32, w: Word, page: usize) -> bool {
        let places = self.store.scatter.of(unit);
        !w.is_scattered() || places.is_some_and(|s| s.get(page).is_some())
    }

    /// Reads page `page` of a locked unit to `to` from its place in swap, and marks the slot if that fails again and again. `doubt`: as for
    /// [`Store::read`](crate::store::Store::read), whose errors it has.
    pub(crate) fn read_or_mark(
        &self,
        unit: u32,
        w: Word,
        page: usize,
        to: usize,
        doubt: bool,
    ) -> Result<(), Errno> {
        let (cluster, at) = match w.slot() {
            Some(SCATTERED) => match self.store.scatter.of(unit).and_then(|s| s.get(page)) {
                Some(s) => (s.cluster, s.at),
                None => {
                    // SAFETY: the caller's memory.
                    unsafe { std::ptr::write_bytes(to as *mut u8, 0, PAGE) };
                    return Ok(());
                }
            },
            Some(cluster) => (cluster, page),
            None => return Err(Errno::EIO),
        };
        // All that could be waited for was, before it came to this.
        let again = |attempt| attempt + 1 < READS;
        let result = self.store.read_until(cluster, at..at + 1, to, doubt, again);
        if result != Err(Errno::EIO) {
            return result;
        }
        let sums = self.pool.slot_sums().get(cluster as usize);
        let known = sums.and_then(|s| s.get(at..at + 1));
        if !known.is_some_and(checksum::known) {
            self.pool.note_lost(cluster, at);
        } else if self.pool.mark_bad(cluster, at) && !self.is_in_memory(unit, w, page) {
            self.pool.count(Counter::Poisoned, 1);
        }
        result
    }

    /// The slot of page `page` of a locked unit: its cluster, and which there.
    pub(crate) fn place_of(&self, unit: u32, w: Word, page: usize) -> Option<(u64, usize)> {
        let single = |s: &Places| s.get(page).map(|s| (s.cluster, s.at));
        match w.slot() {
            Some(SCATTERED) => self.store.scatter.of(unit).and_then(single),
            slot => slot.map(|cluster| (cluster, page)),
        }
    }

    /// [`Engine::is_somewhere`], and can it be read, as far as is known?
    pub(super) fn is_known(&self, unit: u32, w: Word, page: usize) -> bool {
        self.place_of(unit, w, page).is_some_and(|(cluster, at)| {
            let sums = self.pool.slot_sums().get(cluster as usize);
            sums.and_then(|s| s.get(at..at + 1))
                .is_some_and(checksum::known)
        })
    }

    fn is_in_memory(&self, unit: u32, w: Word, page: usize) -> bool {
        match w.kind() {
            Kind::Base => self.base.records.of(unit).present.get(page),
            kind => matches!(kind, Kind::Present | Kind::Cached),
        }
    }

    /// A read of all of a locked unit failed: reads it page by page to `to`, and marks what is bad. True if all of
    /// it could be read after all.
    pub(crate) fn read_unit_by_pages(&self, unit: u32, w: Word, to: usize) -> bool {
        let mut all = true;
        for page in 0..PAGES {
            all &= self
                .read_or_mark(unit, w, page, to + page * PAGE, false)
                .is_ok();
        }
        all
    }
}
