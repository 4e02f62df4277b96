//! Split clusters under every schedule: threads of one process that claim and free slots of one
//! cluster, and open it anew when it has become free. The code is the real one, over atomics that
//! the explorer of interleavings sees.
//!
//! Checked in every interleaving: no slot is handed out twice, whoever reserved finds a slot, a
//! cluster is free exactly when nobody has a slot of it, and its bitmap and count agree at the end.

mod loom_cell;

use hugeswap_policy::cell::Cell;
use hugeswap_policy::thp_swap::slots::{Clusters, used_singly};
use loom::sync::Arc;
use loom::sync::atomic::Ordering::Relaxed;
use loom::sync::atomic::{AtomicU32, AtomicU64};
use loom::thread;
use loom_cell::loom_cell;
use std::ops::Range;

struct Word(AtomicU32);
struct Bits(AtomicU64);

loom_cell!(Word, u32);
loom_cell!(Bits, u64);

/// One cluster of 64 slots.
struct Pool {
    words: [Word; 1],
    bits: [Bits; 1],
    /// The slots that somebody has: what is true.
    had: AtomicU64,
}

impl Pool {
    fn new() -> Arc<Pool> {
        Arc::new(Pool {
            words: [Word(AtomicU32::new(0))],
            // As a dead owner may have left it.
            bits: [Bits(AtomicU64::new(0xff))],
            had: AtomicU64::new(0),
        })
    }

    fn clusters(&self) -> Clusters<'_, Word, Bits> {
        Clusters::new(&self.words, &self.bits, 1, 3)
    }

    fn take(&self, slots: Range<usize>) -> Range<usize> {
        let bits = slots.clone().fold(0, |m, s| m | 1u64 << s);
        let before = self.had.fetch_or(bits, Relaxed);
        assert_eq!(before & bits, 0, "{slots:?} were somebody's");
        slots
    }

    /// From the cluster, or from the cluster opened.
    fn claim(&self, want: usize) -> Option<Range<usize>> {
        let c = self.clusters();
        let got = c
            .claim(0, want)
            .or_else(|| c.open(0..c.len(), 0, want).map(|_| 0..want));
        got.map(|r| self.take(r))
    }

    fn free(&self, slots: Range<usize>) {
        let bits = slots.clone().fold(0, |m, s| m | 1u64 << s);
        self.had.fetch_and(!bits, Relaxed);
        assert_eq!(self.clusters().free(0, slots.clone()).0, slots.len());
    }

    fn check(&self) {
        let had = self.had.load(Relaxed);
        let word = self.words[0].get();
        if had == 0 {
            assert_eq!(word, 0, "free when nobody has a slot");
        } else {
            assert_eq!(used_singly(word), Some(had.count_ones()));
            assert_eq!(self.bits[0].get(), had);
        }
    }
}

fn explore(f: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(f);
}

#[test]
fn the_last_slot_freed_and_a_cluster_opened() {
    explore(|| {
        let pool = Pool::new();
        let first = pool.claim(2).expect("a free cluster");
        let other = pool.clone();
        let t = thread::spawn(move || {
            let got = other.claim(1);
            if let Some(got) = got {
                other.free(got);
            }
        });
        pool.free(first);
        let kept = pool.claim(3);
        t.join().unwrap();
        pool.check();
        if let Some(kept) = kept {
            pool.free(kept);
            pool.check();
        }
    });
}

#[test]
fn two_claim_the_last_slots() {
    explore(|| {
        let pool = Pool::new();
        let most = pool.claim(62).expect("a free cluster");
        let claimer = |want| {
            let pool = pool.clone();
            thread::spawn(move || pool.claim(want))
        };
        let (a, b) = (claimer(2), claimer(1));
        pool.free(10..11);
        let got: Vec<_> = [a, b]
            .into_iter()
            .filter_map(|t| t.join().unwrap())
            .collect();
        assert!(!got.is_empty(), "there was room for one");
        pool.check();
        pool.free(most.start..10);
        pool.free(11..most.end);
        got.into_iter().for_each(|r| pool.free(r));
        pool.check();
    });
}

#[test]
fn two_open_at_once() {
    explore(|| {
        let pool = Pool::new();
        let opener = || {
            let pool = pool.clone();
            thread::spawn(move || {
                if let Some(r) = pool.claim(2) {
                    pool.free(r.start..r.start + 1);
                    pool.free(r.start + 1..r.end);
                }
            })
        };
        let (a, b) = (opener(), opener());
        a.join().unwrap();
        b.join().unwrap();
        pool.check();
    });
}
