//! The swap areas of a pool: how they come and go while it is in use, and as each process reaches them.
//!
//! What all processes agree on stands in the segment ([`Area`]): an area is free, on, or being taken off (`DRAINING`: nobody claims there any
//! more, and each process moves away what it has there). Each change counts up `areas_generation`. A process *joins* an area before it claims
//! there: it opens the file behind the maker's descriptor, through /proc, and publishes a new map from slot to place.
//!
//! Concurrency: any thread finds its slot's place in an immutable map ([`Extents`]), without a lock and without writing anything;
//! a changed map replaces it, and the old ones, of some hundred bytes each, are kept until the pool goes. What a thread finds stays true
//! while it holds the lock of a unit with a slot there: an area ends only when no process has any there. Areas are
//! made and ended by the process that made the pool alone.

use super::layout::{Area, MAX_AREAS, MAX_PROCESSES, state};
use super::swap::{Kind, OpenArea, SwapSpec, hold, open_area};
use super::{Pool, PoolError, probe};
use crate::lock::Lock;
use hugeswap_policy::UNIT_BYTES;
use hugeswap_policy::extents::{Extent, Extents, Place};
use hugeswap_policy::slots::{self, area};
use hugeswap_sys::{Errno, Result, fs, futex, process};
use std::ffi::CStr;
use std::ops::Range;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64};

/// An area as this process reaches it.
#[derive(Clone, Copy, Debug)]
pub struct JoinedArea {
    /// This process's descriptor.
    pub fd: i32,
    /// Who it is; checked before the number is trusted.
    pub identity: fs::Identity,
    /// First slot.
    pub first_slot: u64,
    /// Slots.
    pub slots: u64,
}

impl JoinedArea {
    /// Its slots.
    pub fn range(&self) -> Range<u64> {
        self.first_slot..self.first_slot + self.slots
    }
}

/// [`JoinedArea`], in atomics.
#[derive(Default)]
struct Joined {
    /// The area's serial number; 0: not joined.
    serial: AtomicU32,
    fd: AtomicI32,
    dev: AtomicU64,
    ino: AtomicU64,
    mode: AtomicU32,
    first_slot: AtomicU64,
    slots: AtomicU64,
    /// The serial number for which the program's threads have opened it, or tried to.
    reached: AtomicU32,
}

impl Joined {
    fn put(&self, area: &JoinedArea, serial: u32) {
        self.fd.store(area.fd, Relaxed);
        self.dev.store(area.identity.dev, Relaxed);
        self.ino.store(area.identity.ino, Relaxed);
        self.mode.store(area.identity.mode, Relaxed);
        self.first_slot.store(area.first_slot, Relaxed);
        self.slots.store(area.slots, Relaxed);
        self.serial.store(serial, Release);
    }

    fn get(&self) -> Option<JoinedArea> {
        (self.serial.load(Acquire) != 0).then(|| JoinedArea {
            fd: self.fd.load(Relaxed),
            identity: fs::Identity {
                dev: self.dev.load(Relaxed),
                ino: self.ino.load(Relaxed),
                mode: self.mode.load(Relaxed),
            },
            first_slot: self.first_slot.load(Relaxed),
            slots: self.slots.load(Relaxed),
        })
    }
}

/// The areas this process has joined.
pub(super) struct Areas {
    joined: [Joined; MAX_AREAS],
    /// From slot to (area, slot of the area); null: none is joined.
    map: AtomicPtr<Extents>,
    /// Maps that were replaced, and descriptors that program threads should close, since the area is gone.
    past: Lock<Past>,
    /// Of the segment's areas as they were looked at last.
    generation: AtomicU32,
}

#[derive(Default)]
struct Past {
    maps: Vec<*mut Extents>,
    descriptors: Vec<(i32, fs::Identity)>,
}

// SAFETY: the maps are owned by the list and only freed with it.
unsafe impl Send for Past {}

impl Areas {
    pub fn new() -> Areas {
        Areas {
            joined: Default::default(),
            map: AtomicPtr::new(std::ptr::null_mut()),
            past: Lock::new(Past::default()),
            generation: AtomicU32::new(0),
        }
    }

