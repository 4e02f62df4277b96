//! Whether the program gets further by the sizes that the rules find, or by whole units only: tried,
//! and measured.
//!
//! Which is better does not follow from the faults that one of the two raises, where several threads
//! wait. Two threads, each of which works in a set of units that would fit, but not with the other's,
//! both wait for single pages at every step. With whole units one of them soon has all it works in,
//! ends its part, and leaves the memory to the other. The faults of the two, mixed, look like random
//! accesses to all of it, which is what [`super::Ghost`] takes them for.
//!
//! What can be seen is how far the program gets: the processor time that its own code takes. While
//! more than one of its threads waits for faults at a time, the other way is tried now and then: until
//! memory was turned over, some times where units come whole, and then for some seconds. It is kept if the
//! program runs for more of the time than before, and for as long as the program gets half as far.
//! The wait after a trial that ends otherwise is so many times as long that trials take a small part
//! of the time, and each time twice as long.
//!
//! Source: that a set of programs that work in more than there is are better run one after the
//! other is Denning, "Thrashing: its causes and prevention" (1968).
//!
//! No clock is read here: the owner looks at one, a few times a second, and serialises calls.

/// Time of a measurement, nanoseconds. (Shorter ones would be a few ticks of the kernel's clock.)
const WINDOW: u64 = 1_000_000_000;
/// A trial in which the program runs for less than a quarter of what it did, from its beginning on, ends
/// once it was measured for so long.
const HOPELESS: u64 = 400_000_000;
/// Memory of which some is free for so long is not full any more. (Compressed memory gives back what it
/// had as soon as it is not wanted, and that fills again.)
const FREE: u64 = 1_000_000_000;
/// A trial in which the program does neither run half as much again as before nor less than half as
/// much goes on for so long.
const LONGEST: u64 = 4_000_000_000;
/// How often memory is turned over before whole units are measured: until one of the threads has all that it
/// works in, all of them wait, and what was single pages has to leave first.
const TURNS: u64 = 6;
/// Memory that is turned over more slowly is measured as it is.
const SETTLED: u64 = 2_000_000_000;
/// Time for which a program must have been held up before a trial, at first and at most.
const WAIT: u64 = 3_000_000_000;
const LONGEST_WAIT: u64 = 3_600_000_000_000;
/// The wait after a trial that was to no avail, in times of its length.
const REST: u64 = 8;

/// After so many measurements in which no trial became due none is expected soon.
const QUIET: u32 = 4;

/// One thread at most waits at a time once that was so for as many measurements; for how many after
/// it was not, and after whole units were found to be better.
const AT_FIRST: u32 = 2;
const AFTER_SEVERAL: u32 = 8;
const AFTER_WHOLE: u32 = 60;

/// What the owner sees. All but `resident` and `full` are totals that only grow.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// The time, nanoseconds.
    pub ns: u64,
    /// Processor time of the program's own code, all threads, nanoseconds.
    pub ran_ns: u64,
    /// Time that faults on what was in swap took, all threads, nanoseconds.
    pub stalled_ns: u64,
    /// Pages evicted.
    pub evicted: u64,
    /// Pages in memory.
    pub resident: u64,
    /// No memory is free.
    pub full: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Watching,
    Settling,
    Measuring,
}

named! {
    /// What has become of a trial.
    Trial:
    Begun => "begun", "The other way is tried from now on.";
    Kept => "kept", "It stays so.";
    Ended => "ended", "It was to no avail.";
}

/// What is in force, and what is tried.
#[derive(Debug)]
pub struct Progress {
    whole: bool,
    phase: Phase,
    /// As the present window began.
    start: Seen,
    /// As the present trial began.
    tried: Seen,
    /// Since when some memory is free; 0: none is.
    free_since: u64,
    /// For how long the program has been held up since the last trial, and for how long it ran then.
    held_up: u64,
    ran: u64,
    wait: u64,
    /// Measurements since the last trial.
    watched: u32,
    /// The part of the time for which it ran when what is in force was found to be better.
    found: u64,
    /// Measurements before it is said that one thread at most waits at a time.
    several: u32,
}

impl Default for Progress {
    fn default() -> Progress {
        Progress {
            whole: false,
            phase: Phase::Watching,
            start: Seen::default(),
            tried: Seen::default(),
            free_since: 0,
            ran: 0,
            held_up: 0,
            wait: WAIT,
            watched: 0,
            found: 0,
            several: AT_FIRST,
        }
    }
}

