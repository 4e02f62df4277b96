//! From base pages back to a huge page: what is present is copied into a frame, the rest is read
//! there, and the frame takes the pages' place. The rules of the fault path hold.

use super::PAGE;
use crate::PAGES;
use crate::bits::Bits;
use crate::call::{Call, CallError};
use crate::outcome::{Fault, Outcome};
use crate::pages::record::Record;
use crate::paging::Job;
use crate::paging::Paging;
use crate::store::holes::Wanted;
use crate::table::Locked;
use hugeswap_policy::counters::{Counter, FaultClass};
use hugeswap_policy::defrag::frames::Frame;
use hugeswap_policy::unit::step::Event;
use hugeswap_policy::unit::{MAY_WRITE, Place, Word};
use hugeswap_sys::{Errno, now_ns};

/// Why a unit is made whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A read, or a wish to have it in memory.
    Read,
    /// A write.
    Write,
    /// It is khugepaged's choice.
    Khugepaged,
}

/// Why a unit could not be made whole.
pub(crate) enum NotWhole {
    /// What is absent of it could not be read: EIO, or EBADF if this thread's descriptors are to
    /// blame.
    Read(Errno),
    /// What is present could not be write-protected, or the frame not be mapped.
    Map(CallError),
}

impl Paging {
    /// Makes a locked, base-mapped unit a present one, and unlocks it. `None`: look at the unit
    /// again.
    pub(crate) fn make_whole(&self, w: Locked<'_>, fault: Fault) -> Option<Outcome> {
        let Some(frame) = self.get_frame_nowait() else {
            w.settle();
            let Some(frame) = self.get_frame() else {
                return Some(Outcome::NoMemory);
            };
            self.arena.put_free(frame.place);
            return None;
        };
        self.make_whole_with(frame, w, fault)
    }

    pub(super) fn make_whole_with(
        &self,
        frame: Frame,
        mut w: Locked<'_>,
        fault: Fault,
    ) -> Option<Outcome> {
        let (began, unit) = (now_ns(), w.unit());
        let cause = if fault.write {
            Cause::Write
        } else {
            Cause::Read
        };
        let apart = self.store.is_far_apart(unit, w.place());
        match self.become_whole(frame, &mut w, cause) {
            Ok(()) => {
                w.settle();
                if !apart {
                    self.sizes.observe_fill(now_ns().saturating_sub(began));
                }
                self.timed(FaultClass::Major, fault)
            }
            // This thread's descriptors may be the program's by now.
            Err(NotWhole::Map(e)) if matches!(e.errno, Errno::EBADF | Errno::ENOTTY) => {
                self.hand_over(w, e, fault.start)
            }
            Err(NotWhole::Map(e)) => {
                w.settle();
                self.not_mapped(e, fault.start)
            }
            Err(NotWhole::Read(e)) => {
                let record = self.base.records.of(unit);
                if e == Errno::EIO && self.has_news_of_bad_slots(unit, *w, record) {
                    w.settle();
                    return None;
                }
                // Between the parts of a fork the threads that could do better are at rest.
                if e == Errno::EIO || self.gate.is_forker() {
                    self.note_read_error(*w);
                    w.settle();
                    return Some(Outcome::Poisoned);
                }
                self.hand_over(w, Call::Read.failed(e), fault.start)
            }
        }
    }

    /// Makes a base-mapped unit a present one. If that fails it is base-mapped still, and the frame
    /// is free.
    pub(crate) fn become_whole(
        &self,
        frame: Frame,
        w: &mut Locked<'_>,
        cause: Cause,
    ) -> Result<(), NotWhole> {
        let unit = w.unit();
        let record = self.base.records.of(unit);
        let at = self.arena.addr(frame.place);
        if let Err(e) = self.gather(unit, **w, record, at) {
            self.arena.put_free(frame.place);
            return Err(e);
        }
        if self.markers.is_marked(unit) {
            let mapped = self.map_marked(w, frame.place);
            let event = mapped.map_err(|e| {
                self.arena.put_free(frame.place);
                NotWhole::Map(e)
            })?;
            self.arena.put_empty(frame.place);
            self.forget_pages(unit);
            self.advance(w, event);
            return Ok(());
        }
        self.markers.set_parted(unit, false);
        let changed = record.dirty.any() || !record.stored.all() && w.place() != Place::Singles;
        let now = changed && !self.track.is_tracked(unit);
        let writable = (cause == Cause::Write || now || !self.backend.can().arrives_read_only)
            && w.has(MAY_WRITE);
        if writable {
            self.track.note_written(unit);
        }
        if let Err(e) = self.move_in(frame.place, unit, writable) {
            // It fails before anything is changed.
            self.arena.put_free(frame.place);
            return Err(NotWhole::Map(e));
        }
        self.let_inherit(unit);
        self.arena.put_empty(frame.place);
        self.forget_pages(unit);
        let whole = Event::BecameWhole {
            writable,
            clean: !changed,
            khugepaged: cause == Cause::Khugepaged,
        };
        self.advance(w, whole);
        Ok(())
    }

