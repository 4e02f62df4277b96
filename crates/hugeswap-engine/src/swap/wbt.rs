//! Writers of swap are slowed down while readers of the same device wait too long: what `hugeswap_policy::wbt` decides is measured and
//! carried out here.
//!
//! Readers count, in the segment, what was slow; writers look at it every 50 ms. So the common read pays nothing for it, and while nobody writes nothing is
//! done. Only whole units wait for their turn, by who takes them up ([`Engine::may_write`]): kswapd writes single pages itself, and they are small. Nobody waits
//! inside: who may not write does something else. The rules of the fault path hold.

use crate::engine::Engine;
use crate::pool::layout::Area;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::slots::area;
use hugeswap_policy::wbt::{Pace, Throttle};
use hugeswap_sys::now_ns;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Reads of so many pages at most are what writers make room for: a whole unit takes long by itself.
const SMALL: usize = 16;
/// Slow is what takes so many times as long as it did on the idle device.
const SLOWER: u64 = 8;
/// The longest rest, nanoseconds.
const LONGEST_REST: u64 = 50_000_000;

/// The writers of this process.
#[derive(Default)]
pub(crate) struct Writers {
    /// How many are at it.
    at_it: AtomicU32,
    /// Nobody begins before.
    rest_until: AtomicU64,
}

impl Writers {
    /// Nanoseconds for which nobody is to write; `None`: somebody may.
    pub fn rest_left(&self) -> Option<u64> {
        let until = self.rest_until.load(Relaxed);
        (until != 0)
            .then(|| until.saturating_sub(now_ns()))
            .filter(|left| *left > 0)
    }
}

/// Somebody writes, until this is dropped.
pub(crate) struct Writing<'a> {
    engine: &'a Engine,
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
        self.engine.writers.at_it.fetch_sub(1, AcqRel);
        // Who was turned away may be asleep.
        if self.pace != Pace::FREE && !self.engine.writes.is_empty() {
            self.engine.wake_workers(1);
        }
    }
}

impl Area {
    /// Nothing is known of how long reads wait.
    pub(crate) fn forget_waits(&self) {
        let words = [&self.throttle, &self.large_reads, &self.slow_reads];
        for word in words.into_iter().chain(&self.seen) {
            word.store(0, Relaxed);
        }
    }

    /// How it is to be written to; whoever comes first after a window has ended looks at what it was like.
    fn look_at_waits(&self) -> Throttle {
        let word = self.throttle.load(Relaxed);
        let (now, throttle) = (now_ns(), Throttle::from_word(word));
        if !throttle.is_due(now) {
            return throttle;
        }
        let all = self.reads.count();
        let small = all.saturating_sub(self.large_reads.load(Relaxed));
        let slow = self.slow_reads.load(Relaxed);
        let since = |now: u64, seen: &AtomicU64| now.saturating_sub(seen.load(Relaxed));
        let next = throttle.next(now, since(small, &self.seen[0]), since(slow, &self.seen[1]));
        match self
            .throttle
            .compare_exchange(word, next.word(), AcqRel, Relaxed)
        {
            Ok(_) => {
                self.seen[0].store(small, Relaxed);
                self.seen[1].store(slow, Relaxed);
                next
            }
            Err(other) => Throttle::from_word(other),
        }
    }
}

impl Engine {
    /// A read of `pages` pages of area number `area` took `ns`.
    pub(super) fn note_wait(&self, area: usize, pages: usize, ns: u64) {
        let Some(a) = self.pool.header().areas.get(area) else {
            return;
        };
        if pages > SMALL {
            a.large_reads.fetch_add(1, Relaxed);
            return;
        }
        let slow = self.pool.knob(Knob::WbtLat) * 1000;
        if ns <= slow || slow == 0 {
            return;
        }
        let idle = a.costs.load().map_or(0, |m| u64::from(m.r#in.page));
        if ns > idle * SLOWER {
            a.slow_reads.fetch_add(1, Relaxed);
        }
    }

    /// How `area` is to be written to.
    pub(super) fn pace_of(&self, area: &Area) -> Pace {
        match self.pool.knob(Knob::WbtLat) {
            0 => Pace::FREE,
            _ => Throttle::from_word(area.throttle.load(Relaxed)).pace(),
        }
    }

    /// May another unit be written now? Where a unit will go is not known yet, so all areas count.
    pub(crate) fn may_write(&self) -> Option<Writing<'_>> {
        if self.writes.is_empty() {
            return None;
        }
        let pace = match self.pool.knob(Knob::WbtLat) {
            0 => Pace::FREE,
            _ => {
                let areas = self.pool.header().areas.iter();
                let on = areas.filter(|a| a.state.load(Acquire) == area::ON);
                on.map(Area::look_at_waits)
                    .max_by_key(|t| t.level())
                    .map_or(Pace::FREE, Throttle::pace)
            }
        };
        // Who waits for memory, or forks, waits for the writers: to hold those back would only move the wait.
        let hurry = self.somebody_waits() || self.gate.is_closed();
        if !hurry && self.writers.rest_left().is_some() {
            return None;
        }
        let at_once = if hurry { u32::MAX } else { pace.writers };
        // Never more for a moment: two that turn each other away would both wait.
        let join = |n: u32| (n < at_once).then_some(n + 1);
        let mine = self.writers.at_it.fetch_update(AcqRel, Acquire, join);
        mine.ok().map(|_| Writing {
            engine: self,
            pace,
            began: now_ns(),
        })
    }
}
