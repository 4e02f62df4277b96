//! Arguments of `defrag`.

use crate::error::{no_repeats, within, wrong};
use crate::options::{Against, Common, Device, KernelThp, Named, Span, check_memory, size};
use anyhow::Result;
use clap::ValueEnum;
use clap::builder::PossibleValuesParser;
use hugeswap_policy::{UNIT_BYTES, knobs};

/// The largest number of threads.
const MOST: u32 = 256;
/// `always` without pauses: a thread that finds no memory waits for it, and no thread waits before that.
const DIRECT: &str = "direct";

// Arguments of `hugeswap bench defrag`.
#[derive(clap::Args)]
#[command(after_help = "\
EXAMPLES:
  hugeswap bench defrag
  hugeswap bench defrag --advise --policies always,madvise
  hugeswap bench defrag --parts stutter --memory 1G --seconds 30 --pairs 3 --device ram
  hugeswap bench defrag --parts touch --threads 1,2,4,8 --touch 2G --settle 0.1 --json

Each run is with another value of thp.defrag (--policies), in turn, and the first without pauses
of threads that take memory too fast (direct). Parts:
  fill     New memory (80% of --memory) is written from start to end by --threads threads, while
           --streams threads read through --region (as much as --memory). What counts is the time
           it takes.
  touch    First --region (twice --memory) is read at random, 4 KiB at a time, at most for
           --seconds, so that memory is scattered over base pages (huge before %: what is still
           huge of it). Then --threads threads touch new memory (twice --memory), while --streams
           threads read through --region. Each first touch is timed: of 2 MiB, whatever it brings;
           of what got 2 MiB at once (huge); and of base pages (base), the first of a unit and all
           that were not there yet when their turn came.
  stutter  Memory (1/64 of --memory) is mapped, touched and unmapped every 5 ms, while --streams
           threads write --region (twice --memory), for --seconds. Its time, without unmapping,
           is given for a MiB.
Then all threads rest for --settle seconds: huge after % is the share of the new memory (stutter:
of --region) in memory that is mapped by huge pages then. Everything that was written is verified
in the end. Counters are of what is measured and of the rest after it, streams included.
All of it takes about 10 minutes; --settle 1 takes 4 off.")]
pub struct Defrag {
    /// What is run, in this order
    #[arg(long, value_name = "PARTS", value_enum, value_delimiter = ',', default_values = ["fill", "touch", "stutter"])]
    pub parts: Vec<Part>,
    /// Values of thp.defrag, or direct: always, without pauses (vm.throttle_max_usec=0); ratios are to the first
    #[arg(
        long,
        value_name = "POLICIES",
        value_delimiter = ',',
        value_parser = PossibleValuesParser::new(policies()),
        default_values = policies()
    )]
    pub policies: Vec<String>,
    /// Advise MADV_HUGEPAGE for the memory that is measured
    #[arg(long)]
    pub advise: bool,
    /// hugeswap's budget
    #[arg(long, value_name = "SIZE", default_value = "600M", value_parser = size)]
    pub memory: u64,
    /// What competes with it [default: as much as --memory; touch, stutter: twice that]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub region: Option<u64>,
    /// fill, touch: new memory that is touched [default: 80% of --memory; touch: twice --memory]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub touch: Option<u64>,
    /// stutter: what is mapped each time [default: 1/64 of --memory]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub map: Option<u64>,
    /// fill, touch: threads that touch new memory; several numbers are run one after the other
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 4])]
    pub threads: Vec<u32>,
    /// Threads that compete [default: 1; stutter: 2]
    #[arg(long, value_name = "N")]
    pub streams: Option<u32>,
    /// How long stutter goes on, and at most the reading before touch
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    pub seconds: f64,
    /// How long after the end of the pressure huge pages are counted
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    pub settle: f64,
    /// Where to swap: `ram` (root), or a directory on a disk [default: --swap if given, else as `hugeswap run`]
    #[arg(long, value_name = "ram|DIR")]
    pub device: Option<String>,
    #[command(flatten)]
    pub common: Common,
}

/// The phase after the one that is measured, which has the name of its part.
pub const SETTLED: &str = "settled";
/// The phase in which memory is scattered over base pages.
pub const SCATTERED: &str = "scattered";

