//! The protocol of shared units under every schedule: processes that use one unit, a kswapd that
//! takes it out of memory, and processes that die while they hold its lock, run by an explorer of
//! interleavings.
//!
//! The lock is [`Lock`], over a cell of the explorer, and what becomes of the unit is [`step`]: the
//! code that the engine runs. Around them stands a model of the machine:
//! * the memory: is the page there, is it write-protected, and its content, under one mutex,
//!   because an instruction and a change of any of the three are atomic to each other;
//! * the device: it writes the cluster in two halves, so a write in between tears the cluster;
//! * the futex: its check and its sleep are atomic to a wake. A sleeper whose lock's holder dies
//!   wakes up, as it does in the engine after a while.
//!
//! Checked in every interleaving: a process reads its last write, and what others read never goes
//! back; a unit that its word calls resident is in memory; no thread sleeps for ever (the explorer
//! reports a deadlock); in the end the word is stable.
//!
//! That the explorer would notice is checked too: each [`Bug`] breaks one rule of the protocol, and
//! the test asserts that the model then fails.

use hugeswap_policy::shared::step::{Event, step};
use hugeswap_policy::shared::{Holder, Kind, Op, Owner, Word};
use hugeswap_policy::unit::lock::{Cells, Lock, StateWord};
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use std::process::Command;

/// Where the protocol is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// A write-out begins without write-protecting the memory.
    NotProtected,
    /// A write-out ends without a check that no process has displaced this one.
    NotDisplaced,
    /// A process displaces one that is dropping the memory.
    DisplacesPunch,
    /// The write-out of a dead process is taken over as a write-out, which others displace.
    WriteOutTakenOver,
    /// A dead process's drop of the memory is taken over without dropping the memory.
    PunchForgotten,
    /// A process that finds a dead holder waits for it.
    WaitsForTheDead,
    /// The holder does not wake the threads that wait.
    NoWake,
}

/// The processes: the one that programs run in, and the one that dies.
const LIVING: u8 = 0;
const MORTAL: u8 = 1;

fn by(op: Op, record: u8) -> Holder {
    let generation = 7;
    Holder {
        op,
        owner: Owner { record, generation },
    }
}

const CLUSTER: u64 = 5;

/// What the memory holds once it has been dropped.
const GONE: u8 = 0xee;

struct Memory {
    present: bool,
    protected: bool,
    content: u8,
}

struct Unit {
    lock: Lock<Model>,
    memory: Mutex<Memory>,
    cluster: [AtomicU8; 2],
    bug: Bug,
}

/// The word of a unit, a futex, and whether [`MORTAL`] is dead.
struct Model {
    word: AtomicU64,
    bucket: Mutex<()>,
    sleepers: Condvar,
    dead: AtomicBool,
    bug: Bug,
}

impl Model {
    fn is_dead(&self, owner: Owner) -> bool {
        owner.record == MORTAL && self.dead.load(Acquire)
    }
}

impl Cells for Model {
    type Word = Word;
    const SPINS: u32 = 0;

    fn word(&self) -> u64 {
        self.word.load(Acquire)
    }

    fn replace_word(&self, old: u64, new: u64) -> Result<(), u64> {
        let replaced = self.word.compare_exchange(old, new, AcqRel, Acquire);
        replaced.map(|_| ())
    }

    fn swap_word(&self, new: u64) -> u64 {
        self.word.swap(new, Release)
    }

