//! What a larger or smaller budget would bring, estimated from what reclaim sees anyway: when pages
//! come back.
//!
//! The data are a fixed number of words for each process (a [`Tally`]) that any reader may add up;
//! [`curve`] makes a curve from them, and [`advice`] a recommendation from the curve. The words
//! count pages by refault *distance*: how many pages left memory between the leaving of a page and
//! its return, in proportion to the pages in memory, so that processes of different sizes can be
//! added up.
//!
//! All pages of a whole unit have one distance. All pages of a base-mapped unit leave together, at
//! the end of its *turn*, but a page may have been absent for several turns. So each unit counts
//! its turns, and each of its pages has a byte ([`absent`]).
//!
//! Pure: no clock, no allocation, no locks. The numbers may come from other processes, and nothing
//! here relies on their consistency.

pub mod advice;
pub mod curve;

use crate::UNIT_PAGES;

/// log2 of the number of buckets for each doubling.
const SUB_BITS: u32 = 4;
/// Length that stands for a distance of the size of memory.
const ONE: u64 = 1 << 10;
/// Number of buckets; the last takes everything from 128 times memory on.
pub const BUCKETS: usize = 14 << SUB_BITS;
/// Number of turns that the byte of a page can tell apart.
const CYCLE: u64 = 255;

/// First word of pages that came back to base-mapped units, by distance.
const PAGED: usize = 0;
/// First word of pages that came back with whole units, by distance.
const WHOLE: usize = PAGED + BUCKETS;

/// Word of pages that left base-mapped units.
pub const LEFT_PAGED: usize = WHOLE + BUCKETS;
/// Word of pages that left with whole units.
pub const LEFT_WHOLE: usize = LEFT_PAGED + 1;
/// Number of words of a tally.
pub const WORDS: usize = LEFT_WHOLE + 1;

/// The word to count a page under that comes back to a base-mapped unit, at `distance`, with
/// `resident` pages in memory.
pub fn paged_back(distance: u64, resident: u64) -> usize {
    PAGED + bucket(relative(distance, resident))
}

/// The word to count the pages of a whole unit under that comes back.
pub fn whole_back(distance: u64, resident: u64) -> usize {
    WHOLE + bucket(relative(distance, resident))
}

/// The number of turns before turn number `turn` that a page was absent for. `byte` is what
/// [`mark`] gave when it last left, 0 if it never did; the unit has a record of `known` turns.
/// (After more than 254 turns a page seems to have been absent for less.)
pub fn absent(byte: u8, turn: u64, known: u64) -> u64 {
    let away = match u64::from(byte) {
        0 => known,
        b => (turn % CYCLE + 2 * CYCLE - b) % CYCLE,
    };
    away.min(known)
}

/// The byte of a page that leaves at the end of turn number `turn`.
pub fn mark(turn: u64) -> u8 {
    (turn % CYCLE + 1) as u8
}

fn relative(length: u64, resident: u64) -> u64 {
    length.saturating_mul(ONE) / resident.max(UNIT_PAGES)
}

fn bucket(value: u64) -> usize {
    if value < 1 << SUB_BITS {
        return value as usize;
    }
    let exp = 63 - value.leading_zeros();
    let sub = (value >> (exp - SUB_BITS)) as usize & ((1 << SUB_BITS) - 1);
    ((((exp - SUB_BITS + 1) << SUB_BITS) as usize) + sub).min(BUCKETS - 1)
}

/// Lower bound of a bucket, as a multiple of memory.
pub(crate) fn begins(bucket: usize) -> f64 {
    let (block, sub) = (bucket >> SUB_BITS, (bucket & ((1 << SUB_BITS) - 1)) as u64);
    let value = match block {
        0 => sub,
        b => ((1 << SUB_BITS) + sub) << (b - 1),
    };
    value as f64 / ONE as f64
}

/// The words of one process, or of several added up.
#[derive(Clone, Copy, Debug)]
pub struct Tally<'a>(&'a [u64; WORDS]);

impl<'a> Tally<'a> {
    /// A tally of these words.
    pub fn new(words: &'a [u64; WORDS]) -> Tally<'a> {
        Tally(words)
    }

    fn distances(&self, from: usize) -> impl Iterator<Item = f64> + 'a {
        self.0[from..from + BUCKETS].iter().map(|n| *n as f64)
    }

    /// Pages that came back, by [`begins`]: to base-mapped units (0), or with whole ones (1).
    pub(crate) fn class(&self, k: usize) -> impl Iterator<Item = f64> + 'a {
        self.distances(if k == 0 { PAGED } else { WHOLE })
    }

    fn pages(&self, word: usize) -> f64 {
        self.0[word] as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn buckets_hold_what_falls_into_them(length in 0u64..1 << 40, resident in 0u64..1 << 30) {
            let value = relative(length, resident);
            let b = bucket(value);
            let x = value as f64 / ONE as f64;
            prop_assert!(begins(b) <= x);
            if b + 1 < BUCKETS {
                prop_assert!(x < begins(b + 1));
                prop_assert!(begins(b + 1) - begins(b) <= x / 16.0 + 1.0 / 1024.0);
            }
        }

        #[test]
        fn absence_is_counted_in_turns(start in 0u64..1000, away in 0u64..254, known in 0u64..1000) {
            let turn = start + away + 1;
            prop_assert_eq!(absent(mark(start), turn, known), away.min(known));
        }

        #[test]
        fn every_length_has_a_word(n in any::<u64>(), m in any::<u64>()) {
            prop_assert!((PAGED..WHOLE).contains(&paged_back(n, m)));
            prop_assert!((WHOLE..LEFT_PAGED).contains(&whole_back(n, m)));
        }
    }

    #[test]
    fn a_page_that_never_left_was_absent_for_all_that_is_known() {
        assert_eq!(absent(0, 7, 3), 3);
        assert_eq!(absent(0, 7, 0), 0);
        assert_eq!(absent(mark(6), 7, 7), 0);
    }
}
