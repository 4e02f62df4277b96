//! Contents given up: ranges become zero, and the memory and swap behind them are freed.
//!
//! Program threads call these; the rules are in the parent module.

use crate::PAGE;
use crate::UNIT;
use crate::ranges::Prot;
use crate::ranges::Ranges;
use crate::table::{Locked, NO_FRAME};
use hugeswap_policy::markers::pagemap::Categories;
use hugeswap_policy::unit::step::Event;
use hugeswap_policy::unit::{COW, Kind, UNCHARGED, WATCHED, Word};
use hugeswap_policy::workingset::vmscan::PageKind;
use hugeswap_sys::signal::Blocked;
use hugeswap_sys::{Errno, Result};

/// Frames of unmapped units kept for reuse.
const KEEP_FREE: u64 = 64;
/// How many units are locked at once.
const MANY: u32 = u64::BITS;
static ZEROS: [u8; PAGE] = [0; PAGE];

impl Ranges {
    /// The bytes of `[addr, addr+len)` become zero, and memory and swap behind whole units are
    /// given up. Of a mapped file: what is in memory is dropped, after it was written if it is
    /// dirty. ENOMEM: a part of a unit had to come in for that, and neither memory nor swap was
    /// left; some of the range is as it was.
    pub fn discard(&self, addr: usize, len: usize) -> Result<()> {
        if self.is_of_file(addr) {
            self.drop_file_range(addr, len);
            return Ok(());
        }
        if self.sharing.is_shared(addr) {
            // (A caller that must know whether it could be done asks for it by itself.)
            let _ = self.sharing.discard_shared(self.host(), addr, len);
            return Ok(());
        }
        self.note_range_written(addr, len);
        let done = self.give_up_range(addr, len);
        self.heal(addr, len);
        self.note_range_written(addr, len);
        done
    }

    fn give_up_range(&self, addr: usize, len: usize) -> Result<()> {
        let whole = self.table.whole_units_of(addr, len);
        if whole.is_empty() {
            return self.zero(addr, len);
        }
        let (first, last) = (
            self.table.addr(whole.start),
            self.table.addr(whole.end - 1) + UNIT,
        );
        let done = [(addr, first), (last, addr + len)].map(|(from, to)| self.zero(from, to - from));
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        let dropped = self.drop_units(whole.start, whole.end, false);
        done[0].and(done[1]).and(dropped)
    }

