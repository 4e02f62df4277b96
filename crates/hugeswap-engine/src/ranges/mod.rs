//! The address space, the third of the engine's layers: the calls of the program on its ranges.
//!
//! Here are mapping, growing and unmapping. Submodules have addresses that the program chooses
//! ([`fixed`]), memory that it had before ([`adopt`]), addresses without memory ([`reserved`]), contents given up ([`contents`]), advice
//! ([`advice`]), access ([`protect`], [`by_page`]), pins ([`pin`]) and moves ([`moving`]).
//!
//! A unit is managed, or the kernel's (`Foreign`), as a whole. The allocated pages of a foreign
//! unit are what the kernel has there, and its free pages have no access. A page that is allocated
//! in such a unit is mapped anew.
//!
//! Program threads call these. Signals are blocked while the engine's locks are held. The program's
//! memory is touched only while none is held (a touch may fault, and the fault path enters the
//! gate).

mod adopt;
mod advice;
mod by_page;
mod contents;
mod error;
mod files;
mod fixed;
mod marking;
mod moving;
mod pin;
mod protect;
mod reserved;
mod usage;

use crate::PAGE;
pub use error::{MapError, MarkerError, PinError};
pub use fixed::{Claim, Contents};

use crate::UNIT;
use crate::lock::Lock;
use crate::paging::Paging;
use crate::space::Space;
use crate::table::Locked;
use crossbeam_queue::ArrayQueue;
use hugeswap_policy::unit::Kind;
use hugeswap_sys::signal::Blocked;
use hugeswap_sys::{Errno, mm};
use std::ops::Deref;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// Access the program itself allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prot {
    /// None.
    None,
    /// Reading.
    Read,
    /// Reading and writing.
    ReadWrite,
}

/// The address space, the third of the engine's layers: which addresses are in use.
pub struct Ranges {
    paging: Paging,
    pub(crate) space: Lock<Space>,
    /// Units that the program wants brought out, for kswapd.
    pub(crate) evict_requests: ArrayQueue<u32>,
    /// Units below this one, the first of the main range or a later one, are in core dumps.
    dumped: AtomicU32,
    /// Counts units that changed their addresses.
    pub(crate) places_moved: AtomicU32,
    left: pin::Left,
}

impl Ranges {
    /// With no range mapped in `space`.
    pub(crate) fn new(paging: Paging, space: Space) -> Ranges {
        // (What far parts hold was mapped by others.)
        let dumped = AtomicU32::new(paging.table.first());
        Ranges {
            paging,
            space: Lock::new(space),
            evict_requests: ArrayQueue::new(4096),
            dumped,
            places_moved: AtomicU32::new(0),
            left: pin::Left::new(),
        }
    }
}

impl Deref for Ranges {
    type Target = Paging;

    fn deref(&self) -> &Paging {
        &self.paging
    }
}

/// Parts of a new range that may hold old bytes, or have less access than it: at most its first and
/// its last unit are also others'.
type Dirty = [(usize, usize); 2];

fn page_up(len: usize) -> usize {
    len.next_multiple_of(PAGE)
}

