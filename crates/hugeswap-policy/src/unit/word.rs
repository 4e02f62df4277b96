//! The state word of a unit, decoded: a plain value.
//!
//! ```text
//!  63            24 23           15 14                0
//! | place (40 bits) | pins (9 bits) | flags and kind    |
//! ```

use super::lock::StateWord;
use super::{FilePlace, Place};

/// What a unit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Kind {
    /// Not managed: no program memory here. Faults are the program's own error.
    Free = 0,
    /// Managed, holds zeros, has no memory and no place.
    None = 1,
    /// In memory, mapped where the program sees it (perhaps without access: [`WATCHED`]).
    Present = 2,
    /// In swap only.
    Swapped = 3,
    /// In swap, and read ahead into a frame of the arena that no region maps.
    Cached = 4,
    /// Handed to the kernel for good; hugeswap does not touch it.
    Foreign = 5,
    /// Its bytes are lost. Touching it is SIGBUS.
    Poisoned = 6,
    /// Mapped by base pages, each of them in memory or not. Never pinned.
    Base = 7,
}

const KIND_MASK: u64 = 0b111;
/// Mapped writable: the unit's place does not hold its bytes.
pub const WRITABLE: u64 = 1 << 3;
/// `Present` but mapped without access: the next touch is a reference.
pub const WATCHED: u64 = 1 << 4;
/// A write-out is reading the memory; the unit may not be unmapped.
pub const WRITEBACK: u64 = 1 << 5;
/// The unit's place holds the same bytes as its memory.
pub const CLEAN: u64 = 1 << 6;
/// The unit has a place besides memory (what is there counts only with [`CLEAN`], or if the unit is
/// `Swapped` or `Cached`).
pub const HAS_PLACE: u64 = 1 << 7;
/// The frame is shared with a forked relative: never writable before it is copied.
pub const COW: u64 = 1 << 8;
/// The program's own protection allows reading.
pub const MAY_READ: u64 = 1 << 9;
/// The program's own protection allows writing.
pub const MAY_WRITE: u64 = 1 << 10;
/// Brought in by readahead and not used since.
pub const READAHEAD: u64 = 1 << 11;
/// Owned by a thread that is changing it.
pub const LOCKED: u64 = 1 << 12;
/// A thread waits for the word to change.
pub const WAITERS: u64 = 1 << 13;
/// With [`COW`] or `Foreign`: the frame is not charged to this process.
pub const UNCHARGED: u64 = 1 << 14;
const PIN_SHIFT: u32 = 15;
const PIN_ONE: u64 = 1 << PIN_SHIFT;
/// The most pins one unit can have.
pub const PIN_MAX: u64 = (1 << 9) - 1;
const PLACE_SHIFT: u32 = 24;

/// A decoded view of a unit's word; plain value, no atomics.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Word(pub u64);

impl Word {
    /// A unit that is not managed.
    pub const FREE: Word = Word(0);

    /// A managed unit of zeros that may be read and written.
    pub const fn none() -> Word {
        Word(Kind::None as u64 | MAY_READ | MAY_WRITE)
    }

    /// What the unit is.
    pub fn kind(self) -> Kind {
        match self.0 & KIND_MASK {
            0 => Kind::Free,
            1 => Kind::None,
            2 => Kind::Present,
            3 => Kind::Swapped,
            4 => Kind::Cached,
            5 => Kind::Foreign,
            6 => Kind::Poisoned,
            _ => Kind::Base,
        }
    }

    /// The same word with another kind.
    #[must_use]
    pub const fn with_kind(self, kind: Kind) -> Word {
        Word((self.0 & !KIND_MASK) | kind as u64)
    }

    /// Is `flag` (or any of several) set?
    pub const fn has(self, flag: u64) -> bool {
        self.0 & flag != 0
    }

    /// The same word with `flags` set.
    #[must_use]
    pub const fn set(self, flags: u64) -> Word {
        Word(self.0 | flags)
    }

    /// The same word with `flags` cleared.
    #[must_use]
    pub const fn clear(self, flags: u64) -> Word {
        Word(self.0 & !flags)
    }

    /// How many holders keep the unit in memory.
    pub const fn pins(self) -> u64 {
        (self.0 >> PIN_SHIFT) & PIN_MAX
    }

    /// One more pin, or `None` if there are [`PIN_MAX`] already.
    pub fn pinned(self) -> Option<Word> {
        (self.pins() < PIN_MAX).then_some(Word(self.0.wrapping_add(PIN_ONE)))
    }

    /// One pin less; `None` if there is none.
    pub fn unpinned(self) -> Option<Word> {
        (self.pins() > 0).then_some(Word(self.0.wrapping_sub(PIN_ONE)))
    }

    /// Where the unit's bytes lie besides memory, or where room is kept for them.
    pub fn place(self) -> Place {
        Place::of_number(self.has(HAS_PLACE).then_some(self.0 >> PLACE_SHIFT))
    }

