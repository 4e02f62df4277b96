//! Which base-mapped units khugepaged turns into huge pages: the kernel's limits, and one more
//! rule.
//!
//! The kernel collapses every range within the limits. Here faults bring in single pages where
//! these are worth more ([`crate::swapin::granularity`]), and khugepaged does not undo that. So a
//! unit that nobody asked to be huge is collapsed only if most of it is in memory, which adds
//! little, and memory is not short, so that nothing is reclaimed for it.

use crate::UNIT_PAGES;
use crate::defrag::thp::Collapse;

/// `khugepaged.max_ptes_none` and `khugepaged.max_ptes_swap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest number of pages that hold nothing.
    pub none: u64,
    /// Largest number of pages that are in swap only.
    pub swap: u64,
}

/// Numbers of pages of a base-mapped unit. The rest hold nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages {
    /// Pages in memory.
    pub present: u64,
    /// Pages in swap and not in memory.
    pub swapped: u64,
}

impl Limits {
    /// True if a unit is to be collapsed. `plenty` says that available memory is at or above the
    /// mark at which kswapd stops.
    pub const fn admit(self, pages: Pages, collapse: Collapse, plenty: bool) -> bool {
        let none = UNIT_PAGES.saturating_sub(pages.present + pages.swapped);
        let within = pages.present > 0 && none <= self.none && pages.swapped <= self.swap;
        within
            && match collapse {
                Collapse::Never => false,
                Collapse::IfResident => plenty && pages.present > UNIT_PAGES / 2,
                Collapse::Wanted => true,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KERNEL: Limits = Limits {
        none: 511,
        swap: 64,
    };

    #[test]
    fn the_kernels_limits() {
        let admits = |limits: Limits, present, swapped| {
            limits.admit(Pages { present, swapped }, Collapse::Wanted, false)
        };
        assert!(admits(KERNEL, 1, 0));
        assert!(!admits(KERNEL, 0, 0), "there is nothing to collapse");
        assert!(admits(KERNEL, 448, 64) && !admits(KERNEL, 447, 65));
        let full = Limits { none: 0, swap: 0 };
        assert!(admits(full, 512, 0));
        assert!(!admits(full, 511, 1) && !admits(full, 511, 0));
        let few = Limits { none: 3, swap: 1 };
        assert!(admits(few, 508, 1) && !admits(few, 507, 1));
    }

    proptest! {
        #[test]
        fn what_was_not_asked_for_adds_little_and_displaces_nothing(
            present in 0..=UNIT_PAGES,
            swapped in 0..=UNIT_PAGES,
            none in 0..UNIT_PAGES,
            swap in 0..UNIT_PAGES,
            plenty: bool,
        ) {
            let pages = Pages { present, swapped: swapped.min(UNIT_PAGES - present) };
            let limits = Limits { none, swap };
            let wanted = limits.admit(pages, Collapse::Wanted, plenty);
            let auto = limits.admit(pages, Collapse::IfResident, plenty);
            prop_assert!(!auto || wanted && plenty && UNIT_PAGES - present < present);
            prop_assert!(!limits.admit(pages, Collapse::Never, plenty));
        }
    }
}
