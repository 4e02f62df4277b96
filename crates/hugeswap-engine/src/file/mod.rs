//! Mapped files: regions whose units come from a file and, where they may be written, go back to it instead of to swap.
//!
//! A unit of a mapping begins in state `Swapped`, with its *file place* (`hugeswap_policy::unit::FilePlace`) where others have a slot, and keeps
//! it until it is unmapped. Fault path, readahead and reclaim treat it as any other; what reads or writes what is behind a unit
//! comes here for such a place. A clean unit is dropped without a write; a dirty one is written to the file at its own offset.
//! Nothing is promised in swap for it, no page sum is kept (somebody else may change the file), and it is never all
//! zeros without the file saying so.
//!
//! * [`descriptors`]: the file as the program's threads and the engine's own reach it
//! * [`io`]: units and pages read and written, as far as the mapping and the file reach
//! * [`sync`]: what is written or dropped on request, and at a fork
//!
//! Concurrency: an entry of the table of mappings is filled in before a unit refers to it, does not change while one does, and is
//! given up, under the lock of descriptors, after the last one has been unmapped. Who holds the lock of a unit with a file
//! place, or has it under write-back, may use the entry. Which place a unit has changes under its lock.

mod descriptors;
mod io;
mod sync;

use crate::UNIT;
use crate::paging::Paging;
use crate::space::Space;
use crate::zeroed::{FromZeros, Zeroed};
use descriptors::Descriptors;
use hugeswap_policy::UNIT_BYTES;
use hugeswap_policy::unit::{FilePlace, Kind, MAPPINGS, MAY_READ, MAY_WRITE, Place, Word};
use hugeswap_policy::workingset::vmscan::PageKind;
use hugeswap_sys::{Errno, Result, fs, mm};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64};

const PAGE: u64 = 4096;

/// What a mapping of a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileMode {
    /// Its bytes may be read; a write is the program's error.
    ReadOnly,
    /// What is written goes to the file.
    WriteBack,
}

/// States of an entry.
mod state {
    /// Nobody's.
    pub const FREE: u32 = 0;
    /// Being filled in, or in use.
    pub const USED: u32 = 1;
}

/// One mapping. Zeros are an entry that is free.
#[derive(Default)]
struct Mapping {
    state: AtomicU32,
    /// 1: changed units are written to the file.
    writes: AtomicU32,
    /// 1: `fd` is open for direct I/O.
    direct: AtomicU32,
    /// Descriptor, the same number for the program's threads and the engine's.
    fd: AtomicI32,
    /// Another without direct I/O, for the part of a page at the end of the file; -1 is none.
    tail_fd: AtomicI32,
    /// Who the file is.
    dev: AtomicU64,
    ino: AtomicU64,
    /// Where in the file it starts, bytes.
    offset: AtomicU64,
    /// Bytes of the file that are mapped: beyond them everything is zero and nothing is written.
    valid: AtomicU64,
    /// Units that refer to it.
    units: AtomicU32,
    /// Writes that failed, and the last one's errno.
    errors: AtomicU32,
    last_error: AtomicI32,
    /// A flush that an I/O thread does: [`PENDING`], or the errno it ended with.
    flush: AtomicU32,
}

/// See [`Mapping::flush`].
const PENDING: u32 = u32::MAX;

// SAFETY: atomics only, and zeros are a free entry.
unsafe impl FromZeros for Mapping {}

impl Mapping {
    /// Is `fd` the file, in the caller's table of descriptors? Its length then.
    fn size_by(&self, fd: i32) -> Result<u64> {
        let (size, who) = fs::size(fd).map_err(|_| Errno::EBADF)?;
        let same = (who.dev, who.ino) == (self.dev.load(Relaxed), self.ino.load(Relaxed));
        same.then_some(size).ok_or(Errno::EBADF)
    }

    fn note_error(&self, e: Errno) {
        self.last_error.store(e.0, Relaxed);
        self.errors.fetch_add(1, Release);
    }
}

/// What an engine knows of mapped files.
pub(crate) struct Files {
    mappings: Zeroed<Mapping>,
    /// The place in a file that each unit has: its slot number; 0 is none.
    places: Zeroed<AtomicU64>,
    /// Message mode: the sum of each unit as it is in the file; 0 is unknown.
    pub(crate) sums: Zeroed<AtomicU64>,
    descriptors: Descriptors,
    /// Mappings in use, and the first number beyond those ever used.
    count: AtomicU32,
    high: AtomicU32,
    /// A mapping may have lost its last unit.
    idle: AtomicBool,
}

