//! Two lists, active and inactive, and the distance of a refault.
//!
//! New units start active only while there is room there, later ones inactive, so that a
//! stream that is used once flows through the inactive list and leaves the active one
//! alone. A unit joins the active list when it is touched while it was watched, or when it comes
//! back from swap so soon that it would still have been here had the active list been smaller
//! (refault distance: pages evicted between its own eviction and its return, against the pages on the active list). What has
//! to leave the active list for it gets another round through the inactive one.
//!
//! Everything is weighed in pages: a unit of which a few base pages are in memory counts as those ([`Weights`]). Counted in
//! units, the active list would be full of what takes no memory, and a stream beside it would have the rest to itself.
//!
//! Source: the Linux kernel's `mm/workingset.c` and J. Weiner, "Thrash detection-based file cache
//! sizing" (2012) for the distance; the first filling of the active list is ours: a sweep over
//! more than memory then finds half to three quarters of memory where it left it, where one list in
//! order of use would find nothing.
//!
//! Every operation but `isolate` takes constant time (amortised), nothing allocates after construction, and
//! the lists have one owner; weights may be told by anybody at any time.

use crate::UNIT_PAGES;
use crate::lru::{Lru, Reclaim};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI64, AtomicU16};

/// Units the inactive list gets if it can have them without taking more than half: four streams
/// with full readahead windows, the watched units, and as many on their way out.
const INACTIVE_WANTED: usize = 128;

/// How many pages of each unit are in memory, and of all that are active. All of a unit, until something else is told.
pub struct Weights<W = Vec<AtomicU16>> {
    /// Pages that are not in memory, and [`ACTIVE`].
    units: W,
    /// Pages of the units that are active: exact whenever nobody is changing a weight.
    active: AtomicI64,
}

const ACTIVE: u16 = 1 << 15;

fn pages(word: u16) -> u64 {
    UNIT_PAGES.saturating_sub(u64::from(word & !ACTIVE))
}

impl<W: Deref<Target = [AtomicU16]>> Weights<W> {
    /// `pages` of a unit are in memory. No lock, no order with other calls for the same unit but what the caller has.
    pub fn set(&self, unit: u32, pages: u64) {
        let missing = UNIT_PAGES.saturating_sub(pages) as u16;
        self.change(unit, |w| w & ACTIVE | missing);
    }

    fn of(&self, unit: u32) -> u64 {
        let word = self.units.get(unit as usize);
        pages(word.map_or(0, |w| w.load(Relaxed)))
    }

    fn put_active(&self, unit: u32, active: bool) {
        self.change(unit, |w| if active { w | ACTIVE } else { w & !ACTIVE });
    }

    fn change(&self, unit: u32, to: impl Fn(u16) -> u16) {
        let Some(word) = self.units.get(unit as usize) else {
            return;
        };
        let mut old = word.load(Relaxed);
        while let Err(now) = word.compare_exchange_weak(old, to(old), Relaxed, Relaxed) {
            old = now;
        }
        let active = |w: u16| match w & ACTIVE {
            0 => 0,
            _ => pages(w) as i64,
        };
        let more = active(to(old)) - active(old);
        if more != 0 {
            self.active.fetch_add(more, Relaxed);
        }
    }
}

/// See the file's head.
pub struct TwoLists<W = Vec<AtomicU16>> {
    active: Lru,
    inactive: Lru,
    /// Eviction clock (never 0), in pages, at which each unit was last isolated; 0: it was not, or is back.
    shadows: Vec<u32>,
    clock: u32,
    weights: Arc<Weights<W>>,
    /// Most pages the active list may have.
    active_max: u64,
    /// Are refault distances looked at?
    detection: bool,
}

impl<W: Deref<Target = [AtomicU16]>> TwoLists<W> {
    /// Lists for units `0..capacity`, with room in memory for `resident` whole ones; `weights` are as many zeros. 20 bytes of
    /// address space for each unit of the capacity besides; only what is used costs memory.
    pub fn new(capacity: u32, resident: usize, weights: W) -> TwoLists<W> {
        let mut lists = TwoLists {
            active: Lru::new(capacity),
            inactive: Lru::new(capacity),
            shadows: vec![0; capacity as usize],
            clock: 1,
            weights: Arc::new(Weights {
                units: weights,
                active: AtomicI64::new(0),
            }),
            active_max: 0,
            detection: true,
        };
        lists.set_resident(resident);
        lists
    }

