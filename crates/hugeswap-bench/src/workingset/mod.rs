//! `workingset`: is what is in use kept, and recognised when it was not? Two programs of which that is known, and traces on which
//! the reclaim lists are compared with LRU and with the best there is.
//!
//! What counts is pages, which are counted exactly: each program has one thread, and waits for nothing but its memory.

pub mod program;
mod traces;

use super::args::{WorkingSet, WorkingSetPart};
use super::bars::Bars;
use super::figures::PhaseRun;
use super::output::{self, Outcome, Progress, Table, cell, rounded};
use super::phases::{Doing, Group, Part, Phase};
use super::runner::{Run, median};
use super::swap_rand::verify_one_in;
use super::turns::{Engine, Turns};
use super::worker::Work;
use anyhow::{Context, Result};
use hugeswap_policy::PAGE_BYTES;
use program::Program;

/// The phases: what comes before, and what counts.
const SET_UP: &str = "set-up";
const MEASURED: &str = "measured";

/// Runs it.
pub fn run(args: &WorkingSet) -> Result<()> {
    args.check()?;
    output::measured("workingset", args.common.json, |outcome| {
        measure(args, outcome)
    })
}

fn measure(args: &WorkingSet, outcome: &mut Outcome) -> Result<Table> {
    let parts = || args.parts.iter().copied();
    if parts().any(|p| args.programs(p).is_some()) {
        run_programs(args, outcome)?;
    }
    let mut bars = Bars::default();
    let mut table = programs_table(&outcome.runs);
    if parts().any(|p| p == WorkingSetPart::Thrash) {
        draw_programs(outcome, &mut bars);
    }
    if parts().any(|p| p == WorkingSetPart::Traces) {
        let compared = traces::compare(args.units);
        traces::draw(&compared, &mut bars);
        let below = traces::table(&compared);
        outcome
            .more
            .insert("traces".into(), serde_json::to_value(&compared)?);
        outcome.ratio("list_work_ns_a_fault", traces::ns_a_fault());
        table = if outcome.runs.is_empty() {
            below
        } else {
            table.below(below)
        };
    }
    if let Some(file) = &args.plot {
        std::fs::write(file, bars.draw())
            .with_context(|| format!("--plot {} cannot be written", file.display()))?;
    }
    Ok(table)
}

fn run_programs(args: &WorkingSet, outcome: &mut Outcome) -> Result<()> {
    let (span, against) = (args.span(), args.against());
    let device = (against.device(&args.common, false)?, 0);
    let mut turns = Turns::set_up(&span, &against, &args.common, device, outcome)?;
    let engines = turns.engines();
    let programs: Vec<_> = args
        .parts
        .iter()
        .filter_map(|&part| Some((part, args.programs(part)?)))
        .collect();
    let runs = u64::from(turns.pairs()) * (engines.len() * programs.len()) as u64;
    let mut progress = Progress::new(runs);
    for pair in 1..=turns.pairs() {
        for (part, programs) in &programs {
            for engine in &engines {
                let what = format!(", {}", part.name());
                let work = work(*programs, engine);
                let run = turns.run(engine, &work, (pair, &what), &mut progress)?;
                outcome.runs.push(told(args, *part, programs[1], run));
            }
        }
    }
    turns.close(&mut progress)?;
    drop(progress);
    compare(outcome);
    Ok(())
}

fn work(programs: [Program; 2], engine: &Engine) -> Work {
    let phase = |(name, program): (&str, Program)| Phase {
        name: name.into(),
        seconds: None,
        every_s: 1.0,
        groups: vec![Group {
            doing: Doing::Program(program),
            threads: 1,
            part: Part::All,
        }],
    };
    Work {
        region: programs[1].pages() as u64 * PAGE_BYTES,
        tasks: 1,
        threads: 1,
        phases: [SET_UP, MEASURED]
            .into_iter()
            .zip(programs)
            .map(phase)
            .collect(),
        verify_one_in: verify_one_in(engine),
        ..Work::default()
    }
}

