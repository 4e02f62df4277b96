//! Markers: what is said of pages that are neither in memory nor in swap, for as long as the program wishes.
//!
//! A *guard* is as the kernel's MADV_GUARD_INSTALL: touching the page is SIGSEGV; it holds nothing, and zeros once the guard is gone. A *poisoned* page is as after
//! UFFDIO_POISON: touching it is SIGBUS, until it is given up. Each is a bit for each page of a unit, beside those that say what is in memory, stored and dirty. What the bits
//! of a page say together is one of few things; all else is an error ([`Pages::check`]).

/// A marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marker {
    /// Touching the page is SIGSEGV.
    Guard,
    /// Touching the page is SIGBUS.
    Poison,
}

/// What is known of 64 neighbouring pages of a base-mapped unit, a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    /// Guards.
    pub guard: u64,
    /// Poisoned.
    pub poison: u64,
    /// In memory.
    pub present: u64,
    /// Changed since they were stored.
    pub dirty: u64,
    /// In swap, as they were before they were changed.
    pub stored: u64,
}

/// Bits that cannot be together; the first page of those looked at that has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misplaced {
    /// Two markers.
    Both(u32),
    /// A marker, where it is all there is of a page, and memory.
    InMemory(u32),
    /// The same, and a place in swap.
    InSwap(u32),
    /// Dirty, as only what is in memory can be.
    DirtyAway(u32),
}

impl std::fmt::Display for Misplaced {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (page, what) = match self {
            Misplaced::Both(page) => (page, "is a guard and poisoned"),
            Misplaced::InMemory(page) => (page, "has a marker and is in memory"),
            Misplaced::InSwap(page) => (page, "has a marker and is in swap"),
            Misplaced::DirtyAway(page) => (page, "is dirty and not in memory"),
        };
        write!(f, "page {page} {what}")
    }
}

impl std::error::Error for Misplaced {}

impl Pages {
    /// What the markers say of each page: all of them, or that what is said makes no sense.
    pub fn check(&self) -> Result<(), Misplaced> {
        let marked = self.guard | self.poison;
        let first = |bits: u64, is: fn(u32) -> Misplaced| match bits {
            0 => Ok(()),
            bits => Err(is(bits.trailing_zeros())),
        };
        first(self.guard & self.poison, Misplaced::Both)?;
        first(marked & self.present, Misplaced::InMemory)?;
        first(marked & self.stored, Misplaced::InSwap)?;
        first(self.dirty & !self.present, Misplaced::DirtyAway)
    }

    /// The marker of a page.
    pub fn marker(&self, page: u32) -> Option<Marker> {
        match (self.guard >> page & 1, self.poison >> page & 1) {
            (0, 0) => None,
            (0, _) => Some(Marker::Poison),
            _ => Some(Marker::Guard),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every combination of the bits of one page, as the table in docs/pagemap.md has it.
    #[test]
    fn a_page_is_one_thing() {
        for bits in 0u64..32 {
            let at = |n: u32| (bits >> n & 1) << 7;
            let pages = Pages {
                guard: at(0),
                poison: at(1),
                present: at(2),
                dirty: at(3),
                stored: at(4),
            };
            let (marked, dirty, present) = (bits & 3 != 0, bits & 8 != 0, bits & 4 != 0);
            let sense = bits & 3 != 3 && !(marked && bits & !3 != 0) && (!dirty || present);
            assert_eq!(pages.check().is_ok(), sense, "{pages:?}");
            assert_eq!(pages.marker(6), None);
            if sense {
                let marker = match bits & 3 {
                    1 => Some(Marker::Guard),
                    2 => Some(Marker::Poison),
                    _ => None,
                };
                assert_eq!(pages.marker(7), marker);
            }
        }
        let two = Pages {
            guard: 12,
            poison: 8,
            ..Pages::default()
        };
        assert_eq!(two.check(), Err(Misplaced::Both(3)));
    }
}
