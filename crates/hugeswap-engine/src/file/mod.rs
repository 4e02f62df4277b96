//! Mapped files: regions whose units come from a file and, if they are writable, go back to it
//! instead of to swap.
//!
//! A unit of a mapping begins in state `Swapped`, with its *file place*
//! (`hugeswap_policy::unit::FilePlace`) in the place of a cluster, and keeps it until it is
//! unmapped. Faults, readahead, base pages and reclaim treat it like any other unit; the code that
//! reads or writes the bytes behind a unit comes here for such a place. A clean unit is dropped
//! without a write; a dirty one is written to the file at its own offset. Such a unit is never zero
//! by itself, is never scattered or moved together, and takes no part of what is promised in swap.
//!
//! No page sums are kept, because others may change the file. In message mode, where a unit arrives
//! writable, one sum of the unit as it came tells whether it was changed. A unit that may not be
//! written is write-protected there after it has arrived; a write then makes its mapping read-only
//! (SIGSEGV).
//!
//! * [`descriptors`]: the file as the program's threads and the engine's own reach it
//! * [`io`]: units and pages read and written, as far as the mapping and the file reach
//! * [`sync`]: what is written or dropped on request, and at a fork
//!
//! Concurrency: an entry of the table of mappings is filled in before a unit refers to it, does not
//! change while one does, and is given up, under the lock of descriptors, after the last one has
//! been unmapped. A thread that holds the lock of a unit with a file place, or has the unit under
//! write-back, may use the entry. The place of a unit changes under its lock.

mod descriptors;
mod io;
mod sync;
pub(crate) mod table;

use crate::UNIT;
use crate::paging::Paging;
use crate::space::Space;
use hugeswap_policy::UNIT_BYTES;
use hugeswap_policy::unit::FilePlace;
use hugeswap_policy::unit::step::Event;
use hugeswap_policy::workingset::vmscan::PageKind;
use hugeswap_sys::mm;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// How writes to a mapping of a file are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileMode {
    /// Its bytes may be read; a write is the program's error.
    ReadOnly,
    /// Changes are written to the file.
    WriteBack,
}

/// Why a file cannot be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MapFileError {
    /// The descriptor is not a regular file's.
    #[error("only regular files can be mapped")]
    NotRegular,
    /// The range is empty, does not begin at a page, or reaches beyond the file's last page.
    #[error("the range is not within the file, or does not begin at a page of 4096 bytes")]
    Outside,
    /// As many files are mapped as the engine has room for.
    #[error("too many files are mapped: drop some of their regions")]
    TooMany,
    /// No run of addresses of the pool's is long enough.
    #[error("no addresses are left: give the pool a larger address space")]
    NoAddresses,
    /// A system call failed.
    #[error("{0}")]
    System(#[from] hugeswap_sys::Errno),
}

impl Paging {
    /// Makes a unit that is not in use one of a file.
    pub(crate) fn take_file_unit(&self, unit: u32, place: FilePlace, mode: FileMode) {
        let w = self.table.lock(unit);
        if self.backend.can().absent_has_access && self.fenced.load(Relaxed) {
            let at = self.table.addr(unit);
            let _ = self.backend.set_absent_access(at, mm::PROT_RW);
        }
        self.files.places[unit as usize].store(place.number(), Release);
        self.files.sums[unit as usize].store(0, Relaxed);
        self.note_kind(unit, PageKind::File);
        let may_write = mode == FileMode::WriteBack;
        self.settle_by(w, Event::MappedFile { place, may_write });
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
