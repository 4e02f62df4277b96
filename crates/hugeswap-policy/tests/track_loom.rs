//! Write tracking under every schedule: a program that writes, kswapd that takes a unit away and
//! gives it back, and a tracker that begins an epoch and copies what is told.
//!
//! The word is a real [`Word`], locked as the head of `unit.rs` says. A write fault locks it,
//! stamps the unit with the clock, gives write access and unlocks; an epoch counts the clock up,
//! locks, takes write access away and unlocks. Checked in every interleaving: what was written
//! after the tracker has copied has a stamp of the epoch; a copy of what is told, and of all at
//! first, ends with what the memory holds.
//!
//! That the explorer would notice is checked too: each [`Bug`] breaks a rule, and the model then
//! fails.

use hugeswap_policy::unit::{Kind, LOCKED, WRITABLE, Word};
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use loom::sync::atomic::{AtomicU32, AtomicU64};
use loom::sync::{Arc, Mutex};
use loom::thread;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// The stamp is given after the access.
    StampLate,
    /// The clock is looked at before the unit is locked.
    ClockEarly,
    /// An epoch passes by what is not writable without locking it.
    PassBy,
    /// The clock is counted up after the units are protected.
    CountLate,
}

struct Memory {
    writable: bool,
    content: u32,
}

struct Unit {
    word: AtomicU64,
    memory: Mutex<Memory>,
    clock: AtomicU32,
    stamp: AtomicU32,
    bug: Bug,
}

impl Unit {
    fn new(bug: Bug, writable: bool) -> Unit {
        let w = Word::none().with_kind(Kind::Present);
        Unit {
            word: AtomicU64::new(if writable { w.set(WRITABLE).0 } else { w.0 }),
            memory: Mutex::new(Memory {
                writable,
                content: 0,
            }),
            clock: AtomicU32::new(1),
            stamp: AtomicU32::new(writable.into()),
            bug,
        }
    }

    fn lock(&self) -> Word {
        loop {
            let w = self.word.load(Acquire);
            if w & LOCKED == 0 {
                let locked = self.word.compare_exchange(w, w | LOCKED, AcqRel, Acquire);
                if locked.is_ok() {
                    return Word(w);
                }
            }
            thread::yield_now();
        }
    }

    fn unlock(&self, w: Word) {
        assert!(w.is_consistent());
        self.word.store(w.0, Release);
    }

    fn protect(&self, writable: bool) {
        self.memory.lock().unwrap().writable = writable;
    }

    fn stamp(&self, clock: u32) {
        self.stamp.fetch_max(clock, Release);
    }

    fn write_without_fault(&self, content: u32) -> bool {
        let mut memory = self.memory.lock().unwrap();
        if memory.writable {
            memory.content = content;
        }
        memory.writable
    }

    fn write(&self, content: u32) {
        while !self.write_without_fault(content) {
            let early = self.clock.load(Relaxed);
            let w = self.lock();
            let clock = match self.bug {
                Bug::ClockEarly => early,
                _ => self.clock.load(Relaxed),
            };
            if self.bug != Bug::StampLate {
                self.stamp(clock);
            }
            self.protect(true);
            self.unlock(w.set(WRITABLE));
            if self.bug == Bug::StampLate {
                self.stamp(clock);
            }
        }
    }

    fn begin_epoch(&self) -> u32 {
        let epoch = self.clock.load(Relaxed) + 1;
        if self.bug != Bug::CountLate {
            self.clock.store(epoch, Relaxed);
        }
        let pass = self.bug == Bug::PassBy && !Word(self.word.load(Acquire)).has(WRITABLE);
        if !pass {
            let w = self.lock();
            self.protect(false);
            self.unlock(w.clear(WRITABLE));
        }
        if self.bug == Bug::CountLate {
            self.clock.store(epoch, Relaxed);
        }
        epoch
    }

    fn content(&self) -> u32 {
        self.memory.lock().unwrap().content
    }
}

fn model(bug: Bug, writable: bool) {
    loom::model(move || {
        let unit = Arc::new(Unit::new(bug, writable));
        let writer = {
            let unit = Arc::clone(&unit);
            thread::spawn(move || unit.write(1))
        };
        let epoch = unit.begin_epoch();
        let mut copy = unit.content();
        let (content, stamp) = (unit.content(), unit.stamp.load(Acquire));
        if content != copy {
            assert!(stamp >= epoch, "a write is seen and not told");
        }
        // A third thread's write, where there is access by now.
        if unit.write_without_fault(2) {
            let stamp = unit.stamp.load(Acquire);
            assert!(stamp >= epoch, "a write is made and not told");
        }
        writer.join().unwrap();
        if unit.stamp.load(Acquire) >= epoch {
            copy = unit.content();
        }
        assert_eq!(copy, unit.content(), "a write was lost");
    });
}

#[test]
fn no_write_is_lost() {
    for writable in [false, true] {
        model(Bug::None, writable);
    }
}

#[test]
fn the_model_notices_what_is_wrong() {
    for bug in [Bug::StampLate, Bug::ClockEarly, Bug::PassBy, Bug::CountLate] {
        let found = [false, true]
            .into_iter()
            .any(|writable| std::panic::catch_unwind(|| model(bug, writable)).is_err());
        assert!(found, "{bug:?} is not noticed");
    }
}
