//! Where the pages of a base-mapped unit go in swap: to a cluster of its own, or scattered to
//! single slots.
//!
//! A unit of which few pages have ever been changed is scattered, and so is one that finds no free
//! cluster, or of which many pages here and there were changed ([`crate::store`]'s `gather`). A
//! scattered unit that grows past half gets a cluster of its own, unless it is of the last kind. In
//! the table of a scattered, base-mapped unit stand exactly the pages that its record calls stored.

use super::{BUFFER, PAGE};
use crate::PAGES;
use crate::pages::record::Record;
use crate::paging::Paging;
use crate::store::batch::{self, Run};
use crate::store::gather;
use crate::store::scatter::{CLUSTERS, Places, Single};
use crate::table::Locked;
use hugeswap_policy::UNIT_PAGES;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::unit::step::Event;
use hugeswap_policy::unit::{Place, Word};
use std::ops::Range;

/// A unit without a place is scattered if it has no more dirty pages than this.
const FEW: u64 = UNIT_PAGES / 8;
/// A scattered unit with more pages than this gets a cluster of its own.
const MANY: u64 = UNIT_PAGES / 2;
/// Pages that are gathered for one write.
const AT_ONCE: usize = BUFFER / PAGE;

impl Paging {
    /// Sees to it that a unit has a place for its dirty pages that also holds what the present one
    /// does of the others. False, and nothing has changed: there is no such place.
    pub(super) fn place_for_dirty(&self, w: &mut Locked<'_>, record: &Record) -> bool {
        let unit = w.unit();
        let scattered = || self.store.scatter.open(unit).map(|_| Place::Singles);
        let whole = || self.store.claim_cluster().map(Place::Cluster);
        let new = match w.place() {
            Place::Singles => {
                let new = |p: &usize| record.dirty.get(*p) && !record.stored.get(*p);
                let all = record.stored.count() + (0..PAGES).filter(new).count() as u64;
                // (Little of what lies far apart is worth that many reads.)
                let little_dirty = record.dirty.count() <= MANY;
                let little = little_dirty && self.store.is_to_gather();
                let apart = little && self.store.is_far_apart(unit, Place::Singles);
                let packed = little_dirty && self.store.is_mostly_packed(unit);
                let stays = apart || packed || self.store.gathers(&record.dirty);
                match (all > MANY && !stays).then(|| self.gather_in_cluster(unit, **w, record)) {
                    Some(Some(cluster)) => Some(Place::Cluster(cluster)),
                    _ => return true,
                }
            }
            Place::Nothing if record.dirty.count() <= FEW => scattered().or_else(whole),
            Place::Nothing => whole().or_else(scattered),
            // (Code that writes to files does so before.)
            Place::File(_) => None,
            // (Nothing is written to a part of a packed one.)
            Place::Cluster(own)
                if self.pool.is_packed(own)
                    && self.store.may_overwrite_cluster(own)
                    && self.split_place(w, record) =>
            {
                return true;
            }
            Place::Cluster(own)
                if self.store.may_overwrite_cluster(own) && !self.pool.is_packed(own) =>
            {
                if self.pool.avoids(own) || self.store.gathers(&record.dirty) {
                    // (Of a place that is avoided, what is stored can perhaps not be moved, but what
                    // is dirty can go elsewhere.)
                    self.split_place(w, record);
                }
                return true;
            }
            Place::Cluster(old) => {
                let Some(new) = self.store.claim_cluster() else {
                    return self.split_place(w, record);
                };
                if !self.copy_cluster(unit, old, new, record) {
                    self.store.release_cluster(new);
                    return false;
                }
                self.store.free_cluster(old);
                Some(Place::Cluster(new))
            }
        };
        if let Some(place) = new {
            self.advance(w, Event::Placed(place));
        }
        new.is_some()
    }

