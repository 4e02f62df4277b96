//! Addresses in the window that the program chooses, and mappings that the kernel makes there.
//!
//! Private anonymous memory at a chosen address is managed like any other. Before the kernel maps
//! something else in the window, its addresses are *claimed*: no other request gets them, and their
//! units are foreign. Then the claim is either settled or abandoned. The pool promises nothing for
//! claimed addresses, and they are not in the budget.
//!
//! Program threads call these; the rules are in the parent module.

use super::{Dirty, PAGE, UNIT, page_up};
use crate::ranges::Ranges;
use hugeswap_policy::unit::Kind;
use hugeswap_policy::unit::step::Event;
use hugeswap_sys::Errno;
use hugeswap_sys::signal::Blocked;
use std::sync::atomic::Ordering::Relaxed;

/// How the present mappings are treated at addresses that are claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// It stays mapped, as the kernel's.
    Keep,
    /// It is given up: only units that others use too are brought in.
    Drop,
}

/// Addresses that are about to be mapped by the kernel. End it by [`Ranges::settle_claim`] or
/// [`Ranges::abandon_claim`].
#[derive(Debug)]
#[must_use]
pub struct Claim {
    addr: usize,
    len: usize,
    /// What of it was free before.
    fresh: Vec<(usize, usize)>,
}

impl Ranges {
    /// Maps managed memory that reads as zero at `[addr, addr+len)`, whole pages of the window;
    /// with `over` in the place of whatever is mapped there. EEXIST without `over`, if something
    /// is. ENOMEM as [`Ranges::map`]; what was mapped there may be gone then only if the limit on
    /// mappings is met.
    pub fn map_at(&self, addr: usize, len: usize, over: bool) -> Result<(), Errno> {
        let len = page_up(len);
        if !addr.is_multiple_of(PAGE) || !self.contains(addr) || !self.contains(addr + len - 1) {
            return Err(Errno::EINVAL);
        }
        let mut dirty = Dirty::default();
        {
            let _blocked = Blocked::all();
            let _inside = self.gate.enter();
            let mut space = self.space.lock();
            let there: usize = space.allocated_in(addr, len).map(|(_, n)| n).sum();
            if there > 0 && !over {
                return Err(Errno::EEXIST);
            }
            // What is promised for the range already counts for what takes its place.
            let promised =
                there - self.file_bytes(&space, addr, len) - space.unpromised_bytes(addr, len);
            if !self.pool.commit(self.pool.me(), (len - promised) as u64) {
                return Err(Errno::ENOMEM);
            }
            if let Err(e) = self.unmap_locked(&mut space, addr, len) {
                self.pool.uncommit(self.pool.me(), (len - promised) as u64);
                return Err(e);
            }
            // All of it is free now, and no other thread has had the lock.
            let taken = space.take_at(addr, len);
            debug_assert!(taken);
            self.take_units(&mut space, addr, len, &mut dirty)?;
        }
        self.close_unused_mappings();
        self.make_fit(addr, len, &dirty, true)
    }

    /// The lowest address below 2 GiB at which `len` bytes are free, for the moment. `None`: there is
    /// none, or the window has no part there.
    pub fn hole_in_low(&self, len: usize) -> Option<usize> {
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        self.space.lock().hole_in_low(len)
    }

    /// Is any page of the range mapped, by us or by the kernel?
    pub fn is_any_mapped(&self, addr: usize, len: usize) -> bool {
        self.with_mapped(|is_any_mapped| is_any_mapped(addr, len))
    }

    /// Calls `f` with what says whether any page of a range (address, length) is mapped, which
    /// stays as it is for so long. `f` must not call the engine.
    pub fn with_mapped<R>(&self, f: impl FnOnce(&dyn Fn(usize, usize) -> bool) -> R) -> R {
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        let space = self.space.lock();
        f(&|addr, len| space.allocated_in(addr, len).next().is_some())
    }

    /// The mapped ranges (address, length) within `[addr, addr+len)`, in order.
    pub fn mapped_in(&self, addr: usize, len: usize) -> Vec<(usize, usize)> {
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        let space = self.space.lock();
        space.allocated_in(addr, len).collect()
    }

