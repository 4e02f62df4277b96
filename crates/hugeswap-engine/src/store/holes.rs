//! Pages of a unit here and there, read to their places in a huge page by few reads: what lies between
//! two of them is read along where that is cheaper than another read, and means nothing. Only what is
//! wanted is verified.
//!
//! Made for units that become whole of which many pages are in memory already: read one by one, a
//! hundred holes take as long as five such units. What could not be read so is left to the caller;
//! see [`super::apart`] for when that is. The rules of the fault path hold.

use super::batch::Run;
use super::{PAGE, Store};
use crate::bits::Bits;
use hugeswap_policy::unit::Place;
use hugeswap_sys::aio::MOST;
use std::ops::Range;

/// Pages between two that are wanted that are read along: on a disk of 300 MB/s by pages and 1.4 GB/s
/// by units a read takes as long as five more pages of another, and its submission as long as three.
const GAP: usize = 8;

/// Pages of a unit that count of runs that are read.
pub(crate) struct Wanted<'a> {
    pub pages: &'a Bits,
    /// Where the unit's first page is read to.
    pub to: usize,
}

impl Wanted<'_> {
    fn first(&self, run: &Run) -> usize {
        (run.memory - self.to) / PAGE
    }

    /// The wanted pages of a run.
    pub(super) fn count(&self, run: &Run) -> u64 {
        let mut n = 0;
        self.all_parts(run, |part| {
            n += part.len() as u64;
            true
        });
        n
    }

    /// Is something true of all stretches of wanted pages of a run? They are told by their places in it.
    pub(super) fn all_parts(&self, run: &Run, mut is: impl FnMut(Range<usize>) -> bool) -> bool {
        let first = self.first(run);
        let (mut next, end) = (first, first + run.pages.len());
        while let Some(part) = self.pages.run(next, end, true) {
            if !is(part.start - first..part.end - first) {
                return false;
            }
            next = part.end;
        }
        true
    }
}

impl Store {
    /// Reads pages of a locked unit that are in swap to their places in memory for all of the unit,
    /// which is the caller's. `had` gets those that were read and are what was written; what the
    /// memory holds besides is no matter.
    pub(crate) fn read_holes(&self, unit: u32, place: Place, wanted: &Wanted<'_>, had: &Bits) {
        let places = self.scatter.of(unit).filter(|_| place == Place::Singles);
        let mut runs = [const { Run::NONE }; MOST];
        let (mut n, mut page) = (0usize, 0);
        while let Some(hole) = wanted.pages.run(page, crate::PAGES, true) {
            page = hole.start;
            while page < hole.end {
                let part = match place {
                    Place::Cluster(cluster) => Some((cluster, page..hole.end)),
                    _ => places.and_then(|p| p.run(page..hole.end)),
                };
                let Some((cluster, slots)) = part else {
                    page += 1;
                    continue;
                };
                let memory = wanted.to + page * PAGE;
                page += slots.len();
                if let Some(last) = n.checked_sub(1).and_then(|i| runs.get_mut(i))
                    && last.cluster == cluster
                    && slots.start >= last.pages.end
                    && slots.start - last.pages.end <= GAP
                    && memory - last.memory == (slots.start - last.pages.start) * PAGE
                {
                    last.pages.end = slots.end;
                    continue;
                }
                if n == MOST {
                    self.read_some_holes(&runs, wanted, had);
                    n = 0;
                }
                runs[n] = Run {
                    cluster,
                    pages: slots,
                    memory,
                };
                n += 1;
            }
        }
        self.read_some_holes(&runs[..n], wanted, had);
    }

    fn read_some_holes(&self, runs: &[Run], wanted: &Wanted<'_>, had: &Bits) {
        let done = self.read_together(runs, Some(wanted));
        for (_, run) in runs.iter().enumerate().filter(|(k, _)| done >> k & 1 == 1) {
            let first = wanted.first(run);
            wanted.all_parts(run, |part| {
                had.put(first + part.start..first + part.end, true);
                true
            });
        }
    }
}
