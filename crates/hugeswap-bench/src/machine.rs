//! The machine that figures are measured on, and its load.

use anyhow::{Context, Result};
use hugeswap_support::proc::chosen;
use serde::Serialize;

/// The facts beside every set of figures.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// CPUs this process may use.
    pub cpus: usize,
    /// Kernel release.
    pub kernel: String,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// The choice in `transparent_hugepage/enabled`.
    pub thp: String,
}

/// This machine.
pub fn describe() -> Result<Machine> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    Ok(Machine {
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        memory_bytes: memory_bytes()?,
        thp: chosen(&read("/sys/kernel/mm/transparent_hugepage/enabled"))
            .unwrap_or("unavailable")
            .to_owned(),
    })
}

/// Memory of the machine, bytes.
pub fn memory_bytes() -> Result<u64> {
    meminfo("MemTotal")
}

/// Memory that is available without swapping, bytes.
pub fn available_bytes() -> Result<u64> {
    meminfo("MemAvailable")
}

fn meminfo(name: &str) -> Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
    let line = text.lines().find(|l| l.split(':').next() == Some(name));
    let kib = line
        .and_then(|l| l.split_whitespace().nth(1))
        .and_then(|n| n.parse::<u64>().ok());
    Ok(kib.with_context(|| format!("/proc/meminfo has no {name}"))? << 10)
}

/// Load averages over 1, 5 and 15 minutes.
pub fn load() -> [f64; 3] {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let mut words = text.split_whitespace().map(|w| w.parse().unwrap_or(0.0));
    std::array::from_fn(|_| words.next().unwrap_or(0.0))
}
