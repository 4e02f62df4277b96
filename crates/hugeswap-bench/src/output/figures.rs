//! The figures of one phase, as they stand in the JSON; and counters over a phase.

use super::numbers::rounded;
use crate::generate::plan::{Doing, Group, Phase};
use crate::generate::played::Played;
use hugeswap_engine::pool::Pool;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::histogram;
use hugeswap_support::POOL_VARIABLE;
use serde::Serialize;
use std::collections::BTreeMap;

/// Events by name.
pub type Counters = BTreeMap<String, u64>;

/// One phase of a run.
#[derive(Clone, Debug, Serialize)]
pub struct PhaseRun {
    pub name: String,
    /// From its start until its last thread had ended.
    pub seconds: f64,
    pub groups: Vec<GroupRun>,
    /// Faults that waited for swap, for each access; only if the phase was one group of random accesses,
    /// or a program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub miss_share: Option<f64>,
    /// What was counted meanwhile: hugeswap's counters, or those of the kernel's /proc/vmstat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counters: Option<Counters>,
}

/// One group of threads in a phase, all tasks together.
#[derive(Clone, Debug, Serialize)]
pub struct GroupRun {
    /// "stream write", "stream read", "fresh write", "random write", "random read", "program", "fill", "first touch",
    /// "map and touch" or "rest".
    pub work: &'static str,
    pub threads: u32,
    /// Accesses, or pages of 4 KiB streamed.
    pub accesses: u64,
    #[serde(flatten)]
    pub figures: Figures,
    /// First touches that brought base pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<Latency>,
    /// First touches that brought 2 MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub huge: Option<Latency>,
    /// Memory of its part that was present at the end, and the share mapped by huge pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub present_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub huge_share: Option<f64>,
    pub series: Vec<Point>,
}

/// How long accesses of one kind took: within 12.5%.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    pub count: u64,
    #[serde(flatten)]
    pub times: Percentiles,
}

/// Percentiles of times, microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Percentiles {
    pub p50_us: f64,
    pub p99_us: f64,
    pub p99_9_us: f64,
    pub max_us: f64,
}

impl Latency {
    /// `None` of no accesses.
    fn new(times: &[u64]) -> Option<Latency> {
        let us = |q| rounded(histogram::percentile_ns(times, q) as f64 / 1e3, 1);
        let count = times.iter().sum();
        (count > 0).then(|| Latency {
            count,
            times: Percentiles {
                p50_us: us(0.5),
                p99_us: us(0.99),
                p99_9_us: us(0.999),
                max_us: us(1.0),
            },
        })
    }
}

/// How fast a group was: for streams 10^6 bytes a second; for random accesses, how many a second, and
/// how long each took its thread.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Figures {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mb_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accesses_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub us_per_access: Option<f64>,
    /// Of timed accesses; of first touches, those of 2 MiB; of maps, the time for a MiB.
    #[serde(flatten)]
    pub times: Option<Percentiles>,
}

/// The same since the point before.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// Seconds since the phase began.
    pub t_s: f64,
    #[serde(flatten)]
    pub figures: Figures,
}

impl Figures {
    /// Figures of `done` pages or accesses in `seconds`, during which threads took `thread_s`
    /// together.
    fn new(group: &Group, done: u64, seconds: f64, thread_s: f64) -> Figures {
        let n = done as f64;
        let megabytes = n * hugeswap_policy::PAGE_BYTES as f64 / 1e6;
        let mut figures = Figures::default();
        match group.doing {
            Doing::Stream { .. } | Doing::Fresh | Doing::Fill | Doing::Touch => {
                figures.mb_s = Some(rounded(megabytes / seconds, 1));
            }
            Doing::Random { .. } | Doing::Timed { .. } | Doing::Program(_) => {
                figures.accesses_s = Some(rounded(n / seconds, 1));
                // Without an access there is no time of one.
                figures.us_per_access = (done > 0).then(|| rounded(thread_s * 1e6 / n, 3));
            }
            // The pauses count too.
            Doing::Map(_) => figures.accesses_s = Some(rounded(n / seconds, 1)),
            Doing::Rest => {}
        }
        figures
    }
}

