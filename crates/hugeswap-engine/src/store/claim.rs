//! Places in swap, as this process claims them and gives them up: whole clusters of 2 MiB, and
//! single slots of 4 KiB of clusters that are split (`hugeswap_policy::thp_swap::clusters`).
//!
//! A cluster is free, *whole* (it belongs to one unit) or *split*: its 512 slots are handed out
//! singly, by a bitmap, without a lock. A split cluster belongs to one process, as a whole one
//! does. When its last slot is given up it is free, and any process can have it whole again. Three
//! rules keep clusters whole:
//!
//! * A cluster is split for single slots only when no split cluster of this process has room.
//! * Pages go to the fullest split cluster that has room for all that is written at once, into the
//!   shortest run that is long enough, up to 16 of them by one write. So others empty.
//! * A scattered unit ([`scatter`]) that grows past half gets a cluster of its own when it is
//!   written next.
//!
//! A packed cluster ([`pack`](super::pack)) that is split takes no other slots until it is free.
//!
//! Where split clusters are mostly empty, or whole ones short, `swap::compact` moves pages
//! together. A write that found no room is tried again after that.
//!
//! Areas of the highest priority are filled first, those of the same priority in turn. In each, a
//! process claims clusters from a place of its own on ([`cursor`](super::cursor)). Clusters that lie in one piece on their device are claimed first
//! (`pool::extents`).
//!
//! Concurrency: a unit's place changes under the unit's lock. What a forked child may read is
//! neither overwritten nor given back before no such child is left ([`kept`](super::kept)).

use super::batch::Run;
use super::cursor::{Cursor, Fit};
use super::kept::Given;
use super::scatter::{self, Places, Single};
use super::{BUFFER, PAGE, PAGES, Store};
use crate::lock::Lock;
use crate::pool::JoinedArea;
use crate::pool::layout::{MAX_AREAS, NOBODY};
use hugeswap_policy::counters::Counter;
use hugeswap_policy::extents::layout::{Layout, Order};
use hugeswap_policy::thp_swap::clusters;
use hugeswap_policy::thp_swap::slots::Partial;
use hugeswap_policy::unit::Place;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};

/// How often a claim looks on after what it found has turned out to have no room on its disk.
const TRIES: usize = 2 * MAX_AREAS;

/// Where this process claims.
pub(super) struct Claims {
    partial: Lock<Partial>,
    /// By area.
    cursors: [Cursor; MAX_AREAS],
    /// Counts claims, so that areas of one priority take turns.
    turn: AtomicU32,
    /// A claim found no free cluster.
    short: AtomicBool,
}

impl Claims {
    /// Nothing claimed.
    pub fn new() -> Claims {
        Claims {
            partial: Lock::new(Partial::default()),
            cursors: Default::default(),
            turn: AtomicU32::new(0),
            short: AtomicBool::new(false),
        }
    }

    /// In a forked child, which owns nothing yet.
    pub fn begin(&self) {
        for c in &self.cursors {
            c.hint.store(0, Relaxed);
            c.owned.store(0, Relaxed);
        }
        self.partial.lock().clear();
    }
}

impl Store {
    /// Claims a cluster by `claim`, which is told where in an area to look, and tells where it
    /// found one: in the areas of the highest priority that have any, in turn; not in those of
    /// which `avoid` has the bit.
    fn claim_in_areas(
        &self,
        avoid: u32,
        fit: Fit,
        claim: impl Fn(Order) -> Option<usize>,
    ) -> Option<u64> {
        // What fails is better than nothing, but for what is gone.
        let (troubled, gone) = self.pool.troubled();
        let found = self.claim_in(avoid | troubled, fit, &claim);
        if found.is_some() || troubled & !gone & !avoid == 0 {
            return found;
        }
        self.claim_in(avoid | gone, fit, &claim)
    }