    /// What tells the lists how much of a unit is in memory.
    pub fn weights(&self) -> Arc<Weights<W>> {
        self.weights.clone()
    }

    /// Tells how many units can be in memory now.
    pub fn set_resident(&mut self, resident: usize) {
        // Inactive is where streams, readahead and write-behind live: several of them at once
        // need room however small memory is, and no more however large.
        let inactive = (resident / 4).max(INACTIVE_WANTED.min(resident / 2));
        self.active_max = (resident - inactive) as u64 * UNIT_PAGES;
        self.balance();
    }

    /// Is a unit that comes back soon after it left to be active? (Yes, until something else is told.)
    pub fn set_detection(&mut self, on: bool) {
        self.detection = on;
    }

    /// Pages on the active list.
    pub fn active_pages(&self) -> u64 {
        self.weights.active.load(Relaxed).max(0) as u64
    }

    fn balance(&mut self) {
        let mut oldest = [0u32];
        while self.active_pages() > self.active_max && self.active.isolate(1, &mut oldest) == 1 {
            self.weights.put_active(oldest[0], false);
            self.inactive.insert(oldest[0]);
        }
    }

    fn activate(&mut self, unit: u32) {
        self.inactive.remove(unit);
        self.active.reference(unit);
        self.weights.put_active(unit, true);
        self.balance();
    }

    /// Was the unit evicted so recently that a smaller active list would have kept it?
    fn refaulted_in_time(&mut self, unit: u32) -> bool {
        let Some(shadow) = self.shadows.get_mut(unit as usize) else {
            return false;
        };
        let left_at = std::mem::take(shadow);
        self.detection
            && left_at != 0
            && u64::from(self.clock.wrapping_sub(left_at)) <= self.active_pages()
    }
}

impl<W: Deref<Target = [AtomicU16]>> Reclaim for TwoLists<W> {
    fn insert(&mut self, unit: u32) {
        if self.contains(unit) {
            return;
        }
        if self.refaulted_in_time(unit) || self.active_pages() < self.active_max {
            self.activate(unit);
        } else {
            self.inactive.insert(unit);
        }
    }

    fn reference(&mut self, unit: u32) {
        self.shadows[unit as usize] = 0;
        self.activate(unit);
    }

    fn remove(&mut self, unit: u32) {
        self.active.remove(unit);
        self.weights.put_active(unit, false);
        self.inactive.remove(unit);
        self.shadows[unit as usize] = 0;
    }

    fn rotate(&mut self, unit: u32) {
        self.shadows[unit as usize] = 0;
        if self.active.contains(unit) {
            self.active.rotate(unit);
        } else {
            self.inactive.rotate(unit);
        }
    }

    fn isolate(&mut self, max: usize, out: &mut [u32]) -> usize {
        let max = max.min(out.len());
        let mut n = self.inactive.isolate(max, out);
        if n == 0 {
            n = self.active.isolate(max, out);
        }
        for &unit in &out[..n] {
            self.weights.put_active(unit, false);
            self.shadows[unit as usize] = self.clock;
            let pages = self.weights.of(unit).max(1);
            self.clock = self.clock.wrapping_add(pages as u32).max(1);
        }
        n
    }

    fn len(&self) -> usize {
        self.active.len() + self.inactive.len()
    }

