//! What `hugeswap bench` takes on its command line, and the checks that need no machine.

mod advisor;
mod against;
mod ageing;
mod chaos;
mod defrag;
mod extents;
mod fragments;
mod pagemap;
mod patterns;
mod program;
mod tracking;
mod workingset;
mod zipf_table;

pub use advisor::{Advisor, AdvisorPart};
pub use against::{Against, Device, KernelThp};
pub use ageing::Ageing;
pub use chaos::Chaos;
pub use defrag::{Defrag, DefragPart, settings_of};
pub use extents::{Extents, Order};
pub use fragments::Fragments;
pub use pagemap::Pagemap;
pub use patterns::{Access, Mixed, Part, SwapRand};
pub use program::{Program, Share};
pub use tracking::Tracking;
pub use workingset::{WorkingSet, WorkingSetPart};
pub use zipf_table::Cell;

use super::Usage;
use clap::{Subcommand, ValueEnum};
use hugeswap_policy::knobs;
use std::path::Path;
use std::time::Duration;

const UNIT: u64 = hugeswap_policy::UNIT_BYTES;

const EXAMPLES: &str = "\
EXAMPLES:
  hugeswap bench swap-seq --vs kernel
  hugeswap bench swap-rand --vs kernel --pattern zipf --theta 0.9
  hugeswap bench fit --json

MB/s are 10^6 bytes a second; sizes (SIZE) take K, M, G or T, powers of 1024. Every figure is
measured side by side in one run: quote the ratios, and look at the load printed with them.";

/// Measure swapping, side by side with the kernel's own where possible
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    /// Which one, and its arguments.
    pub bench: Bench,
}

/// The benchmarks.
#[derive(Subcommand)]
pub enum Bench {
    /// Tasks write a range from start to end again and again in less memory than it takes
    SwapSeq(SwapSeq),
    /// Threads read or write 4 KiB here and there in less memory than it takes
    SwapRand(SwapRand),
    /// Half the threads stream while the others read at random; and one after the other
    Mixed(Mixed),
    /// Any program, plain and with a part of its memory, under hugeswap and with the kernel's swap
    Program(Program),
    /// Everything fits in the budget: what hugeswap costs against plain memory
    Fit(Fit),
    /// Latencies of page faults by class, in signal and in message mode
    Faults(Faults),
    /// What it costs to find where on the device a page of swap lies, in a file of many pieces
    Extents(Extents),
    /// Swapping to a file in many pieces, against one in one piece, and against the kernel on the same file
    Fragments(Fragments),
    /// Huge pages where none is free: first touches under pressure, with each value of thp.defrag
    Defrag(Defrag),
    /// How fast a region tells what its pages are, against the kernel's pagemap
    Pagemap(Pagemap),
    /// What it costs to know which memory is written, and snapshots of what has changed
    Tracking(Tracking),
    /// Objects of mixed sizes come and go for a long time: does swap fragment?
    Ageing(Ageing),
    /// Is what is in use kept in memory, and recognised when it was not?
    Workingset(WorkingSet),
    /// A device that fails in every way: no wrong byte, no hang, every fault accounted for
    Chaos(Chaos),
    /// What one run says of other budgets, against runs with those budgets
    Advisor(Advisor),
}