impl Files {
    /// A mapping that was opened is not used after all. [`Paging::close_unused_mappings`] ends it.
    pub(crate) fn abandon(&self, mapping: u32) {
        self.mappings[mapping as usize].units.store(0, Release);
        self.idle.store(true, Release);
    }

    pub fn new(units: u32) -> Result<Files> {
        Ok(Files {
            mappings: Zeroed::new(MAPPINGS as usize)?,
            places: Zeroed::new(units as usize)?,
            sums: Zeroed::new(units as usize)?,
            descriptors: Descriptors::default(),
            count: AtomicU32::new(0),
            high: AtomicU32::new(0),
            idle: AtomicBool::new(false),
        })
    }

    /// The place in a file that `unit` has, whatever has become of its content.
    pub fn of(&self, unit: u32) -> Option<FilePlace> {
        FilePlace::of_number(self.places.get(unit as usize)?.load(Acquire))
    }

    fn mapping(&self, place: FilePlace) -> Option<&Mapping> {
        self.mappings.get(place.mapping as usize)
    }

    /// The entries ever used.
    fn known(&self) -> &[Mapping] {
        let high = self.high.load(Acquire) as usize;
        self.mappings.get(..high).unwrap_or_default()
    }

    /// Is any file mapped?
    pub fn any(&self) -> bool {
        self.count.load(Relaxed) > 0
    }

    /// Is a unit one of a file that the program may read but not write?
    pub(crate) fn is_read_only_file(&self, unit: u32, w: Word) -> bool {
        self.of(unit).is_some() && w.has(MAY_READ) && !w.has(MAY_WRITE)
    }

    /// What a locked unit is that holds nothing: zeros, or what its file does.
    pub(crate) fn without_contents(&self, unit: u32, w: Word) -> Word {
        let may = Word(w.0 & (MAY_READ | MAY_WRITE));
        match self.of(unit) {
            Some(place) => may.with_kind(Kind::Swapped).with_place(Place::File(place)),
            None => may.with_kind(Kind::None),
        }
    }
}

impl Paging {
    /// A unit that nobody uses becomes one of a file.
    pub(crate) fn take_file_unit(&self, unit: u32, place: FilePlace, mode: FileMode) {
        let w = self.table.lock(unit);
        if !self.mover().watches_in_place() && self.fenced.load(Relaxed) {
            // SAFETY: gives access to an absent unit, whose touch is a fault we take.
            let _ = unsafe { mm::protect(self.table.addr(unit), UNIT, mm::PROT_RW) };
        }
        self.files.places[unit as usize].store(place.number(), Release);
        self.files.sums[unit as usize].store(0, Relaxed);
        self.note_kind(unit, PageKind::File);
        let may = match mode {
            FileMode::ReadOnly => MAY_READ,
            FileMode::WriteBack => MAY_READ | MAY_WRITE,
        };
        let word = Word(may).with_kind(Kind::Swapped);
        w.settle_as(|_| word.with_place(Place::File(place)));
    }

    /// Tells the reclaim lists which kind of memory `unit` is.
    fn note_kind(&self, unit: u32, kind: PageKind) {
        self.lru.lock().assign(unit, 0, kind);
    }

    /// A locked unit is a file's no longer.
    pub(crate) fn forget_file_unit(&self, unit: u32) {
        let Some(place) = self.files.of(unit) else {
            return;
        };
        self.files.places[unit as usize].store(0, Release);
        self.note_kind(unit, PageKind::Anon);
        if let Some(m) = self.files.mapping(place)
            && m.units.fetch_sub(1, Release) == 1
        {
            self.files.idle.store(true, Release);
        }
    }

    /// Bytes of `[addr, addr+len)` that are mapped and a file's.
    pub(crate) fn file_bytes(&self, space: &Space, addr: usize, len: usize) -> usize {
        if !self.files.any() {
            return 0;
        }
        let within = |unit: u32| {
            let (from, to) = (self.table.addr(unit), self.table.addr(unit) + UNIT);
            let (from, to) = (from.max(addr), to.min(addr + len));
            space
                .allocated_in(from, to - from)
                .map(|(_, n)| n)
                .sum::<usize>()
        };
        let units = self.table.units_of(addr, len);
        units
            .filter(|&u| self.files.of(u).is_some())
            .map(within)
            .sum()
    }
}

const _: () = assert!(UNIT as u64 == UNIT_BYTES);
