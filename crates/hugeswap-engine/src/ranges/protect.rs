//! Access that the program sets on its ranges, and units handed back to the kernel so that its own
//! calls work on them.
//!
//! Program threads call these; the rules are in the parent module.

use crate::outcome::{Fault, Outcome};
use crate::ranges::Prot;
use crate::ranges::Ranges;
use crate::stack;
use crate::{PAGE, PAGES, UNIT};
use hugeswap_policy::unit::step::Event;
use hugeswap_policy::unit::{Kind, LOCKED, Place, WATCHED, WRITABLE, Word};
use hugeswap_sys::signal::Blocked;
use hugeswap_sys::{Errno, mm};
use std::sync::atomic::Ordering::Relaxed;

fn access_of(prot: Prot) -> u32 {
    match prot {
        Prot::None => mm::PROT_NONE,
        Prot::Read => mm::PROT_READ,
        Prot::ReadWrite => mm::PROT_RW,
    }
}

/// The program sets this access.
pub(super) fn allowing(prot: Prot) -> Event {
    Event::Protected {
        may_read: prot != Prot::None,
        may_write: prot == Prot::ReadWrite,
    }
}

/// The access that the program allows of a managed unit, if that is not all.
pub(super) fn allowed_by(w: Word) -> Option<Prot> {
    match (w.kind(), w.allows(true), w.allows(false)) {
        (Kind::Foreign, ..) | (_, true, _) => None,
        (_, false, true) => Some(Prot::Read),
        (_, false, false) => Some(Prot::None),
    }
}

/// Does the kernel get no more of the budget than leaves room for the rest
/// ([`crate::pool::Pool::hand_to_kernel`])? For calls that have no other way it may.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Bound {
    Kept,
    Ignored,
}

impl Ranges {
    /// Sets the access that the program allows on whole units. EINVAL for parts of units,
    /// EOPNOTSUPP in message mode: both can be had by [`Ranges::eject`] and the ordinary call.
    pub fn protect(&self, addr: usize, len: usize, prot: Prot) -> Result<(), Errno> {
        if !addr.is_multiple_of(UNIT) || !len.is_multiple_of(UNIT) {
            return Err(Errno::EINVAL);
        }
        if !self.backend.can().watches_in_place || self.is_of_file(addr) {
            return Err(Errno::EOPNOTSUPP);
        }
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        let by_pages = self.backend.can().has_single_pages() && prot != Prot::None;
        for unit in self.table.whole_units_of(addr, len) {
            if by_pages
                && self.table.load(unit).kind() == Kind::Base
                && self.protect_pages(unit, 0..PAGES, prot).is_ok()
            {
                // (To write out what is there would take longer than its pages' faults.)
                continue;
            }
            self.protect_unit(unit, prot, true)?;
        }
        Ok(())
    }

    /// [`Ranges::protect`] of one unit, inside the gate. `all`: of each page, also of those that had
    /// less access by themselves.
    fn protect_unit(&self, unit: u32, prot: Prot, all: bool) -> Result<(), Errno> {
        let w = self.lock_whole(unit);
        if w.kind() == Kind::Base {
            w.settle();
            return Err(Errno::ENOMEM);
        }
        if all {
            self.open_pages(&w, 0..PAGES);
        }
        let mut ok = true;
        if w.kind() == Kind::Foreign {
            let set = (self.backend).set_foreign_access(self.table.addr(unit), access_of(prot));
            ok = set.is_ok();
            self.close_again(unit);
        } else if w.kind() == Kind::Present {
            // A present unit that is not watched is mapped readable if the program may read it:
            // system calls on pinned memory rely on that. Write access comes with the next
            // fault.
            let at = self.table.addr(unit);
            if prot == Prot::None && !w.has(WATCHED) {
                ok = self.backend.watch(at).is_ok();
            } else if prot != Prot::None && !w.allows(false) && !w.has(WATCHED) {
                ok = self.backend.set_readable(at).is_ok();
            } else if prot == Prot::Read && w.has(WRITABLE) {
                ok = self.backend.set_read_only(at, UNIT).is_ok();
            }
        }
        if !ok {
            w.settle();
            return Err(Errno::ENOMEM);
        }
        self.settle_by(w, allowing(prot));
        Ok(())
    }

