//! A set of a unit's pages.
//!
//! Concurrency: one thread changes a set at a time (the owner of the unit's lock); others may look
//! at single pages and get an answer that was true a moment ago.

use crate::PAGES;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// One bit for each page of a unit.
#[repr(transparent)]
pub(crate) struct Bits(pub [AtomicU64; PAGES / 64]);

impl Bits {
    /// No page's.
    pub const fn none() -> Bits {
        Bits([const { AtomicU64::new(0) }; PAGES / 64])
    }

    /// Takes the bits out that another has not. Those.
    pub fn split_off(&self, keep: &Bits) -> Bits {
        let off = Bits::none();
        for ((from, keep), off) in self.0.iter().zip(&keep.0).zip(&off.0) {
            let (w, k) = (from.load(Relaxed), keep.load(Relaxed));
            off.store(w & !k, Relaxed);
            from.store(w & k, Relaxed);
        }
        off
    }

    /// Takes the bits of another in.
    pub fn join(&self, other: &Bits) {
        for (to, from) in self.0.iter().zip(&other.0) {
            to.store(to.load(Relaxed) | from.load(Relaxed), Relaxed);
        }
    }

    /// Takes the bits of another out.
    pub fn take_out(&self, other: &Bits) {
        for (from, other) in self.0.iter().zip(&other.0) {
            from.store(from.load(Relaxed) & !other.load(Relaxed), Relaxed);
        }
    }

    /// The bits of 64 pages.
    pub fn word(&self, n: usize) -> u64 {
        self.0.get(n).map_or(0, |w| w.load(Relaxed))
    }

    /// The bit of one page; false beyond the unit.
    pub fn get(&self, page: usize) -> bool {
        self.0
            .get(page / 64)
            .is_some_and(|w| w.load(Relaxed) >> (page % 64) & 1 == 1)
    }

    /// Sets or clears the bits of `pages`.
    pub fn put(&self, pages: Range<usize>, to: bool) {
        for (i, word) in self.0.iter().enumerate() {
            let from = pages.start.clamp(i * 64, i * 64 + 64) - i * 64;
            let end = pages.end.clamp(i * 64, i * 64 + 64) - i * 64;
            if from < end {
                let mask = (u64::MAX >> (64 - (end - from))) << from;
                let w = word.load(Relaxed);
                word.store(if to { w | mask } else { w & !mask }, Relaxed);
            }
        }
    }

    /// Sets or clears all.
    pub fn fill(&self, to: bool) {
        let all = if to { u64::MAX } else { 0 };
        self.0.iter().for_each(|w| w.store(all, Relaxed));
    }

    /// The same as another.
    pub fn copy(&self, from: &Bits) {
        let words = self.0.iter().zip(&from.0);
        words.for_each(|(to, from)| to.store(from.load(Relaxed), Relaxed));
    }

    /// The bits that are set here and not in another.
    pub fn copy_inverse(&self, from: &Bits) {
        let words = self.0.iter().zip(&from.0);
        words.for_each(|(to, from)| to.store(!from.load(Relaxed), Relaxed));
    }

    /// How many runs there are of those that are set.
    pub fn runs(&self) -> u64 {
        let mut before = 0;
        let starts = self.0.iter().map(|w| {
            let w = w.load(Relaxed);
            let starts = w & !(w << 1 | before);
            before = w >> 63;
            u64::from(starts.count_ones())
        });
        starts.sum()
    }

    /// How many are set.
    pub fn count(&self) -> u64 {
        let ones = |w: &AtomicU64| u64::from(w.load(Relaxed).count_ones());
        self.0.iter().map(ones).sum()
    }

    /// How many are set here and in another.
    pub fn common(&self, other: &Bits) -> u64 {
        let both = |(a, b): (&AtomicU64, &AtomicU64)| a.load(Relaxed) & b.load(Relaxed);
        let ones = self.0.iter().zip(&other.0).map(both);
        ones.map(|w| u64::from(w.count_ones())).sum()
    }

    /// The bits that are set here and in another, in order.
    pub fn both(&self, other: &Bits) -> impl Iterator<Item = usize> {
        let words = (0..PAGES / 64).map(|n| (n, self.word(n) & other.word(n)));
        words.flat_map(|(n, word)| {
            (0..64)
                .filter(move |i| word >> i & 1 == 1)
                .map(move |i| n * 64 + i)
        })
    }

