//! Whole clusters found again: pages of scattered units move from split clusters with little in
//! them to others, and units that have a cluster for a few pages give up the rest of it.
//!
//! kswapd does it: a few times a second while more than half of all split clusters is empty (two
//! thirds, while half of swap is free), and whenever a claim has found no free cluster. In the latter case it also splits the clusters of
//! base-mapped units that have at most half of their cluster stored, and writes what is left of packed
//! clusters that are split anew, not packed. Pages move under their unit's
//! lock, from slots that no other process reads (not while a forked child may). A slot that is
//! given up was written elsewhere before, so nothing is lost when it stops halfway.

use super::PAGES;
use crate::reclaim::Reclaim;
use hugeswap_policy::unit::{Kind, Place, WRITEBACK, Word};
use std::sync::atomic::Ordering::Acquire;

/// Clusters emptied at one time.
const VICTIMS: usize = 16;
/// A unit with a cluster of its own for at most so many pages gives up the rest when clusters are
/// short.
const SPARSE: u64 = PAGES as u64 / 2;

/// Split clusters to be emptied.
#[derive(Default)]
struct Victims {
    at: [(u32, u64); VICTIMS],
    n: usize,
}

impl Victims {
    fn has(&self, cluster: u64) -> bool {
        self.at[..self.n].iter().any(|v| v.1 == cluster)
    }

    /// Keeps those with the least in use.
    fn offer(&mut self, used: u32, cluster: u64) {
        if self.n < VICTIMS {
            self.at[self.n] = (used, cluster);
            self.n += 1;
        } else if let Some(most) = self.at.iter_mut().max()
            && most.0 > used
        {
            *most = (used, cluster);
        }
    }
}

impl Reclaim {
    /// Has whole clusters found, if a claim has missed them. False if there was nothing to do.
    pub(crate) fn find_clusters(&self) -> bool {
        if !self.store.was_short() {
            return false;
        }
        let split = self.split_sparse() | self.unpack_some();
        let found = self.compact(u32::MAX, 4 * PAGES as u64);
        if found || split {
            self.store.note_full(false);
            self.note_available();
        }
        found || split
    }

    /// Empties split clusters of which little is used, where too much of all split ones is empty.
    ///
    /// Where pages are written at random, and the cluster that was filled longest ago is emptied, the
    /// share v of it that is in use follows from the mean u: u = (v - 1) / ln v. That is 6 in 100 to
    /// be moved where a third is in use, and 20 where half is.
    pub(crate) fn tidy_clusters(&self) {
        const FEW: u64 = 4;
        /// Pages at a time: faults may wait for memory meanwhile.
        const LIMIT: u64 = PAGES as u64 / 2;
        if !self.store.scatter.was_used() || self.somebody_waits() {
            return;
        }
        let (empty, parts) = if self.store.has_room_to_move() {
            (2, 3)
        } else {
            (1, 2)
        };
        let clusters = self.pool.clusters(self.pool.me());
        let (mut split, mut room) = (0, 0);
        let of = |i: usize| clusters.room(i).filter(|_| !self.pool.is_packed(i as u64));
        for r in (0..clusters.len()).filter_map(of) {
            split += 1;
            room += u64::from(r);
        }
        if split > FEW && room * parts > split * PAGES as u64 * empty {
            self.compact(PAGES as u32 / 4, LIMIT);
        }
    }

    /// Empties split clusters with at most `most` slots in use, as far as the others have room, but
    /// moves no more than `limit` pages. True if any is free now.
    fn compact(&self, most: u32, limit: u64) -> bool {
        let clusters = self.pool.clusters(self.pool.me());
        let mut victims = Victims::default();
        let mut room = 0;
        for (i, free) in (0..clusters.len()).filter_map(|i| Some((i, clusters.room(i)?))) {
            let used = PAGES as u32 - free;
            // (A packed one takes in nothing.)
            if !self.pool.is_packed(i as u64) {
                room += u64::from(free);
            }
            // What a forked child may read would stay where it is besides.
            let stays = self.store.kept.may_be_read(i as u64);
            if used > 0 && used <= most && !stays {
                victims.offer(used, i as u64);
            }
        }
        // What the emptiest hold must fit into what the others have free.
        victims.at[..victims.n].sort_unstable();
        let mut moved = 0;
        let mut n = 0;
        for &(used, victim) in &victims.at[..victims.n] {
            if !self.pool.is_packed(victim) {
                room -= u64::from(PAGES as u32 - used);
            }
            moved += u64::from(used);
            if moved > room.min(limit) {
                break;
            }
            n += 1;
        }
        victims.n = n;
        if n == 0 {
            return false;
        }
        let buffer = self.base.take_buffer();
        for unit in 0..self.high_unit.load(Acquire) {
            let scattered = |w: Word| w.place() == Place::Singles && !w.has(WRITEBACK);
            let Some(w) = self.table.try_lock_if(unit, scattered) else {
                continue;
            };
            let moves = |cluster| victims.has(cluster);
            // Never a cluster split for it: nothing would be won.
            let claim = |want| self.store.claim_partial(want, |i| victims.has(i as u64));
            let went = match self.store.scatter.of(unit) {
                Some(places) => self.store.move_singles(places, moves, claim, buffer.addr()),
                None => true,
            };
            w.settle();
            if !went {
                break;
            }
        }
        let gone = |v: &(u32, u64)| clusters.room(v.1 as usize).is_none();
        victims.at[..n].iter().any(gone)
    }

    /// Packed clusters of scattered units are written anew, not packed, so that what else has a slot
    /// there is free. True if any was.
    fn unpack_some(&self) -> bool {
        const AT_A_TIME: usize = 16;
        let mut n = 0;
        for unit in 0..self.high_unit.load(Acquire) {
            let scattered = |w: Word| w.place() == Place::Singles && !w.has(WRITEBACK);
            let Some(w) = self.table.try_lock_if(unit, scattered) else {
                continue;
            };
            let places = self.store.scatter.of(unit);
            if let Some((cluster, slots)) = places.and_then(|p| self.store.packed_part(p))
                && !slots.all()
            {
                n += usize::from(self.store.write_as_it_is(cluster, &slots));
            }
            w.settle();
            if n == AT_A_TIME {
                break;
            }
        }
        n > 0
    }

    /// Units that are base-mapped and have a cluster for a few pages become scattered where they
    /// are: the rest of their clusters is free for single slots. True if any has.
    fn split_sparse(&self) -> bool {
        const AT_A_TIME: usize = 256;
        let mut n = 0;
        for unit in 0..self.high_unit.load(Acquire) {
            let sparse = |w: Word| {
                w.kind() == Kind::Base
                    && w.cluster().is_some_and(|c| self.pool.owns_cluster(c))
                    && self.base.records.of(unit).stored.count() <= SPARSE
            };
            let Some(mut w) = self.table.try_lock_if(unit, sparse) else {
                continue;
            };
            let record = self.base.records.of(unit);
            let split = self.split_place(&mut w, record);
            w.settle();
            n += usize::from(split);
            if n == AT_A_TIME {
                break;
            }
        }
        n > 0
    }
}
