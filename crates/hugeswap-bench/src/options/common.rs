//! Options that most benchmarks take, and checks of them.

use crate::error::{Usage, within, wrong};
use crate::machine;
use anyhow::Result;
use clap::ValueEnum;
use hugeswap::{Builder, Pool, SwapSpec};
use hugeswap_policy::knobs;
use std::time::Duration;

const UNIT: u64 = hugeswap_policy::UNIT_BYTES;

/// The word of an option's value on the command line.
pub trait Named {
    /// The word.
    fn name(&self) -> String;
}

impl<T: ValueEnum> Named for T {
    fn name(&self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |v| v.get_name().to_owned())
    }
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
    /// What they write compresses so many times, about [default: not at all]
    #[arg(long, value_name = "N", default_value_t = 1, hide_default_value = true, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub compressible: u32,
}

/// How often a region is written.
#[derive(clap::Args)]
pub struct Rounds {
    /// Times the region is written, the first fill included
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub rounds: u32,
    /// The same for the kernel, which is slow [default: the smaller of --rounds and 3]
    #[arg(long, value_name = "N")]
    kernel_rounds: Option<u32>,
}

impl Rounds {
    /// Rounds of the kernel's runs.
    pub fn of_kernel(&self) -> u32 {
        self.kernel_rounds.unwrap_or(self.rounds.min(3))
    }

    /// Bounds on the rounds of the kernel's runs.
    pub fn check(&self) -> Result<()> {
        within("--kernel-rounds", [self.of_kernel()], 1..=10_000)
    }
}

/// The values of `--fault-mode`, as in `hugeswap run`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FaultMode {
    /// What the machine allows, best first
    Auto,
    /// In the faulting thread
    Signal,
    /// By a thread that reads them from a userfaultfd (needs privilege)
    Message,
}

/// What is done to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Access {
    /// Read and verify
    Read,
    /// Change, so that it can be verified at the end
    Write,
}

/// A size of at least one huge page, rounded down to whole ones.
pub fn size(text: &str) -> Result<u64, String> {
    match knobs::parse_size(text).map_err(|e| e.to_string())? {
        n if n < UNIT => Err(format!(
            "{text} is less than one huge page: give at least 2M"
        )),
        n => Ok(n / UNIT * UNIT),
    }
}

impl Common {
    /// Bounds, and the settings' names and values.
    pub fn check(&self) -> Result<()> {
        within("--pairs", self.pairs, 1..=100)?;
        if !(1..=86_400).contains(&self.timeout) {
            return wrong("--timeout must be from 1 to 86400 seconds");
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

    /// Bounds on a duration within the time limit of a run.
    pub fn check_seconds(&self, seconds: f64) -> Result<()> {
        within("--seconds", [seconds], 0.1..=86_400.0)?;
        if seconds >= self.timeout as f64 {
            let limit = self.timeout;
            return wrong(format!(
                "--seconds is not below --timeout ({limit}): raise --timeout"
            ));
        }
        Ok(())
    }
}

/// Bounds on the work of one worker.
pub fn check_work(region: u64, tasks: u32, threads: u32, rounds: u32) -> Result<()> {
    within("--tasks", [tasks], 1..=1024)?;
    within("--threads", [threads], 1..=1024)?;
    within("--rounds", [rounds], 1..=10_000)?;
    let shares = u64::from(tasks) * u64::from(threads);
    if region / UNIT < shares {
        let least = shares * 2;
        return wrong(format!(
            "--region is too small: {shares} shares of at least 2M each need {least}M"
        ));
    }
    if usize::try_from(region).is_err() {
        return wrong("--region is larger than an address space");
    }
    Ok(())
}

/// A budget that this machine has.
pub fn check_memory(memory: u64) -> Result<()> {
    let machine = machine::memory_bytes()?;
    if memory > machine {
        let (memory, machine) = (memory >> 20, machine >> 20);
        return wrong(format!(
            "--memory is {memory} MiB and this machine has {machine} MiB: give less"
        ));
    }
    Ok(())
}

/// Bounds on a skew.
pub fn check_theta(option: &str, thetas: impl IntoIterator<Item = f64>) -> Result<()> {
    within(option, thetas, 0.1..=1.3)
}

/// The swap areas that `--swap` names.
pub fn swap_specs(swap: &[String]) -> Result<Vec<SwapSpec>> {
    let spec = |s: &String| SwapSpec::parse(s).map_err(|e| Usage(format!("--swap: {e}")).into());
    swap.iter().map(spec).collect()
}

/// A pool of this process's own.
pub fn pool<'a>(
    memory: u64,
    swap: Vec<SwapSpec>,
    settings: impl IntoIterator<Item = &'a String>,
) -> Builder {
    let pool = swap
        .into_iter()
        .fold(Pool::builder().memory(memory), Builder::swap_area);
    settings.into_iter().fold(pool, |pool, s| pool.set(s))
}

/// So many threads, in words.
pub fn threads_in_words(n: u32) -> String {
    match n {
        1 => "1 thread".into(),
        n => format!("{n} threads"),
    }
}
