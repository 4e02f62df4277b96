//! What happens while a pool is recorded, and the ring that it is put into by those to whom it
//! happens, for the one process that records.
//!
//! A ring has slots of [`WORDS`] atomic words: a number that tells for which turn the rest was
//! written, and the rest. Who puts something in takes a number off `head`, if the slot of that
//! number has been emptied; else it counts what is lost. It never waits. The reader takes the slots
//! in their order, and each only once its number stands in it. A process that died in between
//! leaves a slot without its number: the reader may skip it. Everything that is read was written by
//! others, who may be hostile: it is only shown.
//!
//! [`Rate`] decides how many of the faults are recorded: all while they are few, so that recording
//! costs the same whatever a program does.

use crate::cell::Cell;
use crate::counters::FaultClass;
use crate::swapin::granularity::Trial;

/// Words of a slot: its number, and a [`Happening`].
pub const WORDS: usize = 8;
/// Others take the same number so often before something is lost.
const TRIES: u32 = 64;

named! {
    /// What can happen.
    Kind:
    Fault => "fault", "A thread touched memory that was not there, or not to be written.";
    Evicted => "evicted", "Pages left memory.";
    Stalled => "stalled", "A thread waited until memory was free.";
    Throttled => "throttled", "A thread that takes memory faster than it is made free was paused.";
    Trial => "trial", "A trial of bringing in more, or less, by a fault began or ended.";
}

/// What a thread was at when it faulted: registers of the program. All 0: that is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Code {
    /// Its instruction.
    pub ip: u64,
    /// Its stack pointer.
    pub sp: u64,
    /// Its frame pointer, or whatever else is in that register.
    pub bp: u64,
}

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Happening {
    /// When it began, nanoseconds of CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// How long it took, nanoseconds.
    pub ns: u64,
    /// What it was.
    pub kind: Kind,
    /// Of a fault its [`FaultClass`], of a trial what became of it ([`Trial`]).
    pub detail: u8,
    /// Was it a write?
    pub write: bool,
    /// It stands for so many of its kind.
    pub weight: u32,
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// Where, if it has a place.
    pub addr: u64,
    /// How many pages; of a trial how many a fault brings in from then on (at most).
    pub pages: u32,
    /// The instruction of the program, if that is known.
    pub code: u64,
}

impl Happening {
    /// What began at a time, at an address (or nowhere: 0).
    pub fn new(kind: Kind, at_ns: u64, addr: u64) -> Happening {
        Happening {
            at_ns,
            ns: 0,
            kind,
            detail: 0,
            write: false,
            weight: 1,
            pid: 0,
            tid: 0,
            addr,
            pages: 0,
            code: 0,
        }
    }

    /// As the words of a slot.
    pub fn words(&self) -> [u64; WORDS - 1] {
        let kind = self.kind as u64 | u64::from(self.detail) << 8 | u64::from(self.write) << 16;
        [
            self.at_ns,
            self.ns,
            kind | u64::from(self.weight) << 32,
            u64::from(self.pid) | u64::from(self.tid) << 32,
            self.addr,
            self.pages.into(),
            self.code,
        ]
    }

    /// From the words of a slot; `None`: they make no sense.
    pub fn of(words: [u64; WORDS - 1]) -> Option<Happening> {
        let [at_ns, ns, kind, threads, addr, pages, code] = words;
        let (kind, detail, write) = (kind as u8, (kind >> 8) as u8, kind >> 16 & 0xffff);
        let kind = *Kind::ALL.get(usize::from(kind))?;
        let details = match kind {
            Kind::Fault => FaultClass::COUNT,
            Kind::Trial => Trial::COUNT,
            _ => 1,
        };
        let weight = (words[2] >> 32) as u32;
        let makes_sense = usize::from(detail) < details && write < 2 && weight > 0;
        makes_sense.then_some(Happening {
            at_ns,
            ns,
            kind,
            detail,
            write: write == 1,
            weight,
            pid: threads as u32,
            tid: (threads >> 32) as u32,
            addr,
            pages: pages as u32,
            code,
        })
    }
}

/// The ring.
pub struct Ring<'a, W> {
    /// The next number to put something in under.
    pub head: &'a W,
    /// The next one to be read.
    pub tail: &'a W,
    /// What found no room.
    pub lost: &'a W,
    /// A power of two of them.
    pub slots: &'a [[W; WORDS]],
}

