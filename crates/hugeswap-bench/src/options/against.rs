//! The engines that hugeswap is measured against, and the device that all of them swap to.

use super::common::Common;
use crate::error::{Usage, wrong};
use crate::generate::plan::Thp;
use clap::ValueEnum;
use hugeswap_policy::knobs;
use std::path::PathBuf;

/// The end of the help of every benchmark with `--vs kernel`.
pub const HELP: &str = "\
--vs kernel needs root: for each kernel run it turns on a swap area of its own, and off again after,
also on failure or Ctrl-C. --device ram is a private tmpfs that cannot itself be swapped; the kernel
swaps to a loop device on it. With --device zram hugeswap uses the same, and the kernel a zram device.
With --device mem hugeswap compresses what leaves memory within its budget (--swap mem), and what the kernel's
zram device takes of memory is taken off its limit, all the time. So is what zswap takes with
--kernel-zswap, where the control group does not count it (version 1).";

// The engines that run in turn.
#[derive(Clone, clap::Args)]
pub struct Against {
    /// The opponent to run in turn with hugeswap
    #[arg(long, value_name = "ENGINE", value_enum)]
    pub vs: Option<Opponent>,
    /// Huge pages for the kernel's runs
    #[arg(long, value_name = "WHICH", value_enum, default_value = "both")]
    pub kernel_thp: KernelThp,
    /// The kernel's runs have its zswap before their swap area, as it is set (compressor, size)
    #[arg(long, requires = "vs")]
    pub kernel_zswap: bool,
    /// Run hugeswap with these settings too, in turn; may be repeated
    #[arg(long, value_name = "KEY=VALUE[,KEY=VALUE]")]
    pub also: Vec<String>,
    /// Where all engines swap: `mem`, `ram` (root), `zram` (root), or a directory on a disk
    /// [default: --swap if given, else ram with --vs kernel]
    #[arg(long, value_name = "mem|ram|zram|DIR")]
    pub device: Option<String>,
}

/// The engine that hugeswap is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Opponent {
    /// The kernel's own swap (root)
    Kernel,
}

/// The runs of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KernelThp {
    /// With huge pages only
    On,
    /// Without huge pages only
    Off,
    /// Both, in turn
    Both,
}

impl KernelThp {
    /// Which advice on huge pages the kernel's runs give.
    pub fn advice(self) -> &'static [Thp] {
        match self {
            KernelThp::On => &[Thp::On],
            KernelThp::Off => &[Thp::Off],
            KernelThp::Both => &[Thp::On, Thp::Off],
        }
    }
}

/// The device that the engines swap to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Device {
    /// A private tmpfs that is never swapped.
    Ram,
    /// The same for hugeswap, a zram device for the kernel.
    Zram,
    /// Compressed memory within the budget; for the kernel a zram device within its limit.
    Memory,
    /// A directory on a disk.
    Directory(PathBuf),
    /// What `--swap` says, or what `hugeswap run` chooses.
    Default,
}

impl Against {
    /// Checks everything but the device.
    pub fn check(&self) -> anyhow::Result<()> {
        for setting in self.also.iter().flat_map(|s| s.split(',')) {
            knobs::parse_setting(setting).map_err(|e| Usage(format!("--also: {e}")))?;
        }
        Ok(())
    }

    /// The device, from `--device`, `--swap` and `--vs`. `known`: its directory has to be known.
    pub fn device(&self, common: &Common, known: bool) -> anyhow::Result<Device> {
        let directory = |dir: &str| {
            let path = PathBuf::from(dir);
            if path.is_dir() {
                Ok(Device::Directory(path))
            } else {
                wrong(format!(
                    "{dir} is not a directory: give `mem`, `ram`, `zram` or a directory on a disk"
                ))
            }
        };
        if self.kernel_zswap && matches!(self.device.as_deref(), Some("zram" | "mem")) {
            return wrong(
                "--kernel-zswap is for swap on a device: zram compresses already; give --device DIR or ram",
            );
        }
        match (self.device.as_deref(), common.swap.first()) {
            (Some(_), Some(_)) => wrong("--device and --swap both say where to swap: give one"),
            (Some("ram"), None) => Ok(Device::Ram),
            (Some("mem"), None) => Ok(Device::Memory),
            (Some("zram"), None) if self.vs.is_some() => Ok(Device::Zram),
            (Some("zram"), None) => {
                wrong("--device zram is for the kernel's runs: add --vs kernel")
            }
            (Some(d), None) => directory(d),
            (None, Some(s)) if self.vs.is_some() || known => {
                directory(s.split(',').next().unwrap_or(s))
            }
            (None, None) if self.vs.is_some() => Ok(Device::Ram),
            (None, _) => Ok(Device::Default),
        }
    }
}
