//! Memory that the program had before it was managed, and memory that was the kernel's for a while:
//! it becomes managed where it stands, without a copy, unit by unit, while the program uses it.
//!
//! A unit of which a page is mapped otherwise, or not at all, stays the kernel's. The budget holds
//! throughout: a unit is charged before it is managed, and its thread waits until memory is free.
//!
//! The rules for threads are in the parent module.

use super::UNIT;
use crate::PAGES;
use crate::memory::huge::{Huge, Wait};
use crate::memory::wait::SLOW_PATIENCE_NS;
use crate::ranges::Ranges;
use crate::ranges::protect::Bound;
use crate::table::Locked;
use hugeswap_policy::defrag::frames::Frame;
use hugeswap_policy::unit::step::Event;
use hugeswap_policy::unit::{Kind, Place, UNCHARGED};
use hugeswap_sys::signal::Blocked;
use hugeswap_sys::{Errno, mm, now_ns};
use std::sync::atomic::Ordering::{Acquire, Relaxed};

impl Ranges {
    /// Makes the whole units of `[addr, addr+len)` managed that the kernel has mapped in the window,
    /// at the program's wish or before there was an engine. How many bytes became managed.
    ///
    /// ENOSPC: budget and swap have no room for more. ENOMEM: the kernel gives no mappings, or memory
    /// did not become free for too long. EOPNOTSUPP: in message mode. In all cases the rest is as it
    /// was.
    ///
    /// # Safety
    /// All of the range is private anonymous memory that the program may read and write, without
    /// locks and advice. The kernel does not use it by its address, nor does any device: no call is
    /// under way that was not made by way of the engine's pins.
    pub unsafe fn adopt(&self, addr: usize, len: usize) -> Result<usize, Errno> {
        if self.backend.can().faults_are_messages {
            return Err(Errno::EOPNOTSUPP);
        }
        let window = self.window_at(addr, len);
        let from = addr.max(window.start);
        let to = addr.saturating_add(len).min(window.end);
        let mut adopted = 0;
        if from < to {
            for unit in self.table.whole_units_of(from, to - from) {
                if self.adopt_unit(unit)? {
                    adopted += UNIT;
                }
            }
        }
        Ok(adopted)
    }

    /// Hands all of `[addr, addr+len)` to the kernel, where it stands, as [`Ranges::eject`] does; but
    /// what was never touched takes no memory for that. Errors as there: some of it is the kernel's
    /// then.
    pub fn give_back(&self, addr: usize, len: usize) -> Result<(), Errno> {
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        for unit in self.table.units_of(addr, len) {
            if self.table.load(unit).kind() != Kind::None || !self.give_back_untouched(unit)? {
                self.eject_within(unit, Bound::Ignored)?;
            }
        }
        Ok(())
    }

    /// Makes the whole units of `[addr, addr+len)` managed again that the engine has handed to the
    /// kernel ([`Ranges::eject`]), and that no call holds. How many bytes.
    ///
    /// # Safety
    /// To the program all that is mapped there is private anonymous memory that it may read and
    /// write, without locks and advice.
    pub unsafe fn take_back(&self, addr: usize, len: usize) -> usize {
        let units = self.table.whole_units_of(addr, len);
        let taken = units.filter(|&unit| self.take_back_unit(unit)).count();
        if taken > 0 {
            self.note_available();
        }
        taken * UNIT
    }

    /// False: it is managed already, or something of it is the kernel's for another reason.
    fn take_back_unit(&self, unit: u32) -> bool {
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        let space = self.space.lock();
        let w = self.table.lock(unit);
        let at = w.addr();
        // (What a child has inherited was charged to its parent. What has markers is the kernel's
        // because of them.)
        let is_ejected = w.kind() == Kind::Foreign
            && !w.has(UNCHARGED)
            && w.place() == Place::Nothing
            && w.pins() == 0
            && !self.markers.is_marked(unit)
            && space.kernel_bytes(at, UNIT) + space.reserved_bytes(at, UNIT) == 0;
        if !is_ejected || self.backend.take_from_kernel(at).is_err() {
            w.settle();
            return false;
        }
        self.pool.take_from_kernel(self.pool.me(), 1);
        self.track.note_written(unit);
        self.settle_by(w, Event::Adopted { holds: true });
        true
    }

    /// False: it was touched, or not all of its pages have the same access.
    fn give_back_untouched(&self, unit: u32) -> Result<bool, Errno> {
        let mut space = self.space.lock();
        let mut w = self.table.lock(unit);
        if w.kind() != Kind::None || !w.allows(true) || self.markers.is_marked(unit) {
            w.settle();
            return Ok(false);
        }
        if let Err(e) = self.backend.set_foreign_access(w.addr(), mm::PROT_RW) {
            w.settle();
            return Err(e);
        }
        let promised = space.make_kernels(w.addr(), UNIT);
        self.pool.uncommit(self.pool.me(), promised as u64);
        self.has_foreign.store(true, Relaxed);
        self.advance_freeing(&mut w, Event::Unmapped);
        self.settle_by(w, Event::Claimed);
        Ok(true)
    }

