//! Message mode: units that can be written without a fault, and the sums of what they held before.
//!
//! In that mode memory that comes into place is writable from the first moment on. What the kernel
//! and devices write through a hold that they took before it was protected makes no fault. Such a
//! unit is *open*: beside it stand the sums of its pages, of what it held when it became open, and
//! a page with another sum now was written. Where pages are told apart a unit also becomes open
//! with its first write in an epoch, instead of going over to base pages.
//!
//! A unit is open only while it is present. A thread that takes it away, or protects it for an
//! epoch, first stamps what differs, when no thread can write to it any more. A thread that asks
//! what was written has it stamped as well, and it stays open.
//!
//! Concurrency: all but [`is_open`](super::stamps::Track::is_open) is done under the unit's lock. A
//! sum made while its page is being written is as good as any: a write before the caller began to
//! look is seen, and a later one is by the next look. What differs was written since the last epoch
//! began, because each epoch begins with none open. The rules of the fault path hold.

use super::PAGES;
use super::held::Held;
use crate::checksum::{self};
use crate::paging::Paging;
use hugeswap_policy::unit::{Kind, LOCKED, WRITABLE, Word};
use hugeswap_sys::signal::Blocked;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

impl Paging {
    /// A locked unit's memory is about to come into place, where it can be written if `writable`;
    /// it is brought for a write if `write`.
    pub(crate) fn note_arrival(&self, unit: u32, write: bool, held: Held) {
        if self.backend.can().arrives_read_only || write && !self.track.tracks_pages(unit) {
            return self.track.note_written(unit);
        }
        self.open_for_writes(unit, held);
    }

    /// A locked, present unit is about to be writable, if it is not, for a write to it.
    pub(crate) fn note_access(&self, unit: u32, w: Word) {
        if self.backend.can().arrives_read_only || !self.track.tracks_pages(unit) {
            return self.track.note_written(unit);
        }
        if self.track.is_open(unit) {
            return;
        }
        match w.has(WRITABLE) {
            // What it held is not known.
            true => self.track.note_written(unit),
            false => self.open_for_writes(unit, Held::At(self.table.addr(unit))),
        }
    }

    /// A locked, present unit that no thread can write to is about to be taken away. If that fails
    /// on the way, it may have become writable.
    pub(crate) fn note_leaving(&self, unit: u32, held: Held) {
        if !self.backend.can().arrives_read_only && !self.track.is_open(unit) {
            self.open_for_writes(unit, held);
        }
    }

    /// A locked unit has been taken away, or protected, and holds this.
    pub(crate) fn note_left(&self, unit: u32, held: Held) {
        if let Some(stamps) = self.track.of(unit).filter(|_| self.track.is_open(unit)) {
            self.compare(unit, held, stamps.since.load(Relaxed));
            stamps.open.store(0, Release);
        }
    }

    /// The same of one that is protected as the epoch after `last` begins.
    pub(super) fn close_for_epoch(&self, unit: u32, last: u32) {
        if let Some(stamps) = self.track.of(unit).filter(|_| self.track.is_open(unit)) {
            self.compare(unit, Held::At(self.table.addr(unit)), last);
            stamps.open.store(0, Release);
        }
    }

    /// Stamps what has been written to the units of a range and is known by their sums only. For
    /// threads of the program, which hold nothing.
    pub fn look_for_writes(&self, addr: usize, len: usize) {
        if self.backend.can().arrives_read_only || self.track.tables.get().is_none() {
            return;
        }
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        self.table.units_of(addr, len).for_each(|unit| {
            while !self.try_look_for_writes(unit) {
                // It may be in place already, and be written to.
                self.table.wait_locked(unit);
            }
        });
    }

    /// The same of one unit, for a thread that is inside the gate. False: another thread has its
    /// lock, and nothing is done.
    pub(crate) fn try_look_for_writes(&self, unit: u32) -> bool {
        if !self.track.is_open(unit) {
            return true;
        }
        let present = |w: Word| w.kind() == Kind::Present;
        let Some(w) = self.table.try_lock_if(unit, present) else {
            // If it is not present, the thread that gave it up has stamped it.
            return !self.table.load(unit).has(LOCKED);
        };
        if let Some(stamps) = self.track.of(unit).filter(|_| self.track.is_open(unit)) {
            let at = self.table.addr(unit);
            self.compare(unit, Held::At(at), stamps.since.load(Relaxed));
        }
        w.settle();
        true
    }

    fn open_for_writes(&self, unit: u32, held: Held) {
        let Some(stamps) = self.track.of(unit) else {
            return;
        };
        let Some(sums) = self.track.sums_of(unit) else {
            return self.track.note_written(unit);
        };
        let known = self.each_sum(held, |page, sum| {
            if let Some(s) = sums.get(page) {
                s.store(sum, Relaxed);
            }
        });
        if !known {
            self.track.note_written(unit);
        }
        stamps.open.store(1, Release);
    }

    /// Stamps what differs from the sums of an open unit.
    fn compare(&self, unit: u32, held: Held, stamp: u32) {
        let (Some(stamps), Some(sums)) = (self.track.of(unit), self.track.sums_of(unit)) else {
            return;
        };
        if stamps.whole.load(Relaxed) >= stamp {
            return;
        }
        let mut run = 0..0;
        let note = |run: &Range<usize>| self.track.stamp_pages(unit, run.clone(), stamp);
        let known = self.each_sum(held, |page, sum| {
            if sums.get(page).is_some_and(|s| s.load(Relaxed) == sum) {
                return;
            }
            if run.end != page {
                note(&run);
                run.start = page;
            }
            run.end = page + 1;
        });
        note(if known { &run } else { &(0..PAGES) });
    }

    /// Calls `each` with the sums of the pages of what a unit holds; false if they are not known.
    fn each_sum(&self, held: Held, mut each: impl FnMut(usize, u64)) -> bool {
        match held {
            Held::Zeros => {
                let zero = self.track.zero_sum(&self.store.key);
                (0..PAGES).for_each(|page| each(page, zero));
            }
            Held::AsStored(w) => {
                let sums = self.pool.cluster_sums();
                let Some(sums) = w.cluster().and_then(|c| sums.get(c as usize)) else {
                    return false;
                };
                for (page, sum) in sums.iter().enumerate() {
                    each(page, AtomicU64::load(sum, Acquire));
                }
            }
            Held::At(at) => {
                // SAFETY: the caller has the unit locked, and what it holds is there. If somebody
                // writes to it meanwhile, either sum will do (see the file's head).
                checksum::sums(&self.store.key, unsafe { self.bytes(at) }, |page, sum| {
                    each(page, sum);
                    true
                });
            }
        }
        true
    }
}
