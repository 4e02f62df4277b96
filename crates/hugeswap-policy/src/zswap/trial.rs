//! Whether compressed memory gets the program further: tried, and measured.
//!
//! [`super::share`] computes what divisions of memory cost from when pages come back, and from what
//! one page costs. It does not know what follows from a division: that the device is slower for
//! each page while compressed ones are written back, that units come by pages and not whole, that
//! two threads displace what the other needs. So the time that faults take is compared with and
//! without compressed memory, for as much work: for each page that is *missed*, which is one that
//! comes back and would have left also if all memory were uncompressed. Their number is the
//! program's; how long it waits for them, and for those that left only because compressed memory
//! takes room, is ours.
//!
//! ```text
//! WITHOUT --measured, the rest is over, a division is chosen--> SETTLING --> MEASURING --cheaper--> WITH
//!    ^------------------------------not cheaper: rest--------------'------------'                    |
//!    ^------------------------------dearer than without, or than that is still believed--------------'
//! ```
//! While whole units are on trial, or that is due, it is WITHOUT.
//!
//! What was measured without it is believed less the older it is, so that it is measured again: the
//! sooner the less there was to gain. The rest after a trial to no avail ends when pages that are
//! missed have become twice as dear as they were in the trial: a device with a limit is fast until
//! that is reached.
//!
//! No clock is read here: the owner looks at one, a few times a second, and serialises calls.

const SECOND: u64 = 1_000_000_000;
/// Time of a measurement without compressed memory, and with it, at least.
const WITHOUT: u64 = SECOND * 2 / 5;
const WITH: u64 = SECOND;
/// Pages that are missed in it, at least.
const ENOUGH: f64 = 1024.0;
/// A measurement that has not seen as many after this time begins again.
const LONGEST: u64 = 10 * SECOND;
/// What it was like before is not seen any more so long after a change,
const SETTLED: u64 = SECOND * 3 / 5;
/// and, where compressed memory has come, once it does not become larger any more and half of memory
/// was evicted since: it fills no faster. After a time of this length it is measured as it is.
const LONGEST_SETTLING: u64 = 10 * SECOND;
/// A trial ends as soon as pages that are missed have cost so many times as much in it, for this long.
const HOPELESS: f64 = 1.5;
const HOPELESS_AFTER: u64 = SECOND * 6 / 5;
/// A missed page must cost no more than this part of what it costs without.
const CHEAPER: f64 = 0.9;
/// What was measured without is believed to be less by this part each second.
const FORGOTTEN: f64 = 1.0 / 128.0;
/// The rest after a trial to no avail, in times of its length; twice as long each time,
const REST: u64 = 4;
/// but no longer than this,
const LONGEST_REST: u64 = 600 * SECOND;
/// and once it was as long as the trial, only until a missed page costs so many times what it cost
/// in that.
const DEARER_NOW: f64 = 2.0;

/// What the owner sees; `ns` and `stalled_ns` are totals that only grow.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// The time, nanoseconds.
    pub ns: u64,
    /// Time that faults on what had left memory took, all threads, nanoseconds.
    pub stalled_ns: u64,
    /// Pages missed since the last look; see [`super::share::missed`].
    pub missed: f64,
    /// Pages evicted, a total.
    pub evicted: u64,
    /// Pages in memory.
    pub resident: u64,
    /// Is there compressed memory, by choice?
    pub with: bool,
    /// Does it become larger, or has less than half of what there may be?
    pub grows: bool,
    /// No trial of whole units is under way or expected soon
    /// ([`crate::swapin::granularity::Progress`]: `is_by_pages`, `is_quiet`): two trials at a time
    /// would tell of neither, and with compressed memory units come by pages.
    pub by_pages: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Without,
    Settling,
    Measuring,
    With,
}

/// What is known of a process.
#[derive(Debug, Default)]
pub struct Trial {
    phase: Phase,
    /// As the present window began, and what was missed since.
    began: Seen,
    missed: f64,
    /// Time of a missed page without compressed memory, nanoseconds.
    without: Option<f64>,
    /// When the present trial began.
    tried: u64,
    /// No trial before,
    rest_until: u64,
    /// or this, where pages that are missed have become dear.
    rest_least: u64,
    /// The last rest.
    rest: u64,
    /// Time of a missed page in the trial before it, nanoseconds.
    failed: f64,
}