    /// `[addr, addr+len)`, which is not whole units, becomes zero.
    pub(super) fn zero(&self, addr: usize, len: usize) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        let mut done = Ok(());
        for unit in self.table.units_of(addr, len) {
            let from = self.table.addr(unit).max(addr);
            let to = (self.table.addr(unit) + UNIT).min(addr + len);
            done = done.and(self.zero_part(unit, from, to));
        }
        done
    }

    /// `[from, to)` of a unit becomes zero.
    fn zero_part(&self, unit: u32, from: usize, to: usize) -> Result<()> {
        loop {
            let (from, to) = self.zero_pages(unit, from, to);
            let w = self.table.load(unit);
            // A unit without memory or place is zero already.
            if matches!(w.kind(), Kind::None | Kind::Free | Kind::Poisoned) {
                return Ok(());
            }
            if w.kind() == Kind::Foreign {
                match self.zero_foreign(unit, from, to) {
                    Some(done) => return done,
                    None => continue,
                }
            }
            let failed = match self.zero_by_copying(unit, w, from, to) {
                Ok(()) => return Ok(()),
                Err(e) => e,
            };
            // (What the kernel has may be closed there, by what the program said of it.)
            if self.table.load(unit).kind() != Kind::Foreign {
                return Err(failed);
            }
        }
    }

    /// The same of a unit that is the kernel's, which discards the pages that it has there; `None`: it
    /// is so no more.
    fn zero_foreign(&self, unit: u32, from: usize, to: usize) -> Option<Result<()>> {
        let (first, last) = (from.next_multiple_of(PAGE), to & !(PAGE - 1));
        let discarded = {
            let _blocked = Blocked::all();
            let _inside = self.gate.enter();
            let w = self.table.lock(unit);
            let is_kernels = w.kind() == Kind::Foreign;
            let done = is_kernels.then(|| match first < last {
                true => self.backend.empty_foreign(first, last - first),
                false => Ok(()),
            });
            w.settle();
            done?
        };
        // (Parts of pages at the ends.)
        let ends = [(from, first.min(to)), (last.max(first.min(to)), to)];
        let mut ends = ends.into_iter().filter(|(from, to)| from < to);
        Some(discarded.and_then(|()| {
            // SAFETY: the caller asked for these bytes to be zero; they are less than a page.
            ends.try_for_each(|(from, to)| unsafe { self.copy_in(from, &ZEROS[..to - from]) })
        }))
    }

    /// The same of one that is managed and was as `w` says.
    fn zero_by_copying(&self, unit: u32, w: Word, from: usize, to: usize) -> Result<()> {
        let access = match (w.allows(true), w.allows(false)) {
            (true, _) => Prot::ReadWrite,
            (false, true) => Prot::Read,
            (false, false) => Prot::None,
        };
        // What the program may not write it may give up all the same.
        let at = self.table.addr(unit);
        let changed = access != Prot::ReadWrite;
        if changed && let Err(e) = self.protect(at, UNIT, Prot::ReadWrite) {
            // What is lost stays so.
            return if e == Errno::EIO { Ok(()) } else { Err(e) };
        }
        // Where the unit has to come in for that, it may be lost: then so is this part of it. Or
        // there may be no memory for it.
        let mut done = Ok(());
        let mut at_byte = from;
        while at_byte < to {
            let n = (to - at_byte).min(ZEROS.len() - at_byte % ZEROS.len());
            if self.marker_at(at_byte).is_some() {
                at_byte += n;
                continue;
            }
            // SAFETY: the caller asked for these bytes to be zero.
            if unsafe { self.copy_in(at_byte, &ZEROS[..n]) }.is_err() {
                if !self.is_page_lost(at_byte) {
                    done = Err(Errno::ENOMEM);
                }
                break;
            }
            at_byte += n;
        }
        if changed {
            let _ = self.protect(at, UNIT, access);
        }
        done
    }

    /// Is the page at `addr` lost?
    fn is_page_lost(&self, addr: usize) -> bool {
        let mut lost = false;
        self.page_states(addr & !(PAGE - 1), PAGE, |_, state| {
            lost |= state.categories.has(Categories::POISONED);
        });
        lost
    }

    /// Whole pages of `[from, to)` in a unit that is base-mapped or in swap become zero without
    /// being brought in. What is left.
    fn zero_pages(&self, unit: u32, from: usize, to: usize) -> (usize, usize) {
        let (first, last) = (from.next_multiple_of(PAGE), to & !(PAGE - 1));
        // One side is ragged at most: the other ends with the range or the unit.
        let whole = first < last && (first == from || last == to);
        let kind = self.table.load(unit).kind();
        if !whole || !matches!(kind, Kind::Swapped | Kind::Base) {
            return (from, to);
        }
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        let mut w = self.table.lock_settled(unit);
        let at = self.table.addr(unit);
        let pages = (first - at) / PAGE..(last - at) / PAGE;
        let done = self.give_up_pages(&mut w, pages);
        w.settle();
        match done {
            true if first == from => (last, to),
            true => (from, first),
            false => (from, to),
        }
    }

    /// The program has no use for what the range holds any more (MADV_FREE): it may read as before
    /// or as zeros until it is written again. What is in swap is given up at once, and what is in
    /// memory too where the budget is used up.
    pub fn free_lazily(&self, addr: usize, len: usize) {
        // (Nor does it matter if a part of it stays.)
        if self.is_of_file(addr) || self.pool.used_frames() >= self.pool.frames() {
            let _ = self.discard(addr, len);
            return;
        }
        for unit in self.table.units_of(addr, len) {
            if matches!(self.table.load(unit).kind(), Kind::Swapped | Kind::Base) {
                let at = self.table.addr(unit);
                let (from, to) = (at.max(addr), (at + UNIT).min(addr + len));
                let _ = self.discard(from, to - from);
            }
        }
    }

    /// Gives up what units `from..to` hold; they are unmanaged then (`free`) or zero. Where the
    /// kernel does not take the memory, a unit stays in use: its bytes are zero, or it is an error;
    /// of those that are not mapped any more they are arbitrary.
    pub(super) fn drop_units(&self, from: u32, to: u32, free: bool) -> Result<()> {
        let mut done = Ok(());
        self.pool.note_touched();
        let mut unit = from;
        while unit < to {
            let n = (to - unit).min(MANY);
            let mut units = [const { None }; MANY as usize];
            for (unit, w) in (unit..unit + n).zip(&mut units) {
                *w = Some(self.table.lock_settled(unit));
            }
            let dropped = self.drop_locked(unit, &mut units[..n as usize], free);
            done = done.and(dropped);
            unit += n;
        }
        self.note_available();
        done
    }

    /// The same of a few, which are locked, and unlocks them.
    fn drop_locked(&self, first: u32, units: &mut [Option<Locked<'_>>], free: bool) -> Result<()> {
        let mut done = Ok(());
        // Whose memory stands where it is mapped, and is to be dropped there.
        let mut standing = 0u64;
        for (i, w) in units.iter().flatten().enumerate() {
            let stands = match w.kind() {
                Kind::Present => !self.recycle(w),
                Kind::Foreign if !free => {
                    // It stays the kernel's.
                    done = done.and(self.backend.empty_foreign(w.addr(), UNIT));
                    false
                }
                Kind::Cached => {
                    self.arena.put_free(w.frame());
                    false
                }
                // Message mode: the page that was touched is marked so that any touch is SIGBUS.
                Kind::Poisoned | Kind::Base | Kind::Foreign => true,
                _ => false,
            };
            standing |= u64::from(stands) << i;
        }
        let left = self.drop_standing(first, units, standing);
        let (mut uncharge, mut from_kernel) = (0, 0);
        for (i, w) in units.iter_mut().filter_map(Option::take).enumerate() {
            let unit = w.unit();
            if w.kind() == Kind::Foreign && !free {
                w.settle();
                continue;
            }
            if left >> i & 1 == 1 {
                done = done.and(self.leave_standing(w, free));
                continue;
            }
            let stood = standing >> i & 1 == 1;
            match w.kind() {
                Kind::Base => {
                    self.forget_pages(unit);
                    self.base.records.of(unit).forget();
                }
                Kind::Present | Kind::Foreign => {
                    let own = u64::from(stood && !w.has(UNCHARGED));
                    uncharge += own;
                    from_kernel += own * u64::from(w.kind() == Kind::Foreign);
                }
                _ => {}
            }
            w.set_frame(NO_FRAME);
            self.track.forget_open(unit);
            if free {
                self.usage.forget(unit);
                self.markers.forget_unit_markers(unit);
                self.track.forget_writes(unit);
                self.forget_file_unit(unit);
            }
            let file = self.files.of(unit);
            let mut lru = self.lru.lock();
            lru.forget(unit);
            if free {
                // The next range at these addresses is in no group.
                lru.assign(unit, 0, PageKind::Anon);
            }
            drop(lru);
            self.left.note(&w);
            let event = match free {
                true => Event::Unmapped,
                false => Event::Discarded { file },
            };
            self.settle_freeing(w, event);
        }
        self.pool.uncharge(self.pool.me(), uncharge);
        self.pool.take_from_kernel(self.pool.me(), from_kernel);
        done
    }

    /// Drops the memory of the units in `standing`, which are absent then. Those of which it could
    /// not be dropped.
    fn drop_standing(&self, first: u32, units: &[Option<Locked<'_>>], standing: u64) -> u64 {
        if standing == 0 {
            return 0;
        }
        let foreign = |w: &Locked<'_>| w.kind() == Kind::Foreign;
        let any_foreign = units.iter().flatten().any(foreign);
        let at = self.table.addr(first);
        if !any_foreign && self.backend.drop_units(at, units.len() * UNIT).is_ok() {
            return 0;
        }
        let mut left = standing;
        for (i, w) in units.iter().flatten().enumerate() {
            if standing >> i & 1 == 0 {
                continue;
            }
            let at = at + i * UNIT;
            // What was the kernel's may be several mappings, of any kind.
            let as_mapped = !foreign(w) && self.backend.drop_units(at, UNIT).is_ok();
            if as_mapped || self.backend.drop_anew(at, UNIT).is_ok() {
                left &= !(1 << i);
            }
        }
        left
    }

    /// A locked unit whose memory could not be dropped stays in use; unlocks it.
    #[cold]
    fn leave_standing(&self, w: Locked<'_>, free: bool) -> Result<()> {
        let (unit, at) = (w.unit(), w.addr());
        // (What the word says of the mapping stays true.)
        let emptied = self.backend.empty(at, w.kind() == Kind::Base).is_ok();
        let holds_zeros = match w.kind() {
            Kind::Present => emptied || free,
            Kind::Base if emptied => {
                self.forget_pages(unit);
                true
            }
            _ => false,
        };
        if free {
            self.forget_file_unit(unit);
        }
        if holds_zeros {
            self.settle_freeing(w, Event::Emptied);
        } else if w.has(WATCHED) {
            self.settle_by(w, Event::Unwatched);
        } else {
            w.settle();
            self.note_resident(unit);
        }
        match holds_zeros || free {
            true => Ok(()),
            false => Err(Errno::ENOMEM),
        }
    }

    /// Keeps the frame of a locked present unit for reuse; false if there are enough, or others may
    /// have its pages: a child, or a device.
    fn recycle(&self, w: &Locked<'_>) -> bool {
        if w.has(COW) || w.pins() > 0 || self.arena.free_frames() >= KEEP_FREE {
            return false;
        }
        let Some(place) = self.arena.take_empty() else {
            return false;
        };
        if self.move_out(w.unit(), place, w.has(WATCHED)).is_ok() {
            self.arena.put_free(place);
            true
        } else {
            self.arena.put_empty(place);
            false
        }
    }
}
