//! Faults that the engine's state cannot explain.
//!
//! Another thread may just have resolved such a fault. The access is tried once more; if the same
//! thread faults there again, the access is the program's own error.

use crate::outcome::Outcome;
use hugeswap_sys::process;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The last doubtful fault of each thread. Threads that share an entry forget each other's, and try
/// once more.
static DOUBTS: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

/// How often a thread has met a fault that cannot be explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// For the first time.
    First,
    /// At the same address as the time before.
    Again,
}

impl Doubt {
    /// The outcome of the fault.
    pub fn outcome(self) -> Outcome {
        match self {
            Doubt::First => Outcome::Retry,
            Doubt::Again => Outcome::NotOurs,
        }
    }
}

/// Notes that the calling thread has met such a fault at `addr`.
pub(crate) fn raise(addr: usize) -> Doubt {
    let tid = process::tid() as u64;
    let mark = (addr as u64) ^ (tid << 48);
    match DOUBTS[(tid % 64) as usize].swap(mark, Relaxed) == mark {
        true => Doubt::Again,
        false => Doubt::First,
    }
}

/// In a forked child: thread ids mean others now.
pub(crate) fn forget_all() {
    DOUBTS.iter().for_each(|d| d.store(0, Relaxed));
}
