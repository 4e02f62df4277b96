//! Which memory was written since when: stamps beside the unit table.
//!
//! A clock counts *epochs*. A thread that begins one for a range counts the clock up, and takes
//! write access away from what has it there, neighbours by one call ([`epoch`]). A thread that
//! gives write access, or changes content otherwise, first stamps the unit, or its pages, with the
//! clock. So what was written since an epoch began has a stamp no older than it, in memory or not.
//! Stamps are beside the words, 20 bytes a unit. They outlive memory and swap, and are inherited by
//! a forked child, whose copy is its own. A whole unit that comes back is read-only until it is
//! written.
//!
//! A unit in one piece is stamped as a whole. One whose pages are told apart
//! ([`tracks_pages`](stamps::Track::tracks_pages)) goes over to base pages with its first write,
//! where it stands (`base::tracked`), and its pages have stamps of their own. In message mode,
//! where units arrive writable, and wherever there are no base pages, sums tell what was written
//! ([`open`]).
//!
//! Concurrency: write access is given, and stamped, under the unit's lock, and an epoch takes it
//! away under the same lock. So a fault that comes after that has seen the clock of the epoch.
//! (Explored by loom: `crates/hugeswap-policy/tests/track_loom.rs`.) Any thread may read stamps.
//!
//! [`epoch`]: Paging::begin_epoch

mod epoch;
mod held;
mod open;
pub(crate) mod stamps;

use crate::{PAGE, PAGES};
pub(crate) use held::Held;
pub use stamps::TrackError;

use crate::UNIT;
use crate::paging::Paging;
use hugeswap_policy::markers::pagemap::{Categories, State};
use hugeswap_policy::unit::Kind;
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

impl Paging {
    /// What `[addr, addr+len)` holds is given up. Called before and after that is done: a thread
    /// that sees the change, or that begins an epoch before it is made, finds a stamp.
    pub(crate) fn note_range_written(&self, addr: usize, len: usize) {
        if self.track.tables.get().is_none() {
            return;
        }
        for unit in self.table.units_of(addr, len) {
            self.track
                .note_pages_written(unit, self.table.pages_in(unit, addr, len));
        }
    }

    /// Calls `tell` with the ranges of `[addr, addr+len)` that may have been written since `epoch`
    /// began, in order; neighbours are one range. For threads of the program, which hold nothing.
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

    /// Calls `tell` for pages of a unit that are all in `state`, and says also which were written
    /// since the last epoch.
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
