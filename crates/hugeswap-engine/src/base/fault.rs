//! Faults on base-mapped units: pages brought in. The rules of the fault path hold.

use super::{BUFFER, PAGE};
use crate::bits::Bits;
use crate::memory::huge::Huge;
use crate::outcome::Fault;
use crate::outcome::Outcome;
use crate::pages::record::Record;
use crate::paging::Paging;
use crate::table::Locked;
use hugeswap_policy::UNIT_PAGES;
use hugeswap_policy::counters::{Counter, FaultClass};
use hugeswap_policy::defrag::gfp::Caller;
use hugeswap_policy::defrag::thp::Bring;
use hugeswap_policy::unit::Place;
use hugeswap_policy::unit::step::Event;
use hugeswap_sys::Errno;
use std::ops::Range;

impl Paging {
    /// Which pages to keep for a touch of a watched, clean unit; `None`: all of it, as it is. A
    /// whole unit of which only a few pages are used would otherwise be touched now and then and
    /// stay for ever.
    #[inline(never)]
    pub(crate) fn pages_of_watched(&self, unit: u32, page: usize) -> Option<Range<usize>> {
        let part = self.backend.part_of(page)?;
        if !self.pages_can_come() || self.gate.is_forker() || self.mappings_are_short() {
            return None;
        }
        match self.bring_of(unit) {
            Bring::Pages | Bring::Pieces => Some(part),
            Bring::AsFaulted => self.decide_size(unit, page, 0, true),
            Bring::Whole => None,
        }
    }

    /// A locked, watched, clean unit goes over to base pages, of which `pages` stay in memory.
    /// Unlocks it.
    #[inline(never)]
    pub(crate) fn split_watched(
        &self,
        mut w: Locked<'_>,
        pages: Range<usize>,
        fault: Fault,
    ) -> Option<Outcome> {
        let unit = w.unit();
        let page = fault.page(&w);
        let Some(place) = self.arena.take_empty() else {
            w.settle();
            return None;
        };
        let frame = self.arena.addr(place);
        if self.move_out(unit, place, true).is_err() {
            self.arena.put_empty(place);
            self.note_mappings_short();
            w.settle();
            return None;
        }
        self.advance(&mut w, Event::MovedOut);
        if !self.go_over_to_pages(&mut w) {
            // As a unit that was read ahead: the next touch maps it.
            w.set_frame(place);
            self.settle_by(w, Event::Filled);
            return None;
        }
        let record = self.base.records.of(unit);
        let from = frame + pages.start * PAGE;
        let written = Bits::none();
        written.put(page..page + 1, fault.write);
        let installed = self.install(unit, record, pages, from, &written);
        if !self.keep_rest(unit, record, place) {
            // The frame's charge is the pages' now.
            self.arena.discard(place);
            self.put_pages(UNIT_PAGES - record.present.count());
        }
        self.note_split(unit);
        self.weights.set(unit, record.present.count());
        self.settle_by(w, Event::PagesCame { first: true });
        match installed {
            Ok(()) => self.timed(FaultClass::Soft, fault),
            Err(_) => None,
        }
    }

