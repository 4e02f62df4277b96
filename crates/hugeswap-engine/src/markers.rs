//! Guards and poisoned pages ([`hugeswap_policy::markers`]): two bits for each page, beside the
//! unit table.
//!
//! A unit that has a marker is never in memory in one piece where the program sees it: it is zero,
//! in swap, base-mapped, or foreign. In a base-mapped unit the pages with markers are neither
//! present nor stored, so that every touch of them faults. What needs the unit in one piece (a pin,
//! a fork handler's touch, ejection) hands it to the kernel for good, with guards of the kernel's
//! own in it, or where the kernel has none (before Linux 6.13) with pages without access.
//!
//! Markers outlive memory and swap, move with their unit, are inherited by a forked child, and end
//! when the page is unmapped. Giving content up ends poison and leaves guards.
//!
//! Concurrency: they change under the unit's lock. A thread that maps a unit looks at them once it
//! has the lock. Other threads may look and get an answer that was true a moment ago.

use crate::PAGE;
use crate::PAGES;
use crate::UNIT;
use crate::bits::Bits;
use crate::call::{Call, CallError};
use crate::outcome::Outcome;
use crate::paging::Paging;
use crate::table::{Locked, NO_FRAME};
use hugeswap_policy::markers::{Marker, Misplaced, Pages};
use hugeswap_policy::unit::step::Event;
use hugeswap_policy::unit::{Kind, Word};
use hugeswap_sys::{Result, mm};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

// libc does not name them everywhere.
const MADV_GUARD_INSTALL: i32 = 102;

const MADV_GUARD_REMOVE: i32 = 103;

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

    /// What a touch of a page comes to that has a marker.
    #[inline(never)]
    pub(crate) fn marked_outcome(&self, unit: u32, addr: usize) -> Option<Outcome> {
        let marked = self.markers.of(unit)?;
        marked
            .of((addr - self.table.addr(unit)) / PAGE)
            .map(|marker| match marker {
                Marker::Guard => Outcome::Guard,
                Marker::Poison => Outcome::Poisoned,
            })
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
        // Nobody touches it before it is as it is to be. SAFETY: the frame is ours; the unit is
        // absent, or its pages are dropped by this, and locked.
        unsafe { mm::protect(from, UNIT, mm::PROT_NONE) }.map_err(|e| Call::Mprotect.failed(e))?;
        // SAFETY: as above.
        let mapped = unsafe { mm::move_pages(from, at, UNIT) }.map_err(|e| Call::Mremap.failed(e));
        let opened = mapped.and_then(|()| {
            let opened = self.open_around(unit, **w);
            opened
                .map_err(|e| Call::Mprotect.failed(e))
                .inspect_err(|_| {
                    // SAFETY: back again: the place is empty, the unit ours.
                    let _ = unsafe { mm::protect(at, UNIT, mm::PROT_NONE) }
                        // SAFETY: as above.
                        .and_then(|()| unsafe { mm::move_pages(at, from, UNIT) });
                })
        });
        if let Err(e) = opened {
            // SAFETY: the frame is ours still.
            let _ = unsafe { mm::protect(from, UNIT, mm::PROT_RW) };
            return Err(e);
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

    /// Gives access to a mapped unit but for its pages with markers.
    fn open_around(&self, unit: u32, w: Word) -> Result<()> {
        let at = self.table.addr(unit);
        let access = match (w.allows(true), w.allows(false)) {
            (true, _) => mm::PROT_RW,
            (false, true) => mm::PROT_READ,
            (false, false) => mm::PROT_NONE,
        };
        let Some(marked) = self.markers.of(unit) else {
            return Ok(());
        };
        let runs = |is| {
            let mut from = 0;
            std::iter::from_fn(move || {
                let run = marked.run(from, is)?;
                from = run.end;
                Some(run)
            })
        };
        let guarded = runs(true).all(|r| guard(at, &r).is_ok());
        if guarded {
            // SAFETY: the program's memory, the rest of which the kernel guards.
            return unsafe { mm::protect(at, UNIT, access) };
        }
        let len = |r: &Range<usize>| r.len() * PAGE;
        for r in runs(true) {
            // SAFETY: pages with markers hold nothing.
            unsafe { mm::advise(at + r.start * PAGE, len(&r), libc::MADV_DONTNEED) }?;
        }
        // SAFETY: the program's memory.
        runs(false).try_for_each(|r| unsafe { mm::protect(at + r.start * PAGE, len(&r), access) })
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
            let _ = close(self.table.addr(unit), &run);
        }
    }

    /// Is what is said of a locked unit, and of its pages, possible?
    pub(crate) fn check_markers(&self, unit: u32, w: Word) -> std::result::Result<(), Misplaced> {
        let none = Bits::none();
        let (guard, poison) = match self.markers.of(unit) {
            Some(marked) => (&marked.guard, &marked.poison),
            None => (&none, &none),
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

/// The kernel's own guards.
fn guard(at: usize, pages: &Range<usize>) -> Result<()> {
    // SAFETY: what the pages hold is given up.
    unsafe {
        mm::advise(
            at + pages.start * PAGE,
            pages.len() * PAGE,
            MADV_GUARD_INSTALL,
        )
    }
}

/// Takes access, and content, from pages of a unit that is the kernel's.
pub(crate) fn close(at: usize, pages: &Range<usize>) -> Result<()> {
    if guard(at, pages).is_ok() {
        return Ok(());
    }
    let (at, len) = (at + pages.start * PAGE, pages.len() * PAGE);
    // SAFETY: what the pages hold is given up; touching them is to be an error.
    unsafe { mm::advise(at, len, libc::MADV_DONTNEED) }
        // SAFETY: as above.
        .and_then(|()| unsafe { mm::protect(at, len, mm::PROT_NONE) })
}

/// Takes that back.
pub(crate) fn open(at: usize, pages: &Range<usize>) {
    let (at, len) = (at + pages.start * PAGE, pages.len() * PAGE);
    // SAFETY: they hold nothing.
    if unsafe { mm::advise(at, len, MADV_GUARD_REMOVE) }.is_err() {
        // SAFETY: the program's memory.
        let _ = unsafe { mm::protect(at, len, mm::PROT_RW) };
    }
}
