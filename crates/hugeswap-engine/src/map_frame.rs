//! Maps a frame to its unit.

use crate::UNIT;
use crate::call::CallError;
use crate::paging::Paging;
use crate::table::{Locked, NO_FRAME};
use crate::track::Held;
use hugeswap_policy::unit::MAY_WRITE;
use hugeswap_policy::unit::step::Event;

impl Paging {
    /// Maps the frame at `place` to a locked unit. Gives the event for the caller to take the step
    /// of.
    pub(crate) fn map_frame(
        &self,
        w: &Locked<'_>,
        place: u32,
        write: bool,
    ) -> Result<Event, CallError> {
        let unit = w.unit();
        let writable = (write || !self.backend.can().arrives_read_only) && w.has(MAY_WRITE);
        if self.markers.is_marked(unit) {
            return self.map_marked(w, place);
        }
        self.open_fence(unit, **w);
        if writable {
            self.note_arrival(unit, write, Held::AsStored(**w));
        }
        self.move_in(place, unit, writable)?;
        if !writable && !self.backend.can().arrives_read_only {
            // What may not be written (a file): should it fail, what is written there goes nowhere.
            let _ = self.backend.set_read_only(self.table.addr(unit), UNIT);
        }
        self.let_inherit(unit);
        w.set_frame(NO_FRAME);
        Ok(Event::Arrived { writable })
    }
}
