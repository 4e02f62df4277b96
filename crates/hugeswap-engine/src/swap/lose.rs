//! What cannot be read of an area that is taken off: it is counted, and left where it is, or given
//! up if that was asked for.
//!
//! What is also in memory is never lost: it becomes dirty, or is written elsewhere. Each page of
//! the rest is tried by itself. It is *given up* as at a touch: its slot is marked bad, `hwpoison`
//! counts it and one line says so, once. Its unit becomes base-mapped, where it can be, and the
//! page has a slot elsewhere that is known to hold nothing
//! ([`checksum::lose`](crate::checksum::lose)), so that a touch of it is SIGBUS; else the unit is
//! poisoned.

use super::off::Round;
use super::{PAGE, PAGES};
use crate::pages::record::Record;
use crate::reclaim::Reclaim;
use crate::store::scatter::{Places, Single};
use crate::table::Locked;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::unit::step::Event;
use hugeswap_policy::unit::{Kind, Place, Word};
use hugeswap_sys::{Errno, Result};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// A page that could not be read is tried once more.
const READS: u32 = 2;

/// What came of looking at the pages of one unit.
#[derive(Clone, Copy, Default)]
struct Unread {
    /// Pages that are nowhere else, and may come back.
    pages: u64,
    /// Those of them that were not known to be bad.
    news: u64,
    /// Pages that were given up before: there is nothing that could come back.
    gone: u64,
}

/// What can be done with a page of which swap has the only copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// It has been read.
    Here,
    /// It is lost, or may be if it has to leave.
    Not,
}

impl Reclaim {
    /// Reads page `page` of a locked unit to `to`. EIO: it cannot be had from where it is, which is
    /// marked if it may be given up.
    fn try_page(&self, unit: u32, w: Word, page: usize, to: usize, round: &Round) -> Result<()> {
        if round.lose {
            return self.read_or_mark(unit, w, page, to, false);
        }
        let slot = self.store.slot_of(unit, w.place(), page);
        let Single { cluster, at } = slot.ok_or(Errno::EINVAL)?;
        let again = |attempt| attempt + 1 < READS;
        self.store.read_until(cluster, at..at + 1, to, false, again)
    }

    /// [`Reclaim::try_page`] of a page that is in swap only; if it cannot be read, that is noted.
    fn try_only_copy(
        &self,
        (unit, w): (u32, Word),
        page: usize,
        to: usize,
        round: &Round,
        unread: &mut Unread,
    ) -> Result<Found> {
        let slot = self.store.slot_of(unit, w.place(), page);
        let Single { cluster, at } = slot.ok_or(Errno::EINVAL)?;
        if self.pool.is_lost(cluster, at) {
            unread.gone += 1;
            return Ok(Found::Not);
        }
        let known = self.pool.is_bad(cluster, at..at + 1);
        match self.try_page(unit, w, page, to, round) {
            Ok(()) => Ok(Found::Here),
            Err(Errno::EIO) => {
                unread.pages += 1;
                unread.news += u64::from(!known);
                Ok(Found::Not)
            }
            Err(e) => Err(e),
        }
    }

    /// Reads to the round's buffer what can be read of a locked unit in a cluster: halves of what
    /// cannot be read as a whole, so that few reads find a few pages.
    fn read_in_parts(
        &self,
        (unit, w): (u32, Word),
        pages: Range<usize>,
        round: &Round,
        unread: &mut Unread,
    ) -> Result<()> {
        let to = round.buffer.addr() + pages.start * PAGE;
        if pages.len() == 1 {
            return self
                .try_only_copy((unit, w), pages.start, to, round, unread)
                .map(drop);
        }
        let cluster = w.cluster().ok_or(Errno::EINVAL)?;
        if !self.pool.is_bad_or_lost(cluster, pages.clone()) {
            match self
                .store
                .read_until(cluster, pages.clone(), to, false, |_| false)
            {
                Err(Errno::EIO) => {}
                read => return read,
            }
        }
        let middle = pages.start + pages.len() / 2;
        self.read_in_parts((unit, w), pages.start..middle, round, unread)?;
        self.read_in_parts((unit, w), middle..pages.end, round, unread)
    }

    /// May a locked unit go without what could not be read of it? Says what is lost then.
    fn may_go(&self, unit: u32, round: &Round, unread: Unread) -> bool {
        if !round.lose {
            round.unreadable.set(round.unreadable.get() + unread.pages);
        } else if unread.news > 0 {
            // Without base pages it is all of it.
            let whole = !self.backend.can().has_parts();
            self.complain_of_loss(unit, if whole { PAGES as u64 } else { unread.news });
        }
        round.lose || unread.pages == 0
    }

    /// A unit in swap, with a cluster that could not be read as a whole. Has it left?
    pub(super) fn move_what_is_left(&self, w: &mut Locked<'_>, round: &Round) -> bool {
        let unit = w.unit();
        let mut unread = Unread::default();
        let read = self.read_in_parts((unit, **w), 0..PAGES, round, &mut unread);
        if read.is_err() || !self.may_go(unit, round, unread) {
            return false;
        }
        if unread.pages + unread.gone == 0 {
            return self.write_off(w, round.buffer).is_ok();
        }
        if !self.backend.can().has_parts() {
            round.note_lost(PAGES as u64);
            self.advance(w, Event::Lost);
            return true;
        }
        let moved =
            self.go_over_to_pages(w) && self.copy_pages_off(w, self.base.records.of(unit)).is_ok();
        if moved {
            round.note_lost(unread.pages);
        }
        moved
    }

