//! What a request for memory may do where none is free: the kernel's allocation flags that have a
//! meaning here, and which of them a request for a huge page has (`thp.defrag`).
//!
//! Memory is counted in frames of 2 MiB. A free frame makes one huge page or 512 base pages, so a
//! huge page takes memory from base pages. Below the watermark `min`, only base pages and reclaim
//! are served.
//!
//! The kernel's flags for zones, mobility, I/O and file systems have no counterpart. Reclaim is a
//! thread of its own; threads that ask for memory never run it.

use crate::UNIT_PAGES;
use crate::knobs::defrag;
use crate::watermark::Watermarks;

/// A set of flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gfp(u8);

/// Where a request for a huge page comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// A fault on a unit that holds nothing.
    FirstTouch,
    /// A fault on a unit in swap that is to come in whole.
    SwapIn,
    /// A fault on a base-mapped unit that is to become whole.
    Collapse,
    /// khugepaged, with its own setting.
    Khugepaged {
        /// `khugepaged.defrag`.
        defrag: bool,
    },
}

/// Whether base pages can take the place of a huge page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BasePages {
    /// No: the unit comes whole or not at all.
    Never,
    /// Yes, but no base page is free either.
    NoneFree,
    /// Yes, and some are free.
    Free,
}

/// What a request for a huge page gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A frame.
    Take,
    /// Base pages, at once.
    BasePages,
    /// It waits for a frame. With `Some(n)` it takes base pages after `n` rounds of reclaim.
    Wait(Option<u32>),
    /// Neither is there: it waits for a frame or base pages, whichever comes first.
    WaitForAny,
}

impl Gfp {
    /// No flag.
    pub const NONE: Gfp = Gfp(0);
    /// The request may wait for reclaim.
    pub const DIRECT_RECLAIM: Gfp = Gfp(1);
    /// The request wakes kswapd and kcompactd if no frame is free.
    pub const KSWAPD_RECLAIM: Gfp = Gfp(1 << 1);
    /// The request waits for one round of reclaim, not for several.
    pub const NORETRY: Gfp = Gfp(1 << 2);
    /// The request may use the reserve below `min`.
    pub const MEMALLOC: Gfp = Gfp(1 << 3);
    /// The request takes a frame of its own node or none. As in the kernel, no node is reclaimed
    /// for it.
    pub const THISNODE: Gfp = Gfp(1 << 4);

    /// Base pages of a program, and huge ones where no base pages can take their place: the request
    /// waits until there are some.
    pub const USER: Gfp = Gfp::DIRECT_RECLAIM
        .and(Gfp::KSWAPD_RECLAIM)
        .and(Gfp::MEMALLOC);
    /// A huge page that is to be had at once or not at all: the request neither waits, nor wakes a
    /// thread, nor uses the reserve. Base pages of the own node are better than a huge page of
    /// another.
    pub const TRANSHUGE_LIGHT: Gfp = Gfp::THISNODE;
    /// [`Gfp::TRANSHUGE_LIGHT`] for readahead, which may use any node: it reads a huge page or
    /// nothing.
    pub const READAHEAD: Gfp = Gfp::NONE;
    /// A huge page that is worth waiting for.
    pub const TRANSHUGE: Gfp = Gfp::DIRECT_RECLAIM;

    /// Rounds of reclaim that a request without [`Gfp::NORETRY`] waits for.
    pub const ROUNDS: u32 = 16;

    /// The union of two sets.
    #[must_use]
    pub const fn and(self, other: Gfp) -> Gfp {
        Gfp(self.0 | other.0)
    }

