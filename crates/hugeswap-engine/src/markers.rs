//! Guards, poisoned pages, pages without access and read-only pages
//! ([`hugeswap_policy::markers`]): four bits for each page, beside the unit table.
//!
//! A unit in which one is set is never in memory in one piece where the program sees it: it is
//! zero, in swap, base-mapped, or foreign. In a base-mapped unit the pages with markers are not
//! present, and guards and poisoned pages not stored, so that every touch of them faults and none
//! brings them in. Read-only pages that are present are write-protected, and so every write of them
//! faults. What needs the unit in one piece (a pin,
//! a fork handler's touch, ejection) hands it to the kernel for good, with guards of the kernel's
//! own in it, or where the kernel has none (before Linux 6.13) with pages without access. Pages
//! that had no access, or could only be read, are mapped so there; the kernel alone knows of it from
//! then on.
//!
//! Markers outlive memory and swap, move with their unit, are inherited by a forked child, and end
//! when the page is unmapped. Giving content up ends poison and leaves guards.
//!
//! Concurrency: they change under the unit's lock. A thread that maps a unit looks at them once it
//! has the lock. Other threads may look and get an answer that was true a moment ago.

use crate::PAGE;
use crate::PAGES;
use crate::backend::Cover;
use crate::bits::Bits;
use crate::call::CallError;
use crate::marker_table::Marked;
use crate::outcome::Outcome;
use crate::paging::Paging;
use crate::table::{Locked, NO_FRAME};
use hugeswap_policy::markers::{Marker, Misplaced, Pages};
use hugeswap_policy::unit::step::Event;
use hugeswap_policy::unit::{Kind, Word};
use hugeswap_sys::mm;
use std::sync::atomic::Ordering::Relaxed;

impl Paging {
    /// The same of the page at `addr`.
    pub fn marker_at(&self, addr: usize) -> Option<Marker> {
        let unit = self.table.unit_of(addr)?;
        self.markers
            .marker_of(unit, (addr - self.table.addr(unit)) / PAGE)
    }

    /// The first marker in `[addr, addr+len)`.
    pub fn first_marker(&self, addr: usize, len: usize) -> Option<Marker> {
        if self.markers.tables().is_none() || len == 0 || !self.contains(addr) {
            return None;
        }
        let mut units = self.table.units_of(addr, len);
        units.find_map(|unit| {
            let marked = self.markers.of(unit)?;
            self.table
                .pages_in(unit, addr, len)
                .find_map(|p| marked.of(p))
        })
    }

    /// The outcome of a touch of a page that the program may not touch so.
    #[inline(never)]
    pub(crate) fn marked_outcome(&self, unit: u32, addr: usize, write: bool) -> Option<Outcome> {
        let marked = self.markers.of(unit)?;
        let page = (addr - self.table.addr(unit)) / PAGE;
        match marked.of(page) {
            Some(Marker::Guard) => Some(Outcome::Guard),
            Some(Marker::NoAccess) => Some(Outcome::NoAccess),
            Some(Marker::Poison) => Some(Outcome::Poisoned),
            None => (write && marked.read_only.get(page)).then_some(Outcome::NoAccess),
        }
    }

    /// Maps the frame at `place` to a locked unit with markers, which is the kernel's from now on.
    /// Gives the event for the caller to take the step of. If it fails, nothing is changed.
    #[inline(never)]
    pub(crate) fn map_marked(
        &self,
        w: &Locked<'_>,
        place: u32,
    ) -> std::result::Result<Event, CallError> {
        let unit = w.unit();
        let (from, at) = (self.arena.addr(place), w.addr());
        let access = match (w.allows(true), w.allows(false)) {
            (true, _) => mm::PROT_RW,
            (false, true) => mm::PROT_READ,
            (false, false) => mm::PROT_NONE,
        };
        let marked = self.markers.of(unit);
        let cover = |marked: &Marked, page| match marked.of(page) {
            None if marked.read_only.get(page) => Cover::ReadOnly,
            None => Cover::Open,
            Some(Marker::Guard | Marker::Poison) => Cover::Guarded,
            Some(Marker::NoAccess) => Cover::Closed,
        };
        let run = |from, wanted| {
            // (It was marked a moment ago, under the same lock.)
            marked.and_then(|marked| marked.run_of(from, |page| cover(marked, page) == wanted))
        };
        self.backend.map_marked(from, at, access, run)?;
        if let Some(tables) = self.markers.tables() {
            tables.change(unit, |m| {
                m.no_access.fill(false);
                m.read_only.fill(false);
            });
        }
        self.let_inherit(unit);
        w.set_frame(NO_FRAME);
        self.track.note_written(unit);
        self.has_foreign.store(true, Relaxed);
        self.pool.hand_over_to_kernel(self.pool.me());
        // (What it has in swap is given up by a caller that may: [`Paging::eject`], or as the unit
        // is unmapped.)
        Ok(Event::Ejected { keeps_place: true })
    }

    /// After the access to a unit of the kernel's was changed: where it has no guards, there is
    /// none to pages with markers.
    pub(crate) fn close_again(&self, unit: u32) {
        let Some(marked) = self.markers.of(unit) else {
            return;
        };
        let mut from = 0;
        while let Some(run) = marked.run(from, true) {
            from = run.end;
            let _ = self.backend.close_foreign(self.table.addr(unit), &run);
        }
    }

    /// Is what is said of a locked unit, and of its pages, possible?
    pub(crate) fn check_markers(&self, unit: u32, w: Word) -> std::result::Result<(), Misplaced> {
        let none = Bits::none();
        let (guard, poison, no_access) = match self.markers.of(unit) {
            Some(marked) => (&marked.guard, &marked.poison, &marked.no_access),
            None => (&none, &none, &none),
        };
        let record = self.base.records.of(unit);
        let whole = matches!(w.kind(), Kind::Present | Kind::Cached);
        for at in (0..PAGES).step_by(64) {
            let based = |bits: &Bits| match w.kind() {
                Kind::Base => bits.word(at / 64),
                _ => 0,
            };
            let pages = Pages {
                guard: guard.word(at / 64),
                poison: poison.word(at / 64),
                no_access: no_access.word(at / 64),
                present: if whole {
                    u64::MAX
                } else {
                    based(&record.present)
                },
                dirty: based(&record.dirty),
                stored: based(&record.stored),
            };
            pages.check()?;
        }
        Ok(())
    }
}
