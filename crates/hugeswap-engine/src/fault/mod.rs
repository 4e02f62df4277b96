//! The fault path: one piece of code for both fault modes. The signal handler, the userfaultfd
//! threads and every caller that brings memory in on purpose (a pin) call it.
//!
//! A fault enters here, finds out what its unit is, and goes on in [`access`] (memory is there),
//! [`first_touch`] (there never was any) or [`swap_in`] (it is in swap or in the swap cache).
//! Faults on base-mapped units go on in [`crate::base`].
//!
//! # Rules
//!
//! The fault path, and everything that it calls, obeys these rules:
//!
//! * no allocation
//! * no lock that program code, libc or another runtime can hold
//! * no touch of managed memory (the units that it moves are in the arena or locked)
//! * no panic, no formatting, no logging
//! * errno untouched: system calls are made without libc
//! * bounded stack
//!
//! Two checks enforce them: a test whose allocator aborts when it is called on the handler's stack,
//! and `.ci/fault-path`, which follows every call from the handler on in the disassembly of the
//! injected object and fails if it reaches an allocator, a lock, stdio or formatting. A panic (an
//! index out of bounds) is where that check stops: panics abort.
//!
//! # Ends
//!
//! A thread that cannot have memory for 2 seconds while swap is full, or for 60 seconds otherwise,
//! or whose bytes are lost, gets SIGBUS after one line that says why ([`complaint`]). In signal
//! mode that calls the action that the program installed for SIGBUS. Budget and swap together are
//! promised when memory is mapped, so a mapping that could not be held is refused there, with
//! ENOMEM.

mod access;
mod complaint;
mod first_touch;
mod readahead;
mod swap_in;
mod unmapped;

use crate::doubts;
use crate::outcome::Fault;
use crate::outcome::Outcome;
pub use complaint::MESSAGES;
pub(crate) use complaint::complain;

use crate::forked::is_raw_fork_child;
use crate::paging::Paging;
use hugeswap_policy::counters::FaultClass;
use hugeswap_policy::unit::{Kind, LOCKED};
use hugeswap_sys::fs;

impl Paging {
    /// Resolves a fault at `addr`. Called without locks held.
    pub(crate) fn fault(&self, addr: usize, write: bool) -> Outcome {
        self.fault_by(Fault::by_engine(addr, write))
    }

    /// [`Paging::fault`], whoever makes the access.
    pub(crate) fn fault_by(&self, fault: Fault) -> Outcome {
        let addr = fault.addr;
        let unit = self.table.unit_of(addr);
        if unit.is_none() && !self.sharing.contains(addr) {
            return Outcome::NotOurs;
        }
        if is_raw_fork_child(self.fork_mark) {
            fs::complain(&[
                b"hugeswap: this process was forked by a raw system call; its managed memory cannot be used\n",
            ]);
            return Outcome::Poisoned;
        }
        self.pause_if_owed();
        let _inside = self.gate.enter();
        match unit {
            Some(unit) => self.resolve(unit, fault),
            None => {
                self.note_awake(fault.start);
                self.sharing.fault(self.host(), fault)
            }
        }
    }

    /// [`Paging::fault_by`] for a caller that is inside the gate.
    pub(crate) fn resolve(&self, unit: u32, fault: Fault) -> Outcome {
        let Fault { addr, write, .. } = fault;
        self.note_awake(fault.start);
        let mut waited = false;
        loop {
            let w = self.table.load(unit);
            if w.has(LOCKED) {
                if let Some(w) = self.table.claim(unit) {
                    // A read was planned and no thread has begun it: it is ours now, with the lock.
                    if !w.allows(write) || self.markers.is_marked(unit) {
                        w.settle();
                        continue;
                    }
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
                Kind::Free => return Outcome::Free,
                Kind::Poisoned => return Outcome::Poisoned,
                Kind::Foreign => {
                    if let Some(outcome) = self.marked_outcome(unit, addr, write) {
                        return outcome;
                    }
                    return doubts::raise_of_kernel(addr).outcome();
                }
                _ if !w.allows(write) => {
                    return doubts::raise(addr).outcome();
                }
                _ => {}
            }
            let Some(w) = self.table.try_lock_if(unit, |now| now == w) else {
                continue;
            };
            if self.markers.is_marked(unit)
                && let Some(outcome) = self.marked_outcome(unit, addr, write)
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
}