    /// A base-mapped unit with a cluster becomes scattered where it is, so that what is not stored
    /// of it is free for others, if the cluster is this process's own. False: that cannot be.
    pub(crate) fn split_place(&self, w: &mut Locked<'_>, record: &Record) -> bool {
        let (Some(cluster), Some(places)) = (
            w.cluster().filter(|&c| c < CLUSTERS),
            self.store.scatter.open(w.unit()),
        ) else {
            return false;
        };
        let owned = self.pool.owns_cluster(cluster);
        if owned && !self.pool.clusters(self.pool.me()).split(cluster as usize) {
            return false;
        }
        for at in 0..PAGES {
            places.put(at, record.stored.get(at).then_some(Single { cluster, at }));
        }
        let mut next = 0;
        while let Some(hole) = record.stored.run(next, PAGES, false) {
            next = hole.end;
            self.store.free_singles(cluster, hole);
        }
        self.advance(w, Event::Placed(Place::Singles));
        true
    }

    /// Sees to it that the place of a unit says of every page what it is, also of those that are
    /// zero; the unit has no dirty page. False: that failed.
    pub(crate) fn complete_place(&self, w: &mut Locked<'_>, record: &Record) -> bool {
        let cluster = match w.place() {
            Place::Nothing => return false,
            Place::Singles => return true,
            _ if record.stored.all() => return true,
            Place::Cluster(cluster) => cluster,
            Place::File(_) => return false,
        };
        // A relative may read as bytes what is a hole by now, if it was stored when they parted.
        let ours = self.pool.owns_cluster(cluster)
            && !self.store.kept.may_be_read(cluster)
            && !self.pool.is_packed(cluster);
        ours && self.write_holes(**w, record) || self.split_place(w, record)
    }

    /// Gives up the slots of some pages of a base-mapped unit, which are not stored any more; of a
    /// unit with a cluster of its own once few or none are left.
    pub(super) fn give_up_slots(&self, w: &mut Locked<'_>, record: &Record, pages: Range<usize>) {
        match w.place() {
            Place::Singles => {
                if let Some(places) = self.store.scatter.of(w.unit()) {
                    self.store.free_pages(places, pages);
                }
            }
            Place::Cluster(cluster) if !record.stored.any() => {
                self.store.free_cluster(cluster);
                self.advance(w, Event::Placed(Place::Nothing));
            }
            Place::Cluster(own) if record.stored.count() <= FEW && self.pool.owns_cluster(own) => {
                self.split_place(w, record);
            }
            _ => {}
        }
    }

    /// A cluster of a scattered unit's own, holding what is stored of it and not dirty. `None`:
    /// there is none, and nothing has changed.
    fn gather_in_cluster(&self, unit: u32, w: Word, record: &Record) -> Option<u64> {
        let places = self.store.scatter.of(unit)?;
        let cluster = self.store.claim_cluster()?;
        // What is in memory is written from there, with the dirty pages. So no thread may change it:
        // what is to stay in memory was not protected.
        if self.freeze(unit, &record.present, 0).is_err() {
            self.store.release_cluster(cluster);
            return None;
        }
        let mut next = 0;
        while let Some(run) = record.present.run(next, PAGES, true) {
            next = run.end;
            record.dirty.put(run, true);
        }
        let buffer = self.base.take_buffer();
        let mut next = 0;
        while let Some(run) = record.stored.run(next, PAGES, true) {
            let dirty = record.dirty.get(run.start);
            let end = record
                .dirty
                .run(run.start, run.end, !dirty)
                .map_or(run.end, |r| r.start);
            next = if dirty {
                end
            } else {
                end.min(run.start + AT_ONCE)
            };
            let part = run.start..next;
            if !dirty
                && self
                    .read_stored(unit, w, part.clone(), buffer.addr())
                    .and_then(|()| self.store.write_pages(cluster, part, buffer.addr()))
                    .is_err()
            {
                self.store.release_cluster(cluster);
                return None;
            }
        }
        let mut next = 0;
        while let Some(run) = record.dirty.run(next, PAGES, true) {
            next = run.end;
            record.stored.put(run, false);
        }
        self.store.free_pages(places, 0..PAGES);
        Some(cluster)
    }

    /// Writes the dirty pages of a scattered unit: gathered to new slots, or over what its slots
    /// hold, where that may be, else to new ones. False if not all could be written.
    pub(super) fn write_scattered(&self, unit: u32, record: &Record) -> bool {
        if self.store.gathers(&record.dirty) {
            let dirty = record.dirty.count();
            let done = self.write_singles(unit, record, true);
            let gathered = dirty - record.dirty.count();
            self.pool.count(Counter::SwapGathered, gathered);
            if done {
                return true;
            }
        }
        self.write_singles(unit, record, false)
    }

