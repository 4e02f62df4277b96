//! Addresses that the program has reserved: mapped without access, with no promise of memory, until
//! it asks for memory there (it *commits* them) at steps of 4 KiB. Runtimes make their heaps so.
//!
//! A unit of which all pages that are mapped are reserved is `Free`, and costs nothing. In a managed
//! unit the reserved pages have a marker, [`Marker::NoAccess`]; where that cannot be (single pages
//! are not to be had), the unit is handed to the kernel, which maps them without access. They hold
//! nothing in any case: to reserve pages again gives up what they hold.
//!
//! Program threads call these; the rules are in the parent module.

use super::{Dirty, PAGE, UNIT, page_up};
use crate::PAGES;
use crate::ranges::{MapError, Ranges};
use crate::space::Space;
use crate::table::Locked;
use hugeswap_policy::markers::Marker;
use hugeswap_policy::unit::Kind;
use hugeswap_policy::unit::step::Event;
use hugeswap_sys::signal::Blocked;
use hugeswap_sys::{Errno, mm};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

impl Ranges {
    /// Reserves `len` bytes (whole pages; units of 2 MiB are aligned) at an address of ours.
    pub fn reserve(&self, len: usize, align: usize) -> Result<usize, MapError> {
        if len == 0 {
            return Err(MapError::Empty);
        }
        let len = len
            .checked_next_multiple_of(PAGE)
            .ok_or(MapError::NoAddresses)?;
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        let mut space = self.space.lock();
        let addr = space.alloc(len, align.max(PAGE));
        let addr = addr.ok_or(MapError::NoAddresses)?;
        space.make_reserved(addr, len);
        // Only its first and its last unit can be in use.
        let units = self.table.units_of(addr, len);
        let ends = [units.start, units.end - 1];
        let mut ends = ends[..units.len().min(2)].iter();
        if ends.any(|&unit| self.close_part(unit, addr, len).is_err()) {
            space.free(addr, len);
            return Err(MapError::Kernel);
        }
        Ok(addr)
    }

    /// Reserves `[addr, addr+len)`, whole pages of the window; with `over` in the place of whatever
    /// is mapped there, which is given up. EEXIST without `over`, if something is. ENOMEM: the
    /// limit on mappings is met, or memory is short; then pages may be reserved that can still be
    /// touched.
    pub fn reserve_at(&self, addr: usize, len: usize, over: bool) -> Result<(), Errno> {
        let len = page_up(len);
        if !addr.is_multiple_of(PAGE) || !self.contains(addr) || !self.contains(addr + len - 1) {
            return Err(Errno::EINVAL);
        }
        let mut done = Ok(());
        {
            let _blocked = Blocked::all();
            let _inside = self.gate.enter();
            let mut space = self.space.lock();
            if !over && space.allocated_in(addr, len).next().is_some() {
                return Err(Errno::EEXIST);
            }
            let gone = self.unmap_locked(&mut space, addr, len)?;
            self.pool.uncommit(self.pool.me(), gone as u64);
            let taken = space.take_at(addr, len);
            debug_assert!(taken);
            space.make_reserved(addr, len);
            for unit in self.table.units_of(addr, len) {
                done = done.and(self.close_part(unit, addr, len));
            }
        }
        self.close_unused_mappings();
        done
    }

    /// Makes a reserved range longer where it stands, if what follows is free.
    pub fn grow_reserved(&self, addr: usize, old_len: usize, new_len: usize) -> bool {
        let (old_len, new_len) = (page_up(old_len), page_up(new_len));
        if new_len <= old_len {
            return true;
        }
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        let mut space = self.space.lock();
        let (tail, more) = (addr + old_len, new_len - old_len);
        if !space.take_at(tail, more) {
            return false;
        }
        space.make_reserved(tail, more);
        for unit in self.table.units_of(tail, more) {
            if self.close_part(unit, tail, more).is_err() {
                space.free(tail, more);
                return false;
            }
        }
        true
    }

    /// What of `[addr, addr+len)` is reserved becomes managed memory that reads as zero. ENOMEM:
    /// budget and swap could not hold it, or the kernel could not map it; then it is reserved.
    pub fn commit(&self, addr: usize, len: usize) -> Result<(), Errno> {
        let len = page_up(len);
        let mut stale = Vec::new();
        {
            let _blocked = Blocked::all();
            let _inside = self.gate.enter();
            let mut space = self.space.lock();
            let parts: Vec<_> = space.reserved_in(addr, len).collect();
            let bytes: usize = parts.iter().map(|&(_, n)| n).sum();
            if !self.pool.commit(self.pool.me(), bytes as u64) {
                return Err(Errno::ENOMEM);
            }
            let mut left = bytes;
            for (at, n) in parts {
                let mut dirty = Dirty::default();
                space.make_committed(at, n);
                // (If it fails the range is free, and the promise for it taken back.)
                if let Err(e) = self.take_units(&mut space, at, n, &mut dirty) {
                    let _ = space.take_at(at, n);
                    space.make_reserved(at, n);
                    self.pool.uncommit(self.pool.me(), (left - n) as u64);
                    return Err(e);
                }
                left -= n;
                stale.extend(dirty.into_iter().filter(|d| d.1 > 0).map(|d| (at, n, d)));
            }
        }
        for (at, n, part) in stale {
            let dirty = [part, (0, 0)];
            if let Err(e) = self.make_fit(at, n, &dirty, true) {
                let _ = self.reserve_at(at, n, true);
                return Err(e);
            }
        }
        Ok(())
    }