/// With the page counts at the top, where they are looked for.
fn told(args: &WorkingSet, part: WorkingSetPart, program: Program, mut run: Run) -> Run {
    run = run.with("part", part.name());
    for (phase, prefix) in [(SET_UP, "set_up_"), (MEASURED, "")] {
        let found = run.phase(phase);
        let pages = |name| found.and_then(|p| counted(p, name));
        let (seconds, pages_in, pages_out) =
            (found.map(|p| p.seconds), pages("pswpin"), pages("pswpout"));
        run = run
            .with(&format!("{prefix}pages_in"), pages_in)
            .with(&format!("{prefix}pages_out"), pages_out)
            .with(&format!("{prefix}seconds"), seconds);
    }
    let pages_in = pages_in(&run);
    let share = |all: u64| pages_in.map(|n| rounded(n / all as f64, 5));
    match program {
        Program::Stream { hot, .. } => {
            let back = share(hot as u64);
            run.with("hot_pages", hot).with("hot_back_share", back)
        }
        _ => {
            let floor = args.floor_pages();
            run.with("floor_pages", floor)
                .with("share_of_floor", share(floor))
        }
    }
}

fn counted(phase: &PhaseRun, name: &str) -> Option<u64> {
    phase.counters.as_ref()?.get(name).copied()
}

fn pages_in(run: &Run) -> Option<f64> {
    run.params.get("pages_in")?.as_f64()
}

/// Pages in of a run of `thrash`.
fn thrash_in(run: &Run) -> Option<f64> {
    (run.params["part"] == WorkingSetPart::Thrash.name())
        .then(|| pages_in(run))
        .flatten()
}

fn compare(outcome: &mut Outcome) {
    let rivals = outcome.rivals("hugeswap");
    for (rival, name) in &rivals {
        let ratio = format!("thrash_pages_in_vs_{name}");
        outcome.compare(&ratio, "hugeswap", rival, thrash_in);
    }
    // Every setting with refault distances looked at, and not.
    for (off, _) in &rivals {
        let Some(on) = off
            .strip_suffix(",workingset.detection=off")
            .or_else(|| off.strip_suffix(", workingset.detection=off"))
        else {
            continue;
        };
        let pages = match on.split_once(", ") {
            Some((_, also)) => format!("_{}", also.replace(['.', '=', ','], "_")),
            None => String::new(),
        };
        let ratio = format!("thrash_pages_in_without_detection{pages}");
        outcome.compare(&ratio, off, on, thrash_in);
    }
}

fn draw_programs(outcome: &Outcome, bars: &mut Bars) {
    let mut labels = vec!["hugeswap".to_owned()];
    labels.extend(outcome.rivals("hugeswap").into_iter().map(|(l, _)| l));
    bars.panel("thrash: pages", &["in", "out"], |v| format!("{v:.0}"));
    for label in labels {
        let figures = |name: &str| {
            let found = outcome.figures(&label, |r| {
                thrash_in(r)?;
                r.params.get(name)?.as_f64()
            });
            (!found.is_empty()).then(|| median(&found))
        };
        bars.row(&label, &[figures("pages_in"), figures("pages_out")]);
    }
}

fn programs_table(runs: &[Run]) -> Table {
    let mut t = Table::new(&[
        "engine",
        "part",
        "pair",
        "pages in",
        "out",
        "hot back %",
        "% of floor",
        "seconds",
        "set-up: in",
        "out",
        "verified %",
    ]);
    for r in runs {
        let number = |name: &str| r.params.get(name).and_then(serde_json::Value::as_f64);
        let percent = |name: &str| cell(number(name).map(|s| s * 100.0), 2);
        t.row(vec![
            r.label(),
            r.params["part"].as_str().unwrap_or("-").to_owned(),
            r.params["pair"].to_string(),
            cell(number("pages_in"), 0),
            cell(number("pages_out"), 0),
            percent("hot_back_share"),
            percent("share_of_floor"),
            cell(number("seconds"), 2),
            cell(number("set_up_pages_in"), 0),
            cell(number("set_up_pages_out"), 0),
            cell(Some(r.verified_share * 100.0), 1),
        ]);
    }
    t
}
