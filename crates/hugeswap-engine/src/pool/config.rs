//! What a pool is made from, and why one could not be made or joined.

use super::layout::{MAX_AREAS, MAX_PROCESSES};
use super::swap::SwapSpec;
use hugeswap_policy::knobs::Knob;
use hugeswap_sys::Errno;

/// How the faults of a pool are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u32)]
pub enum FaultMode {
    /// What the machine allows, signal first.
    #[default]
    Auto = 0,
    /// SIGSEGV in the faulting thread; units moved by mremap. No privilege.
    Signal = 1,
    /// A thread reads events from a userfaultfd; units moved by UFFDIO_MOVE. Privileged.
    Message = 2,
}

impl FaultMode {
    /// Its name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            FaultMode::Auto => "auto",
            FaultMode::Signal => "signal",
            FaultMode::Message => "message",
        }
    }
}

/// Configuration of a pool.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// The budget, bytes; rounded down to whole units of 2 MiB.
    pub memory: u64,
    /// The swap areas; empty: [`default_area`](super::swap::default_area).
    pub swap: Vec<SwapSpec>,
    /// How faults are taken.
    pub fault_mode: FaultMode,
    /// Settings other than the defaults.
    pub settings: Vec<(Knob, u64)>,
}

/// The smallest budget, bytes.
pub const MIN_MEMORY: u64 = 16 << 20;

/// Why a pool could not be made or joined; one line each, telling what to do.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum PoolError {
    #[error("memory budget of {} is too small: at least {} MiB (write {}M)", as_given(*.0), MIN_MEMORY >> 20, MIN_MEMORY >> 20)]
    TooSmall(u64),
    #[error("memory budget of {} MiB is more than this machine has ({} MiB): give less", asked >> 20, has >> 20)]
    TooLarge { asked: u64, has: u64 },
    #[error("swap {noun} {path} {what}: {hint}")]
    Swap {
        noun: &'static str,
        path: String,
        what: String,
        hint: String,
    },
    #[error(
        "no directory for swap was found on a disk: name one with --swap DIR, or do without: --swap mem"
    )]
    NoSwapDirectory,
    #[error("more than {MAX_AREAS} swap areas: name fewer")]
    TooManyAreas,
    #[error(
        "the pool's own file takes {} KiB, and files of this process may have {} KiB (ulimit -f): raise that limit", needed >> 10, limit >> 10
    )]
    FileLimit { needed: u64, limit: u64 },
    #[error("process {0} made the pool, and only it can add swap areas")]
    NotMaker(i32),
    #[error("process {0} records this pool already: one at a time can")]
    Recorded(i32),
    #[error("more than {MAX_PROCESSES} processes share this pool: start fewer at a time")]
    TooManyProcesses,
    #[error(
        "the pool segment is damaged or from another version of hugeswap: start again with one version"
    )]
    BadSegment,
    #[error("the pool of process {0} cannot be reached: {1}")]
    Unreachable(i32, Errno),
    #[error("{0}: {1}")]
    System(&'static str, Errno),
}

/// An exact size, for messages about a mistake in it.
fn as_given(bytes: u64) -> String {
    match bytes {
        b if b == 0 || !b.is_multiple_of(1 << 10) => format!("{b} bytes"),
        b if !b.is_multiple_of(1 << 20) => format!("{} KiB", b >> 10),
        b => format!("{} MiB", b >> 20),
    }
}

/// Memory of the machine, bytes.
pub fn machine_memory() -> u64 {
    // SAFETY: sysconf only asks.
    let (pages, size) = unsafe {
        (
            libc::sysconf(libc::_SC_PHYS_PAGES),
            libc::sysconf(libc::_SC_PAGESIZE),
        )
    };
    (pages.max(0) as u64) * (size.max(0) as u64)
}
