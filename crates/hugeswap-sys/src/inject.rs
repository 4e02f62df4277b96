//! System calls that fail, pause, or are the last of the process, on purpose: for tests of the
//! consequences.
//!
//! Compiled only with the feature `inject`, which nothing that is shipped has. Every system call of
//! this workspace then passes [`before`]; calls of the standard library and of libc do not. Calls
//! are told apart by [`Kind`]; calls of one kind are counted from when a plan is set. A plan holds
//! for the process and for its forked children, in which the counts go on.
//!
//! Concurrency: all state is atomic. One plan at a time, set while no other thread makes calls that
//! matter.

use crate::Errno;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64};

/// The kind of a call: its number and, where one number has many purposes, the purpose (the request
/// of an ioctl, the advice of madvise, the command of fcntl, the operation of futex).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind {
    /// Number of the call.
    pub nr: u32,
    /// The purpose; 0 for other calls.
    pub request: u32,
}

impl Kind {
    fn of(nr: usize, a: &[usize; 6]) -> Kind {
        let request = match nr as libc::c_long {
            libc::SYS_ioctl | libc::SYS_fcntl => a[1] as u32,
            libc::SYS_madvise => a[2] as u32,
            libc::SYS_futex => a[1] as u32 & 0x7f,
            _ => 0,
        };
        Kind {
            nr: nr as u32,
            request,
        }
    }

    fn word(self) -> u64 {
        1 << 63 | u64::from(self.nr) << 32 | u64::from(self.request)
    }
}

/// What is done to calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Calls are only counted.
    Count,
    /// The `nth` call of a kind, from 1, is not made, and fails.
    Fail(Kind, u64, Errno),
    /// Calls pause before they are made, by a seed.
    Pause(u64),
    /// The process ends by SIGKILL at the `nth` call of any kind, from 1.
    Die(u64),
}

const OFF: i32 = 0;
const COUNT: i32 = 1;
const FAIL: i32 = 2;
const PAUSE: i32 = 3;
const DIE: i32 = 4;

static MODE: AtomicI32 = AtomicI32::new(OFF);
static TARGET: AtomicU64 = AtomicU64::new(0);
static NUMBER: AtomicU64 = AtomicU64::new(0);
static ERRNO: AtomicI32 = AtomicI32::new(0);
static CALLS: AtomicU64 = AtomicU64::new(0);
static FIRED: AtomicBool = AtomicBool::new(false);

/// Larger than the number of kinds.
const KINDS: usize = 512;

struct Counted {
    kind: AtomicU64,
    calls: AtomicU64,
}

static SEEN: [Counted; KINDS] = [const {
    Counted {
        kind: AtomicU64::new(0),
        calls: AtomicU64::new(0),
    }
}; KINDS];

/// Sets a plan in place of the one before, with all counts at 0. `None`: calls are made as usual.
pub fn set(plan: Option<Plan>) {
    MODE.store(OFF, Relaxed);
    SEEN.iter().for_each(|s| s.calls.store(0, Relaxed));
    CALLS.store(0, Relaxed);
    FIRED.store(false, Relaxed);
    let mode = match plan {
        None => OFF,
        Some(Plan::Count) => COUNT,
        Some(Plan::Fail(kind, nth, errno)) => {
            TARGET.store(kind.word(), Relaxed);
            NUMBER.store(nth, Relaxed);
            ERRNO.store(errno.0, Relaxed);
            FAIL
        }
        Some(Plan::Pause(seed)) => {
            NUMBER.store(seed, Relaxed);
            PAUSE
        }
        Some(Plan::Die(nth)) => {
            NUMBER.store(nth, Relaxed);
            DIE
        }
    };
    MODE.store(mode, std::sync::atomic::Ordering::Release);
}

/// True if the call that was to fail was made.
pub fn fired() -> bool {
    FIRED.load(Relaxed)
}

/// Number of calls since the plan was set.
pub fn calls() -> u64 {
    CALLS.load(Relaxed)
}

/// The kinds that were called since the plan was set, and how often.
pub fn seen() -> Vec<(Kind, u64)> {
    let counted = SEEN.iter().filter(|s| s.calls.load(Relaxed) > 0);
    counted
        .map(|s| {
            let word = s.kind.load(Relaxed);
            let kind = Kind {
                nr: (word >> 32) as u32 & 0x7fff_ffff,
                request: word as u32,
            };
            (kind, s.calls.load(Relaxed))
        })
        .collect()
}

/// Counts a call, and returns its number among those of its kind.
fn count(word: u64) -> u64 {
    let first = (word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 55) as usize;
    for at in first..first + KINDS {
        let s = &SEEN[at % KINDS];
        let there = s.kind.load(Acquire);
        let mine = there == word
            || there == 0
                && match s.kind.compare_exchange(0, word, AcqRel, Acquire) {
                    Ok(_) => true,
                    Err(now) => now == word,
                };
        if mine {
            return s.calls.fetch_add(1, Relaxed) + 1;
        }
    }
    0
}

/// The pause of the `n`th call in nanoseconds: one call in eight pauses for 1 us to 5 ms, short
/// pauses being much more frequent than long ones, and one in thousands for longer.
fn pause(seed: u64, n: u64) -> u64 {
    let mut x = (seed ^ n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 31;
    if x & 7 != 0 {
        return 0;
    }
    if x >> 3 & 4095 == 0 {
        return 50_000_000;
    }
    let longest = 1_000 << ((x >> 16) % 13);
    (x >> 24) % longest
}

/// The answer that a call gets instead of being made, in the kernel's format, or `None` if it is
/// made.
pub(crate) fn before(nr: usize, a: &[usize; 6]) -> Option<isize> {
    let mode = MODE.load(Acquire);
    if mode == OFF {
        return None;
    }
    let kind = Kind::of(nr, a).word();
    let n = CALLS.fetch_add(1, Relaxed) + 1;
    let of_kind = count(kind);
    match mode {
        FAIL if kind == TARGET.load(Relaxed) && of_kind == NUMBER.load(Relaxed) => {
            FIRED.store(true, Relaxed);
            if nr as libc::c_long == libc::SYS_close {
                // A close that fails closes the descriptor all the same.
                // SAFETY: passed on.
                unsafe { crate::raw::issue(nr, *a) };
            }
            return Some(-(ERRNO.load(Relaxed) as isize));
        }
        PAUSE => {
            let ns = pause(NUMBER.load(Relaxed), n);
            if ns > 0 {
                let t = libc::timespec {
                    tv_sec: 0,
                    tv_nsec: ns as i64,
                };
                let sleep = [&raw const t as usize, 0, 0, 0, 0, 0];
                // SAFETY: `t` is a timespec.
                unsafe { crate::raw::issue(libc::SYS_nanosleep as usize, sleep) };
            }
        }
        DIE if n == NUMBER.load(Relaxed) => {
            // SAFETY: no memory involved.
            unsafe {
                let me = crate::raw::issue(libc::SYS_getpid as usize, [0; 6]) as usize;
                let kill = [me, libc::SIGKILL as usize, 0, 0, 0, 0];
                crate::raw::issue(libc::SYS_kill as usize, kill);
            }
        }
        _ => {}
    }
    None
}
