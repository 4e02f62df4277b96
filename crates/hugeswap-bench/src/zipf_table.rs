//! `swap-rand --table`: accesses by Zipf's law for every skew, region and number of threads asked for, each cell a run of its own; with refault
//! distances looked at and not, and against the kernel.

use super::args::{Cell, SwapRand};
use super::bars::Bars;
use super::output::{Outcome, Progress, Table, cell, rounded};
use super::phases::{Doing, Group, Part, Phase};
use super::runner::{Run, median};
use super::swap_rand::verify_one_in;
use super::turns::{Engine, Turns};
use super::worker::Work;
use super::{args::Access, swap_rand::PHASE};
use anyhow::{Context, Result};
use hugeswap_support::interrupt::Interrupted;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// What hugeswap always runs with too.
const OFF: &str = "workingset.detection=off";
/// The accesses before those that count, for half their time: memory begins with what was filled last.
const SETTLING: &str = "settling";

/// Runs every cell.
pub fn measure(args: &SwapRand, outcome: &mut Outcome) -> Result<Table> {
    let cells = args.table.cells(&args.threads());
    let (mut span, mut against) = (args.span.clone(), args.against.clone());
    let regions = cells.iter().map(|c| c.region(span.memory));
    span.region = regions.max().unwrap_or(span.region);
    if !against.also.iter().any(|a| a == OFF) {
        against.also.insert(0, OFF.into());
    }
    let device = (against.device(&args.common, false)?, 0);
    let mut turns = Turns::set_up(&span, &against, &args.common, device, outcome)?;
    let engines = turns.engines();
    let runs = u64::from(turns.pairs()) * (engines.len() * cells.len()) as u64;
    let mut progress = Progress::new(runs);
    for c in &cells {
        for pair in 1..=turns.pairs() {
            for engine in &engines {
                let what = format!(
                    ", zipf {}, {} times memory, {} threads",
                    c.theta, c.ratio, c.threads
                );
                let work = work(args, *c, engine);
                match turns.run(engine, &work, (pair, &what), &mut progress) {
                    Ok(run) => outcome.runs.push(told(*c, run)),
                    // It may end the program for lack of memory, which is no reason to do without the other cells.
                    Err(e) if may_fail(engine, &e) => outcome.skip(format!("{e:#}{what}")),
                    Err(e) => return Err(e),
                }
            }
        }
    }
    turns.close(&mut progress)?;
    drop(progress);
    let found = cells
        .iter()
        .map(|c| Found::new(*c, outcome))
        .collect::<Vec<_>>();
    let list = found.iter().map(Found::json).collect();
    outcome.more.insert("cells".into(), list);
    outcome.notes.push(
        "thousands of accesses a second; they go on for half as long before they count".into(),
    );
    if let Some(file) = &args.table.plot {
        std::fs::write(file, draw(args, &found))
            .with_context(|| format!("--plot {} cannot be written", file.display()))?;
    }
    Ok(table(args, &found))
}

/// A panel for every region and number of threads, a row for every skew.
fn draw(args: &SwapRand, found: &[Found]) -> String {
    let mut bars = Bars::default();
    for panel in found.chunks(args.table.thetas.len().max(1)) {
        let Cell { ratio, threads, .. } = panel[0].cell;
        let threads = match threads {
            1 => "1 thread".to_owned(),
            n => format!("{n} threads"),
        };
        let title = format!("{ratio} times memory, {threads}: 1000/s");
        let series: Vec<&str> = panel[0].speeds.iter().map(|s| s.0.as_str()).collect();
        bars.panel(&title, &series, |v| format!("{v:.0}"));
        for f in panel {
            let speeds: Vec<_> = f.speeds.iter().map(|s| s.1.map(|v| v / 1000.0)).collect();
            bars.row(&format!("zipf {}", f.cell.theta), &speeds);
        }
    }
    bars.draw()
}

fn may_fail(engine: &Engine, e: &anyhow::Error) -> bool {
    matches!(engine, Engine::Kernel(_)) && !e.is::<Interrupted>()
}

fn work(args: &SwapRand, c: Cell, engine: &Engine) -> Work {
    let seconds = args.seconds().unwrap_or_default();
    let phase = |name: &str, seconds: f64| Phase {
        name: name.into(),
        seconds: Some(seconds),
        every_s: seconds,
        groups: vec![Group {
            doing: Doing::Random {
                pattern: c.pattern(),
                write: args.access == Access::Write,
                accesses: None,
            },
            threads: c.threads,
            part: Part::All,
        }],
    };
    Work {
        region: c.region(args.span.memory),
        tasks: 1,
        threads: c.threads,
        rounds: 1,
        phases: vec![phase(SETTLING, seconds / 2.0), phase(PHASE, seconds)],
        verify_one_in: verify_one_in(engine),
        ..Work::default()
    }
}

