//! The ring of what happens, under every schedule: what comes out was put in, whole, each once, and
//! what does not was counted.
//!
//! That the explorer would notice is checked too: each [`Bug`] breaks a rule, and the model then fails.

mod loom_cell;

use hugeswap_policy::recording::{Next, Ring, WORDS};
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;

struct Word(AtomicU64);
loom_cell::loom_cell!(Word, u64, |value| value);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// Who fills a slot says so first.
    Early,
    /// Who reads gives the slot back first.
    GivesBack,
    /// Who puts in does not look whether there is room.
    NoRoom,
}

struct Model {
    ends: [Word; 3],
    slots: Vec<[Word; WORDS]>,
    bug: Bug,
}

const WRITERS: u64 = 2;
const EACH: u64 = 2;

impl Model {
    fn new(bug: Bug) -> Arc<Model> {
        let word = || Word(AtomicU64::new(0));
        Arc::new(Model {
            ends: std::array::from_fn(|_| word()),
            slots: (0..2).map(|_| std::array::from_fn(|_| word())).collect(),
            bug,
        })
    }

    fn ring(&self) -> Ring<'_, Word> {
        let [head, tail, lost] = &self.ends;
        Ring {
            head,
            tail,
            lost,
            slots: &self.slots,
        }
    }

    fn put(&self, value: u64) {
        use hugeswap_policy::cell::Cell;
        let ring = self.ring();
        if self.bug == Bug::NoRoom {
            let head = ring.head.get();
            if ring.head.change(head, head + 1).is_ok() {
                let [number, rest @ ..] = &self.slots[head as usize % 2];
                rest.iter().for_each(|w| w.put(value));
                number.put(head + 1);
            }
            return;
        }
        let Some(claim) = ring.claim() else {
            return;
        };
        if self.bug == Bug::Early {
            // (The number of the first turn, which is all that this model has of it.)
            self.slots[ring.index(claim)][0].put(ring.index(claim) as u64 + 1);
        }
        ring.fill(claim, [value; WORDS - 1]);
    }

    /// What is found, at one time.
    fn get(&self, found: &mut Vec<u64>) {
        let ring = self.ring();
        if self.bug == Bug::GivesBack {
            let (index, next) = ring.peek();
            if matches!(next, Next::Words(_)) {
                ring.take();
                use hugeswap_policy::cell::Cell;
                let words: Vec<_> = self.slots[index][1..].iter().map(Cell::get).collect();
                assert!(words.iter().all(|w| *w == words[0]), "in parts");
                found.push(words[0]);
            }
            return;
        }
        if let (_, Next::Words(words)) = ring.peek() {
            let is_whole = words[0] != 0 && words.iter().all(|w| *w == words[0]);
            assert!(is_whole, "in parts: {words:?}");
            found.push(words[0]);
            ring.take();
        }
    }
}

fn explore(bug: Bug) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.max_branches = 10_000;
    builder.check(move || {
        use hugeswap_policy::cell::Cell;
        let model = Model::new(bug);
        let writers: Vec<_> = (0..WRITERS)
            .map(|w| {
                let model = model.clone();
                thread::spawn(move || (0..EACH).for_each(|i| model.put(10 * (w + 1) + i)))
            })
            .collect();
        // (In a thread of its own: loom has the first one begin.)
        let reader = thread::spawn({
            let model = model.clone();
            move || {
                let mut found = Vec::new();
                (0..2).for_each(|_| model.get(&mut found));
                found
            }
        });
        writers.into_iter().for_each(|w| w.join().expect("it ends"));
        let mut found = reader.join().expect("it ends");
        while model.ring().peek().1 != Next::Empty {
            let before = found.len();
            model.get(&mut found);
            assert!(found.len() > before, "never finished");
        }
        let lost = model.ring().lost.get();
        assert_eq!(found.len() as u64 + lost, WRITERS * EACH, "{found:?}");
        for w in 1..=WRITERS {
            let of: Vec<_> = found.iter().filter(|v| **v / 10 == w).collect();
            assert!(of.is_sorted_by(|a, b| a < b), "{found:?}");
        }
    });
}

#[test]
fn what_is_put_in_comes_out_whole() {
    explore(Bug::None);
}

#[test]
#[should_panic(expected = "in parts")]
fn a_slot_is_filled_before_it_says_so() {
    explore(Bug::Early);
}

#[test]
#[should_panic(expected = "in parts")]
fn a_slot_is_read_before_it_is_given_back() {
    explore(Bug::GivesBack);
}

#[test]
#[should_panic]
fn who_puts_in_looks_whether_there_is_room() {
    explore(Bug::NoRoom);
}
