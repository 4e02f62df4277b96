//! Base pages written and dropped, a unit at a time.
//!
//! One write protection (or one for each run of dirty pages that go, where more pages stay writable
//! than there are runs), one write for each run of dirty pages (up to 16 at once by io_uring,
//! [`crate::store`]), one unmapping: so what disturbs other processors is paid once for up to 512
//! pages. Pages that were not written since they came are not written again.

use super::PAGE;
use crate::UNIT;
use crate::bits::Bits;
use crate::forked::{InheritanceLoss, note_inheritance_loss};
use crate::paging::Paging;
use crate::stack;
use crate::table::{Locked, NO_FRAME};
use hugeswap_policy::UNIT_PAGES;
use hugeswap_policy::unit::step::Event;
use hugeswap_policy::unit::{Kind, Place, Word};
use hugeswap_sys::now_ns;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

impl Paging {
    /// Writes out and drops pages of a locked, base-mapped unit, which stays base-mapped: all of
    /// them, or but for those that came back so soon that they are to be spared. Unlocks it. How
    /// many there were and how many are left; `None` if swap would not take them, or they could not
    /// be dropped.
    pub(crate) fn evict_pages(&self, mut w: Locked<'_>, spare: bool) -> Option<(u64, u64)> {
        let (start, unit) = (now_ns(), w.unit());
        let record = self.base.records.of(unit);
        let some = self.backend.can_drop_some();
        let going = match spare && some {
            true => record.not_spared(),
            false => Bits::none(),
        };
        if !spare || !some {
            going.copy(&record.present);
        }
        if record.dirty.any() && !self.swap_is_allowed(unit, *w) {
            w.settle();
            return None;
        }
        record.note_unchanged(&going);
        let dirty = Bits::none();
        dirty.copy(&record.dirty);
        // What is spared stays dirty, and is not written.
        let kept = record.dirty.split_off(&going);
        let clean = self.clean_pages_but(&mut w, kept.count());
        if clean {
            self.keep_clean_pages(&w, &going, &dirty);
        }
        let freed = clean.then(|| self.drop_clean_pages(unit, &going, start));
        record.dirty.join(&kept);
        let left = record.present.count();
        self.weights.set(unit, left);
        let freed = freed.flatten();
        let Some(freed @ 1..) = freed else {
            w.settle();
            return freed.map(|none| (none, left));
        };
        self.settle_by(w, Event::PagesWent);
        self.pacing.made(freed);
        self.note_available();
        Some((freed, left))
    }

    /// Write-protects a unit's pages and writes the dirty ones. Is no page dirty now?
    pub(crate) fn clean_pages(&self, w: &mut Locked<'_>) -> bool {
        self.clean_pages_but(w, 0)
    }

    /// [`Paging::clean_pages`], where `others` more pages can be written, which are not called
    /// dirty now, and may stay so.
    pub(super) fn clean_pages_but(&self, w: &mut Locked<'_>, others: u64) -> bool {
        let record = self.base.records.of(w.unit());
        if !record.dirty.any() {
            return true;
        }
        if self.freeze(w.unit(), &record.dirty, others).is_err() {
            return false;
        }
        // (Writing takes some 20 KiB, and this may be a handler on a program's alternate stack.)
        let mut written = false;
        stack::call(|| written = self.write_dirty(w, record));
        written
    }

    /// Compresses pages in `going`, which are clean and present, but for those in `written`, which
    /// were written a moment ago; or, where nothing is compressed, one of them now and then.
    fn keep_clean_pages(&self, w: &Locked<'_>, going: &Bits, written: &Bits) {
        if w.file().is_some() {
            return;
        }
        let record = self.base.records.of(w.unit());
        let at = |page: usize| w.addr() + page * PAGE;
        let clean = || record.stored.both(going).filter(|&p| !written.get(p));
        let zswap = &self.store.zswap;
        if !zswap.admits_class(false) {
            // What leaves without being written tells as much as what is. (That is a sample where
            // it is written.) SAFETY: pages that are present, as long as the unit is locked.
            unsafe { zswap.sample(clean().count(), |n| clean().nth(n).map(at)) };
            return;
        }
        for page in clean() {
            self.store.keep_clean(w.unit(), w.place(), page, at(page));
        }
    }

    /// Drops the present pages in `going`, which are clean. How many they were.
    fn drop_clean_pages(&self, unit: u32, going: &Bits, start: u64) -> Option<u64> {
        let record = self.base.records.of(unit);
        let (n, present) = (going.count(), record.present.count());
        if n == 0 {
            return Some(0);
        }
        if n == present {
            self.drop_present(unit, record).ok()?;
        } else if !self.drop_going(unit, record, going) {
            return None;
        }
        let n = present - record.present.count();
        record.left.copy(going);
        self.note_pages_evicted(unit, n, now_ns().saturating_sub(start));
        self.put_pages(n);
        Some(n)
    }

