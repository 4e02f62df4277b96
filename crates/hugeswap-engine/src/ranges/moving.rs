//! Ranges that move to another address (mremap, realloc): whole units move without being copied or
//! brought in, wherever they are.
//!
//! Program threads call these; the rules are in the parent module.

use crate::UNIT;
use crate::ranges::Ranges;
use crate::table::NO_FRAME;
use crate::track::Held;
use hugeswap_policy::markers::Marker;
use hugeswap_policy::unit::step::Event;
use hugeswap_policy::unit::{COW, Kind, Place, WATCHED};
use hugeswap_sys::signal::Blocked;
use std::sync::atomic::Ordering::Relaxed;

impl Ranges {
    /// Moves `len` bytes from one mapped range to another; `from` is zero (or arbitrary, in parts
    /// of units) afterwards. Whole units move without being copied or brought in.
    pub fn move_range(&self, from: usize, to: usize, len: usize) {
        let whole = if (from ^ to).is_multiple_of(UNIT) {
            self.table.whole_units_of(from, len)
        } else {
            0..0
        };
        if whole.is_empty() {
            // SAFETY: both ranges are the caller's and do not overlap.
            return unsafe { self.copy_range(from, to, len) };
        }
        let (first, last) = (
            self.table.addr(whole.start),
            self.table.addr(whole.end - 1) + UNIT,
        );
        // SAFETY: as above: the parts before and after the whole units.
        unsafe {
            self.copy_range(from, to, first - from);
            self.copy_range(last, to + (last - from), from + len - last);
        }
        for unit in whole {
            let dest_addr = to + (self.table.addr(unit) - from);
            let Some(dest) = self.table.unit_of(dest_addr) else {
                return;
            };
            let moved = {
                let _blocked = Blocked::all();
                let _inside = self.gate.enter();
                self.move_unit(unit, dest)
            };
            if !moved {
                // SAFETY: as above: one whole unit.
                unsafe { self.copy_range(self.table.addr(unit), dest_addr, UNIT) };
            }
        }
    }

    /// Copies what is mapped, and the markers on its pages, as far as they can be had there.
    ///
    /// # Safety
    /// Both ranges must be the caller's, and not overlap.
    unsafe fn copy_range(&self, from: usize, to: usize, len: usize) {
        if self.first_marker(from, len).is_none() {
            // SAFETY: by contract.
            return unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, len) };
        }
        let mut at = 0;
        while at < len {
            let n = (4096 - (from + at) % 4096).min(len - at);
            match self.marker_at(from + at) {
                // (It cannot be read, and is left behind.)
                Some(Marker::NoAccess) => {}
                Some(marker) => {
                    let _ = self.install_markers(to + at, n, marker);
                }
                // SAFETY: by contract.
                None => unsafe {
                    std::ptr::copy_nonoverlapping((from + at) as *const u8, (to + at) as *mut u8, n)
                },
            }
            at += n;
        }
    }

    fn move_unit(&self, unit: u32, dest: u32) -> bool {
        let mut w = self.lock_whole(unit);
        let d = self.lock_whole(dest);
        let movable = match w.kind() {
            Kind::Foreign | Kind::Poisoned | Kind::Free | Kind::Base => false,
            Kind::Present => !w.has(COW),
            _ => true,
        };
        if !movable
            || d.kind() != Kind::None
            || self.files.of(unit).is_some()
            || w.pins() > 0
            || w.place() == Place::Singles && self.store.scatter.open(dest).is_none()
        {
            w.settle();
            d.settle();
            return false;
        }
        let (a, b) = (w.addr(), d.addr());
        let (from, read_only) = (*w, self.backend.can().watches_in_place);
        if w.kind() == Kind::Present {
            // Through no access to the destination, so that the word there is true at every moment.
            if self.backend.relocate(a, b, w.has(WATCHED)).is_err() {
                self.advance(&mut w, Event::Unwatched);
                self.settle_by(w, Event::MadeReadOnly);
                d.settle();
                return false;
            }
            if read_only {
                // Should it fail, the next touch gives access.
                let _ = self.backend.set_readable(b);
            } else {
                self.note_arrival(dest, false, Held::AsStored(*w));
            }
        }
        if w.place() == Place::Singles {
            self.store.move_places(unit, dest);
        }
        d.set_frame(w.frame());
        let numa = &self.arena.numa;
        numa.set_unit(dest, numa.of_unit(unit));
        w.set_frame(NO_FRAME);
        self.markers.move_markers(unit, dest);
        self.high_unit.fetch_max(dest + 1, Relaxed);
        self.track.note_written(dest);
        self.track.note_written(unit);
        // Before the unlocks, so that a thread that saw neither with its place sees this.
        self.places_moved.fetch_add(1, Relaxed);
        self.settle_by(d, Event::MovedHere { from, read_only });
        self.settle_by(w, Event::MovedAway);
        true
    }
}
