//! The page-state protocol under every schedule: programs, an evictor and a holder of
//! one unit, run by an explorer of interleavings.
//!
//! The lock is [`Lock`], over cells of the explorer, and what becomes of the unit is [`step`]: the
//! code that the engine runs. Around them stands a model of the machine:
//! * the mapping: an access right and the frame's content under one mutex, because an
//!   instruction and a change of protection are atomic to each other (the change returns when no
//!   processor can use the old right any more);
//! * the device: it reads the frame in two halves, so a write in between tears the slot;
//! * the futex: its check and its sleep are atomic to a wake.
//!
//! Checked in every interleaving: one thread owns the lock; a program reads its last write; what
//! others read never goes back; a clean unit equals its slot; a held unit stays; nobody sleeps for
//! ever (the explorer reports a deadlock); stable words are consistent.
//!
//! That the explorer would notice is checked too: each [`Bug`] breaks one rule of the
//! protocol, and the test asserts that the model then fails.

use hugeswap_policy::unit::lock::{Cells, Lock, NO_FRAME, Offers, QUEUED, StateWord};
use hugeswap_policy::unit::step::{Event, step};
use hugeswap_policy::unit::{
    CLEAN, HAS_PLACE, Kind, LOCKED, Place, State, WAITERS, WATCHED, WRITABLE, WRITEBACK, Word,
};
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use loom::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use std::process::Command;

/// Where the protocol is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// A finished write-out is called clean without looking whether the unit was written meanwhile.
    CleanUnchecked,
    /// A write-out begins without taking write access away.
    NotProtected,
    /// A watched unit is dropped without looking whether it was touched meanwhile.
    DropUnchecked,
    /// A write fault leaves the unit clean.
    StaysClean,
    /// A unit is dropped although it is held.
    PinsIgnored,
    /// The owner does not wake those who wait.
    NoWake,
    /// A waiter does not say that it waits.
    WaiterSilent,
    /// An offered lock may be taken twice.
    TakenTwice,
    /// The read of an offered unit is not seen by the thread that takes the lock.
    OfferUnordered,
}

#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Right {
    Nothing,
    Read,
    Write,
}

/// What an event makes of a locked unit.
fn after(w: Word, event: Event) -> Word {
    match step(w, event) {
        Ok(step) => step.word,
        Err(illegal) => panic!("{illegal}"),
    }
}

const PLACE: Place = Place::Cluster(5);

/// What the frame holds once it has been taken for something else.
const GONE: u8 = 0xee;

struct Mapping {
    right: Right,
    content: u8,
}

struct Unit {
    lock: Lock<Model>,
    mapping: Mutex<Mapping>,
    slot: [AtomicU8; 2],
    /// What the owner left for the thread that takes the offered lock.
    note: AtomicU8,
    bug: Bug,
}

/// The cells of a unit, and a futex.
struct Model {
    word: AtomicU64,
    frame: AtomicU32,
    bucket: Mutex<()>,
    sleepers: Condvar,
    bug: Bug,
}

impl Cells for Model {
    type Word = Word;
    const SPINS: u32 = 0;

    fn word(&self) -> u64 {
        self.word.load(Acquire)
    }

    fn replace_word(&self, old: u64, new: u64) -> Result<(), u64> {
        if self.bug == Bug::WaiterSilent && new == old | WAITERS {
            return Ok(());
        }
        self.word
            .compare_exchange(old, new, AcqRel, Acquire)
            .map(|_| ())
    }

    fn swap_word(&self, new: u64) -> u64 {
        self.word.swap(new, Release)
    }

    fn wait(&self, seen: u64) {
        let bucket = self.bucket.lock().unwrap();
        let but = match self.bug {
            Bug::WaiterSilent => WAITERS,
            _ => 0,
        };
        if self.word.load(Relaxed) | but == seen | but {
            drop(self.sleepers.wait(bucket).unwrap());
        }
    }

    fn wake(&self) {
        if self.bug != Bug::NoWake {
            // The kernel's wake: a thread that checks after it sees the new word.
            let _bucket = self.bucket.lock().unwrap();
            self.sleepers.notify_all();
        }
    }
}

