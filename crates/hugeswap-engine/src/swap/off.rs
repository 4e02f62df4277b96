//! Taking a swap area off while it is in use: each process moves what it has there to other areas, whole units whole, pages
//! by pages; what no other area has room for goes to memory.
//!
//! A thread made for it does so, a unit at a time, under the unit's lock: whoever faults on that unit waits for one transfer, nobody else waits. What is in
//! memory and newer than the area only loses its place there. The area is written to by nobody meanwhile, since nothing is claimed in it
//! (`Pool::still_on`), and it ends when every process has said that it has nothing left there ([`Pool::end_emptied_areas`]). What a
//! forked child may still read of this process's is given up when all such children have moved away from it.
//! What cannot be read stays where it is, and the area on its way off with it, until that is taken back.
//!
//! [`Pool::end_emptied_areas`]: crate::pool::Pool::end_emptied_areas

use super::{PAGES, Pages};
use crate::base::{BUFFER, record::Record};
use crate::engine::{Engine, UNIT};
use crate::pool::{JoinedArea, PoolError, SwapSpec};
use hugeswap_policy::counters::Counter;
use hugeswap_policy::unit::{CLEAN, Kind, READAHEAD, WATCHED, WRITEBACK, Word};
use hugeswap_sys::signal::Blocked;
use hugeswap_sys::{Errno, Result, futex, process};
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// Between attempts at what could not be moved.
const PAUSE_NS: u64 = 50_000_000;

impl Engine {
    /// Adds a swap area to the pool, which this process has made; its number. In a thread with the program's descriptors.
    pub fn add_area(&self, spec: &SwapSpec) -> std::result::Result<usize, PoolError> {
        let maker = self.pool.maker();
        if maker != process::pid() {
            return Err(PoolError::NotMaker(maker));
        }
        let _blocked = Blocked::all();
        self.pool.add_area(spec)
    }

