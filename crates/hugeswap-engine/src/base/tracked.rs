//! A unit in memory whose pages write tracking tells apart ([`crate::track`]) goes over to base
//! pages with its first write, where it stands: nothing is copied. The rules of the fault path
//! hold.

use crate::paging::Paging;
use crate::table::Locked;
use hugeswap_policy::UNIT_PAGES;
use hugeswap_policy::unit::step::Event;
use hugeswap_policy::unit::{CLEAN, COW, Place, WRITEBACK};

/// What became of a unit that was to be split.
pub(crate) enum Split<'a> {
    /// Base-mapped, locked, all of it present and read-only.
    Pages(Locked<'a>),
    /// Unlocked: look at it again.
    Later,
    /// As it was, and locked: held for a system call, or there are no base pages to be had.
    Whole(Locked<'a>),
}

impl Paging {
    /// Has a locked, present unit that is not writable be mapped by base pages where it stands.
    #[inline(never)]
    pub(crate) fn split_to_track<'a>(&self, mut w: Locked<'a>) -> Split<'a> {
        let unit = w.unit();
        if w.has(WRITEBACK) {
            // The thread that writes it out relies on its staying whole.
            let seen = *w;
            w.settle();
            self.table.wait_change(unit, seen);
            return Split::Later;
        }
        if w.pins() > 0 || w.has(COW) || !self.pages_can_come() || self.gate.is_forker() {
            return Split::Whole(w);
        }
        if self.mappings_are_short() {
            return Split::Whole(w);
        }
        if self.backend.split(w.addr()).is_err() {
            self.note_mappings_short();
            return Split::Whole(w);
        }
        let record = self.base.records.of(unit);
        // A cluster keeps its old bytes, of which nothing counts, until it is written again; what
        // is scattered is stored as its table says.
        if w.has(CLEAN) || w.place() == Place::Singles {
            self.note_stored(unit, *w, record);
        } else {
            record.clear();
        }
        if !w.has(CLEAN) {
            record.dirty.fill(true);
        }
        self.change_present(record, || record.present.fill(true));
        record.rest.fill(false);
        self.weights.set(unit, UNIT_PAGES);
        self.note_pages_came(unit);
        self.advance(&mut w, Event::BecameBase);
        Split::Pages(w)
    }

    /// Pages of a unit that was just split, all of them dirty, are written without a fault. Not
    /// where the first write to each is to be noticed, or some may not be written.
    pub(crate) fn allow_writes(&self, w: &Locked<'_>) {
        let unit = w.unit();
        let dirty = self.base.records.of(unit).dirty.count();
        if dirty == UNIT_PAGES && !self.track.is_tracked(unit) && !self.markers.is_marked(unit) {
            // (If it fails, they fault.)
            let _ = self
                .backend
                .give_access(w.addr(), 0..UNIT_PAGES as usize, true, true);
        }
    }
}
