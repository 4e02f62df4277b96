//! The arithmetic of a budget that follows a limit, and when it moves.
//!
//! budget = limit - what is held beside managed memory - reserve, the smallest over all limits. It
//! shrinks at once. It grows when there has been room for a while, by a part of the room at a time, so
//! that it does not swing: memory that a program gives back it may soon want again.
//!
//! The reserve has to last from when memory grows until as much was written to swap. So it is at least
//! what memory that is not managed grew by in so short a time ([`Growth`]).

use hugeswap_policy::UNIT_BYTES;
use std::collections::VecDeque;
use std::time::Duration;

/// The budget grows when there has been room for so long.
const REST: Duration = Duration::from_millis(300);
/// Time between two steps of growth.
const STEP: Duration = Duration::from_millis(100);
/// It grows by this part of the room (1/N).
const STEP_SHARE: u64 = 2;
/// Room below this part of the limit (1/N) is left.
const SLACK_SHARE: u64 = 64;

/// The reserve is raised to this part of the limit at most (1/N).
const MOST_RESERVE_SHARE: u64 = 6;

/// The time that it takes to write what has to be given back, roughly.
const WINDOW: Duration = Duration::from_millis(60);
/// The most growth that was seen counts less as time passes: half after so long.
const HALF_LIFE: Duration = Duration::from_secs(30);

/// A limit and what is in use of it, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// The limit.
    pub limit: u64,
    /// Memory in use that stays, managed memory included.
    pub held: u64,
    /// Memory that is left free, for what grows before it is noticed.
    pub reserve: u64,
}

impl Level {
    /// Memory in use that is not managed, while `managed` bytes of managed memory are in memory.
    pub fn unmanaged(&self, managed: u64) -> u64 {
        self.held.saturating_sub(managed)
    }

    /// The budget that this limit leaves while `managed` bytes of managed memory are in memory, and
    /// memory that is not managed may grow by `growth`.
    pub fn budget(&self, managed: u64, growth: u64) -> u64 {
        let most = self.limit / MOST_RESERVE_SHARE;
        self.limit
            .saturating_sub(self.unmanaged(managed))
            .saturating_sub(self.reserve.max(growth.min(most)))
    }

    /// Raises the reserve if most of it was used up: memory grows faster here than it is given back.
    /// True: it was raised.
    pub fn learn(&mut self) -> bool {
        let most = self.limit / MOST_RESERVE_SHARE;
        let is_short = self.room() < self.reserve / 4 && self.reserve < most;
        if is_short {
            self.reserve = (self.reserve + self.reserve / 2).min(most);
        }
        is_short
    }

    /// Free memory.
    pub fn room(&self) -> u64 {
        self.limit.saturating_sub(self.held)
    }
}

/// How fast memory that is not managed has grown.
#[derive(Clone, Debug, Default)]
pub struct Growth {
    /// When it was how much, over the last [`WINDOW`].
    seen: VecDeque<(Duration, u64)>,
    /// The most growth in a window, and when it was noted.
    most: u64,
    noted: Duration,
}

impl Growth {
    /// Nothing was seen below this `limit`, so as much as a reserve can be for is expected.
    pub fn unknown(limit: u64) -> Growth {
        Growth {
            most: limit / MOST_RESERVE_SHARE,
            ..Growth::default()
        }
    }

    /// At time `now` it is `bytes`.
    pub fn note(&mut self, now: Duration, bytes: u64) {
        while self
            .seen
            .front()
            .is_some_and(|&(then, _)| now.saturating_sub(then) > WINDOW)
        {
            self.seen.pop_front();
        }
        self.seen.push_back((now, bytes));
        let least = self.seen.iter().map(|&(_, b)| b).min();
        let growth = bytes - least.unwrap_or(bytes);
        if growth >= self.most(now) {
            (self.most, self.noted) = (growth, now);
        }
    }

    /// The most that it has grown by in a window, bytes; of long ago, less.
    pub fn most(&self, now: Duration) -> u64 {
        let ages = now.saturating_sub(self.noted).as_secs_f64() / HALF_LIFE.as_secs_f64();
        (self.most as f64 * 0.5f64.powf(ages)) as u64
    }
}

/// The reserve of a control group, or of a tree of processes, with this limit.
pub fn reserve_of(limit: u64) -> u64 {
    (limit / 12).clamp(24 << 20, 512 << 20).min(limit / 4)
}

/// The reserve of a machine with so much memory.
pub fn reserve_of_machine(memory: u64) -> u64 {
    (memory / 16).clamp(128 << 20, 4 << 30).min(memory / 4)
}

/// When the budget may grow.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    /// When there was last no room.
    tight: Option<Duration>,
    grew: Option<Duration>,
}

