//! The mapped files of a process: which file each mapping is of, and which unit shows which part.

use crate::lock::Lock;
use crate::zeroed::{FromZeros, Zeroed};
use hugeswap_policy::unit::{FilePlace, MAPPINGS, MAY_READ, MAY_WRITE, Word};
use hugeswap_sys::{Errno, Result, fs};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64};

pub(super) const PAGE: u64 = 4096;

/// States of an entry.
pub(super) mod state {
    /// Not in use.
    pub const FREE: u32 = 0;
    /// Being filled in, or in use.
    pub const USED: u32 = 1;
}

/// See [`Mapping::flush`].
pub(super) const PENDING: u32 = u32::MAX;

/// The mapped files' descriptors, and what is asked of kswapd about them.
#[derive(Default)]
pub(super) struct Descriptors {
    pub(super) changing: Lock<()>,
    /// The engine's threads have a table of their own.
    pub(super) private: AtomicBool,
    /// A request to kswapd. `what` is set last, and kswapd reads the rest once it is.
    pub(super) what: AtomicU32,
    pub(super) fd: AtomicI32,
    pub(super) tid: AtomicI32,
    pub(super) flags: AtomicI32,
    pub(super) answer: AtomicI32,
}

impl Default for Lock<()> {
    fn default() -> Self {
        Lock::new(())
    }
}

/// One mapping. Zeros are an entry that is free.
#[derive(Default)]
pub(super) struct Mapping {
    pub(super) state: AtomicU32,
    /// 1: changed units are written to the file.
    pub(super) writes: AtomicU32,
    /// 1: `fd` is open for direct I/O.
    pub(super) direct: AtomicU32,
    /// Descriptor, the same number for the program's threads and the engine's.
    pub(super) fd: AtomicI32,
    /// Another without direct I/O, for the part of a page at the end of the file; -1 is none.
    pub(super) tail_fd: AtomicI32,
    /// Identity of the file.
    pub(super) dev: AtomicU64,
    pub(super) ino: AtomicU64,
    /// Offset in the file at which it starts, bytes.
    pub(super) offset: AtomicU64,
    /// Bytes of the file that are mapped: beyond them everything is zero and nothing is written.
    pub(super) valid: AtomicU64,
    /// Units that refer to it.
    pub(super) units: AtomicU32,
    /// Writes that failed, and the last one's errno.
    pub(super) errors: AtomicU32,
    pub(super) last_error: AtomicI32,
    /// A flush that an I/O thread does: [`PENDING`], or the errno it ended with.
    pub(super) flush: AtomicU32,
}

// SAFETY: atomics only, and zeros are a free entry.
unsafe impl FromZeros for Mapping {}

impl Mapping {
    /// Is `fd` the file, in the caller's table of descriptors? Its length then.
    pub(super) fn size_by(&self, fd: i32) -> Result<u64> {
        let (size, who) = fs::size(fd).map_err(|_| Errno::EBADF)?;
        let same = (who.dev, who.ino) == (self.dev.load(Relaxed), self.ino.load(Relaxed));
        same.then_some(size).ok_or(Errno::EBADF)
    }

    pub(super) fn note_error(&self, e: Errno) {
        self.last_error.store(e.0, Relaxed);
        self.errors.fetch_add(1, Release);
    }
}

/// The mapped files of an engine.
pub(crate) struct Files {
    pub(super) mappings: Zeroed<Mapping>,
    /// The place in a file that each unit has, as a number; 0 is none.
    pub(super) places: Zeroed<AtomicU64>,
    /// Message mode: the sum of each unit as it is in the file; 0 is unknown.
    pub(crate) sums: Zeroed<AtomicU64>,
    pub(super) descriptors: Descriptors,
    /// Mappings in use, and the first number beyond those ever used.
    pub(super) count: AtomicU32,
    pub(super) high: AtomicU32,
    /// A mapping may have lost its last unit.
    pub(super) idle: AtomicBool,
}

impl Files {
    /// A mapping that was opened is not used after all.
    /// [`close_unused_mappings`](crate::paging::Paging::close_unused_mappings) ends it.
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

    pub(super) fn mapping(&self, place: FilePlace) -> Option<&Mapping> {
        self.mappings.get(place.mapping as usize)
    }

    /// The entries ever used.
    pub(super) fn known(&self) -> &[Mapping] {
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
}
