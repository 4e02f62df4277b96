//! What a request for memory may do where none is free: the kernel's allocation flags, as far as they mean something here, and
//! which of them a request for a huge page has (`thp.defrag`).
//!
//! Memory is counted in frames of 2 MiB, and base pages are parts of frames. A frame that is free makes a huge page or 512 base
//! pages, so what a huge page takes is taken from base pages, too: below the watermark `min` only those, and reclaim, are served.
//!
//! Kernel flags that have no counterpart are left out: zones, mobility, I/O and file systems (reclaim is a thread of its own, which
//! nobody who asks for memory ever runs).

use crate::knobs::defrag;
use crate::watermark::Watermarks;

/// A set of flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gfp(u8);

/// Who asks for a huge page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// A fault on memory that holds nothing.
    FirstTouch,
    /// A fault on memory in swap that is to come in whole.
    SwapIn,
    /// A fault on a base-mapped unit that is to become whole.
    Collapse,
    /// khugepaged, with its own setting.
    Khugepaged {
        /// `khugepaged.defrag`.
        defrag: bool,
    },
}

/// Can base pages take the place of the huge page that is asked for?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BasePages {
    /// No: the unit comes whole or not at all.
    Never,
    /// Yes, but none is free either.
    NoneFree,
    /// Yes, at once.
    Free,
}

/// What becomes of a request for a huge page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may have a frame.
    Take,
    /// It makes do with base pages, at once.
    BasePages,
    /// It waits for a frame. Some(n): for so many rounds of reclaim, then it makes do with base pages.
    Wait(Option<u32>),
    /// It waits for whatever comes first, a frame or base pages: there is nothing at all.
    WaitForAny,
}

impl Gfp {
    /// None.
    pub const NONE: Gfp = Gfp(0);
    /// May wait for reclaim.
    pub const DIRECT_RECLAIM: Gfp = Gfp(1);
    /// Wakes who makes memory free, if there is none.
    pub const KSWAPD_RECLAIM: Gfp = Gfp(1 << 1);
    /// Waits for one round of reclaim, not for several.
    pub const NORETRY: Gfp = Gfp(1 << 2);
    /// May have what is kept below `min`.
    pub const MEMALLOC: Gfp = Gfp(1 << 3);
    /// Is content with a frame of its own node only. As in the kernel nothing is done for that: if the node has none, there is none.
    pub const THISNODE: Gfp = Gfp(1 << 4);

    /// Base pages for a program, and huge ones where there are no others: until there are some.
    pub const USER: Gfp = Gfp::DIRECT_RECLAIM
        .and(Gfp::KSWAPD_RECLAIM)
        .and(Gfp::MEMALLOC);
    /// A huge page that is had at once or not at all: its caller neither waits nor wakes anybody, and takes no reserves. Base pages of
    /// one's own node are better than a huge page of another.
    pub const TRANSHUGE_LIGHT: Gfp = Gfp::THISNODE;
    /// The same of what is read ahead: there it is a huge page or nothing.
    pub const READAHEAD: Gfp = Gfp::NONE;
    /// A huge page that is worth waiting for.
    pub const TRANSHUGE: Gfp = Gfp::DIRECT_RECLAIM;

    /// How many rounds of reclaim a huge page is worth that is worth more than one.
    pub const ROUNDS: u32 = 16;

    /// These and others.
    #[must_use]
    pub const fn and(self, other: Gfp) -> Gfp {
        Gfp(self.0 | other.0)
    }

