//! A unit that the program writes to each time that it is being written out never leaves as a whole. It goes over to base pages where it stands, and
//! leaves by them: who writes to one of its pages waits for that page alone, and not the unit for the program.

use super::Split;
use crate::engine::{Engine, UNIT};
use hugeswap_policy::file::FilePlace;
use hugeswap_policy::thp::Bring;
use hugeswap_policy::unit::{COW, WRITABLE, Word};

/// Write-outs in vain, one after the other, after which a unit is taken for such a one. (One may be chance: a stream that comes by.)
const IN_VAIN: u8 = 2;

impl Engine {
    /// A locked unit was written to while it was being written out. Unlocks it.
    pub(crate) fn redirtied(&self, unit: u32, w: Word) {
        let record = self.base.records.of(unit);
        let sizes_are_ours = self.has_single_pages() && self.bring_of(unit) == Bring::AsFaulted;
        if record.redirtied_again() < IN_VAIN
            || !sizes_are_ours
            || w.pins() > 0
            || w.has(COW)
            || FilePlace::of(w).is_some()
            || self
                .mover()
                .set_read_only(self.table.addr(unit), UNIT)
                .is_err()
        {
            self.table.unlock(unit, w);
            self.note_referenced(unit);
            return;
        }
        record.not_redirtied();
        match self.split_to_track(unit, w.clear(WRITABLE)) {
            Split::Pages(w) => {
                self.table.unlock(unit, w);
                // It was to leave. (If there are too many such requests, it is on the list all the same.)
                let _ = self.evict_requests.push(unit);
                self.kick();
            }
            Split::Whole(w) => {
                self.table.unlock(unit, w);
                self.note_referenced(unit);
            }
            // (It is not being written any more: this does not happen.)
            Split::Later => self.note_referenced(unit),
        }
    }
}
