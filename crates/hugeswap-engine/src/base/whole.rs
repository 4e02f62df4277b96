//! From base pages back to a huge page: what is present is copied into a frame, the rest is read there, and the frame
//! takes the pages' place. The rules of the fault path hold.

use super::PAGE;
use super::record::Record;
use crate::engine::{Engine, Job};
use crate::fault::Outcome;
use hugeswap_policy::UNIT_PAGES;
use hugeswap_policy::counters::{Counter, FaultClass};
use hugeswap_policy::file::FilePlace;
use hugeswap_policy::frames::Frame;
use hugeswap_policy::unit::{CLEAN, Kind, LOCKED, MAY_WRITE, WAITERS, WRITABLE, Word};
use hugeswap_sys::{Errno, now_ns};

const PAGES: usize = UNIT_PAGES as usize;

/// Why a unit could not be made whole.
pub(crate) enum NotWhole {
    /// What is absent of it could not be read, or what is present not be write-protected.
    Gather(Errno),
    /// The limit on mappings is met.
    Mappings,
}

impl Engine {
    /// Makes a locked, base-mapped unit a present one, and unlocks it. `None`: look at the unit again.
    pub(crate) fn make_whole(
        &self,
        unit: u32,
        w: Word,
        write: bool,
        start: u64,
    ) -> Option<Outcome> {
        let Some(frame) = self.get_frame_nowait() else {
            self.table.unlock(unit, w);
            let Some(frame) = self.get_frame() else {
                return Some(Outcome::NoMemory);
            };
            self.arena.put_free(frame.place);
            return None;
        };
        self.make_whole_with(frame, unit, w, write, start)
    }

    pub(super) fn make_whole_with(
        &self,
        frame: Frame,
        unit: u32,
        w: Word,
        write: bool,
        start: u64,
    ) -> Option<Outcome> {
        let began = now_ns();
        match self.become_whole(frame, unit, w, write) {
            Ok(()) => {
                self.sizes.observe_fill(now_ns().saturating_sub(began));
                self.count(Counter::ThpCollapse, 1);
                self.done(unit, FaultClass::Major, start)
            }
            Err(NotWhole::Mappings) => {
                self.table.unlock(unit, w);
                self.mappings_exhausted(start)
            }
            Err(NotWhole::Gather(e)) => {
                let record = self.base.records.of(unit);
                if e == Errno::EIO && self.has_news_of_bad_slots(unit, w, record) {
                    self.table.unlock(unit, w);
                    return None;
                }
                // Between the parts of a fork those who could do better are at rest.
                if e == Errno::EIO || self.gate.is_forker() {
                    self.note_read_error(w);
                    self.table.unlock(unit, w);
                    return Some(Outcome::Poisoned);
                }
                self.hand_over(unit, w)
            }
        }
    }

    /// Makes a locked, base-mapped unit a present one and unlocks it. If that fails it is locked and base-mapped still, and the
    /// frame is free.
    pub(crate) fn become_whole(
        &self,
        frame: Frame,
        unit: u32,
        w: Word,
        write: bool,
    ) -> Result<(), NotWhole> {
        let record = self.base.records.of(unit);
        let at = self.arena.addr(frame.place);
        if let Err(e) = self.gather(unit, w, record, at) {
            self.arena.put_free(frame.place);
            return Err(NotWhole::Gather(e));
        }
        if self.is_marked(unit) {
            let Ok(new) = self.map_marked(unit, w, frame.place) else {
                self.arena.put_free(frame.place);
                return Err(NotWhole::Mappings);
            };
            self.arena.put_empty(frame.place);
            self.forget_pages(unit);
            self.table.unlock(unit, new);
            return Ok(());
        }
        let changed = record.dirty.any() || !record.stored.all() && !w.is_scattered();
        let now = changed && !self.is_tracked(unit);
        let writable = (write || now || !self.mover().arrives_clean()) && w.has(MAY_WRITE);
        if writable {
            self.note_written(unit);
        }
        if self.move_in(frame.place, unit, writable).is_err() {
            // The limit on mappings is met before anything is changed.
            self.arena.put_free(frame.place);
            return Err(NotWhole::Mappings);
        }
        self.let_inherit(unit);
        self.arena.put_empty(frame.place);
        self.forget_pages(unit);
        let new = w.with_kind(Kind::Present);
        let new = match (writable, changed) {
            (true, _) => new.set(WRITABLE),
            (false, false) => new.set(CLEAN),
            (false, true) => new,
        };
        self.table.unlock(unit, new);
        Ok(())
    }

    /// Not all of a locked, base-mapped unit could be read. True if that was not known, and from now on what can be read of it comes
    /// by the page.
    #[inline(never)]
    fn has_news_of_bad_slots(&self, unit: u32, w: Word, record: &Record) -> bool {
        if FilePlace::of(w).is_some() || self.is_partly_bad(unit, w) {
            return false;
        }
        let buffer = self.base.take_buffer();
        let absent = |p: &usize| record.stored.get(*p) && !record.present.get(*p);
        for page in (0..PAGES).filter(absent) {
            // What fails is marked.
            let _ = self.read_or_mark(unit, w, page, buffer.addr(), true);
        }
        self.is_partly_bad(unit, w)
    }

    /// Copies or reads all of a unit to the frame at `to`.
    fn gather(&self, unit: u32, w: Word, record: &Record, to: usize) -> Result<(), Errno> {
        let at = self.table.addr(unit);
        if record.present.any() {
            // Nobody changes what is being copied.
            self.freeze(unit, &record.present)?;
        }
        let mut page = 0;
        while page < PAGES {
            let (present, stored) = (record.present.get(page), record.stored.get(page));
            let same =
                |p: usize| record.present.get(p) == present && record.stored.get(p) == stored;
            let end = (page..PAGES).find(|&p| !same(p)).unwrap_or(PAGES);
            let (from, dest, len) = (at + page * PAGE, to + page * PAGE, (end - page) * PAGE);
            if present {
                // SAFETY: present pages are readable and stay while the unit is locked; the frame is ours.
                unsafe { std::ptr::copy_nonoverlapping(from as *const u8, dest as *mut u8, len) };
            } else if stored {
                self.read_stored(unit, w, page..end, dest)?;
            } else {
                // SAFETY: the frame is ours.
                unsafe { std::ptr::write_bytes(dest as *mut u8, 0, len) };
            }
            page = end;
        }
        Ok(())
    }

    /// What [`Engine::hand_over`] handed over.
    pub(crate) fn whole_handed(&self, unit: u32) {
        let w = self.table.load(unit).clear(LOCKED | WAITERS);
        match self.get_frame_nowait() {
            Some(frame) => {
                let _ = self.make_whole_with(frame, unit, w, false, now_ns());
            }
            // The fault will be back.
            None => self.table.unlock(unit, w),
        }
    }

    /// Has an I/O thread make a locked unit whole; the lock goes with the job. `None`: look at the unit again.
    pub(crate) fn hand_over(&self, unit: u32, w: Word) -> Option<Outcome> {
        // The job finds the word in the table.
        self.table.put_locked(unit, w);
        while self.reads.push(Job::Whole(unit)).is_err() {
            hugeswap_sys::process::yield_now();
        }
        self.wake_workers(1);
        None
    }
}