    /// True if all of `flags` are in the set.
    pub const fn has(self, flags: Gfp) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// The flags of a request for a huge page, by the `thp.defrag` of its range: the kernel's
    /// table.
    pub const fn huge(setting: u64, advised: bool, caller: Caller) -> Gfp {
        if let Caller::Khugepaged { defrag } = caller {
            // khugepaged may stall, and for it a huge page of another node is as good.
            return match defrag {
                true => Gfp::TRANSHUGE.and(Gfp::THISNODE),
                false => Gfp::TRANSHUGE_LIGHT,
            };
        }
        let light = Gfp::TRANSHUGE_LIGHT;
        match (setting, advised) {
            (defrag::ALWAYS, true) => Gfp::TRANSHUGE,
            (defrag::ALWAYS, false) => Gfp::TRANSHUGE.and(Gfp::NORETRY),
            (defrag::DEFER_MADVISE | defrag::MADVISE, true) => Gfp::TRANSHUGE,
            (defrag::DEFER, _) | (defrag::DEFER_MADVISE, false) => light.and(Gfp::KSWAPD_RECLAIM),
            _ => light,
        }
    }

    /// The number of frames that the request may take of `available` pages.
    pub const fn room(self, available: u64, marks: Watermarks) -> u64 {
        let pages = if self.has(Gfp::MEMALLOC) {
            available
        } else {
            available.saturating_sub(marks.min)
        };
        pages / UNIT_PAGES
    }

    /// Those of `nodes`, nearest first, that the request may take frames of.
    pub fn nodes(self, nodes: &[u8]) -> &[u8] {
        match self.has(Gfp::THISNODE) {
            true => &nodes[..nodes.len().min(1)],
            false => nodes,
        }
    }

    /// Decides about a request for one frame while so many pages are `available`.
    pub const fn verdict(self, available: u64, marks: Watermarks, pages: BasePages) -> Verdict {
        let wanted = match pages {
            BasePages::Never => Gfp::USER,
            _ => self,
        };
        if wanted.room(available, marks) > 0 {
            return Verdict::Take;
        }
        wanted.without(pages)
    }

