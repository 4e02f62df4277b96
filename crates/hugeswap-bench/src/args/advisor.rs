//! Arguments of `advisor`.

use super::{Common, check_memory, check_work, wrong};
use clap::ValueEnum;

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
    #[arg(long, value_name = "SIZE", default_value = "400M", value_parser = super::size)]
    pub region: u64,
    /// The budget from which others are estimated
    #[arg(long, value_name = "SIZE", default_value = "200M", value_parser = super::size)]
    pub memory: u64,
    /// Budgets that are tried, as multiples of --memory
    #[arg(
        long,
        value_name = "N,N",
        value_delimiter = ',',
        default_values_t = [0.5, 0.75, 1.25, 1.5, 1.75]
    )]
    pub budgets: Vec<f64>,
    /// What is run, in this order
    #[arg(
        long,
        value_name = "PARTS",
        value_enum,
        value_delimiter = ',',
        default_values = ["zipf", "loop", "workingset"]
    )]
    pub parts: Vec<AdvisorPart>,
    /// Skews of zipf (0.1 to 1.3)
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_values_t = [0.7, 0.9, 1.1])]
    pub theta: Vec<f64>,
    /// Reads at random in each phase; of a skew above 1, which settles slowly, four times as many
    #[arg(long, value_name = "N", default_value_t = 5_000_000)]
    pub accesses: u64,
    /// How long a phase of the loop lasts
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    pub seconds: f64,
    #[command(flatten)]
    pub common: Common,
}

/// A part of `advisor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AdvisorPart {
    /// Random reads by Zipf's law
    Zipf,
    /// Reads from start to end again and again
    Loop,
    /// Cold memory going round, and a hot set
    Workingset,
}

impl Advisor {
    /// Everything that can be checked without running.
    pub fn check(&self) -> anyhow::Result<()> {
        self.common.check()?;
        check_work(self.region, 1, 1, 1)?;
        if self.theta.iter().any(|t| !(0.1..=1.3).contains(t)) {
            return wrong("--theta must be from 0.1 to 1.3".into());
        }
        if self.budgets.iter().any(|b| !(0.1..=10.0).contains(b)) {
            return wrong("--budgets must be from 0.1 to 10".into());
        }
        if self.accesses < 1000 {
            return wrong("--accesses must be at least 1000".into());
        }
        if !(0.1..=3600.0).contains(&self.seconds) {
            return wrong("--seconds must be from 0.1 to 3600".into());
        }
        if self.region <= self.memory {
            return wrong("--region must be larger than --memory, or nothing is swapped".into());
        }
        let least = self.budgets.iter().copied().fold(1.0, f64::min);
        if (self.memory as f64 * least) < hugeswap_engine::pool::MIN_MEMORY as f64 {
            return wrong(
                "--memory is too small for the smallest of --budgets: 16M at least".into(),
            );
        }
        let most = self.budgets.iter().copied().fold(1.0, f64::max);
        let memory = (self.memory as f64 * most) as u64;
        check_memory(memory, crate::machine::memory_bytes()?)
    }
}
