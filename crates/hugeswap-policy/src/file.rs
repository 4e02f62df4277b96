//! Places in mapped files: what stands in a unit's word, instead of a swap slot, while a file backs the unit.
//!
//! Slot numbers have 40 bits. Those with the top bit set are places in files: which mapping, and which unit of it. The largest number,
//! [`SCATTERED`], is none of them.

use crate::unit::{SCATTERED, Word};

const FILE: u64 = 1 << 39;
const UNIT_BITS: u32 = 24;
/// Mappings are numbered below this.
pub const MAPPINGS: u32 = 1 << 12;
/// Units that one mapping can have: 32 TiB.
pub const MAPPING_UNITS: u64 = 1 << UNIT_BITS;

/// A unit of a mapped file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilePlace {
    /// Which mapping, below [`MAPPINGS`].
    pub mapping: u32,
    /// Which 2 MiB of it, below [`MAPPING_UNITS`].
    pub unit: u32,
}

impl FilePlace {
    /// The number that stands in a word.
    pub const fn slot(self) -> u64 {
        FILE | (self.mapping as u64) << UNIT_BITS | self.unit as u64
    }

    /// The place that a number stands for; `None` for a swap slot, and for [`SCATTERED`].
    pub const fn of_slot(slot: u64) -> Option<FilePlace> {
        let mapping = ((slot & !FILE) >> UNIT_BITS) as u32;
        if slot == SCATTERED || slot & FILE == 0 || mapping >= MAPPINGS {
            return None;
        }
        let unit = (slot % MAPPING_UNITS) as u32;
        Some(FilePlace { mapping, unit })
    }

    /// The place in a file that a unit has, if it has one.
    pub fn of(w: Word) -> Option<FilePlace> {
        FilePlace::of_slot(w.slot()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unit::Kind;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn places_are_neither_slots_nor_each_other(
            mapping in 0..MAPPINGS, unit in 0..MAPPING_UNITS as u32, slot in 0..FILE
        ) {
            let place = FilePlace { mapping, unit };
            let w = Word::none().with_kind(Kind::Swapped).with_slot(Some(place.slot()));
            prop_assert!(w.is_consistent() && !w.is_scattered());
            prop_assert_eq!(FilePlace::of(w), Some(place));
            prop_assert_eq!(FilePlace::of_slot(slot), None);
        }
    }

    #[test]
    fn scattered_is_no_place() {
        assert_eq!(FilePlace::of_slot(SCATTERED), None);
        assert_eq!(FilePlace::of(Word::none()), None);
    }
}
