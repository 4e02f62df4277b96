//! Markers: state of a page that is neither in memory nor in swap, kept until the program gives it
//! up.
//!
//! A *guard* works as the kernel's MADV_GUARD_INSTALL: touching the page raises SIGSEGV; the page
//! holds nothing, and zeros once the guard is removed. A *poisoned* page is as after UFFDIO_POISON:
//! touching it raises SIGBUS until it is discarded. A page *without access* is one that a program
//! has reserved, or protected, in a unit whose other pages it uses; it can be a guard or poisoned,
//! too, and what it holds is in swap. Each marker is one bit for each page of a unit, beside the bits for in memory, stored and
//! dirty. Few combinations of these bits make sense, and all others are an error
//! ([`Pages::check`]).

/// A marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marker {
    /// Touching the page is SIGSEGV.
    Guard,
    /// Touching the page is SIGBUS.
    Poison,
    /// The program has no access to the page: touching it is SIGSEGV.
    NoAccess,
}

/// The bits of 64 neighbouring pages of a base-mapped unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    /// Guarded pages.
    pub guard: u64,
    /// Poisoned pages.
    pub poison: u64,
    /// Pages without access.
    pub no_access: u64,
    /// Pages in memory.
    pub present: u64,
    /// Pages that were changed since they were stored.
    pub dirty: u64,
    /// Pages in swap, as they were before they were changed.
    pub stored: u64,
}

/// Bits that cannot be together, with the first page that has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misplaced {
    /// Two markers.
    Both(u32),
    /// A marker on a page in memory.
    InMemory(u32),
    /// A guard, or a poisoned page, that is in swap.
    InSwap(u32),
    /// A dirty page that is not in memory.
    DirtyAway(u32),
}

impl std::fmt::Display for Misplaced {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (page, what) = match self {
            Misplaced::Both(page) => (page, "is a guard and poisoned"),
            Misplaced::InMemory(page) => (page, "has a marker and is in memory"),
            Misplaced::InSwap(page) => (page, "is a guard, or poisoned, and is in swap"),
            Misplaced::DirtyAway(page) => (page, "is dirty and not in memory"),
        };
        write!(f, "page {page} {what}")
    }
}

impl std::error::Error for Misplaced {}

impl Pages {
    /// Ok if the bits of each page can be together.
    pub fn check(&self) -> Result<(), Misplaced> {
        let marked = self.guard | self.poison | self.no_access;
        let first = |bits: u64, is: fn(u32) -> Misplaced| match bits {
            0 => Ok(()),
            bits => Err(is(bits.trailing_zeros())),
        };
        first(self.guard & self.poison, Misplaced::Both)?;
        first(marked & self.present, Misplaced::InMemory)?;
        first((self.guard | self.poison) & self.stored, Misplaced::InSwap)?;
        first(self.dirty & !self.present, Misplaced::DirtyAway)
    }

    /// The marker of a page, if it has one.
    pub fn marker(&self, page: u32) -> Option<Marker> {
        let has = |bits: u64| bits >> page & 1 == 1;
        match (has(self.no_access), has(self.guard), has(self.poison)) {
            (true, ..) => Some(Marker::NoAccess),
            (_, true, _) => Some(Marker::Guard),
            (_, _, true) => Some(Marker::Poison),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every combination of the bits of one page, as in the table of docs/pagemap.md.
    #[test]
    fn a_page_is_one_thing() {
        for bits in 0u64..64 {
            let at = |n: u32| (bits >> n & 1) << 7;
            let pages = Pages {
                guard: at(0),
                poison: at(1),
                present: at(2),
                dirty: at(3),
                stored: at(4),
                no_access: at(5),
            };
            let has = |mask: u64| bits & mask != 0;
            let (empty, marked, present) = (has(3), has(35), has(4));
            let (dirty, stored) = (has(8), has(16));
            let sense =
                bits & 3 != 3 && !(marked && present) && !(empty && stored) && (!dirty || present);
            assert_eq!(pages.check().is_ok(), sense, "{pages:?}");
            assert_eq!(pages.marker(6), None);
            if sense {
                let marker = match bits & 35 {
                    0 => None,
                    1 => Some(Marker::Guard),
                    2 => Some(Marker::Poison),
                    _ => Some(Marker::NoAccess),
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
