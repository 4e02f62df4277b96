//! The swap areas of a pool: how they come and go while it is in use, and how each process reaches
//! them.
//!
//! The segment holds what all processes agree on ([`Area`]): an area is free, on, or being taken
//! off (`DRAINING`). Each change counts up `areas_generation`; kswapd of each process then joins
//! what came and lets go of what went. A process *joins* an area before it claims there: it opens
//! the file behind the maker's descriptor, through /proc, and publishes a new map from cluster to
//! place.
//!
//! In an area that is being taken off no process claims anything: a claim looks at the state once
//! more afterwards ([`hugeswap_policy::thp_swap::area`]). A thread of each process moves away what
//! it has there ([`crate::swap`]), and each process says so under the ticket of that attempt. What
//! is kept for forked children is given up when all of them have said so. Then the process that
//! made the pool ends the area.
//!
//! Concurrency: any thread finds the place of its cluster in an immutable map ([`Extents`]),
//! without a lock and without writing anything. A changed map replaces it, and the old ones, of
//! some hundred bytes each, are kept until the pool goes. What a thread finds stays true while it
//! holds the lock of a unit with a cluster there, because an area ends only when no process has any
//! cluster there. Only the process that made the pool makes and ends areas.

use super::joining::reaches;
use super::layout::{Area, MAX_AREAS, MAX_PROCESSES, ONLY_UNREADABLE, state};
use super::swap::{Kind, OpenArea, SwapSpec, open_area};
use super::{Pool, PoolError, probe};
use crate::lock::Lock;
use hugeswap_policy::UNIT_BYTES;
use hugeswap_policy::extents::{Extent, Extents, Place};
use hugeswap_policy::thp_swap::{area, clusters};
use hugeswap_sys::{fs, futex};
use std::ops::Range;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64};

/// An area as this process reaches it.
#[derive(Clone, Copy, Debug)]
pub struct JoinedArea {
    /// This process's descriptor.
    pub fd: i32,
    /// Its identity; checked before the number is trusted.
    pub identity: fs::Identity,
    /// First cluster.
    pub first_cluster: u64,
    /// Clusters.
    pub clusters: u64,
}

impl JoinedArea {
    /// Its clusters.
    pub fn range(&self) -> Range<u64> {
        self.first_cluster..self.first_cluster + self.clusters
    }
}

/// [`JoinedArea`], in atomics.
#[derive(Default)]
pub(super) struct Joined {
    /// The area's serial number; 0: not joined.
    pub(super) serial: AtomicU32,
    fd: AtomicI32,
    dev: AtomicU64,
    ino: AtomicU64,
    mode: AtomicU32,
    first_cluster: AtomicU64,
    clusters: AtomicU64,
    /// The serial number for which the program's threads have opened it, or tried to.
    pub(super) reached: AtomicU32,
}

impl Joined {
    pub(super) fn put(&self, area: &JoinedArea, serial: u32) {
        self.fd.store(area.fd, Relaxed);
        self.dev.store(area.identity.dev, Relaxed);
        self.ino.store(area.identity.ino, Relaxed);
        self.mode.store(area.identity.mode, Relaxed);
        self.first_cluster.store(area.first_cluster, Relaxed);
        self.clusters.store(area.clusters, Relaxed);
        // Under another number it is to be opened once more.
        self.reached.store(0, Relaxed);
        self.serial.store(serial, Release);
    }

    pub(super) fn get(&self) -> Option<JoinedArea> {
        (self.serial.load(Acquire) != 0).then(|| JoinedArea {
            fd: self.fd.load(Relaxed),
            identity: fs::Identity {
                dev: self.dev.load(Relaxed),
                ino: self.ino.load(Relaxed),
                mode: self.mode.load(Relaxed),
            },
            first_cluster: self.first_cluster.load(Relaxed),
            clusters: self.clusters.load(Relaxed),
        })
    }
}

/// The areas this process has joined.
pub(super) struct Areas {
    pub(super) joined: [Joined; MAX_AREAS],
    /// From cluster to (area, cluster of the area); null: none is joined.
    map: AtomicPtr<Extents>,
    /// Maps that were replaced, and descriptors that program threads should close, since the area
    /// is gone.
    pub(super) past: Lock<Past>,
    /// The generation of the segment's areas as they were last looked at.
    pub(super) generation: AtomicU32,
}

