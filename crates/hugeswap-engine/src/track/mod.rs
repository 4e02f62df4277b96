//! Which memory was written since when: stamps beside the unit table.
//!
//! A clock counts *epochs*. Who begins one for a range counts the clock up, and takes write access away from what has it there
//! ([`epoch`]); whoever gives write access, or changes content otherwise, stamps the unit, or its pages, with the clock first. So what
//! was written since an epoch began has a stamp no older than it, in memory or not: stamps are beside the words, outlive memory
//! and swap, and are inherited by a forked child, whose copy is its own.
//!
//! A unit in one piece is stamped as a whole; one whose pages are told apart ([`Track::tracks_pages`]) goes over to base pages with its first write. In message
//! mode, where there are no base pages and memory comes in writable, sums tell what was written ([`open`]).
//!
//! Concurrency: write access is given, and stamped, under the unit's lock, and an epoch takes it away under the same lock; so a fault
//! that comes after that has seen the clock of the epoch. (Explored by loom: `crates/hugeswap-policy/tests/track_loom.rs`.) Anyone may read
//! stamps.
//!
//! [`epoch`]: Paging::begin_epoch

mod epoch;
mod open;

use crate::{PAGE, PAGES};
pub(crate) use open::Held;

use crate::UNIT;
use crate::lock::Lock;
use crate::paging::Paging;
use crate::zeroed::{FromZeros, Zeroed};
use hugeswap_policy::markers::pagemap::{Categories, State};
use hugeswap_policy::unit::Kind;
use hugeswap_sys::{Errno, Result};
use open::HeldSums;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Why writes cannot be tracked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrackError {
    /// Others may change it.
    #[error("writes to a mapped file are not tracked: others may write to it")]
    File,
    /// It is not there any more.
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
struct Stamps {
    /// When write access was last taken away; 0: not tracked.
    since: AtomicU32,
    /// When all of it was last written, as far as is known.
    whole: AtomicU32,
    /// When any of its pages was.
    some: AtomicU32,
    /// Pages are told apart.
    fine: AtomicU32,
    /// Not 0: it can be written without a stamp ([`open`]).
    open: AtomicU32,
}

/// When each page was last written.
struct PageStamps([AtomicU32; PAGES]);

// SAFETY: atomics only; zeros are valid.
unsafe impl FromZeros for Stamps {}
// SAFETY: atomics only; zeros are valid.
unsafe impl FromZeros for PageStamps {}

struct Tables {
    units: Zeroed<Stamps>,
    pages: Zeroed<PageStamps>,
    /// Of message mode; empty in signal mode.
    held: Zeroed<HeldSums>,
}

/// See the file's head.
pub(crate) struct Track {
    clock: AtomicU32,
    /// Held while an epoch begins or tracking ends; inside the gate, so that a fork finds it free, and outside all units' locks.
    turn: Lock<()>,
    tables: OnceLock<Tables>,
    /// The sum of a page of zeros, once it is known.
    zero_sum: AtomicU64,
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

    /// The tables, made by the first who asks; with sums if there are to be any.
    fn open(&self, units: u32, sums: bool) -> Result<&Tables> {
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
    fn next_epoch(&self) -> Option<u32> {
        let next = |now: u32| now.checked_add(1).filter(|&n| n < u32::MAX);
        let before = self.clock.fetch_update(Relaxed, Relaxed, next).ok()?;
        Some(before + 1)
    }

    fn of(&self, unit: u32) -> Option<&Stamps> {
        let stamps = self.tables.get()?.units.get(unit as usize)?;
        (stamps.since.load(Relaxed) != 0).then_some(stamps)
    }

    fn pages_of(&self, unit: u32) -> Option<&PageStamps> {
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

    /// All of a locked unit is about to be writable, or to change. The rules of the fault path hold.
    pub(crate) fn note_written(&self, unit: u32) {
        if let Some(stamps) = self.of(unit) {
            // Who changes content without the lock may be late.
            stamps.whole.fetch_max(self.clock.load(Relaxed), Release);
        }
    }

    /// The same of some of its pages.
    pub(crate) fn note_pages_written(&self, unit: u32, pages: Range<usize>) {
        self.stamp_pages(unit, pages, self.clock.load(Relaxed));
    }

    fn stamp_pages(&self, unit: u32, pages: Range<usize>, now: u32) {
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
        // After the pages': who sees it sees them.
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

impl Paging {
    /// What `[addr, addr+len)` holds is given up. Called before and after that is done: whoever sees the change, and whoever begins an epoch before it is made,
    /// finds a stamp.
    pub(crate) fn note_range_written(&self, addr: usize, len: usize) {
        if self.track.tables.get().is_none() {
            return;
        }
        for unit in self.table.units_of(addr, len) {
            self.track
                .note_pages_written(unit, self.table.pages_in(unit, addr, len));
        }
    }

    /// Calls `tell` with the ranges of `[addr, addr+len)` that may have been written since `epoch` began, in order; neighbours are one range. For threads of the program,
    /// which hold nothing.
    pub fn written_since(
        &self,
        addr: usize,
        len: usize,
        epoch: u32,
        mut tell: impl FnMut(Range<usize>),
    ) {
        let mut open: Option<Range<usize>> = None;
        let mut add = |run: Range<usize>| match &mut open {
            Some(last) if last.end == run.start => last.end = run.end,
            _ => {
                if let Some(last) = open.replace(run) {
                    tell(last);
                }
            }
        };
        if self.sharing.is_shared(addr) {
            self.sharing.written_since(addr, len, epoch, &mut add);
        }
        self.look_for_writes(addr, len);
        for unit in self.table.units_of(addr, len) {
            let at = self.table.addr(unit);
            let pages = self.table.pages_in(unit, addr, len);
            self.written_pages(unit, pages, epoch, |run| {
                add(at + run.start * PAGE..at + run.end * PAGE);
            });
        }
        if let Some(last) = open {
            tell(last);
        }
    }

    fn written_pages(
        &self,
        unit: u32,
        pages: Range<usize>,
        epoch: u32,
        mut tell: impl FnMut(Range<usize>),
    ) {
        let Some(stamps) = self.track.of(unit) else {
            return;
        };
        // (Of what is the kernel's nothing is known.)
        if stamps.whole.load(Acquire) >= epoch || self.table.load(unit).kind() == Kind::Foreign {
            return tell(pages);
        }
        if stamps.some.load(Acquire) < epoch {
            return;
        }
        let Some(of) = self.track.pages_of(unit) else {
            return;
        };
        let written = |p: usize| of.0.get(p).is_some_and(|s| s.load(Acquire) >= epoch);
        let mut page = pages.start;
        while page < pages.end {
            let this = written(page);
            let end = (page + 1..pages.end).find(|&p| written(p) != this);
            let end = end.unwrap_or(pages.end);
            if this {
                tell(page..end);
            }
            page = end;
        }
    }

    /// Of pages of a unit that are all in `state`, `tell`s also which were written since the last epoch.
    pub(crate) fn with_writes(
        &self,
        unit: u32,
        pages: Range<usize>,
        state: State,
        mut tell: impl FnMut(Range<usize>, State),
    ) {
        let Some(stamps) = self.track.of(unit) else {
            return tell(pages, state);
        };
        let as_of = |run: Range<usize>, more| {
            let state = state.nth((run.start - pages.start) as u64);
            let categories = state.categories | Categories::TRACKED | more;
            (
                run,
                State {
                    categories,
                    ..state
                },
            )
        };
        let mut next = pages.start;
        let mut told = |run: Range<usize>, more| {
            let (run, state) = as_of(run, more);
            if !run.is_empty() {
                tell(run, state);
            }
        };
        self.written_pages(unit, pages.clone(), stamps.since.load(Relaxed), |run| {
            told(next..run.start, Categories::NONE);
            next = run.end;
            told(run, Categories::WRITTEN);
        });
        told(next..pages.end, Categories::NONE);
    }
}

const _: () = assert!(PAGES * PAGE == UNIT);
