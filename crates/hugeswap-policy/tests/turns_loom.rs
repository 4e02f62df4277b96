//! Acting and changing under every schedule. Checked in every interleaving: what somebody has looked at
//! does not change while it acts, and what was asked for is changed in the end.
//!
//! That the explorer would notice is checked too: each [`Bug`] breaks a rule, and the model then fails.

mod loom_cell;

use hugeswap_policy::turns::Turns;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU32;
use loom::sync::atomic::Ordering::Relaxed;
use loom::thread;

struct Word(AtomicU32);
loom_cell::loom_cell!(Word, u32, |value| value);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// Who acts does not say so.
    NoEnter,
    /// Who leaves does not look whether something waits.
    NoLook,
    /// Nor does who has changed something.
    NoLookAfter,
    /// Who acts does not wait for the change that is under way.
    NoWait,
}

struct Model {
    turns: Turns<Word>,
    /// How much is to be changed.
    asked: AtomicU32,
    /// What is looked at.
    state: AtomicU32,
    bug: Bug,
}

impl Model {
    fn act(&self) {
        match self.bug {
            Bug::NoEnter => {}
            Bug::NoWait => self.turns.enter_at_once(),
            _ => self.turns.enter(thread::yield_now),
        }
        let seen = self.state.load(Relaxed);
        thread::yield_now();
        assert_eq!(self.state.load(Relaxed), seen, "it has changed");
        if self.bug != Bug::NoEnter {
            self.turns.leave();
        }
        if self.bug != Bug::NoLook {
            self.look();
        }
    }

    fn ask(&self) {
        self.asked.fetch_add(1, Relaxed);
        self.turns.ask();
        self.look();
    }

    fn look(&self) {
        while self.turns.is_waiting() && self.turns.begin() {
            let asked = self.asked.swap(0, Relaxed);
            self.state.fetch_add(asked, Relaxed);
            self.turns.end();
            if self.bug == Bug::NoLookAfter {
                break;
            }
        }
    }
}

/// `acting` act, and `asking` ask.
fn explore(bug: Bug, acting: u32, asking: u32) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.max_branches = 10_000;
    builder.check(move || {
        let model = Arc::new(Model {
            turns: Turns(Word(AtomicU32::new(0))),
            asked: AtomicU32::new(0),
            state: AtomicU32::new(0),
            bug,
        });
        let threads = (1..acting + asking).map(|i| {
            let model = model.clone();
            thread::spawn(move || if i < acting { model.act() } else { model.ask() })
        });
        let threads: Vec<_> = threads.collect();
        if acting > 0 {
            model.act()
        } else {
            model.ask()
        }
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(model.state.load(Relaxed), asking, "some of it still waits");
        assert!(!model.turns.is_waiting());
    });
}

#[test]
fn nothing_changes_under_who_acts_and_all_is_changed() {
    explore(Bug::None, 1, 1);
    explore(Bug::None, 2, 1);
    explore(Bug::None, 1, 2);
}

#[test]
#[should_panic(expected = "it has changed")]
fn who_acts_must_say_so() {
    explore(Bug::NoEnter, 1, 1);
}

#[test]
#[should_panic(expected = "it has changed")]
fn who_acts_must_wait_for_a_change() {
    explore(Bug::NoWait, 1, 1);
}

#[test]
#[should_panic(expected = "still waits")]
fn who_leaves_must_look() {
    explore(Bug::NoLook, 1, 1);
}

#[test]
#[should_panic(expected = "still waits")]
fn who_has_changed_must_look_again() {
    explore(Bug::NoLookAfter, 0, 2);
}