    /// Decides about a request where there is no frame that it may take.
    pub const fn without(self, pages: BasePages) -> Verdict {
        match pages {
            BasePages::Never => Verdict::Wait(None),
            _ if self.has(Gfp::DIRECT_RECLAIM.and(Gfp::NORETRY)) => Verdict::Wait(Some(1)),
            _ if self.has(Gfp::DIRECT_RECLAIM) => Verdict::Wait(Some(Gfp::ROUNDS)),
            BasePages::Free => Verdict::BasePages,
            BasePages::NoneFree => Verdict::WaitForAny,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::defrag::thp::{Advised, Usage};
    use crate::watermark::Demand;
    use proptest::prelude::*;

    const POLICIES: [u64; 5] = [
        defrag::ALWAYS,
        defrag::DEFER,
        defrag::DEFER_MADVISE,
        defrag::MADVISE,
        defrag::NEVER,
    ];
    const FAULTS: [Caller; 3] = [Caller::FirstTouch, Caller::SwapIn, Caller::Collapse];

    /// Free memory: plenty, below `low`, the reserve, nothing but base pages, nothing.
    const FREE: [(u64, BasePages); 5] = [
        (50 * UNIT_PAGES, BasePages::Free),
        (9 * UNIT_PAGES, BasePages::Free),
        (9 * UNIT_PAGES - 1, BasePages::Free),
        (0, BasePages::Free),
        (0, BasePages::NoneFree),
    ];

    fn marks() -> Watermarks {
        let marks = Watermarks::for_budget(256);
        assert_eq!(marks.min, 8 * UNIT_PAGES);
        marks
    }

    #[test]
    fn the_kernels_table() {
        use Verdict::{BasePages as Base, Take, Wait, WaitForAny};
        // The verdicts by free memory, and whether kswapd is woken.
        let once = [Take, Take, Wait(Some(1)), Wait(Some(1)), Wait(Some(1))];
        let long = Wait(Some(Gfp::ROUNDS));
        let long = [Take, Take, long, long, long];
        let at_once = [Take, Take, Base, Base, WaitForAny];
        let rows = [
            (defrag::ALWAYS, false, once, false),
            (defrag::ALWAYS, true, long, false),
            (defrag::DEFER, false, at_once, true),
            (defrag::DEFER, true, at_once, true),
            (defrag::DEFER_MADVISE, false, at_once, true),
            (defrag::DEFER_MADVISE, true, long, false),
            (defrag::MADVISE, false, at_once, false),
            (defrag::MADVISE, true, long, false),
            (defrag::NEVER, false, at_once, false),
            (defrag::NEVER, true, at_once, false),
        ];
        for (policy, advised, expect, wakes) in rows {
            let said = match advised {
                true => Advised::NOTHING.and(Usage::HugePage),
                false => Advised::NOTHING,
            };
            for caller in FAULTS {
                let gfp = said.gfp(policy, caller);
                let got = FREE.map(|(available, pages)| gfp.verdict(available, marks(), pages));
                assert_eq!(got, expect, "{policy} {advised} {caller:?}");
                assert_eq!(gfp.has(Gfp::KSWAPD_RECLAIM), wakes, "{policy} {advised}");
                // A request that does not wait stays on its node; one that does takes what comes.
                let nodes = if expect == at_once {
                    &[2][..]
                } else {
                    &[2, 0, 1]
                };
                assert_eq!(gfp.nodes(&[2, 0, 1]), nodes, "{policy} {advised}");
                // The setting of the range takes the place of that of the pool.
                for other in POLICIES {
                    assert_eq!(said.with_defrag(Some(policy)).gfp(other, caller), gfp);
                }
            }
            // khugepaged has its own setting.
            for (defrag, expect) in [(true, long), (false, at_once)] {
                let gfp = said.gfp(policy, Caller::Khugepaged { defrag });
                let got = FREE.map(|(available, pages)| gfp.verdict(available, marks(), pages));
                assert_eq!(got, expect);
                assert!(!gfp.has(Gfp::KSWAPD_RECLAIM));
                assert_eq!(gfp.nodes(&[2, 0, 1]), [2]);
            }
        }
        // Readahead is no fault: what it brings in may be on any node.
        assert_eq!(Gfp::READAHEAD.nodes(&[2, 0, 1]), [2, 0, 1]);
        assert_eq!(Gfp::USER.nodes(&[2, 0, 1]), [2, 0, 1]);
    }

    #[test]
    fn where_there_are_no_base_pages_everybody_waits_and_has_everything() {
        for policy in POLICIES {
            let gfp = Gfp::huge(policy, false, Caller::FirstTouch);
            let verdict = |pages| gfp.verdict(pages, marks(), BasePages::Never);
            assert_eq!(verdict(UNIT_PAGES), Verdict::Take);
            assert_eq!(verdict(UNIT_PAGES - 1), Verdict::Wait(None));
        }
    }

    proptest! {
        /// A request that may not wait does not, unless there is nothing at all; and the reserve
        /// stays.
        #[test]
        fn opportunistic_requests_are_that(
            policy in 0..POLICIES.len(),
            advised: bool,
            available in 0u64..100 * UNIT_PAGES,
            budget in 1u64..3000,
        ) {
            let gfp = Gfp::huge(POLICIES[policy], advised, Caller::FirstTouch);
            for marks in [Demand::Huge, Demand::Pages].map(|d| Watermarks::for_demand(budget, d)) {
                let pages = if available > 0 { BasePages::Free } else { BasePages::NoneFree };
                let verdict = gfp.verdict(available, marks, pages);
                prop_assert_eq!(verdict == Verdict::Take, available >= marks.min + UNIT_PAGES);
                prop_assert_eq!(verdict == Verdict::Take, gfp.room(available, marks) > 0);
                if !gfp.has(Gfp::DIRECT_RECLAIM) && available > 0 {
                    prop_assert!(matches!(verdict, Verdict::Take | Verdict::BasePages));
                }
                prop_assert_eq!(Gfp::USER.room(available, marks), available / UNIT_PAGES);
            }
        }
    }
}
