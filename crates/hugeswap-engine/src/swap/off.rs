//! Taking a swap area off while it is in use: each process moves what it has there to other areas,
//! whole units whole, pages by pages; what no other area has room for goes to memory.
//!
//! A thread made for the purpose does so, a unit at a time, under the unit's lock: a fault on that
//! unit waits for one transfer, no other thread waits. What is in memory and newer than the area
//! only loses its place there. No process writes to the area meanwhile, since no process claims
//! there (`Pool::still_on`), and it ends when every process has said that it has nothing left there
//! ([`Pool::end_emptied_areas`]). What a forked child may still read of this process's slots is
//! given up when all such children have moved away from it. What cannot be read ([`super::lose`])
//! stays where it is, and the area stays on its way off, until that is taken back, or what cannot
//! be read is to be given up.
//!
//! [`Pool::end_emptied_areas`]: crate::pool::Pool::end_emptied_areas

use super::{PAGES, Pages};
use crate::UNIT;
use crate::pages::record::Record;
use crate::pool::{JoinedArea, PoolError, SwapSpec};
use crate::reclaim::Reclaim;
use crate::store::BUFFER;
use crate::table::Locked;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::thp_swap::slots::used_singly;
use hugeswap_policy::unit::step::Event;
use hugeswap_policy::unit::{CLEAN, Kind, Place, WRITEBACK, Word};
use hugeswap_sys::signal::Blocked;
use hugeswap_sys::{Result, futex, process};
use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// Between attempts at what could not be moved.
const PAUSE_NS: u64 = 50_000_000;

/// One look at all units, for what they have in an area.
pub(super) struct Round<'a> {
    pub range: Range<u64>,
    /// What cannot be read may be given up.
    pub lose: bool,
    /// Of 2 MiB.
    pub buffer: &'a Pages,
    /// Pages that are nowhere else and could not be read.
    pub unreadable: Cell<u64>,
    /// Of the area: pages given up.
    pub lost: &'a AtomicU64,
}

/// Why something stays in the area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stays {
    /// No other has room.
    NoRoom,
    Unreadable,
    /// Another one took it, and failed.
    Unwritable,
}

impl Reclaim {
    /// Adds a swap area to the pool, which this process has made; its number. In a thread with the
    /// program's descriptors.
    pub fn add_area(&self, spec: &SwapSpec) -> std::result::Result<usize, PoolError> {
        let maker = self.pool.maker();
        if maker != process::pid() {
            return Err(PoolError::NotMaker(maker));
        }
        let _blocked = Blocked::all();
        self.pool.add_area(spec)
    }

    /// [`Pool::take_off`](crate::pool::Pool::take_off), for a thread of the program's.
    pub fn take_area_off(&self, index: usize, lose: bool) -> bool {
        let _blocked = Blocked::all();
        self.pool.take_off(index, lose)
    }

    /// [`Pool::keep_on`](crate::pool::Pool::keep_on), for a thread of the program's.
    pub fn keep_area_on(&self, index: usize) -> bool {
        let _blocked = Blocked::all();
        self.pool.keep_on(index)
    }

    /// Closes what the program's threads have open of areas that are gone.
    pub fn close_past_areas(&self) {
        let _blocked = Blocked::all();
        self.pool.close_past_areas();
    }

    /// kswapd: has areas emptied that are to be taken off, if there is any that this process has
    /// not emptied.
    pub(crate) fn empty_areas(&'static self) {
        let emptied = |(i, _, ticket): (usize, JoinedArea, u32)| {
            self.pool.record().emptied[i].load(Relaxed) == ticket
        };
        if self.pool.draining().all(emptied) || self.emptying.swap(true, Acquire) {
            return;
        }
        // If there is no thread to be had, the next call tries again.
        if self.spawn("hs-swapoff", move || self.empty_all()).is_err() {
            self.emptying.store(false, Relaxed);
        }
    }

