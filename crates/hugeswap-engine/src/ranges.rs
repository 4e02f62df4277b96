//! What the program does with its address space: mapping, discarding, protecting, moving, pinning.
//!
//! Called by program threads. Signals are blocked while the engine's locks are held; memory of
//! the program's is touched only outside (a touch may fault, and the fault path enters the gate).

use crate::engine::{Engine, Job, Prot, UNIT};
use crate::fault::Outcome;
use crate::table::{NO_FRAME, QUEUED};
use hugeswap_policy::UNIT_BYTES;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::unit::{
    COW, Kind, LOCKED, MAY_READ, MAY_WRITE, READAHEAD, UNCHARGED, WAITERS, WATCHED, WRITABLE,
    WRITEBACK, Word,
};
use hugeswap_sys::signal::Blocked;
use hugeswap_sys::{Errno, mm, process, uffd};
use std::sync::atomic::Ordering::Relaxed;

const PAGE: usize = 4096;
/// Frames of unmapped units kept for reuse.
const KEEP_FREE: u64 = 64;

fn page_up(len: usize) -> usize {
    len.next_multiple_of(PAGE)
}

impl Engine {
    fn units_of(&self, addr: usize, len: usize) -> std::ops::Range<u32> {
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
    fn lock_settled(&self, unit: u32) -> Word {
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

    /// Message mode: makes touches of the unmapped unit at `addr` the program's own error. False if
    /// it is in use.
    pub(crate) fn fence(&self, addr: usize) -> bool {
        let Some(unit) = self.table.unit_of(addr) else {
            return false;
        };
        let _inside = self.gate.enter();
        let Some(w) = self.table.try_lock_if(unit, |w| w.kind() == Kind::Free) else {
            return false;
        };
        self.fenced.store(true, Relaxed);
        // SAFETY: nobody's memory; whoever is given it gets access back, under the same lock.
        let fenced = unsafe { mm::protect(self.table.addr(unit), UNIT, mm::PROT_NONE) }.is_ok();
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
        space.free(addr, len);
        let mut run: Option<(u32, u32)> = None;
        for unit in units {
            if space.live_pages(self.table.addr(unit)) > 0
                || self.table.load(unit).kind() == Kind::Free
            {
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
    }

    /// The bytes of `[addr, addr+len)` become zero, and memory and swap behind whole units are given up.
    pub fn discard(&self, addr: usize, len: usize) {
        let whole = self.whole_units_of(addr, len);
        if whole.is_empty() {
            self.zero(addr, len);
            return;
        }
        let (first, last) = (
            self.table.addr(whole.start),
            self.table.addr(whole.end - 1) + UNIT,
        );
        self.zero(addr, first - addr);
        self.zero(last, addr + len - last);
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        self.drop_units(whole.start, whole.end, false);
    }

    fn zero(&self, addr: usize, len: usize) {
        if len == 0 {
            return;
        }
        for unit in self.units_of(addr, len) {
            let from = self.table.addr(unit).max(addr);
            let to = (self.table.addr(unit) + UNIT).min(addr + len);
            let w = self.table.load(unit);
            // A unit without memory or slot is zero already.
            if !matches!(w.kind(), Kind::None | Kind::Free | Kind::Poisoned) && w.allows(true) {
                // SAFETY: the caller asked for these bytes to be zero.
                unsafe { std::ptr::write_bytes(from as *mut u8, 0, to - from) };
            }
        }
    }

    /// Gives up what units `from..to` hold; they are unmanaged then (`free`) or zero.
    fn drop_units(&self, from: u32, to: u32, free: bool) {
        let mut unit = from;
        while unit < to {
            let n = (to - unit).min(64);
            let mut words = [Word::FREE; 64];
            for i in 0..n {
                words[i as usize] = self.lock_settled(unit + i);
            }
            let mut uncharge = 0;
            let mut in_place = false;
            let mut kept = false;
            for i in 0..n {
                let w = words[i as usize];
                match w.kind() {
                    Kind::Present => {
                        if w.has(WATCHED) {
                            self.watched.fetch_sub(1, Relaxed);
                        }
                        if !self.recycle(unit + i, w) {
                            in_place = true;
                            uncharge += u64::from(!w.has(UNCHARGED));
                        }
                    }
                    Kind::Foreign if !free => {
                        // It stays the kernel's.
                        kept = true;
                        // SAFETY: the caller gave the content up.
                        let _ = unsafe {
                            mm::advise(self.table.addr(unit + i), UNIT, libc::MADV_DONTNEED)
                        };
                    }
                    Kind::Foreign => {
                        in_place = true;
                        uncharge += 1;
                        if self.uffd() >= 0 {
                            let (b, m) = (
                                self.table.addr(unit + i),
                                uffd::mode::MISSING | uffd::mode::WP,
                            );
                            let _ = uffd::register(self.uffd(), b, UNIT, m);
                        }
                    }
                    Kind::Cached => {
                        if !w.has(READAHEAD) {
                            self.watched.fetch_sub(1, Relaxed);
                        }
                        self.arena.put_free(self.table.frame(unit + i));
                    }
                    _ => {}
                }
            }
            if in_place && !kept {
                let _ = self
                    .mover()
                    .drop_pages(self.table.addr(unit), n as usize * UNIT);
            } else if in_place {
                for i in (0..n).filter(|&i| words[i as usize].kind() != Kind::Foreign) {
                    let _ = self.mover().drop_pages(self.table.addr(unit + i), UNIT);
                }
            }
            self.pool.uncharge(self.me(), uncharge);
            for i in 0..n {
                let w = words[i as usize];
                if w.kind() == Kind::Foreign && !free {
                    self.table.unlock(unit + i, w);
                    continue;
                }
                self.table.set_frame(unit + i, NO_FRAME);
                let may = Word(w.0 & (MAY_READ | MAY_WRITE)).with_kind(Kind::None);
                self.table
                    .unlock(unit + i, if free { Word::FREE } else { may });
                if let Some(s) = w.slot() {
                    self.free_slot(s);
                }
            }
            unit += n;
        }
        self.note_available();
    }

    /// Keeps the frame of a locked present unit for reuse; false if there are enough, or it is shared.
    fn recycle(&self, unit: u32, w: Word) -> bool {
        if w.has(COW) || self.arena.free_frames() >= KEEP_FREE {
            return false;
        }
        let Some(place) = self.arena.take_empty() else {
            return false;
        };
        if self
            .mover()
            .map_out(
                self.table.addr(unit),
                self.arena.addr(place),
                w.has(WATCHED),
            )
            .is_ok()
        {
            self.arena.put_free(place);
            true
        } else {
            self.arena.put_empty(place);
            false
        }
    }

    /// Is every page of the range mapped by us?
    pub fn is_mapped(&self, addr: usize, len: usize) -> bool {
        let _blocked = Blocked::all();
        self.space.lock().is_allocated(addr, page_up(len))
    }

    /// Sets the access that the program allows on whole units. EINVAL for parts of units, EOPNOTSUPP in
    /// message mode: both can be had by [`Engine::eject`] and the ordinary call.
    pub fn protect(&self, addr: usize, len: usize, prot: Prot) -> Result<(), Errno> {
        if !addr.is_multiple_of(UNIT) || !len.is_multiple_of(UNIT) {
            return Err(Errno::EINVAL);
        }
        if !self.mover().watches_in_place() {
            return Err(Errno::EOPNOTSUPP);
        }
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        let may = match prot {
            Prot::None => 0,
            Prot::Read => MAY_READ,
            Prot::ReadWrite => MAY_READ | MAY_WRITE,
        };
        for unit in self.whole_units_of(addr, len) {
            let w = self.lock_settled(unit);
            let mut new = w.clear(MAY_READ | MAY_WRITE).set(may);
            let mut ok = true;
            if w.kind() == Kind::Foreign {
                let access = match prot {
                    Prot::None => mm::PROT_NONE,
                    Prot::Read => mm::PROT_READ,
                    Prot::ReadWrite => mm::PROT_RW,
                };
                // SAFETY: the program asked for it, and the unit is no longer ours.
                ok = unsafe { mm::protect(self.table.addr(unit), UNIT, access) }.is_ok();
                new = w;
            } else if w.kind() == Kind::Present {
                // More access than before is given by the next fault.
                let at = self.table.addr(unit);
                if prot == Prot::None && !w.has(WATCHED) {
                    ok = self.mover().watch(at).is_ok();
                } else if prot == Prot::Read && w.has(WRITABLE) {
                    ok = self.mover().set_read_only(at, UNIT).is_ok();
                }
                if prot != Prot::ReadWrite {
                    new = new.clear(WRITABLE);
                }
            }
            self.table.unlock(unit, if ok { new } else { w });
            if !ok {
                return Err(Errno::ENOMEM);
            }
        }
        Ok(())
    }

    /// Brings the units of a range in and hands them to the kernel for good: afterwards ordinary system calls
    /// (mprotect, mlock, mmap over it) work on them. They stay charged.
    pub fn eject(&self, addr: usize, len: usize) -> Result<(), Errno> {
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        for unit in self.units_of(addr, len) {
            self.eject_unit(unit)?;
        }
        Ok(())
    }

    fn eject_unit(&self, unit: u32) -> Result<(), Errno> {
        let at = self.table.addr(unit);
        loop {
            let w = self.table.load(unit);
            match w.kind() {
                _ if w.has(LOCKED) => {}
                Kind::Foreign | Kind::Free => return Ok(()),
                Kind::Poisoned => return Err(Errno::EIO),
                _ if !w.allows(true) => {
                    // Bring it in with our access, not the program's.
                    self.table
                        .update(unit, |w| Some(w.set(MAY_READ | MAY_WRITE)));
                    continue;
                }
                _ => {}
            }
            if !w.has(WRITABLE) && self.resolve(unit, at, true) != Outcome::Retry {
                return Err(Errno::ENOMEM);
            }
            let w = self.lock_settled(unit);
            if w.kind() != Kind::Present || !w.has(WRITABLE) {
                self.table.unlock(unit, w);
                continue;
            }
            if self.uffd() >= 0 {
                let _ = uffd::unregister(self.uffd(), at, UNIT);
            }
            let slot = w.slot();
            self.table.unlock(unit, Word(0).with_kind(Kind::Foreign));
            if let Some(s) = slot {
                self.free_slot(s);
            }
            self.count(Counter::Ejected, 1);
            return Ok(());
        }
    }

    /// Most bytes one call should pin.
    pub fn pin_limit(&self) -> usize {
        (self.pool.frames() / 8).clamp(1, 32) as usize * UNIT
    }

    /// Brings a range in and holds it in memory until [`Engine::unpin`]: readable, and writable
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
        let units = self.units_of(addr, len);
        if units.len() > (self.pin_limit() / UNIT + 1).max(2) {
            return Err(Errno::EAGAIN);
        }
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        for unit in units.clone() {
            if let Err(e) = self.pin_unit(unit, write) {
                for held in units.start..unit {
                    self.table.update(held, Word::unpinned);
                }
                return Err(e);
            }
        }
        self.count(Counter::Pinned, 1);
        Ok(())
    }

    fn pin_unit(&self, unit: u32, write: bool) -> Result<(), Errno> {
        let at = self.table.addr(unit);
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
                return Ok(());
            }
            if full {
                return Err(Errno::EAGAIN);
            }
            match self.resolve(unit, at, write) {
                Outcome::Retry => {}
                Outcome::NotOurs => return Err(Errno::EFAULT),
                Outcome::Poisoned => return Err(Errno::EIO),
                Outcome::NoMemory => return Err(Errno::ENOMEM),
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
        for unit in self.units_of(addr, len) {
            self.table.update(unit, Word::unpinned);
        }
    }

    /// Is the page at `addr` in memory?
    pub fn resident(&self, addr: usize) -> bool {
        self.table.unit_of(addr).is_some_and(|u| {
            matches!(
                self.table.load(u).kind(),
                Kind::Present | Kind::Cached | Kind::Foreign
            )
        })
    }

    /// Begins to read what of the range is in swap.
    pub fn willneed(&self, addr: usize, len: usize) {
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        let mut planned = 0;
        for unit in self.units_of(addr, len) {
            // A unit just being written out is not there any more a moment later.
            while self.table.load(unit).has(LOCKED) && self.table.frame(unit) != QUEUED {
                self.table.wait_locked(unit);
            }
            if self
                .table
                .try_lock_if(unit, |w| w.kind() == Kind::Swapped)
                .is_none()
            {
                continue;
            }
            self.table.set_frame(unit, QUEUED);
            if self.reads.push(Job::Read(unit)).is_err() {
                if self.table.claim_queued(unit) {
                    let w = self.table.load(unit);
                    self.table.unlock(unit, w);
                }
                break;
            }
            planned += 1;
        }
        if planned > 0 {
            self.wake_workers(2);
        }
    }

    /// Moves the whole units of the range out to swap, and waits until that is done as far as it can be.
    pub fn pageout(&self, addr: usize, len: usize) {
        const ASK_AGAIN_NS: u64 = 20_000_000;
        let inside = |w: Word| matches!(w.kind(), Kind::Present | Kind::Cached) && w.pins() == 0;
        let ask = |unit: u32| {
            while self.evict_requests.push(unit).is_err() {
                self.kick();
                process::yield_now();
            }
            self.kick();
        };
        for unit in self.whole_units_of(addr, len) {
            // Who brought it in wakes the program before letting go of it, and kswapd waits for nobody.
            self.table.wait_locked(unit);
            if inside(self.table.load(unit)) {
                ask(unit);
            }
        }
        // A program that goes on touching a unit, or a swap that is full, keeps it in: wait, but not for ever.
        let mut deadline = hugeswap_sys::now_ns() + 1_000_000_000;
        for unit in self.whole_units_of(addr, len) {
            deadline += UNIT_BYTES * 10;
            let mut again = hugeswap_sys::now_ns() + ASK_AGAIN_NS;
            while inside(self.table.load(unit)) && hugeswap_sys::now_ns() < deadline {
                if hugeswap_sys::now_ns() > again {
                    // It may have been under write-back when its turn came.
                    ask(unit);
                    again += ASK_AGAIN_NS;
                }
                process::yield_now();
            }
        }
    }

    /// Moves `len` bytes from one mapped range to another; `from` is zero (or arbitrary, in parts of
    /// units) afterwards. Whole units move without being copied or brought in.
    pub fn move_range(&self, from: usize, to: usize, len: usize) {
        let whole = if (from ^ to).is_multiple_of(UNIT) {
            self.whole_units_of(from, len)
        } else {
            0..0
        };
        if whole.is_empty() {
            // SAFETY: both ranges are the caller's and do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, len) };
            return;
        }
        let (first, last) = (
            self.table.addr(whole.start),
            self.table.addr(whole.end - 1) + UNIT,
        );
        // SAFETY: as above: the parts before and after the whole units.
        unsafe {
            std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, first - from);
            let tail = from + len - last;
            std::ptr::copy_nonoverlapping(last as *const u8, (to + (last - from)) as *mut u8, tail);
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
                unsafe {
                    std::ptr::copy_nonoverlapping(
                        self.table.addr(unit) as *const u8,
                        dest_addr as *mut u8,
                        UNIT,
                    );
                }
            }
        }
    }

    fn move_unit(&self, unit: u32, dest: u32) -> bool {
        let w = self.lock_settled(unit);
        let d = self.lock_settled(dest);
        let give_up = || {
            self.table.unlock(unit, w);
            self.table.unlock(dest, d);
            false
        };
        if d.kind() != Kind::None
            || w.pins() > 0
            || matches!(w.kind(), Kind::Foreign | Kind::Poisoned | Kind::Free)
        {
            return give_up();
        }
        let (a, b) = (self.table.addr(unit), self.table.addr(dest));
        let mut new = w;
        if w.kind() == Kind::Present {
            if w.has(COW) {
                return give_up();
            }
            if w.has(WATCHED) {
                self.watched.fetch_sub(1, Relaxed);
            }
            // Through no access to the destination, so that the word there is true at every moment.
            if self.mover().relocate(a, b, w.has(WATCHED)).is_err() {
                self.table.unlock(unit, w.clear(WATCHED | WRITABLE));
                self.table.unlock(dest, d);
                return false;
            }
            new = w.clear(WATCHED);
            if self.mover().watches_in_place() {
                // Should it fail, the next touch gives access.
                let _ = self.mover().set_readable(b);
                new = new.clear(WRITABLE);
            }
        }
        self.table.set_frame(dest, self.table.frame(unit));
        self.table.set_frame(unit, NO_FRAME);
        self.high_unit.fetch_max(dest + 1, Relaxed);
        self.table.unlock(dest, new);
        self.table.unlock(
            unit,
            Word(w.0 & (MAY_READ | MAY_WRITE)).with_kind(Kind::None),
        );
        if matches!(new.kind(), Kind::Present | Kind::Cached) {
            self.note_resident(dest);
        }
        true
    }
}
