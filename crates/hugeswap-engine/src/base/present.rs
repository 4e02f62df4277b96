//! Which pages of a base-mapped unit are present: the backend puts them in place and drops them,
//! and the unit's record says so.
//!
//! Every call here is made by the owner of the unit's lock. The rules of the fault path hold.

use super::PAGE;
use crate::PAGES;
use crate::backend::Stage;
use crate::bits::Bits;
use crate::call::Done;
use crate::memory::Memory;
use crate::pages::record::Record;
use std::ops::Range;

impl Memory {
    /// Installs absent pages of a unit, whole parts, with what stands at `from`; read-only but for
    /// the parts with pages that are `written`, which are dirty then. If it fails, some may be
    /// installed. ENOMEM: mappings are short.
    pub(super) fn install(
        &self,
        unit: u32,
        record: &Record,
        run: Range<usize>,
        from: usize,
        written: &Bits,
    ) -> Done {
        let part = self.backend.can().smallest_part;
        let mut next = run.start;
        while next < run.end {
            // Single pages come by as few calls as can be, greater parts one by one.
            let end = match part {
                1 => written.same_until(next, run.end),
                _ => run.end.min(next + part),
            };
            let pages = next..end;
            let write = written.run(next, end, true).is_some();
            let source = from + (next - run.start) * PAGE;
            next = end;
            self.installing(unit, record, pages, write, |at, pages| {
                self.backend.install(at, pages, source, write)
            })?;
        }
        Ok(())
    }

    /// [`Memory::install`] of one part, which a stage has been filled with.
    pub(super) fn install_stage(
        &self,
        unit: u32,
        record: &Record,
        part: Range<usize>,
        stage: Stage<'_>,
        written: &Bits,
    ) -> Done {
        let write = written.run(part.start, part.end, true).is_some();
        self.installing(unit, record, part, write, |at, part| {
            stage.install(at + part.start * PAGE, write)
        })
    }

    /// Notes what is about to be installed, and that it is.
    fn installing(
        &self,
        unit: u32,
        record: &Record,
        pages: Range<usize>,
        write: bool,
        install: impl FnOnce(usize, Range<usize>) -> Done,
    ) -> Done {
        if write {
            self.track.note_pages_written(unit, pages.clone());
        }
        install(self.table.addr(unit), pages.clone())?;
        self.change_present(record, || record.present.put(pages.clone(), true));
        record.rest.put(pages.clone(), false);
        if write {
            record.dirty.put(pages, true);
        }
        Ok(())
    }

    /// Gives the access that the part with a present page should have; if `write`, it is dirty
    /// then.
    pub(super) fn give_access(&self, unit: u32, record: &Record, page: usize, write: bool) -> Done {
        let part = self.backend.part_of(page).unwrap_or(page..page + 1);
        if write {
            self.track.note_pages_written(unit, part.clone());
        }
        // (Where writes are tracked, what is dirty need not be writable.)
        let dirty = record.dirty.get(page) && !self.track.is_tracked(unit);
        self.backend
            .give_access(self.table.addr(unit), part.clone(), write, dirty)?;
        if write {
            record.dirty.put(part, true);
        }
        Ok(())
    }

    /// Makes the pages of `which` read-only, which are present. `others`: how many more can be
    /// written and had better stay so; see
    /// [`Placement::freeze`](crate::backend::Placement::freeze).
    pub(crate) fn freeze(&self, unit: u32, which: &Bits, others: u64) -> Done {
        self.backend.freeze(self.table.addr(unit), which, others)
    }

    /// Changes which pages of a unit are present, by `change`.
    pub(super) fn change_present(&self, record: &Record, change: impl FnOnce()) {
        self.backend.change_present(&record.present, change);
    }

    /// Drops the memory of all present pages, which are clean; they are absent then. If it fails,
    /// all are present.
    pub(super) fn drop_present(&self, unit: u32, record: &Record) -> Done {
        let at = self.table.addr(unit);
        self.backend.drop_present(at, &record.present)?;
        self.change_present(record, || record.present.fill(false));
        Ok(())
    }

    /// Drops the memory of the present pages in `going`, which are clean, and not of others. False,
    /// and nothing has changed, if that cannot be done by one call; if it stops half way, those
    /// that are dropped are absent.
    pub(super) fn drop_going(&self, unit: u32, record: &Record, going: &Bits) -> bool {
        let Ok(mut dropped) = self.backend.drop_some(self.table.addr(unit), going) else {
            return false;
        };
        let mut next = 0;
        while dropped > 0
            && let Some(run) = going.run(next, PAGES, true)
        {
            next = run.end;
            let gone = run.start..run.end.min(run.start + dropped);
            dropped -= gone.len();
            self.change_present(record, || record.present.put(gone, false));
        }
        true
    }

    /// Makes `pages` zero, and gives up memory behind them where that can be done by parts. How
    /// many pages' memory that was, and whether all are zero now.
    pub(super) fn drop_some(&self, unit: u32, record: &Record, pages: Range<usize>) -> (u64, bool) {
        let gone = self.backend.give_up(self.table.addr(unit), pages.clone());
        let Ok(gone) = gone else {
            return (0, false);
        };
        record.rest.put(pages.clone(), false);
        record.stored.put(pages, false);
        let n = gone.clone().filter(|&p| record.present.get(p)).count();
        self.change_present(record, || record.present.put(gone.clone(), false));
        record.dirty.put(gone, false);
        (n as u64, true)
    }
}
