//! The units of shared regions, by their numbers: words, stamps of writes, and charges.
//!
//! Concurrency: the owner of a word changes the word and its charge. A charge is a bit, set and
//! cleared any number of times by the processes that carry on what a dead one began: so the sum is
//! exact.

use super::Pool;
use super::layout::{SHARED_UNITS, Shared, SharedPageStamps, SharedStamps};
use super::shared::is_of_program;
use hugeswap_policy::UNIT_BYTES;
use hugeswap_policy::shared::{Kind, Word};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};

impl Pool {
    /// The words of all shared units.
    pub fn shared_words(&self) -> &[AtomicU64] {
        let at = (self.base + self.offsets.shared_words) as *const AtomicU64;
        // SAFETY: the segment is mapped for the life of `self` and holds atomics only; `offsets`
        // leaves room for so many.
        unsafe { std::slice::from_raw_parts(at, SHARED_UNITS) }
    }

    /// When a shared unit was written.
    pub fn shared_stamps(&self, unit: u32) -> Option<&SharedStamps> {
        let at = (self.base + self.offsets.shared_stamps) as *const SharedStamps;
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(at, SHARED_UNITS) }.get(unit as usize)
    }

    /// When its pages were.
    pub fn shared_page_stamps(&self, unit: u32) -> Option<&SharedPageStamps> {
        let at = (self.base + self.offsets.shared_page_stamps) as *const SharedPageStamps;
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(at, SHARED_UNITS) }.get(unit as usize)
    }

    fn shared_bits(&self) -> &[AtomicU64] {
        let at = (self.base + self.offsets.shared_charged) as *const AtomicU64;
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(at, SHARED_UNITS / 64) }
    }

    pub(super) fn shared_high(&self) -> usize {
        (self.header().shared_high.load(Acquire) as usize).min(SHARED_UNITS)
    }

    /// Frames charged to shared regions.
    pub fn shared_frames(&self) -> u64 {
        let words = self.shared_high().div_ceil(64);
        let bits = self.shared_bits()[..words].iter();
        bits.map(|b| u64::from(b.load(Relaxed).count_ones())).sum()
    }

    /// Those of them that `units` have.
    pub fn shared_frames_of(&self, units: std::ops::Range<u32>) -> u64 {
        units.filter(|&u| self.is_charged_shared(u)).count() as u64
    }

    /// Bytes promised to shared regions.
    pub fn shared_bytes(&self) -> u64 {
        let live = self.shared_regions();
        live.map(|(_, s)| u64::from(s.units.load(Relaxed)) * UNIT_BYTES)
            .sum()
    }

    /// Bytes of them that hold something, by whole units.
    pub fn shared_touched_bytes(&self) -> u64 {
        let units = |s: &Shared| {
            let first = s.first.load(Relaxed) as usize;
            first..first + s.units.load(Relaxed) as usize
        };
        let words = |s| self.shared_words().get(units(s)).unwrap_or_default();
        let holds = |w: &&AtomicU64| Word(w.load(Relaxed)).kind() != Kind::None;
        let live = self.shared_regions();
        live.map(|(_, s)| words(s).iter().filter(holds).count() as u64 * UNIT_BYTES)
            .sum()
    }

    /// Is a shared unit charged?
    pub fn is_charged_shared(&self, unit: u32) -> bool {
        let cell = self.shared_bits().get(unit as usize / 64);
        cell.is_some_and(|c| c.load(Acquire) >> (unit % 64) & 1 == 1)
    }

    /// Is the region of a unit the kernel's now?
    pub fn is_left(&self, unit: u32) -> bool {
        let has = |s: &Shared| unit.wrapping_sub(s.first.load(Relaxed)) < s.units.load(Relaxed);
        self.shared_regions()
            .any(|(_, s)| s.left.load(Acquire) != 0 && has(s))
    }

    /// A region of a program's becomes the kernel's, unless it is: nothing of it leaves memory any
    /// more, and it is not charged. Did it?
    pub fn leave_to_the_kernel(&self, index: usize) -> bool {
        let s = &self.header().shared[index];
        if !is_of_program(s) || s.left.swap(1, AcqRel) != 0 {
            return false;
        }
        let first = s.first.load(Relaxed);
        for unit in first
            ..first
                .saturating_add(s.units.load(Relaxed))
                .min(SHARED_UNITS as u32)
        {
            self.uncharge_shared(unit);
        }
        true
    }

    /// Is a process that lives about to write-protect a shared unit?
    pub fn is_being_frozen(&self, unit: u32) -> bool {
        self.live()
            .any(|(_, r)| r.freezing.load(SeqCst) == unit + 1)
    }

    /// Charges a frame to a unit whose word is the caller's. False: the budget is used up. `force`:
    /// whatever it says.
    pub fn charge_shared(&self, unit: u32, force: bool) -> bool {
        if self.is_left(unit) {
            return true;
        }
        let Some(cell) = self.shared_bits().get(unit as usize / 64) else {
            return false;
        };
        let bit = 1 << (unit % 64);
        if cell.fetch_or(bit, AcqRel) & bit != 0 {
            return true;
        }
        let used = self.used_frames();
        if used > self.frames() && !force {
            cell.fetch_and(!bit, AcqRel);
            return false;
        }
        self.header().peak_frames.fetch_max(used, Relaxed);
        true
    }

    /// The unit's memory is the pool's again.
    pub fn uncharge_shared(&self, unit: u32) {
        let bit = 1 << (unit % 64);
        let cell = self.shared_bits().get(unit as usize / 64);
        if cell.is_some_and(|c| c.fetch_and(!bit, AcqRel) & bit != 0) {
            self.note_release();
        }
    }
}
