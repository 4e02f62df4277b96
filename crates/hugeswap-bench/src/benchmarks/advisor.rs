//! `advisor`: what one run says of other budgets, against runs with those budgets.
//!
//! Compared are pages that came back from swap for each access, so that runs need not do the same
//! number of accesses.

use crate::engines::hugeswap::{Hugeswap, warm_up};
use crate::error::{within, wrong};
use crate::generate::pattern::Pattern;
use crate::generate::plan::{Doing, Phase, Work};
use crate::generate::steps::{self, Sizes};
use crate::options::{Common, check_memory, check_theta, check_work, size};
use crate::output::{Benchmark, Outcome, Progress, Run, Table, cell, rounded};
use anyhow::{Context, Result};
use clap::ValueEnum;
use hugeswap_engine::pool::{MIN_MEMORY, Pool};
use hugeswap_policy::PAGE_BYTES;
use hugeswap_policy::advisor::curve::Curve;
use hugeswap_policy::advisor::{Tally, WORDS};

/// In the first phase memory settles; the second is measured.
const PHASES: [&str; 2] = ["settling", "measured"];

// Arguments of `hugeswap bench advisor`.
#[derive(clap::Args)]
#[command(after_help = "\
EXAMPLES:
  hugeswap bench advisor
  hugeswap bench advisor --parts zipf --theta 0.9 --budgets 0.5,1.5 --swap /mnt/fast --json

Each part runs once with --memory. What the advisor says then of other budgets is compared with what comes back from swap in
runs with those budgets. Both are counted over the second of two equal phases; the first is there for memory to settle.
Parts:
  zipf        reads of 4 KiB at random by Zipf's law, hot pages spread over the region
  loop        the region is read from start to end again and again
  workingset  the thrashing program of `bench workingset`, with memory of 280M")]
pub struct Advisor {
    /// What the program uses
    #[arg(long, value_name = "SIZE", default_value = "400M", value_parser = size)]
    region: u64,
    /// The budget from which others are estimated
    #[arg(long, value_name = "SIZE", default_value = "200M", value_parser = size)]
    memory: u64,
    /// Budgets that are tried, as multiples of --memory
    #[arg(
        long,
        value_name = "N,N",
        value_delimiter = ',',
        default_values_t = [0.5, 0.75, 1.25, 1.5, 1.75]
    )]
    budgets: Vec<f64>,
    /// What is run, in this order
    #[arg(
        long,
        value_name = "PARTS",
        value_enum,
        value_delimiter = ',',
        default_values = ["zipf", "loop", "workingset"]
    )]
    parts: Vec<Part>,
    /// Skews of zipf (0.1 to 1.3)
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_values_t = [0.7, 0.9, 1.1])]
    theta: Vec<f64>,
    /// Reads at random in each phase; of a skew above 1, which settles slowly, four times as many
    #[arg(long, value_name = "N", default_value_t = 5_000_000)]
    accesses: u64,
    /// How long a phase of the loop lasts
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    seconds: f64,
    #[command(flatten)]
    common: Common,
}

/// A part of `advisor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Random reads by Zipf's law
    Zipf,
    /// Reads from start to end again and again
    Loop,
    /// Cold memory going round, and a hot set
    Workingset,
}

impl Benchmark for Advisor {
    const NAME: &'static str = "advisor";

    fn check(&self) -> Result<()> {
        self.common.check()?;
        check_work(self.region, 1, 1, 1)?;
        check_theta("--theta", self.theta.iter().copied())?;
        within("--budgets", self.budgets.iter().copied(), 0.1..=10.0)?;
        if self.accesses < 1000 {
            return wrong("--accesses must be at least 1000");
        }
        within("--seconds", [self.seconds], 0.1..=3600.0)?;
        if self.region <= self.memory {
            return wrong("--region must be larger than --memory, or nothing is swapped");
        }
        let least = self.budgets.iter().copied().fold(1.0, f64::min);
        if (self.memory as f64 * least) < MIN_MEMORY as f64 {
            return wrong("--memory is too small for the smallest of --budgets: 16M at least");
        }
        let most = self.budgets.iter().copied().fold(1.0, f64::max);
        check_memory((self.memory as f64 * most) as u64)
    }

    fn measure(&self, outcome: &mut Outcome) -> Result<Table> {
        let programs = self.programs();
        let pairs = self.common.pairs.unwrap_or(1);
        let each = programs.len() * (1 + self.budgets.len());
        let mut progress = Progress::new(pairs as usize * each);
        for pair in 1..=pairs {
            for program in &programs {
                let (now, counted) = self.run(program, 1.0, &mut progress)?;
                let curve = counted.curve(program.memory);
                outcome.runs.push(now.with("pair", pair));
                for &budget in &self.budgets {
                    let (run, real) = self.run(program, budget, &mut progress)?;
                    let share = curve.as_ref().and_then(|c| c.at(budget));
                    let estimate = share.map(|share| share * counted.missed);
                    let error = estimate.map(|e| rounded((e / real.missed - 1.0) * 100.0, 1));
                    let estimate = estimate.map(|e| rounded(e, 6));
                    outcome.runs.push(
                        run.with("pair", pair)
                            .with("estimated_pages_in_per_access", estimate)
                            .with("error_percent", error.filter(|e| e.is_finite())),
                    );
                }
            }
        }
        drop(progress);
        let errors = outcome
            .runs
            .iter()
            .filter_map(|r| r.number("error_percent"));
        if let Some(worst) = errors.map(f64::abs).reduce(f64::max) {
            outcome.note(format!("the largest error of an estimate is {worst:.1}%"));
        }
        Ok(table(&outcome.runs))
    }
}

