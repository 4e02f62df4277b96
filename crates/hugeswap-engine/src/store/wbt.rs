//! Writers of swap are slowed down while readers of the same device wait too long, as
//! `hugeswap_policy::device::wbt` decides. This module measures how long readers wait.
//!
//! Readers count slow reads, in the segment; writers look at the counts every 50 ms. So the common
//! read pays nothing for it, and while no thread writes nothing is done. Only whole units wait for
//! their turn (`writers`): single pages are small, and kswapd writes them itself. The rules of the
//! fault path hold.

use crate::pool::Pool;
use crate::pool::layout::Area;
use hugeswap_policy::device::wbt::{Pace, Throttle};
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::thp_swap::area;
use hugeswap_sys::now_ns;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

/// Reads of so many pages at most are what writers make room for: a whole unit takes long by
/// itself.
const SMALL: usize = 16;
/// Slow is what takes so many times as long as it did on the idle device.
const SLOWER: u64 = 8;

impl Area {
    /// Nothing is known of how long reads wait.
    pub(crate) fn forget_waits(&self) {
        let words = [&self.throttle, &self.large_reads, &self.slow_reads];
        for word in words.into_iter().chain(&self.seen) {
            word.store(0, Relaxed);
        }
    }

    /// How it is to be written to; the first caller after a window has ended looks at what it was
    /// like.
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

impl Pool {
    /// A read of `pages` pages of area number `area` took `ns`.
    pub(super) fn note_wait(&self, area: usize, pages: usize, ns: u64) {
        let Some(a) = self.header().areas.get(area) else {
            return;
        };
        if pages > SMALL {
            a.large_reads.fetch_add(1, Relaxed);
            return;
        }
        let slow = self.knob(Knob::WbtLat) * 1000;
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
        match self.knob(Knob::WbtLat) {
            0 => Pace::FREE,
            // Readers wait for less than the program would if memory beyond a limit made it end.
            _ if self.is_beyond_budget() => Pace::FREE,
            _ => Throttle::from_word(area.throttle.load(Relaxed)).pace(),
        }
    }

    /// How a unit is to be written whose area is not known yet: as the one that its readers wait
    /// for longest.
    pub(crate) fn pace(&self) -> Pace {
        if self.knob(Knob::WbtLat) == 0 {
            return Pace::FREE;
        }
        let areas = self.header().areas.iter();
        let on = areas.filter(|a| a.state.load(Acquire) == area::ON);
        on.map(Area::look_at_waits)
            .max_by_key(|t| t.level())
            .map_or(Pace::FREE, Throttle::pace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::small_pool;

    #[test]
    fn writers_are_not_held_back_while_memory_is_beyond_the_budget() {
        let pool = small_pool();
        let me = pool.join().unwrap();
        assert!(pool.charge(me, 30));
        let area = &pool.header().areas[0];
        let slow = Throttle::default()
            .next(now_ns(), 0, 0)
            .next(now_ns(), 100, 100);
        area.throttle.store(slow.word(), Relaxed);
        assert_ne!(pool.pace_of(area), Pace::FREE);
        pool.set_budget(40 << 20);
        assert_eq!(pool.pace_of(area), Pace::FREE);
        pool.uncharge(me, 10);
        assert_ne!(pool.pace_of(area), Pace::FREE);
        pool.uncharge(me, 20);
    }
}
