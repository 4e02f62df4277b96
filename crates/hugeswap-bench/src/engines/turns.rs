//! Engines take turns: hugeswap, hugeswap with other settings, and the kernel, on the same device, pair
//! after pair.
//!
//! A ratio is formed within each pair. The median of the pairs is what counts.

use super::hugeswap::{Hugeswap, warm_up};
use crate::child::Ended;
use crate::error::Usage;
use crate::generate::plan::{Thp, Work};
use crate::kernel::{self, Keeper, Medium, Opponent};
use crate::options::{Against, Common, Device, Span};
use crate::output::{Outcome, Progress, Run};
use anyhow::{Context, Result, bail};
use hugeswap_support::interrupt::Interrupted;
use std::path::{Path, PathBuf};

/// At the end of the kernel's runs one huge page in so many is verified: the kernel reads 4 KiB at a
/// time.
pub const KERNEL_VERIFIES_ONE_IN: u32 = 8;

/// An engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Engine {
    /// hugeswap, with more settings if `also` names some.
    Hugeswap { also: Option<String> },
    /// The kernel's swap.
    Kernel(Thp),
}

impl Engine {
    /// At the end of a run one huge page in so many is verified.
    pub fn verify_one_in(&self) -> u32 {
        match self {
            Engine::Hugeswap { .. } => 1,
            Engine::Kernel(_) => KERNEL_VERIFIES_ONE_IN,
        }
    }

    fn in_words(&self) -> String {
        match self {
            Engine::Hugeswap { also: None } => "hugeswap".to_owned(),
            Engine::Hugeswap { also: Some(also) } => format!("hugeswap, {also}"),
            Engine::Kernel(Thp::On) => "kernel, huge pages on".to_owned(),
            Engine::Kernel(_) => "kernel, huge pages off".to_owned(),
        }
    }
}

/// Everything that the engines need, set up until it is closed or dropped.
pub struct Turns<'a> {
    common: &'a Common,
    against: &'a Against,
    span: &'a Span,
    pairs: u32,
    /// Values for `--swap`.
    swap: Vec<String>,
    /// The directory that the engines swap to, if it is known.
    dir: Option<PathBuf>,
    keeper: Option<Keeper>,
    opponent: Option<Opponent>,
}

impl<'a> Turns<'a> {
    /// Prepares the device (with `extra_bytes` beside swap) and, if it is asked for and permitted, the
    /// opponent. An engine that cannot be set up is skipped, with the reason; a device that was asked for
    /// by name has to be there.
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
        let zram = match device {
            Device::Zram => Some(Medium::Zram),
            Device::Memory => Some(Medium::Within),
            _ => None,
        };
        match device {
            Device::Default => {}
            Device::Memory => turns.swap.push("mem".into()),
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
            Device::Ram | Device::Zram => match turns.ram(vs_kernel, zram.is_some(), extra_bytes) {
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
        // What zram holds may be as large as uncompressed, but is not on the tmpfs.
        let beside = if zram { swap } else { 0 };
        let bytes = engines * swap - beside + extra_bytes + (64 << 20);
        let keeper = self.keeper.insert(Keeper::start()?);
        kernel::ram_device(keeper, bytes, self.span.memory + beside)
    }

    fn oppose(&mut self, zram: Option<Medium>, outcome: &mut Outcome) -> Result<()> {
        // (A zram device has no file.)
        let within = zram.map(|_| PathBuf::new());
        let Some(dir) = self.dir.as_ref().or(within.as_ref()) else {
            return Ok(());
        };
        let keeper = match &mut self.keeper {
            Some(k) => k,
            None => self.keeper.insert(Keeper::start()?),
        };
        let medium = match (zram, in_memory(dir)) {
            (Some(zram), _) => zram,
            (None, true) => Medium::Loop,
            (None, false) => Medium::File,
        };
        let zswap = self.against.kernel_zswap;
        let opponent = Opponent::new(keeper, dir, self.span.region, self.span.memory, medium)
            .and_then(|o| if zswap { o.behind_zswap(keeper) } else { Ok(o) });
        match opponent {
            Ok(opponent) => self.opponent = Some(opponent),
            Err(e) if e.is::<Interrupted>() => return Err(e),
            Err(e) => outcome.skip(format!("the kernel's swap: {e:#}")),
        }
        Ok(())
    }

    /// The engines that take turns, in order.
    pub fn engines(&self) -> Vec<Engine> {
        let also = self.against.also.iter().cloned().map(Some);
        let mut engines: Vec<_> = std::iter::once(None)
            .chain(also)
            .map(|also| Engine::Hugeswap { also })
            .collect();
        if self.opponent.is_some() {
            let advice = self.against.kernel_thp.advice();
            engines.extend(advice.iter().map(|&thp| Engine::Kernel(thp)));
        }
        engines
    }

    /// Turns of each engine.
    pub fn pairs(&self) -> u32 {
        self.pairs
    }

    /// The same with another number of turns.
    pub fn of_pairs(self, pairs: u32) -> Turns<'a> {
        Turns { pairs, ..self }
    }