    fn wait(&self, seen: u64) {
        let bucket = self.bucket.lock().unwrap();
        let waits = self.bug == Bug::WaitsForTheDead || !self.is_dead(Word(seen).owner());
        if self.word.load(Relaxed) == seen && waits {
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

impl Unit {
    /// In memory, with a cluster of older bytes or without, or in swap. The content is 1.
    fn new(start: Start, bug: Bug) -> Unit {
        let cluster = (start != Start::New).then_some(CLUSTER);
        let w = Word::NONE.with_cluster(cluster);
        let (kind, present, stored) = match start {
            Start::New | Start::Resident => (Kind::Resident, true, 0),
            Start::Swapped => (Kind::Swapped, false, 1),
        };
        Unit {
            lock: Lock(Model {
                word: AtomicU64::new(w.with_kind(kind).0),
                bucket: Mutex::new(()),
                sleepers: Condvar::new(),
                dead: AtomicBool::new(false),
                bug,
            }),
            memory: Mutex::new(Memory {
                present,
                protected: false,
                content: if present { 1 } else { GONE },
            }),
            cluster: [AtomicU8::new(stored), AtomicU8::new(stored)],
            bug,
        }
    }

    fn take(&self, seen: Word, op: Op, me: u8) -> Option<Word> {
        self.lock.take(seen, by(op, me)).ok()?;
        Some(seen.locked(by(op, me)))
    }

    /// Unlocks the unit after an event, as the engine does.
    fn settle_by(&self, w: Word, event: Event) {
        self.lock.unlock(step(w, event).map_or(w, |s| s.word));
    }

    // The machine.

    fn protect(&self, protected: bool) {
        self.memory.lock().unwrap().protected = protected;
    }

    fn drop_memory(&self) {
        let mut m = self.memory.lock().unwrap();
        (m.present, m.content) = (false, GONE);
    }

    /// Fills the page unless it is there.
    fn fill(&self) {
        let [a, b] = [self.cluster[0].load(Relaxed), self.cluster[1].load(Relaxed)];
        assert_eq!(a, b, "the cluster is torn");
        let mut m = self.memory.lock().unwrap();
        if !m.present {
            *m = Memory {
                present: true,
                protected: false,
                content: a,
            };
        }
    }

    fn device_writes_cluster(&self) {
        for half in &self.cluster {
            let content = self.memory.lock().unwrap().content;
            half.store(content, Relaxed);
        }
    }

    /// The process ends as it is. Threads that wait for it notice after a while.
    fn die(&self) {
        let model = &self.lock.0;
        model.dead.store(true, Release);
        let _bucket = model.bucket.lock().unwrap();
        model.sleepers.notify_all();
    }

    // Programs.

    fn read(&self) -> u8 {
        loop {
            {
                let m = self.memory.lock().unwrap();
                if m.present {
                    return m.content;
                }
            }
            self.fault(false, LIVING, Death::NEVER);
        }
    }

    fn write(&self, value: u8) {
        loop {
            {
                let mut m = self.memory.lock().unwrap();
                if m.present && !m.protected {
                    m.content = value;
                    return;
                }
            }
            self.fault(true, LIVING, Death::NEVER);
        }
    }

    fn fault(&self, write: bool, me: u8, death: Death) {
        loop {
            let w = self.lock.load();
            let punch = self.bug == Bug::DisplacesPunch && w.op() == Op::Punch && write;
            match (w.op(), w.kind()) {
                (Op::Out, _) if !write => return,
                (Op::None, Kind::Resident) | (Op::Out, _) => {
                    let Some(held) = self.take(w, Op::Touch, me) else {
                        continue;
                    };
                    if death.is_now(1) {
                        return self.die();
                    }
                    {
                        let mut m = self.memory.lock().unwrap();
                        assert!(m.present, "a resident unit is not in memory");
                        m.protected &= !write;
                    }
                    if death.is_now(2) {
                        return self.die();
                    }
                    let displaced = w.op() == Op::Out;
                    return self.settle_by(held, Event::Touched { displaced });
                }
                (Op::None, _) => {
                    let Some(held) = self.take(w, Op::In, me) else {
                        continue;
                    };
                    if death.is_now(1) {
                        return self.die();
                    }
                    self.fill();
                    if death.is_now(2) {
                        return self.die();
                    }
                    return self.settle_by(held, Event::Arrived { ahead: false });
                }
                _ if punch => {
                    if let Some(held) = self.take(w, Op::Touch, me) {
                        self.protect(false);
                        return self.lock.unlock(held.with_kind(Kind::Resident));
                    }
                }
                _ => {
                    self.lock.wait_change(w);
                    self.carry_on();
                }
            }
        }
    }

    /// Does what a dead process had begun.
    fn carry_on(&self) {
        let w = self.lock.load();
        if !w.is_locked() || !self.lock.0.is_dead(w.owner()) {
            return;
        }
        let op = match w.op() {
            Op::Out if self.bug != Bug::WriteOutTakenOver => Op::Touch,
            op => op,
        };
        let Some(held) = self.take(w, op, LIVING) else {
            return;
        };
        match w.op() {
            Op::Out => self.settle_by(held, Event::Touched { displaced: false }),
            Op::In => {
                self.fill();
                self.settle_by(held, Event::Arrived { ahead: false });
            }
            Op::Punch if self.bug == Bug::PunchForgotten => {
                self.lock.unlock(held.with_kind(Kind::Resident));
            }
            Op::Punch => {
                self.drop_memory();
                self.settle_by(held, Event::Dropped);
            }
            Op::Touch => {
                self.protect(false);
                self.lock.unlock(held);
            }
            Op::None | Op::Discard => unreachable!(),
        }
    }

    // kswapd.

    fn evict(&self, me: u8, death: Death) {
        let w = self.lock.load();
        if w.is_locked() || w.kind() != Kind::Resident || self.take(w, Op::Out, me).is_none() {
            return;
        }
        if death.is_now(1) {
            return self.die();
        }
        if self.bug != Bug::NotProtected {
            self.protect(true);
        }
        if death.is_now(2) {
            return self.die();
        }
        if w.cluster().is_some() && self.advance(me, Event::Unplaced).is_none() {
            return;
        }
        self.device_writes_cluster();
        if death.is_now(3) {
            return self.die();
        }
        let cluster = CLUSTER;
        let Some(held) = self.advance(me, Event::Stored { cluster }) else {
            return;
        };
        if death.is_now(4) {
            return self.die();
        }
        self.drop_memory();
        if death.is_now(5) {
            return self.die();
        }
        self.settle_by(held, Event::Dropped);
    }

    /// Takes a step of a write-out, if this process was not displaced.
    fn advance(&self, me: u8, event: Event) -> Option<Word> {
        self.lock.change(|w| {
            let held = w.is_held(by(Op::Out, me)) || self.bug == Bug::NotDisplaced;
            let out = w.locked(by(Op::Out, me));
            step(out, event).ok().filter(|_| held).map(|s| s.word)
        })
    }

    /// When all threads are done.
    fn check_end(&self, content: u8) {
        self.carry_on();
        let w = self.lock.load();
        assert!(
            w.check().is_ok() && !w.is_locked() && !w.has_waiters(),
            "{w:?}"
        );
        let present = self.memory.lock().unwrap().present;
        assert!(present || w.kind() != Kind::Resident, "{w:?}");
        assert_eq!(self.read(), content, "a write was lost");
    }
}

/// Where a process dies, if at all: at which of the places that are numbered in what it does.
#[derive(Clone, Copy, Debug)]
struct Death(u8);

impl Death {
    const NEVER: Death = Death(0);

    fn is_now(self, place: u8) -> bool {
        self.0 == place
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    New,
    Resident,
    Swapped,
}

/// What runs beside the programs.
#[derive(Clone, Copy, Debug)]
enum Play {
    /// kswapd takes the unit out, while a thread writes and another reads.
    Evict,
    /// The same without a reader, of a process that dies.
    EvictAndDie(Death),
    /// A process touches the unit, and dies.
    TouchAndDie { write: bool, death: Death },
    /// A process has died in a write-out. Another one carries on, and takes the unit out, while a
    /// thread writes.
    AfterDeath,
}

fn explore(play: Play, start: Start, bug: Bug) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(move || {
        let unit = Arc::new(Unit::new(start, bug));
        if let Play::AfterDeath = play {
            unit.evict(MORTAL, Death(2));
        }
        let spawn = |f: fn(&Unit)| {
            let unit = unit.clone();
            thread::spawn(move || f(&unit))
        };
        let mut others = vec![spawn(|u| {
            u.write(2);
            assert_eq!(u.read(), 2, "the writer's own write");
        })];
        match play {
            Play::Evict => {
                others.push(spawn(|u| {
                    let first = u.read();
                    let second = u.read();
                    assert!((1..=2).contains(&first) && (first..=2).contains(&second));
                }));
                unit.evict(LIVING, Death::NEVER);
            }
            Play::EvictAndDie(death) => unit.evict(MORTAL, death),
            Play::TouchAndDie { write, death } => unit.fault(write, MORTAL, death),
            Play::AfterDeath => {
                unit.carry_on();
                unit.evict(LIVING, Death::NEVER);
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
    explore(Play::Evict, Start::New, Bug::None);
    explore(Play::Evict, Start::Resident, Bug::None);
}

#[test]
fn an_evictor_dies_anywhere() {
    for place in 1..=5 {
        explore(Play::EvictAndDie(Death(place)), Start::Resident, Bug::None);
    }
}

#[test]
fn a_process_dies_in_its_fault() {
    for start in [Start::Swapped, Start::Resident] {
        for (place, write) in [(1, false), (1, true), (2, false), (2, true)] {
            let death = Death(place);
            explore(Play::TouchAndDie { write, death }, start, Bug::None);
        }
    }
}

#[test]
fn what_the_dead_began_is_carried_on_once() {
    explore(Play::AfterDeath, Start::New, Bug::None);
}

const BROKEN: &[(Play, Bug, &str)] = &[
    (Play::Evict, Bug::NotProtected, "a write was lost"),
    (Play::Evict, Bug::NotDisplaced, "a write was lost"),
    (
        Play::Evict,
        Bug::DisplacesPunch,
        "a resident unit is not in memory",
    ),
    (Play::Evict, Bug::NoWake, "deadlock"),
    (
        Play::AfterDeath,
        Bug::WriteOutTakenOver,
        "a resident unit is not in memory",
    ),
    (
        Play::EvictAndDie(Death(5)),
        Bug::PunchForgotten,
        "a resident unit is not in memory",
    ),
    (
        Play::EvictAndDie(Death(4)),
        Bug::WaitsForTheDead,
        "deadlock",
    ),
];

const BROKEN_RULE: &str = "HUGESWAP_TEST_BROKEN_RULE";

/// The explorer may abort when a model fails, so each failure has a process of its own: this test
/// again, told by the environment which rule to break.
#[test]
fn each_broken_rule_is_noticed() {
    if let Ok(rule) = std::env::var(BROKEN_RULE) {
        let (play, bug, _) = BROKEN[rule.parse::<usize>().unwrap()];
        return explore(play, Start::New, bug);
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