fn name(doing: Doing) -> &'static str {
    match doing {
        Doing::Stream { write: true } => "stream write",
        Doing::Stream { write: false } => "stream read",
        Doing::Fresh => "fresh write",
        Doing::Random { write: true, .. } => "random write",
        Doing::Random { write: false, .. } | Doing::Timed { .. } => "random read",
        Doing::Program(_) => "program",
        Doing::Fill => "fill",
        Doing::Touch => "first touch",
        Doing::Map(_) => "map and touch",
        Doing::Rest => "rest",
    }
}

impl PhaseRun {
    /// The figures of a phase that was played, with what was counted meanwhile.
    pub fn new(plan: &Phase, played: &Played, counters: Option<Counters>) -> PhaseRun {
        let groups = plan.groups.iter().zip(&played.groups).enumerate();
        let groups: Vec<GroupRun> = groups
            .map(|(n, (group, tally))| GroupRun {
                work: name(group.doing),
                threads: tally.threads,
                accesses: tally.done,
                figures: Figures {
                    times: Latency::new(&tally.times.all).map(|l| l.times),
                    ..Figures::new(group, tally.done, played.seconds, tally.thread_s)
                },
                base: Latency::new(&tally.times.base),
                huge: Latency::new(&tally.times.huge),
                present_bytes: tally.present.map(|p| p.bytes),
                huge_share: (tally.present.filter(|p| p.bytes > 0))
                    .map(|p| rounded(p.huge_bytes as f64 / p.bytes as f64, 4)),
                series: series(group, played, n, tally.threads),
            })
            .collect();
        let alone = match &groups[..] {
            [one] if one.figures.mb_s.is_none() && one.accesses > 0 => Some(one.accesses as f64),
            _ => None,
        };
        let misses = counters.as_ref().map(|c| misses(c) as f64);
        let share = |(misses, all): (f64, f64)| rounded(misses / all, 4);
        PhaseRun {
            name: plan.name.clone(),
            seconds: rounded(played.seconds, 3),
            miss_share: misses.zip(alone).map(share),
            groups,
            counters,
        }
    }

    /// The figures of the group that streams, or of the one that does not.
    pub fn figures(&self, streams: bool) -> Option<Figures> {
        let mut groups = self.groups.iter().map(|g| g.figures);
        groups.find(|f| f.mb_s.is_some() == streams)
    }
}

fn series(group: &Group, played: &Played, n: usize, threads: u32) -> Vec<Point> {
    let (mut t, mut before) = (0.0, 0);
    let mut points = Vec::new();
    for sample in &played.samples {
        let done = sample.done.get(n).copied().unwrap_or(before);
        let seconds = sample.at_s - t;
        // The rest after the last whole interval may be too short to say anything.
        if seconds > 1e-3 {
            let thread_s = seconds * f64::from(threads);
            points.push(Point {
                t_s: rounded(sample.at_s, 3),
                figures: Figures::new(group, done - before, seconds, thread_s),
            });
            (t, before) = (sample.at_s, done);
        }
    }
    points
}

/// Faults that waited for swap.
fn misses(counters: &Counters) -> u64 {
    let waits = ["pgmajfault", "fault_major", "fault_wait"];
    let waited = |name: &str| waits.iter().any(|w| name.starts_with(w));
    counters
        .iter()
        .filter(|(name, _)| waited(name))
        .map(|(_, n)| n)
        .sum()
}

/// The difference of two sets of counters.
pub fn since(before: &Counters, now: &Counters) -> Counters {
    let earlier = |name: &String| before.get(name).copied().unwrap_or(0);
    now.iter()
        .map(|(name, n)| (name.clone(), n.saturating_sub(earlier(name))))
        .collect()
}

