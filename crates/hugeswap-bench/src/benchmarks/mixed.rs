//! `mixed`: in one region half the threads stream while the others read 4 KiB at random; each half
//! alone for comparison; and a change from streams to random reads and back, second by second.
//!
//! Each part is a run of its own, so that none begins with what an engine has learnt from another.
//! Alone, the threads go over all of the region: half of it would fit where both halves do not.

use crate::engines::turns::{Engine, Turns};
use crate::error::{no_repeats, writable_chart, wrong};
use crate::generate::pattern::Pattern;
use crate::generate::plan::{self, Doing, Group, Phase, Work};
use crate::options::{self, Access, Against, Common, Named, Span, check_memory, check_work};
use crate::output::figures::PhaseRun;
use crate::output::plot::{Panel, Plot};
use crate::output::{Benchmark, Outcome, Run, Table, cell, percent, save_chart};
use anyhow::Result;
use clap::ValueEnum;
use std::path::PathBuf;

/// Names of the phases of a change, in order.
const CHANGE: [&str; 3] = ["streamed", "read at random", "streamed again"];

// Arguments of `hugeswap bench mixed`.
#[derive(clap::Args)]
#[command(after_help = format!("\
EXAMPLES:
  hugeswap bench mixed --threads 4 --plot mixed.svg
  hugeswap bench mixed --vs kernel --parts together --seconds 5

Parts, each a run of its own that fills the region first:
  stream    half the threads stream through the region, alone
  random    the other half read 4 KiB at random in the region, alone
  together  the first stream through one half of the region while the others read in the other
  write-behind  one half of the threads writes new memory, again and again, and the other reads at random in the region:
                what a read waits while much is written
  change    all threads stream through the region, then read at random, then stream again
Add --also KEY=VALUE to compare with what hugeswap does under other settings.

{}", options::HELP))]
pub struct Mixed {
    #[command(flatten)]
    span: Span,
    /// Threads: half of them stream, half of them read at random
    #[arg(long, value_name = "N", default_value_t = 2)]
    threads: u32,
    /// How long each phase lasts
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    seconds: f64,
    /// What the streams do
    #[arg(long, value_name = "WHAT", value_enum, default_value = "write")]
    stream: Access,
    /// What is run, in this order
    #[arg(
        long,
        value_name = "PARTS",
        value_enum,
        value_delimiter = ',',
        default_values = ["stream", "random", "together", "change"]
    )]
    parts: Vec<Part>,
    /// Draw throughput and time of an access over time: the last runs of `together` and `change`
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    against: Against,
    #[command(flatten)]
    common: Common,
}

/// A run of `mixed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The streaming half of the threads alone
    Stream,
    /// The half that reads at random alone
    Random,
    /// Both
    Together,
    /// One half writes new memory, which pushes out what the others read
    WriteBehind,
    /// Stream, read at random, stream again
    Change,
}

impl Benchmark for Mixed {
    const NAME: &'static str = "mixed";

    fn check(&self) -> Result<()> {
        self.common.check()?;
        check_work(self.span.region, 1, self.threads, 1)?;
        check_memory(self.span.memory)?;
        if !self.threads.is_multiple_of(2) {
            return wrong("--threads must be even: half of them stream");
        }
        no_repeats("--parts", &self.parts)?;
        self.common.check_seconds(self.seconds)?;
        let drawn = |p: &Part| [Part::Together, Part::Change].contains(p);
        if self.plot.is_some() && !self.parts.iter().any(drawn) {
            return wrong("--plot draws the parts together and change: name one");
        }
        writable_chart(self.plot.as_deref())?;
        self.against.check()?;
        self.against.device(&self.common, false).map(drop)
    }

    fn measure(&self, outcome: &mut Outcome) -> Result<Table> {
        let device = (self.against.device(&self.common, false)?, 0);
        let turns = Turns::set_up(&self.span, &self.against, &self.common, device, outcome)?;
        let engines = turns.engines();
        turns.take(
            (&engines, &self.parts),
            outcome,
            |part| format!(", {}", part.name()),
            |part, engine| self.work(*part, engine),
            |part, _, run| Ok(run.with("part", part.name())),
        )?;
        compare(outcome);
        if let Some(file) = &self.plot {
            save_chart(file, &plot(&outcome.runs, self.common.pairs()).draw())?;
            outcome.note(format!("{} shows the last pair", file.display()));
        }
        Ok(table(&outcome.runs))
    }
}

