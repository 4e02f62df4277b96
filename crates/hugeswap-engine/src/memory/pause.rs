//! Threads that owe a pause make it ([`super::pacing`]), and kswapd measures how fast reclaim is.
//! The rules of the fault path hold.

use crate::memory::Memory;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::pace::pause_ns;
use hugeswap_policy::recording;
use hugeswap_sys::{futex, now_ns, process};
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// Shorter pauses are not worth the call.
const LEAST_NS: u64 = 50_000;

/// After this time the thread checks whether the rest of the pause is needed.
const LOOK_NS: u64 = 2_000_000;

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
                // (A thread that comes to owe one at this moment may be forgotten, which is one
                // pause less.)
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
        // (Where there are few frames, nothing is reclaimed before a thread waits.)
        if self.has_few_frames() {
            return;
        }
        // A thread that forks waits for no other.
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
            // What others have beyond their share would otherwise be theirs for good: a thread that
            // pauses in time never waits.
            self.ask_others(false);
            let seq = self.avail_seq.load(Acquire);
            let rest = (pause - passed).min(LOOK_NS);
            futex::wait(&self.avail_seq, seq, Some(rest), false);
        }
        p.paused.fetch_sub(1, Relaxed);
        let ns = now_ns() - start;
        self.pool.count(Counter::AllocThrottleUsec, ns / 1000);
        self.note_wait(recording::Kind::Throttled, start, ns);
    }
}
