//! Arguments of `pagemap`.

use super::{Common, Span, check_memory, check_work, wrong};

// Arguments of `hugeswap bench pagemap`.
#[derive(clap::Args)]
#[command(after_help = "\
EXAMPLES:
  hugeswap bench pagemap
  hugeswap bench pagemap --region 4G --pairs 5
  hugeswap bench pagemap --shared

Fills a region of this process's own, has it swapped out, and asks what its pages are: entry by entry in the kernel's format, page by page, as
ranges. The kernel is asked the same of the region, of which it knows nothing, and of as much plain memory in base pages.")]
pub struct Pagemap {
    #[command(flatten)]
    pub span: Span,
    /// A shared region, and plain shared memory.
    #[arg(long)]
    pub shared: bool,
    #[command(flatten)]
    pub common: Common,
}

impl Pagemap {
    /// Everything that can be checked without running.
    pub fn check(&self) -> anyhow::Result<()> {
        self.common.check()?;
        if self.common.fault_mode.is_some() {
            return wrong(
                "--fault-mode is not for this one: nothing faults while it measures".into(),
            );
        }
        check_memory(self.span.memory, super::super::machine::memory_bytes()?)?;
        check_work(self.span.region, 1, 1, 1)
    }
}
