//! Frames taken from units, and moved in and out. The rules of the fault path hold.

use crate::call::Done;
use crate::memory::Memory;
use crate::table::{Locked, NO_FRAME};
use hugeswap_policy::counters::Counter;
use hugeswap_policy::unit::step::Event;
use hugeswap_policy::unit::{CLEAN, COW, Kind, READAHEAD, WATCHED, Word};

/// May the frame of a unit be taken? It is in nobody's sight, or is watched and was not touched, and
/// its place in swap holds the same.
pub(super) fn is_takeable(w: Word) -> bool {
    w.evictable() && (w.kind() == Kind::Cached || (w.has(WATCHED) && w.has(CLEAN) && !w.has(COW)))
}

impl Memory {
    /// Takes the frame of a locked, clean, evictable unit and unlocks it as swapped.
    pub(crate) fn take_locked(&self, w: Locked<'_>) -> Option<u32> {
        let (unit, was) = (w.unit(), *w);
        if was.kind() == Kind::Cached {
            let place = w.frame();
            w.set_frame(NO_FRAME);
            self.note_whole_evicted(unit);
            self.settle_by(w, Event::FrameTaken);
            if was.has(READAHEAD)
                && let Some(mut s) = self.streams.try_lock()
            {
                s.on_waste(u64::from(unit));
            }
            return Some(place);
        }
        let Some(place) = self.arena.take_empty() else {
            w.settle();
            return None;
        };
        match self.move_out(unit, place, was.has(WATCHED)) {
            Ok(()) => {
                w.set_frame(NO_FRAME);
                self.note_whole_evicted(unit);
                self.settle_by(w, Event::FrameTaken);
                Some(place)
            }
            Err(_) => {
                self.arena.put_empty(place);
                // The limit on mappings: moving needs some, dropping frees some.
                self.pool.count(Counter::MapLimit, 1);
                self.drop_clean(w);
                None
            }
        }
    }

    /// Frees the frame of a unit that was just parked, unless it is in use again.
    pub(crate) fn free_parked(&self, unit: u32) {
        if let Some(w) = self.table.try_lock_if(unit, is_takeable)
            && let Some(place) = self.take_locked(w)
        {
            self.arena.put_free(place);
            self.note_available();
        }
    }

    /// Moves the frame at `place` to `unit`: see
    /// [`Placement::move_in`](crate::backend::Placement::move_in).
    pub(crate) fn move_in(&self, place: u32, unit: u32, writable: bool) -> Done {
        let (from, to) = (self.arena.addr(place), self.table.addr(unit));
        self.backend.move_in(from, to, writable)?;
        let numa = &self.arena.numa;
        numa.set_unit(unit, numa.of_place(place));
        Ok(())
    }

    /// Moves the memory of `unit` to an empty place: see
    /// [`Placement::move_out`](crate::backend::Placement::move_out).
    pub(crate) fn move_out(&self, unit: u32, place: u32, watched: bool) -> Done {
        let (from, to) = (self.table.addr(unit), self.arena.addr(place));
        self.backend.move_out(from, to, watched)?;
        let numa = &self.arena.numa;
        numa.set_place(place, numa.of_unit(unit));
        Ok(())
    }
}
