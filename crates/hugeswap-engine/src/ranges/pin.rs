//! Pins: ranges held in memory for as long as somebody, the kernel perhaps, uses them by address.
//! A pinned unit is neither watched nor written out, moved or dropped by reclaim.
//!
//! Called by program threads; see the parent module for the rules.

use crate::UNIT;
use crate::outcome::Outcome;
use crate::ranges::Ranges;
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

    /// Brings a range in and holds it in memory until [`Ranges::unpin`]: readable, and writable
    /// if `write`. EAGAIN if it is more than can be held, EFAULT if it is not (so) mapped, ENOMEM and EIO if memory
    /// cannot be had or read back; nothing is held then.
    pub fn pin(&self, addr: usize, len: usize, write: bool) -> Result<(), Errno> {
        if len == 0 {
            return Ok(());
        }
        let end = addr.checked_add(len).ok_or(Errno::EFAULT)?;
        if !self.contains(addr) || !self.contains(end - 1) {
            return Err(Errno::EFAULT);
        }
        let units = self.table.units_of(addr, len);
        if units.len() > (self.pin_limit() / UNIT + 1).max(2) {
            return Err(Errno::EAGAIN);
        }
        match self.first_marker(addr, len) {
            None => {}
            Some(Marker::Guard) => return Err(Errno::EFAULT),
            Some(Marker::Poison) => return Err(Errno::EIO),
        }
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        for unit in units.clone() {
            if self.markers.is_marked(unit)
                && let Err(e) = self.eject_unit(unit)
            {
                for held in units.start..unit {
                    self.table.update(held, Word::unpinned);
                }
                return Err(e);
            }
            if let Err(e) = self.pin_unit(unit, write) {
                for held in units.start..unit {
                    self.table.update(held, Word::unpinned);
                }
                return Err(e);
            }
        }
        self.pool.count(Counter::Pinned, 1);
        Ok(())
    }

    fn pin_unit(&self, unit: u32, write: bool) -> Result<(), Errno> {
        let at = self.table.addr(unit);
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
                return Err(Errno::EAGAIN);
            }
            if self.table.load(unit).kind() == Kind::Base {
                let w = self.table.lock_settled(unit);
                let outcome = if w.kind() == Kind::Base {
                    self.make_whole(w, write, start)
                } else {
                    w.settle();
                    None
                };
                match outcome {
                    None | Some(Outcome::Retry) => continue,
                    Some(Outcome::NoMemory | Outcome::Unmapped(_)) => return Err(Errno::ENOMEM),
                    Some(_) => return Err(Errno::EIO),
                }
            }
            match self.resolve(unit, at, write) {
                Outcome::Retry => {}
                Outcome::NotOurs | Outcome::Guard => return Err(Errno::EFAULT),
                Outcome::Poisoned | Outcome::Stuck => return Err(Errno::EIO),
                Outcome::NoMemory | Outcome::Unmapped(_) => return Err(Errno::ENOMEM),
            }
        }
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
