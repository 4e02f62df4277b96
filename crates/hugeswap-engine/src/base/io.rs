//! Pages of a slot: read and verified, written and summed.

use super::{BUFFER, PAGE, record::Record};
use crate::checksum::{self, UnitSums};
use crate::engine::Engine;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::file::FilePlace;
use hugeswap_policy::granularity::Direction;
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::unit::{SCATTERED, Word};
use hugeswap_policy::{UNIT_BYTES, UNIT_PAGES};
use hugeswap_sys::{Errno, fs, now_ns};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

const PAGES: usize = UNIT_PAGES as usize;

impl Engine {
    /// Reads pages of a slot to `to` and verifies them. `doubt`: see [`Engine::read_slot`].
    pub(super) fn read_pages(
        &self,
        slot: u64,
        pages: Range<usize>,
        to: usize,
        doubt: bool,
    ) -> Result<(), Errno> {
        let (area, offset) = self.pool.locate(slot).ok_or(Errno::EIO)?;
        let a = self.pool.areas().get(area).ok_or(Errno::EIO)?;
        // With a sum the content itself tells.
        let summed = self.pool.knob(Knob::Checksum) != 0;
        let strange = || doubt && fs::identity(a.fd) != Ok(a.identity);
        if !summed && strange() {
            return Err(Errno::EBADF);
        }
        let len = pages.len() * PAGE;
        let from = offset + (pages.start * PAGE) as u64;
        let start = now_ns();
        // SAFETY: the caller's memory.
        let read = unsafe { self.backing.read(&self.pool, a.fd, to, len, from) };
        read.map_err(|e| if strange() { Errno::EBADF } else { e })?;
        self.sizes
            .observe(Direction::In, pages.len(), now_ns().saturating_sub(start));
        self.count(Counter::PswpIn, pages.len() as u64);
        if !summed {
            return Ok(());
        }
        let sums = self.pool.slot_sums().get(slot as usize);
        let want = sums.and_then(|s| s.get(pages)).ok_or(Errno::EIO)?;
        // SAFETY: just filled, and the caller's.
        let got = unsafe { std::slice::from_raw_parts(to as *const u8, len) };
        if checksum::matches(&self.key, got, want) {
            Ok(())
        } else if strange() {
            Err(Errno::EBADF)
        } else {
            Err(Errno::EIO)
        }
    }

    /// [`Engine::read_pages`], with what a device does once in a while forgiven.
    pub(crate) fn read_pages_surely(
        &self,
        slot: u64,
        pages: Range<usize>,
        to: usize,
    ) -> Result<(), Errno> {
        let mut tries = 0;
        loop {
            match self.read_pages(slot, pages.clone(), to, true) {
                Err(Errno::EIO) if tries < 3 => tries += 1,
                result => return result,
            }
        }
    }

    /// Writes pages to a slot of this process's own from `from`, where nobody changes them.
    pub(crate) fn write_pages(
        &self,
        slot: u64,
        pages: Range<usize>,
        from: usize,
    ) -> Result<(), Errno> {
        let (index, offset) = self.pool.locate(slot).ok_or(Errno::EIO)?;
        let area = self.pool.header().areas.get(index).ok_or(Errno::EIO)?;
        let joined = self.pool.areas().get(index).ok_or(Errno::EIO)?;
        // Program threads come here too (forks, moves), whose descriptors are the program's to change.
        if fs::identity(joined.fd) != Ok(joined.identity) {
            return Err(Errno::EBADF);
        }
        if offset + UNIT_BYTES > area.allocated.load(Relaxed) {
            self.grow_area(index, offset + UNIT_BYTES)?;
        }
        let len = pages.len() * PAGE;
        // SAFETY: the caller's memory.
        let bytes = unsafe { std::slice::from_raw_parts(from as *const u8, len) };
        let mut sums: UnitSums = [0; PAGES];
        checksum::fill(&self.key, bytes, &mut sums);
        let kept = self.pool.slot_sums().get(slot as usize);
        let kept = kept.and_then(|s| s.get(pages.clone())).ok_or(Errno::EIO)?;
        // What the pages of the slot hold is nothing until the write is done.
        checksum::forget(kept);
        let at = offset + (pages.start * PAGE) as u64;
        // SAFETY: as above.
        unsafe { self.backing.write(&self.pool, joined.fd, from, len, at) }.inspect_err(|_| {
            area.errors.fetch_add(1, Relaxed);
        })?;
        checksum::store(kept, &sums);
        self.count(Counter::PswpOut, pages.len() as u64);
        Ok(())
    }