impl Progress {
    /// Are whole units only to come, where they can?
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// Does one thread at most wait at a time, and has been for a while? No other way is tried then.
    pub fn is_alone(&self) -> bool {
        self.several == 0
    }

    /// Do single pages come, and is no trial of whole units under way or due? One thread at most
    /// waits at a time, or a trial was to no avail.
    pub fn is_by_pages(&self) -> bool {
        let tried = self.phase == Phase::Watching && self.wait > WAIT;
        !self.whole && (self.is_alone() || tried)
    }

    /// Is no trial of whole units under way, and has none become due for a while? Several threads
    /// may wait now and then.
    pub fn is_quiet(&self) -> bool {
        !self.whole && self.phase == Phase::Watching && self.watched >= QUIET
    }

    /// To be called a few times a second. What has begun or ended, if anything.
    pub fn on_look(&mut self, seen: Seen) -> Option<Trial> {
        if seen.full {
            self.free_since = 0;
        } else if self.free_since == 0 {
            self.free_since = seen.ns;
        }
        let is_free = self.free_since > 0 && seen.ns >= self.free_since + FREE;
        if is_free || self.start.ns == 0 {
            if self.phase != Phase::Watching {
                // What was to be measured is over.
                self.whole = !self.whole;
            }
            self.phase = Phase::Watching;
            (self.ran, self.held_up) = (0, 0);
            self.start = seen;
            return None;
        }
        let time = seen.ns.saturating_sub(self.start.ns);
        if self.phase == Phase::Settling {
            let turned = seen.evicted.wrapping_sub(self.start.evicted);
            let turns = if self.whole { TURNS } else { 1 };
            if turned >= turns * seen.resident || time >= SETTLED {
                (self.phase, self.start) = (Phase::Measuring, seen);
            }
            return None;
        }
        let ran = seen.ran_ns.saturating_sub(self.start.ran_ns);
        let in_trial = part(
            seen.ran_ns.saturating_sub(self.tried.ran_ns),
            seen.ns.saturating_sub(self.tried.ns),
        );
        let hopeless = self.phase == Phase::Measuring
            && time >= HOPELESS
            && part(ran, time).max(in_trial) * 4 < part(self.ran, self.held_up);
        if time < WINDOW && !hopeless {
            return None;
        }
        if self.phase == Phase::Measuring {
            return self.judge(part(ran, time), time, seen);
        }
        let stalled = seen.stalled_ns.saturating_sub(self.start.stalled_ns);
        self.start = seen;
        self.watched = self.watched.saturating_add(1);
        let several = stalled >= time + time / 4;
        self.several = match self.whole {
            true => AFTER_WHOLE,
            false if several => self.several.max(AFTER_SEVERAL),
            false => self.several.saturating_sub(1),
        };
        let doubtful = match self.whole {
            // Several threads wait at a time.
            false => several,
            // The program does not get as far any more as when that was found to be better.
            true => part(ran, time) * 2 < self.found,
        };
        if !doubtful || stalled < ran {
            (self.held_up, self.ran) = (self.held_up / 2, self.ran / 2);
            return None;
        }
        self.held_up += time;
        self.ran += ran;
        if self.held_up < self.wait {
            return None;
        }
        self.whole = !self.whole;
        self.several = self.several.max(AFTER_SEVERAL);
        self.phase = Phase::Settling;
        self.watched = 0;
        self.tried = seen;
        Some(Trial::Begun)
    }

    /// What a trial has come to, in which the program has run for `share` of the `time`.
    fn judge(&mut self, share: u64, time: u64, seen: Seen) -> Option<Trial> {
        let before = part(self.ran, self.held_up);
        let clear = share * 2 > before * 3 || share * 2 < before;
        if !clear && time < LONGEST {
            return None;
        }
        let took = seen.ns.saturating_sub(self.tried.ns);
        let kept = share * 4 > before * 5;
        if kept {
            self.wait = WAIT.max(took * 2);
            self.found = share;
        } else {
            self.whole = !self.whole;
            self.wait = (self.wait * 2).max(took * REST).min(LONGEST_WAIT);
        }
        (self.ran, self.held_up) = (0, 0);
        (self.phase, self.start) = (Phase::Watching, seen);
        Some(if kept { Trial::Kept } else { Trial::Ended })
    }
}

