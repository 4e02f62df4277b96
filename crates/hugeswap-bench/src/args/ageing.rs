//! Arguments of `ageing`.

use super::{Common, check_memory, wrong};
use hugeswap_engine::pool::SwapSpec;
use std::path::PathBuf;

// Arguments of `hugeswap bench ageing`.
#[derive(clap::Args)]
#[command(after_help = "\
EXAMPLES:
  hugeswap bench ageing
  hugeswap bench ageing --rounds 1000 --swap /mnt/fast --plot ageing.svg --json

A program keeps objects of mixed sizes, 2M to a tenth of the region, in a pool of its own. In each round it frees some and makes others,
writes some from end to end and pages of others, discards parts, and pages out. Before and after, a
stream goes through twice the memory; afterwards also in a pool that is new, in turn.

whole %: of all swap, what is free in whole 2M; used %: in use, by the page; split %: free only in
single pages. A fragmented swap has little whole and much split.")]
pub struct Ageing {
    /// What the objects take, together
    #[arg(long, value_name = "SIZE", default_value = "600M", value_parser = super::size)]
    pub region: u64,
    /// hugeswap's budget
    #[arg(long, value_name = "SIZE", default_value = "200M", value_parser = super::size)]
    pub memory: u64,
    /// How often everything is done
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub rounds: u32,
    /// Draw the shares of swap over the rounds
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    #[command(flatten)]
    pub common: Common,
}

impl Ageing {
    /// Where to swap: as asked for, but not more than makes room tight, so that what is freed has to be used again.
    pub fn swap(&self) -> anyhow::Result<Vec<SwapSpec>> {
        let parse =
            |s: &String| SwapSpec::parse(s).map_err(|e| super::Usage(format!("--swap: {e}")));
        let mut specs = self
            .common
            .swap
            .iter()
            .map(parse)
            .collect::<Result<Vec<_>, _>>()?;
        if specs.is_empty() {
            specs.push(hugeswap_engine::pool::swap::default_area()?);
        }
        let room = (self.region + self.region / 4 + self.memory * 2) / specs.len() as u64;
        for s in &mut specs {
            s.size.get_or_insert(room);
        }
        Ok(specs)
    }

    /// Everything that can be checked without running.
    pub fn check(&self) -> anyhow::Result<()> {
        self.common.check()?;
        check_memory(self.memory * 2, crate::machine::memory_bytes()?)?;
        if self.rounds < 5 || self.rounds > 1_000_000 {
            return wrong("--rounds must be from 5 to 1000000".into());
        }
        if self.region < 40 << 20 || self.memory < hugeswap_engine::pool::MIN_MEMORY {
            return wrong("--region must be at least 40M, and --memory at least 16M".into());
        }
        if self.region <= self.memory {
            return wrong(
                "--region must be larger than --memory, or little is ever swapped".into(),
            );
        }
        if self.common.fault_mode.is_some() {
            return wrong(
                "--fault-mode: ageing runs in signal mode, which swaps mixed sizes".into(),
            );
        }
        super::check_plot(self.plot.as_deref())?;
        self.swap().map(drop)
    }
}
