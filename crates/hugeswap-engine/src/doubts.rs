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
    raise_at(addr, process::tid() as u64, now_ns())
}

fn raise_at(addr: usize, tid: u64, now: u64) -> Doubt {
    let mark = (addr as u64) ^ (tid << 48);
    let (last, at) = &DOUBTS[(tid % 64) as usize];
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doubt_is_of_a_moment() {
        const TID: u64 = 0x7fff_0001;
        assert_eq!(raise_at(0x1000, TID, SOON_NS), Doubt::First);
        assert_eq!(raise_at(0x1000, TID, SOON_NS + 1), Doubt::Again);
        assert_eq!(raise_at(0x2000, TID, SOON_NS + 2), Doubt::First);
        // It was resolved, or it would have been again at once.
        assert_eq!(raise_at(0x2000, TID, 2 * SOON_NS + 2), Doubt::First);
        assert_eq!(raise_at(0x2000, TID, 3 * SOON_NS + 1), Doubt::Again);
    }
}
