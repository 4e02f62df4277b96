//! `workingset`: is memory in use kept, and recognised when it was not? Two programs whose working set is
//! known, and traces on which the reclaim lists are compared with LRU and with the best algorithm.
//!
//! The figures are page counts, which are exact: each program has one thread, and waits for nothing but
//! its memory.

mod args;
mod traces;

pub use args::WorkingSet;

use crate::engines::turns::{Engine, Turns};
use crate::generate::plan::{Doing, Phase, Work};
use crate::generate::steps::Program;
use crate::options::Named;
use crate::output::{
    Bars, Benchmark, Outcome, Run, Table, cell, median, percent, rounded, save_chart,
};
use anyhow::Result;
use args::Part;
use hugeswap_policy::PAGE_BYTES;

/// The phase before the one that counts.
const SET_UP: &str = "set-up";
/// The phase that counts.
const MEASURED: &str = "measured";

impl Benchmark for WorkingSet {
    const NAME: &'static str = "workingset";

    fn check(&self) -> Result<()> {
        WorkingSet::check(self)
    }

    fn measure(&self, outcome: &mut Outcome) -> Result<Table> {
        let programs = self
            .parts
            .iter()
            .filter_map(|&part| Some((part, self.programs(part)?)));
        let programs: Vec<_> = programs.collect();
        if !programs.is_empty() {
            run_programs(self, &programs, outcome)?;
        }
        let mut bars = Bars::default();
        let mut table = table(&outcome.runs);
        if self.parts.contains(&Part::Thrash) {
            draw_programs(outcome, &mut bars);
        }
        if self.parts.contains(&Part::Traces) {
            let compared = traces::compare(self.units);
            traces::draw(&compared, &mut bars);
            let below = traces::table(&compared);
            outcome.add("traces", serde_json::to_value(&compared)?);
            outcome.ratio("list_work_ns_a_fault", traces::ns_a_fault());
            table = match programs.is_empty() {
                true => below,
                false => table.below(below),
            };
        }
        if let Some(file) = &self.plot {
            save_chart(file, &bars.draw())?;
        }
        Ok(table)
    }
}

fn run_programs(
    args: &WorkingSet,
    programs: &[(Part, [Program; 2])],
    outcome: &mut Outcome,
) -> Result<()> {
    let (span, against) = (args.span(), args.against());
    let device = (against.device(&args.common, false)?, 0);
    let turns = Turns::set_up(&span, &against, &args.common, device, outcome)?;
    let engines = turns.engines();
    turns.take(
        (&engines, programs),
        outcome,
        |(part, _)| format!(", {}", part.name()),
        |(_, programs), engine| work(*programs, engine),
        |(part, programs), _, run| Ok(described(args, *part, programs[1], run)),
    )?;
    compare(outcome);
    Ok(())
}

fn work(programs: [Program; 2], engine: &Engine) -> Work {
    let [set_up, measured] = programs;
    let phase = |name, program| Phase::of_one(name, None, Doing::Program(program), 1);
    Work {
        region: measured.pages() as u64 * PAGE_BYTES,
        phases: vec![phase(SET_UP, set_up), phase(MEASURED, measured)],
        verify_one_in: engine.verify_one_in(),
        ..Work::default()
    }
}

/// A run with its page counts at the top of the JSON.
fn described(args: &WorkingSet, part: Part, program: Program, mut run: Run) -> Run {
    run = run.with("part", part.name());
    for (phase, prefix) in [(SET_UP, "set_up_"), (MEASURED, "")] {
        let found = run.phase(phase);
        let pages = |name| found.and_then(|p| p.counters.as_ref()?.get(name).copied());
        let (pages_in, pages_out) = (pages("pswpin"), pages("pswpout"));
        let seconds = found.map(|p| p.seconds);
        run = run
            .with(&format!("{prefix}pages_in"), pages_in)
            .with(&format!("{prefix}pages_out"), pages_out)
            .with(&format!("{prefix}seconds"), seconds);
    }
    let pages_in = run.number("pages_in");
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

/// Pages in of a run of `thrash`.
fn thrash_in(run: &Run) -> Option<f64> {
    run.number("pages_in")
        .filter(|_| run.params["part"] == "thrash")
}

fn compare(outcome: &mut Outcome) {
    let rivals = outcome.rivals();
    for (rival, name) in &rivals {
        let ratio = format!("thrash_pages_in_vs_{name}");
        outcome.compare(&ratio, "hugeswap", rival, thrash_in);
    }
    // Every setting with detection of refaults, and without.
    for (off, _) in &rivals {
        let on = off.strip_suffix("workingset.detection=off");
        let Some(on) = on.map(|on| on.trim_end_matches([',', ' '])) else {
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
    labels.extend(outcome.rivals().into_iter().map(|(l, _)| l));
    bars.panel("thrash: pages", &["in", "out"], |v| format!("{v:.0}"));
    for label in labels {
        let figures = |name: &str| {
            let found = outcome.figures(&label, |r| {
                thrash_in(r)?;
                r.number(name)
            });
            (!found.is_empty()).then(|| median(&found))
        };
        bars.row(&label, &[figures("pages_in"), figures("pages_out")]);
    }
}

fn table(runs: &[Run]) -> Table {
    Table::of(
        runs,
        &[
            ("engine", &|r| r.label()),
            ("part", &|r| r.cell("part")),
            ("pair", &|r| r.cell("pair")),
            ("pages in", &|r| r.cell("pages_in")),
            ("out", &|r| r.cell("pages_out")),
            ("hot back %", &|r| percent(r.number("hot_back_share"), 2)),
            ("% of floor", &|r| percent(r.number("share_of_floor"), 2)),
            ("seconds", &|r| cell(r.number("seconds"), 2)),
            ("set-up: in", &|r| r.cell("set_up_pages_in")),
            ("out", &|r| r.cell("set_up_pages_out")),
            ("verified %", &|r| percent(r.verified_share, 1)),
        ],
    )
}