impl Offers for Model {
    fn frame(&self) -> u32 {
        match self.bug {
            Bug::OfferUnordered => self.frame.load(Relaxed),
            _ => self.frame.load(Acquire),
        }
    }

    fn set_frame(&self, frame: u32) {
        match self.bug {
            Bug::OfferUnordered => self.frame.store(frame, Relaxed),
            _ => self.frame.store(frame, Release),
        }
    }

    fn take_offer(&self) -> bool {
        if self.bug == Bug::TakenTwice {
            let offered = self.frame() == QUEUED;
            self.set_frame(NO_FRAME);
            return offered;
        }
        let order = match self.bug {
            Bug::OfferUnordered => Relaxed,
            _ => AcqRel,
        };
        self.frame
            .compare_exchange(QUEUED, NO_FRAME, order, Relaxed)
            .is_ok()
    }
}

impl Unit {
    /// In memory and dirty, or in swap; the content is 1.
    fn new(in_swap: bool, bug: Bug) -> Unit {
        let w = if in_swap {
            Word::none().with_kind(Kind::Swapped).with_place(PLACE)
        } else {
            after(Word::none(), Event::FirstTouched { writable: true })
        };
        let (right, content) = if in_swap {
            (Right::Nothing, GONE)
        } else {
            (Right::Write, 1)
        };
        let stored = u8::from(in_swap);
        Unit {
            lock: Lock(Model {
                word: AtomicU64::new(w.0),
                frame: AtomicU32::new(NO_FRAME),
                bucket: Mutex::new(()),
                sleepers: Condvar::new(),
                bug,
            }),
            mapping: Mutex::new(Mapping { right, content }),
            slot: [AtomicU8::new(stored), AtomicU8::new(stored)],
            note: AtomicU8::new(0),
            bug,
        }
    }

    /// Locks the unit, also by taking an offer.
    fn take(&self) -> Word {
        loop {
            if let Some(w) = self.claim().or_else(|| self.lock.try_lock_if((), |_| true)) {
                return w;
            }
            self.lock.wait_locked();
        }
    }

    fn unlock(&self, new: Word) {
        self.lock.unlock(new);
    }

    // The machine.

    fn protect(&self, right: Right) {
        self.mapping.lock().unwrap().right = right;
    }

    fn map(&self, right: Right, content: u8) {
        *self.mapping.lock().unwrap() = Mapping { right, content };
    }

    fn slot_content(&self) -> u8 {
        let [a, b] = [self.slot[0].load(Relaxed), self.slot[1].load(Relaxed)];
        assert_eq!(a, b, "the slot is torn");
        a
    }

    fn device_writes_slot(&self) {
        for half in &self.slot {
            let content = self.mapping.lock().unwrap().content;
            half.store(content, Relaxed);
        }
    }

    // The program.

    fn read(&self) -> u8 {
        loop {
            {
                let m = self.mapping.lock().unwrap();
                if m.right >= Right::Read {
                    return m.content;
                }
            }
            self.fault(false);
        }
    }

    fn write(&self, value: u8) {
        loop {
            {
                let mut m = self.mapping.lock().unwrap();
                if m.right == Right::Write {
                    m.content = value;
                    return;
                }
            }
            self.fault(true);
        }
    }

    fn fault(&self, write: bool) {
        let w = self.take();
        let right = if write { Right::Write } else { Right::Read };
        let new = match State::of(w) {
            // Another thread was faster.
            State::Dirty | State::Redirtied => w,
            State::Clean | State::ReadOnly | State::BeingWritten if !write => w,
            State::Swapped => {
                self.map(right, self.slot_content());
                after(w, Event::Arrived { writable: write })
            }
            _ => {
                self.protect(right);
                after(w, Event::Touched { write })
            }
        };
        let new = match self.bug {
            Bug::StaysClean if write && w.has(HAS_PLACE) && !w.has(WRITEBACK) => {
                new.clear(WRITABLE).set(CLEAN)
            }
            _ => new,
        };
        self.unlock(new);
    }

    /// Holds the unit for the kernel.
    fn pin(&self) {
        let held = |w: Word| {
            let ready = w.kind() == Kind::Present && !w.has(WATCHED) && w.has(WRITABLE);
            ready.then(|| w.pinned().unwrap())
        };
        while self.lock.update(held).is_none() {
            self.fault(true);
        }
    }

