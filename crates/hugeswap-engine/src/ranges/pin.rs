//! Pins: ranges held in memory for as long as a user (the kernel, perhaps) uses them by address. A
//! pinned unit is neither watched nor written out, moved or dropped by reclaim.
//!
//! Program threads call these; the rules are in the parent module.

use crate::UNIT;
use crate::outcome::Outcome;
use crate::ranges::{PinError, Ranges};
use crate::stack;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::markers::Marker;
use hugeswap_policy::unit::{Kind, WATCHED, WRITABLE, Word};
use hugeswap_sys::signal::Blocked;
use hugeswap_sys::{Errno, now_ns};

impl Ranges {
    /// Most bytes one call should pin.
    pub fn pin_limit(&self) -> usize {
        (self.pool.frames() / 8).clamp(1, 32) as usize * UNIT
    }

    /// Most units that calls with another way should pin, all at the same time: a part of what is
    /// not the kernel's, so that what they wait for can come in.
    pub fn most_pinned(&self) -> usize {
        let movable = self
            .pool
            .frames()
            .saturating_sub(self.pool.foreign_frames());
        (movable / 4).max(1) as usize
    }

    /// Brings a range in and holds it in memory until [`Ranges::unpin`]: readable, and writable
    /// if `write`. Base pages become whole units, and units with markers the kernel's.
    ///
    /// # Errors
    /// Nothing is held after an error.
    pub fn pin(&self, addr: usize, len: usize, write: bool) -> Result<(), PinError> {
        self.hold(addr, len, write, true)
    }

    /// The same of a range whose units are whole, or become so as they come in.
    ///
    /// # Errors
    /// [`PinError::InPages`]: some of it is in base pages. Nothing is held after an error.
    pub fn pin_whole(&self, addr: usize, len: usize, write: bool) -> Result<(), PinError> {
        self.hold(addr, len, write, false)
    }

    fn hold(&self, addr: usize, len: usize, write: bool, make: bool) -> Result<(), PinError> {
        if len == 0 {
            return Ok(());
        }
        let end = addr.checked_add(len).ok_or(PinError::NotMapped)?;
        if !self.contains(addr) || !self.contains(end - 1) {
            return Err(PinError::NotMapped);
        }
        let units = self.table.units_of(addr, len);
        if units.len() > (self.pin_limit() / UNIT + 1).max(2) {
            return Err(PinError::TooLarge);
        }
        match self.first_marker(addr, len) {
            None => {}
            Some(Marker::Guard) => return Err(PinError::Guard),
            Some(Marker::NoAccess) => return Err(PinError::NotMapped),
            Some(Marker::Poison) => return Err(PinError::Lost),
        }
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        for unit in units.clone() {
            let ejected = match (self.markers.is_marked(unit), make) {
                (false, _) => Ok(()),
                (true, true) => self.eject_unit(unit).map_err(|e| match e {
                    Errno::EIO => PinError::Lost,
                    _ => PinError::NoMemory,
                }),
                (true, false) => match self.table.load(unit).kind() {
                    Kind::Foreign => Ok(()),
                    _ => Err(PinError::InPages),
                },
            };
            let at = addr.max(self.table.addr(unit));
            if let Err(e) = ejected.and_then(|()| self.pin_unit(unit, at, write, make)) {
                for held in units.start..unit {
                    self.table.update(held, Word::unpinned);
                }
                return Err(e);
            }
        }
        self.pool.count(Counter::Pinned, 1);
        Ok(())
    }

    /// Pins `unit`, of which the page at `at` is wanted.
    fn pin_unit(&self, unit: u32, at: usize, write: bool, make: bool) -> Result<(), PinError> {
        let start = now_ns();
        loop {
            let ready = |w: Word| {
                w.kind() == Kind::Foreign
                    || (w.kind() == Kind::Present
                        && !w.has(WATCHED)
                        && w.allows(write)
                        && (!write || w.has(WRITABLE)))
            };
            let mut full = false;
            let pinned = self.table.update(unit, |w| {
                if !ready(w) {
                    return None;
                }
                let p = w.pinned();
                full = p.is_none();
                p
            });
            if pinned.is_some() {
                if write && !self.backend.can().arrives_read_only {
                    // (In signal mode what is writable in one piece is stamped.)
                    self.track.note_written(unit);
                }
                return Ok(());
            }
            if full {
                return Err(PinError::TooMany);
            }
            if self.table.load(unit).kind() == Kind::Base {
                if !make {
                    return Err(PinError::InPages);
                }
                let w = self.table.lock_settled(unit);
                let mut outcome = None;
                if w.kind() == Kind::Base {
                    // (Here and below: what a fault takes of a stack; the thread is a program's.)
                    let mut w = Some(w);
                    stack::call(|| {
                        outcome = w.take().and_then(|w| self.make_whole(w, write, start));
                    });
                } else {
                    w.settle();
                }
                match outcome {
                    None | Some(Outcome::Retry) => continue,
                    Some(Outcome::NoMemory | Outcome::Unmapped(_)) => {
                        return Err(PinError::NoMemory);
                    }
                    Some(_) => return Err(PinError::Lost),
                }
            }
            let mut outcome = Outcome::Retry;
            stack::call(|| outcome = self.resolve(unit, at, write));
            match outcome {
                Outcome::Retry => {}
                Outcome::NotOurs | Outcome::Free | Outcome::NoAccess => {
                    return Err(PinError::NotMapped);
                }
                Outcome::Guard => return Err(PinError::Guard),
                Outcome::Poisoned | Outcome::Stuck => return Err(PinError::Lost),
                Outcome::NoMemory | Outcome::Unmapped(_) => return Err(PinError::NoMemory),
            }
        }
    }

    /// Is the unit of `addr` pinned?
    pub fn is_pinned(&self, addr: usize) -> bool {
        let mut unit = self.table.units_of(addr, 1);
        unit.any(|unit| self.table.load(unit).pins() > 0)
    }

    /// Lets go of a range pinned before.
    pub fn unpin(&self, addr: usize, len: usize) {
        if len == 0 {
            return;
        }
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        for unit in self.table.units_of(addr, len) {
            self.table.update(unit, Word::unpinned);
        }
    }
}