/// A part of `defrag`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// New memory is written from start to end, beside streams
    Fill,
    /// New memory is touched where all memory is scattered over base pages
    Touch,
    /// Memory is mapped and unmapped every 5 ms, beside streams
    Stutter,
}

fn policies() -> Vec<&'static str> {
    [&[DIRECT], knobs::defrag::WORDS].concat()
}

/// The settings of one of `policies`.
pub fn settings_of(policy: &str) -> String {
    match policy {
        DIRECT => "thp.defrag=always,vm.throttle_max_usec=0".into(),
        word => format!("thp.defrag={word}"),
    }
}

fn units(bytes: u64) -> u64 {
    (bytes / UNIT_BYTES * UNIT_BYTES).max(UNIT_BYTES)
}

impl Defrag {
    /// Bytes of memory that compete.
    pub fn region_of(&self, part: Part) -> u64 {
        self.region.unwrap_or(match part {
            Part::Fill => self.memory,
            Part::Touch | Part::Stutter => 2 * self.memory,
        })
    }

    /// Bytes of new memory; 0 for `stutter`, which unmaps it again.
    pub fn touch_of(&self, part: Part) -> u64 {
        match part {
            Part::Fill => self.touch.unwrap_or(units(self.memory / 10 * 8)),
            Part::Touch => self.touch.unwrap_or(2 * self.memory),
            Part::Stutter => 0,
        }
    }

    /// Bytes that `stutter` maps.
    pub fn map(&self) -> u64 {
        self.map.unwrap_or(units(self.memory / 64))
    }

    /// Numbers of threads of the runs of a part.
    pub fn threads_of(&self, part: Part) -> &[u32] {
        match part {
            Part::Fill | Part::Touch => &self.threads,
            Part::Stutter => &[1],
        }
    }

    /// Threads that compete.
    pub fn streams_of(&self, part: Part) -> u32 {
        self.streams.unwrap_or(match part {
            Part::Fill | Part::Touch => 1,
            Part::Stutter => 2,
        })
    }

    /// No engine but hugeswap.
    pub fn against(&self) -> Against {
        Against {
            vs: None,
            kernel_thp: KernelThp::Both,
            kernel_zswap: false,
            also: Vec::new(),
            device: self.device.clone(),
        }
    }

    /// Where to swap.
    pub fn device(&self) -> Result<Device> {
        match self.device.as_deref() {
            Some("zram") => wrong("--device takes `ram` or a directory on a disk"),
            _ => self.against().device(&self.common, false),
        }
    }

    /// The most that any part uses.
    pub fn span(&self) -> Span {
        let bytes = |&part: &Part| self.region_of(part) + self.touch_of(part);
        Span {
            region: self.parts.iter().map(bytes).max().unwrap_or(0) + self.map(),
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
        no_repeats("--policies", &self.policies)?;
        no_repeats("--threads", &self.threads)?;
        let numbers = self.threads.iter().chain(&self.streams).copied();
        within("--threads and --streams", numbers, 1..=MOST)?;
        for &part in &self.parts {
            let (region, touch) = (self.region_of(part), self.touch_of(part));
            let most = self.threads_of(part).iter().max().copied().unwrap_or(1);
            if touch > 0 && touch / UNIT_BYTES < u64::from(most) {
                return wrong(format!(
                    "--touch must be at least 2M for each of {most} threads"
                ));
            }
            if region.saturating_add(touch) <= self.memory {
                let part = part.name();
                return wrong(format!(
                    "{part}: --region and --touch fit in --memory, and no thread would have to wait: give more"
                ));
            }
            if region.checked_add(touch).is_none_or(|n| n > 1 << 42) {
                return wrong("--region and --touch must be at most 4T together");
            }
        }
        if self.map() > self.memory / 2 {
            return wrong("--map must be at most half of --memory");
        }
        self.common.check_seconds(self.seconds)?;
        within("--settle", [self.settle], 0.0..=3600.0)?;
        if self.seconds + self.settle >= self.common.timeout as f64 {
            return wrong("--seconds and --settle are not below --timeout: raise --timeout");
        }
        let sets_policy = |s: &String| {
            s.split_once('=')
                .is_some_and(|(k, _)| k.trim() == "thp.defrag")
        };
        if self.common.set.iter().any(sets_policy) {
            return wrong("--set thp.defrag is what --policies is for");
        }
        self.device().map(drop)
    }
}
