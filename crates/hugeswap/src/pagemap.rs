//! What each page of a region is: page by page, in the kernel's format, or as ranges.

use crate::{Error, Region};
use hugeswap_policy::markers::pagemap::{Categories, Filter, State};
use std::collections::VecDeque;
use std::ops::Range;

const PAGE: usize = 4096;
const UNIT: usize = 2 << 20;

/// Neighbouring pages that are the same, as far as was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRange {
    /// Where in the region, bytes.
    pub range: Range<usize>,
    /// What its pages are, of what was to be told ([`Filter::told`]).
    pub categories: Categories,
}

/// The pages of a region, from the first to the last. See [`Region::pagemap`].
pub struct Pagemap<'a> {
    region: &'a Region,
    /// First byte that was not looked at yet.
    next: usize,
    /// Pages that were: how many, and what the first of them is.
    known: VecDeque<(usize, State)>,
}

impl Iterator for Pagemap<'_> {
    type Item = State;

    fn next(&mut self) -> Option<State> {
        if self.known.is_empty() && self.next < self.region.len() {
            let len = UNIT.min(self.region.len() - self.next);
            let known = &mut self.known;
            self.region.states(self.next, len, |range, state| {
                known.push_back((range.len() / PAGE, state));
            });
            self.next += len;
        }
        let (pages, state) = self.known.front_mut()?;
        let first = *state;
        *state = first.nth(1);
        *pages -= 1;
        if *pages == 0 {
            self.known.pop_front();
        }
        Some(first)
    }
}

impl Region {
    /// What each page of 4 KiB is, in order. Nothing is brought in, nobody waits (but in message mode, where writes are tracked, for units that are just being changed): each unit of 2 MiB is looked at when the iterator comes to it, and is told as it
    /// is at that moment.
    pub fn pagemap(&self) -> Pagemap<'_> {
        Pagemap {
            region: self,
            next: 0,
            known: VecDeque::new(),
        }
    }

    /// Entries in the format of /proc/PID/pagemap, as [`State::entry`] gives them, for the pages from number `first` on. How many: fewer than there is room for at the end of the region.
    pub fn pagemap_entries(&self, first: usize, entries: &mut [u64]) -> Result<usize, Error> {
        let pages = self.len().div_ceil(PAGE);
        let n = entries.len().min(pages.saturating_sub(first));
        let from = first.saturating_mul(PAGE).min(self.len());
        let len = (n * PAGE).min(self.len() - from);
        self.check_segment(from, len)?;
        let mut rest = &mut entries[..n];
        self.states(from, len, |range, state| {
            let (these, others) = std::mem::take(&mut rest).split_at_mut(range.len() / PAGE);
            rest = others;
            let first = state.entry();
            // Neighbours in swap differ by one in the offset, whose lowest bit is the sixth; all others are equal.
            let step = state.nth(1).entry() - first;
            for (k, entry) in these.iter_mut().enumerate() {
                *entry = first + k as u64 * step;
            }
        });
        Ok(n)
    }

    /// The ranges of `[offset, offset+len)` whose pages a filter takes, in order, in the manner of the kernel's PAGEMAP_SCAN: pages that are whole in one piece cost as
    /// much as one.
    pub fn scan(
        &self,
        offset: usize,
        len: usize,
        filter: &Filter,
    ) -> Result<Vec<PageRange>, Error> {
        self.range(offset, len)?;
        self.check_segment(offset, len)?;
        let mut found: Vec<PageRange> = Vec::new();
        self.states(offset, len, |range, state| {
            if !filter.takes(state.categories) {
                return;
            }
            let categories = state.categories & filter.told;
            match found.last_mut() {
                Some(last) if last.range.end == range.start && last.categories == categories => {
                    last.range.end = range.end;
                }
                _ => found.push(PageRange { range, categories }),
            }
        });
        Ok(found)
    }

    /// Of a shared region others have written what is told.
    fn check_segment(&self, offset: usize, len: usize) -> Result<(), Error> {
        if self.is_shared() && len > 0 {
            let engine = self.pool.inner.engine;
            engine.check_shared(self.as_ptr() as usize + offset, len)?;
        }
        Ok(())
    }

    /// Runs of pages, as offsets in the region.
    pub(crate) fn states(
        &self,
        offset: usize,
        len: usize,
        mut tell: impl FnMut(Range<usize>, State),
    ) {
        let base = self.as_ptr() as usize;
        let engine = self.pool.inner.engine;
        engine.look_for_writes(base + offset, len);
        engine.page_states(base + offset, len, |range, state| {
            tell(range.start - base..range.end - base, state);
        });
    }
}