    /// The thread's body.
    fn empty_all(&'static self) {
        if let Ok(buffer) = Pages::new(UNIT) {
            loop {
                let mut left = false;
                for (i, area, ticket) in self.pool.draining() {
                    if self.pool.record().emptied[i].load(Relaxed) != ticket {
                        left |= !self.empty_area(i, &area, ticket, &buffer);
                    }
                }
                if !left || self.stopping.load(Acquire) {
                    break;
                }
                let seen = self.work_seq.load(Acquire);
                futex::wait(&self.work_seq, seen, Some(PAUSE_NS), false);
            }
        }
        self.emptying.store(false, Relaxed);
    }

    /// One round over all units; true if this process has nothing left there.
    fn empty_area(&self, index: usize, area: &JoinedArea, ticket: u32, buffer: &Pages) -> bool {
        let Some(shared) = self.pool.header().areas.get(index) else {
            return true;
        };
        let round = Round {
            range: area.range(),
            lose: shared.losing.load(Acquire) == ticket,
            buffer,
            unreadable: Cell::new(0),
            lost: &shared.lost,
        };
        let range = area.range();
        // (What the last round found stands until this one has found more, or is over.)
        let before = self.pool.unreadable_of(self.pool.me(), index, ticket);
        let only = self.pool.only_unreadable_of(self.pool.me(), index, ticket);
        let moved = self.places_moved.load(Acquire);
        let (mut left, mut other_left) = (false, false);
        for unit in 0..self.high_unit.load(Acquire) {
            let there = |w: Word| match w.place() {
                Place::Cluster(cluster) => range.contains(&cluster),
                place => place == Place::Singles,
            };
            if !there(self.table.load(unit)) {
                continue;
            }
            let unreadable = round.unreadable.get();
            self.pool
                .note_unreadable(self.pool.me(), index, ticket, unreadable.max(before), only);
            // A fork waits for one unit at most.
            let _inside = self.gate.enter_daemon();
            // (Another attempt, perhaps one that may lose what this one must not, begins anew.)
            let stale = shared.ticket.load(Relaxed) != ticket;
            if stale || self.stopping.load(Acquire) || !self.pool.is_draining(range.start) {
                return false;
            }
            match self
                .table
                .try_lock_if(unit, |w| there(w) && !w.has(WRITEBACK))
            {
                Some(w) => {
                    let stays = !self.move_off(w, &round);
                    left |= stays;
                    other_left |= stays && round.unreadable.get() == unreadable;
                }
                None => other_left |= there(self.table.load(unit)),
            }
        }
        left |= other_left;
        let _inside = self.gate.enter_daemon();
        // What went from behind us to before us was not seen.
        let unseen = self.places_moved.load(Acquire) != moved;
        let only = left && !other_left && !unseen;
        self.pool
            .note_unreadable(self.pool.me(), index, ticket, round.unreadable.get(), only);
        left |= unseen;
        if left || !self.give_up_kept(index, &range, ticket) {
            return false;
        }
        if !self.sharing.leave_area_of(self.host(), &range) {
            return false;
        }
        self.let_go_of_bad(&range);
        if self.owns_any(&range) {
            return false;
        }
        self.pool.note_emptied(self.pool.me(), index, ticket);
        true
    }

    /// Of split clusters from which all has moved away only what is bad is in use.
    fn let_go_of_bad(&self, range: &Range<u64>) {
        for c in range.clone().filter(|&c| self.pool.owns_cluster(c)) {
            let word = self.pool.cluster_words().get(c as usize);
            let used = word.and_then(|w| used_singly(w.load(Acquire)));
            let bad = self.pool.bad_slots(c, 0..PAGES);
            if used.is_some_and(|n| n as usize == bad) && self.pool.quarantine(c, self.pool.me()) {
                self.store.not_owned(c);
            }
        }
    }

    fn owns_any(&self, range: &Range<u64>) -> bool {
        range.clone().any(|c| self.pool.owns_cluster(c))
    }

    /// Gives up what is kept in `range` for forked children. False: one may still read it.
    fn give_up_kept(&self, index: usize, range: &Range<u64>, ticket: u32) -> bool {
        if !self.store.kept.has_children() {
            return true;
        }
        self.pool.descendants_emptied(self.pool.me(), index, ticket) && {
            self.store.release_kept_in(range);
            true
        }
    }

