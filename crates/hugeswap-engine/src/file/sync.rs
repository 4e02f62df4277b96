//! Pages of mapped files written, or dropped from memory, on request: sync, advice, unmapping, a
//! fork.
//!
//! The engine's I/O threads do it, unit by unit: the unit's lock goes with the job. Pinned units
//! are written as they are and stay dirty, because their users may go on writing. What could not be
//! written stays in memory, dirty.
//!
//! A fork: before it, what is dirty is written. The child inherits nothing of such units: it finds
//! every unit as the file has it, and may not write to it. What could not be written is lost to the
//! child (SIGBUS), not to the parent.

use super::table::{Files, Mapping, PENDING};
use crate::UNIT;
use crate::forked::is_raw_fork_child;
use crate::paging::Job;
use crate::paging::Paging;
use crate::table::{Locked, NO_FRAME};
use hugeswap_policy::unit::step::Event;
use hugeswap_policy::unit::{CLEAN, FilePlace, Kind, LOCKED, Place, Word};
use hugeswap_sys::signal::Blocked;
use hugeswap_sys::{Errno, Result, fs, futex};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Units asked for at one time.
const BATCH: u32 = 16;

impl Files {
    fn note_unwritten(&self, place: FilePlace, e: Errno) {
        if let Some(m) = self.mapping(place) {
            m.note_error(e);
        }
    }
}

impl Paging {
    /// Writes what is dirty of the mapping at `[addr, addr+len)` to its file, and waits until that
    /// is on the device. The error of a write that failed; what it was to write is still in memory
    /// and dirty.
    pub fn sync_file(&self, addr: usize, len: usize) -> Result<()> {
        let _blocked = Blocked::all();
        let Some(m) = self.mapping_at(addr) else {
            return Err(Errno::EINVAL);
        };
        let errors = m.errors.load(Acquire);
        self.settle_units(addr, len, false);
        if m.errors.load(Acquire) != errors {
            return Err(Errno(m.last_error.load(Relaxed)));
        }
        self.flush(addr, m)
    }

    /// Waits until what was written is on the device.
    fn flush(&self, addr: usize, m: &Mapping) -> Result<()> {
        let fd = m.fd.load(Relaxed);
        if m.size_by(fd).is_ok() {
            return fs::sync_data(fd);
        }
        // The program has closed our descriptor: the engine's threads have their own.
        let _inside = self.gate.enter();
        let _alone = self.files.descriptors.changing.lock();
        let unit = self.table.unit_of(addr).ok_or(Errno::EINVAL)?;
        m.flush.store(PENDING, Relaxed);
        self.queue_read(Job::Flush(unit));
        self.wake_workers(1);
        loop {
            match m.flush.load(Acquire) {
                PENDING => futex::wait(&m.flush, PENDING, Some(100_000_000), false),
                0 => return Ok(()),
                e => return Err(Errno(e.cast_signed())),
            }
        }
    }

    /// What [`Paging::flush`] asked for; `unit` is one of the mapping.
    pub(crate) fn flush_handed(&self, unit: u32) {
        let Some(m) = self.files.of(unit).and_then(|p| self.files.mapping(p)) else {
            return;
        };
        let result = fs::sync_data(m.fd.load(Relaxed));
        let errno = result.err().map_or(0, |e| e.0.cast_unsigned());
        m.flush.store(errno, Release);
        futex::wake(&m.flush, 1, false);
    }

    /// Does `addr` lie in a mapping of a file?
    pub(crate) fn is_of_file(&self, addr: usize) -> bool {
        self.mapping_at(addr).is_some()
    }

    fn mapping_at(&self, addr: usize) -> Option<&Mapping> {
        let place = self.files.of(self.table.unit_of(addr)?)?;
        self.files.mapping(place)
    }

    /// The units that `[addr, addr+len)` meets leave memory, those that are dirty after they were
    /// written; what could not be written, or is held, stays.
    pub(crate) fn drop_file_range(&self, addr: usize, len: usize) {
        let _blocked = Blocked::all();
        self.settle_units(addr, len, true);
    }

    /// Has units written, and dropped if `drop`, and waits until that is done.
    pub(crate) fn settle_units(&self, addr: usize, len: usize, drop: bool) {
        let mut units = self.table.units_of(addr, len);
        if is_raw_fork_child(self.fork_mark) {
            // No thread is there to do it, and the parent writes what is in memory.
            return;
        }
        while !units.is_empty() {
            let end = units.end.min(units.start + BATCH);
            let _inside = self.gate.enter();
            for unit in units.start..end {
                self.settle(unit, drop);
            }
            for unit in units.start..end {
                while self.table.load(unit).has(LOCKED) {
                    self.table.wait_locked(unit);
                }
            }
            units.start = end;
        }
    }