    fn unpin(&self) {
        let unpinned = self.lock.update(Word::unpinned);
        assert!(unpinned.is_some() || self.bug == Bug::PinsIgnored);
    }

    // Readahead.

    /// Locks the unit, if it is in swap, and offers its lock.
    fn plan(&self) {
        let swapped = |w: Word| w.kind() == Kind::Swapped;
        if let Some(w) = self.lock.try_lock_if((), swapped) {
            self.lock.change(|_| Some(w.clear(CLEAN).locked(())));
            self.note.store(1, Relaxed);
            self.lock.offer();
        }
    }

    /// Takes an offered lock.
    fn claim(&self) -> Option<Word> {
        let w = self.lock.claim()?;
        assert_eq!(self.note.load(Relaxed), 1, "taken before it was offered");
        Some(w)
    }

    /// Does what was planned, if no other thread has.
    fn read_planned(&self) {
        if let Some(w) = self.claim() {
            self.map(Right::Read, self.slot_content());
            self.unlock(after(w, Event::Arrived { writable: false }));
        }
    }

    // The evictor.

    fn evict(&self) {
        self.write_out_and_watch();
        self.drop_watched();
    }

    /// Locks the unit for the evictor, which under [`Bug::PinsIgnored`] does not see that it is
    /// held.
    fn take_to_evict(&self) -> Word {
        let mut w = self.take();
        while self.bug == Bug::PinsIgnored
            && let Some(fewer) = w.unpinned()
        {
            w = fewer;
        }
        w
    }

    /// Writes the unit out where it stands, if it is dirty, and takes its access away if it
    /// is clean then.
    fn write_out_and_watch(&self) {
        let mut w = self.take_to_evict();
        if w.kind() != Kind::Present || w.has(WRITEBACK | WATCHED) || w.pins() > 0 {
            return self.unlock(w);
        }
        if !w.has(CLEAN) {
            if self.bug != Bug::NotProtected {
                self.protect(Right::Read);
            }
            self.unlock(after(w, Event::WriteBegun));
            self.device_writes_slot();
            w = self.take_to_evict();
            if self.bug == Bug::CleanUnchecked {
                w = w.clear(WRITABLE);
            }
            w = after(w, Event::Written { place: PLACE });
            if w.has(WRITABLE) {
                return self.unlock(w);
            }
        }
        if w.pins() > 0 {
            return self.unlock(w);
        }
        let content = {
            let mut m = self.mapping.lock().unwrap();
            m.right = Right::Nothing;
            m.content
        };
        assert_eq!(self.slot_content(), content, "called clean");
        self.unlock(after(w, Event::Watched));
    }

    /// Takes the frame of a watched unit that nobody touched.
    fn drop_watched(&self) {
        let w = self.take_to_evict();
        let untouched = w.has(WATCHED) || self.bug == Bug::DropUnchecked;
        if w.kind() == Kind::Present && untouched && !w.has(WRITEBACK) && !w.pins() > 0 {
            self.map(Right::Nothing, GONE);
            let watched = match self.bug {
                Bug::DropUnchecked => w.clear(WRITABLE).with_place(PLACE).set(CLEAN | WATCHED),
                _ => w,
            };
            self.unlock(after(watched, Event::FrameTaken));
        } else {
            self.unlock(w);
        }
    }

    /// When everybody is done.
    fn check_end(&self, content: u8) {
        let w = self.lock.load();
        assert!(
            w.is_consistent() && !w.has(LOCKED | WAITERS | WRITEBACK),
            "{w:?}"
        );
        assert_eq!(w.pins(), 0);
        if w.has(CLEAN) {
            let content = self.mapping.lock().unwrap().content;
            assert_eq!(self.slot_content(), content, "called clean");
        }
        assert_eq!(self.read(), content, "a write was lost");
    }
}

