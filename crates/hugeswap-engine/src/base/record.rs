//! What is known of each base-mapped unit: a few bits for each of its 512 pages.
//!
//! Concurrency: a record is read and changed by the owner of its unit's lock; others may look at single
//! bits and get an answer that was true a moment ago.

use crate::zeroed::{FromZeros, Zeroed};
use hugeswap_policy::UNIT_PAGES;
use hugeswap_policy::granularity::{Density, UnitHistory};
use hugeswap_sys::Result;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU64};

const PAGES: usize = UNIT_PAGES as usize;

/// One bit for each page of a unit.
#[repr(transparent)]
pub(crate) struct Bits([AtomicU64; PAGES / 64]);

impl Bits {
    /// Of one page; false beyond the unit.
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

    /// Those that another has not.
    pub fn copy_inverse(&self, from: &Bits) {
        let words = self.0.iter().zip(&from.0);
        words.for_each(|(to, from)| to.store(!from.load(Relaxed), Relaxed));
    }

    /// How many are set.
    pub fn count(&self) -> u64 {
        let ones = |w: &AtomicU64| u64::from(w.load(Relaxed).count_ones());
        self.0.iter().map(ones).sum()
    }

    /// Are all set?
    pub fn all(&self) -> bool {
        self.0.iter().all(|w| w.load(Relaxed) == u64::MAX)
    }

    /// Is any set?
    pub fn any(&self) -> bool {
        self.0.iter().any(|w| w.load(Relaxed) != 0)
    }

    /// The first run of pages at or after `from` and before `end` whose bit is `value`.
    pub fn run(&self, from: usize, end: usize, value: bool) -> Option<Range<usize>> {
        let start = (from..end).find(|&p| self.get(p) == value)?;
        let stop = (start..end).find(|&p| self.get(p) != value).unwrap_or(end);
        Some(start..stop)
    }
}

/// See the file's head.
#[repr(C, align(256))]
pub(crate) struct Record {
    /// In memory, where the program sees them.
    pub present: Bits,
    /// Present, and changed since the slot was written.
    pub dirty: Bits,
    /// The slot holds the page (as it was before it became dirty). A page neither present nor stored reads as zero.
    pub stored: Bits,
    /// In memory when the unit's pages last left.
    pub left: Bits,
    /// When that was, in pages evicted.
    pub left_at: AtomicU64,
    /// When the first of its present pages came, in pages evicted.
    pub came_at: AtomicU64,
    /// What small transfers to the unit have cost; see `hugeswap_policy::granularity`.
    history: AtomicU64,
    /// How much of it was touched when it was last in memory.
    density: AtomicU8,
}

impl Record {
    /// A unit whose slot holds all of it, with nothing in memory.
    pub fn all_stored(&self) {
        self.present.fill(false);
        self.dirty.fill(false);
        self.stored.fill(true);
    }

    pub fn history(&self) -> UnitHistory {
        UnitHistory::from_bits(self.history.load(Relaxed))
    }

    pub fn set_history(&self, history: UnitHistory) {
        self.history.store(history.to_bits(), Relaxed);
    }

    pub fn density(&self) -> Density {
        Density(self.density.load(Relaxed))
    }

    pub fn set_density(&self, density: Density) {
        self.density.store(density.0, Relaxed);
    }

    /// Pages that are dirty without being in memory.
    pub fn contradictions(&self) -> u64 {
        let both = self.dirty.0.iter().zip(&self.present.0);
        both.map(|(d, p)| u64::from((d.load(Relaxed) & !p.load(Relaxed)).count_ones()))
            .sum()
    }

    /// A unit whose content is gone: nothing is known of it any more.
    pub fn forget(&self) {
        self.clear();
        self.left.fill(false);
        self.set_history(UnitHistory::NEW);
        self.set_density(Density::UNKNOWN);
    }

    /// No page in memory, dirty or stored.
    pub fn clear(&self) {
        self.present.fill(false);
        self.dirty.fill(false);
        self.stored.fill(false);
    }
}

// SAFETY: atomics only; no bit set and nothing known is a valid record.
unsafe impl FromZeros for Record {}

/// The records of a window's units; memory of their own only where units were base-mapped or evicted.
pub(crate) struct Records(Zeroed<Record>);

impl Records {
    pub fn new(units: u32) -> Result<Records> {
        Ok(Records(Zeroed::new(units as usize)?))
    }

    /// Of a unit of the window.
    pub fn of(&self, unit: u32) -> &Record {
        &self.0[unit as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn none() -> Bits {
        Bits([const { AtomicU64::new(0) }; PAGES / 64])
    }

    proptest! {
        #[test]
        fn bits_are_a_set_of_pages(ops in proptest::collection::vec((0..PAGES, 0..PAGES, any::<bool>()), 0..20)) {
            let bits = none();
            let mut model = [false; PAGES];
            for (a, b, to) in ops {
                let r = a.min(b)..a.max(b);
                bits.put(r.clone(), to);
                model[r].fill(to);
            }
            for (p, m) in model.iter().enumerate() {
                prop_assert_eq!(bits.get(p), *m);
            }
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
