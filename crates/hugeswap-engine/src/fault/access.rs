//! Faults on memory that is there: access is given back, or, to a frame that a fork shares, a copy
//! of it.
//!
//! Each function takes a locked unit and unlocks it. `None` means: look at the unit again. The
//! rules of the fault path hold.

use crate::UNIT;
use crate::base::Split;
use crate::outcome::{Fault, Outcome};
use crate::paging::Paging;
use crate::table::Locked;
use hugeswap_policy::counters::FaultClass;
use hugeswap_policy::unit::step::Event;
use hugeswap_policy::unit::{CLEAN, COW, UNCHARGED, WATCHED, WRITABLE, WRITEBACK};

impl Paging {
    /// Memory is there: give access.
    pub(super) fn soft(&self, w: Locked<'_>, fault: Fault) -> Option<Outcome> {
        let unit = w.unit();
        if fault.write && w.has(COW) {
            return self.copy_on_write(w, fault);
        }
        if w.has(WATCHED) && w.has(CLEAN) && !w.has(COW) {
            let page = fault.page(&w);
            if let Some(pages) = self.pages_of_watched(unit, page) {
                return self.split_watched(w, pages, fault);
            }
        }
        let splits = self.backend.can().arrives_read_only && self.track.tracks_pages(unit);
        let w = match fault.write && !w.has(WRITABLE) && splits {
            true => match self.split_to_track(w) {
                Split::Pages(w) => return self.page_fault(w, fault),
                Split::Later => return None,
                Split::Whole(w) => w,
            },
            false => w,
        };
        let at = w.addr();
        if fault.write {
            self.note_access(unit, *w);
            if w.has(WATCHED) {
                self.base.records.of(unit).wrote_to_no_avail();
            }
        }
        // Given again even if the word says the program has it: it costs little, and heals whatever
        // made the fault happen.
        let changed = match fault.write || w.has(WRITABLE) {
            true => self.backend.set_writable(at, UNIT),
            false => self.backend.set_readable(at),
        };
        if let Err(e) = changed {
            w.settle();
            return self.not_mapped(e, fault.start);
        }
        self.settle_by(w, Event::Touched { write: fault.write });
        self.timed(FaultClass::Soft, fault)
    }

    /// A write to a frame that a forked relative may share.
    fn copy_on_write(&self, w: Locked<'_>, fault: Fault) -> Option<Outcome> {
        let (unit, at) = (w.unit(), w.addr());
        if w.has(WRITEBACK) && !self.backend.can().replaces_at_once {
            // What is under write-back stays mapped: an engine thread reads it, and would fault
            // between the old frame and the new one, while the thread that resolves its fault may
            // wait for a fork that waits for the write.
            let seen = *w;
            w.settle();
            self.table.wait_change(unit, seen);
            return None;
        }
        if !w.has(UNCHARGED) && !self.store.kept.has_children() {
            if self.backend.can().arrives_read_only && self.track.tracks_pages(unit) {
                self.settle_by(w, Event::Unshared { writable: false });
                return None;
            }
            self.note_access(unit, *w);
            // No relative shares it any more: the kernel lets us keep the page.
            if let Err(e) = self.backend.set_writable(at, UNIT) {
                w.settle();
                return self.not_mapped(e, fault.start);
            }
            self.backend.make_private(at);
            self.settle_by(w, Event::Unshared { writable: true });
            return self.timed(FaultClass::Soft, fault);
        }
        let Some(frame) = self.get_frame_nowait() else {
            // A write-out of this unit may be what frees memory, and it needs the lock: wait
            // without it. (Absent units may stay locked meanwhile: no thread needs them for that.)
            w.settle();
            let Some(frame) = self.get_frame() else {
                return Some(Outcome::NoMemory);
            };
            self.arena.put_free(frame.place);
            return None;
        };
        // Where pages are told apart, the next fault makes one writable.
        let whole = !(self.backend.can().arrives_read_only && self.track.tracks_pages(unit));
        if whole {
            self.note_access(unit, *w);
        }
        let to = self.arena.addr(frame.place);
        let moved = self.backend.set_readable(at).and_then(|()| {
            // SAFETY: the unit is locked, present and readable; the place holds a frame of ours.
            unsafe { std::ptr::copy_nonoverlapping(at as *const u8, to as *mut u8, UNIT) };
            self.move_in(frame.place, unit, whole)
        });
        if let Err(e) = moved
            && self.backend.can().replaces_at_once
        {
            self.arena.put_free(frame.place);
            self.settle_by(w, Event::Unwatched);
            return self.not_mapped(e, fault.start);
        }
        if moved.is_err() {
            // The old frame is gone, and the only copy is the one that does not go into place.
            if !w.has(UNCHARGED) {
                self.pool.uncharge(self.pool.me(), 1);
            }
            self.put_back(w, frame.place);
            return None;
        }
        self.let_inherit(unit);
        self.arena.put_empty(frame.place);
        if !w.has(UNCHARGED) {
            self.pool.uncharge(self.pool.me(), 1);
        }
        self.settle_by(w, Event::Copied { writable: whole });
        self.timed(FaultClass::Cow, fault)
    }
}
