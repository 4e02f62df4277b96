//! Compares what the engine has charged, reserved and put aside with what its units hold, counted
//! one by one while the engine is at rest. For tests: builds with assertions do it whenever an
//! engine ends.

use crate::engine::{Engine, UNIT};
use crate::store::kept::Given;
use hugeswap_policy::UNIT_PAGES;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::thp_swap::slots::used_singly;
use hugeswap_policy::unit::{Kind, LOCKED, Place, READAHEAD, UNCHARGED, WATCHED, WRITEBACK};
use std::collections::HashSet;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// The memory and swap that the units of one engine hold, compared with the accounts.
#[derive(Clone, Copy, Debug, Default)]
struct Books {
    /// Units that a thread is working on; then nothing else is certain.
    busy: u64,
    /// Units with a frame of their own, wherever it is.
    frames: u64,
    /// Free frames of the arena.
    free: u64,
    /// Places of the arena, and those that hold a frame or are known to be empty.
    places: u64,
    places_known: u64,
    /// Base pages in memory, and those charged without being in use.
    pages: u64,
    credits: u64,
    /// Frames charged.
    charged: u64,
    /// Units that a fault may take, as found and as counted.
    clean: i64,
    watched: i64,
    /// Whole clusters this process owns, and those of them that a unit refers to or that wait for a
    /// forked child's end.
    clusters: u64,
    clusters_known: u64,
    /// The same of single slots of split clusters.
    singles: u64,
    singles_known: u64,
    /// Single slots that stay in use since they are bad.
    singles_bad: u64,
    /// Clusters never used again, since they could not be read.
    clusters_lost: u64,
    /// References to clusters that are free, or a second one to a cluster.
    bad_clusters: u64,
    /// Bits of base pages that contradict each other.
    bad_pages: u64,
    /// Mappings of pieces that are counted and not there.
    mappings: i64,
}

impl Books {
    fn add_up(&self) -> bool {
        let charged = self.charged * UNIT_PAGES;
        let held = (self.frames + self.free) * UNIT_PAGES + self.pages + self.credits;
        let unknown = self.clusters.checked_sub(self.clusters_known);
        let singly = self.singles.checked_sub(self.singles_known);
        charged == held
            && self.places == self.places_known
            && self.clean == self.watched
            && unknown.is_some_and(|n| n <= self.clusters_lost)
            && singly.is_some_and(|n| n <= self.clusters_lost * UNIT_PAGES + self.singles_bad)
            && (self.bad_clusters, self.bad_pages, self.mappings) == (0, 0, 0)
    }
}

impl Engine {
    /// Brings the engine to rest for a moment, as a fork does, and says what does not add up. Not
    /// with a pin held by a caller that others wait for; never in the fault path.
    pub fn audit(&'static self) -> Result<(), String> {
        let books = {
            let _blocked = hugeswap_sys::signal::Blocked::all();
            self.come_to_rest();
            let books = self.books();
            self.gate.open();
            self.pool.kick();
            books
        };
        if books.busy > 0 || !books.add_up() {
            return Err(format!("the books do not add up: {books:?}"));
        }
        Ok(())
    }

    /// As [`Engine::audit`], of an engine whose threads have ended, perhaps in the middle of
    /// something.
    pub(crate) fn audit_at_end(&self) -> Result<(), String> {
        let books = self.books();
        if books.busy == 0 && !books.add_up() {
            return Err(format!("the books do not add up: {books:?}"));
        }
        Ok(())
    }

