//! What is done about a unit that the kernel refuses to map, above all because of the limit on
//! mappings, which signal mode can meet.
//!
//! Room is made by merging mappings and by dropping units where they stand, never by moving, which
//! needs mappings itself: absent neighbours and empty places are mapped anew as one, base-mapped
//! units go back to swap whole, and clean units are dropped where they stand. Then the fault is
//! tried again. For a second after that no unit goes over to base pages. Whatever the reason is, no
//! thread waits for ever.
//!
//! The fault path calls this, and its rules hold here (see `fault`). So does kswapd.

use crate::UNIT;
use crate::call::CallError;
use crate::memory::Memory;
use crate::memory::wait::SLOW_PATIENCE_NS;
use crate::table::Locked;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::unit::step::Event;
use hugeswap_policy::unit::{Kind, UNCHARGED, Word};
use hugeswap_sys::{Errno, now_ns};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// How long a fault goes on trying where a call fails for another reason than a shortage, which
/// nothing here can change: another thread may have caused it and be about to undo it.
const STUBBORN_PATIENCE_NS: u64 = 2_000_000_000;

impl Memory {
    /// Is it time to give up what has failed, for `error` the last time, since `start`?
    pub(crate) fn has_been_long(&self, error: CallError, start: u64) -> bool {
        // (Where a descriptor is bad another thread does it, as soon as there is memory.)
        let elsewhere = matches!(error.errno, Errno::EBADF | Errno::ENOTTY);
        let patience = if error.is_shortage() || elsewhere {
            SLOW_PATIENCE_NS
        } else {
            STUBBORN_PATIENCE_NS
        };
        now_ns().saturating_sub(start) > patience || self.stopping.load(Relaxed)
    }

    pub(crate) fn note_mappings_short(&self) {
        self.pool.count(Counter::MapLimit, 1);
        self.mappings_short_at.store(now_ns(), Relaxed);
    }

    /// Was the limit met a short while ago? Then nothing is done that takes mappings and can be
    /// left.
    pub(crate) fn mappings_are_short(&self) -> bool {
        const WHILE_NS: u64 = 1_000_000_000;
        let at = self.mappings_short_at.load(Relaxed);
        at != 0 && now_ns().saturating_sub(at) < WHILE_NS
    }

    /// Asks kswapd for clean units, however many frames are free: dropped, they free mappings.
    pub(crate) fn want_mappings(&self) {
        self.mappings_wanted.store(true, Release);
        self.pool.kick();
    }

    /// Has a fault asked for them since the last call?
    pub(crate) fn are_mappings_wanted(&self) -> bool {
        self.mappings_wanted.load(Relaxed) && self.mappings_wanted.swap(false, Acquire)
    }

    /// Drops a locked, clean, present unit where it stands and unlocks it; its frame goes back to
    /// the kernel. False if that failed.
    pub(crate) fn drop_clean(&self, w: Locked<'_>) -> bool {
        let unit = w.unit();
        match self.drop_mapped(&w) {
            true => {
                let charged = !w.has(UNCHARGED);
                self.settle_by(w, Event::Dropped);
                self.note_dropped(charged)
            }
            // Whatever access the mapping has by now, a fault puts it right.
            false => {
                w.settle();
                self.note_resident(unit);
                false
            }
        }
    }

    /// The same for one under write-back of which all bytes are zero: it is never written, and
    /// needs no place in swap.
    pub(crate) fn drop_zero(&self, w: Locked<'_>) -> bool {
        match self.drop_mapped(&w) {
            true => {
                let charged = !w.has(UNCHARGED);
                self.settle_freeing(w, Event::FoundZero);
                self.note_dropped(charged)
            }
            false => {
                self.settle_by(w, Event::NotWritten);
                false
            }
        }
    }

    fn drop_mapped(&self, w: &Locked<'_>) -> bool {
        let dropped = self.backend.drop_units(w.addr(), UNIT).is_ok();
        if dropped {
            self.note_whole_evicted(w.unit());
        }
        dropped
    }

    fn note_dropped(&self, charged: bool) -> bool {
        if charged {
            self.pool.uncharge(self.pool.me(), 1);
        }
        self.note_available();
        true
    }

    /// Maps runs of absent units anew so that each run is one mapping; returns how many units
    /// were merged. Only in signal mode are there mappings to merge.
    pub(crate) fn merge_absent(&self) -> u32 {
        if !self.backend.can().takes_mappings {
            return 0;
        }
        let end = self.high_unit.load(Relaxed).min(self.table.units());
        let absent = |w: Word| matches!(w.kind(), Kind::None | Kind::Swapped);
        let mut merged = 0;
        let mut unit = 0;
        while unit < end {
            let mut run = [const { None }; 64];
            let mut n = 0usize;
            while n < run.len()
                && (unit + n as u32) < end
                && let Some(w) = self.table.try_lock_if(unit + n as u32, absent)
            {
                run[n] = Some(w);
                n += 1;
            }
            if n > 1
                && self
                    .backend
                    .drop_units(self.table.addr(unit), n * UNIT)
                    .is_ok()
            {
                merged += n as u32;
            }
            run.into_iter().flatten().for_each(Locked::settle);
            unit += n.max(1) as u32;
        }
        merged
    }
}