/// A slot to be filled: its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim(u64);

/// What the reader finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing.
    Empty,
    /// Somebody is filling the slot, or has died over it.
    Unfinished,
    /// This.
    Words([u64; WORDS - 1]),
}

impl<W: Cell<u64>> Ring<'_, W> {
    /// A slot; `None`: there is none, or too many want it.
    pub fn claim(&self) -> Option<Claim> {
        for _ in 0..TRIES {
            let head = self.head.get();
            if head.wrapping_sub(self.tail.get()) >= self.slots.len() as u64 {
                break;
            }
            if self.head.change(head, head.wrapping_add(1)).is_ok() {
                return Some(Claim(head));
            }
        }
        self.count_lost();
        None
    }

    /// The index of a slot.
    pub fn index(&self, claim: Claim) -> usize {
        (claim.0 as usize) & (self.slots.len() - 1)
    }

    /// Fills a slot.
    pub fn fill(&self, claim: Claim, words: [u64; WORDS - 1]) {
        let [number, rest @ ..] = &self.slots[self.index(claim)];
        for (to, word) in rest.iter().zip(words) {
            to.put(word);
        }
        number.put(claim.0.wrapping_add(1));
    }

    /// The next one that was put in, and its slot's index. It stays until [`Ring::take`].
    pub fn peek(&self) -> (usize, Next) {
        let (head, mut tail) = (self.head.get(), self.tail.get());
        let behind = head.wrapping_sub(tail);
        if behind > self.slots.len() as u64 {
            // Nobody who keeps the rules has done that.
            tail = head;
            self.tail.put(tail);
        }
        let index = self.index(Claim(tail));
        if head == tail {
            return (index, Next::Empty);
        }
        let [number, rest @ ..] = &self.slots[index];
        if number.get() != tail.wrapping_add(1) {
            return (index, Next::Unfinished);
        }
        (index, Next::Words(std::array::from_fn(|i| rest[i].get())))
    }

    /// The slot that was looked at can be filled again.
    pub fn take(&self) {
        self.tail.put(self.tail.get().wrapping_add(1));
    }

    /// As [`Ring::take`], for one that nobody will finish.
    pub fn skip(&self) {
        self.take();
        self.count_lost();
    }

    fn count_lost(&self) {
        for _ in 0..TRIES {
            let lost = self.lost.get();
            if self.lost.change(lost, lost.wrapping_add(1)).is_ok() {
                break;
            }
        }
    }
}

/// Is the `n`th fault one of those that are recorded, where one in `every` is? (Not each `every`th:
/// a program's own rhythm might be the same.)
pub fn is_recorded(n: u64, every: u32) -> bool {
    let mixed = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    every == 1 || every > 0 && (mixed * u64::from(every)) >> 32 == 0
}

/// How many are recorded: about so many a second at the most.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    every: u32,
}

impl Default for Rate {
    /// All, until more happen.
    fn default() -> Rate {
        Rate { every: 1 }
    }
}

impl Rate {
    /// One in so many is recorded.
    pub fn every(&self) -> u32 {
        self.every
    }