    /// Some pages of a base-mapped unit become zero: memory and swap behind them are given up. Was
    /// it done?
    pub(crate) fn discard_pages(&self, w: &mut Locked<'_>, pages: Range<usize>) -> bool {
        let record = self.base.records.of(w.unit());
        let (n, zero) = self.drop_some(w.unit(), record, pages.clone());
        self.put_pages(n);
        if zero {
            self.give_up_slots(w, record, pages);
        }
        zero
    }

    /// Forgets what a locked, base-mapped unit holds; the caller maps it anew and frees the slot.
    pub(crate) fn forget_pages(&self, unit: u32) {
        let record = self.base.records.of(unit);
        let n = record.present.count();
        self.change_present(record, || record.clear());
        self.put_pages(n);
    }

    /// A base-mapped unit goes back to being whole, in swap. Did it?
    pub(crate) fn leave_pages(&self, w: &mut Locked<'_>) -> bool {
        let record = self.base.records.of(w.unit());
        if !self.clean_pages(w) {
            return false;
        }
        if record.stored.any() {
            return self.complete_place(w, record) && self.leave_base(w, false);
        }
        self.leave_zero(w)
    }

    /// [`Paging::leave_pages`] for a unit that is all zeros: nothing is dirty, and its slot holds
    /// nothing.
    pub(super) fn leave_zero(&self, w: &mut Locked<'_>) -> bool {
        let dropped = self.drop_base(w);
        if dropped {
            self.advance_freeing(w, Event::LeftBase { zero: true });
        }
        dropped
    }

    /// [`Paging::leave_pages`] for a unit that its place in swap, if it has one, holds all of, and
    /// that is zero otherwise: it keeps its place. The rules of the fault path hold.
    fn leave_base(&self, w: &mut Locked<'_>, zero: bool) -> bool {
        let dropped = self.drop_base(w);
        if dropped {
            self.advance(w, Event::LeftBase { zero });
        }
        dropped
    }

    /// Drops all pages of a locked, base-mapped unit, and what is known of them.
    fn drop_base(&self, w: &Locked<'_>) -> bool {
        let dropped = self.backend.drop_units(w.addr(), UNIT).is_ok();
        if dropped {
            self.forget_pages(w.unit());
            w.set_frame(NO_FRAME);
        }
        dropped
    }

    /// Has some base-mapped units go back to being whole, in swap: each may take mappings that are
    /// short. Only those that their slots hold all of, or that have none. False if none was found.
    /// The rules of the fault path hold.
    pub(crate) fn leave_stored_pages(&self) -> bool {
        self.leave_some(|w| {
            let record = self.base.records.of(w.unit());
            if record.dirty.any() {
                return false;
            }
            match w.place() {
                Place::Nothing => self.leave_base(w, true),
                place if record.stored.all() || place == Place::Singles => {
                    self.leave_base(w, false)
                }
                _ => false,
            }
        })
    }

    /// As [`Paging::leave_stored_pages`], also those that have to be written for it.
    pub(crate) fn leave_some_pages(&self) -> bool {
        self.leave_some(|w| self.leave_pages(w))
    }

    fn leave_some(&self, leave: impl Fn(&mut Locked<'_>) -> bool) -> bool {
        const AT_A_TIME: usize = 16;
        let mut left = 0;
        for unit in 0..self.high_unit.load(Relaxed) {
            let Some(mut w) = self.table.try_lock_if(unit, |w| w.kind() == Kind::Base) else {
                continue;
            };
            let gone = leave(&mut w);
            w.settle();
            left += usize::from(gone);
            if left == AT_A_TIME {
                break;
            }
        }
        if left > 0 {
            self.note_available();
        }
        left > 0
    }

    /// In a forked child: the event that makes of a base-mapped unit of the parent's what it is
    /// here.
    pub(crate) fn pages_in_child(&self, unit: u32, w: Word) -> Event {
        let record = self.base.records.of(unit);
        let stored = record.stored.any();
        let complete = record.stored.all() || !stored || w.place() == Place::Singles;
        let complete = complete && !record.dirty.any();
        record.clear();
        match (complete, stored) {
            (true, stored) => Event::LeftBase { zero: !stored },
            (false, _) => {
                note_inheritance_loss(InheritanceLoss::NotWritten);
                self.store.lose_place(unit, w.place());
                Event::Lost
            }
        }
    }
}

const _: () = assert!(UNIT_PAGES as usize * PAGE == UNIT);
