//! Units that leave the program's sight: they are left where a fault may take their frame, or put
//! back where they came from.

use crate::checksum;
use crate::paging::Paging;
use crate::table::Locked;
use crate::track::Held;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::unit::step::Event;
use hugeswap_policy::unit::{COW, Word};

impl Paging {
    /// Leaves a locked clean unit where a fault may take its frame: watched in place, or in the
    /// arena. Unlocks it. False if that failed.
    pub(crate) fn park(&self, w: Locked<'_>) -> bool {
        let (unit, at) = (w.unit(), w.addr());
        if w.has(COW) {
            // The frame is shared: we can only let go of it.
            let dropped = self.drop_clean(w);
            if !dropped {
                self.lru.lock().put_back(unit);
            }
            return dropped;
        }
        if self.backend.can().watches_in_place {
            if self.backend.watch(at).is_err() {
                // The limit on mappings: it goes without being watched first.
                self.pool.count(Counter::MapLimit, 1);
                let dropped = self.drop_clean(w);
                if !dropped {
                    self.lru.lock().put_back(unit);
                }
                return dropped;
            }
            self.arena.numa.ask_unit(unit, at);
            self.settle_by(w, Event::Watched);
        } else {
            let Some(place) = self.arena.take_empty() else {
                w.settle();
                self.lru.lock().put_back(unit);
                return false;
            };
            self.open_fence(unit, *w);
            self.note_leaving(unit, Held::AsStored(*w));
            if self.move_out(unit, place, false).is_err() {
                self.arena.put_empty(place);
                // A part may have been on its way and come back writable.
                self.settle_by(w, Event::Dirtied);
                self.lru.lock().put_back(unit);
                return false;
            }
            if !self.is_as_written(unit, self.arena.addr(place), *w) {
                return self.put_back(w, place);
            }
            self.note_left(unit, Held::AsStored(*w));
            w.set_frame(place);
            self.settle_by(w, Event::MovedOut);
        }
        if self.push_clean(unit).is_err() {
            // No room to remember it: back to the list, it is watched already.
            self.lru.lock().put_back(unit);
        }
        self.pacing.made_frame();
        self.note_available();
        true
    }

    /// Does the frame at `at`, just moved out of a region, hold what the unit's cluster does? A
    /// device may have written to it all the while through a hold older than our protection (a
    /// direct read into the unit); what could be moved is held no longer, so now its content is
    /// final.
    pub(crate) fn is_as_written(&self, unit: u32, at: usize, w: Word) -> bool {
        if w.file().is_some() {
            return self.is_as_in_file(unit, w, at);
        }
        // (What is scattered is written anew.)
        let sums = self.pool.cluster_sums();
        let Some(want) = w.cluster().and_then(|c| sums.get(c as usize)) else {
            return false;
        };
        // SAFETY: the place holds a frame that is the caller's.
        checksum::matches(&self.store.key, unsafe { self.bytes(at) }, want)
    }

    /// Moves the frame at `place` back to the locked unit it came from, dirty; false, for nothing
    /// was gained.
    pub(crate) fn put_back(&self, w: Locked<'_>, place: u32) -> bool {
        let unit = w.unit();
        if !self.track.is_open(unit) {
            self.track.note_written(unit);
        }
        if self.move_in(place, unit, true).is_ok() {
            self.arena.put_empty(place);
            self.settle_by(w, Event::PutBack);
        } else {
            // Its bytes are nowhere else.
            self.arena.put_free(place);
            self.store.lose_place(unit, w.place());
            self.settle_by(w, Event::Lost);
        }
        false
    }

    /// A clean unit may be taken from now on, by those of its node first.
    pub(crate) fn push_clean(&self, unit: u32) -> Result<(), u32> {
        self.clean.push(self.arena.numa.of_unit(unit), unit)
    }
}