    /// Publishes the map of what is joined now.
    fn publish(&self) {
        let mut all: Vec<(usize, JoinedArea)> = self.iter().collect();
        all.sort_by_key(|(_, a)| a.first_slot);
        let extents = all.iter().map(|(i, a)| Extent {
            first: a.first_slot as u32,
            pages: a.slots as u32,
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
            // SAFETY: made by `publish`, and nobody looks anything up any more.
            drop(unsafe { Box::from_raw(map) });
        }
    }
}

/// What an area is used for.
#[derive(Clone, Debug)]
pub struct AreaUsage {
    /// Its number in the pool.
    pub index: usize,
    /// It is being taken off.
    pub draining: bool,
    /// Areas of a higher priority are filled first.
    pub priority: i32,
    /// Its slots.
    pub slots: Range<u64>,
    /// Clusters of it, and what they are used for.
    pub usage: slots::Usage,
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

    /// Which area slot `slot` is in, and where in it (bytes). `None`: in none that this process has joined.
    pub fn locate(&self, slot: u64) -> Option<(usize, u64)> {
        // SAFETY: published by `publish`, and kept as long as the pool.
        let map = unsafe { self.areas.map.load(Acquire).as_ref() }?;
        let run = map.look_up(u32::try_from(slot).ok()?);
        let place = run.place?;
        Some((usize::from(place.backing), place.page * UNIT_BYTES))
    }

    /// Areas in a state.
    pub(super) fn segment_areas(&self, state: u32) -> impl Iterator<Item = &Area> {
        let areas = self.header().areas.iter();
        areas.filter(move |a| a.state.load(Acquire) == state)
    }

    fn segment_area(&self, index: usize) -> Option<&Area> {
        self.header().areas.get(index)
    }

    /// An area's priority.
    pub fn priority(&self, index: usize) -> i32 {
        self.segment_area(index)
            .map_or(i32::MIN, |a| a.priority.load(Relaxed))
    }

    /// May slots be claimed in an area? To be asked again once one has been claimed ([`Pool::still_on`]).
    pub fn is_on(&self, index: usize) -> bool {
        let (Some(a), Some(j)) = (self.segment_area(index), self.areas.joined.get(index)) else {
            return false;
        };
        a.state.load(Acquire) == area::ON && a.serial.load(Relaxed) == j.serial.load(Relaxed)
    }

    /// [`Pool::is_on`] after a claim: if so, whoever empties the area sees the claim.
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

    /// Is slot `slot` in an area that is being taken off?
    pub fn is_draining(&self, slot: u64) -> bool {
        let state = |i: usize| Some(self.segment_area(i)?.state.load(Acquire));
        self.locate(slot).and_then(|(i, _)| state(i)) == Some(area::DRAINING)
    }

    /// Counts up when areas come, go, or are to be emptied.
    pub fn areas_generation(&self) -> u32 {
        self.header().areas_generation.load(Acquire)
    }

    /// What each area is used for.
    pub fn area_usage(&self) -> Vec<AreaUsage> {
        let areas = self.header().areas.iter().enumerate();
        let usage = |(index, a): (usize, &Area)| {
            let state = a.state.load(Acquire);
            let slots = self.range_of(a);
            let words = self.slot_words();
            let words = words.get(slots.start as usize..slots.end as usize)?;
            (state != area::FREE).then(|| AreaUsage {
                index,
                draining: state != area::ON,
                priority: a.priority.load(Relaxed),
                usage: slots::usage(words),
                slots,
                fd: a.fd.load(Relaxed),
                allocated: a.allocated.load(Relaxed),
                errors: a.errors.load(Relaxed),
            })
        };
        areas.filter_map(usage).collect()
    }

    fn range_of(&self, a: &Area) -> Range<u64> {
        let first = a.first_slot.load(Relaxed).min(self.capacity);
        first
            ..first
                .saturating_add(a.slots.load(Relaxed))
                .min(self.capacity)
    }

    fn areas_changed(&self) {
        self.header().areas_generation.fetch_add(1, AcqRel);
        for (_, r) in self.live() {
            r.kick.fetch_add(1, Release);
            futex::wake(&r.kick, 1, true);
        }
    }

