//! Memory that is held for transfers that end without a call: in which units, and how much at a time.

use crate::issue::{Pins, is_mapped};
use crate::lock::Lock;
use crate::{extent, mmap};
use hugeswap_engine::Engine;
use hugeswap_sys::{futex, now_ns};
use libc::iovec;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU32;

const UNIT: usize = 2 << 20;
/// Most bytes of a transfer (the kernel's MAX_RW_COUNT).
const MOST: usize = 0x7fff_f000;
/// Most segments of a transfer.
pub const IOV_MAX: usize = 1024;

/// A part of the program's memory that a transfer is from or to.
#[derive(Clone, Copy)]
pub struct Part {
    pub at: usize,
    pub len: usize,
    /// Does the kernel write to it?
    pub fills: bool,
}

impl Part {
    /// (The kernel transfers [`MOST`] bytes at a time.)
    pub fn new(at: usize, len: usize, fills: bool) -> Part {
        let len = len.min(MOST);
        Part { at, len, fills }
    }
}

/// What a vector of the program's names, which has `n` segments.
pub fn segments(vector: usize, n: usize, fills: bool) -> impl Iterator<Item = Part> {
    (0..n).map(move |i| {
        // SAFETY: the program's vector; a fault on it is taken as any other.
        let s = unsafe { (vector as *const iovec).add(i).read_unaligned() };
        Part::new(s.iov_base as usize, s.iov_len, fills)
    })
}

/// The answer to a submission of which `taken` were taken before a part that was answered by `r`.
pub fn answer(taken: usize, r: isize) -> isize {
    match taken {
        0 => r,
        _ => taken as isize + r.max(0),
    }
}

/// What is held for a transfer, until this is dropped. Not under a lock.
pub struct Transfer {
    _held: Pins,
    units: Vec<usize>,
}

/// The units that transfers are under way to or from, and how many.
static UNITS: Lock<BTreeMap<usize, u32>> = Lock::new(BTreeMap::new());

impl Drop for Transfer {
    fn drop(&mut self) {
        let mut all = UNITS.lock();
        for unit in &self.units {
            if let Some(n) = all.get_mut(unit) {
                *n -= 1;
                if *n == 0 {
                    all.remove(unit);
                }
            }
        }
    }
}

/// A transfer that is to be begun.
pub struct Wanted {
    parts: Vec<Part>,
    units: Vec<usize>,
}

impl Wanted {
    /// (Of what the program has no access to the kernel says EFAULT.)
    pub fn of(engine: &Engine, mut parts: Vec<Part>) -> Wanted {
        parts.retain(|p| p.len > 0 && is_mapped(engine, p.at, p.len, p.fills));
        let of = |p: &Part| (p.at & !(UNIT - 1)..p.at + p.len).step_by(UNIT);
        let managed = parts.iter().filter(|p| extent::in_window(p.at));
        let mut units: Vec<usize> = managed.flat_map(of).collect();
        units.sort_unstable();
        units.dedup();
        Wanted { parts, units }
    }

    /// Would more units be held than may be?
    pub fn is_too_much(&self, engine: &Engine) -> bool {
        let all = UNITS.lock();
        let new = { self.units.iter() }
            .filter(|unit| !all.contains_key(unit))
            .count();
        new > 0 && !all.is_empty() && all.len() + new > engine.most_pinned()
    }

    /// Waits until its memory may be held, too, or nothing is, but no longer than `patience_ns`.
    /// `look` lets go of what is done.
    pub fn make_room(&self, engine: &Engine, patience_ns: u64, mut look: impl FnMut()) {
        const PAUSE_NS: u64 = 100_000;
        let until = now_ns() + patience_ns;
        while self.is_too_much(engine) && now_ns() < until {
            look();
            futex::wait(&AtomicU32::new(0), 0, Some(PAUSE_NS), false);
        }
    }

    /// Holds its memory. What cannot be held becomes the kernel's.
    pub fn hold(self, engine: &'static Engine) -> Transfer {
        let mut held = Pins::beyond_call(engine);
        for p in self.parts {
            if !held.insist(p.at, p.len, p.fills) {
                let _ = mmap::eject(engine, p.at, p.len);
            }
        }
        let mut all = UNITS.lock();
        for &unit in &self.units {
            *all.entry(unit).or_default() += 1;
        }
        drop(all);
        Transfer {
            _held: held,
            units: self.units,
        }
    }

    /// Its memory is the kernel's from now on: nobody will say when it is done.
    pub fn give_away(self, engine: &Engine) {
        for p in self.parts {
            let _ = mmap::eject(engine, p.at, p.len);
        }
    }
}

/// In a forked child, where no transfer is under way.
pub fn forget_all() {
    UNITS.lock().clear();
}

/// Takes this module's lock for the time of a fork; see [`Lock::before_fork`].
pub fn before_fork() {
    UNITS.before_fork();
}

/// Releases the lock after a fork, in parent and child.
pub fn after_fork() {
    UNITS.after_fork();
}
