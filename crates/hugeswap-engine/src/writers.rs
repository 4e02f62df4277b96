//! Which threads write whole units to swap, and when. While readers of the same device wait too
//! long, fewer do, with rests ([`Pool::pace`](crate::pool::Pool)).
//!
//! No thread waits inside: one that may not write does something else. The rules of the fault path
//! hold.

use crate::paging::Paging;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::device::wbt::Pace;
use hugeswap_sys::now_ns;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

/// The longest rest, nanoseconds.
const LONGEST_REST: u64 = 50_000_000;

/// A thread writes, until this is dropped.
pub(crate) struct Writing<'a> {
    engine: &'a Paging,
    pace: Pace,
    began: u64,
}

impl Writing<'_> {
    /// A unit was written.
    pub fn done(self) {
        if self.pace.rest > 0 {
            let now = now_ns();
            let rest = (now.saturating_sub(self.began) * self.pace.rest).min(LONGEST_REST);
            self.engine.writers.rest_until.store(now + rest, Relaxed);
        }
        if self.pace != Pace::FREE {
            self.engine.pool.count(Counter::SwapThrottled, 1);
        }
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.engine.writers.active.fetch_sub(1, AcqRel);
        // A thread that was turned away may be asleep.
        if self.pace != Pace::FREE && !self.engine.writes.is_empty() {
            self.engine.wake_workers(1);
        }
    }
}

impl Paging {
    /// May another unit be written now? Where a unit will go is not known yet, so all areas count.
    pub(crate) fn may_write(&self) -> Option<Writing<'_>> {
        if self.writes.is_empty() {
            return None;
        }
        let pace = self.pool.pace();
        // A thread that waits for memory, or forks, waits for the writers: to hold those back would
        // only move the wait. So does whoever wants frames back: where the budget follows a limit, the
        // kernel kills the program if they come too late.
        let hurry = self.somebody_waits() || self.gate.is_closed() || self.frames_owed() > 0;
        if !hurry && self.writers.rest_left().is_some() {
            return None;
        }
        let at_once = if hurry { u32::MAX } else { pace.writers };
        // Never more for a moment: two that turn each other away would both wait.
        let join = |n: u32| (n < at_once).then_some(n + 1);
        let mine = self.writers.active.fetch_update(AcqRel, Acquire, join);
        mine.ok().map(|_| Writing {
            engine: self,
            pace,
            began: now_ns(),
        })
    }
}
