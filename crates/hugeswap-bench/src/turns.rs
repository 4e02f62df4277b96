//! Engines take turns: hugeswap, hugeswap with other settings, and the kernel, on the same device, pair after pair.
//!
//! A ratio is formed within each pair and the median of the pairs is what counts.

use super::Usage;
use super::args::{Against, Common, Device, KernelThp, Span};
use super::child::Ended;
use super::kernel::{self, Keeper, Medium, Opponent};
use super::output::{Outcome, Progress};
use super::runner::{self, Hugeswap, Run};
use super::worker::{Thp, Work};
use anyhow::{Result, bail};
use hugeswap_support::interrupt::Interrupted;
use std::path::{Path, PathBuf};

/// The kernel reads 4 KiB at a time: at the end of its runs one huge page in so many is verified.
pub const KERNEL_VERIFIES_ONE_IN: u32 = 8;

/// Who runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Engine {
    /// hugeswap, perhaps with more settings.
    Hugeswap { also: Option<String> },
    /// The kernel's swap.
    Kernel(Thp),
}

impl Engine {
    fn in_words(&self) -> String {
        match self {
            Engine::Hugeswap { also: None } => "hugeswap".to_owned(),
            Engine::Hugeswap { also: Some(also) } => format!("hugeswap, {also}"),
            Engine::Kernel(Thp::On) => "kernel, huge pages on".to_owned(),
            Engine::Kernel(_) => "kernel, huge pages off".to_owned(),
        }
    }
}

/// Everything the engines need, set up until it is closed or dropped.
pub struct Turns<'a> {
    common: &'a Common,
    against: &'a Against,
    span: &'a Span,
    pairs: u32,
    /// Values for `--swap`.
    swap: Vec<String>,
    /// Where the engines swap, if it is known.
    dir: Option<PathBuf>,
    keeper: Option<Keeper>,
    opponent: Option<Opponent>,
}