    /// The directory that the engines swap to, if it is known.
    pub fn dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    /// One turn, after memory has been touched; `what` names the work.
    pub fn run(
        &mut self,
        engine: &Engine,
        work: &Work,
        (pair, what): (u32, &str),
        progress: &mut Progress,
    ) -> Result<Run> {
        // An engine takes from the machine its memory, and what it writes to a RAM device.
        let in_ram = self.dir().is_some_and(in_memory);
        let device = if in_ram {
            kernel::swap_bytes(self.span.region)
        } else {
            0
        };
        let name = engine.in_words();
        progress.begin(format!("{name}{what}, {pair} of {}", self.pairs()));
        let limit = self.common.limit();
        warm_up(self.span.memory + device, limit)?;
        let work = &Work {
            compressible: self.span.compressible,
            ..work.clone()
        };
        let run = match engine {
            Engine::Hugeswap { also } => self.hugeswap(also).run(work, |l| progress.figure(l))?,
            Engine::Kernel(thp) => {
                let (opponent, keeper) = self.opponent()?;
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

    /// One turn of any program. Returns its figures and how it ended. `kernel_memory` is the limit of the
    /// kernel's runs in bytes.
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
                let (done, report) = self.hugeswap(also).run_program(argv)?;
                let mut run = Run::of("hugeswap").with("memory_bytes", self.span.memory);
                if let Some(also) = also {
                    run = run.with("also", also.as_str());
                }
                for figure in ["peak_unmanaged_bytes", "own_bytes"] {
                    run = run.with(figure, report[figure].clone());
                }
                (run.reported(report), done)
            }
            Engine::Kernel(thp) => {
                let (opponent, keeper) = self.opponent()?;
                let (done, counters) =
                    opponent.run_program(keeper, (argv, *thp), kernel_memory, limit)?;
                let thp = if *thp == Thp::On { "on" } else { "off" };
                let mut run = Run::of("kernel").with("memory_bytes", kernel_memory);
                run = run
                    .with("thp", thp)
                    .with("zswap", self.against.kernel_zswap);
                run.counters = serde_json::to_value(counters)?;
                (run, done)
            }
        };
        progress.end();
        Ok((run.with("pair", pair), done))
    }

    /// All engines run each part of the work, pair after pair; the runs go to `outcome`.
    pub fn take<P>(
        mut self,
        (engines, parts): (&[Engine], &[P]),
        outcome: &mut Outcome,
        what: impl Fn(&P) -> String,
        work: impl Fn(&P, &Engine) -> Work,
        described: impl Fn(&P, &Engine, Run) -> Result<Run>,
    ) -> Result<()> {
        let mut progress = Progress::new(self.pairs as usize * engines.len() * parts.len());
        for pair in 1..=self.pairs {
            for part in parts {
                for engine in engines {
                    let work = work(part, engine);
                    let run = self.run(engine, &work, (pair, &what(part)), &mut progress)?;
                    outcome.runs.push(described(part, engine, run)?);
                }
            }
        }
        self.close(&mut progress)
    }

    fn hugeswap<'s>(&'s self, also: &'s Option<String>) -> Hugeswap<'s> {
        Hugeswap {
            also: also.as_deref(),
            ..Hugeswap::new(self.span.memory, &self.swap, self.common)
        }
    }

    fn opponent(&mut self) -> Result<(&Opponent, &mut Keeper)> {
        let both = self.opponent.as_ref().zip(self.keeper.as_mut());
        both.context("the kernel's swap was not set up")
    }

    /// Undoes what was set up. An error if that failed.
    pub fn close(self, progress: &mut Progress) -> Result<()> {
        progress.begin("undoing what was set up");
        // Checked while the device is still ours: another process may use its name a moment later.
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
