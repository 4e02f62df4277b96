//! Parts of units, on the program's word: some pages read ahead of their use, some written and dropped, some given up.
//! (The rest of a base-mapped unit is left as it is; a whole one in memory has no parts.)
//!
//! What takes I/O is done by the I/O threads, which have descriptors of their own: a job carries the unit's lock.

use super::record::Record;
use super::{BUFFER, PAGE};
use crate::engine::{Engine, Job};
use hugeswap_policy::counters::Counter;
use hugeswap_policy::unit::{Kind, LOCKED, WAITERS, Word};
use hugeswap_sys::{mm, process};
use std::ops::Range;

impl Engine {
    /// Has an I/O thread bring pages of a locked, base-mapped unit in, as far as memory is to be had without waiting.
    pub(crate) fn hand_over_bring(&self, unit: u32, w: Word, pages: Range<usize>) {
        let (from, to) = (pages.start as u16, pages.end as u16);
        self.hand_over_part(unit, w, Job::Bring { unit, from, to });
    }

    /// Has an I/O thread write pages of a locked, base-mapped unit that are dirty, and drop them.
    pub(crate) fn hand_over_drop(&self, unit: u32, w: Word, pages: Range<usize>) {
        let (from, to) = (pages.start as u16, pages.end as u16);
        self.hand_over_part(unit, w, Job::Drop { unit, from, to });
    }

    fn hand_over_part(&self, unit: u32, w: Word, job: Job) {
        // The job finds the word in the table.
        self.table.put_locked(unit, w);
        while self.reads.push(job).is_err() {
            process::yield_now();
        }
        self.wake_workers(1);
    }

    /// What [`Engine::hand_over_bring`] handed over.
    pub(crate) fn bring_handed(&self, unit: u32, pages: Range<usize>) {
        let w = self.table.load(unit).clear(LOCKED | WAITERS);
        let record = self.base.records.of(unit);
        let first = !record.present.any();
        let mut from = pages.start;
        // (What was never written is not brought in ahead of its use.)
        while let Some(run) = record.stored.run(from, pages.end, true) {
            let part = run.start..run.end.min(run.start + BUFFER / PAGE);
            from = part.end;
            let wanted = super::fault::absent(record, part.clone());
            if wanted == 0 {
                continue;
            }
            if !self.take_pages_nowait(wanted) {
                break;
            }
            let brought = self.bring_in(unit, w, record, part.clone(), 0..0);
            self.put_pages(super::fault::absent(record, part));
            if brought.is_err() {
                // Whoever needs the page will be told.
                break;
            }
        }
        self.weights.set(unit, record.present.count());
        if first && record.present.any() {
            self.note_pages_came(unit);
            self.note_pages_resident(unit);
        }
        self.table.unlock(unit, w);
    }

    /// What [`Engine::hand_over_drop`] handed over.
    pub(crate) fn drop_handed(&self, unit: u32, pages: Range<usize>) {
        let w = self.table.load(unit).clear(LOCKED | WAITERS);
        let record = self.base.records.of(unit);
        let dirty = record.dirty.run(pages.start, pages.end, true).is_some();
        let (w, _) = if dirty {
            self.clean_pages(unit, w)
        } else {
            (w, true)
        };
        let clean = record.dirty.run(pages.start, pages.end, true).is_none();
        let freed = if clean {
            self.drop_part(unit, record, pages)
        } else {
            0
        };
        self.table.unlock(unit, w);
        if freed > 0 {
            self.count(Counter::PgReclaim, 1);
            self.note_available();
        }
    }

    /// Drops pages of a locked, base-mapped unit that are not dirty. How many there were.
    fn drop_part(&self, unit: u32, record: &Record, pages: Range<usize>) -> u64 {
        let n = pages.len() as u64 - super::fault::absent(record, pages.clone());
        let (at, len) = (
            self.table.addr(unit) + pages.start * PAGE,
            pages.len() * PAGE,
        );
        // SAFETY: the slot holds what is dropped, or it is zeros.
        if n == 0 || unsafe { mm::advise(at, len, libc::MADV_DONTNEED) }.is_err() {
            return 0;
        }
        record.present.put(pages, false);
        self.weights.set(unit, record.present.count());
        self.put_pages(n);
        n
    }

    /// Pages of a locked unit in swap, or of a base-mapped one, become zero without I/O: a whole one goes over to base pages for
    /// that, and one of which nothing is left is zero as a whole. The word, still locked, and whether it was done.
    pub(crate) fn give_up_pages(&self, unit: u32, w: Word, pages: Range<usize>) -> (Word, bool) {
        if self.files.of(unit).is_some() {
            // What is given up of it is not zero then.
            return (w, false);
        }
        if self.gate.is_forker() {
            // What the child will read of base pages is settled already.
            return (w, false);
        }
        let w = match w.kind() {
            Kind::Base => w,
            Kind::Swapped if self.has_single_pages() => match self.go_over_to_pages(unit, w) {
                Some(w) => w,
                None => return (w, false),
            },
            _ => return (w, false),
        };
        let (w, done) = self.discard_pages(unit, w, pages);
        if !done {
            return (w, false);
        }
        let record = self.base.records.of(unit);
        if record.present.any() || record.stored.any() {
            return (w, true);
        }
        (self.leave_zero(unit, w).0, true)
    }
}