    fn claim_in(
        &self,
        avoid: u32,
        fit: Fit,
        claim: &impl Fn(Order) -> Option<usize>,
    ) -> Option<u64> {
        let p = &self.claims;
        let turn = p.turn.fetch_add(1, Relaxed) as usize;
        // Those that had nothing lately come last.
        for full in [false, true] {
            let fits = |i: usize| {
                avoid >> i & 1 == 0 && p.cursors[i].full.load(Relaxed) == full && self.pool.is_on(i)
            };
            let mut below = i64::MAX;
            loop {
                let level = |i: usize| i64::from(self.pool.priority(i));
                let areas = || self.pool.areas().filter(|&(i, _)| fits(i));
                let lower = areas().map(|(i, _)| level(i)).filter(|&l| l < below);
                let Some(now) = lower.max() else { break };
                let of_it = || areas().filter(|&(i, _)| level(i) == now);
                let first = turn % of_it().count().max(1);
                for (i, area) in of_it().skip(first).chain(of_it().take(first)) {
                    // A thread that claims writes, but perhaps not yet to an area that has just
                    // come.
                    if !self.pool.is_in_reach(i) {
                        continue;
                    }
                    let cursor = &p.cursors[i];
                    let Some(found) = claim(cursor.order(
                        self.pool.me(),
                        &area.range(),
                        self.pool.may_grow(i),
                        fit,
                    )) else {
                        cursor.full.store(true, Relaxed);
                        continue;
                    };
                    cursor.full.store(false, Relaxed);
                    if fit == Fit::Next {
                        let next = found as u64 + 1 - area.first_cluster;
                        cursor.hint.store(next, Relaxed);
                    }
                    cursor.owned.fetch_add(1, Relaxed);
                    self.kept.claim(found);
                    self.pool.set_packed(found as u64, false);
                    if self.pool.still_on(i) {
                        return Some(found as u64);
                    }
                    self.release_late(i, found);
                }
                below = now;
            }
        }
        None
    }

    /// Where this process's next claim in an area is likely to be; `None`: it has nothing there.
    pub(crate) fn next_claim(&self, index: usize, area: &JoinedArea) -> Option<u64> {
        let cursor = self.claims.cursors.get(index)?;
        let used = cursor.owned.load(Relaxed) > 0 && self.pool.is_on(index);
        used.then(|| {
            cursor
                .order(self.pool.me(), &area.range(), true, Fit::Next)
                .from as u64
        })
    }

    /// Clusters that this process has in an area.
    pub(crate) fn owned_in(&self, index: usize) -> u64 {
        let cursor = self.claims.cursors.get(index);
        cursor.map_or(0, |c| c.owned.load(Relaxed).max(0) as u64)
    }

    /// Gives back a cluster claimed in an area that is being taken off. (Perhaps it was too late
    /// even for that, and the cluster's word says nothing any more.)
    fn release_late(&self, area: usize, cluster: usize) {
        let clusters = self.pool.clusters(self.pool.me());
        if clusters.is_ours(cluster) {
            clusters.free(cluster, 0..PAGES);
        } else if self.pool.owns_cluster(cluster as u64) {
            clusters::release(
                self.pool.cluster_words(),
                cluster,
                self.pool.me() as u16 + 1,
            );
        }
        self.claims.cursors[area].owned.fetch_sub(1, Relaxed);
    }

    /// A few times a second: other processes may have given back something.
    pub(crate) fn look_again_for_clusters(&self) {
        let cursors = self.claims.cursors.iter();
        cursors.for_each(|c| c.full.store(false, Relaxed));
    }

    /// A cluster of this process's is free.
    pub(crate) fn not_owned(&self, cluster: u64) {
        if let Some((i, _)) = self.pool.locate(cluster) {
            let cursor = &self.claims.cursors[i];
            cursor.owned.fetch_sub(1, Relaxed);
            cursor.full.store(false, Relaxed);
        }
    }

    /// Claims a whole cluster, one in one piece on its device as long as there are any; if there is
    /// none at all, kswapd looks for what could make one.
    pub(crate) fn claim_cluster(&self) -> Option<u64> {
        self.claim_cluster_but(0)
    }

