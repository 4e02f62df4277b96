//! When reclaim starts and stops: the kernel's watermarks min, low and high, in base pages.
//!
//! "Available" is what a fault can have at once: free frames, free base pages, and clean units that
//! are watched.
//! Below `low` kswapd wakes, and works up to `high`. Up to `min` is for base pages and reclaim, not
//! for huge pages that base pages can replace ([`crate::defrag::gfp`]). At 0 a faulting thread
//! waits (a stall).
//!
//! The marks follow from the budget, or from settings ([`Setting`]). They are raised for a while
//! ([`Boost`]) when memory is taken faster than reclaim makes it available.

use crate::{PAGE_BYTES, UNIT_PAGES};

/// What is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Demand {
    /// Huge pages too.
    #[default]
    Huge,
    /// Hardly anything but base pages.
    Pages,
    /// The same, by one thread at a time, which waits for each.
    PagesInTurn,
}

/// The marks of one process, in base pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// Huge pages do not get the last pages up to here. 0 where so little is kept free that one
    /// unit matters.
    pub min: u64,
    /// kswapd wakes below this.
    pub low: u64,
    /// kswapd stops here.
    pub high: u64,
}

impl Watermarks {
    /// The marks for a budget of `frames` units: low is 1/16 and high 1/8 of it, so that
    /// write-behind and readahead always have room, with an upper bound so that a large budget is
    /// not left idle.
    pub fn for_budget(frames: u64) -> Watermarks {
        // Most of a very small budget must be for use: an access may need two units at once.
        let high = (frames / 8).max((frames / 4).min(3)).clamp(1, 64);
        let low = (high / 2).max(1);
        Watermarks {
            min: low / 2 * UNIT_PAGES,
            low: low * UNIT_PAGES,
            high: high * UNIT_PAGES,
        }
    }

    /// The marks where hardly anything but base pages is asked for, at most `most` of them kept
    /// free. Base pages are made available as fast as they are used, and those kept free are lost
    /// to the program (a whole unit that is watched is not).
    fn for_pages(frames: u64, most: u64) -> Watermarks {
        let whole = Watermarks::for_budget(frames);
        let high = whole.high.min(most);
        Watermarks {
            min: whole.min.min(high / 4),
            low: high / 2,
            high,
        }
    }

    /// The marks for what is asked for, by the budget alone.
    pub fn for_demand(frames: u64, demand: Demand) -> Watermarks {
        match demand {
            Demand::Huge => Watermarks::for_budget(frames),
            Demand::Pages => Watermarks::for_pages(frames, 768),
            // It takes one page in the time of one transfer, so that few are enough. Less than a
            // unit: whoever asks for huge pages changes the demand.
            Demand::PagesInTurn => Watermarks::for_pages(frames, 96),
        }
    }

    /// The marks by the settings, for a share of `frames` of the budget.
    pub fn of(frames: u64, demand: Demand, setting: Setting) -> Watermarks {
        if setting == Setting::AUTO {
            return Watermarks::for_demand(frames, demand);
        }
        // What is set leaves room for huge pages.
        let auto = match demand {
            Demand::PagesInTurn => Watermarks::for_demand(frames, Demand::Pages),
            other => Watermarks::for_demand(frames, other),
        };
        // Whatever the settings, half of it, and a unit more than an access needs, are for use.
        let most = (frames / 2).min(frames.saturating_sub(3)) * UNIT_PAGES;
        let most = most.max(auto.high);
        let min = match setting.min_free_kbytes {
            0 => auto.min,
            kbytes => (kbytes.saturating_mul(1024)).div_ceil(PAGE_BYTES),
        };
        let (to_low, to_high) = match setting.scale_factor {
            0 => (auto.low - auto.min, auto.high - auto.min),
            scale => {
                let share = frames.saturating_mul(UNIT_PAGES);
                // Less than a unit would leave nothing for huge pages where kswapd stops.
                let step = (share.saturating_mul(scale) / Setting::WHOLE).max(UNIT_PAGES);
                (step, step.saturating_mul(2))
            }
        };
        let high = min.saturating_add(to_high).min(most);
        let low = min.saturating_add(to_low).min(high);
        Watermarks {
            min: min.min(low - 1).min(high - UNIT_PAGES),
            low,
            high,
        }
    }

    /// The marks raised by `boost`: kswapd wakes earlier and works longer. `min` stays the same.
    #[must_use]
    pub fn boosted(self, by: u64) -> Watermarks {
        Watermarks {
            min: self.min,
            low: self.low + by,
            high: self.high + by,
        }
    }
}

/// The settings `vm.min_free_kbytes` and `vm.watermark_scale_factor`, in the kernel's units; 0
/// leaves the mark to the budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// `min` in KiB.
    pub min_free_kbytes: u64,
    /// The distance from each mark to the next, in parts of 10,000 of the budget.
    pub scale_factor: u64,
}

impl Setting {
    /// Nothing is set.
    pub const AUTO: Setting = Setting {
        min_free_kbytes: 0,
        scale_factor: 0,
    };
    /// The whole budget, in the unit of `scale_factor`.
    pub const WHOLE: u64 = 10_000;
}

/// How far the marks are raised, in base pages: by a step whenever a request finds less than `min`, until kswapd
/// has once reached the raised `high`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Boost(pub u64);

