//! Arguments of `extents`.

use super::wrong;
use clap::ValueEnum;
use hugeswap_policy::{PAGE_BYTES, knobs};

// Arguments of `hugeswap bench extents`.
#[derive(clap::Args)]
#[command(after_help = "\
EXAMPLES:
  hugeswap bench extents
  hugeswap bench extents --extents 84656 --tasks 1,4 --access random --json

What it measures: finding the place of a page on the device before each transfer, by a linear list that
remembers where it found the last page, by the standard library's ordered map, and by hugeswap's map.

What is real and what is not: tasks are threads; the extents are made up (random sizes, places on the
device in random order); the device is a file of 256 MiB in memory, read with pread, and an offset is taken
modulo its size. Nothing is swapped, and no disk is touched. The list's entries lie side by side in
memory, which is kinder to it than a linked list.

The share of look-ups is that of the time between the begin of a look-up and the end of the transfer,
of every 8th transfer. A look-up that waits begins when the one before has ended; those in a row overlap.")]
pub struct Extents {
    /// Numbers of extents
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_values_t = [1, 2_000, 20_000, 84_656])]
    pub extents: Vec<u32>,
    /// Numbers of tasks, all at once
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_values_t = [1, 4, 8])]
    pub tasks: Vec<u32>,
    /// Size of the area that the extents make up
    #[arg(long, value_name = "SIZE", default_value = "80G", value_parser = knobs::parse_size)]
    pub area: u64,
    /// Which pages a task transfers
    #[arg(long, value_name = "WHICH", value_enum, default_value = "seq")]
    pub access: Order,
    /// Threads that look up at once, in the figures of look-ups alone
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub threads: u32,
    /// How long each figure is measured
    #[arg(long, value_name = "SECONDS", default_value_t = 0.2)]
    pub seconds: f64,
    /// How often everything is measured, the maps in turn
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub pairs: u32,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// The order in which pages are transferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Order {
    /// Each task goes through its share of the area
    Seq,
    /// Anywhere in the area
    Random,
}

impl Order {
    /// As it is written on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Order::Seq => "seq",
            Order::Random => "random",
        }
    }
}

impl Extents {
    /// Pages of the area.
    pub fn pages(&self) -> u32 {
        u32::try_from(self.area / PAGE_BYTES).unwrap_or(u32::MAX)
    }

    /// Everything that can be checked without running.
    pub fn check(&self) -> anyhow::Result<()> {
        let most = 1_000_000;
        if self.extents.iter().any(|n| !(1..=most).contains(n)) {
            return wrong(format!("--extents must be from 1 to {most}"));
        }
        for (name, numbers) in [("--tasks", &self.tasks[..]), ("--threads", &[self.threads])] {
            if numbers.iter().any(|n| !(1..=1024).contains(n)) {
                return wrong(format!("{name} must be from 1 to 1024"));
            }
        }
        if !(1 << 30..=16 << 40).contains(&self.area) {
            return wrong("--area must be from 1G to 16T".into());
        }
        if u64::from(self.extents.iter().copied().max().unwrap_or(0)) * 2 > u64::from(self.pages())
        {
            return wrong(
                "--area is too small for so many extents: 8 KiB for each at the least".into(),
            );
        }
        let tasks = self.tasks.iter().copied().max().unwrap_or(1);
        if u64::from(tasks) * (2 << 20) > self.area {
            return wrong(
                "--area is too small for so many tasks: 2 MiB for each at the least".into(),
            );
        }
        if !(0.001..=3600.0).contains(&self.seconds) {
            return wrong("--seconds must be from 0.001 to 3600".into());
        }
        if !(1..=100).contains(&self.pairs) {
            return wrong("--pairs must be from 1 to 100".into());
        }
        Ok(())
    }
}