    /// So many happened in so many seconds, recorded or not, and `most` a second are to be.
    pub fn on_look(&mut self, happened: u64, seconds: f64, most: f64) {
        const MOST: f64 = (1u32 << 24) as f64;
        let rate = happened as f64 / seconds.max(1e-3);
        let wanted = (rate / most.max(1e-3)).ceil().clamp(1.0, MOST) as u32;
        // (At once where there are more; where there are fewer, they may be many again.)
        self.every = match wanted >= self.every {
            true => wanted,
            false => (self.every - self.every / 4).clamp(wanted, self.every - 1),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::AtomicU64;

    struct Words {
        ends: [AtomicU64; 3],
        slots: Vec<[AtomicU64; WORDS]>,
    }

    impl Words {
        fn new(slots: usize) -> Words {
            Words {
                ends: std::array::from_fn(|_| AtomicU64::new(0)),
                slots: (0..slots)
                    .map(|_| std::array::from_fn(|_| AtomicU64::new(0)))
                    .collect(),
            }
        }

        fn ring(&self) -> Ring<'_, AtomicU64> {
            let [head, tail, lost] = &self.ends;
            Ring {
                head,
                tail,
                lost,
                slots: &self.slots,
            }
        }
    }

    #[test]
    fn what_is_put_in_comes_out_in_order() {
        let words = Words::new(4);
        let ring = words.ring();
        for round in 0..3 {
            for i in 0..6 {
                let claim = ring.claim();
                assert_eq!(claim.is_some(), i < 4, "{round} {i}");
                if let Some(claim) = claim {
                    ring.fill(claim, [round * 10 + i; WORDS - 1]);
                }
            }
            for i in 0..4 {
                let (_, next) = ring.peek();
                assert_eq!(next, Next::Words([round * 10 + i; WORDS - 1]));
                ring.take();
            }
            assert_eq!(ring.peek().1, Next::Empty);
        }
        assert_eq!(ring.lost.get(), 6);
    }

    #[test]
    fn what_nobody_finishes_is_skipped() {
        let words = Words::new(2);
        let ring = words.ring();
        let late = ring.claim().expect("room");
        let claim = ring.claim().expect("room");
        ring.fill(claim, [7; WORDS - 1]);
        assert_eq!(ring.peek().1, Next::Unfinished);
        ring.skip();
        assert_eq!(ring.peek().1, Next::Words([7; WORDS - 1]));
        ring.take();
        // It was not dead, only slow: what it puts in now is nobody's turn.
        let claim = ring.claim().expect("room");
        ring.fill(late, [1; WORDS - 1]);
        assert_eq!(ring.peek().1, Next::Unfinished);
        ring.fill(claim, [2; WORDS - 1]);
        assert_eq!(ring.peek().1, Next::Words([2; WORDS - 1]));
        assert_eq!(ring.lost.get(), 1);
    }

    #[test]
    fn nonsense_is_passed_over() {
        let words = Words::new(2);
        let ring = words.ring();
        ring.head.put(1 << 60);
        assert_eq!(ring.peek().1, Next::Empty);
        let claim = ring.claim().expect("room");
        ring.fill(claim, [3; WORDS - 1]);
        assert_eq!(ring.peek().1, Next::Words([3; WORDS - 1]));
    }

    fn happening() -> impl Strategy<Value = Happening> {
        let kinds = proptest::sample::select(Kind::ALL);
        (kinds, any::<[u64; 4]>(), any::<[u32; 4]>(), any::<bool>()).prop_map(
            |(kind, [at_ns, ns, addr, code], [weight, pid, tid, pages], write)| Happening {
                at_ns,
                ns,
                kind,
                detail: 0,
                write,
                weight: weight.max(1),
                pid,
                tid,
                addr,
                pages,
                code,
            },
        )
    }

    proptest! {
        #[test]
        fn happenings_survive(h in happening()) {
            prop_assert_eq!(Happening::of(h.words()), Some(h));
        }

        #[test]
        fn words_make_sense_or_not(words: [u64; WORDS - 1]) {
            if let Some(h) = Happening::of(words) {
                prop_assert!(h.weight > 0);
                prop_assert!(h.kind != Kind::Fault || usize::from(h.detail) < FaultClass::COUNT);
            }
        }

        #[test]
        fn as_many_are_recorded_as_is_said(every in 1u32..1000, start in 0u64..1 << 40) {
            let n = 100 * u64::from(every);
            let recorded = (start..start + n).filter(|&i| is_recorded(i, every)).count();
            prop_assert!((80..=120).contains(&recorded), "{}", recorded);
        }
    }

    #[test]
    fn none_are_recorded_where_nothing_is() {
        assert!(!(0..1000).any(|n| is_recorded(n, 0)));
    }

    #[test]
    fn the_rate_follows_what_happens() {
        let mut rate = Rate::default();
        rate.on_look(500, 1.0, 1000.0);
        assert_eq!(rate.every(), 1);
        rate.on_look(25_000, 0.5, 1000.0);
        assert_eq!(rate.every(), 50);
        rate.on_look(500, 0.5, 1000.0);
        assert_eq!(rate.every(), 38);
        (0..20).for_each(|_| rate.on_look(500, 0.5, 1000.0));
        assert_eq!(rate.every(), 1);
    }
}