    /// [`Store::claim_cluster`], not in areas of which `avoid` has the bit, if others have any.
    pub(crate) fn claim_cluster_but(&self, avoid: u32) -> Option<u64> {
        if self.pool.me() == NOBODY {
            return None;
        }
        let (words, me) = (self.pool.cluster_words(), self.pool.me() as u16 + 1);
        let take = |i| clusters::claim_at(words, me, i);
        let whole = |order: Order| {
            self.pool
                .layouts()
                .find(words, &order, Layout::Contiguous, take)
        };
        // An area without room is passed over from then on.
        for _ in 0..TRIES {
            let found = match self.claim_in_areas(avoid, Fit::Next, whole) {
                None if avoid != 0 => self.claim_in_areas(0, Fit::Next, whole),
                found => found,
            };
            match found {
                Some(cluster) if self.pool.has_blocks(cluster) => return found,
                Some(cluster) => self.release_cluster(cluster),
                None => break,
            }
        }
        self.note_short();
        None
    }

    /// Has a claim found no free cluster since this was asked last?
    pub(crate) fn was_short(&self) -> bool {
        self.claims.short.swap(false, Relaxed)
    }

    fn note_short(&self) {
        self.note_full(true);
        if !self.claims.short.swap(true, Relaxed) {
            self.pool.kick();
        }
    }

    /// Claims up to `want` neighbouring single slots of clusters that are split already, and that
    /// `avoid` does not name.
    pub(crate) fn claim_partial(
        &self,
        want: usize,
        avoid: impl Fn(usize) -> bool,
    ) -> Option<(u64, Range<usize>)> {
        self.claim_of(&mut self.claims.partial.lock(), want, avoid)
    }

    fn claim_of(
        &self,
        partial: &mut Partial,
        want: usize,
        avoid: impl Fn(usize) -> bool,
    ) -> Option<(u64, Range<usize>)> {
        if self.pool.me() == NOBODY {
            return None;
        }
        let clusters = self.pool.clusters(self.pool.me());
        let areas = self.pool.areas();
        let in_reach = areas
            .filter(|&(i, _)| self.pool.is_in_reach(i))
            .fold(0u32, |bits, (i, _)| bits | 1 << i);
        let is_in_reach = |cluster| {
            let area = self.pool.locate(cluster);
            area.is_some_and(|(i, _)| in_reach >> i & 1 == 1)
        };
        let avoid = |i: usize| {
            let cluster = i as u64;
            avoid(i)
                || self.pool.is_draining(cluster)
                || self.pool.avoids(cluster)
                || self.pool.is_packed(cluster)
                || !is_in_reach(cluster)
        };
        while let Some(i) = partial.choose(&clusters, want, avoid) {
            if let Some(run) = self.claim_from(i as u64, want) {
                return Some((i as u64, run));
            }
        }
        None
    }

    /// May single slots of a cluster be claimed?
    pub(super) fn takes_singles(&self, cluster: u64) -> bool {
        let area = self.pool.locate(cluster);
        !self.pool.is_draining(cluster)
            && !self.pool.avoids(cluster)
            && !self.pool.is_packed(cluster)
            && area.is_some_and(|(i, _)| self.pool.is_in_reach(i))
    }

    /// Claims up to `want` neighbouring single slots of a split cluster.
    pub(super) fn claim_from(&self, cluster: u64, want: usize) -> Option<Range<usize>> {
        let clusters = self.pool.clusters(self.pool.me());
        let run = clusters.claim(cluster as usize, want)?;
        // (It may have been freed, and had again, since it was chosen.)
        if self.pool.is_packed(cluster) {
            self.release_singles(cluster, run);
            return None;
        }
        // As after the claim of a cluster.
        if let Some((area, _)) = self.pool.locate(cluster)
            && self.pool.still_on(area)
        {
            return Some(run);
        }
        self.release_singles(cluster, run);
        None
    }

    /// Splits a free cluster, one of that layout if there is any, and claims its first `want` slots.
    pub(super) fn open_cluster(&self, want: usize, layout: Layout) -> Option<u64> {
        if self.pool.me() == NOBODY {
            return None;
        }
        let clusters = self.pool.clusters(self.pool.me());
        let open = |i| clusters.open_at(i, want);
        self.claim_in_areas(0, Fit::First, |mut order| {
            order.within.end = order.within.end.min(scatter::CLUSTERS as usize);
            let words = self.pool.cluster_words();
            self.pool.layouts().find(words, &order, layout, open)
        })
    }

