//! Units whose bytes are all zero leave memory without being written: the next touch finds zeros again. The caller's rules hold here (see `work`).

use crate::checksum;
use crate::paging::Paging;
use crate::table::NO_FRAME;
use crate::track::Held;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::unit::{CLEAN, COW, Kind, Place, READAHEAD, WATCHED, WRITABLE, WRITEBACK};
use std::sync::atomic::Ordering::Relaxed;

impl Paging {
    /// Ends the write-back of a unit whose bytes are all zero: no slot, no I/O, no memory.
    pub(crate) fn finish_zero(&self, unit: u32) {
        let w = self.table.lock(unit).with(|w| w.clear(WRITEBACK));
        if w.has(WRITABLE) || w.pins() > 0 {
            w.settle();
            self.note_resident(unit);
            return;
        }
        if w.has(COW) {
            // The frame is shared: we can only let go of it.
            if self.drop_zero(w) {
                self.pool.count(Counter::ZeroDrop, 1);
            }
            return;
        }
        let Some(place) = self.arena.take_empty() else {
            w.settle();
            self.note_resident(unit);
            return;
        };
        self.note_leaving(unit, Held::Zeros);
        // Huge zero pages cannot be told from memory here: a frame that was never really there is
        // replaced by the next write into its place.
        let watched = w.has(WATCHED);
        match self.move_out(unit, place, watched) {
            // As in `park`: a device may have written after we looked.
            Ok(())
                if !self.backend.can().arrives_read_only
                    // SAFETY: the place holds a frame that is ours.
                    && !checksum::is_zero(unsafe { self.bytes(self.arena.addr(place)) }) =>
            {
                self.put_back(w, place);
            }
            Ok(()) => {
                self.note_left(unit, Held::Zeros);
                w.set_frame(NO_FRAME);
                self.store.free_place(unit, w.place());
                let gone = CLEAN | WATCHED | WRITABLE | READAHEAD;
                w.settle_as(|w| {
                    w.with_place(Place::Nothing)
                        .clear(gone)
                        .with_kind(Kind::None)
                });
                if watched {
                    self.watched.fetch_sub(1, Relaxed);
                }
                self.arena.put_free(place);
                self.pool.count(Counter::ZeroDrop, 1);
                self.pacing.made_frame();
                self.note_available();
            }
            Err(_) => {
                self.arena.put_empty(place);
                w.settle();
                self.note_resident(unit);
            }
        }
    }
}
