//! Units and pages of mapped files, read and written where they stand in the file.
//!
//! Files are read and written by direct I/O where the file system has it, else through the page
//! cache, which is told to forget what was moved. The part of a page at the end of a file is
//! written through a second descriptor without direct I/O.
//!
//! The engine never changes the length of a file, and looks at it before every transfer. Nothing is
//! written beyond the mapped part of a file, and pages there read as zero. Where the file has
//! become shorter than its mapping, pages beyond its end cannot be read (ENXIO) or written. Of the
//! page that it ends in the rest is zero, as with the kernel.
//!
//! The rules of the fault path hold for what reads.

use super::table::{Files, Mapping, PAGE};
use crate::PAGES;
use crate::checksum::{self, UnitSums};
use crate::pages::record::Record;
use crate::paging::Paging;
use crate::store::backing::Transfer;
use crate::store::may_try_again;
use hugeswap_policy::UNIT_BYTES;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::swapin::granularity::Direction;
use hugeswap_policy::unit::{FilePlace, MAY_WRITE, Word};
use hugeswap_sys::{Errno, Result, fs, mm, now_ns};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// Pages of a mapping, as bytes of its file.
struct Extent {
    /// First byte, and the first after the pages.
    from: u64,
    to: u64,
    /// First byte that is not mapped; at least `from` for a page that is mapped at all.
    end: u64,
    /// Length of the file now.
    size: u64,
}

impl Extent {
    /// Bytes from `from` on that the file is to have.
    fn wanted(&self) -> usize {
        (self.to.min(self.end)).saturating_sub(self.from) as usize
    }

    /// Does the file end before the last of these pages that are mapped?
    fn is_cut_off(&self) -> bool {
        self.size.next_multiple_of(PAGE) < self.to.min(self.end)
    }
}

impl Files {
    /// The entry of a mapping and what `pages` of `place` are in its file, if the caller's
    /// descriptor is that file (else EBADF).
    fn extent(&self, place: FilePlace, pages: &Range<usize>) -> Result<(&Mapping, i32, Extent)> {
        let m = self.mapping(place).ok_or(Errno::EIO)?;
        let fd = m.fd.load(Relaxed);
        let size = m.size_by(fd)?;
        let start = m.offset.load(Relaxed);
        let at = |page: usize| start + u64::from(place.unit) * UNIT_BYTES + page as u64 * PAGE;
        let extent = Extent {
            from: at(pages.start),
            to: at(pages.end),
            end: start + m.valid.load(Relaxed),
            size,
        };
        Ok((m, fd, extent))
    }
}

impl Paging {
    /// Has the file of a unit, if it has one, become too short for the whole of it?
    pub(crate) fn is_cut_off(&self, w: Word) -> bool {
        w.file().is_some_and(|place| {
            self.files
                .extent(place, &(0..PAGES))
                .is_ok_and(|(_, _, e)| e.is_cut_off())
        })
    }

    /// Reads pages of a unit of a file to `to`; zeros where nothing is mapped. EIO: the file is too
    /// short, or cannot be read. EBADF: the caller's descriptor is not the file.
    pub(crate) fn read_file_pages(
        &self,
        place: FilePlace,
        pages: Range<usize>,
        to: usize,
    ) -> Result<()> {
        let operation = self.store.backing.operation();
        let mut attempt = 0;
        loop {
            match self.read_file_once(place, pages.clone(), to, (operation, attempt)) {
                Err(Errno::EIO) if may_try_again(attempt) => attempt += 1,
                Err(Errno::ENXIO) => {
                    self.pool.count(Counter::FileReadError, 1);
                    return Err(Errno::EIO);
                }
                Err(Errno::EBADF) => return Err(Errno::EBADF),
                result => {
                    return result.map_err(|_| {
                        self.pool.count(Counter::FileReadError, 1);
                        Errno::EIO
                    });
                }
            }
        }
    }

    fn read_file_once(
        &self,
        place: FilePlace,
        pages: Range<usize>,
        to: usize,
        (operation, attempt): (u64, u32),
    ) -> Result<()> {
        let (m, fd, e) = self.files.extent(place, &pages)?;
        if e.is_cut_off() {
            return Err(Errno::ENXIO);
        }
        let (len, wanted) = (pages.len() * PAGE as usize, e.wanted());
        // Whole pages are asked for, as direct I/O has it. What the file has beyond that is not
        // mapped.
        let ask = wanted.next_multiple_of(PAGE as usize).min(len);
        let there = wanted.min(e.size.saturating_sub(e.from) as usize);
        let start = now_ns();
        let transfer = Transfer {
            write: false,
            fd,
            memory: to,
            len: ask,
            chunk: ask,
            enough: there,
            offset: e.from,
            page: None,
            expected_ns: 0,
            operation,
            attempt,
        };
        // SAFETY: the caller's memory.
        let got = unsafe { self.store.backing.carry_out(&self.pool, &transfer) }?.bytes;
        if got < there {
            // It was cut off meanwhile.
            return Err(Errno::ENXIO);
        }
        let had = got.min(wanted);
        self.store
            .observe(Direction::In, pages.len(), now_ns().saturating_sub(start));
        if m.direct.load(Relaxed) == 0 && ask > 0 {
            fs::forget_cached(fd, e.from, ask as u64);
        }
        // SAFETY: as above; `had` is not beyond it.
        unsafe { std::ptr::write_bytes((to + had) as *mut u8, 0, len - had) };
        self.pool
            .count(Counter::FileIn, wanted.div_ceil(PAGE as usize) as u64);
        Ok(())
    }

