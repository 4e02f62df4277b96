//! Where the bytes of a unit lie besides memory.
//!
//! A word has 40 bits for a place. Numbers below 2^39 are clusters of swap; those with the top bit
//! set are units of mapped files (which mapping, and which unit of it); the largest number says
//! that the pages are in single slots, which a table beside the words lists.

/// The largest number that a word can carry.
const NUMBER_MAX: u64 = (1 << 40) - 1;
const SINGLES: u64 = NUMBER_MAX;
const FILE: u64 = 1 << 39;
const UNIT_BITS: u32 = 24;
/// Mappings of files are numbered below this.
pub const MAPPINGS: u32 = 1 << 12;
/// Units that one mapping can have: 32 TiB.
pub const MAPPING_UNITS: u64 = 1 << UNIT_BITS;

/// Where the bytes of a unit lie besides memory, or where room is kept for them: what is there
/// counts only if the unit is clean, or not in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Nowhere.
    Nothing,
    /// In the cluster of swap of this number (2 MiB, below 2^39): page i of the unit in slot i.
    Cluster(u64),
    /// In single slots of swap (4 KiB), page by page. A page without a slot is zero.
    Singles,
    /// In a mapped file.
    File(FilePlace),
}

impl Place {
    pub(super) fn number(self) -> Option<u64> {
        match self {
            Place::Nothing => None,
            Place::Cluster(cluster) => {
                debug_assert!(cluster < FILE);
                Some(cluster)
            }
            Place::Singles => Some(SINGLES),
            Place::File(place) => Some(place.number()),
        }
    }

    pub(super) fn of_number(number: Option<u64>) -> Place {
        match number {
            None => Place::Nothing,
            Some(SINGLES) => Place::Singles,
            Some(n) => FilePlace::of_number(n).map_or(Place::Cluster(n), Place::File),
        }
    }
}

/// A unit of a mapped file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilePlace {
    /// Which mapping, below [`MAPPINGS`].
    pub mapping: u32,
    /// Which 2 MiB of it, below [`MAPPING_UNITS`].
    pub unit: u32,
}

impl FilePlace {
    /// A number for it, never 0.
    pub const fn number(self) -> u64 {
        FILE | (self.mapping as u64) << UNIT_BITS | self.unit as u64
    }

    /// The place that a number stands for; `None`: it is no such number.
    pub const fn of_number(number: u64) -> Option<FilePlace> {
        let mapping = ((number & !FILE) >> UNIT_BITS) as u32;
        if number == SINGLES || number & FILE == 0 || mapping >= MAPPINGS {
            return None;
        }
        let unit = (number % MAPPING_UNITS) as u32;
        Some(FilePlace { mapping, unit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unit::{Kind, Word};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_word_tells_the_place_that_it_was_given(
            mapping in 0..MAPPINGS, unit in 0..MAPPING_UNITS as u32, cluster in 0..FILE, pins in 0u64..50
        ) {
            let file = FilePlace { mapping, unit };
            for place in [Place::Nothing, Place::Cluster(cluster), Place::Singles, Place::File(file)] {
                let mut w = Word::none().with_kind(Kind::Present).with_place(place);
                for _ in 0..pins { w = w.pinned().unwrap(); }
                prop_assert!(w.is_consistent());
                prop_assert_eq!(w.place(), place);
                prop_assert_eq!((w.pins(), w.kind()), (pins, Kind::Present));
                prop_assert_eq!(w.cluster().is_some(), place == Place::Cluster(cluster));
                prop_assert_eq!(w.file().is_some(), place == Place::File(file));
                prop_assert_eq!(w.with_place(Place::Nothing).place(), Place::Nothing);
                for _ in 0..pins { w = w.unpinned().unwrap(); }
                prop_assert!(w.unpinned().is_none());
            }
        }
    }

    #[test]
    fn other_numbers_are_no_files() {
        assert_eq!(FilePlace::of_number(SINGLES), None);
        assert_eq!(FilePlace::of_number(0), None);
        assert_eq!(FilePlace::of_number(FILE - 1), None);
    }
}
