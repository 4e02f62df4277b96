//! Units whose bytes are all zero leave memory without being written: the next touch finds zeros
//! again. The caller's rules hold here (see `work`).

use crate::checksum;
use crate::paging::Paging;
use crate::table::Locked;
use crate::table::NO_FRAME;
use crate::track::Held;
use hugeswap_policy::unit::step::Event;
use hugeswap_policy::unit::{COW, WRITABLE};

impl Paging {
    /// Ends the write-back of a locked unit whose bytes are all zero: no place, no I/O, no memory.
    pub(crate) fn finish_zero(&self, w: Locked<'_>) {
        let unit = w.unit();
        if w.has(WRITABLE) || w.pins() > 0 {
            return self.settle_by(w, Event::NotWritten);
        }
        if w.has(COW) {
            // The frame is shared: we can only let go of it.
            self.drop_zero(w);
            return;
        }
        let Some(place) = self.arena.take_empty() else {
            return self.settle_by(w, Event::NotWritten);
        };
        self.note_leaving(unit, Held::Zeros);
        // Huge zero pages cannot be told from memory here: a frame that was never really there is
        // replaced by the next write into its place.
        match self.move_out(unit, place, false) {
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
                self.settle_freeing(w, Event::FoundZero);
                self.arena.put_free(place);
                self.pacing.made_frame();
                self.note_available();
            }
            Err(_) => {
                self.arena.put_empty(place);
                self.settle_by(w, Event::NotWritten);
            }
        }
    }
}
