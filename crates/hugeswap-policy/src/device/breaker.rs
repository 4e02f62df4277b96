//! When a device that fails is asked: a circuit breaker (Nygard, "Release It!", 2007), in one word
//! that processes share.
//!
//! After [`FAILURES`] failures in a row the breaker is *open*: no transfer goes to the device. When
//! its time is over, one transfer is let through (*half open*). If that succeeds, the device works
//! again; if not, the breaker is open for twice as long. A device that is gone is not asked again.
//!
//! The caller has the clock. Times are kept in milliseconds, rounded up.

/// Number of failures in a row that open the breaker.
pub const FAILURES: u64 = 3;
/// Milliseconds for which it is open at first, and at most.
const FIRST_MS: u64 = 100;
const LONGEST_MS: u64 = 30_000;
/// Fields of the word: failures in a row, openings in a row, gone, trial under way, end of the open
/// time.
const STEP: u32 = 8;
const GONE: u64 = 1 << 16;
const TRIAL: u64 = 1 << 17;
const UNTIL: u32 = 18;
const NS_PER_MS: u64 = 1_000_000;

/// The state of one device. The default is a device that works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Breaker(u64);

/// What is known of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The device works.
    Closed,
    /// It failed several times in a row.
    Open,
    /// The open time is over: the next transfer decides.
    HalfOpen,
    /// The device is gone.
    Gone,
}

impl State {
    /// The state as a word for reports.
    pub const fn name(self) -> &'static str {
        match self {
            State::Closed => "ok",
            State::Open => "avoided",
            State::HalfOpen => "on trial",
            State::Gone => "gone",
        }
    }
}

impl Breaker {
    /// The state of a word that [`Breaker::word`] gave.
    pub const fn from_word(word: u64) -> Breaker {
        Breaker(word)
    }

    /// The state as one word.
    pub const fn word(self) -> u64 {
        self.0
    }

    fn failures(self) -> u64 {
        self.0 & 0xff
    }

    fn step(self) -> u64 {
        self.0 >> STEP & 0xff
    }

    fn until_ms(self) -> u64 {
        self.0 >> UNTIL
    }

    fn with(failures: u64, step: u64, until_ms: u64) -> Breaker {
        let until = until_ms.min(u64::MAX >> UNTIL);
        Breaker(failures.min(0xff) | step.min(0xff) << STEP | until << UNTIL)
    }

    /// The state at `now` (nanoseconds of a clock that never goes back).
    pub fn state(self, now: u64) -> State {
        if self.0 & GONE != 0 {
            State::Gone
        } else if self.failures() < FAILURES {
            State::Closed
        } else if now / NS_PER_MS < self.until_ms() {
            State::Open
        } else {
            State::HalfOpen
        }
    }

    /// Notes that a transfer failed.
    #[must_use]
    pub fn failed(self, now: u64) -> Breaker {
        if self.0 & GONE != 0 {
            return self;
        }
        let failures = self.failures() + 1;
        if failures < FAILURES {
            return Self::with(failures, self.step(), 0);
        }
        if self.state(now) == State::Open && self.0 & TRIAL == 0 {
            // The transfer began before the breaker opened.
            return self;
        }
        let rest = FIRST_MS
            .checked_shl(self.step().min(32) as u32)
            .map_or(LONGEST_MS, |ms| ms.min(LONGEST_MS));
        Self::with(failures, self.step() + 1, now / NS_PER_MS + 1 + rest)
    }

    /// Notes that a transfer succeeded.
    #[must_use]
    pub fn succeeded(self) -> Breaker {
        match self.0 & GONE {
            0 => Breaker::default(),
            _ => self,
        }
    }

    /// Begins the trial of a half-open breaker: one transfer goes through, and the others wait for
    /// its result, or for as long as the breaker was open at first.
    #[must_use]
    pub fn on_trial(self, now: u64) -> Breaker {
        match self.state(now) {
            State::HalfOpen => {
                let until = now / NS_PER_MS + 1 + FIRST_MS;
                Breaker(Self::with(self.failures(), self.step(), until).0 | TRIAL)
            }
            _ => self,
        }
    }

    /// Notes that the device is gone.
    #[must_use]
    pub fn gone(self) -> Breaker {
        Breaker(self.0 | GONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = NS_PER_MS;

    fn broken(now: u64) -> Breaker {
        (0..FAILURES).fold(Breaker::default(), |b, _| b.failed(now))
    }

    #[test]
    fn some_failures_in_a_row_open_it() {
        let b = Breaker::default().failed(0).failed(0);
        assert_eq!(b.state(0), State::Closed);
        assert_eq!(b.succeeded().failed(0).failed(0).state(0), State::Closed);
        assert_eq!(b.failed(0).state(0), State::Open);
    }

    #[test]
    fn it_rests_longer_each_time_and_one_goes_first() {
        let (mut b, mut now, mut last) = (broken(0), 0, 0);
        for _ in 0..12 {
            let from = now;
            while b.state(now) == State::Open {
                now += MS;
            }
            let rest = now - from;
            assert!(
                rest + 2 * MS >= last && rest <= (LONGEST_MS + 2) * MS,
                "{rest}"
            );
            last = rest;
            let trial = b.on_trial(now);
            assert_eq!(trial.state(now), State::Open, "only one is let through");
            assert_eq!(trial.succeeded(), Breaker::default());
            b = trial.failed(now + MS);
            assert_eq!(b.failed(now + MS), b, "what was under way before");
        }
        assert!(last + 2 * MS >= LONGEST_MS * MS);
    }

    #[test]
    fn a_trial_that_never_ends_is_followed_by_another() {
        let b = broken(0);
        let now = 1000 * MS;
        let trial = b.on_trial(now);
        assert_eq!(trial.state(now + (FIRST_MS + 2) * MS), State::HalfOpen);
    }

    proptest! {
        #[test]
        fn what_is_gone_stays_so(steps in prop::collection::vec((0u8..3, 0u64..1 << 50), 0..30)) {
            let after = |b: Breaker| steps.iter().fold(b, |b, &(what, now)| match what {
                0 => b.failed(now),
                1 => b.succeeded(),
                _ => b.on_trial(now),
            });
            prop_assert_eq!(after(Breaker::default().gone()).state(0), State::Gone);
            let b = after(Breaker::default());
            prop_assert!(b.state(1 << 50) != State::Gone);
            prop_assert_eq!(Breaker::from_word(b.word()), b);
            // Whatever happened, the device is asked again some time.
            prop_assert!(b.state((1 << 50) + 40_000 * MS) != State::Open, "{:?}", b);
        }
    }
}
