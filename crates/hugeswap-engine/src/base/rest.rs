//! A watched unit of which a page is touched goes over to base pages. The rest of it stays in the arena
//! until memory is wanted ([`Rests`](crate::memory::rests::Rests)), and what is touched of it meanwhile
//! comes from there. So a unit that holds pages in use and others sheds the others: what of a frame
//! was not touched until it is taken leaves without having been read back or written again.
//!
//! Every function is called by the owner of the unit's lock. The rules of the fault path hold.

use crate::PAGE;
use crate::bits::Bits;
use crate::call::Done;
use crate::outcome::{Fault, Outcome};
use crate::pages::record::Record;
use crate::paging::Paging;
use crate::table::Locked;
use hugeswap_policy::UNIT_PAGES;
use hugeswap_policy::counters::FaultClass;
use hugeswap_policy::unit::step::Event;

impl Paging {
    /// Keeps the frame at `place`, which holds what swap does of a unit, for those of its pages that
    /// are not in memory. The pages that are get a charge of their own. False: nothing was kept, and
    /// the frame is the caller's, with its charge.
    pub(super) fn keep_rest(&self, unit: u32, record: &Record, place: u32) -> bool {
        let present = record.present.count();
        let may_stay = self.backend.can().has_single_pages() && !self.has_few_frames();
        if !may_stay || !self.take_pages_nowait(present) {
            return false;
        }
        record.rest.copy(&record.stored);
        record.rest.take_out(&record.present);
        if let Some(before) = self.rests.keep(unit, place) {
            self.arena.put_free(before);
        }
        self.note_available();
        true
    }

    /// A fault on an absent page of a locked, base-mapped unit, which its rest may hold. Unlocks it. An
    /// error: it is not to be had there.
    #[inline(never)]
    pub(super) fn rest_fault<'a>(
        &self,
        mut w: Locked<'a>,
        fault: Fault,
    ) -> Result<Option<Outcome>, Locked<'a>> {
        let (unit, page) = (w.unit(), fault.page(&w));
        let record = self.base.records.of(unit);
        let pages = match self.markers.is_marked(unit) {
            // (What may not be touched is not brought along.)
            true => page..page + 1,
            false => self
                .decide_size(unit, page, record.present.count(), true)
                .unwrap_or(0..UNIT_PAGES as usize),
        };
        let wanted = Bits::none();
        wanted.put(pages, true);
        wanted.split_off(&record.rest);
        if !self.take_pages_nowait(wanted.count()) {
            wanted.fill(false);
            wanted.put(page..page + 1, true);
            if !self.take_pages_nowait(1) {
                return Err(w);
            }
        }
        let before = record.present.count();
        let done = self.install_rest(unit, record, &wanted, page, fault.write);
        let came = record.present.count() - before;
        self.put_pages(wanted.count().saturating_sub(came));
        if !record.present.get(page) || done.is_none_or(|done| done.is_err()) {
            // As swap holds it all the same.
            record.rest.fill(false);
        }
        if came == 0 {
            return Err(w);
        }
        self.weights.set(unit, record.present.count());
        if before == 0 {
            self.note_pages_came(unit);
            self.advance(&mut w, Event::PagesCame { first: true });
        }
        w.settle();
        Ok(self.timed(FaultClass::Soft, fault))
    }

    /// Installs the pages in `wanted` from a unit's rest, `page` so that it can be written if `write`.
    /// `None`: the rest is gone.
    fn install_rest(
        &self,
        unit: u32,
        record: &Record,
        wanted: &Bits,
        page: usize,
        write: bool,
    ) -> Option<Done> {
        let written = Bits::none();
        written.put(page..page + 1, write);
        self.rests.with(unit, |place| {
            let from = self.arena.addr(place);
            wanted.each_run(|run| {
                let source = from + run.start * PAGE;
                self.install(unit, record, run, source, &written)
            })
        })
    }
}