impl Boost {
    /// The boost after a request found less than `min` of `marks` (which are not boosted). `factor`
    /// is the largest boost, in parts of 10,000 of `high` (`vm.watermark_boost_factor`); 0: none.
    #[must_use]
    pub fn on_shortage(self, marks: Watermarks, factor: u64) -> Boost {
        let most = marks.high.saturating_mul(factor) / Setting::WHOLE;
        let step = (marks.high / 4).max(1);
        Boost(self.0.saturating_add(step).min(most))
    }

    /// The boost for a share of `frames` of the budget; half of the share, and the two units that an
    /// access may need, are for use whatever happens.
    pub fn of(self, marks: Watermarks, frames: u64) -> u64 {
        let most = (frames * UNIT_PAGES / 2).min(frames.saturating_sub(2) * UNIT_PAGES);
        self.0.min(most.saturating_sub(marks.high))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DEMANDS: [Demand; 3] = [Demand::Huge, Demand::Pages, Demand::PagesInTurn];

    #[test]
    fn ordered_and_below_the_budget() {
        for frames in 1..5000 {
            for w in DEMANDS.map(|d| Watermarks::for_demand(frames, d)) {
                assert!(w.low >= 1 && w.low <= w.high);
                // A request that uses no reserve finds something before kswapd sleeps.
                assert!(w.min < w.low);
                assert!(w.high <= frames * UNIT_PAGES);
                assert!(frames < 3 || frames * UNIT_PAGES - w.high >= 2 * UNIT_PAGES);
            }
        }
    }

    #[test]
    fn little_is_kept_free_for_base_pages() {
        let marks = |frames, demand| {
            let w = Watermarks::for_demand(frames, demand);
            (w.min, w.low, w.high)
        };
        for (demand, few, more) in [
            (Demand::Pages, (0, 256, 512), (192, 384, 768)),
            (Demand::PagesInTurn, (0, 48, 96), (24, 48, 96)),
        ] {
            assert_eq!(marks(4, demand), few);
            assert_eq!(marks(50, demand), more);
            assert_eq!(marks(50_000, demand), more);
        }
    }

    #[test]
    fn as_in_the_kernel() {
        // 1% from mark to mark above 64 MiB.
        let set = Setting {
            min_free_kbytes: 64 << 10,
            scale_factor: 100,
        };
        let marks = Watermarks::of(1000, Demand::Huge, set);
        let of = |units: u64| units * UNIT_PAGES;
        let pages = of(1000) / 100;
        assert_eq!(
            (marks.min, marks.low, marks.high),
            (of(32), of(32) + pages, of(32) + 2 * pages)
        );
        assert_eq!(
            Watermarks::of(1000, Demand::Pages, set),
            marks,
            "what is set holds for base pages too"
        );
        // Only one is set: the other follows from the budget.
        let auto = Watermarks::for_budget(1000);
        assert_eq!((auto.min, auto.low, auto.high), (of(16), of(32), of(64)));
        let only = |min_free_kbytes, scale_factor| {
            let set = Setting {
                min_free_kbytes,
                scale_factor,
            };
            let m = Watermarks::of(1000, Demand::Huge, set);
            (m.min, m.low, m.high)
        };
        assert_eq!(only(0, 0), (of(16), of(32), of(64)));
        assert_eq!(only(1, 0), (1, 1 + of(16), 1 + of(48)));
        assert_eq!(only(0, 200), (of(16), of(36), of(56)));
    }

    #[test]
    fn a_boost_ends() {
        let marks = Watermarks::for_budget(256);
        let mut boost = Boost::default();
        for expect in [8, 16, 24, 32, 40, 48, 48] {
            boost = boost.on_shortage(marks, 15_000);
            assert_eq!(boost, Boost(expect * UNIT_PAGES));
        }
        let raised = marks.boosted(boost.of(marks, 256));
        let raised = [raised.min, raised.low, raised.high].map(|pages| pages / UNIT_PAGES);
        assert_eq!(raised, [8, 64, 80]);
        assert_eq!(boost.on_shortage(marks, 0), Boost(0));
        assert_eq!(boost.of(marks, 70), 3 * UNIT_PAGES);
        let least = Watermarks::for_budget(3);
        assert_eq!(Boost::default().on_shortage(least, 20).of(least, 3), 0);
    }

    proptest! {
        #[test]
        fn whatever_is_set_most_is_for_use(
            frames in 1u64..5000,
            demand in proptest::sample::select(&DEMANDS[..]),
            min_free_kbytes in prop_oneof![Just(0), 1u64..1 << 40],
            scale_factor in 0u64..=3000,
            shortages in 0u32..20,
            factor in 0u64..100_000,
        ) {
            let set = Setting { min_free_kbytes, scale_factor };
            let plain = Watermarks::of(frames, demand, set);
            let mut boost = Boost::default();
            for _ in 0..shortages {
                boost = boost.on_shortage(plain, factor);
            }
            for w in [plain, plain.boosted(boost.of(plain, frames))] {
                let pages = frames * UNIT_PAGES;
                prop_assert!(w.min < w.low && w.low <= w.high && w.high <= pages);
                prop_assert!(frames < 3 || pages - w.high >= 2 * UNIT_PAGES);
                prop_assert!(frames < 8 || w.high <= pages / 2);
                let in_turn = demand == Demand::PagesInTurn;
                prop_assert!(in_turn || w.high - w.min >= UNIT_PAGES, "no huge page is to be had");
            }
        }
    }
}