    /// [`Engine::write_pages`], with what a device does once in a while forgiven: many writes in a row make up one
    /// step here, which would never be done otherwise.
    pub(crate) fn write_pages_surely(
        &self,
        slot: u64,
        pages: Range<usize>,
        from: usize,
    ) -> Result<(), Errno> {
        let mut tries = 0;
        loop {
            match self.write_pages(slot, pages.clone(), from) {
                Err(Errno::EIO) if tries < 3 => tries += 1,
                result => return result,
            }
        }
    }

    /// Writes the dirty pages of a locked unit, which are write-protected, to its place in swap; to a new one if it has
    /// none or a forked child may read it. The word with its place, and whether all was written.
    pub(super) fn write_dirty(&self, unit: u32, w: Word, record: &Record) -> (Word, bool) {
        if !record.dirty.any() {
            return (w, true);
        }
        if let Some(place) = FilePlace::of(w) {
            return (w, self.write_file_dirty(unit, place, record));
        }
        let Some(w) = self.place_for_dirty(unit, w, record) else {
            self.count(Counter::SwapWriteError, 1);
            return (w, false);
        };
        let done = match w.slot() {
            Some(SCATTERED) => self.write_scattered(unit, record),
            Some(slot) => self.write_in_place(unit, slot, record),
            None => false,
        };
        if done {
            self.swap_full.store(false, Relaxed);
        } else {
            self.count(Counter::SwapWriteError, 1);
        }
        (w, done)
    }

    /// [`Engine::write_dirty`] for a unit with a cluster that may be overwritten.
    fn write_in_place(&self, unit: u32, slot: u64, record: &Record) -> bool {
        let at = self.table.addr(unit);
        let mut next = 0;
        while let Some(run) = record.dirty.run(next, PAGES, true) {
            next = run.end;
            if self
                .write_pages(slot, run.clone(), at + run.start * PAGE)
                .is_err()
            {
                // What the slot held of these pages may be gone; memory has them.
                record.stored.put(run, false);
                return false;
            }
            record.stored.put(run.clone(), true);
            record.dirty.put(run, false);
        }
        true
    }

    /// Writes zeros where neither memory nor the slot holds a page, so that the slot is all of the unit, which has no dirty
    /// page. False if that failed. Nobody else may read the slot: a relative may know these pages as they were.
    pub(super) fn write_holes(&self, w: Word, record: &Record) -> bool {
        let Some(slot) = w.slot() else {
            return false;
        };
        let buffer = self.base.take_buffer();
        // SAFETY: the buffer is ours.
        unsafe { std::ptr::write_bytes(buffer.addr() as *mut u8, 0, BUFFER) };
        let mut next = 0;
        while let Some(run) = record.stored.run(next, PAGES, false) {
            let part = run.start..run.end.min(run.start + BUFFER / PAGE);
            next = part.end;
            if self
                .write_pages_surely(slot, part.clone(), buffer.addr())
                .is_err()
            {
                return false;
            }
            record.stored.put(part, true);
        }
        true
    }

    /// Copies what is stored of a unit with a cluster to another.
    pub(super) fn copy_slot(&self, from: u64, to: u64, record: &Record) -> bool {
        let buffer = self.base.take_buffer();
        let mut next = 0;
        while let Some(run) = record.stored.run(next, PAGES, true) {
            let part = run.start..run.end.min(run.start + BUFFER / PAGE);
            next = part.end;
            if record.dirty.run(part.start, part.end, false).is_none() {
                continue;
            }
            // A page that is dirty is read too: it was stored, and is overwritten next.
            if self
                .read_pages_surely(from, part.clone(), buffer.addr())
                .and_then(|()| self.write_pages_surely(to, part, buffer.addr()))
                .is_err()
            {
                return false;
            }
        }
        true
    }
}
