//! Writeback throttling: writes to swap slow down while reads of the same device take too long.
//!
//! A device carries out requests more or less in order, so a read waits behind the writes before
//! it: 2 MiB from each of three writers take some milliseconds. As in the kernel's blk-wbt (Axboe,
//! 2016, after CoDel), the latency of reads in short windows steers how much is written at a time.
//! If more than a quarter of a window's small reads were slow, writers go one of [`LEVELS`] up.
//! After some windows without that, one level less is tried, and each trial that turns out to be
//! too early delays the next. Unlike blk-wbt, it does not go by the fastest read, since these
//! devices do not put reads first.
//!
//! The state is one word, so that processes can share it. The caller has the clock and counts the
//! reads.

/// How writes are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Writers at a time in one process.
    pub writers: u32,
    /// Bytes of one request.
    pub chunk: usize,
    /// After each write, all writers rest for so many times as long as it took.
    pub rest: u64,
}

impl Pace {
    /// As fast as possible.
    pub const FREE: Pace = pace(u32::MAX, usize::MAX, 0);
}

/// The levels, from no throttling on.
pub const LEVELS: [Pace; 6] = [
    Pace::FREE,
    pace(1, usize::MAX, 0),
    pace(1, 512 << 10, 0),
    pace(1, 256 << 10, 0),
    pace(1, 256 << 10, 1),
    pace(1, 256 << 10, 3),
];

/// Milliseconds of a window.
const WINDOW_MS: u64 = 50;
/// Milliseconds without a write after which everything is forgotten.
const FORGET_MS: u64 = 10_000;
const NS_PER_MS: u64 = 1_000_000;
/// Windows in a row without slow reads before a lower level is tried, at first; each early trial
/// doubles the number, up to 5 times.
const TRY_AFTER: u64 = 8;
const MOST_DOUBLINGS: u64 = 5;

/// Fields of the word, from the lowest bit: level, doublings, trial, windows without slow reads,
/// begin of the window (the lowest bits of milliseconds).
const DOUBLINGS: u32 = 4;
const TRIAL: u64 = 1 << 8;
const GOOD: u32 = 9;
const GOOD_BITS: u32 = 12;
const BEGAN: u32 = GOOD + GOOD_BITS;
const BEGAN_MASK: u64 = u64::MAX >> BEGAN;

const fn pace(writers: u32, chunk: usize, rest: u64) -> Pace {
    Pace {
        writers,
        chunk,
        rest,
    }
}

/// The state of one device. The default is a device without slow reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttle(u64);

impl Throttle {
    /// The state of a word that [`Throttle::word`] gave.
    pub const fn from_word(word: u64) -> Throttle {
        Throttle(word)
    }

    /// The state as one word.
    pub const fn word(self) -> u64 {
        self.0
    }

    fn new(level: u64, doublings: u64, good: u64, now_ms: u64) -> Throttle {
        let good = good.min((1 << GOOD_BITS) - 1);
        Throttle(level | doublings << DOUBLINGS | good << GOOD | (now_ms & BEGAN_MASK) << BEGAN)
    }

    fn on_trial(self) -> Throttle {
        Throttle(self.0 | TRIAL)
    }

    /// Index of the level in [`LEVELS`].
    pub fn level(self) -> usize {
        ((self.0 & 0xf) as usize).min(LEVELS.len() - 1)
    }

    /// How to write now.
    pub fn pace(self) -> Pace {
        LEVELS[self.level()]
    }

    fn doublings(self) -> u64 {
        (self.0 >> DOUBLINGS & 0xf).min(MOST_DOUBLINGS)
    }

    fn good(self) -> u64 {
        self.0 >> GOOD & ((1 << GOOD_BITS) - 1)
    }

    fn elapsed_ms(self, now_ns: u64) -> u64 {
        (now_ns / NS_PER_MS).wrapping_sub(self.0 >> BEGAN) & BEGAN_MASK
    }

    /// True if the window is over at `now` (nanoseconds of a clock that never goes back).
    pub fn is_due(self, now: u64) -> bool {
        self.elapsed_ms(now) >= WINDOW_MS
    }

