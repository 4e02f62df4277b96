//! Faults that the engine's state cannot explain.
//!
//! Another thread may just have resolved such a fault. The access is tried once more; if the same
//! thread faults there again, the access is the program's own error.

use crate::outcome::Outcome;
use hugeswap_sys::{now_ns, process};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The last doubtful fault of each thread, and when it was (nanoseconds). Threads that share an entry
/// forget each other's, and try once more.
static DOUBTS: [(AtomicU64, AtomicU64); 64] =
    [const { (AtomicU64::new(0), AtomicU64::new(0)) }; 64];

/// An access that is tried again faults within this time, or the thread was not running and may try
/// once more. What a thread doubted longer ago was resolved.
const SOON_NS: u64 = 100_000_000;

/// How often a thread has met a fault that cannot be explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// For the first time.
    First,
    /// At the same address as a moment before.
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
    let (last, at) = &DOUBTS[(tid % 64) as usize];
    let now = now_ns();
    let is_soon = now.saturating_sub(at.swap(now, Relaxed)) < SOON_NS;
    match last.swap(mark, Relaxed) == mark && is_soon {
        true => Doubt::Again,
        false => Doubt::First,
    }
}

/// In a forked child: thread ids mean others now.
pub(crate) fn forget_all() {
    DOUBTS.iter().for_each(|(last, _)| last.store(0, Relaxed));
}