    fn contains(&self, unit: u32) -> bool {
        self.active.contains(unit) || self.inactive.contains(unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lists(units: u32, resident: usize) -> TwoLists {
        let weights = (0..units).map(|_| AtomicU16::new(0)).collect();
        TwoLists::new(units, resident, weights)
    }

    /// Memory of `frames` units over the lists: touches units, evicting when full; counts misses. As in the engine,
    /// a touch of a resident unit goes unseen.
    struct Memory {
        lists: TwoLists,
        resident: std::collections::HashSet<u32>,
        frames: usize,
        misses: usize,
    }

    impl Memory {
        fn new(frames: usize) -> Memory {
            Memory {
                lists: lists(10_000, frames),
                resident: Default::default(),
                frames,
                misses: 0,
            }
        }

        fn touch(&mut self, unit: u32) {
            if self.resident.contains(&unit) {
                return;
            }
            self.misses += 1;
            if self.resident.len() == self.frames {
                let mut out = [0];
                assert_eq!(self.lists.isolate(1, &mut out), 1);
                assert!(self.resident.remove(&out[0]));
            }
            self.resident.insert(unit);
            self.lists.insert(unit);
            assert_eq!(self.lists.len(), self.resident.len());
        }
    }

    #[test]
    fn a_sweep_over_twice_memory_finds_what_is_active() {
        for (frames, active) in [(100, 50), (400, 272), (1000, 750)] {
            let mut m = Memory::new(frames);
            let sweep = 0..2 * frames as u32;
            sweep.clone().for_each(|u| m.touch(u));
            for _ in 0..5 {
                m.misses = 0;
                sweep.clone().for_each(|u| m.touch(u));
                assert!(
                    m.misses.abs_diff(2 * frames - active) <= 2,
                    "{} misses",
                    m.misses
                );
            }
        }
    }

    #[test]
    fn a_stream_used_once_leaves_the_hot_alone() {
        let mut m = Memory::new(100);
        (0..50).for_each(|u| m.touch(u));
        (1000..2000).for_each(|u| m.touch(u));
        assert!((0..50).all(|u| m.resident.contains(&u)));
    }

    #[test]
    fn a_new_working_set_takes_over() {
        let mut m = Memory::new(100);
        (0..100).for_each(|u| m.touch(u));
        for _ in 0..10 {
            (500..580).for_each(|u| m.touch(u));
        }
        m.misses = 0;
        (500..580).for_each(|u| m.touch(u));
        assert_eq!(m.misses, 0, "a set that fits still misses after ten rounds");
    }

    #[test]
    fn without_detection_it_does_not() {
        let mut m = Memory::new(100);
        m.lists.set_detection(false);
        (0..100).for_each(|u| m.touch(u));
        for _ in 0..10 {
            m.misses = 0;
            (500..580).for_each(|u| m.touch(u));
        }
        assert!(m.misses > 0, "the first hundred left the active list");
    }

    #[test]
    fn a_watched_unit_that_is_touched_becomes_active() {
        let mut lists = lists(100, 8);
        (0..8).for_each(|u| lists.insert(u));
        let mut out = [0; 2];
        assert_eq!(lists.isolate(2, &mut out), 2);
        assert_eq!(out, [4, 5]);
        lists.reference(4);
        assert!(lists.active.contains(4));
        assert_eq!(lists.active_pages(), 4 * UNIT_PAGES);
    }

    #[test]
    fn units_of_a_few_pages_stay_beside_a_stream() {
        // Room for 100 units, or for 39 and 200 with 100 pages each.
        let mut m = Memory::new(100);
        let weights = m.lists.weights();
        let mut out = [0; 8];
        for u in 1000..3000 {
            m.lists.insert(u);
            if u % 8 == 0 {
                m.lists.isolate(8, &mut out);
                (0..200).for_each(|u| weights.set(u, 100));
                (0..200).for_each(|u| m.lists.insert(u));
            }
        }
        let there = (0..200).filter(|&u| m.lists.contains(u)).count();
        assert_eq!(there, 200);
        assert!(m.lists.active_pages() <= 50 * UNIT_PAGES);
    }

    proptest! {
        #[test]
        fn no_unit_is_lost_or_twice(ops in proptest::collection::vec((0u8..5, 0u32..40), 0..400)) {
            let mut lists = lists(40, 16);
            let mut model = std::collections::BTreeSet::new();
            for (op, unit) in ops {
                match op {
                    0 => { lists.insert(unit); model.insert(unit); }
                    1 => { lists.reference(unit); model.insert(unit); }
                    2 => { lists.remove(unit); model.remove(&unit); }
                    3 => { lists.rotate(unit); model.insert(unit); }
                    _ => {
                        let mut out = [0; 3];
                        let n = lists.isolate(3, &mut out);
                        for u in &out[..n] { prop_assert!(model.remove(u)); }
                        prop_assert!(n > 0 || model.is_empty());
                    }
                }
                prop_assert_eq!(lists.len(), model.len());
                prop_assert_eq!(lists.active_pages(), lists.active.len() as u64 * UNIT_PAGES);
                prop_assert!(lists.active.len() <= 8);
                for u in 0..40 { prop_assert_eq!(lists.contains(u), model.contains(&u)); }
            }
        }
    }
}