    /// Reads all of a unit of a file to the frame at `at`.
    pub(crate) fn read_file_unit(&self, unit: u32, place: FilePlace, at: usize) -> Result<()> {
        self.read_file_pages(place, 0..PAGES, at)?;
        if !self.backend.can().arrives_read_only && self.table.load(unit).has(MAY_WRITE) {
            // SAFETY: the frame was just filled and is the caller's.
            let sum = checksum::whole(&self.store.key, unsafe { self.bytes(at) });
            self.files.sums[unit as usize].store(sum, Relaxed);
        }
        Ok(())
    }

    /// Writes pages of a unit to its file from `from`, where no thread changes them, as far as they
    /// are mapped. On failure what the file has there is neither old nor new. Nothing, of a mapping
    /// that is only read.
    fn write_file_pages(&self, place: FilePlace, pages: Range<usize>, from: usize) -> Result<()> {
        let m = self.files.mapping(place).ok_or(Errno::EIO)?;
        if m.writes.load(Relaxed) == 0 {
            return Ok(());
        }
        let operation = self.store.backing.operation();
        let mut attempt = 0;
        let result = loop {
            match self.write_file_once(place, pages.clone(), from, (operation, attempt)) {
                Err(Errno::EIO) if may_try_again(attempt) => attempt += 1,
                result => break result,
            }
        };
        result.inspect_err(|&e| {
            self.pool.count(Counter::FileWriteError, 1);
            m.note_error(e);
        })
    }

    fn write_file_once(
        &self,
        place: FilePlace,
        pages: Range<usize>,
        from: usize,
        (operation, attempt): (u64, u32),
    ) -> Result<()> {
        let (m, fd, e) = self.files.extent(place, &pages)?;
        let wanted = e.wanted();
        if e.from + wanted as u64 > e.size {
            // Writing would make it longer.
            return Err(Errno::ENXIO);
        }
        let start = now_ns();
        let tail_fd = m.tail_fd.load(Relaxed);
        let tail = if tail_fd >= 0 {
            wanted % PAGE as usize
        } else {
            0
        };
        let body = wanted - tail;
        let write = |fd, memory, len, offset| {
            let transfer = Transfer {
                write: true,
                fd,
                memory,
                len,
                chunk: len,
                enough: len,
                offset,
                page: None,
                expected_ns: 0,
                operation,
                attempt,
            };
            // SAFETY: the caller's memory.
            unsafe { self.store.backing.carry_out(&self.pool, &transfer) }
        };
        if body > 0 {
            write(fd, from, body, e.from)?;
        }
        if tail > 0 {
            let at = e.from + body as u64;
            m.size_by(tail_fd)?;
            write(tail_fd, from + body, tail, at)?;
            fs::forget_cached(tail_fd, at, PAGE);
        }
        let took = now_ns().saturating_sub(start);
        self.store.observe(Direction::Out, pages.len(), took);
        if pages.len() == PAGES {
            self.note_unit_written(true);
        }
        if m.direct.load(Relaxed) == 0 && wanted > 0 {
            // It begins to be written; the next call of this kind finds it clean.
            fs::forget_cached(fd, e.from, wanted as u64);
        }
        self.pool
            .count(Counter::FileOut, wanted.div_ceil(PAGE as usize) as u64);
        Ok(())
    }

    /// Writes a whole unit in memory to its file, unless that is known to hold the same. The unit
    /// is mapped readable; if the program writes meanwhile, the caller finds out.
    pub(crate) fn write_file_unit(&self, unit: u32, place: FilePlace) -> Result<()> {
        let at = self.table.addr(unit);
        let known = &self.files.sums[unit as usize];
        let sum = if self.backend.can().arrives_read_only || !self.table.load(unit).has(MAY_WRITE) {
            0
        } else {
            // SAFETY: the caller's promise.
            checksum::whole(&self.store.key, unsafe { self.bytes(at) })
        };
        if sum != 0 && sum == known.load(Relaxed) && self.pool.knob(Knob::CleanDrop) != 0 {
            self.pool.count(Counter::CleanDrop, 1);
            return Ok(());
        }
        known.store(0, Relaxed);
        self.write_file_pages(place, 0..PAGES, at)?;
        known.store(sum, Relaxed);
        Ok(())
    }

    /// Writes the dirty pages of a locked, base-mapped unit, which are write-protected. False if
    /// not all could be written.
    pub(crate) fn write_file_dirty(&self, unit: u32, place: FilePlace, record: &Record) -> bool {
        let at = self.table.addr(unit);
        let mut next = 0;
        while let Some(run) = record.dirty.run(next, PAGES, true) {
            next = run.end;
            let from = at + run.start * PAGE as usize;
            if self.write_file_pages(place, run.clone(), from).is_err() {
                return false;
            }
            record.dirty.put(run, false);
        }
        true
    }

    /// Message mode: does the frame at `at`, just moved out of a unit of a file, hold what the file
    /// does?
    pub(crate) fn is_as_in_file(&self, unit: u32, w: Word, at: usize) -> bool {
        // What the program may not write nothing has changed.
        if !w.has(MAY_WRITE) {
            return true;
        }
        let want = self.files.sums[unit as usize].load(Relaxed);
        // SAFETY: the place holds a frame that is the caller's.
        want != 0 && checksum::whole(&self.store.key, unsafe { self.bytes(at) }) == want
    }

    /// Message mode: access to a unit that [`Ranges::fence`](crate::ranges::Ranges::fence) has made
    /// read-only, so that memory can be moved to it or from it.
    pub(crate) fn open_fence(&self, unit: u32, w: Word) {
        if self.fenced.load(Relaxed) && !w.has(MAY_WRITE) && self.backend.can().absent_has_access {
            let at = self.table.addr(unit);
            let _ = self.backend.set_absent_access(at, mm::PROT_RW);
        }
    }
}

const _: () = assert!(size_of::<UnitSums>() == PAGE as usize);
