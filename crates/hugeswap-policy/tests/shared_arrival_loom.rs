//! A process maps a shared region while another writes a unit of it out, under every schedule.
//!
//! The process that comes enters itself in the region's table, and then reads the words of the units;
//! a unit that is being written out it keeps in. The process that writes out locks the word, and then
//! reads the table, to write-protect the unit in every process that has it. Between the two steps each
//! needs a fence: without it neither may see the other, and a write is lost. That is checked, too.

use hugeswap_policy::shared::step::{Event, step};
use hugeswap_policy::shared::{Holder, Kind, Op, Owner, Word};
use hugeswap_policy::unit::lock::{Cells, Lock, StateWord};
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use loom::sync::atomic::{AtomicBool, AtomicU64, fence};
use loom::sync::{Arc, Mutex};
use loom::thread;
use std::process::Command;

const COMER: u8 = 0;
const EVICTOR: u8 = 1;

fn by(op: Op, record: u8) -> Holder {
    let owner = Owner {
        record,
        generation: 7,
    };
    Holder { op, owner }
}

struct Cell(AtomicU64);

impl Cells for Cell {
    type Word = Word;
    const SPINS: u32 = 0;

    fn word(&self) -> u64 {
        self.0.load(Acquire)
    }

    fn replace_word(&self, old: u64, new: u64) -> Result<(), u64> {
        let replaced = self.0.compare_exchange(old, new, AcqRel, Acquire);
        replaced.map(|_| ())
    }

    fn swap_word(&self, new: u64) -> u64 {
        self.0.swap(new, AcqRel)
    }

    fn wait(&self, _: u64) {
        thread::yield_now();
    }

    fn wake(&self) {}
}

struct Memory {
    present: bool,
    /// In the process that comes.
    protected: bool,
    content: u8,
}

struct Unit {
    lock: Lock<Cell>,
    entered: AtomicBool,
    memory: Mutex<Memory>,
    fences: bool,
}

impl Unit {
    fn fence(&self) {
        if self.fences {
            fence(std::sync::atomic::Ordering::SeqCst);
        }
    }

    /// Maps the region, and writes to the unit if that needs no fault.
    fn come(&self) {
        self.entered.store(true, Release);
        self.fence();
        loop {
            let w = self.lock.load();
            match w.op() {
                Op::Out => {
                    let touch = by(Op::Touch, COMER);
                    if self.lock.take(w, touch).is_ok() {
                        let touched = step(w.locked(touch), Event::Touched { displaced: true });
                        break self.lock.unlock(touched.expect("a resident unit").word);
                    }
                }
                Op::Punch => self.lock.wait_change(w),
                _ => break,
            }
        }
        let mut memory = self.memory.lock().unwrap();
        if memory.present && !memory.protected {
            memory.content = 2;
        }
    }

    fn evict(&self) {
        let (w, out) = (self.lock.load(), by(Op::Out, EVICTOR));
        if self.lock.take(w, out).is_err() {
            return;
        }
        self.fence();
        let entered = self.entered.load(Acquire);
        let copy = {
            let mut memory = self.memory.lock().unwrap();
            memory.protected = entered;
            memory.content
        };
        // A process that has come meanwhile is not write-protected.
        if self.entered.load(Acquire) != entered {
            self.lock.change(|w| w.is_held(out).then_some(w.unlocked()));
            return;
        }
        let stored = self.lock.change(|w| {
            let next = step(w, Event::Stored { cluster: 5 }).ok();
            next.filter(|_| w.is_held(out)).map(|next| next.word)
        });
        let Some(held) = stored else { return };
        let mut memory = self.memory.lock().unwrap();
        assert_eq!(memory.content, copy, "a write is lost");
        memory.present = false;
        drop(memory);
        let dropped = step(held, Event::Dropped);
        self.lock.unlock(dropped.expect("a unit that leaves").word);
    }
}

fn explore(fences: bool) {
    loom::model(move || {
        let unit = Arc::new(Unit {
            lock: Lock(Cell(AtomicU64::new(Word::NONE.with_kind(Kind::Resident).0))),
            entered: AtomicBool::new(false),
            memory: Mutex::new(Memory {
                present: true,
                protected: false,
                content: 1,
            }),
            fences,
        });
        let comer = {
            let unit = unit.clone();
            thread::spawn(move || unit.come())
        };
        unit.evict();
        comer.join().unwrap();
        let w = Word(unit.lock.0.0.load(Relaxed));
        assert!(w.check().is_ok() && !w.is_locked(), "{w:?}");
    });
}

#[test]
fn a_process_that_comes_loses_no_write() {
    explore(true);
}

const WITHOUT: &str = "HUGESWAP_TEST_WITHOUT_FENCES";

/// The explorer may abort when a model fails, so that is a process of its own: this test again.
#[test]
fn without_the_fences_a_write_is_lost() {
    if std::env::var_os(WITHOUT).is_some() {
        return explore(false);
    }
    let run = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "without_the_fences_a_write_is_lost",
            "--nocapture",
        ])
        .env(WITHOUT, "1")
        .env("RUST_BACKTRACE", "0")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(!run.status.success(), "it goes unnoticed");
    assert!(said.contains("a write is lost"), "{said}");
}