    /// [`Paging::write_scattered`]: `gather`, or not.
    fn write_singles(&self, unit: u32, record: &Record, gather: bool) -> bool {
        let Some(places) = self.store.scatter.of(unit) else {
            return false;
        };
        let at = self.table.addr(unit);
        let mine = |p: usize| {
            places
                .get(p)
                .filter(|_| !gather)
                .filter(|&s| self.store.may_overwrite(s) && !self.pool.avoids(s.cluster))
        };
        // Those that go to new slots, so many at a time that few writes take many.
        let mut moving = [0u16; gather::AT_ONCE];
        let at_once = if gather { moving.len() } else { AT_ONCE };
        let mut n = 0;
        // Those that stay where they are, and the first page of each.
        let mut staying: [Run; batch::MOST] = Default::default();
        let mut pages_of = [0; batch::MOST];
        let mut m = 0;
        let mut next = 0;
        while let Some(run) = record.dirty.run(next, PAGES, true) {
            let first = run.start;
            if mine(first).is_none() {
                moving[n] = first as u16;
                n += 1;
                next = first + 1;
                if n == at_once {
                    if !self.write_moving(at, places, record, &moving[..n], gather) {
                        return false;
                    }
                    n = 0;
                }
                continue;
            }
            let Some((cluster, slots)) = places.run(run) else {
                return false;
            };
            next = first + slots.len();
            (staying[m], pages_of[m]) = (
                Run {
                    cluster,
                    pages: slots,
                    memory: at + first * PAGE,
                },
                first,
            );
            m += 1;
            if m == staying.len() {
                if !self.write_staying(places, record, &staying, &pages_of) {
                    return false;
                }
                m = 0;
            }
        }
        self.write_staying(places, record, &staying[..m], &pages_of)
            && self.write_moving(at, places, record, &moving[..n], gather)
    }

    /// Writes dirty pages of a unit to the slots they have: `runs`, which begin with pages `first`.
    fn write_staying(
        &self,
        places: &Places,
        record: &Record,
        runs: &[Run],
        first: &[usize],
    ) -> bool {
        let done = self.store.write_runs(runs);
        for (k, (run, &first)) in runs.iter().zip(first).enumerate() {
            let pages = first..first + run.pages.len();
            if done >> k & 1 == 1 {
                record.dirty.put(pages, false);
            } else {
                // As where a unit has a cluster: what the slots held may be gone.
                record.stored.put(pages.clone(), false);
                self.store.free_pages(places, pages);
            }
        }
        done.count_ones() as usize == runs.len()
    }

    /// Writes dirty pages of the unit at `at` to new slots, neighbours as far as that can be had.
    fn write_moving(
        &self,
        at: usize,
        places: &Places,
        record: &Record,
        pages: &[u16],
        gather: bool,
    ) -> bool {
        if pages.is_empty() {
            return true;
        }
        let buffer = self.base.take_buffer();
        let mut memory = [0; gather::AT_ONCE];
        let mut done = 0;
        while let Some(rest) = pages.get(done..).filter(|r| !r.is_empty()) {
            let claimed = match gather {
                true => self.store.claim_gathered(rest.len()),
                false => self.store.claim_singles(rest.len()),
            };
            let Some((cluster, slots)) = claimed else {
                return false;
            };
            for (at_page, &p) in memory.iter_mut().zip(rest) {
                *at_page = at + usize::from(p) * PAGE;
            }
            // Dirty pages are in memory, readable and write-protected.
            let written = self.store.write_side_by_side(
                cluster,
                slots.clone(),
                &memory[..slots.len()],
                buffer.addr(),
            );
            if written.is_err() {
                self.store.release_singles(cluster, slots);
                return false;
            }
            done += slots.len();
            for (&p, at) in rest.iter().zip(slots) {
                let p = usize::from(p);
                self.store.free_pages(places, p..p + 1);
                places.put(p, Some(Single { cluster, at }));
                record.stored.put(p..p + 1, true);
                record.dirty.put(p..p + 1, false);
            }
        }
        true
    }
}