/// With what is worth keeping of a run: there are hundreds.
fn told(c: Cell, mut run: Run) -> Run {
    let phase = run.phase(PHASE);
    let figures = phase.and_then(|p| p.figures(false));
    let counted = |name: &str| phase.and_then(|p| p.counters.as_ref()?.get(name).copied());
    let (pages_in, pages_out) = (counted("pswpin"), counted("pswpout"));
    let miss_share = phase.and_then(|p| p.miss_share);
    run.us_per_access = figures.and_then(|f| f.us_per_access);
    run.phases.clear();
    run.counters = Value::Null;
    run.with("theta", c.theta)
        .with("ratio", c.ratio)
        .with("accesses_s", figures.and_then(|f| f.accesses_s))
        .with("miss_share", miss_share)
        .with("pages_in", pages_in)
        .with("pages_out", pages_out)
}

/// What a cell came to.
struct Found {
    cell: Cell,
    /// Accesses a second by engine: the medians of the pairs.
    speeds: Vec<(String, Option<f64>)>,
    /// hugeswap's over each other's: the medians of the pairs' ratios.
    ratios: Vec<(String, Option<f64>)>,
}

impl Found {
    fn new(cell: Cell, outcome: &Outcome) -> Found {
        // By pair: a run may be missing.
        let speeds = |label: &str| -> BTreeMap<u64, f64> {
            let runs = outcome.runs.iter().filter(|r| {
                r.label() == label
                    && r.params["theta"] == cell.theta
                    && r.params["ratio"] == cell.ratio
                    && r.params["threads"] == cell.threads
            });
            let speed =
                |r: &Run| Some((r.params["pair"].as_u64()?, r.params["accesses_s"].as_f64()?));
            runs.filter_map(speed).collect()
        };
        let median_of = |values: Vec<f64>| (!values.is_empty()).then(|| median(&values));
        let middle = |of: &BTreeMap<u64, f64>| median_of(of.values().copied().collect());
        let ours = speeds("hugeswap");
        let mut found = Found {
            cell,
            speeds: vec![("hugeswap".into(), middle(&ours))],
            ratios: Vec::new(),
        };
        for (rival, _) in outcome.rivals("hugeswap") {
            let theirs = speeds(&rival);
            let ratio = |(pair, a): (&u64, &f64)| Some(a / theirs.get(pair)?);
            let ratios = ours.iter().filter_map(ratio).collect();
            found.speeds.push((rival.clone(), middle(&theirs)));
            found.ratios.push((rival, median_of(ratios)));
        }
        found
    }

    fn json(&self) -> Value {
        let map = |values: &[(String, Option<f64>)], digits| {
            let entries = values
                .iter()
                .map(|(name, v)| (name.clone(), v.map(|v| rounded(v, digits)).into()));
            Value::Object(entries.collect::<Map<_, _>>())
        };
        json!({
            "theta": self.cell.theta,
            "ratio": self.cell.ratio,
            "threads": self.cell.threads,
            "accesses_s": map(&self.speeds, 1),
            "hugeswap_vs": map(&self.ratios, 3),
        })
    }
}

/// A row for every region, number of threads and engine; below, hugeswap's speed over each other's.
fn table(args: &SwapRand, found: &[Found]) -> Table {
    let headings = |first: &str| {
        let fixed = [first, "threads", "region"].map(String::from);
        let thetas = args.table.thetas.iter().map(|t| format!("zipf {t}"));
        fixed.into_iter().chain(thetas).collect::<Vec<_>>()
    };
    let headings_of = |first: &str| {
        let headings = headings(first);
        Table::new(&headings.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let mut speeds = headings_of("1000/s");
    let mut ratios = headings_of("hugeswap over");
    for row in found.chunks(args.table.thetas.len().max(1)) {
        let place = |name: &str| {
            let c = row[0].cell;
            vec![
                name.to_owned(),
                c.threads.to_string(),
                format!("{}x", c.ratio),
            ]
        };
        for (n, (name, _)) in row[0].speeds.iter().enumerate() {
            let values = row
                .iter()
                .map(|f| cell(f.speeds.get(n).and_then(|s| Some(s.1? / 1000.0)), 1));
            speeds.row(place(name).into_iter().chain(values).collect());
        }
        for (n, (name, _)) in row[0].ratios.iter().enumerate() {
            let values = row
                .iter()
                .map(|f| cell(f.ratios.get(n).and_then(|r| r.1), 2));
            ratios.row(place(name).into_iter().chain(values).collect());
        }
    }
    speeds.below(ratios)
}