    /// Claims up to `want` neighbouring single slots.
    pub(crate) fn claim_singles(&self, want: usize) -> Option<(u64, Range<usize>)> {
        for _ in 0..TRIES {
            let (cluster, run) = self.claim_singles_anywhere(want)?;
            if self.pool.has_blocks(cluster) {
                return Some((cluster, run));
            }
            self.release_singles(cluster, run);
        }
        None
    }

    fn claim_singles_anywhere(&self, want: usize) -> Option<(u64, Range<usize>)> {
        let mut partial = self.claims.partial.lock();
        if let Some(found) = self.claim_of(&mut partial, want, |_| false) {
            return Some(found);
        }
        // With the lock held: two threads that look at once open one. Single slots lose nothing where
        // the cluster is in pieces.
        let Some(i) = self.open_cluster(want, Layout::Fragmented) else {
            self.note_short();
            return None;
        };
        partial.remember(i as u32);
        Some((i, 0..want))
    }

    /// May a cluster be overwritten by what is to be there next? Not what a forked child may read;
    /// not what is about to leave its area; and not what is bad.
    pub(crate) fn may_overwrite_cluster(&self, cluster: u64) -> bool {
        self.may_write_to(cluster) && !self.pool.is_bad(cluster, 0..PAGES)
    }

    fn may_write_to(&self, cluster: u64) -> bool {
        self.pool.owns_cluster(cluster)
            && !self.kept.may_be_read(cluster)
            && !self.pool.is_draining(cluster)
    }

    /// As [`Store::may_overwrite_cluster`], a single slot: none of a packed cluster.
    pub(crate) fn may_overwrite(&self, s: Single) -> bool {
        self.may_write_to(s.cluster)
            && !self.pool.is_packed(s.cluster)
            && !self.pool.is_bad(s.cluster, s.at..s.at + 1)
    }

    /// Gives up the place of a locked unit, which its word no longer has once it is unlocked: at
    /// once, or when no forked child can read it any more.
    pub(crate) fn free_place(&self, unit: u32, place: Place) {
        match place {
            Place::Cluster(cluster) => self.free_cluster(cluster),
            Place::Singles => {
                if let Some(places) = self.scatter.of(unit) {
                    self.free_pages(places, 0..PAGES);
                }
            }
            Place::Nothing | Place::File(_) => {}
        }
    }

    /// Loses the place of a locked unit: it is never used again, for what is wrong with it may be
    /// the device.
    pub(crate) fn lose_place(&self, unit: u32, place: Place) {
        if place == Place::Singles
            && let Some(places) = self.scatter.of(unit)
        {
            places.clear();
        }
    }

    /// Gives up a cluster, at once or when no forked child can read it any more.
    pub(crate) fn free_cluster(&self, cluster: u64) {
        if self.pool.owns_cluster(cluster) {
            self.give_up(Given::Cluster(cluster));
        }
    }

    /// Gives up the slots that some pages of a scattered unit are in.
    pub(crate) fn free_pages(&self, places: &Places, pages: Range<usize>) {
        let mut page = pages.start;
        while page < pages.end {
            let Some((cluster, run)) = places.run(page..pages.end) else {
                page += 1;
                continue;
            };
            for p in page..page + run.len() {
                places.put(p, None);
            }
            page += run.len();
            self.free_singles(cluster, run);
        }
    }

    pub(crate) fn free_singles(&self, cluster: u64, run: Range<usize>) {
        if self.pool.owns_cluster(cluster) && !run.is_empty() {
            self.give_up(Given::Singles(cluster, run.start as u16, run.end as u16));
        }
    }

    fn give_up(&self, what: Given) {
        if !self.kept.keep(what) {
            self.release(what);
        }
    }

    /// Gives back what was put aside for forked children that are gone.
    pub(crate) fn release_kept(&self) {
        let children = self.pool.forks_of_children(self.pool.me());
        let kept = &self.kept;
        kept.note_children(children, |what| self.release(what));
    }

    /// No child reads what was put aside of the clusters in `range`.
    pub(crate) fn release_kept_in(&self, range: &Range<u64>) {
        let kept = &self.kept;
        kept.release(|c| range.contains(&c), |what| self.release(what));
    }