impl Trial {
    /// To be called a few times a second. May there be compressed memory?
    pub fn on_look(&mut self, seen: Seen) -> bool {
        if !seen.by_pages {
            self.phase = Phase::Without;
            self.without = None;
            self.begin(seen);
            return false;
        }
        if self.began.ns == 0 || seen.with == (self.phase == Phase::Without) {
            // It is there now, or is not any more.
            self.phase = match seen.with {
                true => Phase::Settling,
                false => Phase::Without,
            };
            self.tried = seen.ns;
            self.begin(seen);
        }
        self.missed += seen.missed;
        let time = seen.ns.saturating_sub(self.began.ns);
        match self.phase {
            Phase::Settling => {
                let evicted = seen.evicted.wrapping_sub(self.began.evicted);
                let filled = !seen.grows && evicted >= seen.resident / 2;
                let stalled = seen.stalled_ns.saturating_sub(self.began.stalled_ns);
                let limit = self.without.unwrap_or(f64::MAX) * HOPELESS * self.missed;
                if time >= HOPELESS_AFTER && self.missed >= ENOUGH && stalled as f64 > limit {
                    return self.fail(seen, stalled as f64 / self.missed);
                }
                if time >= SETTLED && filled || time >= LONGEST_SETTLING {
                    self.phase = Phase::Measuring;
                    self.begin(seen);
                }
            }
            Phase::Without => {
                if let Some(cost) = self.measure(seen, WITHOUT) {
                    self.without = Some(self.without.map_or(cost, |was| (was + cost) / 2.0));
                }
            }
            Phase::Measuring => {
                if let Some(cost) = self.measure(seen, WITH) {
                    if cost > self.without.unwrap_or(f64::MAX) * CHEAPER {
                        return self.fail(seen, cost);
                    }
                    self.phase = Phase::With;
                    self.rest = 0;
                }
            }
            Phase::With => {
                if let Some(cost) = self.measure(seen, WITH) {
                    let age = time as f64 / SECOND as f64;
                    let without = self.without.unwrap_or(f64::MAX) * (1.0 - FORGOTTEN).powf(age);
                    if cost > without {
                        self.without = None;
                        return self.end(seen);
                    }
                    self.without = Some(without);
                }
            }
        }
        let due = |cost| {
            let dear = cost > self.failed * DEARER_NOW;
            seen.ns
                >= if dear {
                    self.rest_least
                } else {
                    self.rest_until
                }
        };
        seen.with || self.without.is_some_and(due)
    }

    fn begin(&mut self, seen: Seen) {
        (self.began, self.missed) = (seen, 0.0);
    }

    /// Ends a trial that was to no avail: a missed page cost so much.
    fn fail(&mut self, seen: Seen, cost: f64) -> bool {
        self.failed = cost;
        let took = seen.ns - self.tried;
        self.rest = (self.rest * 2).max(took * REST).min(LONGEST_REST);
        (self.rest_until, self.rest_least) = (seen.ns + self.rest, seen.ns + took);
        self.end(seen)
    }

    /// Ends a trial. What is in compressed memory goes, which is not measured.
    fn end(&mut self, seen: Seen) -> bool {
        self.phase = Phase::Without;
        self.begin(Seen {
            ns: seen.ns + SETTLED,
            ..seen
        });
        false
    }

