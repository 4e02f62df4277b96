//! Pins: ranges held in memory for as long as a user (the kernel, perhaps) uses them by address. A
//! pinned unit is neither watched nor written out, moved or dropped by reclaim.
//!
//! A unit's word counts its pins. What is unmapped or discarded while it is pinned leaves its pins
//! behind ([`Left`]): who made them lets go of these, and not of pins that what is mapped there next has
//! got.
//!
//! Program threads call these; the rules are in the parent module.

use crate::UNIT;
use crate::lock::Lock;
use crate::outcome::{Fault, Outcome};
use crate::ranges::protect::Bound;
use crate::ranges::{PinError, Ranges};
use crate::stack;
use crate::table::Locked;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::markers::Marker;
use hugeswap_policy::unit::{Kind, WATCHED, WRITABLE, Word};
use hugeswap_sys::Errno;
use hugeswap_sys::signal::Blocked;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// Pins of units whose memory was given up since, and that nobody has let go of.
pub(super) struct Left {
    /// How many there are, for a quick look.
    count: AtomicUsize,
    /// Of each unit that has any.
    units: Lock<Vec<(u32, u64)>>,
}

impl Left {
    pub const fn new() -> Left {
        Left {
            count: AtomicUsize::new(0),
            units: Lock::new(Vec::new()),
        }
    }

    /// The memory of a locked unit is about to be given up, and its pins with it.
    pub fn note(&self, w: &Locked<'_>) {
        let (unit, pins) = (w.unit(), w.pins());
        if pins == 0 {
            return;
        }
        let mut units = self.units.lock();
        match units.iter_mut().find(|(u, _)| *u == unit) {
            Some((_, n)) => *n += pins,
            None => units.push((unit, pins)),
        }
        // (Who sees the word that the unit's holder settles next sees this.)
        self.count.fetch_add(pins as usize, Relaxed);
    }

    fn has(&self, unit: u32) -> bool {
        self.count.load(Relaxed) > 0 && self.units.lock().iter().any(|(u, _)| *u == unit)
    }

    /// Ends one of a unit's. False: there is none.
    fn end_one(&self, unit: u32) -> bool {
        let mut units = self.units.lock();
        let Some(i) = units.iter().position(|(u, _)| *u == unit) else {
            return false;
        };
        units[i].1 -= 1;
        if units[i].1 == 0 {
            units.swap_remove(i);
        }
        self.count.fetch_sub(1, Relaxed);
        true
    }

    fn forget(&self) {
        if self.count.load(Relaxed) > 0 {
            self.units.lock().clear();
            self.count.store(0, Relaxed);
        }
    }
}

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
                (true, true) => self
                    .eject_within(unit, Bound::Ignored)
                    .map_err(|e| match e {
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
                    self.unpin_unit(held);
                }
                return Err(e);
            }
        }
        self.pool.count(Counter::Pinned, 1);
        Ok(())
    }

    /// Pins `unit`, of which the page at `at` is wanted.
    fn pin_unit(&self, unit: u32, at: usize, write: bool, make: bool) -> Result<(), PinError> {
        let fault = Fault::by_engine(at, write);
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
                        outcome = w.take().and_then(|w| self.make_whole(w, fault));
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
            stack::call(|| outcome = self.resolve(unit, Fault::by_engine(at, write)));
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
            self.unpin_unit(unit);
        }
    }

    fn unpin_unit(&self, unit: u32) {
        loop {
            let unpinned = |w: Word| match self.left.has(unit) {
                true => None,
                false => w.unpinned(),
            };
            let done = self.table.update(unit, unpinned).is_some() || self.left.end_one(unit);
            if done || self.table.load(unit).pins() == 0 {
                return;
            }
        }
    }

    /// Lets go of all that is pinned: in a forked child, where those who pinned it are not.
    pub fn unpin_all(&self) {
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        self.left.forget();
        for unit in 0..self.high_unit.load(Acquire) {
            while self.table.load(unit).pins() > 0 {
                self.table.update(unit, Word::unpinned);
            }
        }
    }
}