    /// [`Pool::take_off`](crate::pool::Pool::take_off), for a thread of the program's.
    pub fn take_area_off(&self, index: usize) -> bool {
        let _blocked = Blocked::all();
        self.pool.take_off(index)
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

    /// kswapd: has areas emptied that are to be taken off, if there is any that this process has not emptied.
    pub(crate) fn empty_areas(&'static self) {
        let emptied = |(i, _, ticket): (usize, JoinedArea, u32)| {
            self.record().emptied[i].load(Relaxed) == ticket
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
                    if self.record().emptied[i].load(Relaxed) != ticket {
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
        let range = area.range();
        let moved = self.places_moved.load(Acquire);
        let mut left = false;
        for unit in 0..self.high_unit.load(Acquire) {
            let there = |w: Word| w.is_scattered() || w.slot().is_some_and(|s| range.contains(&s));
            if !there(self.table.load(unit)) {
                continue;
            }
            // A fork waits for one unit at most.
            let _inside = self.gate.enter_daemon();
            if self.stopping.load(Acquire) || !self.pool.is_draining(range.start) {
                return false;
            }
            match self
                .table
                .try_lock_if(unit, |w| there(w) && !w.has(WRITEBACK))
            {
                Some(w) => left |= !self.move_off(unit, w, &range, buffer),
                None => left |= there(self.table.load(unit)),
            }
        }
        let _inside = self.gate.enter_daemon();
        // What went from behind us to before us was not seen.
        left |= self.places_moved.load(Acquire) != moved;
        if left || !self.give_up_kept(index, &range, ticket) || self.owns_any(&range) {
            return false;
        }
        self.pool.note_emptied(self.me(), index, ticket);
        true
    }

    fn owns_any(&self, range: &Range<u64>) -> bool {
        range.clone().any(|c| self.owns_slot(c))
    }

    /// Gives up what is kept in `range` for forked children. False: one may still read it.
    fn give_up_kept(&self, index: usize, range: &Range<u64>, ticket: u32) -> bool {
        if !self.maybe_children.load(Relaxed) {
            return true;
        }
        self.pool.descendants_emptied(self.me(), index, ticket) && {
            self.release_deferred_in(range);
            true
        }
    }

    /// Moves what a locked unit has in `range` elsewhere, and unlocks it. False: it has something there still.
    fn move_off(&self, unit: u32, w: Word, range: &Range<u64>, buffer: &Pages) -> bool {
        let new = match w.kind() {
            Kind::Base => self.move_pages_off(unit, w, range),
            // Memory has what is newer.
            Kind::Present if !w.has(CLEAN) => self.drop_place_in(unit, w, range),
            _ if w.is_scattered() => self.move_singles_off(unit, w, range),
            Kind::Swapped => match self.copy_off(w, buffer) {
                Err(Errno::ENOSPC) => return self.bring_off(unit, w, buffer),
                moved => moved.ok(),
            },
            _ => match self.copy_off(w, buffer) {
                // In memory, where it may as well be the only copy.
                Err(_) if w.kind() == Kind::Present && !w.has(WATCHED) => {
                    Some(w.clear(CLEAN).with_slot(None))
                }
                moved => moved.ok(),
            },
        };
        if let (Some(old), Some(new)) = (w.slot(), new)
            && range.contains(&old)
            && new.slot() != w.slot()
        {
            self.free_cluster(old);
        }
        self.table.unlock(unit, new.unwrap_or(w));
        new.is_some()
    }

    /// The word without its place, if that is in `range`. (A cluster is the caller's to free.)
    fn drop_place_in(&self, unit: u32, w: Word, range: &Range<u64>) -> Option<Word> {
        if !w.is_scattered() {
            return Some(w.with_slot(None));
        }
        let places = self.placing.scatter.of(unit)?;
        let there = |p| places.get(p).is_some_and(|s| range.contains(&s.cluster));
        if !(0..PAGES).any(there) {
            return Some(w);
        }
        self.free_pages(places, 0..PAGES);
        Some(w.with_slot(None))
    }

    /// Copies a unit's cluster to another area; the word with that. ENOSPC: no other has room.
    fn copy_off(&self, w: Word, buffer: &Pages) -> Result<Word> {
        let from = w.slot().ok_or(Errno::EIO)?;
        self.read_off(from, buffer)?;
        let sums = self.pool.slot_sums().get(from as usize).ok_or(Errno::EIO)?;
        let sums = sums.each_ref().map(|s| s.load(Acquire));
        let to = self.claim_cluster().ok_or(Errno::ENOSPC)?;
        let written = self.swap_write(to, 0..PAGES, buffer.addr(), &sums, false);
        if let Err(e) = written {
            self.count(Counter::SwapWriteError, 1);
            self.release_cluster(to);
            return Err(e);
        }
        self.count(Counter::SwapMoved, PAGES as u64);
        Ok(w.with_slot(Some(to)))
    }

    fn read_off(&self, from: u64, buffer: &Pages) -> Result<()> {
        let read = || self.swap_read(from, 0..PAGES, buffer.addr(), false);
        read().or_else(|_| read()).or_else(|_| read())
    }

    /// Brings a locked unit, which `buffer` holds, to memory, where it has no place in swap; unlocks it.
    fn bring_off(&self, unit: u32, w: Word, buffer: &Pages) -> bool {
        let (Some(old), Some(frame)) = (w.slot(), self.get_frame_nowait()) else {
            self.table.unlock(unit, w);
            return false;
        };
        let at = self.arena.addr(frame.place);
        // SAFETY: the frame is ours, and both are of one unit.
        unsafe { std::ptr::copy_nonoverlapping(buffer.addr() as *const u8, at as *mut u8, UNIT) };
        match self.map_frame(unit, w, frame.place, true) {
            Some(new) => {
                self.free_cluster(old);
                let new = new.with_slot(None).clear(CLEAN | READAHEAD);
                self.table.unlock(unit, new);
                self.arena.put_empty(frame.place);
                self.note_resident(unit);
                self.count(Counter::SwapMoved, PAGES as u64);
                true
            }
            None => {
                self.arena.put_free(frame.place);
                self.table.unlock(unit, w);
                false
            }
        }
    }

    /// A base-mapped unit's pages.
    fn move_pages_off(&self, unit: u32, w: Word, range: &Range<u64>) -> Option<Word> {
        let record = self.base.records.of(unit);
        if w.is_scattered() {
            return self.move_singles_off(unit, w, range);
        }
        // Memory has what is newer.
        let mut next = 0;
        while let Some(run) = record.dirty.run(next, PAGES, true) {
            next = run.end;
            record.stored.put(run, false);
        }
        if !record.stored.any() {
            return Some(w.with_slot(None));
        }
        self.copy_pages_off(w, record)
    }

    fn copy_pages_off(&self, w: Word, record: &Record) -> Option<Word> {
        let from = w.slot()?;
        let to = self.claim_cluster()?;
        if !self.copy_slot(from, to, record) {
            self.release_cluster(to);
            return None;
        }
        self.count(Counter::SwapMoved, record.stored.count());
        Some(w.with_slot(Some(to)))
    }

    /// A scattered unit's single slots; the word is the same.
    fn move_singles_off(&self, unit: u32, w: Word, range: &Range<u64>) -> Option<Word> {
        let Some(places) = self.placing.scatter.of(unit) else {
            return Some(w);
        };
        let buffer = self.base.take_buffer();
        let moved = self.move_singles(
            places,
            |cluster| range.contains(&cluster),
            |want| self.claim_singles(want.min(BUFFER / super::PAGE)),
            &buffer,
        );
        let there = |p| places.get(p).is_some_and(|s| range.contains(&s.cluster));
        (moved && !(0..PAGES).any(there)).then_some(w)
    }
}
