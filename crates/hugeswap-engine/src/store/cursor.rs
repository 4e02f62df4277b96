//! Where in an area a process claims clusters: from a place of its own on, and not far beyond as many
//! as it has in use. So what has been freed is used again, and the page sums of clusters of long ago
//! do not stay in memory.

use hugeswap_policy::extents::layout::Order;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};

/// How far clusters are claimed in sequence: as far as those in use would reach side by side, a
/// quarter of that, and so many.
const REACH: u64 = 32;

/// Which of the free clusters near a process's others a claim takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fit {
    /// The next one in sequence: a stream of units is read in that order.
    Next,
    /// The first one. A split cluster is read here and there, and what was never used has no sums of
    /// pages in memory.
    First,
}

/// Where this process claims in one area.
#[derive(Default)]
pub(super) struct Cursor {
    /// Where it goes on, from the area's first cluster.
    pub hint: AtomicU64,
    /// Clusters claimed and not given back.
    pub owned: AtomicI64,
    /// A claim found nothing lately.
    pub full: AtomicBool,
}

impl Cursor {
    /// Where to look in an area: on from the last one, but not far beyond what is in use. Processes
    /// begin apart from each other, so that each is laid out in sequence.
    pub fn order(&self, me: usize, area: &Range<u64>, grow: bool, fit: Fit) -> Order {
        let clusters = area.end - area.start;
        let start = me as u64 * clusters / 16 % clusters.max(1);
        let hint = self.hint.load(Relaxed);
        let owned = self.owned.load(Relaxed).max(0) as u64;
        let reach = owned + owned / 4 + REACH;
        // A claim that found nothing before the end went on at the beginning.
        let near = fit == Fit::Next && hint.checked_sub(start).is_some_and(|d| d < reach);
        let at = |n: u64| (area.start + n) as usize;
        Order {
            within: at(0)..at(clusters),
            near: at(start)..at(start + reach),
            from: at(if near { hint } else { start }),
            far: at(hint),
            grow,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_clusters_are_the_next_and_split_ones_the_first() {
        let cursor = Cursor::default();
        cursor.hint.store(30, Relaxed);
        let order = |fit| cursor.order(0, &(100..1100), false, fit);
        assert_eq!(order(Fit::Next).from, 130);
        assert_eq!(order(Fit::First).from, 100);
        assert_eq!(order(Fit::First).near, order(Fit::Next).near);
        // Far beyond what is in use the sequence begins again.
        cursor.hint.store(40, Relaxed);
        assert_eq!(order(Fit::Next).from, 100);
        cursor.owned.store(200, Relaxed);
        assert_eq!(order(Fit::Next).from, 140);
        assert_eq!(order(Fit::First).from, 100);
    }
}
