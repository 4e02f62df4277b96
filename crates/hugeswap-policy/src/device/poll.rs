//! Whether a thread that reads from a device polls until that has ended, or sleeps.
//!
//! A thread that sleeps lets its processor halt, and a halted one takes some ten microseconds to go
//! on, in a virtual machine more: as long as a third of a fast disk's read. So a thread polls for
//! reads that are short, as hybrid polling of the kernel's block layer did (Le Moal, 2017), but as
//! long only as no other thread wants that processor: one that does is seen as a gap between two
//! looks in which this thread was switched away, and not only interrupted. Then all threads sleep for
//! a while, a longer one each time and after a longer gap. (A control group whose quota of processor
//! time is used up makes long ones.)
//!
//! Concurrency: all threads may share a [`Polling`]; of two reports at the same moment one may be
//! lost.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// A read that is shorter ends before a thread could sleep (memory); for a longer one it makes little
/// difference. Nanoseconds.
const LEAST_NS: u64 = 15_000;
const MOST_NS: u64 = 300_000;
/// A thread sleeps after so many times as long as the read was expected to take.
const PATIENCE: u64 = 4;
/// Between two looks: another thread may have run, or an interrupt.
const GAP_NS: u64 = 20_000;
/// The first rest after that, and the longest.
const FIRST_NS: u64 = 1_000_000;
const LONGEST_NS: u64 = 512_000_000;
/// A rest lasts at least so many times as long as the gap before it.
const OF_GAP: u64 = 16;
/// So many reads without a gap halve the next rest.
const QUIET: u32 = 64;

/// When threads of a process poll.
#[derive(Debug, Default)]
pub struct Polling {
    /// No thread polls before this time.
    until: AtomicU64,
    /// The next rest, nanoseconds.
    rest: AtomicU64,
    /// Reads since the last gap.
    quiet: AtomicU32,
}

/// A read that is polled for.
#[derive(Clone, Copy, Debug)]
pub struct Poll {
    began: u64,
    last: u64,
    patience: u64,
    /// The longest, if it was one.
    gap: u64,
}

impl Polling {
    /// Begins to poll for a read that is expected to take `expected` ns, at time `now`; `None`: the
    /// thread is to sleep.
    pub fn begin(&self, now: u64, expected: u64) -> Option<Poll> {
        let short = (LEAST_NS..=MOST_NS).contains(&expected);
        (short && now >= self.until.load(Relaxed)).then_some(Poll {
            began: now,
            last: now,
            patience: expected * PATIENCE,
            gap: 0,
        })
    }

    /// The read has ended by time `now`. False: another thread wanted the processor meanwhile.
    /// `switched`: see [`Poll::look`].
    pub fn end(&self, mut poll: Poll, now: u64, switched: impl FnOnce() -> bool) -> bool {
        poll.look(now, switched);
        let rest = self.rest.load(Relaxed).max(FIRST_NS);
        if poll.gap > 0 {
            self.until.store(now + rest.max(poll.gap * OF_GAP), Relaxed);
            self.rest.store((rest * 2).min(LONGEST_NS), Relaxed);
            self.quiet.store(0, Relaxed);
            return false;
        }
        let quiet = self.quiet.load(Relaxed) + 1;
        if quiet == QUIET {
            self.rest.store(rest / 2, Relaxed);
        }
        self.quiet.store(quiet % QUIET, Relaxed);
        true
    }
}

impl Poll {
    /// The read has not ended at time `now`. False: the thread is to sleep until it has. `switched`,
    /// asked after a gap: has the thread been switched away since it began to poll?
    pub fn look(&mut self, now: u64, switched: impl FnOnce() -> bool) -> bool {
        let gap = now.saturating_sub(self.last);
        if gap > GAP_NS && switched() {
            self.gap = self.gap.max(gap);
        }
        self.last = now;
        self.gap == 0 && now.saturating_sub(self.began) < self.patience
    }

    /// The thread has slept from the last look until `now`: that was no gap.
    pub fn slept(&mut self, now: u64) {
        self.last = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1000;

    /// A read that takes `us`, polled each 100 ns but for a gap of `gap` us after 10 us, in which
    /// another thread has run.
    fn read(polling: &Polling, now: &mut u64, us: u64, gap: u64) -> Option<bool> {
        let mut poll = polling.begin(*now, 70 * US)?;
        let end = *now + us * US;
        let away = *now + 10 * US;
        while *now < end {
            *now += if *now == away { gap * US } else { 100 };
            if *now < end && !poll.look(*now, || true) {
                *now = (*now).max(end);
                poll.slept(*now);
            }
        }
        Some(polling.end(poll, *now, || true))
    }

    #[test]
    fn short_reads_only() {
        let polling = Polling::default();
        for (us, polled) in [
            (2, false),
            (14, false),
            (15, true),
            (300, true),
            (301, false),
        ] {
            assert_eq!(polling.begin(0, us * US).is_some(), polled, "{us} us");
        }
    }

    #[test]
    fn a_thread_that_wants_the_processor_gets_it_for_longer_each_time() {
        let (polling, mut now) = (Polling::default(), 0);
        assert_eq!(read(&polling, &mut now, 70, 19), Some(true));
        for rest in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 512] {
            assert_eq!(read(&polling, &mut now, 90, 21), Some(false));
            now += rest * 1000 * US - 1;
            assert!(polling.begin(now, 70 * US).is_none(), "after {rest} ms");
            now += 1;
        }
        // Nobody wants it any more.
        for _ in 0..5 * QUIET {
            assert_eq!(read(&polling, &mut now, 70, 1), Some(true));
        }
        assert_eq!(read(&polling, &mut now, 90, 21), Some(false));
        now += 16_000 * US;
        assert!(polling.begin(now, 70 * US).is_some());
    }

    #[test]
    fn an_interrupt_is_no_thread_that_wants_the_processor() {
        let (polling, now) = (Polling::default(), 1000 * US);
        let mut poll = polling.begin(now, 70 * US).unwrap();
        assert!(poll.look(now + 50 * US, || false));
        assert!(polling.end(poll, now + 100 * US, || false));
        assert!(polling.begin(now + 101 * US, 70 * US).is_some());
    }

    #[test]
    fn a_long_gap_is_followed_by_a_long_rest() {
        let (polling, mut now) = (Polling::default(), 0);
        assert_eq!(read(&polling, &mut now, 70, 50_000), Some(false));
        now += 799_000 * US;
        assert!(polling.begin(now, 70 * US).is_none());
        now += 1_000 * US;
        assert!(polling.begin(now, 70 * US).is_some());
    }

    #[test]
    fn a_read_that_takes_far_too_long_is_waited_for_asleep() {
        let (polling, mut now) = (Polling::default(), 0);
        let mut poll = polling.begin(now, 70 * US).unwrap();
        while poll.look(now, || true) {
            now += 100;
        }
        assert_eq!(now, 280 * US);
        now += 5_000 * US;
        poll.slept(now);
        assert!(polling.end(poll, now, || true), "no thread was in the way");
        assert!(polling.begin(now, 70 * US).is_some());
    }
}
