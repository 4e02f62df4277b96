//! The word of a slot whose page is in compressed memory, under every schedule: a page that is read
//! is right, wherever it is found; what is written back never lands on a slot that is another
//! page's by then; and a frame is used anew only when no block in it is.
//!
//! Each rule is broken once, too, and must be found to be: by the same model in a process of its
//! own.

use hugeswap_policy::cell::Cell;
use hugeswap_policy::zswap::entry::{CLEAN, Entry, WRITEBACK};
use hugeswap_policy::zswap::slot::Slot;
use loom::sync::Arc;
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use loom::sync::atomic::{AtomicU32, AtomicU64};
use loom::thread;
use std::process::Command;

/// The page, what else a frame may hold, and another page.
const PAGE: u64 = 7;
const REUSED: u64 = 13;
const OTHER: u64 = 99;

const BROKEN: &str = "HUGESWAP_TEST_BROKEN_RULE";

/// Which rule is broken.
#[derive(Clone, Copy, PartialEq)]
enum Broken {
    None,
    /// The owner does not wait for what is written back.
    Wait,
    /// A reader does not look again.
    Look,
    /// The word goes before the page is written.
    Early,
    /// The frame is used anew though a block of it is in use.
    Used,
}

struct Word(AtomicU64);

impl Cell<u64> for Word {
    fn get(&self) -> u64 {
        self.0.load(Acquire)
    }

    fn put(&self, to: u64) {
        self.0.store(to, Release);
    }

    fn change(&self, from: u64, to: u64) -> Result<(), u64> {
        let changed = self.0.compare_exchange(from, to, AcqRel, Acquire);
        changed.map(drop)
    }
}

fn block(frame: u32) -> u64 {
    let entry = Entry {
        frame,
        offset: 0,
        len: 100,
    };
    entry.word()
}

/// A slot, its page in frame 0 of two, and its place on the device.
struct Model {
    word: Word,
    frames: [AtomicU64; 2],
    used: [AtomicU32; 2],
    device: AtomicU64,
    broken: Broken,
}

impl Model {
    fn new(state: u64, device: u64, broken: Broken) -> Arc<Model> {
        Arc::new(Model {
            word: Word(AtomicU64::new(block(0) | state)),
            frames: [AtomicU64::new(PAGE), AtomicU64::new(0)],
            used: [AtomicU32::new(1), AtomicU32::new(0)],
            device: AtomicU64::new(device),
            broken,
        })
    }

    fn slot(&self) -> Slot<'_, Word> {
        Slot(&self.word)
    }

    fn frame_of(word: u64) -> Option<usize> {
        Entry::of(word, 2, 2 << 20, 4096).map(|e| e.frame as usize)
    }

    fn not_used(&self, word: u64) {
        let frame = Self::frame_of(word).expect("a block");
        assert!(self.used[frame].fetch_sub(1, AcqRel) == 1, "given up twice");
    }

    /// What the page is, for a process that may read it.
    fn read(&self) -> u64 {
        let copy = |word| Self::frame_of(word).map(|f| self.frames[f].load(Acquire));
        let found = match self.broken {
            Broken::Look => copy(self.word.get()),
            _ => self.slot().load(copy),
        };
        found.unwrap_or_else(|| self.device.load(Acquire))
    }

    /// The owner gives the slot to another page, which is written to the device.
    fn reuse(&self) {
        let removed = match self.broken {
            Broken::Wait => {
                let seen = self.word.get();
                (seen != 0 && self.word.change(seen, 0).is_ok()).then_some(seen)
            }
            _ => self.slot().forget(thread::yield_now),
        };
        if let Some(word) = removed {
            self.not_used(word);
        }
        self.device.store(OTHER, Release);
    }

    fn write_back(&self) {
        if self.slot().begin_write_back(block(0)) {
            let page = self.frames[0].load(Acquire);
            let early = (self.broken == Broken::Early).then(|| self.slot().end_write_back(true));
            self.device.store(page, Release);
            let removed = early.unwrap_or_else(|| self.slot().end_write_back(true));
            // (Only where a rule is broken there is none.)
            if let Some(word) = removed.filter(|w| w & !WRITEBACK != 0) {
                self.not_used(word);
            }
        }
        self.empty();
    }

    fn move_together(&self) {
        let page = self.frames[0].load(Acquire);
        self.used[1].fetch_add(1, AcqRel);
        self.frames[1].store(page, Release);
        match self.slot().move_block(block(0), block(1)) {
            true => self.not_used(block(0)),
            false => self.not_used(block(1)),
        }
        self.empty();
    }

    /// The frame is used for something else, if it is empty.
    fn empty(&self) {
        if self.used[0].load(Acquire) == 0 || self.broken == Broken::Used {
            self.frames[0].store(REUSED, Release);
        }
    }

    fn in_use(&self) -> u32 {
        self.used.iter().map(|u| u.load(Acquire)).sum()
    }
}

