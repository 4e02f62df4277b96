//! What a phase came to, as it stands in the JSON; and counters at its two ends.

use super::output::rounded;
use super::phases::{Doing, Group, Phase, Played};
use hugeswap_engine::pool::Pool;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::histogram;
use hugeswap_support::POOL_VARIABLE;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// Events by name.
pub type Counters = BTreeMap<String, u64>;

/// One phase of a run.
#[derive(Clone, Debug, Serialize)]
pub struct PhaseRun {
    pub name: String,
    /// From its start until its last thread had ended.
    pub seconds: f64,
    pub groups: Vec<GroupRun>,
    /// Faults that waited for swap, for each access; only of a phase of random accesses, or of a program, alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub miss_share: Option<f64>,
    /// What was counted meanwhile: of hugeswap its own counters, of the kernel those of /proc/vmstat.
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
    /// What its part had in memory in the end, and which share of that was mapped by huge pages.
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
    pub p50_us: f64,
    pub p99_us: f64,
    pub p99_9_us: f64,
    pub max_us: f64,
}

impl Latency {
    /// None of no accesses.
    fn new(times: &[u64]) -> Option<Latency> {
        let us = |q| rounded(histogram::percentile_ns(times, q) as f64 / 1e3, 1);
        let count = times.iter().sum();
        (count > 0).then(|| Latency {
            count,
            p50_us: us(0.5),
            p99_us: us(0.99),
            p99_9_us: us(0.999),
            max_us: us(1.0),
        })
    }
}

/// How fast a group was: of streams 10^6 bytes a second; of random accesses, how many a second
/// and how long each took its thread.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Figures {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mb_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accesses_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub us_per_access: Option<f64>,
    /// Of timed accesses; of first touches, those of 2 MiB; of maps, a MiB: within 12.5%.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_9_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_us: Option<f64>,
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
    /// Of `done` pages or accesses within `seconds`, for which threads took `thread_s` together.
    fn new(group: &Group, done: u64, seconds: f64, thread_s: f64) -> Figures {
        let n = done as f64;
        match group.doing {
            Doing::Stream { .. } | Doing::Fresh | Doing::Fill | Doing::Touch => Figures {
                mb_s: Some(rounded(
                    n * hugeswap_policy::PAGE_BYTES as f64 / 1e6 / seconds,
                    1,
                )),
                ..Figures::default()
            },
            Doing::Random { .. } | Doing::Timed { .. } | Doing::Program(_) => Figures {
                accesses_s: Some(rounded(n / seconds, 1)),
                // Without an access there is no time of one.
                us_per_access: (done > 0).then(|| rounded(thread_s * 1e6 / n, 3)),
                ..Figures::default()
            },
            // With the pauses in between.
            Doing::Map(_) => Figures {
                accesses_s: Some(rounded(n / seconds, 1)),
                ..Figures::default()
            },
            Doing::Rest => Figures::default(),
        }
    }
}

impl Figures {
    fn with_times(mut self, times: &[u64]) -> Figures {
        if let Some(l) = Latency::new(times) {
            (self.p50_us, self.p99_us) = (Some(l.p50_us), Some(l.p99_us));
            (self.p99_9_us, self.max_us) = (Some(l.p99_9_us), Some(l.max_us));
        }
        self
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
    /// What was planned, what came of it, and what was counted meanwhile.
    pub fn new(plan: &Phase, played: &Played, counters: Option<Counters>) -> PhaseRun {
        let groups = plan.groups.iter().zip(&played.groups).enumerate();
        let groups: Vec<GroupRun> = groups
            .map(|(n, (group, tally))| GroupRun {
                work: name(group.doing),
                threads: tally.threads,
                accesses: tally.done,
                figures: Figures::new(group, tally.done, played.seconds, tally.thread_s)
                    .with_times(&tally.times.all),
                base: Latency::new(&tally.times.base),
                huge: Latency::new(&tally.times.huge),
                present_bytes: tally.held.map(|h| h.present),
                huge_share: tally
                    .held
                    .filter(|h| h.present > 0)
                    .map(|h| rounded(h.huge as f64 / h.present as f64, 4)),
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

    /// The figures of the group that streams (or does not).
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
        // What comes after the last whole interval may be too short to tell anything.
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
    let waited = |name: &str| {
        name == "pgmajfault" || name.starts_with("fault_major") || name.starts_with("fault_wait")
    };
    let found = counters.iter().filter(|(name, _)| waited(name));
    found.map(|(_, n)| n).sum()
}

/// What was counted since.
pub fn since(before: &Counters, now: &Counters) -> Counters {
    let earlier = |name: &String| before.get(name).copied().unwrap_or(0);
    now.iter()
        .map(|(name, n)| (name.clone(), n.saturating_sub(earlier(name))))
        .collect()
}

/// The pool that a running program belongs to, to look at its counters.
pub fn pool_of(pid: u32) -> Option<Pool> {
    let environ = std::fs::read(Path::new("/proc").join(pid.to_string()).join("environ")).ok()?;
    let entries = environ.split(|b| *b == 0);
    let (creator, segment) = entries
        .filter_map(|e| std::str::from_utf8(e).ok()?.split_once('='))
        .find(|(name, _)| *name == POOL_VARIABLE)?
        .1
        .split_once(':')?;
    // The lowest numbers are for standard streams.
    Pool::attach(creator.parse().ok()?, segment.parse().ok()?, 3).ok()
}

/// Everything a pool counts, and its faults by class.
pub fn of_pool(pool: &Pool) -> Counters {
    let report = pool.report();
    let events = Counter::ALL
        .iter()
        .map(|&c| (c.name().to_owned(), report.get(c)));
    let faults = report
        .faults
        .iter()
        .map(|f| (format!("fault_{}", f.class.name()), f.count));
    events.chain(faults).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::Pattern;
    use crate::phases::{Part, Sample, Tally};

    fn plan(doing: &[Doing]) -> Phase {
        let group = |&doing| Group {
            doing,
            threads: 2,
            part: Part::All,
        };
        Phase {
            name: "p".into(),
            seconds: Some(2.0),
            every_s: 1.0,
            groups: doing.iter().map(group).collect(),
        }
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
        Sample {
            at_s,
            done: done.to_vec(),
        }
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
    fn nobody_belongs_to_a_pool_unasked() {
        assert!(pool_of(std::process::id()).is_none() || std::env::var_os(POOL_VARIABLE).is_some());
    }
}
