//! Which units may be huge, which are swapped in whole, and what a request for a huge page may do:
//! the settings `thp.enabled`, `thp.swapin` and `thp.defrag`, the program's advice for a range, and
//! the settings of the range.
//!
//! One 16-bit word a unit ([`Advised`]); zero is a unit without advice. The rules are the kernel's:
//! a unit that may not be huge comes in by base pages whatever `thp.swapin` says, and advice holds
//! for a whole unit or not at all ([`Usage::counts_for_parts`]).

use crate::defrag::gfp::{Caller, Gfp};
use crate::knobs::{enabled, swapin};

/// Advice of a program for a range (madvise).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// Huge pages are worth it (MADV_HUGEPAGE).
    HugePage,
    /// Base pages only (MADV_NOHUGEPAGE).
    NoHugePage,
    /// Pages are used here and there (MADV_RANDOM).
    Random,
    /// Pages are used one after the other (MADV_SEQUENTIAL).
    Sequential,
    /// Neither of those two (MADV_NORMAL).
    Normal,
}

impl Usage {
    /// True if the advice holds for a unit of which only a part is advised. Other advice needs all
    /// of the unit that is mapped: the kernel too maps no huge page across the border of an advised
    /// range.
    pub const fn counts_for_parts(self) -> bool {
        matches!(self, Usage::NoHugePage)
    }
}

/// How a unit that is in swap comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bring {
    /// By sizes that its faults suggest ([`crate::swapin::granularity`]).
    AsFaulted,
    /// Whole.
    Whole,
    /// By single pages, or by 64 KiB where faults suggest it: it is not to be huge.
    Pieces,
    /// By single pages.
    Pages,
}

impl Bring {
    /// How a unit comes in that would come in so, but is not to be huge.
    pub const fn by_parts(self) -> Bring {
        match self {
            Bring::Pages => Bring::Pages,
            Bring::AsFaulted | Bring::Whole | Bring::Pieces => Bring::Pieces,
        }
    }
}

/// Whether khugepaged makes a base-mapped unit huge without a fault that asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collapse {
    /// No: the unit is to consist of base pages.
    Never,
    /// Only if most of it is in memory, and memory is not short.
    IfResident,
    /// Yes: a setting or the program asks for it.
    Wanted,
}

/// The advice and the settings of one unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Advised(pub u16);

const HUGE: u16 = 1;
const NO_HUGE: u16 = 1 << 1;
const RANDOM: u16 = 1 << 2;
const SEQUENTIAL: u16 = 1 << 3;
/// `thp.defrag` of the range, plus one; 0 if the pool's holds.
const DEFRAG_SHIFT: u32 = 4;
/// `thp.enabled` of the range, in the same way.
const ENABLED_SHIFT: u32 = 8;
/// `thp.swapin` of the range, in the same way.
const SWAPIN_SHIFT: u32 = 12;
const FIELD: u16 = 0xf;

impl Advised {
    /// A unit without advice and settings.
    pub const NOTHING: Advised = Advised(0);

    /// The word after the program gave `usage` as advice.
    #[must_use]
    pub const fn and(self, usage: Usage) -> Advised {
        let (clear, set) = match usage {
            Usage::HugePage => (NO_HUGE, HUGE),
            Usage::NoHugePage => (HUGE, NO_HUGE),
            Usage::Random => (SEQUENTIAL, RANDOM),
            Usage::Sequential => (RANDOM, SEQUENTIAL),
            Usage::Normal => (RANDOM | SEQUENTIAL, 0),
        };
        Advised(self.0 & !clear | set)
    }

    /// The word with `thp.enabled` of the range set, or with `None` left to the pool.
    #[must_use]
    pub const fn with_enabled(self, value: Option<u64>) -> Advised {
        self.with_field(ENABLED_SHIFT, value)
    }

    /// The word with `thp.swapin` of the range set, or with `None` left to the pool.
    #[must_use]
    pub const fn with_swapin(self, value: Option<u64>) -> Advised {
        self.with_field(SWAPIN_SHIFT, value)
    }

    /// The word with `thp.defrag` of the range set, or with `None` left to the pool.
    #[must_use]
    pub const fn with_defrag(self, value: Option<u64>) -> Advised {
        self.with_field(DEFRAG_SHIFT, value)
    }

    const fn with_field(self, shift: u32, value: Option<u64>) -> Advised {
        let bits = match value {
            Some(v) => (v as u16 & (FIELD >> 1)) + 1,
            None => 0,
        };
        Advised(self.0 & !(FIELD << shift) | bits << shift)
    }

    const fn field(self, shift: u32, otherwise: u64) -> u64 {
        match self.0 >> shift & FIELD {
            0 => otherwise,
            n => n as u64 - 1,
        }
    }

    /// True if the program advised huge pages (MADV_HUGEPAGE).
    pub const fn is_for_huge(self) -> bool {
        self.0 & HUGE != 0
    }

    /// What a request for a huge page for the unit may do; `pool` is the pool's `thp.defrag`.
    pub const fn gfp(self, pool: u64, caller: Caller) -> Gfp {
        Gfp::huge(self.field(DEFRAG_SHIFT, pool), self.is_for_huge(), caller)
    }

    /// True if the unit may be huge; `pool` is the pool's `thp.enabled`.
    pub const fn may_be_huge(self, pool: u64) -> bool {
        match self.field(ENABLED_SHIFT, pool) {
            enabled::NEVER => false,
            enabled::MADVISE => self.is_for_huge(),
            _ => self.0 & NO_HUGE == 0,
        }
    }

