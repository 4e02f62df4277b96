//! The lists of places under every schedule. The code is the real one, over atomics that the
//! explorer of interleavings sees.
//!
//! Checked in every interleaving: no place is handed out twice, none is lost, and what is counted
//! free is never less than what is there. With the count of changes in a stack's head left out the
//! exploration finds the place that is handed out twice.

mod loom_cell;

use hugeswap_policy::defrag::frames::{Here, Lists};
use loom::sync::Arc;
use loom::sync::atomic::Ordering::Relaxed;
use loom::sync::atomic::{AtomicU32, AtomicU64};
use loom::thread;
use loom_cell::loom_cell;

/// `COUNTS` false: what the protocol would be if a head did not count its changes.
struct Head<const COUNTS: bool>(AtomicU64);
struct Next(AtomicU32);

const PLACE: u64 = (1 << 26) - 1;

impl<const COUNTS: bool> Head<COUNTS> {
    fn seen(value: u64) -> u64 {
        if COUNTS { value } else { value & PLACE }
    }
}

loom_cell!(Head<COUNTS>, u64, |head| Self::seen(head), [const COUNTS: bool]);
loom_cell!(Next, u32);

const PLACES: u32 = 3;
const HERE: Here = Here { node: 0, shard: 0 };

struct Arena<const COUNTS: bool> {
    lists: Lists<Head<COUNTS>, Vec<Next>, Next>,
    /// By bit: the places that somebody has: what is true.
    had: AtomicU64,
}

impl<const COUNTS: bool> Arena<COUNTS> {
    /// One node of `shards` lines; every place was used before.
    fn new(shards: usize) -> Arc<Self> {
        let next = (0..PLACES).map(|_| Next(AtomicU32::new(0))).collect();
        let zero = || Head(AtomicU64::new(0));
        let lists = Lists::new(zero, next, 1, shards, PLACES);
        let had = AtomicU64::new(0);
        let arena = Arena { lists, had };
        let all = [(); PLACES as usize].map(|()| arena.take_empty().unwrap());
        all.into_iter().for_each(|p| arena.put_empty(p));
        Arc::new(arena)
    }

    fn has(&self, place: u32) -> u32 {
        let before = self.had.fetch_or(1 << place, Relaxed);
        assert_eq!(before >> place & 1, 0, "place {place} is somebody's");
        place
    }

    fn let_go(&self, place: u32) {
        self.had.fetch_and(!(1 << place), Relaxed);
    }

    fn take_empty(&self) -> Option<u32> {
        self.lists.take_empty(HERE).map(|p| self.has(p))
    }

    fn put_empty(&self, place: u32) {
        self.let_go(place);
        self.lists.put_empty(HERE, place);
    }

    fn take_free(&self, shard: u8) -> Option<u32> {
        let here = Here { shard, ..HERE };
        self.lists.take_free(here, &[0]).map(|p| self.has(p))
    }

    fn put_free(&self, shard: u8, place: u32) {
        self.let_go(place);
        self.lists.put_free(Here { shard, ..HERE }, place, false);
    }

    fn check(&self) {
        let held = self.had.load(Relaxed).count_ones();
        let (free, empty) = self.lists.count();
        assert_eq!(free + empty + u64::from(held), PLACES.into(), "lost");
        assert_eq!(free, self.lists.free());
    }
}

fn explore(f: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(f);
}

fn taken_and_given_back<const COUNTS: bool>() {
    explore(|| {
        let arena = Arena::<COUNTS>::new(1);
        let other = arena.clone();
        let t = thread::spawn(move || {
            // The same place comes back to the top, and another one is below it.
            let (a, b) = (other.take_empty(), other.take_empty());
            if let Some(a) = a {
                other.put_empty(a);
            }
            b
        });
        let mine = [arena.take_empty(), arena.take_empty()];
        let theirs = t.join().unwrap();
        arena.check();
        for place in mine.into_iter().chain([theirs]).flatten() {
            arena.put_empty(place);
        }
        arena.check();
    });
}

#[test]
fn no_place_is_had_twice() {
    taken_and_given_back::<true>();
}

#[test]
#[should_panic]
fn a_head_that_does_not_count_its_changes_is_found_out() {
    taken_and_given_back::<false>();
}

#[test]
fn frames_of_another_line_are_in_reach() {
    explore(|| {
        let arena = Arena::<true>::new(2);
        let first = arena.take_empty().unwrap();
        arena.put_free(0, first);
        let other = arena.clone();
        let t = thread::spawn(move || {
            if let Some(place) = other.take_free(1) {
                other.put_free(1, place);
            }
        });
        let second = arena.take_empty().unwrap();
        arena.put_free(0, second);
        // What is counted is never less than what is there: whoever finds nothing counted need not
        // look.
        assert!(arena.lists.free() >= 1);
        assert!(arena.take_free(0).is_some(), "one at least stays");
        t.join().unwrap();
        arena.check();
    });
}

#[test]
fn empty_places_met_while_others_take_some() {
    explore(|| {
        let arena = Arena::<true>::new(1);
        let other = arena.clone();
        let t = thread::spawn(move || {
            let got = other.take_empty();
            got.into_iter().for_each(|p| other.put_empty(p));
        });
        arena.lists.each_empty(|place| {
            arena.has(place);
            arena.let_go(place);
        });
        t.join().unwrap();
        arena.check();
    });
}