    /// Are all set?
    pub fn all(&self) -> bool {
        self.0.iter().all(|w| w.load(Relaxed) == u64::MAX)
    }

    /// Is any set?
    pub fn any(&self) -> bool {
        self.0.iter().any(|w| w.load(Relaxed) != 0)
    }

    /// The first page after `page`, and before `end`, whose bit is another; `end` if there is none.
    pub fn same_until(&self, page: usize, end: usize) -> usize {
        let flip = if self.get(page) { u64::MAX } else { 0 };
        let mut at = page;
        while at < end {
            let word = self.0.get(at / 64).map_or(0, |w| w.load(Relaxed));
            let others = (word ^ flip) >> (at % 64);
            if others != 0 {
                return (at + others.trailing_zeros() as usize).min(end);
            }
            at = (at / 64 + 1) * 64;
        }
        end
    }

    /// Calls `f` with each run of those that are set, in order, until it fails.
    pub fn each_run<E>(&self, mut f: impl FnMut(Range<usize>) -> Result<(), E>) -> Result<(), E> {
        let mut next = 0;
        while let Some(run) = self.run(next, PAGES, true) {
            next = run.end;
            f(run)?;
        }
        Ok(())
    }

    /// The first run of pages at or after `from` and before `end` whose bit is `value`.
    pub fn run(&self, from: usize, end: usize, value: bool) -> Option<Range<usize>> {
        let start = (from..end).find(|&p| self.get(p) == value)?;
        let stop = (start..end).find(|&p| self.get(p) != value).unwrap_or(end);
        Some(start..stop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_run_ends_where_a_bit_differs(runs in prop::collection::vec((0usize..512, 0usize..512), 0..6), page in 0usize..512, end in 0usize..=512) {
            let bits = Bits::none();
            for (a, b) in runs {
                bits.put(a.min(b)..a.max(b), a % 2 == 0);
            }
            let end = end.max(page);
            let differs = (page..end).find(|&p| bits.get(p) != bits.get(page));
            prop_assert_eq!(bits.same_until(page, end), differs.unwrap_or(end));
        }

        #[test]
        fn what_is_split_off_can_be_joined(a in proptest::collection::vec(any::<bool>(), PAGES), b in proptest::collection::vec(any::<bool>(), PAGES)) {
            let (bits, keep) = (Bits::none(), Bits::none());
            for p in 0..PAGES {
                bits.put(p..p + 1, a[p]);
                keep.put(p..p + 1, b[p]);
            }
            let off = bits.split_off(&keep);
            for p in 0..PAGES {
                prop_assert_eq!((bits.get(p), off.get(p)), (a[p] && b[p], a[p] && !b[p]));
            }
            bits.join(&off);
            prop_assert!((0..PAGES).all(|p| bits.get(p) == a[p]));
        }

        #[test]
        fn bits_are_a_set_of_pages(ops in proptest::collection::vec((0..PAGES, 0..PAGES, any::<bool>()), 0..20)) {
            let bits = Bits::none();
            let mut model = [false; PAGES];
            for (a, b, to) in ops {
                let r = a.min(b)..a.max(b);
                bits.put(r.clone(), to);
                model[r].fill(to);
            }
            for (p, m) in model.iter().enumerate() {
                prop_assert_eq!(bits.get(p), *m);
            }
            let starts = (0..PAGES).filter(|&p| model[p] && (p == 0 || !model[p - 1]));
            prop_assert_eq!(bits.runs(), starts.count() as u64);
            prop_assert_eq!(bits.count(), model.iter().filter(|m| **m).count() as u64);
            prop_assert_eq!(bits.all(), model.iter().all(|m| *m));
            prop_assert_eq!(bits.any(), model.iter().any(|m| *m));
            let (mut at, mut seen) = (0, 0);
            while let Some(r) = bits.run(at, PAGES, true) {
                prop_assert!(model[r.clone()].iter().all(|m| *m));
                seen += r.len() as u64;
                at = r.end;
            }
            prop_assert_eq!(seen, bits.count());
        }
    }
}