    /// Not all of a locked, base-mapped unit could be read. True if that was not known, and from
    /// now on what can be read of it comes by the page.
    #[inline(never)]
    fn has_news_of_bad_slots(&self, unit: u32, w: Word, record: &Record) -> bool {
        if w.file().is_some() || self.store.is_partly_bad(unit, w.place()) {
            return false;
        }
        let buffer = self.base.take_buffer();
        let absent = |p: &usize| record.stored.get(*p) && !record.present.get(*p);
        for page in (0..PAGES).filter(absent) {
            // What fails is marked.
            let _ = self.read_or_mark(unit, w, page, buffer.addr(), true);
        }
        self.store.is_partly_bad(unit, w.place())
    }

    /// Copies or reads all of a unit to the frame at `to`.
    fn gather(&self, unit: u32, w: Word, record: &Record, to: usize) -> Result<(), NotWhole> {
        let at = self.table.addr(unit);
        if record.present.any() {
            // No thread changes what is being copied.
            let frozen = self.freeze(unit, &record.present, 0);
            frozen.map_err(NotWhole::Map)?;
        }
        // (It fills what lies between as well, so it comes first.)
        let (holes, had) = (Bits::none(), Bits::none());
        holes.copy(&record.stored);
        holes.take_out(&record.present);
        if holes.runs() > 1 {
            let wanted = Wanted { pages: &holes, to };
            self.store.read_holes(unit, w.place(), &wanted, &had);
        }
        let state = |p: usize| (record.present.get(p), record.stored.get(p), had.get(p));
        let mut page = 0;
        while page < PAGES {
            let (present, stored, read) = state(page);
            let same = |p: usize| state(p) == (present, stored, read);
            let end = (page..PAGES).find(|&p| !same(p)).unwrap_or(PAGES);
            let (from, dest, len) = (at + page * PAGE, to + page * PAGE, (end - page) * PAGE);
            if present {
                // SAFETY: present pages are readable and stay while the unit is locked; the frame
                // is ours.
                unsafe { std::ptr::copy_nonoverlapping(from as *const u8, dest as *mut u8, len) };
            } else if stored && !read {
                self.read_stored(unit, w, page..end, dest)
                    .map_err(NotWhole::Read)?;
            } else if !stored {
                // SAFETY: the frame is ours.
                unsafe { std::ptr::write_bytes(dest as *mut u8, 0, len) };
            }
            page = end;
        }
        Ok(())
    }

    /// What [`Paging::hand_over_whole`] handed over.
    pub(crate) fn whole_handed(&self, unit: u32) {
        let mut w = self.table.passed(unit);
        let done = match self.get_frame_nowait() {
            Some(frame) => self.become_whole(frame, &mut w, Cause::Read),
            // The fault will be back.
            None => return w.settle(),
        };
        match done {
            Ok(()) => w.settle(),
            Err(NotWhole::Read(Errno::EIO)) => {
                // From now on what can be read of it comes by the page; a thread that needs the
                // rest is told.
                self.has_news_of_bad_slots(unit, *w, self.base.records.of(unit));
                w.settle();
            }
            // So will it, and it knows for how long.
            Err(_) => w.settle(),
        }
    }

    /// Has an I/O thread make a locked unit whole, which a fault that began at `start` could not,
    /// for `error`; the lock goes with the job. `None`: look at the unit again.
    pub(super) fn hand_over(&self, w: Locked<'_>, error: CallError, start: u64) -> Option<Outcome> {
        self.pool.count(Counter::MapError, 1);
        if self.has_been_long(error, start) {
            w.settle();
            return Some(Outcome::Unmapped(error));
        }
        self.hand_over_whole(w);
        None
    }

    /// Has an I/O thread make a locked unit whole; the lock goes with the job.
    pub(crate) fn hand_over_whole(&self, w: Locked<'_>) {
        let unit = w.unit();
        w.pass();
        self.queue_read(Job::Whole(unit));
        self.wake_workers(1);
    }
}