    /// A fault on a locked, base-mapped unit. Unlocks it. `None`: look at the unit again.
    #[inline(never)]
    pub(crate) fn page_fault(&self, w: Locked<'_>, fault: Fault) -> Option<Outcome> {
        if self.gate.is_forker() {
            // Pages were written out for the child already: what changes now must be in memory it
            // inherits.
            return self.make_whole(w, fault);
        }
        let unit = w.unit();
        let record = self.base.records.of(unit);
        let page = fault.page(&w);
        if record.present.get(page) {
            if self.give_access(unit, record, page, fault.write).is_err() {
                return self.make_whole(w, fault);
            }
            w.settle();
            return self.timed(FaultClass::Soft, fault);
        }
        let w = match record.rest.get(page) {
            true => match self.rest_fault(w, fault) {
                Ok(outcome) => return outcome,
                Err(w) => w,
            },
            false => w,
        };
        let Some(part) = self.backend.part_of(page).filter(|_| self.pages_can_come()) else {
            return self.make_whole(w, fault);
        };
        let mut pages = part;
        match self.bring_of(unit) {
            // It stays in base pages: as a whole it would be split by the next write.
            Bring::AsFaulted | Bring::Whole | Bring::Pieces if self.track.tracks_pages(unit) => {
                if !fault.write
                    && record.stored.get(page)
                    && !self.store.is_partly_bad(unit, w.place())
                {
                    pages = around(page);
                }
            }
            Bring::Pages if self.track.tracks_pages(unit) => {}
            Bring::Pages | Bring::Pieces if pages.len() == 1 && !record.stored.get(page) => {
                pages = zeros_ahead(record, page);
            }
            Bring::Pages => {}
            // It fell back at its first touch.
            Bring::AsFaulted
                if w.place() == Place::Nothing && self.backend.can().has_single_pages() =>
            {
                return self.whole_or_page(w, fault);
            }
            // What can be read of it, as long as the rest cannot.
            _ if self.is_cut_off(*w) || self.store.is_partly_bad(unit, w.place()) => {}
            bring @ (Bring::AsFaulted | Bring::Pieces) => {
                match self.decide_size(unit, page, record.present.count(), false) {
                    Some(few) => pages = few,
                    None if bring == Bring::Pieces => {}
                    None => return self.whole_or_page(w, fault),
                }
            }
            Bring::Whole => return self.whole_or_page(w, fault),
        }
        self.bring_pages(w, pages, fault)
    }

    /// A locked, base-mapped unit that is to be whole becomes so; where no frame is to be had, and
    /// base pages are to take its place, some come that are needed now.
    #[inline(never)]
    fn whole_or_page(&self, w: Locked<'_>, fault: Fault) -> Option<Outcome> {
        let (unit, seen) = (w.unit(), *w);
        let wait = match self.huge(unit, Caller::Collapse) {
            Huge::Frame(frame) => return self.make_whole_with(frame, w, fault),
            Huge::Wait(wait) => wait,
            _ => {
                self.pool.count(Counter::ThpCollapseFailed, 1);
                return self.fall_back(w, fault);
            }
        };
        // What is present of this unit may be what has to go.
        w.settle();
        match self.wait_for_huge(wait) {
            Huge::Frame(frame) => {
                self.arena.put_free(frame.place);
                None
            }
            Huge::NoMemory => Some(Outcome::NoMemory),
            _ => {
                let w = self.table.try_lock_if(unit, |now| now == seen)?;
                self.pool.count(Counter::ThpCollapseFailed, 1);
                self.fall_back(w, fault)
            }
        }
    }

    /// A locked, base-mapped unit was to be whole, and no frame was to be had. Brings in what a
    /// fault at `addr` needs: one page, or, where faults decide, 64 KiB, or zeros as a run goes on.
    /// Unlocks it.
    pub(crate) fn fall_back(&self, w: Locked<'_>, fault: Fault) -> Option<Outcome> {
        let unit = w.unit();
        let page = fault.page(&w);
        let record = self.base.records.of(unit);
        let pages = if !record.stored.get(page) {
            match self.track.tracks_pages(unit) {
                true => self.backend.part_of(page).unwrap_or(page..page + 1),
                false => zeros_ahead(record, page),
            }
        } else if self.bring_of(unit) == Bring::AsFaulted {
            around(page)
        } else {
            page..page + 1
        };
        self.bring_pages(w, pages, fault)
    }

