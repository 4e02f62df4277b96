//! Arguments of `hugeswap bench chaos`.

use super::{Common, check_memory, wrong};
use hugeswap_policy::device::faulty::Kind;

// Arguments of `hugeswap bench chaos`.
#[derive(clap::Args)]
#[command(after_help = "\
EXAMPLES:
  hugeswap bench chaos --seconds 60 --seed 7
  hugeswap bench chaos --operations 20000 --kinds eio,flip,lost

Kinds: eio, short, nospace, flip, misread, miswrite, torn, lost, bad, gone, delay, hang (docs/swap.md tells what they are).
A minute stands for an hour: a device that hangs for 30 seconds, as long as Linux waits for one, does so for half a second here. Faults come
much oftener than on any device that is still in use. Wrong bytes, a hang of the program, or a fault that is not accounted for: exit status 1.")]
pub struct Chaos {
    /// What the threads use, together
    #[arg(long, value_name = "SIZE", default_value = "192M", value_parser = super::size)]
    pub region: u64,
    /// hugeswap's budget
    #[arg(long, value_name = "SIZE", default_value = "48M", value_parser = super::size)]
    pub memory: u64,
    /// How long
    #[arg(long, value_name = "N", default_value_t = 60)]
    pub seconds: u64,
    /// Stop after so many operations, of all threads together
    #[arg(long, value_name = "N")]
    pub operations: Option<u64>,
    /// Threads, each with its share of the region
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub threads: u32,
    /// Swap areas, where --swap names none
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub areas: u32,
    /// What the faults follow from
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub seed: u64,
    /// Kinds of faults, with commas between [default: all]
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    pub kinds: Vec<String>,
    #[command(flatten)]
    pub common: Common,
}

impl Chaos {
    /// Everything that can be checked without running; the kinds.
    pub fn check(&self) -> anyhow::Result<Vec<Kind>> {
        self.common.check()?;
        check_memory(self.memory * 2, crate::machine::memory_bytes()?)?;
        if self.memory < 32 << 20 {
            return wrong("--memory must be at least 32M".into());
        }
        if !(1..=16).contains(&self.areas) || !(1..=64).contains(&self.threads) {
            return wrong("--areas must be from 1 to 16, --threads from 1 to 64".into());
        }
        if self.region / u64::from(self.threads) < 4 << 20 {
            return wrong("--region must be at least 4M for each thread".into());
        }
        if !(1..=86_400).contains(&self.seconds) {
            return wrong("--seconds must be from 1 to 86400".into());
        }
        if self.kinds.is_empty() {
            return Ok(Kind::ALL.to_vec());
        }
        let find = |name: &String| {
            let found = Kind::ALL.iter().copied().find(|k| k.name() == name.trim());
            found.map_or_else(
                || wrong(format!("--kinds: there is no '{name}' (see --help)")),
                Ok,
            )
        };
        self.kinds.iter().map(find).collect()
    }
}