    /// What a missed page has cost, if that was long enough; then the next window begins.
    fn measure(&mut self, seen: Seen, least: u64) -> Option<f64> {
        let time = seen.ns.saturating_sub(self.began.ns);
        if time == 0 {
            // What is not measured.
            (self.began.stalled_ns, self.missed) = (seen.stalled_ns, 0.0);
        }
        let stalled = seen.stalled_ns.saturating_sub(self.began.stalled_ns);
        let cost = stalled as f64 / self.missed.max(1.0);
        let enough = time >= least && self.missed >= ENOUGH;
        if enough || time >= LONGEST {
            self.begin(seen);
        }
        enough.then_some(cost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: u64 = SECOND / 5;

    fn by_pages() -> (Trial, Seen) {
        let seen = Seen {
            by_pages: true,
            ..Seen::default()
        };
        (Trial::default(), seen)
    }

    /// A program that misses 2000 pages a tick, each of which costs so many microseconds without
    /// and with compressed memory, which is chosen whenever it may be; for `seconds`. The seconds
    /// with it.
    fn play(t: &mut Trial, seen: &mut Seen, us: [f64; 2], seconds: u64) -> f64 {
        let mut with = 0;
        for _ in 0..seconds * 5 {
            seen.ns += TICK;
            seen.missed = 2000.0;
            seen.stalled_ns += (2e6 * us[usize::from(seen.with)]) as u64;
            seen.with = t.on_look(*seen);
            with += u64::from(seen.with);
        }
        with as f64 / 5.0
    }

    #[test]
    fn what_costs_less_is_kept() {
        let (mut t, mut seen) = by_pages();
        let with = play(&mut t, &mut seen, [40.0, 20.0], 300);
        assert!(with > 290.0, "{with}");
    }

    #[test]
    fn what_costs_more_is_rare_and_becomes_rarer() {
        let (mut t, mut seen) = by_pages();
        let first = play(&mut t, &mut seen, [40.0, 80.0], 100);
        assert!((1.0..10.0).contains(&first), "{first}");
        let later = play(&mut t, &mut seen, [40.0, 80.0], 1000);
        assert!((1.0..20.0).contains(&later), "{later}");
        // But it is found when that changes.
        play(&mut t, &mut seen, [40.0, 20.0], 700);
        let then = play(&mut t, &mut seen, [40.0, 20.0], 100);
        assert!(then > 95.0, "{then}");
    }

    #[test]
    fn what_fills_slowly_is_measured_once_it_is_full() {
        let (mut t, mut seen) = by_pages();
        seen.resident = 20_000;
        // Pages gain nothing before those have left that come back.
        let mut filled = 0;
        for _ in 0..100 {
            seen.ns += TICK;
            seen.missed = 500.0;
            seen.evicted += 500;
            filled = if seen.with { filled + 500 } else { 0 };
            let us = if filled >= 10_000 { 30 } else { 300 };
            seen.stalled_ns += 500_000 * us;
            seen.with = t.on_look(seen);
        }
        assert!(seen.with && filled > 40_000, "{filled}");
        // What never fills, or grows all the time, is measured in the end.
        for grows in [false, true] {
            let (mut t, mut seen) = by_pages();
            (seen.resident, seen.grows) = (if grows { 0 } else { 1 << 40 }, grows);
            let with = play(&mut t, &mut seen, [40.0, 50.0], 30);
            assert!((10.0..14.0).contains(&with), "{with}");
        }
    }

    #[test]
    fn what_is_hopeless_ends_at_once() {
        let (mut t, mut seen) = by_pages();
        seen.grows = true;
        let with = play(&mut t, &mut seen, [40.0, 80.0], 6);
        assert!((1.0..2.0).contains(&with), "{with}");
    }

    #[test]
    fn a_rest_ends_where_pages_become_dear() {
        let (mut t, mut seen) = by_pages();
        let with = play(&mut t, &mut seen, [10.0, 20.0], 5);
        assert!(!seen.with && with > 0.0, "{with}");
        // It is long, where they stay cheap,
        let (mut t2, mut seen2) = (Trial { ..t }, seen);
        assert_eq!(play(&mut t2, &mut seen2, [10.0, 20.0], 2), 0.0);
        // or become so dear that it would gain nothing yet.
        assert_eq!(play(&mut t2, &mut seen2, [30.0, 20.0], 1), 0.0);
        // A device has reached its limit.
        let with = play(&mut t, &mut seen, [300.0, 20.0], 10);
        assert!(seen.with && with > 7.0, "{with}");
    }

    #[test]
    fn what_comes_to_cost_more_is_given_up() {
        let (mut t, mut seen) = by_pages();
        play(&mut t, &mut seen, [40.0, 20.0], 20);
        assert!(seen.with);
        let with = play(&mut t, &mut seen, [40.0, 60.0], 100);
        assert!(with < 15.0, "{with}");
        // Also where it was dear without when that was last measured, and is cheap now.
        let (mut t, mut seen) = by_pages();
        play(&mut t, &mut seen, [40.0, 20.0], 20);
        let with = play(&mut t, &mut seen, [10.0, 20.0], 400);
        assert!(with < 120.0, "{with}");
    }

    #[test]
    fn where_units_come_whole_there_is_none() {
        let (mut t, mut seen) = by_pages();
        play(&mut t, &mut seen, [40.0, 20.0], 20);
        seen.by_pages = false;
        assert_eq!(play(&mut t, &mut seen, [40.0, 20.0], 20), 0.0);
        seen.by_pages = true;
        play(&mut t, &mut seen, [40.0, 20.0], 3);
        assert!(seen.with);
    }

    #[test]
    fn nothing_is_tried_before_it_is_known_what_it_costs_without() {
        let (mut t, mut seen) = by_pages();
        for _ in 0..1000 {
            seen.ns += TICK;
            seen.missed = 1.0;
            assert!(!t.on_look(seen));
        }
    }

    #[test]
    fn where_nothing_is_missed_nothing_changes() {
        let (mut t, mut seen) = by_pages();
        play(&mut t, &mut seen, [40.0, 20.0], 20);
        seen.missed = 0.0;
        for _ in 0..1000 {
            seen.ns += TICK;
            assert!(t.on_look(seen));
        }
    }
}