    /// Opens an area and adds it. The process that made the pool does this, in a thread with the program's descriptors; its number.
    pub fn add_area(&self, spec: &SwapSpec) -> std::result::Result<usize, PoolError> {
        let open = open_area(spec)?;
        let added = self.add_open_area(&open, true);
        if added.is_err() {
            fs::close(open.fd);
        }
        added
    }

    /// Adds an opened area, whose descriptor becomes the pool's. `probed`: what its transfers cost is measured.
    pub(super) fn add_open_area(
        &self,
        open: &OpenArea,
        probed: bool,
    ) -> std::result::Result<usize, PoolError> {
        let _changing = self.changing_areas.lock();
        let areas = &self.header().areas;
        let free = |a: &Area| a.state.load(Acquire) == area::FREE;
        let index = areas.iter().position(free).ok_or(PoolError::TooManyAreas)?;
        let first = self.free_range(open.slots).ok_or_else(|| PoolError::Swap {
            noun: "area",
            path: open.path.display().to_string(),
            what: "is larger than what can be added to this pool".into(),
            hint: "give a smaller size=".into(),
        })?;
        let a = &areas[index];
        a.fd.store(open.fd, Relaxed);
        a.direct.store(u32::from(open.direct), Relaxed);
        a.priority.store(open.priority, Relaxed);
        a.kind.store(open.kind as u32, Relaxed);
        a.first_slot.store(first, Relaxed);
        a.slots.store(open.slots, Relaxed);
        a.errors.store(0, Relaxed);
        a.forget_past();
        a.costs.measured.store(0, Relaxed);
        if probed && let Some(measured) = probe::measure(open.fd) {
            a.costs.store(measured);
        }
        self.survey(index, open.fd, open.kind, first..first + open.slots);
        let h = self.header();
        let serial = h.area_serial.fetch_add(1, Relaxed) + 1;
        a.serial.store(serial, Relaxed);
        h.slots_high.fetch_max(first + open.slots, AcqRel);
        let joined = JoinedArea {
            fd: open.fd,
            identity: fs::identity(open.fd).unwrap_or_default(),
            first_slot: first,
            slots: open.slots,
        };
        self.areas.joined[index].put(&joined, serial);
        self.areas.publish();
        a.state.store(area::ON, Release);
        self.areas_changed();
        Ok(index)
    }

    /// The first slots in a row that are no area's.
    fn free_range(&self, slots: u64) -> Option<u64> {
        let used = self.header().areas.iter();
        let used = used.filter(|a| a.state.load(Acquire) != area::FREE);
        let mut used: Vec<Range<u64>> = used.map(|a| self.range_of(a)).collect();
        used.sort_by_key(|r| r.start);
        let mut at = 0;
        for r in used {
            if r.start.saturating_sub(at) >= slots {
                break;
            }
            at = at.max(r.end);
        }
        (at.checked_add(slots)? <= self.capacity).then_some(at)
    }