impl Mixed {
    fn work(&self, part: Part, engine: &Engine) -> Work {
        let stream = Doing::Stream {
            write: self.stream == Access::Write,
        };
        let random = Doing::Timed {
            pattern: Pattern::Uniform,
        };
        let half = |doing, part| Group::new(doing, self.threads / 2, part);
        let alone = |doing| half(doing, plan::Part::All);
        let name = &part.name()[..];
        let groups: Vec<(&str, Vec<Group>)> = match part {
            // As many threads as together, and as much memory beyond the budget.
            Part::Stream => vec![(name, vec![alone(stream)])],
            Part::Random => vec![(name, vec![alone(random)])],
            Part::Together => {
                let streams = half(stream, plan::Part::FirstHalf);
                vec![(name, vec![streams, half(random, plan::Part::SecondHalf)])]
            }
            Part::WriteBehind => {
                let fresh = half(Doing::Fresh, plan::Part::FirstHalf);
                vec![(name, vec![fresh, alone(random)])]
            }
            Part::Change => {
                let all = |doing| vec![Group::new(doing, self.threads, plan::Part::All)];
                let doing = [stream, random, stream].map(all);
                CHANGE.into_iter().zip(doing).collect()
            }
        };
        let phase = |(name, groups)| Phase {
            // A second; less in a phase that would have only a few points.
            every_s: (self.seconds / 10.0).min(1.0),
            ..Phase::new(name, Some(self.seconds), groups)
        };
        Work {
            region: self.span.region,
            threads: self.threads,
            rounds: 1,
            phases: groups.into_iter().map(phase).collect(),
            verify_one_in: engine.verify_one_in(),
            ..Work::default()
        }
    }
}

/// Speed of the streams (or of the random accesses) in a phase.
fn speed(run: &Run, phase: &str, streams: bool) -> Option<f64> {
    let f = run.phase(phase)?.figures(streams)?;
    if streams { f.mb_s } else { f.accesses_s }
}

fn compare(outcome: &mut Outcome) {
    let halves = [("stream", true), ("random", false)];
    let mut labels = vec![("hugeswap".to_owned(), String::new())];
    let rivals = outcome.rivals().into_iter();
    labels.extend(rivals.map(|(label, name)| (label, format!("_{name}"))));
    // The share of its speed alone that each half keeps.
    for (label, name) in &labels {
        for (half, streams) in halves {
            let both = outcome.figures(label, |r| speed(r, "together", streams));
            let alone = outcome.figures(label, |r| speed(r, half, streams));
            outcome.ratio_of_pairs(&format!("{half}_together_vs_alone{name}"), &both, &alone);
        }
    }
    for (rival, name) in &labels[1..] {
        for (half, streams) in halves {
            for (phase, when) in [(half, "alone"), ("together", "together")] {
                let name = format!("{half}_{when}_vs{name}");
                outcome.compare(&name, "hugeswap", rival, |r| speed(r, phase, streams));
            }
        }
        outcome.compare(
            &format!("write_behind_p99_us_vs{name}"),
            "hugeswap",
            rival,
            |r| Some(r.phase("write-behind")?.figures(false)?.times?.p99_us),
        );
        for (phase, streams) in CHANGE.into_iter().zip([true, false, true]) {
            let name = format!("{}_vs{name}", phase.replace(' ', "_"));
            outcome.compare(&name, "hugeswap", rival, |r| speed(r, phase, streams));
        }
    }
}

/// The curves of the last pair: `together`, then the phases of `change`.
fn plot(runs: &[Run], pair: u32) -> Plot {
    let mut plot = Plot::default();
    for name in std::iter::once("together").chain(CHANGE) {
        let last = runs.iter().filter(|r| r.params["pair"] == pair);
        let phases: Vec<(String, &PhaseRun)> = last
            .filter_map(|r| Some((r.label(), r.phase(name)?)))
            .collect();
        // Engines may take longer for their last access: all begin the next phase together.
        let Some(longest) = phases.iter().map(|(_, p)| p.seconds).reduce(f64::max) else {
            continue;
        };
        let start = plot.end_s();
        for (label, phase) in &phases {
            for group in &phase.groups {
                for point in &group.series {
                    let (panel, value) = match group.figures.mb_s {
                        Some(_) => (Panel::Stream, point.figures.mb_s),
                        None => (Panel::Random, point.figures.us_per_access),
                    };
                    if let Some(value) = value {
                        plot.add(panel, label, name, start + point.t_s, value);
                    }
                }
            }
        }
        plot.phase(name, start + longest);
    }
    plot
}

fn table(runs: &[Run]) -> Table {
    let phases = runs
        .iter()
        .flat_map(|r| r.phases.iter().map(move |p| (r, p)));
    let random = |p: &PhaseRun| p.figures(false);
    let times = |p: &PhaseRun| p.figures(false)?.times;
    Table::of(
        phases,
        &[
            ("engine", &|(r, _)| r.label()),
            ("part", &|(r, _)| r.cell("part")),
            ("pair", &|(r, _)| r.cell("pair")),
            ("phase", &|(_, p)| p.name.clone()),
            ("stream MB/s", &|(_, p)| {
                cell(p.figures(true).and_then(|f| f.mb_s), 0)
            }),
            ("us an access", &|(_, p)| {
                cell(random(p).and_then(|f| f.us_per_access), 2)
            }),
            ("p50", &|(_, p)| cell(times(p).map(|t| t.p50_us), 1)),
            ("p99", &|(_, p)| cell(times(p).map(|t| t.p99_us), 0)),
            ("p99.9 us", &|(_, p)| cell(times(p).map(|t| t.p99_9_us), 0)),
            ("accesses/s", &|(_, p)| {
                cell(random(p).and_then(|f| f.accesses_s), 0)
            }),
            ("misses %", &|(_, p)| percent(p.miss_share, 1)),
            ("verified %", &|(r, _)| percent(r.verified_share, 1)),
        ],
    )
}
