//! Faults on units that hold nothing yet: they get a frame of zeros, or pages of zeros if they may
//! not be huge.
//!
//! Each function takes a locked unit and unlocks it. `None` means: look at the unit again. The
//! rules of the fault path hold.

use crate::UNIT;
use crate::call::CallError;
use crate::memory::huge::{Huge, Wait};
use crate::outcome::Fault;
use crate::outcome::Outcome;
use crate::paging::Paging;
use crate::table::Locked;
use crate::track::Held;
use hugeswap_policy::counters::{Counter, FaultClass};
use hugeswap_policy::defrag::gfp::Caller;
use hugeswap_policy::unit::step::{Event, Lists};
use hugeswap_policy::unit::{Kind, MAY_WRITE};
use hugeswap_sys::mm;
use std::sync::atomic::Ordering::Relaxed;

impl Paging {
    /// A unit never touched before (or discarded): it reads as zeros.
    pub(super) fn first_touch(&self, mut w: Locked<'_>, fault: Fault) -> Option<Outcome> {
        let unit = w.unit();
        self.high_unit.fetch_max(unit + 1, Relaxed);
        if (!self.may_be_huge(unit) || fault.write && self.track.tracks_pages(unit))
            && self.start_pages(&mut w)
        {
            return self.page_fault(w, fault);
        }
        let tracked = self.track.is_tracked(unit);
        let marked = self.markers.is_marked(unit);
        let in_place = (!tracked || fault.write)
            && !marked
            && self.backend.can().fills_in_place
            && w.has(MAY_WRITE)
            && self.arena.free_frames_here() == 0;
        if in_place {
            w = match self.first_touch_in_place(w, fault) {
                Ok(outcome) => return outcome,
                Err(w) => w,
            };
        }
        let mut huge = self.huge_or_wait(unit, Caller::FirstTouch);
        if let Huge::BasePages = huge {
            if self.start_pages(&mut w) {
                self.pool.count(Counter::ThpFaultFallback, 1);
                self.note_fell_back(unit);
                return self.fall_back(w, fault);
            }
            huge = self.wait_for_huge(Wait::FOR_A_FRAME);
        }
        let Huge::Frame(frame) = huge else {
            w.settle();
            return Some(Outcome::NoMemory);
        };
        let from = self.arena.addr(frame.place);
        if !frame.zeroed || !self.backend.can().moves_untouched && !mm::populate(from, UNIT) {
            // SAFETY: the place holds a frame that is ours alone.
            unsafe { std::ptr::write_bytes(from as *mut u8, 0, UNIT) };
        }
        if marked {
            return self.first_touch_marked(frame.place, w, fault);
        }
        let writable = fault.write || !self.backend.can().arrives_read_only;
        if writable {
            self.note_arrival(unit, fault.write, Held::Zeros);
        }
        if let Err(e) = self.move_in(frame.place, unit, writable) {
            return self.not_moved_in(frame.place, w, e, fault.start);
        }
        self.let_inherit(unit);
        self.arena.put_empty(frame.place);
        self.settle_by(w, Event::FirstTouched { writable });
        self.timed(FaultClass::FirstTouch, fault)
    }

    /// A unit with markers gets the frame, and is the kernel's: base pages could not be had.
    #[cold]
    #[inline(never)]
    fn first_touch_marked(&self, place: u32, w: Locked<'_>, fault: Fault) -> Option<Outcome> {
        let event = match self.map_marked(&w, place) {
            Ok(event) => event,
            Err(e) => return self.not_moved_in(place, w, e, fault.start),
        };
        self.arena.put_empty(place);
        self.settle_by(w, event);
        self.timed(FaultClass::FirstTouch, fault)
    }

    /// The frame could not be moved to the unit.
    #[cold]
    #[inline(never)]
    fn not_moved_in(
        &self,
        place: u32,
        w: Locked<'_>,
        error: CallError,
        start: u64,
    ) -> Option<Outcome> {
        self.arena.put_free(place);
        w.settle();
        self.not_mapped(error, start)
    }

    /// First touch while the budget is not used up: let the kernel fault the memory in where it
    /// stands, and for a sequence of first touches several units at once. The error is the unit:
    /// that cannot be.
    fn first_touch_in_place<'a>(
        &self,
        w: Locked<'a>,
        fault: Fault,
    ) -> Result<Option<Outcome>, Locked<'a>> {
        const MOST: u32 = 32;
        let (unit, seen) = (w.unit(), *w);
        let want = match self.try_streams() {
            Some(mut s) => s
                .on_first_touch(u64::from(unit), u64::from(self.table.units()))
                .clamp(1, MOST),
            None => 1,
        };
        // What is tracked gets access when it is written.
        let want = if self.track.is_tracked(unit) { 1 } else { want };
        let room = self.huge_room(self.gfp_of(unit, Caller::FirstTouch));
        let want = want.min(room.min(u64::from(MOST)) as u32);
        let mut n = want.min(1);
        let mut rest = [const { None }; MOST as usize - 1];
        while n < want
            && let Some(next) = self.table.try_lock_if(unit + n, |o| {
                o.kind() == Kind::None
                    && o == seen
                    && self.may_be_huge(unit + n)
                    && !self.track.is_tracked(unit + n)
            })
            // Since it was looked at.
            && let Some(next) = self.markers.settle_if_marked(next)
        {
            rest[n as usize - 1] = Some(next);
            n += 1;
        }
        let mut got = n;
        while got > 0 && !self.pool.charge(self.pool.me(), u64::from(got)) {
            got /= 2;
        }
        let kept = got.saturating_sub(1) as usize;
        let (rest, others) = rest.split_at_mut(kept);
        let others = others.iter_mut().filter_map(Option::take);
        others.for_each(Locked::settle);
        if got == 0 {
            return Err(w);
        }
        let len = got as usize * UNIT;
        self.track.note_written(unit);
        if self
            .backend
            .set_writable(self.table.addr(unit), len)
            .is_err()
        {
            let rest = rest.iter_mut().filter_map(Option::take);
            rest.for_each(Locked::settle);
            self.pool.uncharge(self.pool.me(), u64::from(got));
            return Err(w);
        }
        self.high_unit.fetch_max(unit + got, Relaxed);
        let here = self.arena.numa.here().node;
        let rest = rest.iter_mut().rev().filter_map(Option::take);
        let mut lists = Lists::Untold;
        for w in rest.chain(std::iter::once(w)) {
            self.arena.numa.set_unit(w.unit(), here);
            lists = self.settle_untold(w, Event::FirstTouched { writable: true });
        }
        // In the order in which they will be used: the lists have nothing else to go by.
        (0..got).for_each(|i| self.tell(unit + i, lists));
        self.took_frame();
        self.count_node(here, here, here, u64::from(got));
        Ok(self.timed(FaultClass::FirstTouch, fault))
    }
}
