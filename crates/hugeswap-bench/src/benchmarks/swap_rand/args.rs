//! Arguments of `swap-rand`.

use crate::error::{within, writable_chart, wrong};
use crate::generate::pattern::Pattern;
use crate::generate::plan::Doing;
use crate::options::{self, Access, Against, Common, Span, check_memory, check_theta, check_work};
use anyhow::Result;
use clap::ValueEnum;
use hugeswap_policy::UNIT_BYTES;
use std::path::PathBuf;

// Arguments of `hugeswap bench swap-rand`.
#[derive(clap::Args)]
#[command(after_help = format!("\
EXAMPLES:
  hugeswap bench swap-rand --pattern zipf --theta 0.9 --threads 4
  hugeswap bench swap-rand --vs kernel --access write --seconds 20
  hugeswap bench swap-rand --also readahead.max=0
  hugeswap bench swap-rand --table --vs kernel --kernel-thp off
  hugeswap bench swap-rand --table --thetas 0.9 --ratios 2 --threads 1 --pairs 5

The region is filled with data that does not compress (but see --compressible). Each access is to one word at a random place
of a page of 4 KiB: read and verified, or verified and changed. The time of an access is the time of
a thread over the number of its accesses. misses: faults that waited for swap, for each access.

--table: every cell is a run that fills its region (--ratios times --memory) and lets the accesses settle for half of --seconds
before they count; hugeswap runs with workingset.detection=off too, and every engine --pairs times in turn. 56 cells of 2 pairs take about
15 minutes, and with --vs kernel --kernel-thp off half an hour.

{}", options::HELP))]
pub struct SwapRand {
    #[command(flatten)]
    pub span: Span,
    /// How pages are chosen
    #[arg(long, value_name = "PATTERN", value_enum, default_value = "uniform")]
    pub pattern: Choice,
    /// Skew of zipf: page number k in order of heat is chosen in proportion to 1/k^THETA (0.1 to 1.3)
    #[arg(long, value_name = "THETA", default_value_t = 0.9)]
    theta: f64,
    /// Hot pages lie side by side (zipf); else they are spread over the region
    #[arg(long)]
    clustered: bool,
    /// What is done to a page
    #[arg(long, value_name = "WHAT", value_enum, default_value = "read")]
    pub access: Access,
    /// Processes, each with its share of the region
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub tasks: u32,
    /// Threads of each process, all over its share; several numbers with --table [default: 1; --table: 1,8]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    threads: Vec<u32>,
    /// How long the accesses go on [default: 10; --table: 1]
    #[arg(long, value_name = "SECONDS", conflicts_with = "accesses")]
    seconds: Option<f64>,
    /// So many accesses instead, all tasks and threads together
    #[arg(long, value_name = "N")]
    accesses: Option<u64>,
    #[command(flatten)]
    pub table: TableArgs,
    #[command(flatten)]
    pub against: Against,
    #[command(flatten)]
    pub common: Common,
}

// What `--table` takes besides.
#[derive(clap::Args)]
pub struct TableArgs {
    /// Zipf for every --thetas, --ratios and --threads, with refault distances looked at and not
    #[arg(long, conflicts_with_all = ["region", "pattern", "theta", "clustered", "accesses", "tasks"])]
    pub table: bool,
    /// Skews of the table
    #[arg(long, requires = "table", value_name = "THETA,...", value_delimiter = ',', default_values_t = [0.1, 0.3, 0.5, 0.7, 0.9, 1.1, 1.3])]
    pub thetas: Vec<f64>,
    /// Regions of the table, in times --memory
    #[arg(long, requires = "table", value_name = "N,...", value_delimiter = ',', default_values_t = [0.5, 1.0, 1.5, 2.0])]
    ratios: Vec<f64>,
    /// Draw the table
    #[arg(long, requires = "table", value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
}

/// How pages are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Choice {
    /// Each as likely as any other
    Uniform,
    /// Some much more often than others
    Zipf,
}

/// One cell of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    pub theta: f64,
    /// The region, in times memory.
    pub ratio: f64,
    pub threads: u32,
}

impl Cell {
    /// Bytes of its region.
    pub fn region(self, memory: u64) -> u64 {
        (memory as f64 * self.ratio) as u64 / UNIT_BYTES * UNIT_BYTES
    }
}

impl SwapRand {
    /// How pages are chosen.
    pub fn pattern(&self) -> Pattern {
        let (theta, clustered) = (self.theta, self.clustered);
        match self.pattern {
            Choice::Uniform => Pattern::Uniform,
            Choice::Zipf => Pattern::Zipf { theta, clustered },
        }
    }

    /// The accesses of a thread.
    pub fn doing(&self, pattern: Pattern) -> Doing {
        let write = self.access == Access::Write;
        Doing::Random {
            pattern,
            write,
            accesses: self.accesses,
        }
    }

    /// How long the accesses go on, unless their number is given.
    pub fn seconds(&self) -> Option<f64> {
        let default = if self.table.table { 1.0 } else { 10.0 };
        self.seconds.or(self.accesses.is_none().then_some(default))
    }

    /// Numbers of threads: those of the table, or the only one.
    pub fn threads(&self) -> Vec<u32> {
        match &self.threads[..] {
            [] if self.table.table => vec![1, 8],
            [] => vec![1],
            given => given.into(),
        }
    }

    /// All cells of the table: by threads, then ratio, then theta.
    pub fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for threads in self.threads() {
            for &ratio in &self.table.ratios {
                cells.extend(self.table.thetas.iter().map(|&theta| Cell {
                    theta,
                    ratio,
                    threads,
                }));
            }
        }
        cells
    }

    /// Checks everything that can be checked without a run.
    pub fn check(&self) -> Result<()> {
        self.common.check()?;
        let threads = self.threads();
        for &threads in &threads {
            check_work(self.span.region, self.tasks, threads, 1)?;
        }
        check_theta("--thetas", self.table.thetas.iter().copied())?;
        within("--ratios", self.table.ratios.iter().copied(), 0.01..=100.0)?;
        writable_chart(self.table.plot.as_deref())?;
        if self.table.table {
            for c in self.cells() {
                check_work(c.region(self.span.memory), 1, c.threads, 1)?;
            }
        } else if threads.len() > 1 {
            return wrong("--threads takes several numbers with --table only");
        }
        check_memory(self.span.memory)?;
        check_theta("--theta", [self.theta])?;
        if self.clustered && self.pattern == Choice::Uniform {
            return wrong("--clustered is about hot pages: add --pattern zipf");
        }
        if let Some(seconds) = self.seconds() {
            self.common.check_seconds(seconds)?;
        }
        let at_once = u64::from(self.tasks) * threads.iter().copied().map(u64::from).sum::<u64>();
        if self.accesses.is_some_and(|n| n < at_once) {
            return wrong(format!(
                "--accesses must be at least 1 for each of {at_once} threads"
            ));
        }
        self.against.check()?;
        self.against.device(&self.common, false).map(drop)
    }
}
