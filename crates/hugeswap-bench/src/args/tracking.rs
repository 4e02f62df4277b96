//! Arguments of `tracking`.

use super::{Common, check_memory, check_work, size, wrong};

// Arguments of `hugeswap bench tracking`.
#[derive(clap::Args)]
#[command(after_help = "\
EXAMPLES:
  hugeswap bench tracking
  hugeswap bench tracking --region 2G --pairs 8

A region that fits in memory, in huge pages, is written from start to end again and again: plain, and with its writes tracked by units, with an epoch
before each pass; in turn. Then full snapshots of it are made, and snapshots of what has changed since after 1% of its pages was written: in a row, and here
and there. They are written nowhere: what is measured is to find, copy and sum.")]
pub struct Tracking {
    /// What is written
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = size)]
    pub region: u64,
    /// Passes of each kind in each pair
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub rounds: u32,
    #[command(flatten)]
    pub common: Common,
}

impl Tracking {
    /// hugeswap's budget: nothing is to leave.
    pub fn memory(&self) -> u64 {
        self.region + self.region / 3 + (64 << 20)
    }

    /// Everything that can be checked without running.
    pub fn check(&self) -> anyhow::Result<()> {
        self.common.check()?;
        if self.common.fault_mode.is_some() {
            return wrong(
                "--fault-mode is not for this one: writes are tracked in signal mode".into(),
            );
        }
        check_memory(self.memory(), super::super::machine::memory_bytes()?)?;
        check_work(self.region, 1, 1, self.rounds)
    }
}
