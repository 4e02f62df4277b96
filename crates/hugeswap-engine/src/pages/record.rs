//! What is known of each base-mapped unit: a few bits for each of its 512 pages.
//!
//! Concurrency: the owner of its unit's lock reads and changes a record. Other threads may look at
//! single bits and get an answer that was true a moment ago.

use crate::PAGES;
use crate::bits::Bits;
use crate::zeroed::{FromZeros, Zeroed};
use hugeswap_policy::swapin::granularity::{Density, UnitHistory};
use hugeswap_policy::workingset::{MOST_LIVES, Rewrites};
use hugeswap_sys::Result;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU64};

const LIVES_BITS: usize = 4;
const _: () = assert!(MOST_LIVES as u32 == (1 << LIVES_BITS) - 1);

/// What is known of a base-mapped unit.
#[repr(C, align(64))]
pub(crate) struct Record {
    /// In memory, where the program sees them.
    pub present: Bits,
    /// Present and writable: perhaps changed since the slot was written.
    pub dirty: Bits,
    /// The slot holds the page (as it was before it became dirty). A page neither present nor
    /// stored reads as zero.
    pub stored: Bits,
    /// Not in memory where the program sees it; the frame that
    /// [`Rests`](crate::memory::rests::Rests) may have of the unit holds it as swap does.
    pub rest: Bits,
    /// Changed when it was last in memory: a hint.
    pub changed: Bits,
    /// In memory when the unit's pages last left.
    pub left: Bits,
    /// Part of the working set: spared when others of the unit were evicted.
    pub workingset: Bits,
    /// Of how many evictions of the unit each page is spared, while it is present: bit by bit.
    lives: [Bits; LIVES_BITS],
    /// When pages of `left` left, in pages evicted.
    pub left_at: AtomicU64,
    /// When the first of its present pages came, in pages evicted.
    pub came_at: AtomicU64,
    /// What small transfers to the unit have cost; see `hugeswap_policy::swapin::granularity`.
    history: AtomicU64,
    /// How much of it was touched when it was last in memory.
    density: AtomicU8,
    /// What is known of writes of the whole unit: see [`Rewrites`]. The unit is locked.
    rewrites: AtomicU8,
    /// Its unit made room for others as it left: see [`Record::set_deactivated`].
    deactivated: AtomicU8,
    /// How often its pages have left, for the advisor.
    pub turn: AtomicU64,
    /// The first turn after it was last whole.
    pub known_from: AtomicU64,
    /// How long turns are, in pages evicted.
    pub turn_length: AtomicU64,
}

impl Record {
    /// A unit whose slot holds all of it, with nothing in memory.
    pub fn all_stored(&self) {
        self.present.fill(false);
        self.dirty.fill(false);
        self.rest.fill(false);
        self.stored.fill(true);
    }

    /// Pages that hold nothing: they were never touched, or were given up.
    pub fn untouched_pages(&self) -> u64 {
        let held = self.present.count() + self.stored.count();
        PAGES as u64 - (held - self.present.common(&self.stored)).min(PAGES as u64)
    }

    /// Pages are spared so many evictions of the unit, from when they are present.
    pub fn set_lives(&self, pages: Range<usize>, lives: u8) {
        for (i, bits) in self.lives.iter().enumerate() {
            bits.put(pages.clone(), lives >> i & 1 == 1);
        }
    }

    /// The unit is about to be evicted: its present pages that have a life left pay one for being
    /// spared. The others.
    pub fn not_spared(&self) -> Bits {
        let going = Bits::none();
        for i in 0..PAGES / 64 {
            let present = self.present.0[i].load(Relaxed);
            let some = self.lives.iter().fold(0, |m, b| m | b.0[i].load(Relaxed));
            // One less of each that has any: a borrow from the lowest bit up.
            let mut borrow = some & present;
            for bits in &self.lives {
                let b = bits.0[i].load(Relaxed);
                bits.0[i].store(b ^ borrow, Relaxed);
                borrow &= !b;
            }
            self.workingset.0[i].fetch_or(some & present, Relaxed);
            going.0[i].store(present & !some, Relaxed);
        }
        going
    }