/// What every benchmark takes.
#[derive(clap::Args)]
pub struct Common {
    /// Where hugeswap swaps; may be repeated (as in `hugeswap run`)
    #[arg(long, value_name = "DIR[,OPTIONS]")]
    pub swap: Vec<String>,
    /// Change a setting of hugeswap; may be repeated (as in `hugeswap run`)
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// How hugeswap takes page faults
    #[arg(long, value_name = "MODE", value_enum)]
    pub fault_mode: Option<FaultMode>,
    /// How often each engine runs, in turn (A B A B) [default: 2; fit: 4; ageing, defrag: 1]
    #[arg(long, value_name = "N")]
    pub pairs: Option<u32>,
    /// Seconds after which a run that has not ended is stopped and counts as failed
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub timeout: u64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// How much is used, in how little memory.
#[derive(Clone, clap::Args)]
pub struct Span {
    /// What the tasks use, together
    #[arg(long, value_name = "SIZE", default_value = "1200M", value_parser = size)]
    pub region: u64,
    /// Memory they may have, together
    #[arg(long, value_name = "SIZE", default_value = "600M", value_parser = size)]
    pub memory: u64,
}

// Arguments of `hugeswap bench swap-seq`.
#[derive(clap::Args)]
#[command(after_help = format!("\
EXAMPLES:
  hugeswap bench swap-seq --region 1200M --memory 600M --tasks 2
  hugeswap bench swap-seq --vs kernel --read-only-pass --ceiling
  hugeswap bench swap-seq --vs kernel --device /var/tmp
  hugeswap bench swap-seq --shared --tasks 2 --read-only-pass

{}", against::HELP))]
pub struct SwapSeq {
    #[command(flatten)]
    pub span: Span,
    /// Processes, each with its share of the region
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub tasks: u32,
    /// Threads of each process
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub threads: u32,
    /// Times the region is written, the first fill included
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub rounds: u32,
    /// The same for the kernel, which is slow [default: the smaller of --rounds and 3]
    #[arg(long, value_name = "N")]
    pub kernel_rounds: Option<u32>,
    /// After writing, read it all three times, writing nothing
    #[arg(long)]
    pub read_only_pass: bool,
    /// The processes share the region: each writes its part, and reads the next one's
    #[arg(long)]
    pub shared: bool,
    #[command(flatten)]
    pub against: Against,
    /// Measure what the device can do, before each pair of runs
    #[arg(long)]
    pub ceiling: bool,
    #[command(flatten)]
    pub common: Common,
}

// Arguments of `hugeswap bench fit`.
#[derive(clap::Args)]
#[command(after_help = "\
EXAMPLE:
  hugeswap bench fit --region 1G --pairs 6

The same program runs under hugeswap, plain with huge pages and plain without, in turn, forwards and
backwards. In a virtual machine the first touch of memory that nobody used lately can take ten times as long,
so before each run as much memory is touched and freed.")]
pub struct Fit {
    /// What the tasks write, together
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size)]
    pub region: u64,
    /// hugeswap's budget [default: 1.3 times the region]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub memory: Option<u64>,
    /// Processes, each with its share of the region
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub tasks: u32,
    /// Threads of each process
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub threads: u32,
    /// Times the region is written
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub rounds: u32,
    /// Random reads of 8 bytes, all tasks together
    #[arg(long, value_name = "N", default_value_t = 20_000_000)]
    pub reads: u64,
    #[command(flatten)]
    pub common: Common,
}

// Arguments of `hugeswap bench faults`.
#[derive(clap::Args)]
#[command(after_help = "\
EXAMPLE:
  hugeswap bench faults --memory 256M

Without --fault-mode, signal and message mode are measured; a mode that is not permitted is skipped, with the reason.
Then first touches of huge pages are measured beside the kernel's own, in turn, with a third of the memory in use.
Run it on an idle machine: a busy neighbour adds interrupts to every fault.")]
pub struct Faults {
    /// What the program touches [default: twice the memory]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub region: Option<u64>,
    /// hugeswap's budget
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size)]
    pub memory: u64,
    /// Times the region is gone through in random order
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub rounds: u32,
    #[command(flatten)]
    pub common: Common,
}

/// As in `hugeswap run`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FaultMode {
    /// What the machine allows, best first
    Auto,
    /// In the faulting thread
    Signal,
    /// By a thread that reads them from a userfaultfd (needs privilege)
    Message,
}

impl FaultMode {
    /// As it is written on a command line.
    pub fn name(self) -> &'static str {
        match self {
            FaultMode::Auto => "auto",
            FaultMode::Signal => "signal",
            FaultMode::Message => "message",
        }
    }
}

fn size(text: &str) -> Result<u64, String> {
    match knobs::parse_size(text)? {
        n if n < UNIT => Err(format!(
            "{text} is less than one huge page: give at least 2M"
        )),
        n => Ok(n / UNIT * UNIT),
    }
}

fn wrong<T>(message: String) -> anyhow::Result<T> {
    Err(Usage(message).into())
}

impl Common {
    /// Bounds, and the settings' names and values.
    pub fn check(&self) -> anyhow::Result<()> {
        if self.pairs.is_some_and(|n| !(1..=100).contains(&n)) {
            return wrong("--pairs must be from 1 to 100".into());
        }
        if self.timeout == 0 || self.timeout > 86_400 {
            return wrong("--timeout must be from 1 to 86400 seconds".into());
        }
        for s in &self.set {
            knobs::parse_setting(s).map_err(|e| Usage(format!("--set: {e}")))?;
        }
        Ok(())
    }

