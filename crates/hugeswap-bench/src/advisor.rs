//! `advisor`: what one run says of other budgets, against runs with those budgets.
//!
//! What is compared are pages that came back from swap for each access, so that runs need not do the same number.

use super::args::{Advisor, AdvisorPart};
use super::output::{self, Outcome, Progress, Table, cell, rounded};
use super::pattern::Pattern;
use super::phases::{Doing, Group, Part, Phase};
use super::runner::{self, Hugeswap, Run};
use super::worker::Work;
use super::workingset::program;
use anyhow::{Context, Result};
use hugeswap_engine::pool::Pool;
use hugeswap_policy::PAGE_BYTES;
use hugeswap_policy::advisor::curve::Curve;
use hugeswap_policy::advisor::{Tally, WORDS};

/// Memory settles, then it is measured.
const PHASES: [&str; 2] = ["settling", "measured"];

/// Runs it.
pub fn run(args: &Advisor) -> Result<()> {
    args.check()?;
    output::measured("advisor", args.common.json, |outcome| {
        measure(args, outcome)
    })
}

/// One thing to run.
struct Program {
    name: String,
    /// The budget from which others are estimated.
    memory: u64,
    work: Work,
}

fn measure(args: &Advisor, outcome: &mut Outcome) -> Result<Table> {
    let programs = programs(args);
    let each = 1 + args.budgets.len();
    let pairs = args.common.pairs.unwrap_or(1);
    let mut progress = Progress::new(u64::from(pairs) * (programs.len() * each) as u64);
    for pair in 1..=pairs {
        for program in &programs {
            let (now, told) = one(args, program, 1.0, &mut progress)?;
            let curve = told.curve(program.memory);
            outcome.runs.push(now.with("pair", pair));
            for &budget in &args.budgets {
                let (run, real) = one(args, program, budget, &mut progress)?;
                let said = curve.as_ref().and_then(|c| c.at(budget));
                let said = said.map(|share| share * told.missed);
                let error = said.map(|s| rounded((s / real.missed - 1.0) * 100.0, 1));
                outcome.runs.push(
                    run.with("pair", pair)
                        .with("estimated_pages_in_per_access", said.map(|s| rounded(s, 6)))
                        .with("error_percent", error.filter(|e| e.is_finite())),
                );
            }
        }
    }
    drop(progress);
    let errors = outcome.runs.iter();
    let errors = errors.filter_map(|r| r.params.get("error_percent")?.as_f64());
    if let Some(worst) = errors.map(f64::abs).reduce(f64::max) {
        let notes = &mut outcome.notes;
        notes.push(format!("the estimate furthest off is so by {worst:.1}%"));
    }
    Ok(table(&outcome.runs))
}

fn programs(args: &Advisor) -> Vec<Program> {
    let program = |name: String, doing, seconds| {
        let phase = |name: &str| Phase {
            name: name.into(),
            seconds,
            every_s: 1.0,
            groups: vec![Group {
                doing,
                threads: 1,
                part: Part::All,
            }],
        };
        Program {
            name,
            memory: args.memory,
            work: Work {
                region: args.region,
                tasks: 1,
                threads: 1,
                rounds: 1,
                phases: PHASES.map(phase).into(),
                verify_one_in: 8,
                ..Work::default()
            },
        }
    };
    let mut programs = Vec::new();
    for part in &args.parts {
        match part {
            AdvisorPart::Zipf => programs.extend(args.theta.iter().map(|&theta| {
                let longer = if theta > 1.0 { 4 } else { 1 };
                let doing = Doing::Random {
                    pattern: Pattern::Zipf {
                        theta,
                        clustered: false,
                    },
                    write: false,
                    accesses: Some(args.accesses * longer),
                };
                program(format!("zipf {theta}"), doing, None)
            })),
            AdvisorPart::Loop => programs.push(program(
                "loop".into(),
                Doing::Stream { write: false },
                Some(args.seconds),
            )),
            AdvisorPart::Workingset => programs.push(workingset()),
        }
    }
    programs
}

