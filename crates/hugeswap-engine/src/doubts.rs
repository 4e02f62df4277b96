//! Faults that the engine's state cannot explain.
//!
//! Another thread may just have resolved such a fault. The access is tried again; if the same thread
//! faults there again, and does nothing else in between, the access is the program's own error.
//!
//! (No system call is made for that which a program's own filter might refuse.)

use crate::outcome::Outcome;
use hugeswap_sys::{now_ns, process};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The doubtful faults of each thread. Threads that share an entry forget each other's, and try more
/// often.
static DOUBTS: [Doubts; 64] = [const { Doubts::new() }; 64];

/// How often an access is tried again that faults each time.
#[derive(Clone, Copy)]
struct Rule {
    tries: u64,
    /// What is tried again faults within this time (nanoseconds), or the thread was not running and
    /// may try more often. What it doubted before that was resolved.
    soon_ns: u64,
}

/// What the program may not do, by the engine's own state.
const ACCESS: Rule = Rule {
    tries: 1,
    soon_ns: MOMENT_NS,
};
/// Faults in memory of the kernel's. Once is not enough: a unit may have been the engine's at the
/// fault and the kernel's at the handler's look, again and again. But a program does something in
/// between, which takes longer than to try again.
const OF_KERNEL: Rule = Rule {
    tries: 4,
    soon_ns: 50_000,
};

const MOMENT_NS: u64 = 100_000_000;
/// Whatever the rule says: so many times, each a moment after the last, is enough.
const ENOUGH: u64 = 1000;

/// The last doubtful fault of a thread.
struct Doubts {
    /// Address and thread.
    last: AtomicU64,
    /// When it was (nanoseconds).
    at: AtomicU64,
    /// How often it has been met without a break by its rule, and by a moment.
    times: AtomicU64,
    in_all: AtomicU64,
}

impl Doubts {
    const fn new() -> Doubts {
        Doubts {
            last: AtomicU64::new(0),
            at: AtomicU64::new(0),
            times: AtomicU64::new(0),
            in_all: AtomicU64::new(0),
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

/// Notes that the calling thread has met a fault at `addr` that the program may have no access to.
pub(crate) fn raise(addr: usize) -> Doubt {
    raise_at(addr, process::tid() as u64, now_ns(), ACCESS)
}

/// The same of a fault in memory of the kernel's.
pub(crate) fn raise_of_kernel(addr: usize) -> Doubt {
    raise_at(addr, process::tid() as u64, now_ns(), OF_KERNEL)
}

fn raise_at(addr: usize, tid: u64, now: u64, rule: Rule) -> Doubt {
    let mark = (addr as u64) ^ (tid << 48);
    let doubts = &DOUBTS[(tid % 64) as usize];
    let since = now.saturating_sub(doubts.at.swap(now, Relaxed));
    let is_same = doubts.last.swap(mark, Relaxed) == mark;
    let count = |times: &AtomicU64, soon_ns| {
        if !is_same || since >= soon_ns {
            times.store(0, Relaxed);
        }
        times.fetch_add(1, Relaxed)
    };
    let times = count(&doubts.times, rule.soon_ns);
    let in_all = count(&doubts.in_all, MOMENT_NS);
    match times < rule.tries && in_all < ENOUGH {
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
        for rule in [ACCESS, OF_KERNEL] {
            let mut now = 2 * MOMENT_NS;
            let mut raise = |addr, later| {
                now += later;
                raise_at(addr, TID, now, rule)
            };
            for _ in 0..rule.tries {
                assert_eq!(raise(0x1000, 1), Doubt::Open);
            }
            assert_eq!(raise(0x1000, 1), Doubt::Settled);
            // It was resolved, or it would have been again at once.
            for _ in 0..2 * rule.tries {
                assert_eq!(raise(0x1000, rule.soon_ns), Doubt::Open);
            }
            // So it was if the thread has gone on elsewhere.
            for _ in 0..2 * rule.tries {
                assert_eq!(raise(0x2000, 1), Doubt::Open);
                assert_eq!(raise(0x3000, 1), Doubt::Open);
            }
        }
        // A machine on which to try again takes long.
        let mut now = 10 * MOMENT_NS;
        let mut raise = || {
            now += OF_KERNEL.soon_ns;
            raise_at(0x4000, TID, now, OF_KERNEL)
        };
        let tried = (0..=ENOUGH).take_while(|_| raise() == Doubt::Open).count();
        assert_eq!(tried as u64, ENOUGH);
    }
}