    /// A locked, base-mapped unit with a cluster: what of it is in memory, and cannot be read,
    /// becomes dirty. False: something is nowhere else, and may not be given up. What is lost,
    /// else.
    pub(super) fn settle_pages(
        &self,
        unit: u32,
        w: Word,
        record: &Record,
        round: &Round,
    ) -> Option<u64> {
        let buffer = self.base.take_buffer();
        let mut unread = Unread::default();
        for page in (0..PAGES).filter(|&p| record.stored.get(p) && !record.dirty.get(p)) {
            if record.present.get(page) {
                match self.try_page(unit, w, page, buffer.addr(), round) {
                    Ok(()) => {}
                    Err(Errno::EIO) => self.make_page_dirty(record, page),
                    Err(_) => return None,
                }
            } else {
                self.try_only_copy((unit, w), page, buffer.addr(), round, &mut unread)
                    .ok()?;
            }
        }
        let may_go = self.may_go(unit, round, unread);
        may_go.then_some(unread.pages)
    }

    /// A unit that is in memory, and whose place cannot be read, or has no room elsewhere. Has it
    /// left?
    pub(super) fn move_from_memory(&self, w: &mut Locked<'_>) -> bool {
        match w.kind() {
            Kind::Present => {
                if !self.make_dirty(w) {
                    return false;
                }
                // (A cluster is the caller's to free.)
                if w.place() == Place::Singles {
                    self.store.free_place(w.unit(), Place::Singles);
                }
                self.advance(w, Event::Placed(Place::Nothing));
                true
            }
            Kind::Cached => self.write_elsewhere(w),
            _ => false,
        }
    }

    /// A scattered unit: what is still in the area, page by page. Has all of it left?
    pub(super) fn move_singles_left(
        &self,
        w: &mut Locked<'_>,
        places: &Places,
        round: &Round,
    ) -> bool {
        let unit = w.unit();
        let there = |p: usize| places.get(p).filter(|s| round.range.contains(&s.cluster));
        let record = (w.kind() == Kind::Base).then(|| self.base.records.of(unit));
        let mut unread = Unread::default();
        let mut lost = [false; PAGES];
        {
            let buffer = self.base.take_buffer();
            for (page, lost) in lost.iter_mut().enumerate() {
                let Some(old) = there(page) else { continue };
                let present = record.filter(|r| r.present.get(page));
                let only = present.is_none() && matches!(w.kind(), Kind::Swapped | Kind::Base);
                let found = if only {
                    self.try_only_copy((unit, **w), page, buffer.addr(), round, &mut unread)
                } else {
                    match self.try_page(unit, **w, page, buffer.addr(), round) {
                        Err(Errno::EIO) => Ok(Found::Not),
                        read => read.map(|()| Found::Here),
                    }
                };
                match (found, present) {
                    (Ok(Found::Here), _) => {
                        if !self.move_single(places, page, old, Some(buffer.addr())) {
                            return false;
                        }
                    }
                    (Ok(Found::Not), Some(record)) => {
                        self.make_page_dirty(record, page);
                        record.stored.put(page..page + 1, false);
                        self.store.free_pages(places, page..page + 1);
                    }
                    (Ok(Found::Not), None) if only => *lost = true,
                    (Ok(Found::Not), None) => return self.move_from_memory(w),
                    (Err(_), _) => return false,
                }
            }
        }
        if !self.may_go(unit, round, unread) {
            return false;
        }
        for page in (0..PAGES).filter(|&p| lost[p]) {
            let Some(old) = there(page) else { continue };
            let known = self.pool.is_lost(old.cluster, old.at);
            if !self.move_single(places, page, old, None) {
                return false;
            }
            round.note_lost(u64::from(!known));
        }
        true
    }

    /// Moves a page to a single slot elsewhere, `from` memory; or what is left of it, which is that
    /// it is lost. False: that could not be.
    fn move_single(&self, places: &Places, page: usize, old: Single, from: Option<usize>) -> bool {
        let Some((cluster, at)) = self.store.claim_singles(1) else {
            return false;
        };
        match from {
            None => {
                // What another process had there that is gone would be read as ours.
                self.store.forget_stored(cluster, at.clone());
                self.pool.note_lost(cluster, at.start);
            }
            Some(from) if self.store.write_pages(cluster, at.clone(), from).is_ok() => {
                self.pool.count(Counter::SwapMoved, 1);
            }
            Some(_) => {
                self.store.release_singles(cluster, at);
                return false;
            }
        }
        let at = at.start;
        places.put(page, Some(Single { cluster, at }));
        self.store.free_singles(old.cluster, old.at..old.at + 1);
        true
    }
}

impl Round<'_> {
    /// Pages were given up.
    pub(super) fn note_lost(&self, pages: u64) {
        self.lost.fetch_add(pages, Relaxed);
    }
}
