//! khugepaged: makes base-mapped units whole whose pages are in memory, without a fault that asks
//! for it.
//!
//! There is one such thread in a process, and its pace is a setting: it looks at so many pages,
//! sleeps, and goes on where it was. Units that got base pages where they were to be whole come
//! first, a few times a second, once memory is not short any more. The thread also does some of
//! kcompactd's work ([`crate::memory::kcompactd`]). It may wait for a huge page, but not while it
//! holds a unit's lock or is inside the gate, and it wakes no other thread.
//! `hugeswap_policy::defrag::khugepaged` says which units it takes.
//!
//! Concurrency: it works on a unit under the unit's lock, which it only tries to take, and passes
//! the gate for each unit, so that a fork waits for one unit at most.

use crate::base::Cause;
use crate::memory::wait::ROUND_NS;
use crate::reclaim::Reclaim;
use hugeswap_policy::UNIT_PAGES;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::defrag::frames::Frame;
use hugeswap_policy::defrag::gfp::{Caller, Gfp};
use hugeswap_policy::defrag::khugepaged::{Limits, Pages};
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::swapin::granularity::{Density, UnitHistory};
use hugeswap_policy::unit::{Kind, Word};
use hugeswap_sys::{futex, now_ns};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// The state of khugepaged.
pub(crate) struct Khugepaged {
    /// Changes when it is not to sleep on.
    call: AtomicU32,
    /// The pace that it sleeps by, nanoseconds; 0 before it first does.
    pace: AtomicU64,
}

impl Khugepaged {
    pub fn new() -> Khugepaged {
        Khugepaged {
            call: AtomicU32::new(0),
            pace: AtomicU64::new(0),
        }
    }

    /// Has it look what there is to do.
    pub fn wake(&self) {
        self.call.fetch_add(1, Release);
        futex::wake(&self.call, 1, false);
    }
}

impl Reclaim {
    /// kswapd: wakes khugepaged if its pace was changed, or if units that fell back can become
    /// whole.
    pub(crate) fn call_khugepaged(&self) {
        let k = &self.khugepaged;
        let changed = k.pace.load(Relaxed) != self.scan_sleep_ns();
        if changed || !self.fell_back.is_empty() && self.memory_is_plenty() {
            k.wake();
        }
    }

    fn scan_sleep_ns(&self) -> u64 {
        self.pool.knob(Knob::KhugepagedScanSleep) * 1_000_000
    }

    /// The thread's body.
    pub(crate) fn khugepaged(&self) {
        let k = &self.khugepaged;
        let (mut next, mut last) = (0, now_ns());
        loop {
            let seen = k.call.load(Acquire);
            if self.stopping.load(Acquire) {
                return;
            }
            let sleep = self.scan_sleep_ns();
            k.pace.store(sleep, Relaxed);
            self.compact_frames();
            self.collapse_fallen_back();
            if now_ns() - last >= sleep {
                self.scan(&mut next);
                last = now_ns();
            }
            let slept = now_ns() - last;
            futex::wait(&k.call, seen, Some(sleep.saturating_sub(slept)), false);
        }
    }

    /// Looks at as many pages as are to be looked at, from unit `next` on.
    fn scan(&self, next: &mut u32) {
        let mut left = self.pool.knob(Knob::KhugepagedPagesToScan);
        let end = self.high_unit.load(Acquire);
        // Once round at most.
        for _ in 0..=end {
            if left == 0 {
                return;
            }
            if *next >= end {
                *next = 0;
                self.pool.count(Counter::KhugepagedFullScans, 1);
                return;
            }
            let unit = *next;
            *next += 1;
            if self.table.load(unit).kind() == Kind::Base {
                left = left.saturating_sub(UNIT_PAGES);
                if !self.consider(unit) {
                    return;
                }
            }
        }
    }

    /// Collapses units that fell back, as long as memory is not short.
    fn collapse_fallen_back(&self) {
        let mut left = self.pool.knob(Knob::KhugepagedPagesToScan);
        while left > 0 && self.memory_is_plenty() {
            let Some(unit) = self.fell_back.pop() else {
                return;
            };
            left = left.saturating_sub(UNIT_PAGES);
            if !self.consider(unit) {
                return;
            }
        }
    }

    /// Collapses a unit if it should be. False: there was no huge page for it, or the engine stops.
    fn consider(&self, unit: u32) -> bool {
        let defrag = self.pool.knob(Knob::KhugepagedDefrag) != 0;
        let gfp = Gfp::huge(0, false, Caller::Khugepaged { defrag });
        for _ in 0..Gfp::ROUNDS {
            let available = self.avail_seq.load(Acquire);
            let inside = self.gate.enter_daemon();
            if self.stopping.load(Acquire) {
                return false;
            }
            if !self.is_to_be_collapsed(unit, self.table.load(unit)) {
                return true;
            }
            if let Some(frame) = self.huge_nowait(gfp, Some(unit)) {
                self.collapse(unit, frame);
                return true;
            }
            drop(inside);
            if !defrag {
                break;
            }
            futex::wait(&self.avail_seq, available, Some(ROUND_NS), false);
        }
        self.pool.count(Counter::KhugepagedAllocFailed, 1);
        false
    }

    /// Is `unit`, of which the word is `w`, to be made whole? Without its lock the answer may be of
    /// a moment ago.
    fn is_to_be_collapsed(&self, unit: u32, w: Word) -> bool {
        // (A unit whose pages are told apart would be split by the next write.)
        if w.kind() != Kind::Base || self.track.tracks_pages(unit) {
            return false;
        }
        let limits = Limits {
            none: self.pool.knob(Knob::KhugepagedMaxPtesNone),
            swap: self.pool.knob(Knob::KhugepagedMaxPtesSwap),
        };
        let record = self.base.records.of(unit);
        let there = record.stored.common(&record.present);
        let pages = Pages {
            present: record.present.count(),
            swapped: record.stored.count().saturating_sub(there),
        };
        limits.admit(pages, self.collapse_of(unit), self.memory_is_plenty())
            && (pages.swapped == 0
                || !self.is_cut_off(w) && !self.store.is_partly_bad(unit, w.place()))
    }

    /// Collapses a unit with a frame of the caller's, which is free if that cannot be.
    fn collapse(&self, unit: u32, frame: Frame) {
        let based = |w: Word| w.kind() == Kind::Base;
        let Some(mut w) = self.table.try_lock_if(unit, based) else {
            return self.arena.put_free(frame.place);
        };
        if !self.is_to_be_collapsed(unit, *w) {
            w.settle();
            return self.arena.put_free(frame.place);
        }
        // What is remembered of it is how much has come by faults.
        let record = self.base.records.of(unit);
        record.set_density(Density::of(record.present.count() as u16));
        record.set_history(UnitHistory::NEW);
        if self.become_whole(frame, &mut w, Cause::Khugepaged).is_err() {
            // A thread that needs what could not be read is told by a fault.
            return w.settle();
        }
        w.settle();
    }
}
