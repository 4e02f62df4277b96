//! Faults on units that hold nothing yet: they get a frame of zeros, or pages of zeros if they may not be huge. The rules of the fault path hold.
//!
//! Each takes a locked unit and unlocks it. `None`: look at the unit again.

use crate::engine::{Engine, UNIT};
use crate::fault::Outcome;
use hugeswap_policy::counters::{Counter, FaultClass};
use hugeswap_policy::unit::{Kind, MAY_WRITE, WRITABLE, Word};
use hugeswap_sys::mm;
use std::sync::atomic::Ordering::Relaxed;

impl Engine {
    /// A unit never touched before (or discarded): it reads as zeros.
    pub(super) fn first_touch(
        &self,
        unit: u32,
        w: Word,
        addr: usize,
        write: bool,
        start: u64,
    ) -> Option<Outcome> {
        self.high_unit.fetch_max(unit + 1, Relaxed);
        if !self.may_be_huge(unit)
            && let Some(w) = self.start_pages(unit, w)
        {
            return self.page_fault(unit, w, addr, write, start);
        }
        let in_place =
            self.mover().watches_in_place() && w.has(MAY_WRITE) && self.arena.free_frames() == 0;
        if in_place && let Some(outcome) = self.first_touch_in_place(unit, w, start) {
            return Some(outcome);
        }
        let frame = match self.get_frame_nowait() {
            Some(frame) => frame,
            None => {
                if self.may_fall_back(unit)
                    && let Some(w) = self.start_pages(unit, w)
                {
                    self.count(Counter::ThpFaultFallback, 1);
                    return self.fault_page(unit, w, addr, write, start);
                }
                let Some(frame) = self.get_frame() else {
                    self.table.unlock(unit, w);
                    return Some(Outcome::NoMemory);
                };
                frame
            }
        };
        let from = self.arena.addr(frame.place);
        if !frame.zeroed || !self.mover().moves_holes() && !mm::populate(from, UNIT) {
            // SAFETY: the place holds a frame that is ours alone.
            unsafe { std::ptr::write_bytes(from as *mut u8, 0, UNIT) };
        }
        let writable = write || !self.mover().arrives_clean();
        if self
            .mover()
            .map_in(from, self.table.addr(unit), writable)
            .is_err()
        {
            self.arena.put_free(frame.place);
            self.table.unlock(unit, w);
            return self.mappings_exhausted(start);
        }
        self.let_inherit(unit);
        self.arena.put_empty(frame.place);
        let new = w.with_kind(Kind::Present);
        self.table.unlock(
            unit,
            if writable && w.has(MAY_WRITE) {
                new.set(WRITABLE)
            } else {
                new
            },
        );
        self.count(Counter::ThpFaultAlloc, 1);
        self.done(unit, FaultClass::FirstTouch, start)
    }

    /// First touch while the budget is not used up: let the kernel fault the memory in where
    /// it stands, and for a sequence of first touches several units at once.
    fn first_touch_in_place(&self, unit: u32, w: Word, start: u64) -> Option<Outcome> {
        let want = match self.streams.try_lock() {
            Some(mut s) => s
                .on_first_touch(u64::from(unit), u64::from(self.table.units()))
                .clamp(1, 32),
            None => 1,
        };
        let mut n = 1;
        while n < want
            && self
                .table
                .try_lock_if(unit + n, |o| {
                    o.kind() == Kind::None && o == w && self.may_be_huge(unit + n)
                })
                .is_some()
        {
            n += 1;
        }
        let mut got = n;
        while got > 0 && !self.pool.charge(self.me(), u64::from(got)) {
            got /= 2;
        }
        for extra in got.max(1)..n {
            self.table.unlock(unit + extra, w);
        }
        if got == 0 {
            return None;
        }
        let len = got as usize * UNIT;
        if self
            .mover()
            .set_writable(self.table.addr(unit), len)
            .is_err()
        {
            for extra in 1..got {
                self.table.unlock(unit + extra, w);
            }
            self.pool.uncharge(self.me(), u64::from(got));
            return None;
        }
        let new = w.with_kind(Kind::Present).set(WRITABLE);
        self.high_unit.fetch_max(unit + got, Relaxed);
        for i in (0..got).rev() {
            self.table.unlock(unit + i, new);
        }
        // In the order in which they will be used: the lists have nothing else to go by.
        (0..got).for_each(|i| self.note_resident(unit + i));
        self.count(Counter::ThpFaultAlloc, u64::from(got));
        self.timed(FaultClass::FirstTouch, start)
    }
}