impl<'a> Turns<'a> {
    /// Prepares the device (with so many bytes beyond what swap takes) and, if asked for and permitted, the opponent.
    /// What cannot be had is skipped, with the reason; only what was asked for by name has to be there.
    pub fn set_up(
        span: &'a Span,
        against: &'a Against,
        common: &'a Common,
        (device, extra_bytes): (Device, u64),
        outcome: &mut Outcome,
    ) -> Result<Turns<'a>> {
        let mut vs_kernel = against.vs.is_some();
        if vs_kernel && !kernel::permitted() {
            outcome.skip("the kernel's swap: turning swap on needs root".into());
            vs_kernel = false;
        }
        let mut turns = Turns {
            common,
            against,
            span,
            pairs: common.pairs(),
            swap: common.swap.clone(),
            dir: None,
            keeper: None,
            opponent: None,
        };
        let zram = device == Device::Zram;
        match device {
            Device::Default => {}
            Device::Directory(dir) => {
                if vs_kernel && in_memory(&dir) {
                    let dir = dir.display();
                    return Err(Usage(format!("{dir} is in memory, and swap there can itself be swapped, which hangs the kernel: use --device ram")).into());
                }
                if turns.swap.is_empty() {
                    turns.swap.push(dir.display().to_string());
                }
                turns.dir = Some(dir);
            }
            Device::Ram | Device::Zram => match turns.ram(vs_kernel, zram, extra_bytes) {
                Ok(dir) => {
                    let bytes = kernel::swap_bytes(span.region);
                    turns.swap = vec![format!("{},size={bytes},tmpfs=allow", dir.display())];
                    turns.dir = Some(dir);
                }
                Err(e) if e.is::<Usage>() || e.is::<Interrupted>() || against.vs.is_none() => {
                    return Err(e.context("--device ram"));
                }
                Err(e) => outcome.skip(format!("the RAM device: {e:#}")),
            },
        }
        if vs_kernel {
            turns.oppose(zram, outcome)?;
        }
        Ok(turns)
    }

    /// Makes the RAM device, large enough for everything that will be on it.
    fn ram(&mut self, vs_kernel: bool, zram: bool, extra_bytes: u64) -> Result<PathBuf> {
        if !kernel::permitted() {
            bail!("mounting a tmpfs needs root: use --device DIR");
        }
        let engines = 1 + u64::from(vs_kernel);
        let swap = kernel::swap_bytes(self.span.region);
        // What is in zram may be as large as it was, but is not on the tmpfs.
        let beside = if zram { swap } else { 0 };
        let bytes = engines * swap - beside + extra_bytes + (64 << 20);
        let keeper = self.keeper.insert(Keeper::start()?);
        kernel::ram_device(keeper, bytes, self.span.memory + beside)
    }

    fn oppose(&mut self, zram: bool, outcome: &mut Outcome) -> Result<()> {
        let Some(dir) = &self.dir else {
            return Ok(());
        };
        let keeper = match &mut self.keeper {
            Some(k) => k,
            None => self.keeper.insert(Keeper::start()?),
        };
        let medium = match (zram, in_memory(dir)) {
            (true, _) => Medium::Zram,
            (false, true) => Medium::Loop,
            (false, false) => Medium::File,
        };
        match Opponent::new(keeper, dir, self.span.region, self.span.memory, medium) {
            Ok(opponent) => self.opponent = Some(opponent),
            Err(e) if e.is::<Interrupted>() => return Err(e),
            Err(e) => outcome.skip(format!("the kernel's swap: {e:#}")),
        }
        Ok(())
    }

    /// Who takes turns, in order.
    pub fn engines(&self) -> Vec<Engine> {
        let also = self.against.also.iter().cloned().map(Some);
        let mut engines: Vec<_> = std::iter::once(None)
            .chain(also)
            .map(|also| Engine::Hugeswap { also })
            .collect();
        if self.opponent.is_some() {
            engines.extend(match self.against.kernel_thp {
                KernelThp::On => vec![Engine::Kernel(Thp::On)],
                KernelThp::Off => vec![Engine::Kernel(Thp::Off)],
                KernelThp::Both => vec![Engine::Kernel(Thp::On), Engine::Kernel(Thp::Off)],
            });
        }
        engines
    }

    /// Times each engine takes a turn.
    pub fn pairs(&self) -> u32 {
        self.pairs
    }

    /// The same with another number of turns.
    pub fn of_pairs(self, pairs: u32) -> Turns<'a> {
        Turns { pairs, ..self }
    }

    /// Where the engines swap, if it is known.
    pub fn dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    /// One turn, after memory has been touched; `what` is done, in words.
    pub fn run(
        &mut self,
        engine: &Engine,
        work: &Work,
        (pair, what): (u32, &str),
        progress: &mut Progress,
    ) -> Result<Run> {
        // What an engine takes from the machine: its memory, and what it writes to a RAM device.
        let in_ram = self.dir().is_some_and(in_memory);
        let device = if in_ram {
            kernel::swap_bytes(self.span.region)
        } else {
            0
        };
        let who = engine.in_words();
        progress.begin(format!("{who}{what}, {pair} of {}", self.pairs()));
        let limit = self.common.limit();
        runner::warm_up(self.span.memory + device, limit)?;
        let run = match engine {
            Engine::Hugeswap { also } => {
                let hugeswap = Hugeswap {
                    also: also.as_deref(),
                    ..Hugeswap::new(self.span.memory, &self.swap, self.common)
                };
                hugeswap.run(work, |l| progress.figure(l))?
            }
            Engine::Kernel(thp) => {
                let (Some(opponent), Some(keeper)) = (&self.opponent, &mut self.keeper) else {
                    bail!("the kernel's swap was not set up");
                };
                let work = Work {
                    thp: *thp,
                    ..work.clone()
                };
                opponent.run(keeper, &work, limit, |l| progress.figure(l))?
            }
        };
        progress.end();
        Ok(run.with("pair", pair))
    }

    /// One turn of any program; how it went, and what was counted. `kernel_memory`: the limit of the kernel's runs, bytes.
    pub fn run_program(
        &mut self,
        engine: &Engine,
        argv: &[String],
        (pair, kernel_memory): (u32, u64),
        progress: &mut Progress,
    ) -> Result<(Run, Result<(Ended, u64)>)> {
        progress.begin(format!("{}, {pair} of {}", engine.in_words(), self.pairs()));
        let limit = self.common.limit();
        let (run, done) = match engine {
            Engine::Hugeswap { also } => {
                let hugeswap = Hugeswap {
                    also: also.as_deref(),
                    ..Hugeswap::new(self.span.memory, &self.swap, self.common)
                };
                let (done, report) = hugeswap.run_program(argv)?;
                let mut run = Run::of("hugeswap").with("memory_bytes", self.span.memory);
                for name in ["fault_mode", "peak_resident_bytes", "peak_unmanaged_bytes"] {
                    run.params.insert(name.into(), report[name].clone());
                }
                run.params
                    .extend(also.iter().map(|a| ("also".into(), a.as_str().into())));
                run.huge_share = report["huge_share"].as_f64();
                run.counters = report;
                (run, done)
            }
            Engine::Kernel(thp) => {
                let (Some(opponent), Some(keeper)) = (&self.opponent, &mut self.keeper) else {
                    bail!("the kernel's swap was not set up");
                };
                let (done, counters) =
                    opponent.run_program(keeper, (argv, *thp), kernel_memory, limit)?;
                let thp = if *thp == Thp::On { "on" } else { "off" };
                let mut run = Run::of("kernel").with("memory_bytes", kernel_memory);
                run = run.with("thp", thp);
                run.counters = serde_json::to_value(counters)?;
                (run, done)
            }
        };
        progress.end();
        Ok((run.with("pair", pair), done))
    }

    /// Undoes what was set up; an error if that failed.
    pub fn close(self, progress: &mut Progress) -> Result<()> {
        progress.begin("undoing what was set up");
        // Looked at while it is still ours: a device's name may be somebody else's a moment later.
        if let Some(opponent) = &self.opponent {
            opponent.check_off()?;
        }
        self.keeper.map_or(Ok(()), Keeper::close)
    }
}

/// Is this directory on a file system that lives in memory?
fn in_memory(dir: &Path) -> bool {
    const RAMFS_MAGIC: u64 = 0x8584_58f6;
    rustix::fs::statfs(dir)
        .is_ok_and(|s| [libc::TMPFS_MAGIC as u64, RAMFS_MAGIC].contains(&(s.f_type as u64)))
}