#[derive(Default)]
pub(super) struct Past {
    maps: Vec<*mut Extents>,
    pub(super) descriptors: Vec<(i32, fs::Identity)>,
}

// SAFETY: the maps are owned by the list and only freed with it.
unsafe impl Send for Past {}

impl Areas {
    pub fn new() -> Areas {
        Areas {
            joined: Default::default(),
            map: AtomicPtr::new(std::ptr::null_mut()),
            past: Lock::freed_in_children(Past::default()),
            generation: AtomicU32::new(0),
        }
    }

    /// Publishes the map of what is joined now.
    pub(super) fn publish(&self) {
        let mut all: Vec<(usize, JoinedArea)> = self.iter().collect();
        all.sort_unstable_by_key(|(_, a)| a.first_cluster);
        let extents = all.iter().map(|(i, a)| Extent {
            first: a.first_cluster as u32,
            pages: a.clusters as u32,
            place: Place {
                backing: *i as u8,
                page: 0,
            },
        });
        // Ranges in the segment may be anything; what overlaps is not reached.
        let map =
            Extents::new(extents).map_or(std::ptr::null_mut(), |m| Box::into_raw(Box::new(m)));
        let old = self.map.swap(map, AcqRel);
        if !old.is_null() {
            self.past.lock().maps.push(old);
        }
    }

    fn iter(&self) -> impl Iterator<Item = (usize, JoinedArea)> + '_ {
        let joined = self.joined.iter().enumerate();
        joined.filter_map(|(i, j)| Some((i, j.get()?)))
    }
}

impl Drop for Areas {
    fn drop(&mut self) {
        let mut past = self.past.lock();
        past.maps.push(*self.map.get_mut());
        for map in past.maps.drain(..).filter(|m| !m.is_null()) {
            // SAFETY: made by `publish`, and no thread looks anything up any more.
            drop(unsafe { Box::from_raw(map) });
        }
    }
}

/// How an area is used.
#[derive(Clone, Debug)]
pub struct AreaUsage {
    /// Its number in the pool.
    pub index: usize,
    /// It is being taken off.
    pub draining: bool,
    /// Areas of a higher priority are filled first.
    pub priority: i32,
    /// Its clusters.
    pub clusters: Range<u64>,
    /// Clusters of it, and what they are used for.
    pub usage: clusters::Usage,
    /// Its descriptor in the process that made the pool.
    pub fd: i32,
    /// Bytes of backing reserved so far.
    pub allocated: u64,
    /// Write errors seen.
    pub errors: u64,
}

