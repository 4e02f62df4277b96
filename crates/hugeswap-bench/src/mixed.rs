//! `mixed`: in one region half the threads stream while the others read 4 KiB at random; each half of the threads
//! alone for comparison; and a change from streaming to random reading and back, second by second.
//!
//! Each part is a run of its own, so that none begins with what an engine has learnt from another. Alone, the threads go over
//! all of the region: half of it would fit where together it does not.

use super::args::{Access, Mixed, Part};
use super::figures::{Figures, PhaseRun};
use super::output::{self, Outcome, Progress, Table, cell};
use super::pattern::Pattern;
use super::phases::{self, Doing, Group, Phase};
use super::runner::Run;
use super::swap_rand::verify_one_in;
use super::turns::{Engine, Turns};
use super::worker::Work;
use anyhow::{Context, Result};
use hugeswap_support::plot;

/// Names of the phases of a change, in order.
const CHANGE: [&str; 3] = ["streamed", "read at random", "streamed again"];

/// Runs it.
pub fn run(args: &Mixed) -> Result<()> {
    args.check()?;
    output::measured("mixed", args.common.json, |outcome| measure(args, outcome))
}

fn measure(args: &Mixed, outcome: &mut Outcome) -> Result<Table> {
    let device = (args.against.device(&args.common, false)?, 0);
    let mut turns = Turns::set_up(&args.span, &args.against, &args.common, device, outcome)?;
    let engines = turns.engines();
    let runs = u64::from(turns.pairs()) * (engines.len() * args.parts.len()) as u64;
    let mut progress = Progress::new(runs);
    for pair in 1..=turns.pairs() {
        for &part in &args.parts {
            for engine in &engines {
                let what = format!(", {}", part.name());
                let work = work(args, part, engine);
                let run = turns.run(engine, &work, (pair, &what), &mut progress)?;
                outcome.runs.push(run.with("part", part.name()));
            }
        }
    }
    turns.close(&mut progress)?;
    drop(progress);
    compare(outcome);
    if let Some(file) = &args.plot {
        std::fs::write(file, plot::draw(&drawn(&outcome.runs, args.common.pairs())))
            .with_context(|| format!("--plot {} cannot be written", file.display()))?;
        outcome
            .notes
            .push(format!("{} shows the last pair", file.display()));
    }
    Ok(table(&outcome.runs))
}

fn work(args: &Mixed, part: Part, engine: &Engine) -> Work {
    let stream = Doing::Stream {
        write: args.stream == Access::Write,
    };
    let random = Doing::Timed {
        pattern: Pattern::Uniform,
    };
    let half = |doing, part| Group {
        doing,
        threads: args.threads / 2,
        part,
    };
    let all = |doing| Group {
        doing,
        threads: args.threads,
        part: phases::Part::All,
    };
    let streams = half(stream, phases::Part::FirstHalf);
    let randoms = half(random, phases::Part::SecondHalf);
    let alone = |group: Group| Group {
        part: phases::Part::All,
        ..group
    };
    let plan: Vec<(&str, Vec<Group>)> = match part {
        // As many threads as together, and as much beyond the budget.
        Part::Stream => vec![(part.name(), vec![alone(streams)])],
        Part::Random => vec![(part.name(), vec![alone(randoms)])],
        Part::Together => vec![(part.name(), vec![streams, randoms])],
        Part::WriteBehind => {
            let fresh = Group {
                doing: Doing::Fresh,
                ..streams
            };
            vec![(part.name(), vec![fresh, alone(randoms)])]
        }
        Part::Change => CHANGE
            .into_iter()
            .zip([stream, random, stream])
            .map(|(name, doing)| (name, vec![all(doing)]))
            .collect(),
    };
    let phase = |(name, groups): (&str, Vec<Group>)| Phase {
        name: name.into(),
        seconds: Some(args.seconds),
        // A second; less where a phase would have only a few.
        every_s: (args.seconds / 10.0).min(1.0),
        groups,
    };
    Work {
        region: args.span.region,
        tasks: 1,
        threads: args.threads,
        rounds: 1,
        phases: plan.into_iter().map(phase).collect(),
        verify_one_in: verify_one_in(engine),
        ..Work::default()
    }
}

/// Throughput of streams (or of random accesses) in a phase: more is better.
fn speed(run: &Run, phase: &str, streams: bool) -> Option<f64> {
    let f = run.phase(phase)?.figures(streams)?;
    if streams { f.mb_s } else { f.accesses_s }
}

fn compare(outcome: &mut Outcome) {
    let halves = [("stream", true), ("random", false)];
    let mut labels = vec![("hugeswap".to_owned(), String::new())];
    for (label, name) in outcome.rivals("hugeswap") {
        labels.push((label, format!("_{name}")));
    }
    // What each half keeps of what it does alone.
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
        let behind = format!("write-behind_p99_us_vs{name}").replace('-', "_");
        outcome.compare(&behind, "hugeswap", rival, |r| {
            r.phase(Part::WriteBehind.name())?.figures(false)?.p99_us
        });
        for (phase, streams) in CHANGE.into_iter().zip([true, false, true]) {
            let name = format!("{}_vs{name}", phase.replace(' ', "_"));
            outcome.compare(&name, "hugeswap", rival, |r| speed(r, phase, streams));
        }
    }
}

/// The curves of the last pair: `together`, then the phases of `change`.
fn drawn(runs: &[Run], pair: u32) -> plot::Plot {
    let last = |r: &&Run| r.params["pair"] == pair;
    let mut plot = plot::Plot::default();
    let names = std::iter::once("together").chain(CHANGE);
    for name in names {
        let phases: Vec<(String, &PhaseRun)> = runs
            .iter()
            .filter(last)
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
                    let t = start + point.t_s;
                    let Figures {
                        mb_s,
                        us_per_access,
                        ..
                    } = point.figures;
                    match (group.figures.mb_s, mb_s, us_per_access) {
                        (Some(_), Some(v), _) => plot.add(plot::Panel::Stream, label, name, t, v),
                        (None, _, Some(v)) => plot.add(plot::Panel::Random, label, name, t, v),
                        _ => {}
                    }
                }
            }
        }
        plot.phase(name, start + longest);
    }
    plot
}

fn table(runs: &[Run]) -> Table {
    let mut t = Table::new(&[
        "engine",
        "part",
        "pair",
        "phase",
        "stream MB/s",
        "us an access",
        "p50",
        "p99",
        "p99.9 us",
        "accesses/s",
        "misses %",
        "verified %",
    ]);
    for r in runs {
        for phase in &r.phases {
            let stream = phase.figures(true);
            let random = phase.figures(false);
            t.row(vec![
                r.label(),
                r.params["part"].as_str().unwrap_or("-").to_owned(),
                r.params["pair"].to_string(),
                phase.name.clone(),
                cell(stream.and_then(|f| f.mb_s), 0),
                cell(random.and_then(|f| f.us_per_access), 2),
                cell(random.and_then(|f| f.p50_us), 1),
                cell(random.and_then(|f| f.p99_us), 0),
                cell(random.and_then(|f| f.p99_9_us), 0),
                cell(random.and_then(|f| f.accesses_s), 0),
                cell(phase.miss_share.map(|s| s * 100.0), 1),
                cell(Some(r.verified_share * 100.0), 1),
            ]);
        }
    }
    t
}
