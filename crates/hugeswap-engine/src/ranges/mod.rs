//! What the program does with its address space: here mapping, growing and unmapping; below what
//! becomes of contents ([`contents`]), advice ([`advice`]), access ([`protect`]), pins ([`pin`]) and
//! moves ([`moving`]).
//!
//! Called by program threads. Signals are blocked while the engine's locks are held; memory of
//! the program's is touched only outside (a touch may fault, and the fault path enters the gate).

mod advice;
mod contents;
mod moving;
mod pin;
mod protect;

use crate::engine::{Engine, UNIT};
use crate::table::QUEUED;
use hugeswap_policy::unit::{Kind, LOCKED, WAITERS, WRITEBACK, Word};
use hugeswap_sys::signal::Blocked;
use hugeswap_sys::{Errno, mm};
use std::sync::atomic::Ordering::Relaxed;

const PAGE: usize = 4096;

fn page_up(len: usize) -> usize {
    len.next_multiple_of(PAGE)
}

impl Engine {
    pub(crate) fn units_of(&self, addr: usize, len: usize) -> std::ops::Range<u32> {
        let (base, total) = self.table.window();
        let from = (addr.max(base) - base) / UNIT;
        let to = (addr + len)
            .min(base + total)
            .saturating_sub(base)
            .div_ceil(UNIT);
        from as u32..to.max(from) as u32
    }

    fn whole_units_of(&self, addr: usize, len: usize) -> std::ops::Range<u32> {
        let (base, _) = self.table.window();
        let from = (addr - base).div_ceil(UNIT);
        let to = (addr + len - base) / UNIT;
        from as u32..to.max(from) as u32
    }

    /// Locks a unit once no write-out reads it.
    pub(crate) fn lock_settled(&self, unit: u32) -> Word {
        loop {
            let seen = self.table.load(unit);
            if seen.has(LOCKED) {
                if self.table.frame(unit) == QUEUED && self.table.claim_queued(unit) {
                    return self.table.load(unit).clear(LOCKED | WAITERS);
                }
                self.table.wait_locked(unit);
                continue;
            }
            if seen.has(WRITEBACK) {
                self.table.wait_change(unit, seen);
                continue;
            }
            if let Some(w) = self.table.try_lock_if(unit, |w| !w.has(WRITEBACK)) {
                return w;
            }
        }
    }

    /// [`Engine::lock_settled`] for who deals with whole units: a base-mapped one is whole again first, if
    /// swap takes what that needs.
    fn lock_whole(&self, unit: u32) -> Word {
        let w = self.lock_settled(unit);
        if w.kind() == Kind::Base {
            self.leave_pages(unit, w).0
        } else {
            w
        }
    }

    /// Maps `len` bytes of managed memory (whole pages; units of 2 MiB are aligned) at an address of ours.
    /// `zero`: the bytes read as zero; otherwise they are arbitrary. ENOMEM if budget and
    /// swap together could not hold it.
    pub fn map(&self, len: usize, align: usize, zero: bool) -> Result<usize, Errno> {
        if len == 0 {
            return Err(Errno::EINVAL);
        }
        let len = page_up(len);
        let mut dirty = [(0usize, 0usize); 2];
        let addr = {
            let _blocked = Blocked::all();
            let _inside = self.gate.enter();
            if !self.pool.commit(self.me(), len as u64) {
                return Err(Errno::ENOMEM);
            }
            let Some(addr) = self.space.lock().alloc(len, align.max(PAGE)) else {
                self.pool.uncommit(self.me(), len as u64);
                return Err(Errno::ENOMEM);
            };
            self.take_units(addr, len, &mut dirty);
            addr
        };
        if zero {
            // Pages of units that others use or used.
            for (at, n) in dirty {
                // SAFETY: just mapped for this caller alone.
                unsafe { std::ptr::write_bytes(at as *mut u8, 0, n) };
            }
        }
        Ok(addr)
    }

    /// Makes the units of a new range managed; `dirty` are the parts that may hold old bytes.
    fn take_units(&self, addr: usize, len: usize, dirty: &mut [(usize, usize); 2]) {
        let mut n = 0;
        for unit in self.units_of(addr, len) {
            let w = self.table.lock(unit);
            if w.kind() == Kind::Free {
                if self.fenced.load(Relaxed) && !self.mover().watches_in_place() {
                    // SAFETY: gives access to an absent unit, whose touch is a fault we take.
                    let _ = unsafe { mm::protect(self.table.addr(unit), UNIT, mm::PROT_RW) };
                }
                self.table.unlock(unit, Word::none());
                continue;
            }
            self.table.unlock(unit, w);
            if w.kind() != Kind::None && n < 2 {
                let from = self.table.addr(unit).max(addr);
                let to = (self.table.addr(unit) + UNIT).min(addr + len);
                dirty[n] = (from, to - from);
                n += 1;
            }
        }
    }

