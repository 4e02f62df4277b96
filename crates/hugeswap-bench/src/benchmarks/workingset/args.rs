//! Arguments of `workingset`.

use crate::error::{no_repeats, within, writable_chart, wrong};
use crate::generate::steps::{Program, Sizes};
use crate::options::{self, Access, Against, Common, Span, check_memory, size};
use anyhow::Result;
use clap::ValueEnum;
use hugeswap_policy::{PAGE_BYTES, UNIT_BYTES};
use std::path::PathBuf;

/// The settings that hugeswap is compared with by default.
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
          % of floor: of what the cold reads alone would bring in, 655,360 pages. An engine that keeps some of the cold
          pages stays below it. Published: 863,240 pages in without, 681,565 with detection; 989,945 and 809,273 out.
  traces  Nothing is run: the reclaim lists by themselves, on traces of accesses, against LRU that sees every access,
          and against the best there is (Belady). Also \"hottest\": the units that are accessed most in all of the
          trace, kept; where accesses are independent of each other no algorithm without knowledge of the future does better.

Pages in and out (pswpin, pswpout) are exact counts, of the stream and of the repeats; those of the set-up stand beside them. The
kernel's are those of the machine: no other program may swap.
Unless --also is given, hugeswap runs with {}, too.

{}", COMPARED.join("; with "), options::HELP))]
pub struct WorkingSet {
    /// What is run, in this order
    #[arg(long, value_name = "PARTS", value_enum, value_delimiter = ',', default_values = ["stream", "thrash"])]
    pub parts: Vec<Part>,
    /// Memory the programs may have
    #[arg(long, value_name = "SIZE", default_value = "280M", value_parser = size)]
    pub memory: u64,
    /// stream: how long, in times memory
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub stream: u64,
    /// stream: how far it goes between two readings of the hot set [default: a quarter of memory]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub every: Option<u64>,
    /// thrash: cold memory
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = size)]
    pub cold: u64,
    /// thrash: hot-1, and hot-2
    #[arg(long, value_name = "SIZE", default_value = "96M", value_parser = size)]
    pub hot: u64,
    /// thrash: cold memory of each repeat
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = size)]
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
pub enum Part {
    /// A hot set beside a stream
    Stream,
    /// Cold, hot-1, hot-2
    Thrash,
    /// Traces, without running anything
    Traces,
}

impl WorkingSet {
    /// The engines: those that were asked for, or hugeswap with [`COMPARED`].
    pub fn against(&self) -> Against {
        let mut against = self.against.clone();
        if against.also.is_empty() {
            against.also = COMPARED.map(String::from).into();
        }
        against
    }

    /// The set-up of a part and the program that is measured; `None` for the traces.
    pub fn programs(&self, part: Part) -> Option<[Program; 2]> {
        let pages = |bytes: u64| (bytes / UNIT_BYTES * UNIT_BYTES / PAGE_BYTES) as usize;
        match part {
            Part::Stream => {
                let hot = pages(self.memory / 2);
                let stream = pages(self.memory.saturating_mul(self.stream));
                let piece = pages(self.every.unwrap_or(self.memory / 4)).max(1);
                let stream = Program::Stream { hot, stream, piece };
                Some([Program::Hot { hot }, stream])
            }
            Part::Thrash => {
                let (cold, hot, reads) = (pages(self.cold), pages(self.hot), pages(self.reads));
                let write = self.access == Access::Write;
                let sizes = Sizes {
                    cold,
                    hot,
                    reads,
                    write,
                };
                let repeats = Program::Thrash(sizes, self.repeats as usize);
                Some([Program::Cold(sizes), repeats])
            }
            Part::Traces => None,
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
            compressible: 1,
        }
    }

    /// Checks everything that can be checked without a run.
    pub fn check(&self) -> Result<()> {
        self.common.check()?;
        check_memory(self.memory)?;
        if self.memory < hugeswap_engine::pool::MIN_MEMORY {
            return wrong("--memory must be at least 16M");
        }
        no_repeats("--parts", &self.parts)?;
        within("--stream", [self.stream], 1..=1000)?;
        within("--repeats", [self.repeats], 1..=10_000)?;
        if self.reads > self.cold {
            return wrong("--reads must not be more than --cold");
        }
        within("--units", [self.units], 64..=1_000_000)?;
        if self.plot.is_some() && self.parts == [Part::Stream] {
            return wrong("--plot draws the parts thrash and traces: name one");
        }
        writable_chart(self.plot.as_deref())?;
        self.against.check()?;
        self.against.device(&self.common, false).map(drop)
    }
}
