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
/// The same for growth that is only expected, where small blocks are managed: what else grows as programs
/// start is seen within seconds. (Small blocks may grow at once, and late.)
const HALF_LIFE_EXPECTED: Duration = Duration::from_secs(2);
/// The reserve is so much of the most growth, in percent: the next may be larger.
const GROWTH_PERCENT: u64 = 150;

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
    /// `reserve` bytes are wanted free for what is not managed.
    pub fn budget(&self, managed: u64, reserve: u64) -> u64 {
        let most = self.limit / MOST_RESERVE_SHARE;
        self.limit
            .saturating_sub(self.unmanaged(managed))
            .saturating_sub(self.reserve.max(reserve.min(most)))
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

/// How fast memory that is not managed has grown. What it falls by, and grows by again before the budget
/// has grown, takes nothing of the reserve. (It is found from what managed memory is charged, and seems to
/// fall where huge pages are charged, and touched page by page.)
#[derive(Clone, Debug, Default)]
pub struct Growth {
    /// When it was how much, over the last [`REST`]; and what was last seen before the last [`WINDOW`].
    seen: VecDeque<(Duration, u64)>,
    /// The most growth in a window, and when it was noted.
    most: u64,
    noted: Duration,
    /// A reserve for growth that was not seen yet, and after how long half of it is expected.
    expected: u64,
    expected_for: Duration,
}

impl Growth {
    /// Nothing was seen below this `limit`, so as much as a reserve can be for is expected: for some
    /// seconds if it is not for `long`.
    pub fn unknown(limit: u64, long: bool) -> Growth {
        Growth {
            expected: limit / MOST_RESERVE_SHARE,
            expected_for: if long { HALF_LIFE } else { HALF_LIFE_EXPECTED },
            ..Growth::default()
        }
    }

    /// At time `now` it is `bytes`.
    pub fn note(&mut self, now: Duration, bytes: u64) {
        let is_over = |then: Duration, time| now.saturating_sub(then) > time;
        while self.seen.len() > 1
            && is_over(self.seen[0].0, REST)
            && is_over(self.seen[1].0, WINDOW)
        {
            self.seen.pop_front();
        }
        let before = self.seen.iter().filter(|s| is_over(s.0, WINDOW));
        let most = before.chain(self.seen.front()).map(|&(_, b)| b).max();
        let growth = bytes.saturating_sub(most.unwrap_or(bytes));
        self.seen.push_back((now, bytes));
        if growth >= self.most(now) {
            (self.most, self.noted) = (growth, now);
        }
    }

    /// The most that it has grown by in a window, bytes; of long ago, less.
    fn most(&self, now: Duration) -> u64 {
        aged(self.most, now.saturating_sub(self.noted), HALF_LIFE)
    }

    /// What is to be left free for it, bytes.
    pub fn reserve(&self, now: Duration) -> u64 {
        let expected = aged(self.expected, now, self.expected_for);
        expected.max(self.most(now).saturating_mul(GROWTH_PERCENT) / 100)
    }
}

/// What is left of `bytes` after a time.
fn aged(bytes: u64, age: Duration, half_life: Duration) -> u64 {
    (bytes as f64 * 0.5f64.powf(age.as_secs_f64() / half_life.as_secs_f64())) as u64
}

/// The reserve of a control group, or of a tree of processes, with this limit.
pub fn reserve_of(limit: u64) -> u64 {
    (limit / 12).clamp(20 << 20, 512 << 20).min(limit / 4)
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
        assert_eq!(reserve_of(100 * MIB), 20 * MIB);
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
        assert_eq!(growth.most(at(990)) / MIB, 7);
        // Then 24 in 60 ms.
        growth.note(at(1000), 100 * MIB);
        growth.note(at(1030), 110 * MIB);
        growth.note(at(1050), 124 * MIB);
        assert_eq!(growth.most(at(1050)) / MIB, 26);
        // What goes and comes back at once is not growth, nor is what goes.
        growth.note(at(2000), 124 * MIB);
        growth.note(at(2070), 40 * MIB);
        growth.note(at(2140), 40 * MIB);
        growth.note(at(2210), 124 * MIB);
        assert_eq!(growth.most(at(31_050)) / MIB, 13);
        // What comes back later is.
        growth.note(at(3000), 20 * MIB);
        growth.note(at(3400), 20 * MIB);
        growth.note(at(3500), 80 * MIB);
        assert_eq!(growth.most(at(3500)), 60 * MIB);
        assert_eq!(growth.reserve(at(3500)), 90 * MIB);
        assert_eq!(growth.most(at(33_500)), 30 * MIB);
        assert_eq!(growth.most(at(10_000_000)), 0);
        // Less than what was seen does not make it younger.
        growth.note(at(33_600), 100 * MIB);
        growth.note(at(33_610), 101 * MIB);
        assert_eq!(growth.most(at(63_500)), 15 * MIB);
    }

    #[test]
    fn what_is_expected_of_a_start_is_not_expected_for_long() {
        let mut growth = Growth::unknown(600 * MIB, false);
        let at = Duration::from_millis;
        assert_eq!(growth.reserve(at(0)), 100 * MIB);
        let small_blocks_may_grow = Growth::unknown(600 * MIB, true);
        assert_eq!(small_blocks_may_grow.reserve(at(30_000)), 50 * MIB);
        growth.note(at(10), 0);
        growth.note(at(20), 8 * MIB);
        assert_eq!(growth.reserve(at(2000)), 50 * MIB);
        assert_eq!(growth.reserve(at(10_020)) / MIB, 9);
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
