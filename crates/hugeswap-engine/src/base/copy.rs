//! Pages copied from one cluster to another.

use crate::bits::Bits;
use crate::pages::record::Record;
use crate::paging::Paging;
use crate::store::BUFFER;
use crate::{PAGE, PAGES};
use hugeswap_policy::unit::Word;
use hugeswap_sys::Errno;
use std::ops::Range;

impl Paging {
    /// Copies what is stored of a unit with a cluster to another.
    pub(crate) fn copy_cluster(&self, unit: u32, from: u64, to: u64, record: &Record) -> bool {
        let buffer = self.base.take_buffer();
        let mut next = 0;
        while let Some(run) = record.stored.run(next, PAGES, true) {
            let part = run.start..run.end.min(run.start + BUFFER / PAGE);
            next = part.end;
            if record.dirty.run(part.start, part.end, false).is_none() {
                continue;
            }
            // A page that is dirty is read too: it was stored, and is overwritten next.
            let copied = if self.pool.is_bad_or_lost(from, part.clone()) {
                self.copy_what_is_left(unit, (from, to), part, record, buffer.addr())
            } else {
                self.store
                    .read_pages(from, part.clone(), buffer.addr())
                    .and_then(|()| self.store.write_pages(to, part, buffer.addr()))
            };
            if copied.is_err() {
                return false;
            }
        }
        true
    }

    /// [`Paging::copy_cluster`] for pages of which some are in bad slots: what is in memory is
    /// written from there, later; what cannot be read stays lost.
    fn copy_what_is_left(
        &self,
        unit: u32,
        (from, to): (u64, u64),
        pages: Range<usize>,
        record: &Record,
        buffer: usize,
    ) -> Result<(), Errno> {
        for page in pages {
            let one = page..page + 1;
            if record.dirty.get(page) {
                continue;
            }
            if record.present.get(page) {
                // (What is spared was not protected, and the program may be writing to it.)
                self.freeze_part(unit, page)?;
                self.make_page_dirty(record, page);
                continue;
            }
            match self.store.read_pages(from, one.clone(), buffer) {
                Ok(()) => self.store.write_pages(to, one, buffer)?,
                Err(Errno::EIO) if self.pool.is_bad_or_lost(from, one.clone()) => {
                    // What another process had there that is gone would be read as ours.
                    self.store.forget_stored(to, one);
                    self.pool.note_lost(to, page);
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Writes zeros where neither memory nor the cluster holds a page, so that the cluster is all
    /// of the unit, which has no dirty page. False if that failed. No other process may read the
    /// cluster: a relative may know these pages as they were.
    pub(crate) fn write_holes(&self, w: Word, record: &Record) -> bool {
        let Some(cluster) = w.cluster() else {
            return false;
        };
        let buffer = self.base.take_buffer();
        // SAFETY: the buffer is ours.
        unsafe { std::ptr::write_bytes(buffer.addr() as *mut u8, 0, BUFFER) };
        let mut next = 0;
        while let Some(run) = record.stored.run(next, PAGES, false) {
            let part = run.start..run.end.min(run.start + BUFFER / PAGE);
            next = part.end;
            if self
                .store
                .write_pages(cluster, part.clone(), buffer.addr())
                .is_err()
            {
                return false;
            }
            record.stored.put(part, true);
        }
        true
    }

    /// What changes with a page of a base-mapped unit: the part that it comes with.
    fn part_with(&self, page: usize) -> Range<usize> {
        self.backend.part_of(page).unwrap_or(page..page + 1)
    }

    /// No thread writes to a page of a locked, base-mapped unit, and its part, without a fault from
    /// now on.
    fn freeze_part(&self, unit: u32, page: usize) -> Result<(), Errno> {
        let part = Bits::none();
        part.put(self.part_with(page), true);
        // Only these: all others may be in use.
        let others = PAGES as u64;
        self.freeze(unit, &part, others).map_err(|e| e.errno)
    }

    /// A present page of a locked unit is to be written, although it is what was read.
    pub(crate) fn make_page_dirty(&self, record: &Record, page: usize) {
        let pages = self.part_with(page);
        // (Its sum would say that it need not be.)
        record.changed.put(pages.clone(), false);
        record.dirty.put(pages, true);
    }
}