    /// Message mode: makes touches of the unmapped unit at `addr`, or writes to one of a file that may only be read, the program's own
    /// error. False if it is in use otherwise.
    pub(crate) fn fence(&self, addr: usize) -> bool {
        let Some(unit) = self.table.unit_of(addr) else {
            return false;
        };
        let _inside = self.gate.enter();
        let fit = |w: Word| w.kind() == Kind::Free || self.is_read_only_file(unit, w);
        let Some(w) = self.table.try_lock_if(unit, fit) else {
            return false;
        };
        self.fenced.store(true, Relaxed);
        let access = if w.kind() == Kind::Free {
            mm::PROT_NONE
        } else {
            mm::PROT_READ
        };
        // SAFETY: nobody's memory, or nobody's to write; whoever is given it, or moves it, gets access back, under the same
        // lock.
        let fenced = unsafe { mm::protect(self.table.addr(unit), UNIT, access) }.is_ok();
        self.table.unlock(unit, w);
        fenced
    }

    /// Grows a range where it stands, if what follows is free; the new bytes read as zero.
    pub fn grow(&self, addr: usize, old_len: usize, new_len: usize) -> bool {
        let (old_len, new_len) = (page_up(old_len), page_up(new_len));
        if new_len <= old_len {
            return true;
        }
        let mut dirty = [(0usize, 0usize); 2];
        {
            let _blocked = Blocked::all();
            let _inside = self.gate.enter();
            let more = new_len - old_len;
            if !self.pool.commit(self.me(), more as u64) {
                return false;
            }
            if !self.space.lock().extend(addr, old_len, new_len) {
                self.pool.uncommit(self.me(), more as u64);
                return false;
            }
            self.take_units(addr + old_len, more, &mut dirty);
        }
        self.carry_advice(addr, old_len, addr, new_len);
        for (at, n) in dirty {
            // SAFETY: just mapped for this caller alone.
            unsafe { std::ptr::write_bytes(at as *mut u8, 0, n) };
        }
        true
    }

    /// Unmaps pages; units nobody uses any more give up memory and swap.
    pub fn unmap(&self, addr: usize, len: usize) {
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        let len = page_up(len);
        let units = self.units_of(addr, len);
        // Free the units before the addresses: the moment the space has them, somebody may get them.
        let mut space = self.space.lock();
        let gone: usize = space.allocated_in(addr, len).map(|(_, n)| n).sum();
        let gone = gone - self.file_bytes(&space, addr, len);
        space.free(addr, len);
        let mut run: Option<(u32, u32)> = None;
        for unit in units {
            if space.live_pages(self.table.addr(unit)) > 0 {
                self.unmap_part(unit, addr, len);
                continue;
            }
            if self.table.load(unit).kind() == Kind::Free {
                continue;
            }
            run = match run {
                Some((from, to)) if to == unit => Some((from, to + 1)),
                Some((from, to)) => {
                    self.drop_units(from, to, true);
                    Some((unit, unit + 1))
                }
                None => Some((unit, unit + 1)),
            };
        }
        if let Some((from, to)) = run {
            self.drop_units(from, to, true);
        }
        drop(space);
        self.pool.uncommit(self.me(), gone as u64);
        self.close_unused_mappings();
    }

    /// What `[addr, addr+len)` had of a unit that others use too: pages of a base-mapped one are given up.
    fn unmap_part(&self, unit: u32, addr: usize, len: usize) {
        if self.is_marked(unit) {
            let at = self.table.addr(unit);
            let (from, to) = (addr.max(at), (addr + len).min(at + UNIT));
            self.forget_markers(from, to - from);
        }
        if self.table.load(unit).kind() != Kind::Base {
            return;
        }
        let mut w = self.lock_settled(unit);
        if w.kind() == Kind::Base {
            w = self
                .give_up_pages(unit, w, self.pages_in(unit, addr, len))
                .0;
        }
        self.table.unlock(unit, w);
        self.note_available();
    }

    /// Is every page of the range mapped by us?
    pub fn is_mapped(&self, addr: usize, len: usize) -> bool {
        let _blocked = Blocked::all();
        self.space.lock().is_allocated(addr, page_up(len))
    }
}