    /// Times each engine runs.
    pub fn pairs(&self) -> u32 {
        self.pairs.unwrap_or(2)
    }

    /// The time limit of one run.
    pub fn limit(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

/// Bounds on the work of one worker.
pub fn check_work(region: u64, tasks: u32, threads: u32, rounds: u32) -> anyhow::Result<()> {
    if tasks == 0 || tasks > 1024 {
        return wrong("--tasks must be from 1 to 1024".into());
    }
    if threads == 0 || threads > 1024 {
        return wrong("--threads must be from 1 to 1024".into());
    }
    if rounds == 0 || rounds > 10_000 {
        return wrong("--rounds must be from 1 to 10000".into());
    }
    let shares = u64::from(tasks) * u64::from(threads);
    if region / UNIT < shares {
        return wrong(format!(
            "--region is too small: {shares} shares of at least 2M each need {}M",
            shares * 2
        ));
    }
    if usize::try_from(region).is_err() {
        return wrong("--region is larger than an address space".into());
    }
    Ok(())
}

/// A plot must be something that can be written.
pub fn check_plot(file: Option<&Path>) -> anyhow::Result<()> {
    let Some(file) = file else {
        return Ok(());
    };
    let parent = file.parent().filter(|p| !p.as_os_str().is_empty());
    let place = match parent {
        _ if file.exists() => file,
        Some(dir) => dir,
        None => Path::new("."),
    };
    let may = rustix::fs::access(place, rustix::fs::Access::WRITE_OK);
    if may.is_err() || file.is_dir() {
        return wrong(format!(
            "--plot {} cannot be written: name a file in a directory you may write to",
            file.display()
        ));
    }
    Ok(())
}

/// The budget must be something this machine has.
pub fn check_memory(memory: u64, machine: u64) -> anyhow::Result<()> {
    if memory > machine {
        return wrong(format!(
            "--memory is {} MiB and this machine has {} MiB: give less",
            memory >> 20,
            machine >> 20
        ));
    }
    Ok(())
}

impl SwapSeq {
    /// Where to swap; a ceiling is one of a device that is known.
    pub fn device(&self) -> anyhow::Result<Device> {
        match self.against.device(&self.common, self.ceiling)? {
            Device::Default if self.ceiling => {
                wrong("--ceiling needs to know the device: add --device ram or --device DIR".into())
            }
            device => Ok(device),
        }
    }

    /// Rounds of the kernel's runs.
    pub fn rounds_of_kernel(&self) -> u32 {
        self.kernel_rounds.unwrap_or(self.rounds.min(3))
    }

    /// Everything that can be checked without running.
    pub fn check(&self) -> anyhow::Result<()> {
        self.common.check()?;
        check_work(self.span.region, self.tasks, self.threads, self.rounds)?;
        if !(1..=10_000).contains(&self.rounds_of_kernel()) {
            return wrong("--kernel-rounds must be from 1 to 10000".into());
        }
        check_memory(self.span.memory, super::machine::memory_bytes()?)?;
        if self.shared && self.common.fault_mode == Some(FaultMode::Message) {
            return wrong("--shared is not there in message mode: leave --fault-mode out".into());
        }
        self.against.check()?;
        self.device().map(drop)
    }
}

impl Fit {
    /// The budget: given, or 1.3 times the region, in whole units.
    pub fn budget(&self) -> u64 {
        self.memory
            .unwrap_or((self.region / 10 * 13).next_multiple_of(UNIT))
    }

    /// Everything that can be checked without running.
    pub fn check(&self) -> anyhow::Result<()> {
        self.common.check()?;
        check_work(self.region, self.tasks, self.threads, self.rounds)?;
        if self.budget() < self.region {
            return wrong(
                "--memory is less than --region: fit is about everything fitting; use swap-seq"
                    .into(),
            );
        }
        check_memory(self.budget(), super::machine::memory_bytes()?)
    }
}

impl Faults {
    /// What is touched.
    pub fn region_bytes(&self) -> u64 {
        self.region.unwrap_or(self.memory * 2)
    }

    /// Everything that can be checked without running.
    pub fn check(&self) -> anyhow::Result<()> {
        self.common.check()?;
        check_work(self.region_bytes(), 1, 1, self.rounds)?;
        check_memory(self.memory, super::machine::memory_bytes()?)?;
        if self.region_bytes() <= self.memory {
            return wrong(
                "--region must be larger than --memory, or nothing is ever swapped".into(),
            );
        }
        Ok(())
    }
}