    /// The state after a window with so many small `reads`, of which some were `slow`.
    #[must_use]
    pub fn next(self, now: u64, reads: u64, slow: u64) -> Throttle {
        let ms = now / NS_PER_MS;
        if self.elapsed_ms(now) > FORGET_MS {
            return Throttle::new(0, 0, 0, ms);
        }
        let level = self.level() as u64;
        let trial = self.0 & TRIAL != 0;
        let doublings = self.doublings();
        if slow * 4 > reads {
            let more = (level + 1).min(LEVELS.len() as u64 - 1);
            let doublings = if trial {
                (doublings + 1).min(MOST_DOUBLINGS)
            } else {
                doublings
            };
            return Throttle::new(more, doublings, 0, ms);
        }
        let good = self.good() + 1;
        if trial && good >= TRY_AFTER {
            // The trial was not too early.
            return Throttle::new(level, 0, good, ms);
        }
        if level > 0 && good >= TRY_AFTER << doublings {
            return Throttle::new(level - 1, doublings, 0, ms).on_trial();
        }
        let next = Throttle::new(level, doublings, good, ms);
        if trial { next.on_trial() } else { next }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = NS_PER_MS;

    /// Plays `windows` windows from `now` on, with most reads slow where `slow_at(level)`. Returns
    /// the level of each window.
    fn play(
        mut t: Throttle,
        now: &mut u64,
        windows: usize,
        slow_at: impl Fn(usize) -> bool,
    ) -> (Throttle, Vec<usize>) {
        let mut levels = Vec::new();
        for _ in 0..windows {
            *now += WINDOW_MS * MS;
            assert!(t.is_due(*now));
            t = t.next(*now, 100, if slow_at(t.level()) { 60 } else { 10 });
            assert!(!t.is_due(*now));
            levels.push(t.level());
        }
        (t, levels)
    }

    #[test]
    fn it_finds_the_level_at_which_reads_are_fast() {
        for enough in 0..LEVELS.len() {
            let mut now = 77 * MS;
            let (_, levels) = play(Throttle::default(), &mut now, 400, |l| l < enough);
            let there = levels[20..].iter().filter(|&&l| l == enough).count();
            assert!(there * 100 >= 380 * 95, "{enough}: {there} of 380");
        }
    }

    #[test]
    fn early_trials_become_rare_and_late_ones_go_on() {
        let mut now = 5 * MS;
        let (t, levels) = play(Throttle::default(), &mut now, 2000, |l| l < 3);
        let trials = |l: &[usize]| l.iter().filter(|&&l| l < 3).count();
        assert!(trials(&levels[1000..]) <= 5, "{}", trials(&levels[1000..]));
        // Without reads all throttling ends within half a minute.
        let (t, levels) = play(t, &mut now, 600, |_| false);
        assert_eq!((t.level(), levels[599]), (0, 0));
    }

    #[test]
    fn nothing_slow_is_never_throttled_and_long_ago_is_forgotten() {
        let mut now = 0;
        let (t, levels) = play(Throttle::default(), &mut now, 100, |_| false);
        assert_eq!(levels, [0; 100]);
        let (t, _) = play(t, &mut now, 10, |_| true);
        assert_eq!(t.level(), LEVELS.len() - 1);
        let later = now + (FORGET_MS + 1) * MS;
        assert_eq!(t.next(later, 1, 1).level(), 0);
        assert_eq!(t.next(now + WINDOW_MS * MS, 0, 0).level(), t.level());
    }

    #[test]
    fn each_level_writes_no_more_at_a_time_than_the_one_before() {
        for pair in LEVELS.windows(2) {
            assert!(pair[1].writers <= pair[0].writers && pair[1].chunk <= pair[0].chunk);
            assert!(pair[1].rest >= pair[0].rest && pair[1] != pair[0]);
            assert!(pair[1].writers >= 1, "somebody must write");
        }
    }

    proptest! {
        #[test]
        fn any_word_is_a_state(word in any::<u64>(), now in any::<u64>(), reads in 0u64..1000, slow in 0u64..1000) {
            let t = Throttle::from_word(word);
            let next = t.next(now, reads, slow);
            prop_assert!(next.level() < LEVELS.len());
            prop_assert!(next.level() <= t.level() + 1);
            prop_assert!(!next.is_due(now));
        }
    }
}