fn together(model: &Arc<Model>, threads: &[fn(&Model)]) {
    let threads: Vec<_> = threads
        .iter()
        .map(|&f| {
            let model = model.clone();
            thread::spawn(move || f(&model))
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
}

fn read_twice(m: &Model) {
    assert_eq!(m.read(), PAGE);
    assert_eq!(m.read(), PAGE);
}

fn a_reader_and_a_write_back(broken: Broken) {
    let model = Model::new(0, 0, broken);
    together(&model, &[read_twice, Model::write_back]);
    assert_eq!(model.in_use(), u32::from(broken == Broken::Used));
}

fn readers_and_a_move(broken: Broken) {
    let model = Model::new(0, 0, broken);
    together(
        &model,
        &[
            read_twice,
            |m| assert_eq!(m.read(), PAGE),
            Model::move_together,
        ],
    );
    assert_eq!(model.in_use(), 1);
}

fn an_owner_and_a_write_back(broken: Broken) {
    let model = Model::new(0, 0, broken);
    together(&model, &[Model::reuse, Model::write_back]);
    assert_eq!(
        model.device.load(Acquire),
        OTHER,
        "written to another page's slot"
    );
    assert_eq!(model.in_use(), 0);
}

fn an_owner_and_a_move(broken: Broken) {
    let model = Model::new(0, 0, broken);
    together(&model, &[Model::reuse, Model::move_together]);
    assert_eq!(model.device.load(Acquire), OTHER);
    assert_eq!(model.in_use(), 0);
}

fn a_clean_page_is_dropped(broken: Broken) {
    let model = Model::new(CLEAN, PAGE, broken);
    let drop = |m: &Model| {
        let slot = m.slot();
        if let Some(word) = slot.drop_clean(false).or_else(|| slot.drop_clean(true)) {
            m.not_used(word);
        }
        m.empty();
    };
    together(&model, &[read_twice, drop]);
    assert!(model.in_use() <= 1);
}

type Named = (&'static str, fn(Broken));

const MODELS: [Named; 5] = [
    ("a reader and a write-back", a_reader_and_a_write_back),
    ("readers and a move", readers_and_a_move),
    ("an owner and a write-back", an_owner_and_a_write_back),
    ("an owner and a move", an_owner_and_a_move),
    ("a clean page is dropped", a_clean_page_is_dropped),
];

fn explore(name: &str, model: fn(Broken), broken: Broken) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || model(broken));
    println!("{name}: explored");
}

#[test]
fn every_schedule_is_right() {
    for (name, model) in MODELS {
        explore(name, model, Broken::None);
    }
}

#[test]
fn broken_rules_are_found() {
    let rules = [
        (Broken::Wait, "wait", 2),
        (Broken::Look, "look", 0),
        (Broken::Early, "early", 0),
        (Broken::Used, "used", 0),
    ];
    if let Ok(name) = std::env::var(BROKEN) {
        let &(rule, _, model) = rules.iter().find(|r| r.1 == name).expect("a rule");
        return explore(MODELS[model].0, MODELS[model].1, rule);
    }
    for (_, name, _) in rules {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child
            .args(["--exact", "broken_rules_are_found"])
            .env(BROKEN, name);
        let said = child.output().unwrap();
        assert!(!said.status.success(), "{name}: not found");
    }
}
