//! Advice on ranges that the program will use, or not use for a while, and what is in memory now.
//! Advice changes no byte.
//!
//! Program threads call these; the rules are in the parent module.

use super::PAGE;
use crate::UNIT;
use crate::outcome::Outcome;
use crate::paging::Job;
use crate::ranges::Ranges;
use crate::table::Locked;
use hugeswap_policy::defrag::thp::Bring;
use hugeswap_policy::unit::{COW, Kind, LOCKED, Word};
use hugeswap_sys::signal::Blocked;
use hugeswap_sys::{Errno, Result, process};
use std::ops::Range;

impl Ranges {
    /// Is the page at `addr` in memory?
    pub fn resident(&self, addr: usize) -> bool {
        if self.sharing.is_shared(addr) {
            return self.sharing.is_resident(addr);
        }
        self.table
            .unit_of(addr)
            .is_some_and(|u| match self.table.load(u).kind() {
                Kind::Present | Kind::Cached | Kind::Foreign => true,
                Kind::Base => self.base.records.of(u).present.get(addr / 4096 % 512),
                _ => false,
            })
    }

    /// Is the unit at `addr` mapped by base pages now?
    pub fn is_base_mapped(&self, addr: usize) -> bool {
        self.table
            .unit_of(addr)
            .is_some_and(|u| self.table.load(u).kind() == Kind::Base)
    }

    /// Brings in what a range of one unit meets, writable if `write`, as touches of it would.
    /// EINVAL: it has no such access, or is not in use; EIO: it is lost; ENOMEM: there is no memory
    /// for it.
    pub fn populate(&self, addr: usize, len: usize, write: bool) -> Result<()> {
        let _blocked = Blocked::all();
        let mut page = addr;
        while page < addr + len {
            let unit = self.table.unit_of(page).ok_or(Errno::EINVAL)?;
            if !self.table.load(unit).allows(write) {
                return Err(Errno::EINVAL);
            }
            match self.fault(page, write) {
                // (A thread that took access away meanwhile would be told so once, as a doubt.)
                Outcome::Retry => {}
                Outcome::NotOurs | Outcome::Free | Outcome::NoAccess => return Err(Errno::EINVAL),
                Outcome::Guard => return Err(Errno::EFAULT),
                Outcome::Poisoned | Outcome::Stuck => return Err(Errno::EIO),
                Outcome::NoMemory | Outcome::Unmapped(_) => return Err(Errno::ENOMEM),
            }
            page = match self.table.load(unit).kind() {
                Kind::Base => page + PAGE,
                _ => (page + 1).next_multiple_of(UNIT),
            };
        }
        Ok(())
    }

    /// Begins to read what of the range is in swap: of units that come by pages the pages of the
    /// range, of the others the whole.
    pub fn willneed(&self, addr: usize, len: usize) {
        if self.sharing.is_shared(addr) {
            return self.sharing.willneed(self.host(), addr, len);
        }
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        let mut planned = 0;
        for unit in self.table.units_of(addr, len) {
            // A unit just being written out is not there any more a moment later.
            while self.table.load(unit).has(LOCKED) && !self.table.is_offered(unit) {
                self.table.wait_locked(unit);
            }
            let wanted = |w: Word| matches!(w.kind(), Kind::Swapped | Kind::Base);
            let Some(mut w) = self.table.try_lock_if(unit, wanted) else {
                continue;
            };
            let pages = self.table.pages_in(unit, addr, len);
            if self.by_pages(unit, &pages) && self.as_pages(&mut w) {
                self.hand_over_bring(w, pages);
                continue;
            }
            if self.markers.is_marked(unit) {
                w.settle();
                continue;
            }
            if w.kind() == Kind::Base {
                self.hand_over_whole(w);
                continue;
            }
            w.offer();
            if self.reads.push(Job::Read(unit)).is_err() {
                if let Some(w) = self.table.claim(unit) {
                    w.settle();
                }
                break;
            }
            planned += 1;
        }
        if planned > 0 {
            self.wake_workers(2);
        }
    }