impl Pool {
    /// The areas this process has joined.
    pub fn areas(&self) -> impl Iterator<Item = (usize, JoinedArea)> + '_ {
        self.areas.iter()
    }

    /// An area this process has joined.
    pub fn area(&self, index: usize) -> Option<JoinedArea> {
        self.areas.joined.get(index)?.get()
    }

    /// Which area cluster `cluster` is in, and where in it (bytes). `None`: in none that this
    /// process has joined.
    pub fn locate(&self, cluster: u64) -> Option<(usize, u64)> {
        // SAFETY: published by `publish`, and kept as long as the pool.
        let map = unsafe { self.areas.map.load(Acquire).as_ref() }?;
        let run = map.look_up(u32::try_from(cluster).ok()?);
        let place = run.place?;
        Some((usize::from(place.backing), place.page * UNIT_BYTES))
    }

    /// Areas in a state.
    pub(super) fn segment_areas(&self, state: u32) -> impl Iterator<Item = &Area> + Clone {
        let areas = self.header().areas.iter();
        areas.filter(move |a| a.state.load(Acquire) == state)
    }

    pub(super) fn segment_area(&self, index: usize) -> Option<&Area> {
        self.header().areas.get(index)
    }

    /// An area's priority.
    pub fn priority(&self, index: usize) -> i32 {
        self.segment_area(index)
            .map_or(i32::MIN, |a| a.priority.load(Relaxed))
    }

    /// May clusters be claimed in an area? To be asked again once one has been claimed
    /// ([`Pool::still_on`]).
    pub fn is_on(&self, index: usize) -> bool {
        let (Some(a), Some(j)) = (self.segment_area(index), self.areas.joined.get(index)) else {
            return false;
        };
        a.state.load(Acquire) == area::ON && a.serial.load(Relaxed) == j.serial.load(Relaxed)
    }

    /// [`Pool::is_on`] after a claim: if so, the process that empties the area sees the claim.
    pub fn still_on(&self, index: usize) -> bool {
        let kept = |a: &Area| area::may_keep(&a.state);
        self.segment_area(index).is_some_and(kept) && self.is_on(index)
    }

    /// Areas that are being taken off: the number of each, and the ticket under which that is done.
    pub fn draining(&self) -> impl Iterator<Item = (usize, JoinedArea, u32)> + '_ {
        self.areas.iter().filter_map(|(i, joined)| {
            let a = self.segment_area(i)?;
            area::is_to_be_emptied(&a.state).then(|| (i, joined, a.ticket.load(Relaxed)))
        })
    }

    /// Is cluster `cluster` in an area that is being taken off?
    pub fn is_draining(&self, cluster: u64) -> bool {
        let state = |i: usize| Some(self.segment_area(i)?.state.load(Acquire));
        self.locate(cluster).and_then(|(i, _)| state(i)) == Some(area::DRAINING)
    }

    /// How each area is used.
    pub fn area_usage(&self) -> Vec<AreaUsage> {
        let areas = self.header().areas.iter().enumerate();
        let usage = |(index, a): (usize, &Area)| {
            let state = a.state.load(Acquire);
            let clusters = self.range_of(a);
            let words = self.cluster_words();
            let words = words.get(clusters.start as usize..clusters.end as usize)?;
            (state != area::FREE).then(|| AreaUsage {
                index,
                draining: state != area::ON,
                priority: a.priority.load(Relaxed),
                usage: clusters::usage(words),
                clusters,
                fd: a.fd.load(Relaxed),
                allocated: a.allocated.load(Relaxed),
                errors: a.errors.load(Relaxed),
            })
        };
        areas.filter_map(usage).collect()
    }

    pub(super) fn range_of(&self, a: &Area) -> Range<u64> {
        let first = a.first_cluster.load(Relaxed).min(self.capacity);
        first
            ..first
                .saturating_add(a.clusters.load(Relaxed))
                .min(self.capacity)
    }

    fn areas_changed(&self) {
        self.header().areas_generation.fetch_add(1, AcqRel);
        for (_, r) in self.live() {
            r.kick.fetch_add(1, Release);
            futex::wake(&r.kick, 1, true);
        }
    }

    /// Opens an area and adds it. The process that made the pool does this, in a thread with the
    /// program's descriptors; its number.
    pub fn add_area(&self, spec: &SwapSpec) -> std::result::Result<usize, PoolError> {
        let open = open_area(spec)?;
        let added = self.add_open_area(&open, true);
        if added.is_err() {
            fs::close(open.fd);
        }
        added
    }

    /// Adds an opened area, whose descriptor becomes the pool's. `probed`: what its transfers cost
    /// is measured.
    pub(super) fn add_open_area(
        &self,
        open: &OpenArea,
        probed: bool,
    ) -> std::result::Result<usize, PoolError> {
        let _changing = self.changing_areas.lock();
        let areas = &self.header().areas;
        let free = |a: &Area| a.state.load(Acquire) == area::FREE;
        let index = areas.iter().position(free).ok_or(PoolError::TooManyAreas)?;
        let first = self
            .free_range(open.clusters)
            .ok_or_else(|| PoolError::Swap {
                noun: "area",
                path: open.path.display().to_string(),
                what: "is larger than what can be added to this pool".into(),
                hint: "give a smaller size=".into(),
            })?;
        let a = &areas[index];
        a.fd.store(open.fd, Relaxed);
        let identity = fs::identity(open.fd).unwrap_or_default();
        a.identity.set(&identity);
        a.direct.store(u32::from(open.direct), Relaxed);
        a.priority.store(open.priority, Relaxed);
        a.kind.store(open.kind as u32, Relaxed);
        a.first_cluster.store(first, Relaxed);
        a.clusters.store(open.clusters, Relaxed);
        a.errors.store(0, Relaxed);
        a.forget_past();
        a.costs.measured.store(0, Relaxed);
        if probed
            && open.kind != Kind::Memory
            && let Some(measured) = probe::measure(open.fd)
        {
            a.costs.store(measured);
        }
        self.survey(index, open.fd, open.kind, first..first + open.clusters);
        let h = self.header();
        let serial = h.area_serial.fetch_add(1, Relaxed) + 1;
        a.serial.store(serial, Relaxed);
        h.clusters_high.fetch_max(first + open.clusters, AcqRel);
        let joined = JoinedArea {
            fd: open.fd,
            identity,
            first_cluster: first,
            clusters: open.clusters,
        };
        self.areas.joined[index].put(&joined, serial);
        self.areas.publish();
        a.state.store(area::ON, Release);
        self.areas_changed();
        Ok(index)
    }

    /// The first clusters in a row that are no area's.
    fn free_range(&self, clusters: u64) -> Option<u64> {
        let used = self.header().areas.iter();
        let used = used.filter(|a| a.state.load(Acquire) != area::FREE);
        let mut used: Vec<Range<u64>> = used.map(|a| self.range_of(a)).collect();
        used.sort_by_key(|r| r.start);
        let mut at = 0;
        for r in used {
            if r.start.saturating_sub(at) >= clusters {
                break;
            }
            at = at.max(r.end);
        }
        (at.checked_add(clusters)? <= self.capacity).then_some(at)
    }

    /// Has every process empty an area; it is off once that is done ([`Pool::end_emptied_areas`]).
    /// False: it is not on, perhaps because it is being taken off already. `lose`: what cannot be
    /// read is given up, also if another process takes it off.
    pub fn take_off(&self, index: usize, lose: bool) -> bool {
        let Some(a) = self.segment_area(index) else {
            return false;
        };
        if a.state.load(Acquire) != area::ON {
            if lose {
                a.losing.store(a.ticket.load(Relaxed), Release);
            }
            return false;
        }
        // What was emptied for an earlier attempt may have been filled again.
        let ticket = self.header().tickets.fetch_add(1, Relaxed) + 1;
        a.ticket.store(ticket, Relaxed);
        a.lost.store(0, Relaxed);
        a.losing.store(if lose { ticket } else { 0 }, Relaxed);
        let taken = a
            .state
            .compare_exchange(area::ON, area::DRAINING, SeqCst, Relaxed)
            .is_ok();
        if taken {
            self.areas_changed();
        }
        taken
    }

    /// Takes [`Pool::take_off`] back. False: the area is not being taken off (any more).
    pub fn keep_on(&self, index: usize) -> bool {
        let kept = self.segment_area(index).is_some_and(|a| {
            a.state
                .compare_exchange(area::DRAINING, area::ON, SeqCst, Relaxed)
                .is_ok()
        });
        if kept {
            self.areas_changed();
        }
        kept
    }

    /// Record `me` has nothing left in area `index`, and no process forked from it reads what it
    /// had there.
    pub fn note_emptied(&self, me: usize, index: usize, ticket: u32) {
        self.records()[me].emptied[index].store(ticket, SeqCst);
    }

    /// Record `me` could not read so many pages in area `index`, which have no other place; `only`:
    /// nothing else is left of it there.
    pub(crate) fn note_unreadable(
        &self,
        me: usize,
        index: usize,
        ticket: u32,
        pages: u64,
        only: bool,
    ) {
        let pages = pages.min(ONLY_UNREADABLE - 1);
        let only = if only { ONLY_UNREADABLE } else { 0 };
        let note = u64::from(ticket) << 32 | only | pages;
        self.records()[me].unreadable[index].store(note, Relaxed);
    }

    /// What record `me` has noted there under this ticket.
    pub(crate) fn unreadable_of(&self, me: usize, index: usize, ticket: u32) -> u64 {
        self.unreadable_note(me, index, ticket) & (ONLY_UNREADABLE - 1)
    }

    /// The same: was there nothing else?
    pub(crate) fn only_unreadable_of(&self, me: usize, index: usize, ticket: u32) -> bool {
        self.unreadable_note(me, index, ticket) & ONLY_UNREADABLE != 0
    }

    fn unreadable_note(&self, me: usize, index: usize, ticket: u32) -> u64 {
        match self.records()[me].unreadable[index].load(Relaxed) {
            u if u >> 32 == u64::from(ticket) => u,
            _ => 0,
        }
    }

    /// Is there nothing left in area `index`, which is being taken off, but what cannot be read, as
    /// each process found when it last tried?
    pub fn only_unreadable_left(&self, index: usize) -> bool {
        let Some(area) = self.segment_area(index) else {
            return false;
        };
        let ticket = area.ticket.load(Relaxed);
        let mut some = false;
        let all = self.live().all(|(me, r)| {
            let only = self.only_unreadable_of(me, index, ticket);
            some |= only;
            only || r.emptied[index].load(SeqCst) == ticket
        });
        all && some
    }

    /// Pages of area `index`, which is being taken off, that cannot be read, as far as processes
    /// have tried.
    pub fn unreadable_in(&self, index: usize) -> u64 {
        let ticket = self
            .segment_area(index)
            .map_or(0, |a| a.ticket.load(Relaxed));
        match index < MAX_AREAS {
            true => self
                .live()
                .map(|(me, _)| self.unreadable_of(me, index, ticket))
                .sum(),
            false => 0,
        }
    }

    /// Pages of area `index` given up since it was last to be taken off.
    pub fn lost_in(&self, index: usize) -> u64 {
        self.segment_area(index).map_or(0, |a| a.lost.load(Relaxed))
    }

    /// Has every living process forked from record `me`, directly or not, emptied area `index`?
    pub fn descendants_emptied(&self, me: usize, index: usize, ticket: u32) -> bool {
        self.all_emptied(index, ticket, Some(me))
    }

    fn all_emptied(&self, index: usize, ticket: u32, forked_from: Option<usize>) -> bool {
        let high = (self.header().records_high.load(Acquire) as usize).min(MAX_PROCESSES);
        let records = &self.records()[..high];
        let descends = |mut i: usize, from: usize| {
            for _ in 0..high {
                match (records[i].parent.load(Acquire) as usize).checked_sub(1) {
                    Some(parent) if parent == from => return true,
                    Some(parent) if parent < high => i = parent,
                    _ => return false,
                }
            }
            // The segment says nonsense: then nothing is certain.
            true
        };
        let done = |i: usize| match records[i].state() {
            state::FREE | state::ZOMBIE => true,
            state::LIVE => records[i].emptied[index].load(SeqCst) == ticket,
            _ => false,
        };
        (0..high).all(|i| done(i) || forked_from.is_some_and(|f| i == f || !descends(i, f)))
    }

    /// In a forked child. What was being closed or freed meanwhile stays.
    ///
    /// # Safety
    ///
    /// There is one thread, and it is not in the middle of a call of this.
    pub(crate) unsafe fn free_locks_in_child(&self) {
        // SAFETY: says the caller.
        unsafe {
            self.changing_areas.free_in_child(());
            self.areas.past.free_in_child(Past::default());
        }
    }

    /// Ends the areas that every process has emptied; how many. The process that made the pool does
    /// this.
    pub fn end_emptied_areas(&self) -> usize {
        let Some(_changing) = self.changing_areas.try_lock() else {
            return 0;
        };
        let mut ended = 0;
        for (i, a) in self.header().areas.iter().enumerate() {
            let emptied = || self.all_emptied(i, a.ticket.load(Relaxed), None);
            let end = |from, to| a.state.compare_exchange(from, to, SeqCst, Relaxed).is_ok();
            if a.state.load(SeqCst) != area::DRAINING
                || !emptied()
                || !end(area::DRAINING, area::ENDING)
            {
                continue;
            }
            let alive = |owner: u32| {
                let record = (owner as usize)
                    .checked_sub(1)
                    .and_then(|i| self.records().get(i));
                record.is_some_and(|r| r.state() == state::LIVE)
            };
            let range = self.range_of(a);
            let words = self
                .cluster_words()
                .get(range.start as usize..range.end as usize);
            for (cluster, w) in range.zip(words.unwrap_or(&[])) {
                // What is left was kept for forked children, by parents that have gone; or it was
                // claimed too late, and the claimer is about to see that.
                if let Ok(word) =
                    w.fetch_update(AcqRel, Acquire, |w| (!alive(w >> 16)).then_some(0))
                    && word != 0
                {
                    self.forget_bad(cluster, word);
                }
            }
            self.forget_file(a, self.areas.joined[i].get());
            self.leave(&self.areas.joined[i], true);
            end(area::ENDING, area::FREE);
            ended += 1;
        }
        if ended > 0 {
            self.areas_changed();
        }
        ended
    }

    /// Gives back the space of a nameless file, whichever process still has it open.
    fn forget_file(&self, a: &Area, joined: Option<JoinedArea>) {
        if let Some(j) = joined
            && a.kind.load(Relaxed) == Kind::Nameless as u32
            && reaches(&j)
        {
            let _ = fs::truncate(j.fd, 0);
        }
    }
}