impl Ranges {
    /// [`Table::lock_settled`](crate::table::Table) for callers that work on whole units: a
    /// base-mapped one is whole again first, if swap takes what that needs.
    fn lock_whole(&self, unit: u32) -> Locked<'_> {
        let mut w = self.table.lock_settled(unit);
        if w.kind() == Kind::Base {
            self.leave_pages(&mut w);
        }
        w
    }

    /// Maps `len` bytes of managed memory (whole pages; units of 2 MiB are aligned) at an address
    /// of ours. `zero`: the bytes read as zero; otherwise they are arbitrary.
    pub fn map(&self, len: usize, align: usize, zero: bool) -> Result<usize, MapError> {
        if len == 0 {
            return Err(MapError::Empty);
        }
        let len = page_up(len);
        let mut dirty = Dirty::default();
        let addr = {
            let _blocked = Blocked::all();
            let _inside = self.gate.enter();
            if !self.pool.commit(self.pool.me(), len as u64) {
                return Err(MapError::NoRoom);
            }
            let mut space = self.space.lock();
            let Some(addr) = space.alloc(len, align.max(PAGE)) else {
                self.pool.uncommit(self.pool.me(), len as u64);
                return Err(MapError::NoAddresses);
            };
            self.take_units(&mut space, addr, len, &mut dirty)
                .map_err(|_| MapError::Kernel)?;
            addr
        };
        self.make_fit(addr, len, &dirty, zero)
            .map_err(|_| MapError::Kernel)?;
        Ok(addr)
    }

    /// Units below `end` are in core dumps from now on; what no range was ever at is not.
    fn dump_up_to(&self, end: u32) {
        let from = self.dumped.fetch_max(end, Relaxed);
        if from < end {
            let (at, len) = (self.table.addr(from), (end - from) as usize * UNIT);
            // SAFETY: advice that changes no contents. Refused, the dump has less.
            let _ = unsafe { mm::advise(at, len, libc::MADV_DODUMP) };
        }
    }

    /// Makes the units of a new range managed, or maps it anew where they are the kernel's. If that
    /// fails the range is free again.
    fn take_units(
        &self,
        space: &mut Space,
        addr: usize,
        len: usize,
        dirty: &mut Dirty,
    ) -> Result<(), Errno> {
        self.dump_up_to(self.table.units_of(addr, len).end);
        let mut n = 0;
        for unit in self.table.units_of(addr, len) {
            let w = self.table.lock(unit);
            let at = self.table.addr(unit);
            let (from, to) = (at.max(addr), (at + UNIT).min(addr + len));
            let taken = match w.kind() {
                Kind::Free => self.take_free_unit(space, w, from..to),
                Kind::Foreign => {
                    // SAFETY: pages that were free a moment ago.
                    let mapped = unsafe { mm::map_anon(from, to - from, mm::PROT_RW, true) };
                    w.settle();
                    mapped.map(drop)
                }
                kind => {
                    let is_zero = kind == Kind::None && w.allows(true);
                    if !is_zero && n < dirty.len() {
                        dirty[n] = (from, to - from);
                        n += 1;
                    }
                    self.open_pages(&w, self.table.pages_in(unit, from, to - from));
                    w.settle();
                    Ok(())
                }
            };
            if taken.is_err() {
                // (Addresses that cannot be mapped anew stay taken.)
                if let Ok(gone) = self.unmap_locked(space, addr, len) {
                    self.pool.uncommit(self.pool.me(), gone as u64);
                }
                return Err(Errno::ENOMEM);
            }
        }
        Ok(())
    }

    /// Makes the parts of a new range readable, writable and, if `zero`, zero that lie in units
    /// which others use or used. If that fails the range is unmapped.
    fn make_fit(&self, addr: usize, len: usize, dirty: &Dirty, zero: bool) -> Result<(), Errno> {
        let mut done = Ok(());
        for &(at, n) in dirty.iter().filter(|d| d.1 > 0) {
            let Some(unit) = self.table.unit_of(at) else {
                continue;
            };
            let w = self.table.load(unit);
            // (If not, its other pages have less access than this range is to have.)
            let is_open = || w.allows(true) || self.protect_part(at, n, Prot::ReadWrite);
            if w.kind() != Kind::Foreign && is_open() {
                if zero {
                    done = done.and(self.zero(at, n));
                }
                continue;
            }
            let ejected = {
                let _blocked = Blocked::all();
                let _inside = self.gate.enter();
                self.eject_unit(unit)
            };
            // SAFETY: pages of the caller's alone, in a unit of the kernel's.
            let map = || unsafe { mm::map_anon(at, n, mm::PROT_RW, true) }.map(drop);
            done = done.and(ejected.and_then(|()| map()));
        }
        if done.is_err() {
            self.unmap(addr, len);
        }
        done.map_err(|_| Errno::ENOMEM)
    }

    /// Message mode, after a touch that the fault path had no answer to: makes touches of the
    /// unmapped unit at `addr`, or writes to one of a file that may only be read, the program's own
    /// error. True also if the unit has changed since, so that the touch may be tried again; false
    /// if it is refused for another reason.
    pub(crate) fn fence(&self, addr: usize, write: bool) -> bool {
        let Some(unit) = self.table.unit_of(addr) else {
            return false;
        };
        let _inside = self.gate.enter();
        // (Its holder may be about to hand it to the kernel.)
        let w = self.table.lock(unit);
        let access = match w.kind() {
            Kind::Free => mm::PROT_NONE,
            // The kernel tells of no touch of what is its own.
            Kind::Foreign => {
                w.settle();
                return true;
            }
            _ if self.files.is_read_only_file(unit, *w) => mm::PROT_READ,
            _ => {
                let is_allowed = w.allows(write);
                w.settle();
                return is_allowed;
            }
        };
        self.fenced.store(true, Relaxed);
        let fenced = self.backend.set_absent_access(w.addr(), access).is_ok();
        w.settle();
        fenced
    }

    /// Grows a range where it stands, if what follows is free; the new bytes read as zero.
    pub fn grow(&self, addr: usize, old_len: usize, new_len: usize) -> bool {
        let (old_len, new_len) = (page_up(old_len), page_up(new_len));
        if new_len <= old_len {
            return true;
        }
        let mut dirty = Dirty::default();
        let (tail, more) = (addr + old_len, new_len - old_len);
        {
            let _blocked = Blocked::all();
            let _inside = self.gate.enter();
            if !self.pool.commit(self.pool.me(), more as u64) {
                return false;
            }
            let mut space = self.space.lock();
            if !space.extend(addr, old_len, new_len) {
                self.pool.uncommit(self.pool.me(), more as u64);
                return false;
            }
            if self.take_units(&mut space, tail, more, &mut dirty).is_err() {
                return false;
            }
        }
        if self.make_fit(tail, more, &dirty, true).is_err() {
            return false;
        }
        self.carry_advice(addr, old_len, addr, new_len);
        true
    }

    /// Unmaps pages; units that are not in use any more give up memory and swap.
    pub fn unmap(&self, addr: usize, len: usize) {
        let _ = self.try_unmap(addr, len);
    }

    /// [`Ranges::unmap`] of a range that may have been handed to the kernel. ENOMEM: the limit on
    /// mappings is met; the range is still mapped, and pages of it that were the kernel's may have
    /// lost their contents.
    pub fn try_unmap(&self, addr: usize, len: usize) -> Result<(), Errno> {
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        let gone = {
            // Free the units before the addresses: the moment the space has them, a thread may get
            // them.
            let mut space = self.space.lock();
            self.unmap_locked(&mut space, addr, page_up(len))?
        };
        self.pool.uncommit(self.pool.me(), gone as u64);
        self.close_unused_mappings();
        Ok(())
    }

    /// [`Ranges::try_unmap`] inside the gate, with the lock on addresses held. How many bytes the
    /// pool had promised for it: the caller takes them back.
    fn unmap_locked(&self, space: &mut Space, addr: usize, len: usize) -> Result<usize, Errno> {
        self.close_foreign(space, addr, len)?;
        let units = self.table.units_of(addr, len);
        let gone: usize = space.allocated_in(addr, len).map(|(_, n)| n).sum();
        let gone = gone - self.file_bytes(space, addr, len) - space.unpromised_bytes(addr, len);
        space.free(addr, len);
        let mut run: Option<(u32, u32)> = None;
        for unit in units {
            if space.committed_pages(self.table.addr(unit)) > 0 {
                self.unmap_part(unit, addr, len);
                continue;
            }
            if self.table.load(unit).kind() == Kind::Free {
                // (What was said of reserved addresses.)
                self.usage.forget(unit);
                continue;
            }
            run = match run {
                Some((from, to)) if to == unit => Some((from, to + 1)),
                Some((from, to)) => {
                    let _ = self.drop_units(from, to, true);
                    Some((unit, unit + 1))
                }
                None => Some((unit, unit + 1)),
            };
        }
        if let Some((from, to)) = run {
            let _ = self.drop_units(from, to, true);
        }
        Ok(gone)
    }

    /// Takes away what the kernel has mapped in `[addr, addr+len)`.
    fn close_foreign(&self, space: &Space, addr: usize, len: usize) -> Result<(), Errno> {
        let is_foreign = |unit: u32| self.table.load(unit).kind() == Kind::Foreign;
        let mut units = self.table.units_of(addr, len).peekable();
        while let Some(first) = units.next() {
            if !is_foreign(first) {
                continue;
            }
            let mut last = first;
            while let Some(unit) = units.next_if(|&u| is_foreign(u)) {
                last = unit;
            }
            let from = self.table.addr(first).max(addr);
            let to = (self.table.addr(last) + UNIT).min(addr + len);
            if space.allocated_in(from, to - from).next().is_some() {
                self.close(from, to - from)?;
            }
        }
        Ok(())
    }

    /// Puts a mapping without access in the place of whatever is mapped there.
    fn close(&self, addr: usize, len: usize) -> Result<(), Errno> {
        Ok(self.backend.fence(addr, len)?)
    }

    /// What `[addr, addr+len)` had of a unit that others use too: pages of a base-mapped one are
    /// given up.
    fn unmap_part(&self, unit: u32, addr: usize, len: usize) {
        if self.markers.is_marked(unit) {
            let at = self.table.addr(unit);
            let (from, to) = (addr.max(at), (addr + len).min(at + UNIT));
            self.forget_markers(from, to - from);
        }
        if self.table.load(unit).kind() != Kind::Base {
            return;
        }
        let mut w = self.table.lock_settled(unit);
        if w.kind() == Kind::Base {
            self.give_up_pages(&mut w, self.table.pages_in(unit, addr, len));
        }
        w.settle();
        self.note_available();
    }

    /// Is every page of the range mapped, by us or by the kernel?
    pub fn is_mapped(&self, addr: usize, len: usize) -> bool {
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        self.space.lock().is_allocated(addr, page_up(len))
    }
}