    /// Are `pages`, which the program will need, to come in by themselves? Always where the unit
    /// comes by pages; where faults decide, up to a quarter of it, which takes as long as the
    /// whole.
    fn by_pages(&self, unit: u32, pages: &Range<usize>) -> bool {
        if !self.backend.can().has_single_pages() {
            return false;
        }
        match self.bring_of(unit) {
            Bring::Pages | Bring::Pieces => pages.len() * PAGE < UNIT || !self.may_be_huge(unit),
            Bring::AsFaulted => pages.len() * PAGE <= UNIT / 4,
            Bring::Whole => false,
        }
    }

    /// Is a unit, in swap or base-mapped, base-mapped now?
    fn as_pages(&self, w: &mut Locked<'_>) -> bool {
        w.kind() == Kind::Base || self.go_over_to_pages(w)
    }

    /// Moves the units of the range out to swap, and waits until that is done as far as it can be.
    /// Of a unit that the range has in part the pages go: a whole one goes over to base pages for
    /// that.
    pub fn pageout(&self, addr: usize, len: usize) {
        self.leave_memory(addr, len, true);
    }

    /// The program will not use the range for a while (MADV_COLD): as [`Ranges::pageout`], but
    /// pages of a unit that is whole in memory stay.
    pub fn cold(&self, addr: usize, len: usize) {
        self.leave_memory(addr, len, false);
    }

    fn leave_memory(&self, addr: usize, len: usize, in_pieces: bool) {
        if self.sharing.is_shared(addr) {
            return self.sharing.pageout(addr, len);
        }
        const ASK_AGAIN_NS: u64 = 20_000_000;
        const PATIENCE_NS: u64 = 3_000_000_000;
        let inside = |unit: u32| {
            let w = self.table.load(unit);
            let memory = match w.kind() {
                Kind::Present | Kind::Cached => true,
                // (Its pages go before its swap is accounted for.)
                Kind::Base => w.has(LOCKED) || self.base.records.of(unit).present.any(),
                _ => false,
            };
            memory && w.pins() == 0
        };
        let push = |unit: u32| {
            let _blocked = Blocked::all();
            let _inside = self.gate.enter();
            self.evict_requests.push(unit)
        };
        let ask = |unit: u32| {
            // (What is not asked for by then stays in memory.)
            let start = hugeswap_sys::now_ns();
            while push(unit).is_err() && hugeswap_sys::now_ns() - start < PATIENCE_NS {
                self.pool.kick();
                process::yield_now();
            }
            self.pool.kick();
        };
        for unit in self.table.whole_units_of(addr, len) {
            // The thread that brings it in may have it locked, and kswapd waits for no thread.
            self.table.wait_locked(unit);
            if inside(unit) {
                ask(unit);
            }
        }
        let ends = self
            .table
            .units_of(addr, len)
            .filter(|_| self.backend.can().has_single_pages());
        for unit in ends {
            let pages = self.table.pages_in(unit, addr, len);
            let may_go = |w: Word| match w.kind() {
                Kind::Base => true,
                // (What a child has as well would have to be copied first.)
                Kind::Present => in_pieces && !w.has(COW) && self.files.of(unit).is_none(),
                // (What was read ahead is in swap.)
                _ => false,
            };
            if pages.len() * PAGE == UNIT || !may_go(self.table.load(unit)) {
                continue;
            }
            let leaving = {
                let _blocked = Blocked::all();
                let _inside = self.gate.enter();
                // (What is held, or may not be written, stays as it is.)
                match self.lock_apart(unit) {
                    Ok(w) if w.kind() == Kind::Base => {
                        self.hand_over_drop(w, pages);
                        true
                    }
                    Ok(w) => {
                        w.settle();
                        false
                    }
                    Err(_) => false,
                }
            };
            while leaving && self.table.load(unit).has(LOCKED) {
                self.table.wait_locked(unit);
            }
        }
        // A program that goes on touching a unit, or a swap that is full, keeps it in: wait, but
        // not for ever. As long as others leave, however slow the device is, there is hope.
        let now = hugeswap_sys::now_ns;
        let (mut since, mut patience) = (now(), PATIENCE_NS);
        for unit in self.table.whole_units_of(addr, len) {
            let mut again = now() + ASK_AGAIN_NS;
            while inside(unit) && now() < since + patience {
                if now() > again {
                    // It may have been under write-back when its turn came.
                    ask(unit);
                    again += ASK_AGAIN_NS;
                }
                process::yield_now();
            }
            if inside(unit) {
                patience = ASK_AGAIN_NS;
            }
            since = now();
        }
    }
}
