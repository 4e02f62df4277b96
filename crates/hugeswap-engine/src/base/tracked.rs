//! A unit in memory whose pages are told apart by who tracks writes ([`crate::track`]) goes over to base pages with its first write, where it
//! stands: nothing is copied. The rules of the fault path hold.

use super::{PAGE, Pager};
use crate::UNIT;
use crate::paging::Paging;
use crate::table::Locked;
use hugeswap_policy::UNIT_PAGES;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::unit::{CLEAN, COW, Kind, Place, READAHEAD, WATCHED, WRITEBACK};
use hugeswap_sys::{Errno, Result, mm, uffd};
use std::sync::atomic::Ordering::Relaxed;

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
    pub(crate) fn split_to_track<'a>(&self, w: Locked<'a>) -> Split<'a> {
        let unit = w.unit();
        if w.has(WRITEBACK) {
            // Who writes it out relies on its staying whole.
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
        if self.map_by_pages(unit).is_err() {
            self.note_mappings_short();
            return Split::Whole(w);
        }
        if w.has(WATCHED) {
            self.watched.fetch_sub(1, Relaxed);
        }
        let record = self.base.records.of(unit);
        // A cluster keeps its old bytes, of which nothing counts, until it is written again; what is scattered is stored as its table says.
        if w.has(CLEAN) || w.place() == Place::Singles {
            self.note_stored(unit, *w, record);
        } else {
            record.clear();
        }
        if !w.has(CLEAN) {
            record.dirty.fill(true);
        }
        self.change_present(record, || record.present.fill(true));
        self.weights.set(unit, UNIT_PAGES);
        self.note_pages_came(unit);
        self.note_pages_resident(unit);
        self.pool.count(Counter::ThpSplitPmd, 1);
        let gone = WATCHED | CLEAN | READAHEAD;
        Split::Pages(w.with(|w| w.clear(gone).with_kind(Kind::Base)))
    }

    /// Maps a present unit, which nobody writes to, so that each of its pages can be made writable, and dropped, by itself; read-only as yet. If it fails,
    /// it is mapped as before, perhaps readable where it was watched.
    fn map_by_pages(&self, unit: u32) -> Result<()> {
        let at = self.table.addr(unit);
        let pager = self.pager().ok_or(Errno::ENOSYS)?;
        // Advice first: it makes the unit a mapping of its own, so that nothing after it can meet the limit on mappings.
        // SAFETY: advice that discards nothing.
        let result = unsafe { mm::advise(at, UNIT, libc::MADV_NOHUGEPAGE) }
            // As in `map_for_pages`: a child finds base pages in swap.
            // SAFETY: as above.
            .and_then(|()| unsafe { mm::advise(at, UNIT, libc::MADV_DONTFORK) })
            // SAFETY: the bytes are the program's to read; writers fault and wait for the unit's lock.
            .and_then(|()| unsafe { mm::protect(at, UNIT, mm::PROT_READ) })
            .and_then(|()| match pager {
                Pager::Uffd(fd) => {
                    let mode = uffd::mode::MISSING | uffd::mode::WP;
                    uffd::register(fd, at, UNIT, mode)?;
                    uffd::write_protect(fd, at, UNIT, true)
                }
                Pager::Remap => Ok(()),
            });
        // The memory itself is to be in base pages, so that what is dropped of it goes back to the kernel; it does that with advice on a part of a huge
        // page that goes no further than to say that it is cold.
        if result.is_ok() {
            // SAFETY: advice that discards nothing.
            let _ = unsafe { mm::advise(at, PAGE, libc::MADV_COLD) };
        }
        let result = result.and_then(|()| match pager {
            // SAFETY: all of it is write-protected: a write raises SIGBUS and waits for the unit's lock.
            Pager::Uffd(_) => unsafe { mm::protect(at, UNIT, mm::PROT_RW) },
            Pager::Remap => Ok(()),
        });
        if result.is_err() {
            if let Pager::Uffd(fd) = pager {
                let _ = uffd::unregister(fd, at, UNIT);
            }
            // SAFETY: advice that discards nothing.
            let _ = unsafe { mm::advise(at, UNIT, libc::MADV_DOFORK) };
            // SAFETY: as above.
            let _ = unsafe { mm::advise(at, UNIT, libc::MADV_HUGEPAGE) };
        }
        result
    }
}
