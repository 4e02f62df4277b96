//! Bad slots: what could not be read back, or written, is never used again.
//!
//! A slot of 4 KiB is *marked* when its read has failed, or has not verified, again and again, or
//! when its write has failed twice. Nothing is written to a marked slot, and what it holds can
//! still be read if the device gives it back after all. Otherwise it is lost, if it is nowhere
//! else: one page of a unit where units can be base-mapped, else the whole unit. A marked slot
//! stays in use when it is given up: alone in a split cluster, as long as the cluster's owner
//! lives. A whole cluster with a marked slot in it, and a split one when its owner is gone, then
//! belongs to nobody ([`clusters::quarantine`]) until the area goes.
//!
//! Concurrency: any thread that reads a slot may mark it, by one bit. Marks stay as long as the
//! area.

use super::PAGES;
use crate::checksum;
use crate::pool::Pool;
use hugeswap_policy::thp_swap::clusters;
use hugeswap_policy::{PAGE_BYTES, UNIT_BYTES};
use std::ops::Range;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

impl Pool {
    /// Marked slots of a cluster. Costs nothing as long as there is none anywhere.
    pub(crate) fn bad_slots(&self, cluster: u64, pages: Range<usize>) -> usize {
        if self.header().bad_bytes.load(Relaxed) == 0 {
            return 0;
        }
        let Some(map) = self.bad_map(cluster) else {
            return 0;
        };
        if map.iter().all(|w| w.load(Relaxed) == 0) {
            return 0;
        }
        let bad = |p: &usize| map[p / 64].load(Relaxed) >> (p % 64) & 1 == 1;
        pages.filter(|p| *p < PAGES).filter(bad).count()
    }

    /// Bytes of swap that are never used again.
    pub fn bad_bytes(&self) -> u64 {
        self.header().bad_bytes.load(Relaxed)
    }

    /// Marks a slot; false: it was.
    pub(crate) fn mark_bad(&self, cluster: u64, page: usize) -> bool {
        let Some(map) = self.bad_map(cluster).filter(|_| page < PAGES) else {
            return false;
        };
        let h = self.header();
        // First, so that a thread that finds the mark finds that there are some.
        h.bad_bytes.fetch_add(PAGE_BYTES, Relaxed);
        let bit = 1 << (page % 64);
        let marked = map[page / 64].fetch_or(bit, AcqRel) & bit == 0;
        if marked {
            h.losses.fetch_add(1, Relaxed);
        } else {
            h.bad_bytes.fetch_sub(PAGE_BYTES, Relaxed);
        }
        marked
    }

    /// A cluster of record `me`'s, which gives it up, is never claimed again if any of it is
    /// marked. False: it may be.
    pub(crate) fn quarantine(&self, cluster: u64, me: usize) -> bool {
        let bad = self.bad_slots(cluster, 0..PAGES) as u64;
        let taken =
            bad > 0 && clusters::quarantine(self.cluster_words(), cluster as usize, me as u16 + 1);
        if taken {
            let rest = UNIT_BYTES - bad * PAGE_BYTES;
            self.header().bad_bytes.fetch_add(rest, Relaxed);
        }
        taken
    }

    /// What record `me`, whose process is gone, has of bad clusters.
    pub(crate) fn quarantine_all_of(&self, me: usize) {
        if self.bad_bytes() == 0 {
            return;
        }
        for (i, w) in self.cluster_words().iter().enumerate() {
            if (w.load(Acquire) >> 16) as usize == me + 1 {
                self.quarantine(i as u64, me);
            }
        }
    }

    /// A cluster's area is gone, and with it what was bad there. `word` was the cluster's.
    pub(crate) fn forget_bad(&self, cluster: u64, word: u32) {
        let bad = self.bad_slots(cluster, 0..PAGES) as u64;
        let bytes = if clusters::is_bad(word) {
            UNIT_BYTES
        } else {
            bad * PAGE_BYTES
        };
        if bytes > 0 {
            self.header().bad_bytes.fetch_sub(bytes, Relaxed);
            let map = self.bad_map(cluster).into_iter().flatten();
            map.for_each(|w| w.store(0, Relaxed));
        }
    }
}

