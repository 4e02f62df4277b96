//! Arguments of `fragments`.

use super::against::Opponent;
use super::{Common, KernelThp, Span, check_memory, check_work, wrong};
use hugeswap_policy::PAGE_BYTES;
use std::path::PathBuf;

// Arguments of `hugeswap bench fragments`.
#[derive(clap::Args)]
#[command(after_help = "\
EXAMPLES:
  hugeswap bench fragments
  hugeswap bench fragments --extents 20000 --tasks 4 --vs kernel --kernel-thp off

Makes swap files of equal size in a directory, one as the file system likes to lay it out, the others in so many
pieces (a file in one piece, of which a block is taken out after each piece: FALLOC_FL_COLLAPSE_RANGE), and writes them
from start to end. Then tasks write a range again and again in less memory than it takes, as in swap-seq, on
each file in turn. Where --extents pieces of equal size are too small, or the file system cannot do that, the file is skipped.
The files are removed.

--vs kernel needs root: for each run the kernel's swap is turned on on the very same file, and off again
after, also on failure or Ctrl-C.")]
pub struct Fragments {
    /// Numbers of pieces
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_values_t = [20_000, 84_656])]
    pub extents: Vec<u32>,
    /// Numbers of processes, each with its share of the region
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_values_t = [1, 4, 8])]
    pub tasks: Vec<u32>,
    #[command(flatten)]
    pub span: Span,
    /// Times the region is written, the first fill included
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub rounds: u32,
    /// The same for the kernel, which is slow [default: the smaller of --rounds and 3]
    #[arg(long, value_name = "N")]
    pub kernel_rounds: Option<u32>,
    /// The opponent to run in turn with hugeswap, on the files in pieces
    #[arg(long, value_name = "ENGINE", value_enum)]
    pub vs: Option<Opponent>,
    /// Huge pages for the kernel's runs
    #[arg(long, value_name = "WHICH", value_enum, default_value = "both")]
    pub kernel_thp: KernelThp,
    #[command(flatten)]
    pub common: Common,
}

impl Fragments {
    /// The directory for the files.
    pub fn dir(&self) -> anyhow::Result<PathBuf> {
        let dir = match &self.common.swap[..] {
            [] => hugeswap_engine::pool::swap::default_area()?.path,
            [one] => PathBuf::from(one),
            _ => return wrong("--swap: name one directory".into()),
        };
        if dir.is_dir() {
            Ok(dir)
        } else {
            wrong(format!("--swap {} is not a directory", dir.display()))
        }
    }

    /// Bytes of each file.
    pub fn file_bytes(&self) -> u64 {
        super::super::kernel::swap_bytes(self.span.region)
    }

    /// Rounds of the kernel's runs.
    pub fn rounds_of_kernel(&self) -> u32 {
        self.kernel_rounds.unwrap_or(self.rounds.min(3))
    }

    /// Everything that can be checked without running.
    pub fn check(&self) -> anyhow::Result<()> {
        self.common.check()?;
        let most = self.file_bytes() / PAGE_BYTES;
        if self.extents.iter().any(|&n| n < 2 || u64::from(n) > most) {
            return wrong(format!(
                "--extents must be from 2 to {most}, which are pieces of 4 KiB: for more give a larger --region"
            ));
        }
        for &tasks in &self.tasks {
            check_work(self.span.region, tasks, 1, self.rounds)?;
        }
        if !(1..=10_000).contains(&self.rounds_of_kernel()) {
            return wrong("--kernel-rounds must be from 1 to 10000".into());
        }
        check_memory(self.span.memory, super::super::machine::memory_bytes()?)?;
        self.dir().map(drop)
    }
}
