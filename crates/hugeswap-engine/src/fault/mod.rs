//! The fault path: one piece of code for both fault modes, called from the signal handler, the
//! userfaultfd threads, and whoever brings memory in on purpose (pins).
//!
//! Here a fault enters, finds out what its unit is, and goes where that leads: [`access`] (the
//! memory is there), [`first_touch`] (it never was), [`swap_in`] (it is in swap or in the swap cache).
//!
//! Its rules: no allocation, no foreign lock, no touch of managed memory (the units it moves
//! are in the arena or locked), no panic, no formatting, errno untouched, bounded stack. Everything it
//! calls obeys them too.

mod access;
mod complaint;
mod first_touch;
mod readahead;
mod swap_in;

pub(crate) use complaint::complain;
pub(crate) use readahead::there_before;

use crate::PAGE;
use crate::call::CallError;
use crate::engine::{Engine, LruEvent, PAGES, REFERENCED, UNIT};
use crate::fork::forked_unseen;
use crate::pool::record_fault;
use crate::table::Locked;
use hugeswap_policy::counters::FaultClass;
use hugeswap_policy::unit::{Kind, LOCKED};
use hugeswap_sys::{fs, mm, now_ns};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// What came of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The access can be tried again.
    Retry,
    /// The access is the program's own error.
    NotOurs,
    /// A guard: the access is the program's own error, by SIGSEGV.
    Guard,
    /// The bytes are lost.
    Poisoned,
    /// Neither memory nor swap is left.
    NoMemory,
    /// Another process holds it, and does not go on.
    Stuck,
    /// The kernel does not map it, again and again. The bytes are there still.
    Unmapped(CallError),
}

impl Outcome {
    /// Can the memory not be had, whoever touches it?
    pub fn is_lost(self) -> bool {
        matches!(
            self,
            Outcome::Poisoned | Outcome::NoMemory | Outcome::Stuck | Outcome::Unmapped(_)
        )
    }
}

/// An access that is to be made possible.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    /// Where.
    pub addr: usize,
    /// Is it a write?
    pub write: bool,
    /// When it began, nanoseconds.
    pub start: u64,
}

impl Fault {
    /// Which page of `unit` it is on.
    pub fn page(&self, unit: &Locked<'_>) -> usize {
        (self.addr - unit.addr()) / PAGE
    }
}

/// Faults that looked like the program's error once, by thread: the second time they are believed.
static DOUBTS: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

/// A fault that our state cannot explain may be one that another thread has just resolved: let
/// it be tried once more before it is called an error.
pub(crate) fn seen_before(addr: usize) -> bool {
    let tid = hugeswap_sys::process::tid() as u64;
    let mark = (addr as u64) ^ (tid << 48);
    DOUBTS[(tid % 64) as usize].swap(mark, Relaxed) == mark
}

/// In a forked child: thread ids mean others now.
pub(crate) fn forget_doubts() {
    DOUBTS.iter().for_each(|d| d.store(0, Relaxed));
}

impl Engine {
    /// Resolves a fault at `addr`. Called without locks held.
    pub(crate) fn fault(&self, addr: usize, write: bool) -> Outcome {
        let unit = self.table.unit_of(addr);
        if unit.is_none() && !self.sharing.contains(addr) {
            return Outcome::NotOurs;
        }
        if forked_unseen(self.fork_mark) {
            fs::complain(&[
                b"hugeswap: this process was forked by a raw system call; its managed memory cannot be used\n",
            ]);
            return Outcome::Poisoned;
        }
        self.pause_if_owed();
        let _inside = self.gate.enter();
        match unit {
            Some(unit) => self.resolve(unit, addr, write),
            None => self.sharing.fault(self, addr, write),
        }
    }

    /// [`Engine::fault`] for a caller that is inside the gate.
    pub(crate) fn resolve(&self, unit: u32, addr: usize, write: bool) -> Outcome {
        let fault = Fault {
            addr,
            write,
            start: now_ns(),
        };
        let mut waited = false;
        loop {
            let w = self.table.load(unit);
            if w.has(LOCKED) {
                if let Some(w) = self.table.claim(unit) {
                    // A read was planned and no thread has begun it: it is ours now, with the lock.
                    match self.major(w, fault) {
                        Some(outcome) => return outcome,
                        None => continue,
                    }
                }
                waited = true;
                self.table.wait_locked(unit);
                continue;
            }
            match w.kind() {
                Kind::Free => return Outcome::NotOurs,
                Kind::Poisoned => return Outcome::Poisoned,
                Kind::Foreign => {
                    if let Some(outcome) = self.marked_outcome(unit, addr) {
                        return outcome;
                    }
                    return if seen_before(addr) {
                        Outcome::NotOurs
                    } else {
                        Outcome::Retry
                    };
                }
                _ if !w.allows(write) => {
                    return if seen_before(addr) {
                        Outcome::NotOurs
                    } else {
                        Outcome::Retry
                    };
                }
                _ => {}
            }
            let Some(w) = self.table.try_lock_if(unit, |now| now == w) else {
                continue;
            };
            if self.markers.is_marked(unit)
                && let Some(outcome) = self.marked_outcome(unit, addr)
            {
                w.settle();
                return outcome;
            }
            let done = match w.kind() {
                Kind::Present => self.soft(w, fault),
                Kind::None => self.first_touch(w, fault),
                Kind::Cached => {
                    let class = if waited {
                        FaultClass::Wait
                    } else {
                        FaultClass::Soft
                    };
                    self.take_from_cache(w, fault, class)
                }
                Kind::Swapped => self.swap_fault(w, fault),
                Kind::Base => self.page_fault(w, fault),
                _ => {
                    w.settle();
                    None
                }
            };
            if let Some(outcome) = done {
                return outcome;
            }
        }
    }

    pub(crate) fn done(&self, unit: u32, class: FaultClass, start: u64) -> Option<Outcome> {
        self.note_resident(unit);
        self.timed(class, start)
    }

    /// After a frame was moved to `unit`: if that happened between the parts of a fork, the mark that keeps
    /// the arena out of the child came along and must go.
    pub(crate) fn let_inherit(&self, unit: u32) {
        if self.gate.is_forker() {
            // SAFETY: advice that discards nothing.
            let _ = unsafe { mm::advise(self.table.addr(unit), UNIT, libc::MADV_DOFORK) };
        }
    }

    pub(crate) fn timed(&self, class: FaultClass, start: u64) -> Option<Outcome> {
        record_fault(
            &self.pool.record().events,
            class,
            now_ns().saturating_sub(start),
        );
        Some(Outcome::Retry)
    }

    /// Tells the LRU lists that a whole unit is in memory.
    pub(crate) fn note_resident(&self, unit: u32) {
        self.note(unit);
    }

    /// Tells them that the first pages of a base-mapped unit are.
    pub(crate) fn note_pages_resident(&self, unit: u32) {
        self.note(unit | PAGES);
    }

    /// Tells the LRU lists that a unit was touched while it was watched.
    pub(crate) fn note_referenced(&self, unit: u32) {
        self.note(unit | REFERENCED);
    }

    fn note(&self, event: LruEvent) {
        while self.events.push(event).is_err() {
            if let Some(mut lru) = self.lru.try_lock() {
                self.drain_events(&mut lru);
            } else {
                std::hint::spin_loop();
            }
        }
    }
}