    /// Brings the units of a range in and hands them to the kernel for good: afterwards ordinary
    /// system calls (mprotect, mlock, mmap over it) work on them. They stay charged. EOPNOTSUPP for
    /// mapped files; ENOMEM where the kernel would have nearly all of the budget then, or there is
    /// no memory to bring them in to.
    pub fn eject(&self, addr: usize, len: usize) -> Result<(), Errno> {
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        for unit in self.table.units_of(addr, len) {
            self.eject_unit(unit)?;
        }
        Ok(())
    }

    /// The access that the program allows to all of a managed range; `None` if it is not the same
    /// everywhere, or the kernel has some of it.
    pub fn access(&self, addr: usize, len: usize) -> Option<Prot> {
        let access = |unit| {
            let w = self.table.load(unit);
            if w.kind() == Kind::Foreign {
                return None;
            }
            let of_unit = allowed_by(w).unwrap_or(Prot::ReadWrite);
            let Some(marked) = self.markers.of(unit) else {
                return Some(of_unit);
            };
            let pages = self.table.pages_in(unit, addr, len);
            let of_page = |p| match (of_unit, marked.no_access.get(p), marked.read_only.get(p)) {
                (Prot::None, ..) | (_, true, _) => Prot::None,
                (_, _, true) => Prot::Read,
                _ => of_unit,
            };
            let first = of_page(pages.start);
            pages.clone().all(|p| of_page(p) == first).then_some(first)
        };
        let mut units = self.table.units_of(addr, len);
        let first = access(units.next()?)?;
        units
            .all(|unit| access(unit) == Some(first))
            .then_some(first)
    }

    /// May the program read all of a managed range, and write to it if `write`? (Of what the kernel
    /// has, the kernel knows.)
    pub fn allows(&self, addr: usize, len: usize, write: bool) -> bool {
        self.table.units_of(addr, len).all(|unit| {
            let w = self.table.load(unit);
            if w.kind() == Kind::Foreign {
                return true;
            }
            w.allows(write)
                && self.markers.of(unit).is_none_or(|marked| {
                    let mut pages = self.table.pages_in(unit, addr, len);
                    pages.all(|p| marked.of(p).is_none() && !(write && marked.read_only.get(p)))
                })
        })
    }

    /// Has all of a range been handed to the kernel?
    pub fn is_foreign(&self, addr: usize, len: usize) -> bool {
        let mut units = self.table.units_of(addr, len);
        units.all(|unit| self.table.load(unit).kind() == Kind::Foreign)
    }

    /// The kernel's unit has the access that the program allowed.
    pub(super) fn eject_unit(&self, unit: u32) -> Result<(), Errno> {
        self.eject_within(unit, Bound::Kept)
    }

    /// [`Ranges::eject_unit`]; of units with markers as many as it takes, if the bound is not kept.
    pub(super) fn eject_within(&self, unit: u32, bound: Bound) -> Result<(), Errno> {
        let mut allowed = Prot::ReadWrite;
        // (What a fault takes of a stack, and a write; the thread is a program's.)
        let mut done = Ok(());
        stack::call(|| done = self.eject_with(unit, &mut allowed, bound));
        if done.is_err() && allowed != Prot::ReadWrite {
            let _ = self.protect_unit(unit, allowed, false);
        }
        done
    }

