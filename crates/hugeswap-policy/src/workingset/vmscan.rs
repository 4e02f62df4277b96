//! How reclaim divides its work between the active and the inactive list, between kinds of pages
//! and between groups, and how hard it tries.
//!
//! Plain arithmetic on page counts; [`crate::workingset::lruvec`] keeps the lists.
//!
//! Sources: the Linux kernel's `mm/vmscan.c` (`inactive_is_low`, `get_scan_count` with scanned and
//! rotated, scan priority) and `mm/memcontrol.c` (`memory.min`, `memory.high`).

use crate::{PAGE_BYTES, UNIT_PAGES};

/// Pages that the inactive list gets unless that is more than a third: four streams with full
/// readahead windows, the watched units, and as many on their way out.
const INACTIVE_WANTED: u64 = 128 * UNIT_PAGES;

/// The number of pages that the inactive list should have of `total`. As in the kernel, one part in
/// 1 + ratio, where the ratio is the square root of ten times the gigabytes. It has room for a few
/// streams however small that is, but no more than a third. (The kernel gives half of less than a
/// gigabyte. A hot set of half of memory then never fits, since some of memory is always being
/// reclaimed.)
pub fn inactive_target(total: u64) -> u64 {
    let gigabytes = total / ((1 << 30) / PAGE_BYTES);
    let ratio = (10 * gigabytes).isqrt().max(LEAST_RATIO);
    (total / (1 + ratio)).max(INACTIVE_WANTED.min(total / (1 + LEAST_RATIO)))
}

/// Smallest ratio of active to inactive pages.
const LEAST_RATIO: u64 = 2;

/// The effort of scanning: [`Priority::DEFAULT`] looks at one part in 4096 of a list at a time, 0
/// at all of it. The number falls, and the effort rises, only while reclaim fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority(u8);

impl Priority {
    /// The effort at first, and after each success.
    pub const DEFAULT: Priority = Priority(12);

    /// The effort after a round of reclaim; `progress` says that it freed memory.
    #[must_use]
    pub fn after(self, progress: bool) -> Priority {
        match progress {
            true => Priority::DEFAULT,
            false => Priority(self.0.saturating_sub(1)),
        }
    }

    /// Number of units of a list of `len` to look at, at least one if there is one.
    pub fn scan(self, len: usize) -> usize {
        (len >> self.0).max(len.min(1))
    }

    /// True if it is time to take active units whatever the ratio says, since the inactive ones
    /// cannot be reclaimed.
    pub fn may_deactivate(self) -> bool {
        self.0 + 2 < Priority::DEFAULT.0
    }
}

/// Kinds of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// Anonymous: its place is in swap.
    Anon = 0,
    /// Of a mapped file.
    File = 1,
}

impl PageKind {
    /// Both kinds.
    pub const ALL: [PageKind; 2] = [PageKind::Anon, PageKind::File];
}

/// How much the pages of each kind turn out to be in use, from the numbers scanned and put back.
#[derive(Clone, Debug, Default)]
pub struct Balance {
    scanned: [u64; 2],
    rotated: [u64; 2],
    /// What each kind is owed, in pages x [`ONE`].
    owed: [i64; 2],
}

/// One page, in units of what is owed.
const ONE: u64 = 1 << 16;

impl Balance {
    /// Notes that reclaim looked at pages of a kind, of which the lists have `total`. Older counts
    /// fade: they are halved when they exceed a quarter of the lists.
    pub fn on_scanned(&mut self, kind: PageKind, pages: u64, total: u64) {
        let k = kind as usize;
        self.scanned[k] += pages;
        if self.scanned[k] > (total / 4).max(UNIT_PAGES) {
            self.scanned[k] /= 2;
            self.rotated[k] /= 2;
        }
    }

    /// Notes that pages of a kind were put back, since they are in use.
    pub fn on_rotated(&mut self, kind: PageKind, pages: u64) {
        self.rotated[kind as usize] += pages;
    }

    /// Counts new anonymous pages as scanned and in use; otherwise a growing heap would look as if
    /// it were never used.
    pub fn on_new(&mut self, pages: u64, total: u64) {
        self.on_scanned(PageKind::Anon, pages, total);
        self.on_rotated(PageKind::Anon, pages);
    }

    /// The share of anonymous pages in what is to be reclaimed, in parts of [`ONE`]. `swappiness`
    /// goes from 0 (only files) to 200 (only anonymous pages); 100 treats both alike.
    pub fn anon_share(&self, swappiness: u64) -> u64 {
        let swappiness = swappiness.min(200);
        let weight = |part: u64, k: usize| {
            u128::from(part) * u128::from(self.scanned[k] + 1) / u128::from(self.rotated[k] + 1)
        };
        // Scaled, so that small quotients count.
        let anon = weight(swappiness << 16, 0);
        let file = weight((200 - swappiness) << 16, 1);
        match anon + file {
            0 => ONE / 2,
            all => (anon * u128::from(ONE) / all) as u64,
        }
    }