    /// How the unit comes in, given the pool's `thp.enabled` and `thp.swapin`.
    pub const fn bring(self, pool_enabled: u64, pool_swapin: u64) -> Bring {
        let huge = match self.field(SWAPIN_SHIFT, pool_swapin) {
            swapin::ALWAYS => Bring::Whole,
            swapin::NEVER => Bring::Pages,
            swapin::MADVISE if self.is_for_huge() => Bring::Whole,
            swapin::MADVISE => Bring::Pages,
            _ if self.0 & RANDOM != 0 => Bring::Pages,
            _ if self.0 & SEQUENTIAL != 0 => Bring::Whole,
            _ => Bring::AsFaulted,
        };
        match self.may_be_huge(pool_enabled) {
            true => huge,
            false => huge.by_parts(),
        }
    }

    /// Whether khugepaged collapses the unit, given the pool's `thp.enabled` and `thp.swapin`.
    pub const fn collapse(self, pool_enabled: u64, pool_swapin: u64) -> Collapse {
        match self.bring(pool_enabled, pool_swapin) {
            Bring::Pages | Bring::Pieces => Collapse::Never,
            Bring::AsFaulted if !self.is_for_huge() => Collapse::IfResident,
            _ => Collapse::Wanted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::knobs::defrag;
    use proptest::prelude::*;

    const USAGES: [Usage; 5] = [
        Usage::HugePage,
        Usage::NoHugePage,
        Usage::Random,
        Usage::Sequential,
        Usage::Normal,
    ];

    #[test]
    fn the_kernels_table() {
        let (none, huge) = (Advised::NOTHING, Advised::NOTHING.and(Usage::HugePage));
        let no = huge.and(Usage::NoHugePage);
        for (setting, expect) in [
            (enabled::ALWAYS, [true, true, false]),
            (enabled::MADVISE, [false, true, false]),
            (enabled::NEVER, [false, false, false]),
        ] {
            assert_eq!([none, huge, no].map(|a| a.may_be_huge(setting)), expect);
        }
        use Bring::*;
        for (setting, expect) in [
            (swapin::AUTO, [AsFaulted, AsFaulted, Pieces]),
            (swapin::ALWAYS, [Whole, Whole, Pieces]),
            (swapin::MADVISE, [Pages, Whole, Pages]),
            (swapin::NEVER, [Pages, Pages, Pages]),
        ] {
            let bring = |a: Advised| a.bring(enabled::ALWAYS, setting);
            assert_eq!([none, huge, no].map(bring), expect);
        }
        let collapse = |a: Advised, e, s| a.collapse(e, s);
        for (e, s, expect) in [
            (
                enabled::ALWAYS,
                swapin::AUTO,
                [Collapse::IfResident, Collapse::Wanted, Collapse::Never],
            ),
            (
                enabled::ALWAYS,
                swapin::ALWAYS,
                [Collapse::Wanted, Collapse::Wanted, Collapse::Never],
            ),
            (
                enabled::MADVISE,
                swapin::AUTO,
                [Collapse::Never, Collapse::Wanted, Collapse::Never],
            ),
            (enabled::NEVER, swapin::ALWAYS, [Collapse::Never; 3]),
            (enabled::ALWAYS, swapin::NEVER, [Collapse::Never; 3]),
        ] {
            assert_eq!([none, huge, no].map(|a| collapse(a, e, s)), expect);
        }
        let auto = |a: Advised| a.bring(enabled::ALWAYS, swapin::AUTO);
        assert_eq!(auto(none.and(Usage::Random)), Pages);
        assert_eq!(auto(none.and(Usage::Random).and(Usage::Sequential)), Whole);
        assert_eq!(auto(huge.and(Usage::Random).and(Usage::Normal)), AsFaulted);
    }

    proptest! {
        /// A setting of the range takes the place of the pool's and no more, whatever advice comes
        /// before and after.
        #[test]
        fn own_settings_take_the_pools_place(
            says in proptest::collection::vec(0..USAGES.len(), 0..6),
            own_enabled in proptest::option::of(0..enabled::WORDS.len() as u64),
            own_swapin in proptest::option::of(0..swapin::WORDS.len() as u64),
            own_defrag in proptest::option::of(0..defrag::WORDS.len() as u64),
            pool_defrag in 0..defrag::WORDS.len() as u64,
            pool_enabled in 0..enabled::WORDS.len() as u64,
            pool_swapin in 0..swapin::WORDS.len() as u64,
        ) {
            let said = says.iter().fold(Advised::NOTHING, |a, &i| a.and(USAGES[i]));
            let set = says.iter().fold(
                Advised::NOTHING.with_enabled(own_enabled).with_swapin(own_swapin).with_defrag(own_defrag),
                |a, &i| a.and(USAGES[i]),
            );
            let (e, s) = (own_enabled.unwrap_or(pool_enabled), own_swapin.unwrap_or(pool_swapin));
            prop_assert_eq!(set.bring(pool_enabled, pool_swapin), said.bring(e, s));
            prop_assert_eq!(set.may_be_huge(pool_enabled), said.may_be_huge(e));
            let caller = Caller::SwapIn;
            prop_assert_eq!(set.gfp(pool_defrag, caller), said.gfp(own_defrag.unwrap_or(pool_defrag), caller));
            prop_assert_eq!(set.with_enabled(None).with_swapin(None).with_defrag(None), said);
        }
    }
}
