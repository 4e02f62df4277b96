//! Unmapping under every schedule, while somebody else uses the mapping: who uses it says so and
//! looks whether it is there still; who unmaps it takes its address away, and waits until nobody
//! says so any more.
//!
//! Checked in every interleaving: nobody uses what is unmapped. That the explorer would notice is
//! checked too: each [`Bug`] breaks a rule, and the model then fails.

use loom::sync::Arc;
use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, fence};
use loom::thread;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// The address is looked at before the user says that it uses the mapping.
    LookFirst,
    /// Nothing orders the two of the user.
    NoFenceOfUser,
    /// Nor those of who unmaps.
    NoFenceOfUnmapper,
    /// Nobody waits.
    NoWait,
}

struct Map {
    addr: AtomicUsize,
    holders: AtomicU32,
    /// The mapping: there?
    memory: AtomicBool,
    bug: Bug,
}

impl Map {
    fn order(&self, without: Bug) {
        if self.bug != without {
            fence(SeqCst);
        }
    }

    fn hold(&self) -> bool {
        let before = self.addr.load(Acquire) != 0;
        self.holders.fetch_add(1, Relaxed);
        self.order(Bug::NoFenceOfUser);
        match self.bug {
            Bug::LookFirst => before,
            _ => self.addr.load(Acquire) != 0,
        }
    }

    fn use_it(&self) {
        if self.hold() {
            assert!(self.memory.load(Relaxed), "it is unmapped");
        }
        self.holders.fetch_sub(1, Release);
    }

    fn unmap(&self) {
        self.addr.store(0, Release);
        self.order(Bug::NoFenceOfUnmapper);
        while self.bug != Bug::NoWait && self.holders.load(Acquire) > 0 {
            thread::yield_now();
        }
        self.memory.store(false, Relaxed);
    }
}

fn explore(bug: Bug) {
    loom::model(move || {
        let map = Arc::new(Map {
            addr: AtomicUsize::new(1),
            holders: AtomicU32::new(0),
            memory: AtomicBool::new(true),
            bug,
        });
        let user = {
            let map = map.clone();
            thread::spawn(move || map.use_it())
        };
        map.unmap();
        user.join().unwrap();
    });
}

#[test]
fn nobody_uses_what_is_unmapped() {
    explore(Bug::None);
}

#[test]
fn the_model_would_notice() {
    for bug in [
        Bug::LookFirst,
        Bug::NoFenceOfUser,
        Bug::NoFenceOfUnmapper,
        Bug::NoWait,
    ] {
        let found = std::panic::catch_unwind(|| explore(bug));
        assert!(found.is_err(), "{bug:?} went unnoticed");
    }
}
