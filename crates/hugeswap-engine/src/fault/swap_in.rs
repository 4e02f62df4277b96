//! Faults on units in the swap cache or in swap: the frame is moved into place, after a read and a
//! check of its sum if need be. The rules of the fault path hold.
//!
//! Each takes a locked unit and unlocks it. `None`: look at the unit again.

use crate::call::Done;
use crate::memory::huge::{Huge, Wait};
use crate::outcome::Fault;
use crate::outcome::Outcome;
use crate::paging::Job;
use crate::paging::Paging;
use crate::table::{Locked, NO_FRAME};
use hugeswap_policy::counters::{Counter, FaultClass};
use hugeswap_policy::defrag::gfp::Caller;
use hugeswap_policy::defrag::thp::Bring;
use hugeswap_policy::unit::Place;
use hugeswap_policy::unit::step::Event;

impl Paging {
    /// In the swap cache: move the frame into place.
    pub(super) fn take_from_cache(
        &self,
        w: Locked<'_>,
        fault: Fault,
        class: FaultClass,
    ) -> Option<Outcome> {
        let unit = w.unit();
        let place = w.frame();
        let page = fault.page(&w);
        if let Err(e) = self.put_in_place(w, place, fault.write) {
            return self.not_mapped(e, fault.start);
        }
        self.note_soft_fault(unit, page);
        let done = self.timed(class, fault);
        self.read_ahead(unit, true);
        done
    }

    /// Moves the frame at `place` to `unit` and unlocks it as present; on failure unlocks it as
    /// cached.
    fn put_in_place(&self, w: Locked<'_>, place: u32, write: bool) -> Done {
        let unit = w.unit();
        // Where pages are told apart, the next fault makes one writable.
        let write = write && !self.track.tracks_pages(unit);
        match self.map_frame(&w, place, write) {
            Ok(event) => {
                self.settle_by(w, event);
                self.arena.put_empty(place);
                Ok(())
            }
            Err(e) => {
                w.set_frame(place);
                // Read ahead, in effect: see `park` for what a cached unit without the mark is.
                self.settle_by(w, Event::Filled);
                Err(e)
            }
        }
    }

    /// In swap only: read it, here and now. `None`: look at the unit again.
    pub(crate) fn major(&self, mut w: Locked<'_>, fault: Fault) -> Option<Outcome> {
        let unit = w.unit();
        if w.place() == Place::Nothing {
            w.settle();
            return Some(Outcome::Poisoned);
        }
        let mut huge = self.huge_or_wait(unit, Caller::SwapIn);
        if let Huge::BasePages = huge {
            if self.go_over_to_pages(&mut w) {
                self.pool.count(Counter::ThpSwpInFallback, 1);
                self.note_fell_back(unit);
                return self.fall_back(w, fault);
            }
            huge = self.wait_for_huge(Wait::FOR_A_FRAME);
        }
        let Huge::Frame(frame) = huge else {
            w.set_frame(NO_FRAME);
            w.settle();
            return Some(Outcome::NoMemory);
        };
        // Tell the readers of what comes next before we wait for our own read.
        self.read_ahead(unit, false);
        let at = self.arena.addr(frame.place);
        let result = self.read_unit(unit, *w, at, true);
        if result.is_err() && self.gate.is_forker() {
            // Between the parts of a fork the threads that could do better are at rest.
            self.note_read_error(*w);
            w.set_frame(NO_FRAME);
            self.arena.put_free(frame.place);
            w.settle();
            return Some(Outcome::Poisoned);
        }
        if result.is_err() {
            // Our descriptor may be gone, or the device failed: the engine's threads have
            // descriptors of their own and the last word. The lock goes with the job.
            w.set_frame(frame.place);
            w.pass();
            self.queue_read(Job::Handed(unit));
            self.wake_workers(1);
            return None;
        }
        match self.put_in_place(w, frame.place, fault.write) {
            Ok(()) => self.timed(FaultClass::Major, fault),
            Err(e) => self.not_mapped(e, fault.start),
        }
    }

    /// A fault on a locked unit that is whole in swap. Unlocks it. `None`: look at the unit again.
    #[inline(never)]
    pub(crate) fn swap_fault(&self, mut w: Locked<'_>, fault: Fault) -> Option<Outcome> {
        let unit = w.unit();
        let page = fault.page(&w);
        let small = match self.bring_of(unit) {
            _ if self.is_cut_off(*w) || self.store.is_partly_bad(unit, w.place()) => {
                self.backend.part_of(page)
            }
            _ if fault.write && self.track.tracks_pages(unit) => self.backend.part_of(page),
            Bring::Pages => self.backend.part_of(page),
            Bring::AsFaulted | Bring::Pieces => self.decide_size(unit, page, 0, false),
            Bring::Whole => None,
        };
        match small.filter(|_| self.go_over_to_pages(&mut w)) {
            Some(pages) => self.bring_pages(w, pages, fault),
            None => self.major(w, fault),
        }
    }
}