    /// How many bytes of the range hold mappings that the kernel made at the program's wish.
    pub fn kernel_bytes(&self, addr: usize, len: usize) -> usize {
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        self.space.lock().kernel_bytes(addr, len)
    }

    /// Has every unit of the range that is used been handed to the kernel?
    pub fn is_unmanaged(&self, addr: usize, len: usize) -> bool {
        let mut units = self.table.units_of(addr, len);
        units.all(|unit| matches!(self.table.load(unit).kind(), Kind::Free | Kind::Foreign))
    }

    /// Has any unit of the range been handed to the kernel?
    pub fn is_any_foreign(&self, addr: usize, len: usize) -> bool {
        self.has_foreign.load(Relaxed) && {
            let mut units = self.table.units_of(addr, len);
            units.any(|unit| self.table.load(unit).kind() == Kind::Foreign)
        }
    }

    /// Claims what the window has of `[addr, addr+len)`, whole pages: see the file's head. ENOMEM,
    /// EIO: a unit could not be brought in, or the limit on mappings is met; nothing is lost.
    pub fn claim(&self, addr: usize, len: usize, contents: Contents) -> Result<Claim, Errno> {
        let window = self.window_at(addr, len);
        let from = addr.max(window.start);
        let len = addr
            .saturating_add(len)
            .min(window.end)
            .saturating_sub(from);
        let mut claim = Claim {
            addr: from,
            len,
            fresh: Vec::new(),
        };
        while len > 0 && !self.try_claim(&mut claim, contents)? {}
        Ok(claim)
    }

    /// False if a unit has become managed meanwhile: again.
    fn try_claim(&self, claim: &mut Claim, contents: Contents) -> Result<bool, Errno> {
        let (addr, len) = (claim.addr, claim.len);
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        for unit in self.table.units_of(addr, len) {
            let at = self.table.addr(unit);
            let whole = at >= addr && at + UNIT <= addr + len;
            if !whole || contents == Contents::Keep {
                self.eject_unit(unit)?;
            }
        }
        let mut space = self.space.lock();
        if contents == Contents::Drop {
            let gone = self.unmap_locked(&mut space, addr, len)?;
            self.pool.uncommit(self.pool.me(), gone as u64);
        }
        claim.fresh.extend(space.take_for_kernel(addr, len));
        let units = self.table.units_of(addr, len);
        self.has_foreign.store(true, Relaxed);
        self.high_unit.fetch_max(units.end, Relaxed);
        for unit in units {
            let w = self.table.lock(unit);
            let done = match w.kind() {
                Kind::Foreign => Ok(()),
                Kind::Free => self.hand_over_absent(unit),
                _ => Err(Errno::EAGAIN),
            };
            match done {
                Ok(()) if w.kind() == Kind::Free => self.settle_by(w, Event::Claimed),
                _ => w.settle(),
            }
            if let Err(e) = done {
                for (at, n) in claim.fresh.drain(..) {
                    let _ = self.unmap_locked(&mut space, at, n);
                }
                return if e == Errno::EAGAIN {
                    Ok(false)
                } else {
                    Err(e)
                };
            }
        }
        // (A thread that unmaps the rest of a unit must not take it away.)
        space.set_claimed(addr, len, true);
        Ok(true)
    }

    /// The kernel may map something at a locked unit that is not in use.
    fn hand_over_absent(&self, unit: u32) -> Result<(), Errno> {
        self.backend.hand_absent_to_kernel(self.table.addr(unit))
    }

    /// The kernel has mapped what it was to map.
    pub fn settle_claim(&self, claim: Claim) {
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        let mut space = self.space.lock();
        space.set_claimed(claim.addr, claim.len, false);
        let promised = space.make_kernels(claim.addr, claim.len);
        self.pool.uncommit(self.pool.me(), promised as u64);
    }

    /// The kernel has mapped nothing; what was free is free again.
    pub fn abandon_claim(&self, claim: Claim) {
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        let mut space = self.space.lock();
        space.set_claimed(claim.addr, claim.len, false);
        for (at, n) in claim.fresh {
            // (Where this fails the addresses stay taken.)
            let _ = self.unmap_locked(&mut space, at, n);
        }
    }
}