/// The thrashing program of `bench workingset`.
fn workingset() -> Program {
    const fn pages(mib: usize) -> usize {
        mib << 8
    }
    let (cold, hot, reads, write) = (pages(512), pages(96), pages(128), true);
    let thrash = |repeats| program::Program::Thrash {
        cold,
        hot,
        reads,
        repeats,
        write,
    };
    let set_up = program::Program::Cold {
        cold,
        hot,
        reads,
        write,
    };
    let parts = [
        ("set-up", set_up),
        (PHASES[0], thrash(8)),
        (PHASES[1], thrash(20)),
    ];
    let phase = |(name, part): (&str, program::Program)| Phase {
        name: name.into(),
        seconds: None,
        every_s: 1.0,
        groups: vec![Group {
            doing: Doing::Program(part),
            threads: 1,
            part: Part::All,
        }],
    };
    Program {
        name: "workingset".into(),
        memory: 280 << 20,
        work: Work {
            region: set_up.pages() as u64 * PAGE_BYTES,
            tasks: 1,
            threads: 1,
            phases: parts.map(phase).into(),
            verify_one_in: 8,
            ..Work::default()
        },
    }
}

/// What a run told of its second phase.
struct Told {
    words: [u64; WORDS],
    pages_in: u64,
    /// Pages in for each access.
    missed: f64,
}

impl Told {
    fn curve(&self, memory: u64) -> Option<Curve> {
        Curve::new(&Tally::new(&self.words), self.pages_in, memory / PAGE_BYTES)
    }
}

fn one(
    args: &Advisor,
    program: &Program,
    budget: f64,
    progress: &mut Progress,
) -> Result<(Run, Told)> {
    let memory = (program.memory as f64 * budget) as u64;
    progress.begin(format!("{}, {budget} times the memory", program.name));
    runner::warm_up(memory, args.common.limit())?;
    let hugeswap = Hugeswap::new(memory, &args.common.swap, &args.common);
    let mut tallies: Vec<[u64; WORDS]> = Vec::new();
    let run = hugeswap.run_watched(&program.work, |line, pool: Option<&Pool>| {
        progress.figure(line);
        if let Some(pool) = pool {
            tallies.push(pool.advisor_tally());
        }
    })?;
    progress.end();
    // The last figures are of the two phases, the work as a whole, and the verification.
    let [.., before, after, _, _] = &tallies[..] else {
        anyhow::bail!("hugeswap: the run's pool could not be looked at");
    };
    let phase = run.phase(PHASES[1]).context("the worker played no phase")?;
    let counters = phase.counters.as_ref();
    let pages_in = counters.and_then(|c| c.get("pswpin").copied());
    let pages_in = pages_in.context("nothing was counted")?;
    let accesses: u64 = phase.groups.iter().map(|g| g.accesses).sum();
    let missed = pages_in as f64 / accesses.max(1) as f64;
    let told = Told {
        words: std::array::from_fn(|i| after[i].saturating_sub(before[i])),
        pages_in,
        missed,
    };
    let run = run
        .with("program", program.name.as_str())
        .with("budget", budget)
        .with("pages_in_per_access", rounded(missed, 6));
    Ok((run, told))
}

fn table(runs: &[Run]) -> Table {
    let mut t = Table::new(&[
        "program",
        "pair",
        "budget",
        "MiB",
        "pages in per 1000: estimated",
        "real",
        "error %",
    ]);
    for r in runs {
        let number = |name: &str| r.params.get(name).and_then(serde_json::Value::as_f64);
        let thousand = |name: &str| cell(number(name).map(|n| n * 1000.0), 2);
        t.row(vec![
            r.params["program"].as_str().unwrap_or("-").to_owned(),
            r.params["pair"].to_string(),
            cell(number("budget"), 2),
            cell(number("memory_bytes").map(|b| b / f64::from(1 << 20)), 0),
            thousand("estimated_pages_in_per_access"),
            thousand("pages_in_per_access"),
            cell(number("error_percent"), 1),
        ]);
    }
    t
}