    fn settle(&self, unit: u32, drop: bool) {
        let at_work = |w: Word| match w.kind() {
            Kind::Present | Kind::Base => true,
            Kind::Cached | Kind::Poisoned => drop,
            _ => false,
        };
        let seen = self.table.load(unit);
        if !seen.has(LOCKED) && !at_work(seen) {
            return;
        }
        // (A unit on its way in, or out, is looked at when it is there.)
        let w = self.table.lock_settled(unit);
        if self.files.of(unit).is_none() || !at_work(*w) {
            return w.settle();
        }
        w.pass();
        if self.gate.is_forker() {
            // The engine's threads are at rest.
            return self.settle_handed(unit, drop);
        }
        self.queue_read(Job::Settle { unit, drop });
        self.wake_workers(2);
    }

    /// What [`Paging::settle`] handed over.
    pub(crate) fn settle_handed(&self, unit: u32, drop: bool) {
        let mut w = self.table.passed(unit);
        let written = self.write_locked(&mut w);
        match w.kind() {
            _ if !drop || !written || w.pins() > 0 => w.settle(),
            Kind::Present => {
                self.drop_clean(w);
            }
            Kind::Cached => {
                if let Some(place) = self.take_locked(w) {
                    self.arena.put_free(place);
                    self.note_available();
                }
            }
            Kind::Base => {
                self.evict_pages(w, false);
            }
            Kind::Poisoned => {
                let file = self.files.of(unit);
                self.settle_freeing(w, Event::Discarded { file });
            }
            _ => w.settle(),
        }
    }

    /// Writes what is dirty of a unit to its file. Is nothing dirty any more (as far as nobody
    /// holds it)?
    fn write_locked(&self, w: &mut Locked<'_>) -> bool {
        let Some(place) = w.file() else {
            return true;
        };
        let unit = w.unit();
        match w.kind() {
            Kind::Base => {
                let errors = || self.files.mapping(place).map(|m| m.errors.load(Acquire));
                let before = errors();
                let clean = self.clean_pages(w);
                if !clean && errors() == before {
                    self.files.note_unwritten(place, Errno::ENOMEM);
                }
                clean
            }
            Kind::Present if !w.has(CLEAN) => {
                let held = w.pins() > 0;
                if !held && self.backend.set_read_only(w.addr(), UNIT).is_err() {
                    self.files.note_unwritten(place, Errno::ENOMEM);
                    return false;
                }
                let written = self.write_file_unit(unit, place).is_ok();
                if held {
                    // A holder may have written to it while it was being written.
                    self.files.sums[unit as usize].store(0, Relaxed);
                    return written;
                }
                self.advance(w, Event::MadeReadOnly);
                if written {
                    let place = Place::File(place);
                    self.advance_freeing(w, Event::Written { place });
                }
                written
            }
            _ => true,
        }
    }

    /// Before a fork, with no other thread in the engine.
    pub(crate) fn write_all_files(&self) {
        self.each_file_unit(|unit| {
            let mut w = self.table.lock(unit);
            self.write_locked(&mut w);
            w.settle();
        });
    }

    /// In a forked child, in which nothing is mapped where these units are: they are in their files
    /// only, to be read.
    pub(crate) fn files_in_child(&self) {
        self.files.reset_descriptors_in_child();
        self.each_file_unit(|unit| {
            let w = self.table.load(unit);
            let clean = match w.kind() {
                Kind::Present => w.has(CLEAN) || w.pins() > 0,
                Kind::Base => {
                    let record = self.base.records.of(unit);
                    let dirty = record.dirty.any();
                    record.clear();
                    !dirty
                }
                Kind::Swapped | Kind::Cached => true,
                _ => false,
            };
            self.table.set_frame(unit, NO_FRAME);
            let file = self.files.of(unit);
            let readable = Event::Protected {
                may_read: w.allows(false),
                may_write: false,
            };
            let _ = self.table.reset_by(unit, Event::Discarded { file });
            let _ = self.table.reset_by(unit, readable);
            if !clean {
                let _ = self.table.reset_by(unit, Event::Lost);
            }
        });
    }

    fn each_file_unit(&self, f: impl FnMut(u32)) {
        if self.files.any() {
            let units = 0..self.high_unit.load(Relaxed);
            units.filter(|&u| self.files.of(u).is_some()).for_each(f);
        }
    }
}