    /// Moves what a locked unit has in the area elsewhere, and unlocks it. False: it has something
    /// there still.
    fn move_off(&self, mut w: Locked<'_>, round: &Round) -> bool {
        let was = *w;
        // It has seen to its old place itself.
        let mut elsewhere = false;
        let gone = match w.kind() {
            Kind::Base => self.move_pages_off(&mut w, round),
            // Memory has what is newer.
            Kind::Present | Kind::Foreign if !w.has(CLEAN) => {
                self.drop_place_in(&mut w, &round.range)
            }
            _ if (w.place() == Place::Singles) => self.move_singles_off(&mut w, round),
            Kind::Swapped => match self.copy_off(&mut w, round.buffer) {
                Ok(()) => true,
                Err(Stays::NoRoom) => return self.bring_off(w, round.buffer),
                Err(Stays::Unreadable) => self.move_what_is_left(&mut w, round),
                Err(Stays::Unwritable) => false,
            },
            kind => match self.copy_off(&mut w, round.buffer) {
                Ok(()) => true,
                // In memory, where it may as well be the only copy.
                Err(why) if kind == Kind::Present || why == Stays::Unreadable => {
                    elsewhere = kind == Kind::Cached;
                    self.move_from_memory(&mut w)
                }
                Err(_) => false,
            },
        };
        if let Some(old) = was.cluster()
            && gone
            && round.range.contains(&old)
            && w.place() != was.place()
            && !elsewhere
        {
            self.store.free_cluster(old);
        }
        w.settle();
        gone
    }

    /// The unit has no place any more, if that is in `range`. (A cluster is the caller's to free.)
    /// False: it cannot be told.
    fn drop_place_in(&self, w: &mut Locked<'_>, range: &Range<u64>) -> bool {
        if w.place() == Place::Singles {
            let Some(places) = self.store.scatter.of(w.unit()) else {
                return false;
            };
            let there = |p| places.get(p).is_some_and(|s| range.contains(&s.cluster));
            if !(0..PAGES).any(there) {
                return true;
            }
            self.store.free_pages(places, 0..PAGES);
        }
        self.advance(w, Event::Placed(Place::Nothing));
        true
    }

    /// Copies a unit's cluster to another area, where its place is then.
    fn copy_off(&self, w: &mut Locked<'_>, buffer: &Pages) -> std::result::Result<(), Stays> {
        let from = w.cluster().ok_or(Stays::Unreadable)?;
        if self.pool.is_bad_or_lost(from, 0..PAGES) {
            return Err(Stays::Unreadable);
        }
        self.read_off(from, buffer).map_err(|_| Stays::Unreadable)?;
        self.write_off(w, buffer)
    }

    /// Writes all of a unit's cluster, which `buffer` holds, to another area, where its place is
    /// then.
    pub(super) fn write_off(
        &self,
        w: &mut Locked<'_>,
        buffer: &Pages,
    ) -> std::result::Result<(), Stays> {
        let sums = w
            .cluster()
            .and_then(|from| self.pool.cluster_sums().get(from as usize));
        let sums = sums.ok_or(Stays::Unreadable)?;
        let sums = sums.each_ref().map(|s| s.load(Acquire));
        let to = self.store.claim_cluster().ok_or(Stays::NoRoom)?;
        if self
            .store
            .write(to, 0..PAGES, buffer.addr(), &sums, false)
            .is_err()
        {
            self.store.release_cluster(to);
            return Err(Stays::Unwritable);
        }
        self.pool.count(Counter::SwapMoved, PAGES as u64);
        self.advance(w, Event::Placed(Place::Cluster(to)));
        Ok(())
    }

    fn read_off(&self, from: u64, buffer: &Pages) -> Result<()> {
        let read = || self.store.read(from, 0..PAGES, buffer.addr(), false);
        read().or_else(|_| read()).or_else(|_| read())
    }

