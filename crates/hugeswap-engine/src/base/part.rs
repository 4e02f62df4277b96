//! Parts of units, on the program's request: some pages read ahead of their use, some written and
//! dropped, some given up. (The rest of a base-mapped unit is left as it is; one that is whole in
//! memory has no parts until it is split.)
//!
//! The I/O threads, which have descriptors of their own, do what takes I/O: a job carries the
//! unit's lock.

use super::{BUFFER, PAGE};
use crate::bits::Bits;
use crate::pages::record::Record;
use crate::paging::Job;
use crate::paging::Paging;
use crate::table::Locked;
use hugeswap_policy::unit::Kind;
use hugeswap_policy::unit::step::Event;
use std::ops::Range;

impl Paging {
    /// Has an I/O thread bring pages of a locked, base-mapped unit in, as far as memory is to be
    /// had without waiting.
    pub(crate) fn hand_over_bring(&self, w: Locked<'_>, pages: Range<usize>) {
        let unit = w.unit();
        let (from, to) = (pages.start as u16, pages.end as u16);
        self.hand_over_part(w, Job::Bring { unit, from, to });
    }

    /// Has an I/O thread write pages of a locked, base-mapped unit that are dirty, and drop them.
    pub(crate) fn hand_over_drop(&self, w: Locked<'_>, pages: Range<usize>) {
        let unit = w.unit();
        let (from, to) = (pages.start as u16, pages.end as u16);
        self.hand_over_part(w, Job::Drop { unit, from, to });
    }

    fn hand_over_part(&self, w: Locked<'_>, job: Job) {
        w.pass();
        self.queue_read(job);
        self.wake_workers(1);
    }

    /// What [`Paging::hand_over_bring`] handed over.
    pub(crate) fn bring_handed(&self, unit: u32, pages: Range<usize>) {
        let mut w = self.table.passed(unit);
        let record = self.base.records.of(unit);
        let first = !record.present.any();
        let mut from = pages.start;
        // (What was never written is not brought in ahead of its use, nor what cannot be touched.)
        let stored = Bits::none();
        stored.copy(&record.stored);
        self.markers.without_marked(unit, &stored);
        while let Some(run) = stored.run(from, pages.end, true) {
            let part = run.start..run.end.min(run.start + BUFFER / PAGE);
            from = part.end;
            let wanted = super::fault::absent(record, part.clone());
            if wanted == 0 {
                continue;
            }
            if !self.take_pages_nowait(wanted) {
                break;
            }
            let brought = self.bring_in(unit, *w, record, part.clone(), &Bits::none());
            self.put_pages(super::fault::absent(record, part));
            if brought.is_err() {
                // A thread that needs the page will be told.
                break;
            }
        }
        self.weights.set(unit, record.present.count());
        if first && record.present.any() {
            self.note_pages_came(unit);
            self.advance(&mut w, Event::PagesCame { first });
        }
        w.settle();
    }

    /// What [`Paging::hand_over_drop`] handed over.
    pub(crate) fn drop_handed(&self, unit: u32, pages: Range<usize>) {
        let mut w = self.table.passed(unit);
        self.send_out(&mut w, pages);
        w.settle();
        self.note_available();
    }

    /// Writes pages of a locked, base-mapped unit that are dirty, and drops them. Is none of them in
    /// memory now?
    pub(crate) fn send_out(&self, w: &mut Locked<'_>, pages: Range<usize>) -> bool {
        let (unit, record) = (w.unit(), self.base.records.of(w.unit()));
        let going = Bits::none();
        going.put(pages.clone(), true);
        if record.dirty.common(&going) > 0 && !self.swap_is_allowed(unit, **w) {
            return false;
        }
        // (What stays is not written.)
        let kept = record.dirty.split_off(&going);
        let clean = self.clean_pages_but(w, kept.count());
        let freed = if clean {
            self.drop_part(unit, record, pages.clone())
        } else {
            0
        };
        record.dirty.join(&kept);
        if freed > 0 {
            self.advance(w, Event::PagesWent);
        }
        super::fault::absent(record, pages.clone()) == pages.len() as u64
    }

    /// Drops pages of a locked, base-mapped unit that are not dirty. How many there were.
    fn drop_part(&self, unit: u32, record: &Record, pages: Range<usize>) -> u64 {
        let n = pages.len() as u64 - super::fault::absent(record, pages.clone());
        let at = self.table.addr(unit);
        // (Its place in swap holds what is dropped, or it is zeros.)
        if n == 0 || self.backend.drop_pages(at, pages.clone()).is_err() {
            return 0;
        }
        record.present.put(pages, false);
        self.weights.set(unit, record.present.count());
        self.put_pages(n);
        n
    }

    /// Pages of a unit in swap, or of a base-mapped one, become zero without I/O: a whole one goes
    /// over to base pages for that, and one of which nothing is left is zero as a whole. Was it
    /// done?
    pub(crate) fn give_up_pages(&self, w: &mut Locked<'_>, pages: Range<usize>) -> bool {
        if self.files.of(w.unit()).is_some() {
            // What is given up of it is not zero then.
            return false;
        }
        if self.gate.is_forker() {
            // What the child will read of base pages is settled already.
            return false;
        }
        let based = match w.kind() {
            Kind::Base => true,
            Kind::Swapped => self.backend.can().has_single_pages() && self.go_over_to_pages(w),
            _ => false,
        };
        if !based || !self.discard_pages(w, pages) {
            return false;
        }
        let record = self.base.records.of(w.unit());
        if !record.present.any() && !record.stored.any() {
            self.leave_zero(w);
        }
        true
    }
}
