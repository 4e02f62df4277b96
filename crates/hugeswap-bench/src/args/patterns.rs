//! Arguments of `swap-rand` and `mixed`.

use super::against::{self, Against};
use super::zipf_table::TableArgs;
use super::{Common, Span, check_memory, check_work, wrong};
use crate::pattern::Pattern;
use clap::ValueEnum;
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

The region is filled with data that does not compress. Each access is to one word at a random place
of a page of 4 KiB: read and verified, or verified and changed. The time of an access is the time of
a thread over the number of its accesses. misses: faults that waited for swap, for each access.

--table: every cell is a run that fills its region (--ratios times --memory) and lets the accesses settle for half of --seconds
before they count; hugeswap runs with workingset.detection=off too, and every engine --pairs times in turn. 56 cells of 2 pairs take about
15 minutes, and with --vs kernel --kernel-thp off half an hour.

{}", against::HELP))]
pub struct SwapRand {
    #[command(flatten)]
    pub span: Span,
    /// How pages are chosen
    #[arg(long, value_name = "PATTERN", value_enum, default_value = "uniform")]
    pub pattern: Choice,
    /// Skew of zipf: page number k in order of heat is chosen in proportion to 1/k^THETA (0.1 to 1.3)
    #[arg(long, value_name = "THETA", default_value_t = 0.9)]
    pub theta: f64,
    /// Hot pages lie side by side (zipf); else they are spread over the region
    #[arg(long)]
    pub clustered: bool,
    /// What is done to a page
    #[arg(long, value_name = "WHAT", value_enum, default_value = "read")]
    pub access: Access,
    /// Processes, each with its share of the region
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub tasks: u32,
    /// Threads of each process, all over its share; several numbers with --table [default: 1; --table: 1,8]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub threads: Vec<u32>,
    /// How long the accesses go on [default: 10; --table: 1]
    #[arg(long, value_name = "SECONDS", conflicts_with = "accesses")]
    pub seconds: Option<f64>,
    /// So many accesses instead, all tasks and threads together
    #[arg(long, value_name = "N")]
    pub accesses: Option<u64>,
    #[command(flatten)]
    pub table: TableArgs,
    #[command(flatten)]
    pub against: Against,
    #[command(flatten)]
    pub common: Common,
}

/// How pages are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Choice {
    /// Each as likely as any other
    Uniform,
    /// Some much more often than others
    Zipf,
}

/// What is done to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Access {
    /// Read and verify
    Read,
    /// Change, so that it can be verified at the end
    Write,
}

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

{}", against::HELP))]
pub struct Mixed {
    #[command(flatten)]
    pub span: Span,
    /// Threads: half of them stream, half of them read at random
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub threads: u32,
    /// How long each phase lasts
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    pub seconds: f64,
    /// What the streams do
    #[arg(long, value_name = "WHAT", value_enum, default_value = "write")]
    pub stream: Access,
    /// What is run, in this order
    #[arg(
        long,
        value_name = "PARTS",
        value_enum,
        value_delimiter = ',',
        default_values = ["stream", "random", "together", "change"]
    )]
    pub parts: Vec<Part>,
    /// Draw throughput and time of an access over time: the last runs of `together` and `change`
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    #[command(flatten)]
    pub against: Against,
    #[command(flatten)]
    pub common: Common,
}

/// A run of `mixed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
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

impl Part {
    /// As it is written on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Part::Stream => "stream",
            Part::Random => "random",
            Part::Together => "together",
            Part::WriteBehind => "write-behind",
            Part::Change => "change",
        }
    }
}

/// Bounds on how long something goes on within a run's time limit.
pub fn check_seconds(seconds: f64, limit: u64) -> anyhow::Result<()> {
    if !(0.1..=86_400.0).contains(&seconds) {
        return wrong("--seconds must be from 0.1 to 86400".into());
    }
    if seconds >= limit as f64 {
        return wrong(format!(
            "--seconds is not below --timeout ({limit}): raise --timeout"
        ));
    }
    Ok(())
}

impl SwapRand {
    /// Which pages are chosen.
    pub fn pattern(&self) -> Pattern {
        match self.pattern {
            Choice::Uniform => Pattern::Uniform,
            Choice::Zipf => Pattern::Zipf {
                theta: self.theta,
                clustered: self.clustered,
            },
        }
    }

    /// How long the accesses go on, unless their number is given.
    pub fn seconds(&self) -> Option<f64> {
        let default = if self.table.table { 1.0 } else { 10.0 };
        self.seconds.or(self.accesses.is_none().then_some(default))
    }

    /// Numbers of threads: of a table, or the only one.
    pub fn threads(&self) -> Vec<u32> {
        match &self.threads[..] {
            [] if self.table.table => vec![1, 8],
            [] => vec![1],
            given => given.into(),
        }
    }

    /// Everything that can be checked without running.
    pub fn check(&self) -> anyhow::Result<()> {
        self.common.check()?;
        let threads = self.threads();
        for &threads in &threads {
            check_work(self.span.region, self.tasks, threads, 1)?;
        }
        self.table.check()?;
        if self.table.table {
            for c in self.table.cells(&threads) {
                check_work(c.region(self.span.memory), 1, c.threads, 1)?;
            }
        } else if threads.len() > 1 {
            return wrong("--threads takes several numbers with --table only".into());
        }
        check_memory(self.span.memory, crate::machine::memory_bytes()?)?;
        if !(0.1..=1.3).contains(&self.theta) {
            return wrong("--theta must be from 0.1 to 1.3".into());
        }
        if self.clustered && self.pattern == Choice::Uniform {
            return wrong("--clustered is about hot pages: add --pattern zipf".into());
        }
        if let Some(seconds) = self.seconds() {
            check_seconds(seconds, self.common.timeout)?;
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

impl Mixed {
    /// Everything that can be checked without running.
    pub fn check(&self) -> anyhow::Result<()> {
        self.common.check()?;
        check_work(self.span.region, 1, self.threads, 1)?;
        check_memory(self.span.memory, crate::machine::memory_bytes()?)?;
        if !self.threads.is_multiple_of(2) {
            return wrong("--threads must be even: half of them stream".into());
        }
        if (1..self.parts.len()).any(|i| self.parts[..i].contains(&self.parts[i])) {
            return wrong("--parts names a part twice".into());
        }
        check_seconds(self.seconds, self.common.timeout)?;
        if let Some(file) = &self.plot {
            if !self
                .parts
                .iter()
                .any(|p| [Part::Together, Part::Change].contains(p))
            {
                return wrong("--plot draws the parts together and change: name one".into());
            }
            super::check_plot(Some(file))?;
        }
        self.against.check()?;
        self.against.device(&self.common, false).map(drop)
    }
}
