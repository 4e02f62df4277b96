//! Faults that the engine's state cannot explain.
//!
//! Another thread may just have resolved such a fault. The access is tried again; if the same thread
//! faults there again and again, and does nothing else in between, the access is the program's own
//! error.

use crate::outcome::Outcome;
use hugeswap_sys::{process, thread_cpu_ns};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The doubtful faults of each thread. Threads that share an entry forget each other's, and try more
/// often.
static DOUBTS: [Doubts; 64] = [const { Doubts::new() }; 64];

/// An access that is tried again faults within this much of the thread's processor time: it is a few
/// instructions, the kernel's and the handler's. What a thread doubted before that was resolved.
const SOON_NS: u64 = 20_000;
/// So often is an access tried again that faults each time. (Once is not enough: a unit may be the
/// kernel's, the engine's and the kernel's again meanwhile.)
const MOST_TRIES: u64 = 4;

/// The last doubtful fault of a thread.
struct Doubts {
    /// Address and thread.
    last: AtomicU64,
    /// When it was, in the thread's processor time (nanoseconds).
    at: AtomicU64,
    /// How often it has been met without a break.
    times: AtomicU64,
}

impl Doubts {
    const fn new() -> Doubts {
        Doubts {
            last: AtomicU64::new(0),
            at: AtomicU64::new(0),
            times: AtomicU64::new(0),
        }
    }
}

/// What a fault is that cannot be explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// The access is to be tried again.
    Open,
    /// It has been, in vain.
    Settled,
}

impl Doubt {
    /// The outcome of the fault.
    pub fn outcome(self) -> Outcome {
        match self {
            Doubt::Open => Outcome::Retry,
            Doubt::Settled => Outcome::NotOurs,
        }
    }
}

/// Notes that the calling thread has met such a fault at `addr`.
pub(crate) fn raise(addr: usize) -> Doubt {
    raise_at(addr, process::tid() as u64, thread_cpu_ns())
}

fn raise_at(addr: usize, tid: u64, now: u64) -> Doubt {
    let mark = (addr as u64) ^ (tid << 48);
    let doubts = &DOUBTS[(tid % 64) as usize];
    let is_soon = now.saturating_sub(doubts.at.swap(now, Relaxed)) < SOON_NS;
    if doubts.last.swap(mark, Relaxed) != mark || !is_soon {
        doubts.times.store(0, Relaxed);
    }
    match doubts.times.fetch_add(1, Relaxed) < MOST_TRIES {
        true => Doubt::Open,
        false => Doubt::Settled,
    }
}

/// In a forked child: thread ids mean others now.
pub(crate) fn forget_all() {
    let all = DOUBTS.iter();
    all.for_each(|doubts| doubts.last.store(0, Relaxed));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doubt_is_of_a_moment() {
        const TID: u64 = 0x7fff_0001;
        let mut now = SOON_NS;
        let mut raise = |addr, later| {
            now += later;
            raise_at(addr, TID, now)
        };
        for _ in 0..MOST_TRIES {
            assert_eq!(raise(0x1000, 1), Doubt::Open);
        }
        assert_eq!(raise(0x1000, 1), Doubt::Settled);
        // It was resolved, or it would have been again at once.
        for _ in 0..2 * MOST_TRIES {
            assert_eq!(raise(0x1000, SOON_NS), Doubt::Open);
        }
        // So it was if the thread has gone on elsewhere.
        for _ in 0..MOST_TRIES {
            assert_eq!(raise(0x1000, 1), Doubt::Open);
            assert_eq!(raise(0x2000, 1), Doubt::Open);
        }
    }
}