/// A program that is run with several budgets.
struct Program {
    name: String,
    /// The budget from which others are estimated.
    memory: u64,
    work: Work,
}

/// What was counted in the second phase of a run.
struct Counted {
    words: [u64; WORDS],
    pages_in: u64,
    /// Pages in for each access.
    missed: f64,
}

impl Counted {
    fn curve(&self, memory: u64) -> Option<Curve> {
        Curve::new(&Tally::new(&self.words), self.pages_in, memory / PAGE_BYTES)
    }
}

impl Advisor {
    fn programs(&self) -> Vec<Program> {
        let program = |name: String, doing, seconds| Program {
            name,
            memory: self.memory,
            work: Work {
                region: self.region,
                rounds: 1,
                phases: PHASES
                    .map(|name| Phase::of_one(name, seconds, doing, 1))
                    .into(),
                verify_one_in: 8,
                ..Work::default()
            },
        };
        let zipf = |&theta| {
            let longer = if theta > 1.0 { 4 } else { 1 };
            let (pattern, write) = (Pattern::zipf(theta), false);
            let accesses = Some(self.accesses * longer);
            let doing = Doing::Random {
                pattern,
                write,
                accesses,
            };
            program(format!("zipf {theta}"), doing, None)
        };
        let stream = Doing::Stream { write: false };
        let programs = |part: &Part| match part {
            Part::Zipf => self.theta.iter().map(zipf).collect(),
            Part::Loop => vec![program("loop".into(), stream, Some(self.seconds))],
            Part::Workingset => vec![workingset()],
        };
        self.parts.iter().flat_map(programs).collect()
    }

    fn run(
        &self,
        program: &Program,
        budget: f64,
        progress: &mut Progress,
    ) -> Result<(Run, Counted)> {
        let memory = (program.memory as f64 * budget) as u64;
        progress.begin(format!("{}, {budget} times the memory", program.name));
        warm_up(memory, self.common.limit())?;
        let hugeswap = Hugeswap::new(memory, &self.common.swap, &self.common);
        let mut tallies: Vec<[u64; WORDS]> = Vec::new();
        let run = hugeswap.run_watched(&program.work, |line, pool: Option<&Pool>| {
            progress.figure(line);
            tallies.extend(pool.map(Pool::advisor_tally));
        })?;
        progress.end();
        // The last figures are those of the two phases, of the whole work, and of the verification.
        let [.., before, after, _, _] = &tallies[..] else {
            anyhow::bail!("hugeswap: the counters of the run's pool could not be read");
        };
        let phase = run.phase(PHASES[1]).context("the worker played no phase")?;
        let pages_in = run
            .counted(PHASES[1], "pswpin")
            .context("nothing was counted")?;
        let accesses: u64 = phase.groups.iter().map(|g| g.accesses).sum();
        let missed = pages_in / accesses.max(1) as f64;
        let counted = Counted {
            words: std::array::from_fn(|i| after[i].saturating_sub(before[i])),
            pages_in: pages_in as u64,
            missed,
        };
        let run = run
            .with("program", program.name.as_str())
            .with("budget", budget)
            .with("pages_in_per_access", rounded(missed, 6));
        Ok((run, counted))
    }
}

/// The thrashing program of `bench workingset`.
fn workingset() -> Program {
    let pages = |mib: usize| mib << 8;
    let (cold, hot, reads) = (pages(512), pages(96), pages(128));
    let sizes = Sizes {
        cold,
        hot,
        reads,
        write: true,
    };
    let set_up = steps::Program::Cold(sizes);
    let parts = [
        ("set-up", set_up),
        (PHASES[0], steps::Program::Thrash(sizes, 8)),
        (PHASES[1], steps::Program::Thrash(sizes, 20)),
    ];
    let phases = parts.map(|(name, p)| Phase::of_one(name, None, Doing::Program(p), 1));
    Program {
        name: "workingset".into(),
        memory: 280 << 20,
        work: Work {
            region: set_up.pages() as u64 * PAGE_BYTES,
            phases: phases.into(),
            verify_one_in: 8,
            ..Work::default()
        },
    }
}

fn table(runs: &[Run]) -> Table {
    let thousand = |r: &Run, name: &str| cell(r.number(name).map(|n| n * 1000.0), 2);
    let mib = |r: &Run| cell(r.number("memory_bytes").map(|b| b / f64::from(1 << 20)), 0);
    Table::of(
        runs,
        &[
            ("program", &|r| r.cell("program")),
            ("pair", &|r| r.cell("pair")),
            ("budget", &|r| cell(r.number("budget"), 2)),
            ("MiB", &|r| mib(r)),
            ("pages in per 1000: estimated", &|r| {
                thousand(r, "estimated_pages_in_per_access")
            }),
            ("real", &|r| thousand(r, "pages_in_per_access")),
            ("error %", &|r| cell(r.number("error_percent"), 1)),
        ],
    )
}