impl Pool {
    /// Is any of these slots bad?
    pub(crate) fn is_bad(&self, cluster: u64, pages: Range<usize>) -> bool {
        self.bad_slots(cluster, pages) > 0
    }

    pub(crate) fn is_bad_or_lost(&self, cluster: u64, pages: Range<usize>) -> bool {
        let sums = self.cluster_sums().get(cluster as usize);
        let lost = sums.and_then(|s| s.get(pages.clone()));
        self.is_bad(cluster, pages) || lost.is_some_and(checksum::any_lost)
    }

    /// Notes that what belongs in a slot is lost, if nothing is known of the slot.
    pub(crate) fn note_lost(&self, cluster: u64, at: usize) {
        let sums = self.cluster_sums().get(cluster as usize);
        if let Some(sum) = sums.and_then(|s| s.get(at)) {
            // First: see `mark_bad`.
            self.header().losses.fetch_add(1, Relaxed);
            checksum::lose(sum);
        }
    }

    /// Notes that a slot could not be written.
    pub(super) fn mark_unwritable(&self, cluster: u64, pages: Range<usize>) {
        for page in pages {
            self.mark_bad(cluster, page);
        }
    }

    /// Is what belongs in a slot lost, so that there is nothing that could be read from it?
    pub(crate) fn is_lost(&self, cluster: u64, at: usize) -> bool {
        let sums = self.cluster_sums().get(cluster as usize);
        sums.and_then(|s| s.get(at..at + 1))
            .is_some_and(checksum::any_lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::{FaultMode, PoolConfig, SwapSpec};

    #[test]
    fn bad_slots_are_nobodys_until_their_area_goes() {
        let mut spec = SwapSpec::new("/var/tmp");
        spec.size = Some(8 << 20);
        let pool = Pool::create(&PoolConfig {
            memory: 16 << 20,
            swap: vec![spec],
            fault_mode: FaultMode::Auto,
            settings: Vec::new(),
        })
        .unwrap();
        let me = pool.join().unwrap();
        let claim = || clusters::claim(pool.cluster_words(), me as u16 + 1, 0).map(|c| c as u64);
        let all: Vec<u64> = std::iter::from_fn(claim).collect();
        assert_eq!(all.len(), 4);
        assert!(pool.mark_bad(all[1], 7) && !pool.mark_bad(all[1], 7));
        assert!(pool.mark_bad(all[1], 511) && pool.mark_bad(all[2], 64));
        assert!(!pool.mark_bad(all[1], 512) && !pool.mark_bad(1 << 30, 0));
        assert_eq!(pool.bad_bytes(), 3 * PAGE_BYTES);
        assert_eq!(pool.bad_slots(all[1], 0..512), 2);
        assert_eq!(pool.bad_slots(all[1], 8..511), 0);
        assert!(!pool.quarantine(all[0], me), "nothing is bad there");
        assert!(pool.quarantine(all[1], me) && !pool.quarantine(all[1], me));
        assert_eq!(pool.bad_bytes(), UNIT_BYTES + PAGE_BYTES);
        // The process goes, and leaves the other one.
        pool.retire(me);
        assert_eq!(pool.bad_bytes(), 2 * UNIT_BYTES);
        let u = pool.swap_usage();
        assert_eq!((u.free, u.bad, u.used_bytes()), (2, 2, 0));
        for c in all {
            let word = &pool.cluster_words()[c as usize];
            pool.forget_bad(c, word.swap(0, Relaxed));
        }
        assert_eq!((pool.bad_bytes(), pool.swap_usage().free), (0, 4));
        assert!((0..4).all(|c| pool.bad_slots(c, 0..512) == 0));
    }
}