    /// Has an area emptied by everybody; it is off once that is done ([`Pool::end_emptied_areas`]). False: it is not on.
    pub fn take_off(&self, index: usize) -> bool {
        let Some(a) = self.segment_area(index) else {
            return false;
        };
        if a.state.load(Acquire) != area::ON {
            return false;
        }
        // What was emptied for an earlier attempt may have been filled again.
        let ticket = self.header().tickets.fetch_add(1, Relaxed) + 1;
        a.ticket.store(ticket, Relaxed);
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

    /// Record `me` has nothing left in area `index`, and nobody forked from it reads what it had there.
    pub fn note_emptied(&self, me: usize, index: usize, ticket: u32) {
        self.records()[me].emptied[index].store(ticket, SeqCst);
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
        let done = |i: usize| match records[i].state.load(Acquire) {
            state::FREE | state::ZOMBIE => true,
            state::LIVE => records[i].emptied[index].load(SeqCst) == ticket,
            _ => false,
        };
        (0..high).all(|i| done(i) || forked_from.is_some_and(|f| i == f || !descends(i, f)))
    }

    /// Ends the areas that every process has emptied; how many. The process that made the pool does this.
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
                record.is_some_and(|r| r.state.load(Acquire) == state::LIVE)
            };
            let range = self.range_of(a);
            let words = self
                .slot_words()
                .get(range.start as usize..range.end as usize);
            for (slot, w) in range.zip(words.unwrap_or(&[])) {
                // What is left was kept for forked children, by parents that have gone; or it was claimed too late, and the
                // claimer is about to see that.
                if let Ok(word) =
                    w.fetch_update(AcqRel, Acquire, |w| (!alive(w >> 16)).then_some(0))
                    && word != 0
                {
                    self.absolve(slot, word);
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

    /// Gives back the space of a nameless file, whoever still has it open.
    fn forget_file(&self, a: &Area, joined: Option<JoinedArea>) {
        if let Some(j) = joined
            && a.kind.load(Relaxed) == Kind::Nameless as u32
            && reaches(&j)
        {
            let _ = fs::truncate(j.fd, 0);
        }
    }

    /// Joins areas that came, leaves those that went: `private`, this thread has a descriptor table of its own, so that the maker's numbers are not
    /// its. To be called by kswapd, at `first`, and when [`Pool::areas_generation`] has changed.
    pub fn follow_areas(&self, min_fd: i32, private: bool, first: bool) {
        let h = self.header();
        let generation = h.areas_generation.load(Acquire);
        if self.areas.generation.load(Acquire) == generation && !first {
            return;
        }
        self.areas.generation.store(generation, Release);
        let maker = h.creator.load(Relaxed);
        for (i, a) in h.areas.iter().enumerate() {
            let state = a.state.load(Acquire);
            let serial = a.serial.load(Relaxed);
            let j = &self.areas.joined[i];
            let known = j.serial.load(Acquire);
            if state == area::FREE {
                if known != 0 {
                    self.leave(j, private || maker != process::pid());
                }
                continue;
            }
            if known == serial && (!private || j.get().is_some_and(|j| reaches(&j))) {
                continue;
            }
            match self.join_area(
                a,
                (maker == process::pid()).then_some(a.fd.load(Relaxed)),
                min_fd,
            ) {
                Ok(joined) => {
                    j.put(&joined, serial);
                    self.areas.publish();
                }
                // Not joined, so nothing is claimed there; tried again when something changes.
                Err(_) if known != 0 => {}
                Err(_) => self
                    .areas
                    .generation
                    .store(generation.wrapping_sub(1), Relaxed),
            }
        }
    }

    fn leave(&self, j: &Joined, close: bool) {
        let Some(joined) = j.get() else { return };
        j.serial.store(0, Release);
        self.areas.publish();
        self.areas
            .past
            .lock()
            .descriptors
            .push((joined.fd, joined.identity));
        if close && reaches(&joined) {
            fs::close(joined.fd);
        }
    }

    /// Opens an area of the segment; under number `at`, if given, else at or above `min_fd`.
    pub(super) fn join_area(&self, a: &Area, at: Option<i32>, min_fd: i32) -> Result<JoinedArea> {
        let range = self.range_of(a);
        if range.end - range.start != a.slots.load(Relaxed) {
            return Err(Errno::EINVAL);
        }
        let maker = self.header().creator.load(Relaxed);
        let flags = match a.direct.load(Relaxed) {
            1 => libc::O_DIRECT,
            _ => 0,
        };
        let new = open_of(maker, a.fd.load(Relaxed), flags)?;
        hold(new, a.kind.load(Relaxed)).inspect_err(|_| fs::close(new))?;
        let fd = match at {
            Some(at) if at == new => at,
            Some(at) => {
                // SAFETY: the number stands for this area in the maker's table, so in no other of its threads' for anything else of ours.
                let moved = unsafe { fs::dup_to(new, at) };
                fs::close(new);
                moved.map(|()| at)?
            }
            None => out_of_the_way(new, first_free((min_fd - APART).max(10))),
        };
        Ok(JoinedArea {
            fd,
            identity: fs::identity(fd)?,
            first_slot: range.start,
            slots: range.end - range.start,
        })
    }

    /// Opens an area in the calling thread's table, under the number that kswapd found for it; once, and only if that is free. A thread of the
    /// program's does so when it meets an area that was added since. Async-signal-safe. True: it can be read now.
    pub fn reach(&self, index: usize) -> bool {
        let Some(j) = self.areas.joined.get(index) else {
            return false;
        };
        let serial = j.serial.load(Acquire);
        let (Some(joined), Some(a)) = (j.get(), self.segment_area(index)) else {
            return false;
        };
        if j.reached.swap(serial, AcqRel) == serial {
            return false;
        }
        let (mut maker, mut number) = ([0u8; 20], [0u8; 20]);
        let mut path = [0u8; 64];
        let parts = [
            b"/proc/" as &[u8],
            fs::digits(self.maker().max(0) as u64, 10, &mut maker),
            b"/fd/",
            fs::digits(a.fd.load(Relaxed).max(0) as u64, 10, &mut number),
        ];
        for (to, from) in path.iter_mut().zip(parts.into_iter().flatten()) {
            *to = *from;
        }
        let Ok(path) = CStr::from_bytes_until_nul(&path) else {
            return false;
        };
        let direct = a.direct.load(Relaxed) == 1;
        let flags = if direct { libc::O_DIRECT } else { 0 };
        let Ok(new) = fs::open(path, libc::O_RDWR | flags, 0) else {
            return false;
        };
        let placed = fs::identity(new) == Ok(joined.identity)
            && fs::dup_above(new, joined.fd).is_ok_and(|at| {
                if at != joined.fd {
                    fs::close(at);
                }
                at == joined.fd
            });
        fs::close(new);
        placed
    }

    /// As [`Pool::follow_areas`] at the very beginning, in the program's table: all areas must be had.
    pub(super) fn join_areas(&self, min_fd: i32) -> std::result::Result<(), PoolError> {
        let h = self.header();
        self.areas
            .generation
            .store(h.areas_generation.load(Acquire), Relaxed);
        let maker = h.creator.load(Relaxed);
        for (i, a) in h.areas.iter().enumerate() {
            if a.state.load(Acquire) == area::FREE {
                continue;
            }
            let serial = a.serial.load(Relaxed);
            let joined = match self.join_area(a, None, min_fd) {
                Ok(joined) => joined,
                // It has just gone.
                Err(_) if a.state.load(Acquire) != area::ON => continue,
                Err(Errno::EINVAL) => return Err(PoolError::BadSegment),
                Err(e) => return Err(PoolError::Unreachable(maker, e)),
            };
            self.areas.joined[i].put(&joined, serial);
        }
        self.areas.publish();
        Ok(())
    }

    /// Closes what this process has open of areas that are gone. In a thread with the program's descriptors.
    pub fn close_past_areas(&self) {
        let mut past = self.areas.past.lock();
        for (fd, identity) in past.descriptors.drain(..) {
            if fs::identity(fd) == Ok(identity) {
                fs::close(fd);
            }
        }
    }
}

fn reaches(j: &JoinedArea) -> bool {
    fs::identity(j.fd) == Ok(j.identity)
}

/// Opens what process `of` has open as `fd`.
pub(super) fn open_of(of: i32, fd: i32, flags: i32) -> Result<i32> {
    let path = std::ffi::CString::new(format!("/proc/{of}/fd/{fd}")).map_err(|_| Errno::EINVAL)?;
    fs::open(&path, libc::O_RDWR | flags, 0)
}

/// How far below other descriptors of ours those of areas that were added are. (They stand for nothing yet in the program's table, where other threads take
/// numbers of their own.)
const APART: i32 = 256;

/// The first number from `min_fd` on that stands for nothing in the program's table (in which a thread of ours need not be).
fn first_free(min_fd: i32) -> i32 {
    let used = |fd: &i32| std::fs::symlink_metadata(format!("/proc/self/fd/{fd}")).is_ok();
    (min_fd..min_fd + 64).find(|fd| !used(fd)).unwrap_or(min_fd)
}

/// The same under a number at or above `min_fd`, where programs do not look.
pub(super) fn out_of_the_way(low: i32, min_fd: i32) -> i32 {
    match fs::dup_above(low, min_fd) {
        Ok(high) => {
            fs::close(low);
            high
        }
        Err(_) => low,
    }
}
