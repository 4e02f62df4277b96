//! The machine a figure was measured on, and its load at the time.

use anyhow::{Context, Result};
use serde::Serialize;

/// What stands beside every set of figures.
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

/// The machine at hand.
pub fn describe() -> Result<Machine> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    Ok(Machine {
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        memory_bytes: memory_bytes()?,
        thp: chosen(&read("/sys/kernel/mm/transparent_hugepage/enabled"))
            .unwrap_or_else(|| "unavailable".into()),
    })
}

/// Memory of the machine, bytes.
pub fn memory_bytes() -> Result<u64> {
    meminfo("MemTotal")
}

/// Memory that can be had without swapping, bytes.
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

/// The word in brackets, which is how sysfs shows a choice.
pub fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word.to_owned())
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_choice_is_in_brackets() {
        assert_eq!(
            super::chosen("always [madvise] never\n").as_deref(),
            Some("madvise")
        );
        assert_eq!(super::chosen("1\n"), None);
    }
}