    /// The reserved ranges (address, length) within `[addr, addr+len)`, in order.
    pub fn reserved_in(&self, addr: usize, len: usize) -> Vec<(usize, usize)> {
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        let space = self.space.lock();
        space.reserved_in(addr, len).collect()
    }

    /// How many bytes of the range are reserved.
    pub fn reserved_bytes(&self, addr: usize, len: usize) -> usize {
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        self.space.lock().reserved_bytes(addr, len)
    }

    /// Is every page of the range mapped, by us or by the kernel, and none reserved?
    pub fn is_committed(&self, addr: usize, len: usize) -> bool {
        let len = page_up(len);
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        let space = self.space.lock();
        space.is_allocated(addr, len) && space.reserved_bytes(addr, len) == 0
    }

    /// A locked free unit becomes managed, for the pages in `taken` (addresses); its reserved pages
    /// have no access. Unlocks it.
    pub(super) fn take_free_unit(
        &self,
        space: &Space,
        w: Locked<'_>,
        taken: Range<usize>,
    ) -> Result<(), Errno> {
        let (unit, at) = (w.unit(), w.addr());
        let has_reserved = taken.len() < UNIT && space.reserved_bytes(at, UNIT) > 0;
        if has_reserved && !self.backend.can().has_single_pages() {
            return self.hand_over_taken(w, taken);
        }
        if has_reserved {
            let tables = match self.markers.open(self.table.units()) {
                Ok(tables) => tables,
                Err(e) => {
                    w.settle();
                    return Err(e);
                }
            };
            tables.change(unit, |m| {
                for (from, n) in space.reserved_in(at, UNIT) {
                    m.no_access.put(self.table.pages_in(unit, from, n), true);
                }
                let pages = self.table.pages_in(unit, taken.start, taken.len());
                m.no_access.put(pages, false);
            });
            self.high_unit.fetch_max(unit + 1, Relaxed);
        }
        if taken.len() < UNIT {
            self.note_share(space, unit);
        }
        if self.fenced.load(Relaxed) && self.backend.can().absent_has_access {
            // Gives access. (Should it fail, a touch is a fault all the same.)
            let _ = self.backend.map_anew(at, UNIT);
        }
        self.settle_by(w, Event::Mapped);
        Ok(())
    }

    /// A locked free unit of which less than half is mapped comes in by pages until khugepaged makes
    /// it whole. (The kernel makes memory huge only where a mapping covers all of the huge page.
    /// Heaps that grow by pieces of 256 KiB and give them back would have each unit cleared, split
    /// and cleared again.)
    fn note_share(&self, space: &Space, unit: u32) {
        if self.backend.can().has_single_pages()
            && space.committed_pages(self.table.addr(unit)) < PAGES / 2
            // (Without room for the note, it comes in whole.)
            && self.markers.open(self.table.units()).is_ok()
        {
            self.markers.set_parted(unit, true);
        }
    }

    /// A locked free unit becomes the kernel's, which maps the pages in `taken` (addresses) and
    /// gives no access to the others. Unlocks it.
    fn hand_over_taken(&self, w: Locked<'_>, taken: Range<usize>) -> Result<(), Errno> {
        // SAFETY: pages that nobody uses, of a unit that is the kernel's.
        let map = || unsafe { mm::map_anon(taken.start, taken.len(), mm::PROT_RW, true) };
        let handed = self.backend.hand_absent_to_kernel(w.addr());
        match handed.and_then(|()| map()) {
            Ok(_) => {
                self.has_foreign.store(true, Relaxed);
                self.high_unit.fetch_max(w.unit() + 1, Relaxed);
                self.settle_by(w, Event::Claimed);
                Ok(())
            }
            Err(e) => {
                w.settle();
                Err(e)
            }
        }
    }

    /// The program has all access to pages of a locked unit again.
    pub(super) fn open_pages(&self, w: &Locked<'_>, pages: Range<usize>) {
        let unit = w.unit();
        if let Some(tables) = self
            .markers
            .tables()
            .filter(|_| self.markers.is_marked(unit))
        {
            tables.change(unit, |m| {
                m.no_access.put(pages.clone(), false);
                m.read_only.put(pages, false);
            });
        }
    }

    /// The pages of `[addr, addr+len)` in `unit`, which are reserved, are without access.
    fn close_part(&self, unit: u32, addr: usize, len: usize) -> Result<(), Errno> {
        let kind = self.table.load(unit).kind();
        if kind == Kind::Free {
            return Ok(());
        }
        let pages = self.table.pages_in(unit, addr, len);
        let from = self.table.addr(unit) + pages.start * PAGE;
        let len = pages.len() * PAGE;
        if kind != Kind::Foreign && self.backend.can().has_single_pages() {
            let tables = self.markers.open(self.table.units())?;
            if self
                .mark_unit(tables, unit, pages, Marker::NoAccess)
                .is_ok()
            {
                return Ok(());
            }
        }
        self.eject_unit(unit)?;
        self.close(from, len)
    }
}