    /// Brings a locked unit, which `buffer` holds, to memory, where it has no place in swap;
    /// unlocks it.
    fn bring_off(&self, mut w: Locked<'_>, buffer: &Pages) -> bool {
        let unit = w.unit();
        if self.markers.is_marked(unit) {
            // The next round deals with its pages.
            self.go_over_to_pages(&mut w);
            w.settle();
            return false;
        }
        let (Some(old), Some(frame)) = (w.cluster(), self.get_frame_nowait()) else {
            w.settle();
            return false;
        };
        let at = self.arena.addr(frame.place);
        // SAFETY: the frame is ours, and both are of one unit.
        unsafe { std::ptr::copy_nonoverlapping(buffer.addr() as *const u8, at as *mut u8, UNIT) };
        // (Write tracking is told of the first.)
        match self.map_frame(&w, frame.place, !self.track.is_tracked(unit)) {
            Ok(event) => {
                self.store.free_cluster(old);
                self.advance(&mut w, event);
                self.settle_by(w, Event::Placed(Place::Nothing));
                self.arena.put_empty(frame.place);
                self.pool.count(Counter::SwapMoved, PAGES as u64);
                true
            }
            Err(_) => {
                self.arena.put_free(frame.place);
                w.settle();
                false
            }
        }
    }

    /// A base-mapped unit's pages. Have they left?
    fn move_pages_off(&self, w: &mut Locked<'_>, round: &Round) -> bool {
        if w.place() == Place::Singles {
            return self.move_singles_off(w, round);
        }
        let unit = w.unit();
        let record = self.base.records.of(unit);
        let known_bad = w
            .cluster()
            .is_some_and(|s| self.pool.is_bad_or_lost(s, 0..PAGES));
        let mut lost = 0;
        // What copies to a cluster elsewhere, and if that cannot be read, with what can be read of
        // it.
        for settle in [false, true] {
            if settle || known_bad {
                let Some(n) = self.settle_pages(unit, **w, record, round) else {
                    return false;
                };
                lost = n;
            }
            // Memory has what is newer.
            let mut next = 0;
            while let Some(run) = record.dirty.run(next, PAGES, true) {
                next = run.end;
                record.stored.put(run, false);
            }
            if !record.stored.any() {
                self.advance(w, Event::Placed(Place::Nothing));
                return true;
            }
            match self.copy_pages_off(w, record) {
                Ok(()) => {
                    round.note_lost(lost);
                    return true;
                }
                Err(Stays::Unreadable) if !known_bad => {}
                Err(_) => break,
            }
        }
        false
    }

    /// Copies what is stored of a base-mapped unit to a cluster of another area, which is its place
    /// then.
    pub(super) fn copy_pages_off(
        &self,
        w: &mut Locked<'_>,
        record: &Record,
    ) -> std::result::Result<(), Stays> {
        let from = w.cluster().ok_or(Stays::Unreadable)?;
        let to = self.store.claim_cluster().ok_or(Stays::NoRoom)?;
        if !self.copy_cluster(w.unit(), from, to, record) {
            self.store.release_cluster(to);
            return Err(Stays::Unreadable);
        }
        self.pool.count(Counter::SwapMoved, record.stored.count());
        self.advance(w, Event::Placed(Place::Cluster(to)));
        Ok(())
    }

    /// A scattered unit's single slots. Have all left?
    fn move_singles_off(&self, w: &mut Locked<'_>, round: &Round) -> bool {
        let Some(places) = self.store.scatter.of(w.unit()) else {
            return true;
        };
        let range = &round.range;
        let moved = {
            let buffer = self.base.take_buffer();
            self.store.move_singles(
                places,
                |cluster| range.contains(&cluster),
                |want| self.store.claim_singles(want.min(BUFFER / super::PAGE)),
                buffer.addr(),
            )
        };
        let there = |p| places.get(p).is_some_and(|s| range.contains(&s.cluster));
        match (0..PAGES).any(there) {
            true if moved => self.move_singles_left(w, places, round),
            left => !left,
        }
    }
}