    /// The kind that the next pages are taken of, where there are some of both; `pages` is about
    /// how many that will be.
    pub fn choose(&mut self, swappiness: u64, pages: u64) -> PageKind {
        let anon = self.anon_share(swappiness);
        let pages = pages.max(1);
        self.owed[0] += (pages * anon) as i64;
        self.owed[1] += (pages * (ONE - anon)) as i64;
        let kind = if self.owed[0] >= self.owed[1] && anon > 0 {
            PageKind::Anon
        } else {
            PageKind::File
        };
        self.owed[kind as usize] -= (pages * ONE) as i64;
        let bound = (64 * UNIT_PAGES * ONE) as i64;
        self.owed
            .iter_mut()
            .for_each(|o| *o = (*o).clamp(-bound, bound));
        kind
    }
}

/// The limits of a group of regions, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The group is not reclaimed for others while it has no more than this.
    pub min: u64,
    /// The group is reclaimed first while it has more than this.
    pub high: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            min: 0,
            high: u64::MAX,
        }
    }
}

impl Limits {
    /// Pages above `high` of a group that has `used`.
    pub fn excess(&self, used: u64) -> u64 {
        used.saturating_sub(self.high)
    }

    /// Pages that may be reclaimed for others.
    pub fn reclaimable(&self, used: u64) -> u64 {
        used.saturating_sub(self.min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_inactive_share_shrinks_as_memory_grows() {
        let gib = (1 << 30) / PAGE_BYTES;
        assert_eq!(inactive_target(99), 33);
        assert_eq!(inactive_target(gib - 1), (gib - 1) / 3);
        assert_eq!(inactive_target(gib), gib / 4, "root of ten is three");
        assert_eq!(inactive_target(10 * gib), 10 * gib / 11);
        assert_eq!(inactive_target(100 * gib), 100 * gib / 32);
    }

    #[test]
    fn effort_rises_only_as_reclaim_fails() {
        let mut p = Priority::DEFAULT;
        assert_eq!(p.scan(8192), 2);
        assert_eq!((p.scan(3), p.scan(0)), (1, 0));
        for _ in 0..20 {
            p = p.after(false);
        }
        assert_eq!(p.scan(8192), 8192);
        assert!(p.may_deactivate());
        assert_eq!(p.after(true), Priority::DEFAULT);
        assert!(!Priority::DEFAULT.may_deactivate());
    }

    /// Anonymous pages among 10,000.
    fn taken(b: &mut Balance, swappiness: u64) -> u64 {
        (0..10_000)
            .filter(|_| b.choose(swappiness, 1) == PageKind::Anon)
            .count() as u64
    }

    #[test]
    fn swappiness_alone_divides_what_is_used_alike() {
        let mut b = Balance::default();
        assert_eq!(taken(&mut b, 100), 5_000);
        assert_eq!(taken(&mut b, 0), 0);
        assert_eq!(taken(&mut b, 200), 10_000);
        assert!(taken(&mut b, 60).abs_diff(3_000) < 20);
    }

    #[test]
    fn the_kind_that_is_in_use_is_spared() {
        let mut b = Balance::default();
        b.on_scanned(PageKind::Anon, 1000, 1 << 20);
        b.on_rotated(PageKind::Anon, 900);
        b.on_scanned(PageKind::File, 1000, 1 << 20);
        b.on_rotated(PageKind::File, 10);
        assert!(taken(&mut b, 100) < 200);
    }

    #[test]
    fn new_anonymous_pages_do_not_tilt_the_balance() {
        let mut b = Balance::default();
        b.on_scanned(PageKind::Anon, 100, 1 << 20);
        b.on_rotated(PageKind::Anon, 90);
        b.on_scanned(PageKind::File, 100, 1 << 20);
        b.on_rotated(PageKind::File, 90);
        for _ in 0..50 {
            b.on_new(512, 1 << 20);
        }
        assert!(b.anon_share(100).abs_diff(ONE / 2) < ONE / 10);
    }

    proptest! {
        #[test]
        fn shares_are_shares(ops in proptest::collection::vec((0u8..4, 0u64..100_000), 0..50), swappiness in 0u64..=200) {
            let mut b = Balance::default();
            for (op, n) in ops {
                match op {
                    0 => b.on_scanned(PageKind::Anon, n, 1 << 18),
                    1 => b.on_scanned(PageKind::File, n, 1 << 18),
                    2 => b.on_rotated(PageKind::Anon, n),
                    _ => b.on_rotated(PageKind::File, n),
                }
                prop_assert!(b.anon_share(swappiness) <= ONE);
            }
            // The choices over time add up to the share.
            let share = b.anon_share(swappiness);
            let anon = (0..4096).filter(|_| b.choose(swappiness, 1) == PageKind::Anon).count() as u64;
            prop_assert!(anon.abs_diff(4096 * share / ONE) <= 1);
        }
    }
}