    fn release(&self, what: Given) {
        match what {
            Given::Cluster(c) => self.release_cluster(c),
            Given::Singles(c, from, to) => self.release_singles(c, from.into()..to.into()),
        }
        self.note_full(false);
    }

    /// Gives back a cluster of this process's that no child reads.
    pub(crate) fn release_cluster(&self, cluster: u64) {
        self.forget_stored(cluster, 0..PAGES);
        if self.pool.quarantine(cluster, self.pool.me()) {
            return self.not_owned(cluster);
        }
        if clusters::release(
            self.pool.cluster_words(),
            cluster as usize,
            self.pool.me() as u16 + 1,
        ) {
            self.not_owned(cluster);
        }
    }

    /// As [`Store::release_cluster`], single slots.
    pub(crate) fn release_singles(&self, cluster: u64, run: Range<usize>) {
        self.forget_stored(cluster, run.clone());
        if self.pool.is_bad(cluster, run.clone()) && run.len() > 1 {
            return run.for_each(|at| self.release_singles(cluster, at..at + 1));
        }
        if self.pool.is_bad(cluster, run.clone()) {
            return;
        }
        let (_, emptied) = self
            .pool
            .clusters(self.pool.me())
            .free(cluster as usize, run);
        if emptied {
            self.not_owned(cluster);
        }
    }

    /// The table of a scattered unit becomes another's, whose own is open and empty. The caller
    /// owns both locks.
    pub(crate) fn move_places(&self, unit: u32, to: u32) {
        let scatter = &self.scatter;
        if let (Some(from), Some(to)) = (scatter.of(unit), scatter.of(to)) {
            to.copy(from);
            from.clear();
        }
    }

    /// Moves what a locked unit has in clusters that `moves` names to slots that `claim` finds.
    /// False if there were none, or they could not be written; what cannot be read stays. `buffer`:
    /// [`BUFFER`] bytes of the caller's.
    pub(crate) fn move_singles(
        &self,
        places: &Places,
        moves: impl Fn(u64) -> bool,
        claim: impl Fn(usize) -> Option<(u64, Range<usize>)>,
        buffer: usize,
    ) -> bool {
        const AT_ONCE: usize = BUFFER / PAGE;
        let mut page = 0;
        loop {
            let mut runs = [const { Run::NONE }; AT_ONCE];
            let mut pages = [0; AT_ONCE];
            let (mut m, mut n) = (0, 0);
            while page < PAGES && n < AT_ONCE {
                let Some((cluster, run)) = places.run(page..PAGES.min(page + AT_ONCE - n)) else {
                    page += 1;
                    continue;
                };
                let len = run.len();
                if moves(cluster) {
                    (0..len).for_each(|k| pages[n + k] = page + k);
                    runs[m] = Run {
                        cluster,
                        pages: run,
                        memory: buffer + n * PAGE,
                    };
                    (m, n) = (m + 1, n + len);
                }
                page += len;
            }
            if n == 0 {
                return true;
            }
            // What cannot be read stays: a thread that needs the page is told.
            let read = self.read_some(&runs[..m]);
            let mut at = 0;
            for (k, run) in runs[..m].iter().enumerate() {
                if read >> k & 1 == 0 {
                    pages[at..at + run.pages.len()].fill(PAGES);
                }
                at += run.pages.len();
            }
            let mut done = 0;
            while done < n {
                let rest = &pages[done..n];
                let together = rest.iter().take_while(|&&p| p < PAGES).count();
                if together == 0 {
                    done += 1;
                    continue;
                }
                let Some((to, slots)) = claim(together) else {
                    return false;
                };
                let from = buffer + done * PAGE;
                if self.write_pages(to, slots.clone(), from).is_err() {
                    self.release_singles(to, slots);
                    return false;
                }
                done += slots.len();
                self.pool.count(Counter::SwapMoved, slots.len() as u64);
                for (&p, at) in rest.iter().zip(slots) {
                    let old = places.get(p);
                    places.put(p, Some(Single { cluster: to, at }));
                    if let Some(Single { cluster, at }) = old {
                        self.free_singles(cluster, at..at + 1);
                    }
                }
            }
        }
    }
}
