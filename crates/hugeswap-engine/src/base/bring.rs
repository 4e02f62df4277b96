//! Pages brought in: a unit goes over to base pages, and absent ones are filled from swap, from a
//! file, or with zeros. The rules of the fault path hold.

use crate::PAGE;
use crate::bits::Bits;
use crate::call::{Call, CallError, Done};
use crate::pages::Buffer;
use crate::pages::record::Record;
use crate::paging::Paging;
use crate::store::BUFFER;
use crate::table::Locked;
use hugeswap_policy::UNIT_PAGES;
use hugeswap_policy::unit::step::Event;
use hugeswap_policy::unit::{MAY_WRITE, Place, Word};
use std::ops::Range;

impl Paging {
    /// A unit in swap goes over to base pages, none of them in memory. False: it cannot, and is as
    /// it was.
    pub(crate) fn go_over_to_pages(&self, w: &mut Locked<'_>) -> bool {
        if !self.try_map_for_pages(w.unit(), **w) {
            return false;
        }
        let record = self.base.records.of(w.unit());
        self.note_stored(w.unit(), **w, record);
        self.advance(w, Event::BecameBase);
        true
    }

    /// What the place of a whole unit holds is stored.
    pub(crate) fn note_stored(&self, unit: u32, w: Word, record: &Record) {
        record.all_stored();
        if w.place() == Place::Singles {
            let places = self.store.scatter.of(unit);
            for p in (0..UNIT_PAGES as usize).filter(|&p| places.is_none_or(|s| s.get(p).is_none()))
            {
                record.stored.put(p..p + 1, false);
            }
        }
        self.markers.without_empty(unit, &record.stored);
    }

    /// A unit that holds nothing becomes base-mapped, all of it zero. False: it cannot, and is as
    /// it was.
    pub(crate) fn start_pages(&self, w: &mut Locked<'_>) -> bool {
        if !self.try_map_for_pages(w.unit(), **w) {
            return false;
        }
        self.base.records.of(w.unit()).clear();
        self.advance(w, Event::BecameBase);
        true
    }

    pub(crate) fn try_map_for_pages(&self, unit: u32, w: Word) -> bool {
        if !self.pages_can_come() || self.gate.is_forker() || self.mappings_are_short() {
            return false;
        }
        if !w.allows(false) {
            // Pages of a base-mapped unit can be read, and what is absent of one raises SIGBUS:
            // what the program has no access to is neither.
            return false;
        }
        if self.markers.is_marked(unit) && !self.backend.can().has_single_pages() {
            return false;
        }
        let (at, writable) = (self.table.addr(unit), w.has(MAY_WRITE));
        let mapped = self.backend.map_for_parts(at, writable).is_ok();
        if !mapped {
            self.note_mappings_short();
        }
        mapped
    }

    /// Brings in the absent ones of `pages`, write-protected but for those that are `written`.
    pub(crate) fn bring_in(
        &self,
        unit: u32,
        w: Word,
        record: &Record,
        pages: Range<usize>,
        written: &Bits,
    ) -> Done {
        self.advise_pages_back(unit, record, pages.clone());
        self.note_refaults(unit, record, pages.clone());
        let stages = self.backend.can().fills_stages;
        let buffer = (!stages).then(|| self.base.take_buffer());
        let most = buffer.as_ref().map_or(BUFFER, Buffer::len) / PAGE;
        let mut next = pages.start;
        while let Some(run) = record.present.run(next, pages.end, false) {
            let run = run.start..run.end.min(run.start + most);
            next = run.end;
            match &buffer {
                Some(buffer) => {
                    self.fill(unit, w, record, run.clone(), buffer.addr())?;
                    self.install(unit, record, run, buffer.addr(), written)?;
                }
                None => {
                    let stage = self.backend.take_stage()?;
                    self.fill(unit, w, record, run.clone(), stage.addr())?;
                    self.install_stage(unit, record, run, stage, written)?;
                }
            }
        }
        Ok(())
    }

    /// Puts what absent pages hold to memory of ours at `to`: read, or zeros.
    pub(crate) fn fill(
        &self,
        unit: u32,
        w: Word,
        record: &Record,
        pages: Range<usize>,
        to: usize,
    ) -> Result<(), CallError> {
        let mut next = pages.start;
        while next < pages.end {
            let at = to + (next - pages.start) * PAGE;
            let stored = record.stored.get(next);
            let end = record
                .stored
                .run(next, pages.end, !stored)
                .map_or(pages.end, |r| r.start);
            if stored {
                self.read_stored(unit, w, next..end, at)
                    .map_err(|e| Call::Read.failed(e))?;
            } else {
                // SAFETY: the memory is ours.
                unsafe { std::ptr::write_bytes(at as *mut u8, 0, (end - next) * PAGE) };
            }
            next = end;
        }
        Ok(())
    }

    /// Pages of a locked, base-mapped unit could not be read: marks those that are bad. True if
    /// `page` can be brought in all the same, with `least`, from now on.
    #[inline(never)]
    pub(crate) fn some_can_be_had(
        &self,
        unit: u32,
        w: Word,
        record: &Record,
        least: &Range<usize>,
        page: usize,
    ) -> bool {
        if w.file().is_some() {
            return false;
        }
        let buffer = self.base.take_buffer();
        let (mut had, mut marked) = (true, false);
        let around = page / (BUFFER / PAGE) * (BUFFER / PAGE);
        for p in around..around + BUFFER / PAGE {
            if record.stored.get(p) && !record.present.get(p) {
                let read = self.read_or_mark(unit, w, p, buffer.addr(), true);
                had &= read.is_ok() || !least.contains(&p);
                marked |= read.is_err();
            }
        }
        had && marked
    }
}