/// What runs beside the evictor.
#[derive(Clone, Copy, Debug)]
enum Play {
    /// One thread writes, another reads twice.
    ReadAndWrite,
    /// One thread holds the unit for the kernel, which writes to it.
    Holder,
    /// A writer, while one evictor writes out and another (direct reclaim) takes what it can.
    TwoEvictors,
    /// The unit is read ahead while one thread writes to it and another reads it.
    ReadAhead,
}

fn explore(play: Play, in_swap: bool, bug: Bug) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(move || {
        let unit = Arc::new(Unit::new(in_swap, bug));
        let spawn = |f: fn(&Unit)| {
            let unit = unit.clone();
            thread::spawn(move || f(&unit))
        };
        let writer: fn(&Unit) = |u| {
            u.write(2);
            assert_eq!(u.read(), 2, "the writer's own write");
        };
        let others = match play {
            Play::ReadAndWrite | Play::ReadAhead => vec![
                spawn(writer),
                spawn(|u| {
                    let first = u.read();
                    let second = u.read();
                    assert!((1..=2).contains(&first) && (first..=2).contains(&second));
                }),
            ],
            Play::Holder => vec![spawn(|u| {
                u.pin();
                // The kernel writes there on the program's behalf; it cannot take a fault.
                let mut m = u.mapping.lock().unwrap();
                assert!(m.content != GONE, "a held unit was taken");
                m.content = 2;
                drop(m);
                u.unpin();
            })],
            Play::TwoEvictors => vec![spawn(|u| u.write(2)), spawn(Unit::drop_watched)],
        };
        match play {
            Play::TwoEvictors => unit.write_out_and_watch(),
            Play::ReadAndWrite | Play::Holder => unit.evict(),
            Play::ReadAhead => {
                unit.plan();
                unit.read_planned();
            }
        }
        for t in others {
            t.join().unwrap();
        }
        unit.check_end(2);
    });
}

#[test]
fn a_reader_a_writer_and_an_evictor() {
    explore(Play::ReadAndWrite, false, Bug::None);
}

#[test]
fn the_same_beginning_in_swap() {
    explore(Play::ReadAndWrite, true, Bug::None);
}

#[test]
fn two_evictors_and_a_writer() {
    explore(Play::TwoEvictors, false, Bug::None);
}

#[test]
fn a_planned_read_is_done_once() {
    explore(Play::ReadAhead, true, Bug::None);
}

#[test]
fn a_holder_and_an_evictor() {
    explore(Play::Holder, false, Bug::None);
    explore(Play::Holder, true, Bug::None);
}

const BROKEN: &[(Play, Bug, &str)] = &[
    (Play::ReadAndWrite, Bug::CleanUnchecked, "called clean"),
    (Play::ReadAndWrite, Bug::NotProtected, "called clean"),
    (Play::ReadAndWrite, Bug::DropUnchecked, "a write was lost"),
    (Play::ReadAndWrite, Bug::StaysClean, "called clean"),
    (Play::Holder, Bug::PinsIgnored, "a held unit was taken"),
    (Play::ReadAndWrite, Bug::NoWake, "deadlock"),
    (Play::ReadAndWrite, Bug::WaiterSilent, "deadlock"),
    (Play::ReadAhead, Bug::TakenTwice, "old.is_locked()"),
    (
        Play::ReadAhead,
        Bug::OfferUnordered,
        "taken before it was offered",
    ),
];

const BROKEN_RULE: &str = "HUGESWAP_TEST_BROKEN_RULE";

/// The explorer may abort when a model fails, so each failure has a process of its own: this
/// test again, told by the environment which rule to break.
#[test]
fn each_broken_rule_is_noticed() {
    if let Ok(rule) = std::env::var(BROKEN_RULE) {
        let (play, bug, _) = BROKEN[rule.parse::<usize>().unwrap()];
        return explore(play, matches!(play, Play::ReadAhead), bug);
    }
    for (i, (_, bug, complaint)) in BROKEN.iter().enumerate() {
        let run = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "each_broken_rule_is_noticed", "--nocapture"])
            .env(BROKEN_RULE, i.to_string())
            .env("RUST_BACKTRACE", "0")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&run.stderr);
        assert!(!run.status.success(), "{bug:?} goes unnoticed");
        assert!(
            said.contains(complaint),
            "{bug:?} is noticed for another reason:\n{said}"
        );
    }
}