/// Parts of a time for which the program ran.
pub(super) fn part(ran: u64, time: u64) -> u64 {
    ran.saturating_mul(1 << 16) / time.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: u64 = 200_000_000;

    /// A program that runs for `ran` percent of the time by the rules and by whole units, and waits
    /// for `stalled`; for `seconds`. The seconds for which units came whole.
    fn play(p: &mut Progress, seen: &mut Seen, ran: [u64; 2], stalled: u64, seconds: u64) -> u64 {
        let mut whole = 0;
        for _ in 0..seconds * 5 {
            play_once(p, seen, ran, stalled);
            whole += u64::from(p.is_whole());
        }
        whole / 5
    }

    /// The same until the next look.
    fn play_once(p: &mut Progress, seen: &mut Seen, ran: [u64; 2], stalled: u64) {
        seen.ns += TICK;
        seen.ran_ns += TICK * ran[usize::from(p.is_whole())] / 100;
        seen.stalled_ns += TICK * stalled / 100;
        seen.evicted += 10_000;
        p.on_look(*seen);
    }

    fn full() -> Seen {
        Seen {
            ns: 1,
            resident: 50_000,
            full: true,
            ..Seen::default()
        }
    }

    #[test]
    fn what_gets_the_program_further_is_kept() {
        let (mut p, mut seen) = (Progress::default(), full());
        let whole = play(&mut p, &mut seen, [10, 30], 160, 60);
        assert!(p.is_whole() && whole >= 45, "{whole}");
        // And given up again once it is the worse one.
        play(&mut p, &mut seen, [30, 10], 160, 300);
        assert!(!p.is_whole());
    }

    #[test]
    fn trials_to_no_avail_are_rare_and_become_rarer() {
        let (mut p, mut seen) = (Progress::default(), full());
        let first = play(&mut p, &mut seen, [10, 11], 160, 100);
        assert!((4..=15).contains(&first), "{first}");
        let later = play(&mut p, &mut seen, [10, 11], 160, 1000);
        assert!(!p.is_whole() && (5..=50).contains(&later), "{later}");
    }

    #[test]
    fn what_is_clearly_worse_ends_after_one_measurement() {
        let (mut p, mut seen) = (Progress::default(), full());
        let whole = play(&mut p, &mut seen, [10, 4], 160, 100);
        assert!((2..=10).contains(&whole), "{whole}");
    }

    #[test]
    fn what_is_hopeless_ends_at_once() {
        let (mut p, mut seen) = (Progress::default(), full());
        let mut whole = 0;
        for _ in 0..50 {
            play_once(&mut p, &mut seen, [20, 2], 160);
            whole += u64::from(p.is_whole());
        }
        // Ten looks until memory counts as turned over, and two that measure.
        assert!(p.wait > WAIT && (1..=12).contains(&whole), "{whole}");
    }

    /// While single pages leave, and no thread has all that it works in yet.
    #[test]
    fn what_takes_a_while_to_get_going_is_kept() {
        let (mut p, mut seen) = (Progress::default(), full());
        while !p.is_whole() {
            play_once(&mut p, &mut seen, [20, 0], 160);
        }
        for ran in [0; 9].into_iter().chain([90; 6]) {
            play_once(&mut p, &mut seen, [20, ran], 160);
        }
        assert!(p.is_whole() && p.phase == Phase::Watching);
    }

    #[test]
    fn one_thread_that_waits_is_no_reason() {
        let (mut p, mut seen) = (Progress::default(), full());
        assert_eq!(play(&mut p, &mut seen, [10, 90], 90, 100), 0);
        // Two that run for longer than they wait are none.
        assert_eq!(play(&mut p, &mut seen, [150, 200], 140, 100), 0);
    }

    #[test]
    fn pages_come_once_whole_units_are_out_of_the_question() {
        // One thread that waits: after a while.
        let (mut p, mut seen) = (Progress::default(), full());
        assert!(!p.is_by_pages());
        play(&mut p, &mut seen, [10, 90], 90, 4);
        assert!(p.is_by_pages());
        // Several: once they were tried to no avail, and not while they are tried again.
        let (mut p, mut seen) = (Progress::default(), full());
        play(&mut p, &mut seen, [10, 11], 160, 3);
        assert!(!p.is_by_pages());
        play(&mut p, &mut seen, [10, 11], 160, 10);
        assert!(p.is_by_pages());
        while !p.is_whole() {
            play(&mut p, &mut seen, [10, 11], 160, 1);
        }
        assert!(!p.is_by_pages());
    }

    #[test]
    fn where_several_wait_now_and_then_no_trial_is_expected_after_a_while() {
        let (mut p, mut seen) = (Progress::default(), full());
        for second in 0..10 {
            assert_eq!(p.is_quiet(), second >= 5, "{second}");
            play(&mut p, &mut seen, [10, 11], [160, 90][second % 2], 1);
        }
        assert!(p.is_quiet() && !p.is_by_pages());
        // Until they wait all the time.
        play(&mut p, &mut seen, [10, 11], 160, 4);
        assert!(p.is_whole() && !p.is_quiet());
        // Where they do from the start, a trial comes first.
        let (mut p, mut seen) = (Progress::default(), full());
        while !p.is_whole() {
            play_once(&mut p, &mut seen, [10, 30], 160);
            assert!(!p.is_quiet());
        }
    }

    #[test]
    fn one_thread_is_alone_after_a_while() {
        let (mut p, mut seen) = (Progress::default(), full());
        play(&mut p, &mut seen, [10, 90], 90, 1);
        assert!(!p.is_alone());
        play(&mut p, &mut seen, [10, 90], 90, 2);
        assert!(p.is_alone());
        // Several wait for a while, too short for a trial.
        play(&mut p, &mut seen, [10, 30], 160, 2);
        assert!(!p.is_alone() && !p.is_whole());
        play(&mut p, &mut seen, [10, 30], 90, 6);
        assert!(!p.is_alone());
        play(&mut p, &mut seen, [10, 30], 90, 4);
        assert!(p.is_alone());
        play(&mut p, &mut seen, [10, 30], 160, 30);
        assert!(p.is_whole());
        // The program gets nowhere with whole units any more.
        play(&mut p, &mut seen, [2, 1], 90, 30);
        assert!(!p.is_whole() && !p.is_alone());
        play(&mut p, &mut seen, [2, 1], 90, 80);
        assert!(p.is_alone());
    }

    #[test]
    fn what_gets_nowhere_either_way_stays_as_it_was() {
        let (mut p, mut seen) = (Progress::default(), full());
        play(&mut p, &mut seen, [0, 0], 160, 12);
        assert!(!p.is_whole());
    }

    #[test]
    fn one_thread_is_enough_to_go_back() {
        let (mut p, mut seen) = (Progress::default(), full());
        play(&mut p, &mut seen, [10, 30], 160, 20);
        assert!(p.is_whole());
        play(&mut p, &mut seen, [8, 2], 90, 30);
        assert!(!p.is_whole());
    }

    #[test]
    fn a_trial_ends_when_memory_is_free() {
        let (mut p, mut seen) = (Progress::default(), full());
        while !p.is_whole() {
            play(&mut p, &mut seen, [10, 30], 160, 1);
        }
        seen.full = false;
        play(&mut p, &mut seen, [10, 30], 160, 1);
        assert!(p.is_whole(), "it was free for a moment");
        play(&mut p, &mut seen, [10, 30], 160, 1);
        assert!(!p.is_whole());
    }

    #[test]
    fn memory_that_is_free_now_and_then_puts_no_trial_off() {
        let (mut p, mut seen) = (Progress::default(), full());
        for _ in 0..25 {
            seen.full = !seen.full;
            play_once(&mut p, &mut seen, [10, 30], 160);
        }
        assert!(p.is_whole());
    }

    #[test]
    fn one_bad_moment_does_not_end_a_trial() {
        let (mut p, mut seen) = (Progress::default(), full());
        while !p.is_whole() {
            play_once(&mut p, &mut seen, [20, 0], 160);
        }
        // (Five looks until memory is turned over.)
        for ran in [40, 40, 40, 40, 40, 2, 2].into_iter().chain([40; 18]) {
            play_once(&mut p, &mut seen, [20, ran], 160);
        }
        assert!(p.is_whole() && p.phase == Phase::Watching);
    }
}