    /// Are all of these in it?
    pub const fn has(self, flags: Gfp) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// The flags of a request for a huge page, by the `thp.defrag` of its range: the kernel's table.
    pub const fn huge(setting: u64, advised: bool, caller: Caller) -> Gfp {
        if let Caller::Khugepaged { defrag } = caller {
            // It has time, and a unit that is a huge page of another node is no better for it.
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

    /// How many of `available` frames it may have.
    pub const fn room(self, available: u64, marks: Watermarks) -> u64 {
        if self.has(Gfp::MEMALLOC) {
            available
        } else {
            available.saturating_sub(marks.min)
        }
    }

    /// Which of `nodes`, nearest first, it may have frames of.
    pub fn nodes(self, nodes: &[u8]) -> &[u8] {
        match self.has(Gfp::THISNODE) {
            true => &nodes[..nodes.len().min(1)],
            false => nodes,
        }
    }

    /// What becomes of a request for one frame.
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

    /// The same where there is no frame that it may have.
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
        (50, BasePages::Free),
        (9, BasePages::Free),
        (8, BasePages::Free),
        (0, BasePages::Free),
        (0, BasePages::NoneFree),
    ];

    fn marks() -> Watermarks {
        let marks = Watermarks::for_budget(256);
        assert_eq!((marks.min, marks.low, marks.high), (8, 16, 32));
        marks
    }

    #[test]
    fn the_kernels_table() {
        use Verdict::{BasePages as Base, Take, Wait, WaitForAny};
        // What becomes of a request by free memory, and does it wake anybody?
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
                // Who does not wait stays on its node; who does takes what comes.
                let nodes = if expect == at_once {
                    &[2][..]
                } else {
                    &[2, 0, 1]
                };
                assert_eq!(gfp.nodes(&[2, 0, 1]), nodes, "{policy} {advised}");
                // The range's own setting takes the place of the pool's.
                for other in POLICIES {
                    assert_eq!(said.with_defrag(Some(policy)).gfp(other, caller), gfp);
                }
            }
            // khugepaged goes by its own.
            for (defrag, expect) in [(true, long), (false, at_once)] {
                let gfp = said.gfp(policy, Caller::Khugepaged { defrag });
                let got = FREE.map(|(available, pages)| gfp.verdict(available, marks(), pages));
                assert_eq!(got, expect);
                assert!(!gfp.has(Gfp::KSWAPD_RECLAIM));
                assert_eq!(gfp.nodes(&[2, 0, 1]), [2]);
            }
        }
        // Readahead is no fault: what it brings in may stand anywhere.
        assert_eq!(Gfp::READAHEAD.nodes(&[2, 0, 1]), [2, 0, 1]);
        assert_eq!(Gfp::USER.nodes(&[2, 0, 1]), [2, 0, 1]);
    }

    #[test]
    fn where_there_are_no_base_pages_everybody_waits_and_has_everything() {
        for policy in POLICIES {
            let gfp = Gfp::huge(policy, false, Caller::FirstTouch);
            assert_eq!(gfp.verdict(1, marks(), BasePages::Never), Verdict::Take);
            assert_eq!(
                gfp.verdict(0, marks(), BasePages::Never),
                Verdict::Wait(None)
            );
        }
    }

    proptest! {
        /// Whoever may not wait does not, unless there is nothing at all; and reserves stay.
        #[test]
        fn opportunistic_requests_are_that(
            policy in 0..POLICIES.len(),
            advised: bool,
            available in 0u64..100,
            budget in 1u64..3000,
        ) {
            let gfp = Gfp::huge(POLICIES[policy], advised, Caller::FirstTouch);
            for marks in [Watermarks::for_budget(budget), Watermarks::for_pages(budget)] {
                let pages = if available > 0 { BasePages::Free } else { BasePages::NoneFree };
                let verdict = gfp.verdict(available, marks, pages);
                prop_assert_eq!(verdict == Verdict::Take, available > marks.min);
                prop_assert_eq!(verdict == Verdict::Take, gfp.room(available, marks) > 0);
                if !gfp.has(Gfp::DIRECT_RECLAIM) && available > 0 {
                    prop_assert!(matches!(verdict, Verdict::Take | Verdict::BasePages));
                }
                prop_assert_eq!(Gfp::USER.room(available, marks), available);
            }
        }
    }
}