    /// False: it is managed already, or not all of it is the kernel's.
    fn adopt_unit(&self, unit: u32) -> Result<bool, Errno> {
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        let at = self.table.addr(unit);
        let is_adoptable = |w: &Locked<'_>| {
            w.kind() == Kind::Foreign
                && w.has(UNCHARGED)
                && w.place() == Place::Nothing
                && w.pins() == 0
        };
        if self.table.load(unit).kind() != Kind::Foreign {
            return Ok(false);
        }
        if !self.pool.commit(self.pool.me(), UNIT as u64) {
            return Err(Errno::ENOSPC);
        }
        let uncommit = || self.pool.uncommit(self.pool.me(), UNIT as u64);
        let frame = self.frame_to_adopt().inspect_err(|_| uncommit())?;
        let mut space = self.space.lock();
        let w = self.table.lock(unit);
        let adopted = match is_adoptable(&w) && space.kernel_bytes(at, UNIT) == UNIT {
            true => self.take_over(w),
            false => {
                w.settle();
                Err(Errno::EAGAIN)
            }
        };
        let Ok(holds) = adopted else {
            self.arena.put_free(frame.place);
            uncommit();
            return adopted.map(|_| false).or_else(|e| match e {
                Errno::EAGAIN => Ok(false),
                e => Err(e),
            });
        };
        space.make_engines(at, UNIT);
        drop(space);
        match holds {
            // What was charged for the frame is for the unit from now on.
            true => self.arena.discard(frame.place),
            false => self.arena.put_free(frame.place),
        }
        self.note_available();
        Ok(true)
    }

    /// A frame for memory that the program has already. Whatever is taken over beyond what swap has
    /// room for is what the program itself waits for in vain afterwards, so the first sign of that
    /// is enough.
    fn frame_to_adopt(&self) -> Result<Frame, Errno> {
        let (mut since, mut seen) = (now_ns(), self.avail_seq.load(Acquire));
        loop {
            if let Huge::Frame(frame) = self.wait_for_huge(Wait::A_MOMENT) {
                return Ok(frame);
            }
            if self.store.is_full() {
                return Err(Errno::ENOSPC);
            }
            let seq = self.avail_seq.load(Acquire);
            if seq != seen {
                // Others got what came.
                (since, seen) = (now_ns(), seq);
            }
            if now_ns() - since > SLOW_PATIENCE_NS {
                return Err(Errno::ENOMEM);
            }
        }
    }

    /// Does a thread wait for memory while swap has no room?
    pub fn is_starving(&self) -> bool {
        self.stalled.load(Relaxed) > 0 && self.store.is_full()
    }

    /// A locked unit of the kernel's becomes managed, and is unlocked. Does it hold anything?
    fn take_over(&self, w: Locked<'_>) -> Result<bool, Errno> {
        let (unit, at) = (w.unit(), w.addr());
        // SAFETY: advice that discards nothing. (So it can be one mapping with its neighbours.)
        let _ = unsafe { mm::advise(at, UNIT, libc::MADV_HUGEPAGE) };
        let mut holds = self.holds_anything(at);
        if !holds {
            // Another thread may have touched it since.
            // SAFETY: from here on a touch is a fault, which waits for the unit's lock.
            if let Err(e) = unsafe { mm::protect(at, UNIT, mm::PROT_NONE) } {
                w.settle();
                return Err(e);
            }
            holds = self.holds_anything(at);
            if holds {
                // (If it fails, the next touch is a fault, which tries again.)
                let _ = self.backend.set_writable(at, UNIT);
            }
        }
        self.high_unit.fetch_max(unit + 1, Relaxed);
        self.arena.numa.set_unit(unit, self.arena.numa.here().node);
        self.track.note_written(unit);
        self.settle_by(w, Event::Adopted { holds });
        Ok(holds)
    }

    /// Is any page of a unit of the kernel's in memory, or in the kernel's swap? Yes, where that
    /// cannot be told.
    fn holds_anything(&self, at: usize) -> bool {
        const PRESENT: u64 = 1 << 63;
        const SWAPPED: u64 = 1 << 62;
        let mut entries = [0; PAGES];
        self.backend.page_entries(at, &mut entries) != Ok(PAGES)
            || entries.iter().any(|e| e & (PRESENT | SWAPPED) != 0)
    }
}