    /// `allowed`: less access that the program allows, of a unit that is not the kernel's yet.
    fn eject_with(&self, unit: u32, allowed: &mut Prot, bound: Bound) -> Result<(), Errno> {
        let at = self.table.addr(unit);
        if self.files.of(unit).is_some() {
            return Err(Errno::EOPNOTSUPP);
        }
        let fault = Fault::by_engine(at, true);
        // (What is said of its pages' access ends as it becomes the kernel's.)
        let mut less = Vec::new();
        if let Some(marked) = self.markers.of(unit) {
            for (bits, access) in [
                (&marked.read_only, mm::PROT_READ),
                (&marked.no_access, mm::PROT_NONE),
            ] {
                let mut from = 0;
                while let Some(run) = bits.run(from, PAGES, true) {
                    from = run.end;
                    less.push((run, access));
                }
            }
        }
        loop {
            let w = self.table.load(unit);
            match w.kind() {
                // What it is to be brought in by depends on the kind that its holder leaves.
                _ if w.has(LOCKED) => {
                    self.table.lock_settled(unit).settle();
                    continue;
                }
                Kind::Foreign if w.place() != Place::Nothing => {
                    let w = self.table.lock_settled(unit);
                    if w.kind() == Kind::Foreign {
                        self.store.free_place(unit, w.place());
                        self.settle_by(w, Event::Placed(Place::Nothing));
                    } else {
                        w.settle();
                    }
                    continue;
                }
                Kind::Foreign if *allowed != Prot::ReadWrite => {
                    // It has markers, and was mapped with our access.
                    // SAFETY: the access that the program has set.
                    unsafe { mm::protect(at, UNIT, access_of(*allowed)) }?;
                    return less.iter().try_for_each(|(run, access)| {
                        let (at, len) = (at + run.start * PAGE, run.len() * PAGE);
                        // SAFETY: as above, for pages with less access.
                        unsafe { mm::protect(at, len, access & access_of(*allowed)) }
                    });
                }
                Kind::Foreign | Kind::Free => return Ok(()),
                Kind::Poisoned => return Err(Errno::EIO),
                Kind::None | Kind::Swapped if self.markers.is_marked(unit) && !w.allows(false) => {
                    // Bring it in with our access, not the program's: memory without access cannot
                    // be base-mapped.
                    *allowed = allowed_by(w).unwrap_or(*allowed);
                    self.table.update_by(unit, allowing(Prot::ReadWrite));
                    continue;
                }
                Kind::Cached if self.markers.is_marked(unit) => {
                    // A touch of its first page may be an error; its pages come one by one.
                    let mut w = self.table.lock_settled(unit);
                    if w.kind() == Kind::Cached {
                        self.drop_cached(&mut w);
                    }
                    w.settle();
                    continue;
                }
                Kind::None | Kind::Swapped if self.markers.is_marked(unit) => {
                    let mut w = self.table.lock_settled(unit);
                    let based = match w.kind() {
                        Kind::None => self.start_pages(&mut w),
                        Kind::Swapped => self.go_over_to_pages(&mut w),
                        _ => true,
                    };
                    w.settle();
                    if !based {
                        return Err(Errno::ENOMEM);
                    }
                    continue;
                }
                Kind::Base => {
                    let w = self.table.lock_settled(unit);
                    if w.kind() != Kind::Base {
                        w.settle();
                        continue;
                    }
                    // (With markers it is the kernel's as soon as it is whole, and counts as such
                    // beforehand.)
                    let (pool, me) = (&self.pool, self.pool.me());
                    let counts = self.markers.is_marked(unit) && bound == Bound::Kept;
                    if counts && !pool.hand_to_kernel(me) {
                        w.settle();
                        return Err(Errno::ENOMEM);
                    }
                    let outcome = self.make_whole(w, fault);
                    if counts {
                        pool.take_from_kernel(me, 1);
                    }
                    if outcome.is_some_and(Outcome::is_lost) {
                        return Err(Errno::ENOMEM);
                    }
                    continue;
                }
                _ if !w.allows(true) => {
                    // Bring it in with our access, not the program's.
                    *allowed = allowed_by(w).unwrap_or(*allowed);
                    self.table.update_by(unit, allowing(Prot::ReadWrite));
                    continue;
                }
                _ => {}
            }
            if !w.has(WRITABLE) {
                match self.resolve(unit, Fault::by_engine(at, true)) {
                    outcome if outcome.is_lost() => return Err(Errno::ENOMEM),
                    Outcome::Retry => {}
                    // Its access or its markers changed since it was read.
                    _ => continue,
                }
            }
            let w = self.table.lock_settled(unit);
            if w.kind() != Kind::Present || !w.has(WRITABLE) {
                w.settle();
                continue;
            }
            if !self.pool.hand_to_kernel(self.pool.me()) {
                w.settle();
                return Err(Errno::ENOMEM);
            }
            let set = match *allowed {
                Prot::ReadWrite => Ok(()),
                _ => self.backend.set_foreign_access(at, access_of(*allowed)),
            };
            let handed = set.and_then(|()| self.backend.hand_to_kernel(at));
            if handed.is_err() {
                self.pool.take_from_kernel(self.pool.me(), 1);
                w.settle();
                return Err(Errno::ENOMEM);
            }
            self.has_foreign.store(true, Relaxed);
            self.settle_freeing(w, Event::Ejected { keeps_place: false });
            return Ok(());
        }
    }
}
