//! Arguments of `workingset`.

use super::against::{self, Against};
use super::patterns::Access;
use super::{Common, Span, check_memory, wrong};
use crate::workingset::program::Program;
use clap::ValueEnum;
use hugeswap_policy::PAGE_BYTES;
use std::path::PathBuf;

/// What hugeswap is compared with if nothing is asked for.
const COMPARED: [&str; 3] = [
    "workingset.detection=off",
    "thp.enabled=never",
    "thp.enabled=never,workingset.detection=off",
];

// Arguments of `hugeswap bench workingset`.
#[derive(clap::Args)]
#[command(after_help = format!("\
EXAMPLES:
  hugeswap bench workingset
  hugeswap bench workingset --parts thrash --vs kernel --kernel-thp off
  hugeswap bench workingset --parts traces --plot traces.svg

Parts:
  stream  Half of memory is hot: written, and read three times. Then a stream that is used once is written, ten times
          memory; each time when it has gone on by --every, the hot set is read. Pages that come in meanwhile are hot
          ones that had been dropped (hot back %, of the hot set, all readings together).
  thrash  The program of the kernel series \"workingset protection/detection on the anonymous LRU list\" (J. Kim,
          2020). Set-up: cold memory (512M) is written; hot-1 (96M) is written and made active; hot-2 (96M) is
          written. Then 20 times: some cold memory (128M, going round), and hot-2, page by page. Made active: eight
          times a quarter of 128M of the cold memory, then hot-1; the series does not say how it did that. It says
          \"access\", and counted about as many pages out as in: so each page is changed (--access read reads only).
          % of floor: of what the cold reads alone would bring in, 655,360 pages. Who keeps some of the cold pages
          stays below it. Published: 863,240 pages in without, 681,565 with detection; 989,945 and 809,273 out.
  traces  Nothing is run: the reclaim lists by themselves, on traces of accesses, against LRU that sees every access,
          and against the best there is (Belady). Also \"hottest\": the units that are accessed most in all of the
          trace, kept; where accesses are independent of each other nobody can expect more who does not know the future.

Pages in and out (pswpin, pswpout) are exact counts, of the stream and of the repeats; those of the set-up stand beside them. The
kernel's are those of the machine: nobody else may swap.
Unless --also is given, hugeswap runs with {}, too.

{}", COMPARED.join("; with "), against::HELP))]
pub struct WorkingSet {
    /// What is run, in this order
    #[arg(long, value_name = "PARTS", value_enum, value_delimiter = ',', default_values = ["stream", "thrash"])]
    pub parts: Vec<WorkingSetPart>,
    /// Memory the programs may have
    #[arg(long, value_name = "SIZE", default_value = "280M", value_parser = super::size)]
    pub memory: u64,
    /// stream: how long, in times memory
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub stream: u64,
    /// stream: how far it goes between two readings of the hot set [default: a quarter of memory]
    #[arg(long, value_name = "SIZE", value_parser = super::size)]
    pub every: Option<u64>,
    /// thrash: cold memory
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = super::size)]
    pub cold: u64,
    /// thrash: hot-1, and hot-2
    #[arg(long, value_name = "SIZE", default_value = "96M", value_parser = super::size)]
    pub hot: u64,
    /// thrash: cold memory of each repeat
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = super::size)]
    pub reads: u64,
    /// thrash: how often
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub repeats: u32,
    /// thrash: what is done to a page
    #[arg(long, value_name = "WHAT", value_enum, default_value = "write")]
    pub access: Access,
    /// traces: how many units they are over, about
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub units: u32,
    /// Draw pages in by setting (thrash), and hits (traces)
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    #[command(flatten)]
    pub against: Against,
    #[command(flatten)]
    pub common: Common,
}

/// A part of `workingset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WorkingSetPart {
    /// A hot set beside a stream
    Stream,
    /// Cold, hot-1, hot-2
    Thrash,
    /// Traces, without running anything
    Traces,
}

impl WorkingSetPart {
    /// As it is written on a command line.
    pub fn name(self) -> &'static str {
        match self {
            WorkingSetPart::Stream => "stream",
            WorkingSetPart::Thrash => "thrash",
            WorkingSetPart::Traces => "traces",
        }
    }
}

impl WorkingSet {
    /// Whom hugeswap runs against: what was asked for, or everything worth comparing.
    pub fn against(&self) -> Against {
        let mut against = self.against.clone();
        if against.also.is_empty() {
            against.also = COMPARED.map(String::from).into();
        }
        against
    }

    /// The set-up of a part, and what is measured; none of the traces.
    pub fn programs(&self, part: WorkingSetPart) -> Option<[Program; 2]> {
        let pages = |bytes: u64| (bytes / super::UNIT * super::UNIT / PAGE_BYTES) as usize;
        match part {
            WorkingSetPart::Stream => {
                let hot = pages(self.memory / 2);
                let stream = Program::Stream {
                    hot,
                    stream: pages(self.memory.saturating_mul(self.stream)),
                    piece: pages(self.every.unwrap_or(self.memory / 4)).max(1),
                };
                Some([Program::Hot { hot }, stream])
            }
            WorkingSetPart::Thrash => {
                let (cold, hot, reads) = (pages(self.cold), pages(self.hot), pages(self.reads));
                let write = self.access == Access::Write;
                let set_up = Program::Cold {
                    cold,
                    hot,
                    reads,
                    write,
                };
                let repeats = Program::Thrash {
                    cold,
                    hot,
                    reads,
                    repeats: self.repeats as usize,
                    write,
                };
                Some([set_up, repeats])
            }
            WorkingSetPart::Traces => None,
        }
    }

    /// Pages that the cold reads of the repeats alone bring in.
    pub fn floor_pages(&self) -> u64 {
        self.reads / PAGE_BYTES * u64::from(self.repeats)
    }

    /// The most that any part uses.
    pub fn span(&self) -> Span {
        let pages = |&part| self.programs(part).map_or(0, |[_, p]| p.pages() as u64);
        Span {
            region: self.parts.iter().map(pages).max().unwrap_or(0) * PAGE_BYTES,
            memory: self.memory,
        }
    }

    /// Everything that can be checked without running.
    pub fn check(&self) -> anyhow::Result<()> {
        self.common.check()?;
        check_memory(self.memory, crate::machine::memory_bytes()?)?;
        if self.memory < hugeswap_engine::pool::MIN_MEMORY {
            return wrong("--memory must be at least 16M".into());
        }
        if (1..self.parts.len()).any(|i| self.parts[..i].contains(&self.parts[i])) {
            return wrong("--parts names a part twice".into());
        }
        if !(1..=1000).contains(&self.stream) {
            return wrong("--stream must be from 1 to 1000 times --memory".into());
        }
        if !(1..=10_000).contains(&self.repeats) {
            return wrong("--repeats must be from 1 to 10000".into());
        }
        if self.reads > self.cold {
            return wrong("--reads must not be more than --cold".into());
        }
        if !(64..=1_000_000).contains(&self.units) {
            return wrong("--units must be from 64 to 1000000".into());
        }
        if let Some(file) = &self.plot {
            if self.parts == [WorkingSetPart::Stream] {
                return wrong("--plot draws the parts thrash and traces: name one".into());
            }
            super::check_plot(Some(file))?;
        }
        self.against.check()?;
        self.against.device(&self.common, false).map(drop)
    }
}
