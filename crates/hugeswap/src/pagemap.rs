//! What each page of a range is: page by page, in the kernel's format, or as ranges.

use crate::range::{ManagedRange, PAGE, UNIT};
use crate::{Error, PageState};
use hugeswap_policy::markers::pagemap::{Categories, Filter};
use std::collections::VecDeque;
use std::ops::Range;

/// Neighbouring pages that are alike in the categories that a [`Filter`] asks for. See
/// [`ManagedRange::scan`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRange {
    /// Offsets in the region, bytes.
    pub range: Range<usize>,
    /// The categories of its pages, of those that were to be told ([`Filter::told`]).
    pub categories: Categories,
}

/// Iterates over the pages of a range, from the first to the last. See [`ManagedRange::pagemap`].
pub struct Pagemap<'a> {
    range: &'a ManagedRange,
    /// First byte that was not looked at yet.
    next: usize,
    /// Runs of pages that were looked at: how many, and what the first of them is.
    known: VecDeque<(usize, PageState)>,
}

impl Iterator for Pagemap<'_> {
    type Item = PageState;

    fn next(&mut self) -> Option<PageState> {
        if self.known.is_empty() && self.next < self.range.len() {
            let len = UNIT.min(self.range.len() - self.next);
            let known = &mut self.known;
            self.range.states(self.next, len, |range, state| {
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

impl ManagedRange {
    /// The state of each page of 4 KiB, in order. Each unit of 2 MiB is looked at when the iterator
    /// comes to it, and is told as it is at that moment. Nothing is brought in, and nothing waits,
    /// except in message mode while writes are tracked: then for units that are being changed.
    ///
    /// ```
    /// use hugeswap::Categories;
    /// # let pool = hugeswap::Pool::builder().memory(64 << 20).build()?;
    /// # let region = pool.region(256 << 20)?;
    /// let huge = |page: &hugeswap::PageState| page.categories.has(Categories::HUGE);
    /// println!("{} pages are huge", region.pagemap().filter(huge).count());
    /// # Ok::<(), hugeswap::Error>(())
    /// ```
    pub fn pagemap(&self) -> Pagemap<'_> {
        Pagemap {
            range: self,
            next: 0,
            known: VecDeque::new(),
        }
    }

    /// Fills `entries` with the pages from number `first` on, in the format of /proc/PID/pagemap
    /// ([`PageState::entry`]). Returns how many were filled: fewer than there is room for only at the
    /// end of the range.
    ///
    /// # Errors
    /// [`Error::Segment`] for a shared region whose account another process has damaged.
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

    /// The parts of `[offset, offset+len)` whose pages a filter takes, in order, in the manner of the
    /// kernel's `PAGEMAP_SCAN`. A unit that is in one piece costs as much as one page.
    ///
    /// ```
    /// use hugeswap::{Advice, Categories, Filter};
    /// # let pool = hugeswap::Pool::builder().memory(64 << 20).build()?;
    /// # let region = pool.region(256 << 20)?;
    /// let cold = Filter {
    ///     all: Categories::PRESENT | Categories::IDLE,
    ///     ..Filter::default()
    /// };
    /// for found in region.scan(0, region.len(), &cold)? {
    ///     region.advise(found.range.start, found.range.len(), Advice::PageOut)?;
    /// }
    /// # Ok::<(), hugeswap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Range`]; [`Error::Segment`] for a shared region whose account another process has
    /// damaged.
    pub fn scan(
        &self,
        offset: usize,
        len: usize,
        filter: &Filter,
    ) -> Result<Vec<PageRange>, Error> {
        self.at(offset, len)?;
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

    /// Checks the account of a shared region, which other processes write, too.
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
        mut tell: impl FnMut(Range<usize>, PageState),
    ) {
        let base = self.as_ptr() as usize;
        let engine = self.pool.inner.engine;
        engine.look_for_writes(base + offset, len);
        engine.page_states(base + offset, len, |range, state| {
            tell(range.start - base..range.end - base, state);
        });
    }
}