    /// Pages are about to leave: of those that are not dirty it is known that they were not
    /// changed.
    pub fn note_unchanged(&self, going: &Bits) {
        for ((changed, going), dirty) in self.changed.0.iter().zip(&going.0).zip(&self.dirty.0) {
            let unchanged = going.load(Relaxed) & !dirty.load(Relaxed);
            changed.store(changed.load(Relaxed) & !unchanged, Relaxed);
        }
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

    /// The unit was written to swap whole, and the program changed it before it had left.
    pub fn wrote_to_no_avail(&self) {
        self.set_rewrites(self.rewrites().wasted());
    }

    /// The unit is dirty, and its turn to leave has come. Does it stay, since it would be written to no
    /// avail?
    pub fn stays_though_dirty(&self) -> bool {
        let stays = self.rewrites().stays();
        stays.inspect(|&then| self.set_rewrites(then)).is_some()
    }

    /// The unit has left: its writes were worth it.
    pub fn has_left_whole(&self) {
        self.set_rewrites(Rewrites::NONE);
    }

    /// The unit is about to leave, and had been deactivated to make room for others, or not. A hint:
    /// without the unit's lock.
    pub fn set_deactivated(&self, deactivated: bool) {
        let deactivated = u8::from(deactivated);
        if self.deactivated.load(Relaxed) != deactivated {
            self.deactivated.store(deactivated, Relaxed);
        }
    }

    /// What [`Record::set_deactivated`] noted last.
    pub fn was_deactivated(&self) -> bool {
        self.deactivated.load(Relaxed) != 0
    }

    fn rewrites(&self) -> Rewrites {
        Rewrites::from_bits(self.rewrites.load(Relaxed))
    }

    fn set_rewrites(&self, rewrites: Rewrites) {
        self.rewrites.store(rewrites.to_bits(), Relaxed);
    }

    /// Pages that are dirty without being in memory, and pages of the rest that are in memory or that
    /// swap does not hold.
    pub fn contradictions(&self) -> u64 {
        let words = 0..PAGES / 64;
        let wrong = words.map(|i| {
            let word = |bits: &Bits| bits.word(i);
            let dirty = word(&self.dirty) & !word(&self.present);
            dirty | word(&self.rest) & (word(&self.present) | !word(&self.stored))
        });
        wrong.map(|w| u64::from(w.count_ones())).sum()
    }

    /// A unit whose content is gone: nothing is known of it any more.
    pub fn forget(&self) {
        self.clear();
        self.known_from.store(self.turn.load(Relaxed), Relaxed);
        self.changed.fill(false);
        self.left.fill(false);
        self.workingset.fill(false);
        self.set_lives(0..PAGES, 0);
        self.set_history(UnitHistory::NEW);
        self.set_density(Density::UNKNOWN);
        self.set_rewrites(Rewrites::NONE);
    }

    /// No page in memory, dirty or stored.
    pub fn clear(&self) {
        self.present.fill(false);
        self.dirty.fill(false);
        self.stored.fill(false);
        self.rest.fill(false);
    }
}

/// A byte for each page of a unit.
#[repr(transparent)]
pub(crate) struct PageTurns(pub [AtomicU8; PAGES]);

// SAFETY: atomics only; zeros are valid.
unsafe impl FromZeros for PageTurns {}

// SAFETY: atomics only; no bit set and nothing known is a valid record.
unsafe impl FromZeros for Record {}

/// The records of a window's units; memory of their own only where units were base-mapped or
/// evicted.
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

    fn record() -> Record {
        Record {
            present: Bits::none(),
            dirty: Bits::none(),
            stored: Bits::none(),
            rest: Bits::none(),
            changed: Bits::none(),
            left: Bits::none(),
            workingset: Bits::none(),
            lives: [const { Bits::none() }; LIVES_BITS],
            left_at: AtomicU64::new(0),
            came_at: AtomicU64::new(0),
            history: AtomicU64::new(0),
            density: AtomicU8::new(0),
            rewrites: AtomicU8::new(0),
            deactivated: AtomicU8::new(0),
            turn: AtomicU64::new(0),
            known_from: AtomicU64::new(0),
            turn_length: AtomicU64::new(0),
        }
    }

    proptest! {
        #[test]
        fn a_page_is_spared_as_often_as_it_has_lives(lives in proptest::collection::vec(0u8..=MOST_LIVES, PAGES), absent in 0..PAGES) {
            let r = record();
            r.present.fill(true);
            r.present.put(absent..absent + 1, false);
            for (p, &n) in lives.iter().enumerate() {
                r.set_lives(p..p + 1, n);
            }
            for turn in 0..=MOST_LIVES {
                let going = r.not_spared();
                for (p, &n) in lives.iter().enumerate() {
                    let goes = p != absent && n == turn;
                    prop_assert_eq!(going.get(p), goes, "page {} of {} lives in turn {}", p, n, turn);
                }
                r.present.split_off(&{ let keep = Bits::none(); keep.copy_inverse(&going); keep });
            }
            prop_assert!(!r.present.any());
        }
    }
}
