//! Sums of what a unit held when it became writable without a stamp.

use super::stamps::Track;
use crate::PAGE;
use crate::checksum::{self, SumKey, Sums};
use crate::zeroed::FromZeros;
use hugeswap_policy::unit::Word;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// What a unit holds before it can be written.
#[derive(Clone, Copy)]
pub(crate) enum Held {
    /// Nothing.
    Zeros,
    /// The same as its place in swap.
    AsStored(Word),
    /// What stands at an address now.
    At(usize),
}

pub(super) static ZEROS: [u8; PAGE] = [0; PAGE];

/// What each page of a unit held when it became open.
pub(crate) struct HeldSums(Sums);

// SAFETY: atomics only; zeros are valid.
unsafe impl FromZeros for HeldSums {}

impl Track {
    pub(super) fn sums_of(&self, unit: u32) -> Option<&Sums> {
        let sums = self.tables.get()?.held.get(unit as usize)?;
        Some(&sums.0)
    }

    /// The sum of a page of zeros.
    pub(super) fn zero_sum(&self, key: &SumKey) -> u64 {
        let known = self.zero_sum.load(Relaxed);
        if known != 0 {
            return known;
        }
        let mut sum = [0];
        checksum::fill(key, &ZEROS, &mut sum);
        self.zero_sum.store(sum[0], Relaxed);
        sum[0]
    }

    /// May what was written to `unit` be known by its sums only?
    pub(crate) fn is_open(&self, unit: u32) -> bool {
        let stamps = self.of(unit);
        stamps.is_some_and(|s| s.open.load(Acquire) != 0)
    }

    /// A locked, stamped unit is not told from one that is writable, though its word does not say
    /// so.
    pub(crate) fn note_half_protected(&self, unit: u32) {
        if let Some(stamps) = self.of(unit) {
            stamps.open.store(1, Release);
        }
    }

    /// Gives up what a locked unit held; the caller stamps it.
    pub(crate) fn forget_open(&self, unit: u32) {
        if let Some(stamps) = self.of(unit) {
            stamps.open.store(0, Release);
        }
    }
}