/// The pool of a running process, for its counters.
pub fn pool_of(pid: u32) -> Option<Pool> {
    let environ = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let entries = environ.split(|b| *b == 0);
    let (creator, segment) = entries
        .filter_map(|e| std::str::from_utf8(e).ok()?.split_once('='))
        .find(|(name, _)| *name == POOL_VARIABLE)?
        .1
        .split_once(':')?;
    // The lowest descriptors are for standard streams.
    Pool::attach(creator.parse().ok()?, segment.parse().ok()?, 3).ok()
}

/// All counters of a pool, and its faults by class.
pub fn of_pool(pool: &Pool) -> Counters {
    let report = pool.report();
    let events = Counter::ALL
        .iter()
        .map(|&c| (c.name().to_owned(), report.get(c)));
    let faults = report
        .faults
        .iter()
        .map(|f| (format!("fault_{}", f.class.name()), f.took.count));
    events.chain(faults).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::pattern::Pattern;
    use crate::generate::plan::Part;
    use crate::generate::played::{Sample, Tally};

    fn plan(doing: &[Doing]) -> Phase {
        let group = |&doing| Group::new(doing, 2, Part::All);
        Phase::new("p", Some(2.0), doing.iter().map(group).collect())
    }

    fn tally(done: u64) -> Tally {
        Tally {
            threads: 2,
            done,
            thread_s: 4.0,
            ..Tally::default()
        }
    }

    const RANDOM: Doing = Doing::Random {
        pattern: Pattern::Uniform,
        write: false,
        accesses: None,
    };

    fn sample(at_s: f64, done: &[u64]) -> Sample {
        let done = done.to_vec();
        Sample { at_s, done }
    }

    #[test]
    fn a_phase_has_one_shape() {
        let played = Played {
            seconds: 2.0,
            groups: vec![tally(1000)],
            samples: vec![
                sample(1.0, &[0]),
                sample(2.0, &[1000]),
                sample(2.0001, &[1000]),
            ],
        };
        let counters = Counters::from([
            ("fault_major_2m".into(), 90),
            ("fault_wait".into(), 10),
            ("fault_soft".into(), 7),
        ]);
        let run = PhaseRun::new(&plan(&[RANDOM]), &played, Some(counters));
        assert_eq!(
            serde_json::to_value(run).unwrap(),
            serde_json::json!({
                "name": "p", "seconds": 2.0, "miss_share": 0.1,
                "groups": [{
                    "work": "random read", "threads": 2, "accesses": 1000,
                    "accesses_s": 500.0, "us_per_access": 4000.0,
                    "series": [
                        {"t_s": 1.0, "accesses_s": 0.0},
                        {"t_s": 2.0, "accesses_s": 1000.0, "us_per_access": 2000.0},
                    ],
                }],
                "counters": {"fault_major_2m": 90, "fault_wait": 10, "fault_soft": 7},
            })
        );
    }

    #[test]
    fn groups_have_figures_of_their_kind() {
        let played = Played {
            seconds: 2.0,
            groups: vec![tally(1_000_000), tally(100)],
            samples: vec![sample(2.0, &[1_000_000, 100])],
        };
        let plan = plan(&[Doing::Stream { write: true }, RANDOM]);
        let run = PhaseRun::new(
            &plan,
            &played,
            Some(Counters::from([("pgmajfault".into(), 5)])),
        );
        assert_eq!(run.miss_share, None);
        assert_eq!(run.figures(true).unwrap().mb_s, Some(2048.0));
        assert_eq!(run.figures(false).unwrap().accesses_s, Some(50.0));
        assert_eq!(run.groups[0].series[0].figures.mb_s, Some(2048.0));
    }

    #[test]
    fn a_plain_process_has_no_pool() {
        assert!(pool_of(std::process::id()).is_none() || std::env::var_os(POOL_VARIABLE).is_some());
    }
}
