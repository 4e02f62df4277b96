//! For tests: with `debug.storm` kswapd brings random units out all the time.
//!
//! It draws one of the units that hold something, and brings it out if it is in memory: so the less
//! is in memory, the less of it leaves. (A storm that drew from what is in memory would outrun the
//! faults where these take long, and leave the program nothing to go on with.)

use crate::reclaim::Reclaim;
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::unit::Kind;
use hugeswap_sys::now_ns;
use std::sync::atomic::Ordering::Relaxed;

/// How far a draw goes on from one unit to the next, counted in units that hold something.
const STRIDE: u64 = 8;
/// Most units a draw looks at.
const LOOKS: usize = 4096;

/// Where a storm is.
pub(crate) struct Storm {
    random: u64,
    /// The unit that was drawn last.
    at: u32,
    /// Nothing is drawn before, nanoseconds.
    next: u64,
}

impl Storm {
    pub fn new() -> Storm {
        Storm {
            random: now_ns() | 1,
            at: 0,
            next: 0,
        }
    }

    /// Is it time to draw? Once in `every` nanoseconds, however often it is asked.
    fn is_due(&mut self, now: u64, every: u64) -> bool {
        let due = now >= self.next;
        if due {
            self.next = now + every;
        }
        due
    }

    /// One of the units below `high` that hold something, in memory or not; `None` if none is near.
    fn draw(&mut self, high: u32, holds: impl Fn(&u32) -> bool) -> Option<u32> {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let at = self.at.min(high);
        let after = (at + 1..high).chain(0..high).take(LOOKS).filter(holds);
        let drawn = after.take(1 + (self.random % STRIDE) as usize).last();
        self.at = match drawn {
            Some(unit) => unit,
            None if high - at > LOOKS as u32 => at + LOOKS as u32,
            None => 0,
        };
        drawn
    }
}

impl Reclaim {
    /// Brings a unit out if it is time to. The nanoseconds from one to the next, if there is a
    /// storm.
    pub(crate) fn storm(&self, storm: &mut Storm) -> Option<u64> {
        let every = match self.pool.knob(Knob::Storm) {
            0 => return None,
            microseconds => microseconds * 1000,
        };
        if storm.is_due(now_ns(), every) {
            let kind = |unit: u32| self.table.load(unit).kind();
            let is_in = |unit: u32| matches!(kind(unit), Kind::Present | Kind::Base);
            let is_out = |unit: u32| matches!(kind(unit), Kind::Swapped | Kind::Cached);
            let drawn = storm.draw(self.high_unit.load(Relaxed), |&u| is_in(u) || is_out(u));
            if let Some(unit) = drawn.filter(|&u| is_in(u)) {
                self.evict_now(unit);
            }
        }
        Some(every)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn storm() -> Storm {
        Storm {
            random: 0x9e37_79b9_7f4a_7c15,
            ..Storm::new()
        }
    }

    #[test]
    fn draws_keep_their_pace() {
        let mut storm = storm();
        let due = (0..1000).filter(|now| storm.is_due(100 + now, 50)).count();
        assert_eq!(due, 20, "asking more often makes no more of them");
    }

    /// However little is in memory, it is drawn no more than the rest.
    #[test]
    fn draws_are_of_all_that_holds_something() {
        let mut storm = storm();
        let mut drawn = [0; 2000];
        for _ in 0..60_000 {
            // (Sixty units, far apart and in a row.)
            let holds = |&u: &u32| u < 1200 && u % 40 == 0 || (1500..1530).contains(&u);
            let unit = storm.draw(2000, holds).expect("one is near");
            assert!(holds(&unit));
            drawn[unit as usize] += 1;
        }
        let counts: Vec<u32> = drawn.into_iter().filter(|&n| n > 0).collect();
        assert_eq!(counts.len(), 60, "all of them");
        assert!(counts.iter().all(|n| (500..2000).contains(n)), "{counts:?}");
    }

    #[test]
    fn draws_go_on_where_nothing_is_near() {
        let mut storm = storm();
        let far = 3 * LOOKS as u32 + 5;
        assert!((0..4).any(|_| storm.draw(4 * LOOKS as u32, |&u| u == far) == Some(far)));
        assert_eq!(storm.draw(0, |_| true), None);
        assert_eq!(storm.draw(1, |_| true), Some(0));
    }
}
