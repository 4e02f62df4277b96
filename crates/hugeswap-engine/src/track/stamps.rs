//! When each unit, and each page where pages are told apart, was last written.
//!
//! Concurrency: see [`crate::track`].

use crate::PAGES;
use hugeswap_sys::Errno;

use super::held::HeldSums;
use crate::lock::Lock;
use crate::zeroed::{FromZeros, Zeroed};
use hugeswap_sys::Result;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Why writes cannot be tracked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrackError {
    /// Others may change it.
    #[error("writes to a mapped file are not tracked: others may write to it")]
    File,
    /// It is gone.
    #[error("the shared region is not mapped")]
    Shared,
    /// Write access could not be taken away everywhere.
    #[error("a process that has the shared region cannot be reached: {0}")]
    Unreachable(Errno),
    /// They are switched off.
    #[error("writes are not tracked with markers=off")]
    Off,
    /// The clock has run out.
    #[error("4294967294 epochs have begun in this process, and there are no more")]
    Epochs,
    /// No memory for the stamps.
    #[error("cannot map the table of stamps: {0}")]
    Table(Errno),
}

/// What is known of a unit. Zeros: not tracked.
pub(crate) struct Stamps {
    /// When write access was last taken away; 0: not tracked.
    pub(crate) since: AtomicU32,
    /// When all of it was last written, as far as is known.
    pub(crate) whole: AtomicU32,
    /// When any of its pages was.
    pub(crate) some: AtomicU32,
    /// Pages are told apart.
    pub(crate) fine: AtomicU32,
    /// Not 0: it can be written without a stamp ([`open`](super::open)).
    pub(crate) open: AtomicU32,
}

/// When each page was last written.
pub(crate) struct PageStamps(pub(crate) [AtomicU32; PAGES]);

// SAFETY: atomics only; zeros are valid.
unsafe impl FromZeros for Stamps {}

// SAFETY: atomics only; zeros are valid.
unsafe impl FromZeros for PageStamps {}

pub(crate) struct Tables {
    pub(crate) units: Zeroed<Stamps>,
    pub(crate) pages: Zeroed<PageStamps>,
    /// For message mode; empty in signal mode.
    pub(crate) held: Zeroed<HeldSums>,
}

/// The clock of epochs, and the stamps of all units and pages.
pub(crate) struct Track {
    pub(crate) clock: AtomicU32,
    /// Held while an epoch begins or tracking ends; inside the gate, so that a fork finds it free,
    /// and outside all units' locks.
    pub(crate) turn: Lock<()>,
    pub(crate) tables: OnceLock<Tables>,
    /// The sum of a page of zeros, once it is known.
    pub(crate) zero_sum: AtomicU64,
}

impl Track {
    /// Nothing is tracked.
    pub fn new() -> Track {
        Track {
            clock: AtomicU32::new(0),
            turn: Lock::new(()),
            tables: OnceLock::new(),
            zero_sum: AtomicU64::new(0),
        }
    }

    /// The tables, made by the first caller; with sums if there are to be any.
    pub(crate) fn open(&self, units: u32, sums: bool) -> Result<&Tables> {
        if let Some(tables) = self.tables.get() {
            return Ok(tables);
        }
        let tables = Tables {
            units: Zeroed::new(units as usize)?,
            pages: Zeroed::new(units as usize)?,
            held: Zeroed::new(if sums { units as usize } else { 0 })?,
        };
        // If another thread was faster, its are taken.
        Ok(self.tables.get_or_init(|| tables))
    }

    /// The next epoch; `None`: there are no more.
    pub(crate) fn next_epoch(&self) -> Option<u32> {
        let next = |now: u32| now.checked_add(1).filter(|&n| n < u32::MAX);
        let before = self.clock.fetch_update(Relaxed, Relaxed, next).ok()?;
        Some(before + 1)
    }

    pub(crate) fn of(&self, unit: u32) -> Option<&Stamps> {
        let stamps = self.tables.get()?.units.get(unit as usize)?;
        (stamps.since.load(Relaxed) != 0).then_some(stamps)
    }

    pub(crate) fn pages_of(&self, unit: u32) -> Option<&PageStamps> {
        self.tables.get()?.pages.get(unit as usize)
    }

    /// Are writes to `unit` told? With its lock the answer stays true.
    pub(crate) fn is_tracked(&self, unit: u32) -> bool {
        self.of(unit).is_some()
    }

    /// Are its pages told apart?
    pub(crate) fn tracks_pages(&self, unit: u32) -> bool {
        let stamps = self.of(unit);
        stamps.is_some_and(|s| s.fine.load(Relaxed) != 0)
    }

    /// All of a locked unit is about to be writable, or to change. The rules of the fault path
    /// hold.
    pub(crate) fn note_written(&self, unit: u32) {
        if let Some(stamps) = self.of(unit) {
            // A thread that changes content without the lock may be late.
            stamps.whole.fetch_max(self.clock.load(Relaxed), Release);
        }
    }

    /// The same of some of its pages.
    pub(crate) fn note_pages_written(&self, unit: u32, pages: Range<usize>) {
        self.stamp_pages(unit, pages, self.clock.load(Relaxed));
    }

    pub(crate) fn stamp_pages(&self, unit: u32, pages: Range<usize>, now: u32) {
        let Some(stamps) = self.of(unit).filter(|_| !pages.is_empty()) else {
            return;
        };
        if stamps.fine.load(Relaxed) == 0 || pages.len() == PAGES {
            stamps.whole.fetch_max(now, Release);
            return;
        }
        if let Some(of) = self.pages_of(unit) {
            for stamp in of.0.get(pages).into_iter().flatten() {
                stamp.fetch_max(now, Release);
            }
        }
        // After the pages': a thread that sees it sees them.
        stamps.some.fetch_max(now, Release);
    }

    /// Has `unit` no tracker any more: it is unmapped.
    pub(crate) fn forget_writes(&self, unit: u32) {
        if let Some(stamps) = self.of(unit) {
            stamps.since.store(0, Relaxed);
            stamps.fine.store(0, Relaxed);
            stamps.open.store(0, Relaxed);
            stamps.whole.store(0, Relaxed);
            stamps.some.store(0, Relaxed);
        }
    }
}