    /// Brings pages of a locked, base-mapped unit in for a fault on `page`, which is one of them.
    /// Unlocks it.
    #[inline(never)]
    pub(crate) fn bring_pages(
        &self,
        mut w: Locked<'_>,
        mut pages: Range<usize>,
        fault: Fault,
    ) -> Option<Outcome> {
        let unit = w.unit();
        let page = fault.page(&w);
        let record = self.base.records.of(unit);
        if record.stored.get(page) && self.backend.can().has_single_pages() {
            // What holds nothing, or may not be touched, is not brought along.
            let comes =
                |p: &usize| record.stored.get(*p) && self.markers.marker_of(unit, *p).is_none();
            let above = (page + 1..pages.end).take_while(comes).count();
            let below = (pages.start..page).rev().take_while(comes).count();
            pages = page - below..page + 1 + above;
        } else if self.markers.is_marked(unit) {
            pages = self.backend.part_of(page).unwrap_or(pages);
        }
        let mut wanted = absent(record, pages.clone());
        let mut taken = self.take_pages_nowait(wanted);
        let least = self.backend.part_of(page).unwrap_or(pages.clone());
        if !taken && least.len() < pages.len() {
            (wanted, pages) = (absent(record, least.clone()), least.clone());
            taken = self.take_pages_nowait(wanted);
        }
        if !taken {
            // What is present of this unit may be what has to go.
            w.settle();
            if !self.take_pages(wanted) {
                return Some(Outcome::NoMemory);
            }
            self.put_pages(wanted);
            return None;
        }
        let first = !record.present.any();
        let zeros = !pages.clone().any(|p| record.stored.get(p));
        let (written, moved) = (Bits::none(), Bits::none());
        match zeros {
            // Zeros come ahead of a run only: it will write to them too, and each would be a fault.
            true => written.put(pages.clone(), fault.write),
            false => {
                let alone = self.store.zswap.has_reserve();
                for p in pages.clone() {
                    let moves = alone && self.may_move_in(unit, *w, p);
                    moved.put(p..p + 1, moves);
                    let again = moves || self.is_changed_again(unit, *w, record, p);
                    let write =
                        fault.write && p == page || again && !self.markers.is_read_only(unit, p);
                    written.put(p..p + 1, write);
                }
            }
        }
        let result = self.bring_in(unit, *w, record, pages.clone(), &written);
        self.give_up_moved(*w, record, &moved);
        // Whatever was not brought in goes back.
        self.put_pages(absent(record, pages).min(wanted));
        self.weights.set(unit, record.present.count());
        if first && record.present.any() {
            self.note_pages_came(unit);
            self.advance(&mut w, Event::PagesCame { first });
        }
        match result {
            Ok(()) => {
                w.settle();
                let class = if zeros {
                    FaultClass::FirstTouch
                } else {
                    FaultClass::Base
                };
                self.timed(class, fault)
            }
            Err(e)
                if e.errno == Errno::EIO
                    && self.some_can_be_had(unit, *w, record, &least, page) =>
            {
                w.settle();
                None
            }
            Err(e) if e.errno == Errno::EIO => {
                self.note_read_error(*w);
                w.settle();
                Some(Outcome::Poisoned)
            }
            Err(e) if e.is_shortage() && self.backend.can().parts_take_mappings => {
                w.settle();
                self.not_mapped(e, fault.start)
            }
            // Our descriptors may be gone: the engine's threads have their own. And as a whole it
            // can be had by other calls.
            Err(e) => self.hand_over(w, e, fault.start),
        }
    }
}

/// Pages to bring in for a first touch of `page`, which are zero: as many more as the run of
/// present ones that it goes on with has made, up to a buffer's worth. So no more than twice what
/// is touched comes in.
fn zeros_ahead(record: &Record, page: usize) -> Range<usize> {
    const MOST: usize = BUFFER / PAGE;
    let run = (1..MOST.min(page + 1)).take_while(|i| record.present.get(page - i));
    let more = run.count();
    let zero = |p: &usize| !record.present.get(*p) && !record.stored.get(*p);
    let ahead = (page + 1..UNIT_PAGES as usize).take(more).take_while(zero);
    page..page + 1 + ahead.count()
}

/// The buffer's worth of pages that `page` lies in.
fn around(page: usize) -> Range<usize> {
    const MANY: usize = BUFFER / PAGE;
    let start = page / MANY * MANY;
    start..start + MANY
}

/// How many of `pages` are not in memory.
pub(super) fn absent(record: &Record, pages: Range<usize>) -> u64 {
    pages.filter(|&p| !record.present.get(p)).count() as u64
}
