//! `swap-rand --table`: accesses by Zipf's law for every skew, region and number of threads asked for,
//! each cell a run of its own; with detection of refaults on and off, and against the kernel.

use super::args::{Cell, SwapRand};
use crate::engines::turns::{Engine, Turns};
use crate::generate::pattern::Pattern;
use crate::generate::plan::{Phase, Work};
use crate::options::threads_in_words;
use crate::output::{Bars, Outcome, Progress, Run, Table, cell, median, rounded, save_chart};
use anyhow::Result;
use hugeswap_support::interrupt::Interrupted;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The setting that hugeswap always runs with, too.
const OFF: &str = "workingset.detection=off";
/// The accesses before those that count, for half their time: at first memory holds what was filled
/// last.
const SETTLING: &str = "settling";

/// Runs every cell; `counts` names the phase that counts.
pub fn measure(args: &SwapRand, counts: &str, outcome: &mut Outcome) -> Result<Table> {
    let cells = args.cells();
    let (mut span, mut against) = (args.span.clone(), args.against.clone());
    let regions = cells.iter().map(|c| c.region(span.memory));
    span.region = regions.max().unwrap_or(span.region);
    if !against.also.iter().any(|a| a == OFF) {
        against.also.insert(0, OFF.into());
    }
    let device = (against.device(&args.common, false)?, 0);
    let mut turns = Turns::set_up(&span, &against, &args.common, device, outcome)?;
    let engines = turns.engines();
    let mut progress = Progress::new(turns.pairs() as usize * engines.len() * cells.len());
    for c in &cells {
        let Cell {
            theta,
            ratio,
            threads,
        } = c;
        let what = format!(", zipf {theta}, {ratio} times memory, {threads} threads");
        for pair in 1..=turns.pairs() {
            for engine in &engines {
                let work = work(args, *c, counts, engine);
                match turns.run(engine, &work, (pair, &what), &mut progress) {
                    Ok(run) => outcome.runs.push(described(*c, counts, run)),
                    // The kernel may end the program for lack of memory; the other cells still run.
                    Err(e) if may_fail(engine, &e) => outcome.skip(format!("{e:#}{what}")),
                    Err(e) => return Err(e),
                }
            }
        }
    }
    turns.close(&mut progress)?;
    drop(progress);
    let found: Vec<Found> = cells.iter().map(|c| Found::new(*c, outcome)).collect();
    outcome.add("cells", found.iter().map(Found::json).collect::<Vec<_>>());
    outcome.note("thousands of accesses a second; they go on for half as long before they count");
    if let Some(file) = &args.table.plot {
        save_chart(file, &draw(args, &found))?;
    }
    Ok(table(args, &found))
}

/// A panel for every region and number of threads, a row for every skew.
fn draw(args: &SwapRand, found: &[Found]) -> String {
    let mut bars = Bars::default();
    for panel in found.chunks(args.table.thetas.len().max(1)) {
        let Cell { ratio, threads, .. } = panel[0].cell;
        let threads = threads_in_words(threads);
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

fn work(args: &SwapRand, c: Cell, counts: &str, engine: &Engine) -> Work {
    let seconds = args.seconds().unwrap_or_default();
    let phase = |name: &str, seconds: f64| Phase {
        every_s: seconds,
        ..Phase::of_one(
            name,
            Some(seconds),
            args.doing(Pattern::zipf(c.theta)),
            c.threads,
        )
    };
    Work {
        region: c.region(args.span.memory),
        threads: c.threads,
        rounds: 1,
        phases: vec![phase(SETTLING, seconds / 2.0), phase(counts, seconds)],
        verify_one_in: engine.verify_one_in(),
        ..Work::default()
    }
}

/// A run without its phases and counters, since there are hundreds of runs.
fn described(c: Cell, counts: &str, mut run: Run) -> Run {
    let phase = run.phase(counts);
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

/// The label of an engine, and its figure if there is one.
type Figure = (String, Option<f64>);

/// The figures of a cell.
struct Found {
    cell: Cell,
    /// Accesses a second by engine: the medians of the pairs.
    speeds: Vec<Figure>,
    /// hugeswap's over each other engine's: the medians of the pairs' ratios.
    ratios: Vec<Figure>,
}

impl Found {
    fn new(cell: Cell, outcome: &Outcome) -> Found {
        let Cell {
            theta,
            ratio,
            threads,
        } = cell;
        // By pair: a run may be missing.
        let speeds = |label: &str| -> BTreeMap<u64, f64> {
            let is = |r: &&Run| {
                r.label() == label
                    && (&r.params["theta"], &r.params["ratio"]) == (&theta.into(), &ratio.into())
                    && r.params["threads"] == threads
            };
            let runs = outcome.runs.iter().filter(is);
            runs.filter_map(|r| Some((r.params["pair"].as_u64()?, r.number("accesses_s")?)))
                .collect()
        };
        let median_of = |values: Vec<f64>| (!values.is_empty()).then(|| median(&values));
        let middle = |of: &BTreeMap<u64, f64>| median_of(of.values().copied().collect());
        let ours = speeds("hugeswap");
        let mut found = Found {
            cell,
            speeds: vec![("hugeswap".into(), middle(&ours))],
            ratios: Vec::new(),
        };
        for (rival, _) in outcome.rivals() {
            let theirs = speeds(&rival);
            let ratio = |(pair, a): (&u64, &f64)| Some(a / theirs.get(pair)?);
            let ratios = ours.iter().filter_map(ratio).collect();
            found.speeds.push((rival.clone(), middle(&theirs)));
            found.ratios.push((rival, median_of(ratios)));
        }
        found
    }

    fn json(&self) -> Value {
        let map = |values: &[Figure], digits| -> Map<String, Value> {
            let entry = |(name, v): &Figure| (name.clone(), v.map(|v| rounded(v, digits)).into());
            values.iter().map(entry).collect()
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
    let thetas: Vec<String> = args
        .table
        .thetas
        .iter()
        .map(|t| format!("zipf {t}"))
        .collect();
    let part = |first: &str, of: fn(&Found) -> &[Figure], unit: f64, digits| {
        let fixed = [first, "threads", "region"].into_iter();
        let headings: Vec<&str> = fixed.chain(thetas.iter().map(String::as_str)).collect();
        let mut table = Table::new(&headings);
        for row in found.chunks(thetas.len().max(1)) {
            let Cell { threads, ratio, .. } = row[0].cell;
            for (n, (name, _)) in of(&row[0]).iter().enumerate() {
                let place = [name.clone(), threads.to_string(), format!("{ratio}x")];
                let value = |f: &Found| of(f).get(n).and_then(|v| v.1).map(|v| v / unit);
                let values = row.iter().map(|f| cell(value(f), digits));
                table.row(place.into_iter().chain(values).collect());
            }
        }
        table
    };
    let ratios = part("hugeswap over", |f| &f.ratios, 1.0, 2);
    part("1000/s", |f| &f.speeds, 1000.0, 1).below(ratios)
}
