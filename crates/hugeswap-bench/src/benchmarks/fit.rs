//! `fit`: everything fits in the budget. What does hugeswap cost against plain memory?
//!
//! The same program runs under hugeswap, plain with huge pages and plain with base pages, in turn. The
//! order changes from pair to pair, and before each run as much memory is touched and freed: the host
//! of a virtual machine takes its time for memory that was not used lately.

use crate::engines::hugeswap::{Hugeswap, plain, warm_up};
use crate::error::wrong;
use crate::generate::plan::{Thp, Work};
use crate::options::{Common, check_memory, check_work, size};
use crate::output::{Benchmark, Outcome, Progress, Run, Table, cell, percent};
use anyhow::Result;
use hugeswap_policy::UNIT_BYTES;

// Arguments of `hugeswap bench fit`.
#[derive(clap::Args)]
#[command(after_help = "\
EXAMPLE:
  hugeswap bench fit --region 1G --pairs 6

The same program runs under hugeswap, plain with huge pages and plain without, in turn, forwards and
backwards. In a virtual machine the first touch of memory that was not used lately can take ten times as long,
so before each run as much memory is touched and freed.")]
pub struct Fit {
    /// What the tasks write, together
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size)]
    region: u64,
    /// hugeswap's budget [default: 1.3 times the region]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: Option<u64>,
    /// Processes, each with its share of the region
    #[arg(long, value_name = "N", default_value_t = 1)]
    tasks: u32,
    /// Threads of each process
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: u32,
    /// Times the region is written
    #[arg(long, value_name = "N", default_value_t = 10)]
    rounds: u32,
    /// Random reads of 8 bytes, all tasks together
    #[arg(long, value_name = "N", default_value_t = 20_000_000)]
    reads: u64,
    #[command(flatten)]
    common: Common,
}

impl Benchmark for Fit {
    const NAME: &'static str = "fit";

    fn check(&self) -> Result<()> {
        self.common.check()?;
        check_work(self.region, self.tasks, self.threads, self.rounds)?;
        if self.budget() < self.region {
            return wrong(
                "--memory is less than --region: fit is about everything fitting; use swap-seq",
            );
        }
        check_memory(self.budget())
    }

    fn measure(&self, outcome: &mut Outcome) -> Result<Table> {
        let pairs = self.common.pairs.unwrap_or(4);
        let (budget, limit) = (self.budget(), self.common.limit());
        let mut progress = Progress::new(pairs as usize * 3);
        let work = |thp| Work {
            region: self.region,
            tasks: self.tasks,
            threads: self.threads,
            rounds: self.rounds,
            random_reads: self.reads,
            verify_one_in: 1,
            thp,
            ..Work::default()
        };
        let hugeswap = Hugeswap::new(budget, &self.common.swap, &self.common);
        let mut engines = [None, Some((Thp::On, "on")), Some((Thp::Off, "off"))];
        for pair in 1..=pairs {
            for engine in engines {
                progress.begin("touching memory");
                warm_up(budget, limit)?;
                let run = if let Some((thp, name)) = engine {
                    progress.begin(format!("plain, huge pages {name}, {pair} of {pairs}"));
                    plain(&work(thp), limit, |l| progress.figure(l))?.with("thp", name)
                } else {
                    progress.begin(format!("hugeswap {pair} of {pairs}"));
                    hugeswap.run(&work(Thp::Unadvised), |l| progress.figure(l))?
                };
                outcome.runs.push(run.with("pair", pair));
                progress.end();
            }
            engines.reverse();
        }
        drop(progress);
        compare(outcome);
        outcome.note("work is from the first write to the last random read; steady is work without the first write; program is from its start to its end, with verification");
        Ok(table(&outcome.runs))
    }
}

impl Fit {
    /// The budget: given, or 1.3 times the region, in whole units.
    fn budget(&self) -> u64 {
        let default = (self.region / 10 * 13).next_multiple_of(UNIT_BYTES);
        self.memory.unwrap_or(default)
    }
}

/// hugeswap's time over plain's, pair by pair: below 1 hugeswap is faster.
fn compare(outcome: &mut Outcome) {
    for (rival, name) in outcome.rivals() {
        let mut over = |what: &str, f: fn(&Run) -> Option<f64>| {
            outcome.compare(&format!("{what}_time_vs_{name}"), "hugeswap", &rival, f);
        };
        over("work", |r| r.work_s);
        over("program", |r| Some(r.elapsed_s));
        over("steady", steady_s);
        over("rewrite", |r| Some(1.0 / r.steady()));
        over("random_read", |r| r.us_per_access);
    }
}

/// The work without the first write, whose time is mostly the host's in a virtual machine.
fn steady_s(run: &Run) -> Option<f64> {
    let first = run.number("region_bytes")? / 1e6 / run.mb_s.first()?;
    Some(run.work_s? - first)
}

fn table(runs: &[Run]) -> Table {
    Table::of(
        runs,
        &[
            ("engine", &|r| r.label()),
            ("pair", &|r| r.cell("pair")),
            ("first write MB/s", &|r| cell(r.mb_s.first().copied(), 0)),
            ("rewrites MB/s", &|r| cell(r.steady(), 0)),
            ("random read us", &|r| cell(r.us_per_access, 3)),
            ("huge %", &|r| percent(r.huge_share, 1)),
            ("work s", &|r| cell(r.work_s, 3)),
            ("program s", &|r| cell(r.elapsed_s, 3)),
        ],
    )
}
