//! Pauses of those who take memory faster than it is made available, and what else follows from that: marks that are raised for a while.
//!
//! Who takes a frame's worth while less than `low` is left owes a pause, which it makes when its next fault begins: outside the gate and
//! without a lock (and not after a fault: what that brought in could be gone before it is used), so that it holds up neither a fork nor anybody else. How long it is, is `hugeswap_policy::pace`'s to say. The engine's own threads never owe
//! one that counts: they do not come by [`Memory::pause_if_owed`].
//!
//! The rules of the fault path hold.

use crate::lock::Lock;
use crate::memory::Memory;
use hugeswap_policy::UNIT_PAGES;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::pace::{Meter, pause_ns};
use hugeswap_policy::watermark::Boost;
use hugeswap_sys::{futex, now_ns, process};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

/// Threads that can owe a pause at one time; two in one place are one.
const PLACES: usize = 64;
/// Shorter pauses are not worth the call.
const LEAST_NS: u64 = 50_000;
/// After so long it is looked whether the rest is needed.
const LOOK_NS: u64 = 2_000_000;

/// See the file's head.
pub(crate) struct Pacing {
    /// Somebody may owe a pause.
    pub(super) any: AtomicU32,
    pub(super) owes: [AtomicI32; PLACES],
    /// Threads that pause.
    pub(super) paused: AtomicU32,
    /// Pages that reclaim has made available so far.
    pub(super) made: AtomicU64,
    pub(super) meter: Lock<Meter>,
    /// What the meter says.
    pub(super) frame_ns: AtomicU64,
    /// How far the marks are raised.
    pub(super) boost: AtomicU64,
}

impl Pacing {
    pub fn new() -> Pacing {
        Pacing {
            any: AtomicU32::new(0),
            owes: [const { AtomicI32::new(0) }; PLACES],
            paused: AtomicU32::new(0),
            made: AtomicU64::new(0),
            meter: Lock::new(Meter::new()),
            frame_ns: AtomicU64::new(Meter::new().frame_ns()),
            boost: AtomicU64::new(0),
        }
    }

    /// In a forked child: nobody else is there.
    pub fn reset_in_child(&self) {
        self.paused.store(0, Relaxed);
        self.any.store(0, Relaxed);
        self.owes.iter().for_each(|o| o.store(0, Relaxed));
    }

    /// Reclaim has made pages available.
    pub fn made(&self, pages: u64) {
        self.made.fetch_add(pages, Relaxed);
    }

    /// The same of a frame.
    pub fn made_frame(&self) {
        self.made(UNIT_PAGES);
    }

    pub(super) fn place(&self, tid: i32) -> &AtomicI32 {
        &self.owes[tid as usize % PLACES]
    }

    pub(super) fn boost(&self) -> Boost {
        Boost(self.boost.load(Relaxed))
    }
}

impl Memory {
    /// kswapd: is it at work (`short`)? If not, it has reached `high`, raised or not.
    pub(crate) fn measure_reclaim(&self, short: bool) {
        let p = &self.pacing;
        if !short {
            p.boost.store(0, Relaxed);
        }
        let mut meter = p.meter.lock();
        meter.on_look(now_ns(), p.made.load(Relaxed), short);
        p.frame_ns.store(meter.frame_ns(), Relaxed);
    }

    /// A fault of the caller's begins: it pauses first if it owes that.
    pub(crate) fn pause_if_owed(&self) {
        if self.pacing.any.load(Relaxed) != 0 {
            self.pause();
        }
    }

    #[cold]
    #[inline(never)]
    fn pause(&self) {
        let p = &self.pacing;
        let tid = process::tid();
        if p.place(tid)
            .compare_exchange(tid, 0, Relaxed, Relaxed)
            .is_err()
        {
            if p.owes.iter().all(|o| o.load(Relaxed) == 0) {
                // (Who comes to owe one at this moment may be forgotten, which is one pause less.)
                p.any.store(0, Relaxed);
            }
            return;
        }
        let limit = self.pool.knob(Knob::ThrottleMax) * 1000;
        let pause = |others: u32| {
            let (available, share) = self.have();
            let (marks, frame_ns) = (self.marks(share), p.frame_ns.load(Relaxed));
            pause_ns(available, marks, frame_ns, u64::from(others), limit)
        };
        // (Of few frames nothing is reclaimed before somebody waits.)
        if self.has_few_frames() {
            return;
        }
        // Who forks waits for nobody.
        if pause(p.paused.load(Relaxed)) < LEAST_NS || self.gate.is_forker() {
            return;
        }
        self.pool.count(Counter::AllocThrottle, 1);
        p.paused.fetch_add(1, Relaxed);
        let start = now_ns();
        loop {
            let passed = now_ns() - start;
            let pause = pause(p.paused.load(Relaxed).saturating_sub(1));
            if passed >= pause || self.stopping.load(Relaxed) {
                break;
            }
            // What others have beyond their share would otherwise be theirs for good: who pauses in time never waits.
            self.ask_others(false);
            let seq = self.avail_seq.load(Acquire);
            let rest = (pause - passed).min(LOOK_NS);
            futex::wait(&self.avail_seq, seq, Some(rest), false);
        }
        p.paused.fetch_sub(1, Relaxed);
        self.pool
            .count(Counter::AllocThrottleUsec, (now_ns() - start) / 1000);
    }
}