impl Pace {
    /// The next budget at time `now`, if it is to move from `budget` towards `target`. `limit` is the
    /// smallest limit.
    pub fn next(&mut self, now: Duration, budget: u64, target: u64, limit: u64) -> Option<u64> {
        let target = target / UNIT_BYTES * UNIT_BYTES;
        let room = target.saturating_sub(budget);
        if room <= (limit / SLACK_SHARE).max(2 * UNIT_BYTES) {
            self.tight = Some(now);
            return (target < budget).then_some(target);
        }
        let within = |since: Option<Duration>, time: Duration| {
            since.is_some_and(|then| now.saturating_sub(then) < time)
        };
        if within(self.tight, REST) || within(self.grew, STEP) {
            return None;
        }
        self.grew = Some(now);
        let step = (room / STEP_SHARE).max(UNIT_BYTES);
        Some(budget + step.next_multiple_of(UNIT_BYTES).min(room))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_budget_is_what_the_limit_leaves() {
        let level = Level {
            limit: 1000 * MIB,
            held: 700 * MIB,
            reserve: 50 * MIB,
        };
        assert_eq!(level.budget(600 * MIB, 0), 850 * MIB);
        assert_eq!(level.room(), 300 * MIB);
        // Frames that are charged and not touched yet are no memory.
        assert_eq!(level.budget(800 * MIB, 50 * MIB), 950 * MIB);
        assert_eq!(level.budget(0, 0), 250 * MIB);
        // What memory that is not managed may grow by takes its place, up to a sixth.
        assert_eq!(level.budget(600 * MIB, 80 * MIB), 820 * MIB);
        assert_eq!(
            level.budget(600 * MIB, 600 * MIB),
            900 * MIB - 1000 * MIB / 6
        );
        let beyond = Level {
            held: 2000 * MIB,
            ..level
        };
        assert_eq!((beyond.budget(0, 0), beyond.room()), (0, 0));
        let absurd = Level {
            limit: u64::MAX,
            held: u64::MAX,
            reserve: u64::MAX,
        };
        assert_eq!(absurd.budget(u64::MAX, u64::MAX), 0);
    }

    #[test]
    fn reserves_fit_small_and_large_limits() {
        assert_eq!(reserve_of(16 * MIB), 4 * MIB);
        assert_eq!(reserve_of(100 * MIB), 24 * MIB);
        assert_eq!(reserve_of(960 * MIB), 80 * MIB);
        assert_eq!(reserve_of(u64::MAX), 512 * MIB);
        assert_eq!(reserve_of(0), 0);
        assert_eq!(reserve_of_machine(24 << 30), 1536 * MIB);
        assert_eq!(reserve_of_machine(256 * MIB), 64 * MIB);
    }

    #[test]
    fn a_reserve_that_was_used_up_is_raised() {
        let mut level = Level {
            limit: 960 * MIB,
            held: 949 * MIB,
            reserve: 40 * MIB,
        };
        assert!(!level.learn());
        level.held += 2 * MIB;
        assert!(level.learn());
        assert_eq!(level.reserve, 60 * MIB);
        level.held = 960 * MIB;
        while level.learn() {}
        assert_eq!(level.reserve, 160 * MIB);
    }

    #[test]
    fn growth_is_that_of_a_short_time_and_is_forgotten() {
        let mut growth = Growth::default();
        let at = Duration::from_millis;
        // 100 MiB in a second.
        (0..100).for_each(|i| growth.note(at(i * 10), i * MIB));
        assert_eq!(growth.most(at(1000)) / MIB, 5);
        // Then 20 in 30 ms, some of which goes and comes back.
        growth.note(at(1010), 110 * MIB);
        growth.note(at(1020), 120 * MIB);
        growth.note(at(1030), 105 * MIB);
        growth.note(at(1040), 119 * MIB);
        assert_eq!(growth.most(at(1020)), 24 * MIB);
        // What was there for long is not growth, nor is what goes.
        growth.note(at(2000), 300 * MIB);
        growth.note(at(2010), 100 * MIB);
        assert_eq!(growth.most(at(31_020)) * 2, 24 * MIB);
        assert_eq!(growth.most(at(10_000_000)), 0);
        // Less than what was seen does not make it younger.
        growth.note(at(40_000), 100 * MIB);
        growth.note(at(40_010), 101 * MIB);
        assert!(growth.most(at(61_020)) * 4 <= 24 * MIB + 4);
    }

    #[test]
    fn it_shrinks_at_once() {
        let mut pace = Pace::default();
        let at = Duration::from_millis;
        assert_eq!(
            pace.next(at(0), 500 * MIB, 499 * MIB, 1000 * MIB),
            Some(498 * MIB)
        );
        assert_eq!(pace.next(at(1), 498 * MIB, 0, 1000 * MIB), Some(0));
    }

    #[test]
    fn it_grows_in_steps_after_a_rest() {
        let mut pace = Pace::default();
        let at = Duration::from_millis;
        let limit = 1024 * MIB;
        assert_eq!(
            pace.next(at(0), 500 * MIB, 400 * MIB, limit),
            Some(400 * MIB)
        );
        assert_eq!(pace.next(at(299), 400 * MIB, 600 * MIB, limit), None);
        assert_eq!(
            pace.next(at(300), 400 * MIB, 600 * MIB, limit),
            Some(500 * MIB)
        );
        assert_eq!(pace.next(at(310), 500 * MIB, 600 * MIB, limit), None);
        assert_eq!(
            pace.next(at(400), 500 * MIB, 600 * MIB, limit),
            Some(550 * MIB)
        );
        // A little room is left: it would be given and taken again and again.
        assert_eq!(pace.next(at(600), 584 * MIB, 600 * MIB, limit), None);
    }

    #[test]
    fn a_use_that_swings_does_not_make_the_budget_swing() {
        let mut pace = Pace::default();
        let (mut budget, mut moves) = (600 * MIB, 0);
        for ms in (0..20_000).step_by(10) {
            let held = if ms / 100 % 2 == 0 { 0 } else { 100 * MIB };
            if let Some(b) = pace.next(
                Duration::from_millis(ms),
                budget,
                600 * MIB - held,
                1024 * MIB,
            ) {
                budget = b;
                moves += 1;
            }
        }
        assert!(moves < 5, "{moves}");
    }
}