    /// The cluster of swap that is all the unit's, if its place is one.
    pub fn cluster(self) -> Option<u64> {
        match self.place() {
            Place::Cluster(cluster) => Some(cluster),
            _ => None,
        }
    }

    /// The unit's place in a mapped file, if it has one.
    pub fn file(self) -> Option<FilePlace> {
        match self.place() {
            Place::File(place) => Some(place),
            _ => None,
        }
    }

    /// The same word with another place.
    #[must_use]
    pub fn with_place(self, place: Place) -> Word {
        let low = self.0 & ((1 << PLACE_SHIFT) - 1) & !HAS_PLACE;
        match place.number() {
            Some(number) => Word(low | HAS_PLACE | number << PLACE_SHIFT),
            None => Word(low),
        }
    }

    /// Does the program's own protection allow this access?
    pub const fn allows(self, write: bool) -> bool {
        self.has(if write { MAY_WRITE } else { MAY_READ })
    }

    /// May reclaim take the unit's memory? (Only ever asked of an unlocked word
    /// or by the owner.)
    pub fn evictable(self) -> bool {
        self.pins() == 0
            && !self.has(WRITEBACK)
            && matches!(self.kind(), Kind::Present | Kind::Cached | Kind::Base)
    }

    /// Does the unit count as watched: could a fault take its frame at once? Such a unit is watched
    /// where it is mapped, or was moved to the arena for that.
    pub fn is_watched(self) -> bool {
        match self.kind() {
            Kind::Present => self.has(WATCHED),
            Kind::Cached => !self.has(READAHEAD),
            _ => false,
        }
    }

    /// Invariants every stable word obeys; the engine asserts it in debug builds.
    pub fn is_consistent(self) -> bool {
        let k = self.kind();
        let mapped = k == Kind::Present;
        (!self.has(WRITABLE) || (mapped && !self.has(CLEAN | WATCHED | COW) && self.has(MAY_WRITE)))
            && (!self.has(WATCHED | WRITEBACK | COW) || mapped)
            && (!self.has(WATCHED) || self.has(CLEAN | COW))
            && (!self.has(WRITEBACK) || !self.has(CLEAN | WATCHED))
            && (!self.has(READAHEAD) || k == Kind::Cached)
            && (self.pins() == 0 || matches!(k, Kind::Present | Kind::Foreign))
            && (!self.has(UNCHARGED) || self.has(COW) || k == Kind::Foreign)
            && (!self.has(CLEAN) || (mapped && self.has(HAS_PLACE)))
            && (!matches!(k, Kind::Swapped | Kind::Cached) || self.has(HAS_PLACE))
            && (!matches!(k, Kind::Free | Kind::None | Kind::Poisoned) || !self.has(HAS_PLACE))
    }
}

impl StateWord for Word {
    type Holder = ();
    const IS_TRUSTED: bool = true;

    fn from_raw(raw: u64) -> Word {
        Word(raw)
    }

    fn raw(self) -> u64 {
        self.0
    }

    fn is_locked(self) -> bool {
        self.has(LOCKED)
    }

    fn locked(self, (): ()) -> Word {
        self.set(LOCKED)
    }

    fn unlocked(self) -> Word {
        self.clear(LOCKED | WAITERS)
    }

    fn has_waiters(self) -> bool {
        self.has(WAITERS)
    }

    fn with_waiters(self) -> Word {
        self.set(WAITERS)
    }

    fn is_consistent(self) -> bool {
        Word::is_consistent(self)
    }
}

impl std::fmt::Debug for Word {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.kind())?;
        for (flag, name) in [
            (WRITABLE, "writable"),
            (WATCHED, "watched"),
            (WRITEBACK, "writeback"),
            (CLEAN, "clean"),
            (COW, "cow"),
            (READAHEAD, "readahead"),
            (LOCKED, "locked"),
            (WAITERS, "waiters"),
        ] {
            if self.has(flag) {
                write!(f, "+{name}")?;
            }
        }
        if self.has(HAS_PLACE) {
            write!(f, " {:?}", self.place())?;
        }
        if self.pins() > 0 {
            write!(f, " pins {}", self.pins())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_saturate() {
        let mut w = Word::none();
        for _ in 0..PIN_MAX {
            w = w.pinned().unwrap();
        }
        assert!(w.pinned().is_none());
    }

    #[test]
    fn consistency_rejects_contradictions() {
        let p = Word::none().with_kind(Kind::Present);
        assert!(p.set(WRITABLE).is_consistent());
        assert!(
            !p.set(WRITABLE | CLEAN)
                .with_place(Place::Cluster(1))
                .is_consistent()
        );
        assert!(!p.set(CLEAN).is_consistent());
        assert!(!Word::none().with_kind(Kind::Swapped).is_consistent());
        assert!(!Word::none().set(WATCHED).is_consistent());
    }
}