    fn books(&self) -> Books {
        let (places, places_idle) = self.arena.counts();
        let words = self.pool.cluster_words();
        let me = self.pool.me() as u32 + 1;
        let owned = |s: u64| {
            words
                .get(s as usize)
                .map(|w| w.load(Acquire))
                .filter(|w| w >> 16 == me)
        };
        let mut b = Books {
            free: self.arena.free_frames(),
            places: u64::from(places),
            places_known: u64::from(places_idle),
            credits: self.base.credits().pages(),
            charged: self.pool.record().uncompressed(),
            watched: self.table.watched() as i64,
            mappings: self.backend.mappings(),
            clusters_lost: self.pool.records()[self.pool.me()].events.counters
                [Counter::Poisoned as usize]
                .load(Relaxed),
            ..Books::default()
        };
        b.frames += self.rests.len();
        b.places_known += self.rests.len();
        for (i, w) in words.iter().map(|w| w.load(Acquire)).enumerate() {
            match used_singly(w) {
                _ if w >> 16 != me => {}
                Some(n) => {
                    b.singles += u64::from(n);
                    b.singles_bad += self.pool.bad_slots(i as u64, 0..UNIT_PAGES as usize) as u64;
                }
                None => b.clusters += 1,
            }
        }
        let clusters = self.pool.clusters(self.pool.me());
        let mut seen_singly = HashSet::new();
        let mut refer_singly = |b: &mut Books, cluster: u64, at: usize| {
            let (i, single) = (cluster as usize, (cluster, at));
            if clusters.is_ours(i) {
                b.bad_clusters += u64::from(!seen_singly.insert(single) || !clusters.in_use(i, at));
                b.singles_known += 1;
            } else {
                // A relative's, as below.
                let free = |w: &AtomicU32| w.load(Acquire) == 0 || w.load(Acquire) >> 16 == me;
                b.bad_clusters += u64::from(words.get(i).is_none_or(free));
            }
        };
        let mut seen = vec![false; words.len()];
        let mut refer = |b: &mut Books, cluster: u64| match owned(cluster) {
            Some(w) => {
                let again = std::mem::replace(&mut seen[cluster as usize], true);
                b.bad_clusters += u64::from(again || w & 0xffff != 1);
                b.clusters_known += 1;
            }
            // A relative's, which must not have given it up.
            None => {
                b.bad_clusters += u64::from(
                    words
                        .get(cluster as usize)
                        .is_none_or(|w| w.load(Acquire) == 0),
                )
            }
        };
        for unit in 0..self.high_unit.load(Relaxed) {
            let w = self.table.load(unit);
            b.busy += u64::from(w.has(LOCKED | WRITEBACK));
            b.bad_pages += u64::from(self.check_markers(unit, w).is_err());
            match w.kind() {
                Kind::Present => {
                    b.frames += u64::from(!w.has(UNCHARGED));
                    b.clean += i64::from(w.has(WATCHED));
                }
                Kind::Foreign => b.frames += u64::from(!w.has(UNCHARGED)),
                Kind::Cached => {
                    b.frames += 1;
                    b.places_known += 1;
                    b.clean += i64::from(!w.has(READAHEAD));
                }
                Kind::Base => {
                    let record = self.base.records.of(unit);
                    b.pages += record.present.count();
                    b.mappings -= self.backend.mappings_of(&record.present);
                    b.bad_pages += record.contradictions();
                    b.bad_pages += u64::from(record.stored.any() && w.place() == Place::Nothing);
                    let apart = |p: usize| {
                        let place = self.store.scatter.of(unit).and_then(|s| s.get(p));
                        place.is_some() != record.stored.get(p)
                    };
                    b.bad_pages += u64::from(
                        w.place() == Place::Singles && (0..UNIT_PAGES as usize).any(apart),
                    );
                }
                _ => {}
            }
            let of_file = w.file();
            b.bad_clusters += u64::from(of_file.is_some() && of_file != self.files.of(unit));
            if let Some(cluster) = w.cluster() {
                refer(&mut b, cluster);
            }
            let places = self.store.scatter.of(unit).into_iter();
            for s in places.flat_map(|s| (0..UNIT_PAGES as usize).filter_map(|p| s.get(p))) {
                b.bad_clusters += u64::from(w.place() != Place::Singles);
                refer_singly(&mut b, s.cluster, s.at);
            }
        }
        self.store.kept.for_each(|given| match given {
            Given::Cluster(cluster) => refer(&mut b, cluster),
            Given::Singles(cluster, from, to) => {
                (from..to).for_each(|at| refer_singly(&mut b, cluster, at.into()));
            }
        });
        b
    }
}

const _: () = assert!(UNIT == 4096 * UNIT_PAGES as usize);
