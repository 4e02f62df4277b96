//! Which memory of a range was written since when. docs/snapshots.md tells what is promised.

use crate::Error;
use crate::range::ManagedRange;
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Release};

/// How precisely writes are told ([`ManagedRange::track_writes`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granularity {
    /// By units of 2 MiB: memory stays in huge pages, and the first write to each unit costs a fault.
    Units,
    /// By pages of 4 KiB (64 KiB where userfaultfd is refused): a unit goes over to base pages with
    /// its first write, and the first write to each page costs a fault. In message mode the unit
    /// stays huge, and checksums of its pages tell. A unit that is pinned to be written, or for which
    /// there are no base pages, is told as a whole.
    Pages,
}

/// A moment from which on writes to a range are told. See [`ManagedRange::track_writes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    number: u32,
    /// The first since the region is tracked.
    first: u32,
    region: usize,
}

impl ManagedRange {
    /// Begins an epoch: [`ManagedRange::changed_since`] tells what was written from now on. The first
    /// epoch begins tracking. Each takes write access from everything that was written since the one
    /// before, so that the next write is noticed; that is its cost. Writes of other threads during
    /// the call belong to this epoch or to the one before. A forked child has the epochs of its
    /// parent, and tracks its own writes.
    ///
    /// ```
    /// use hugeswap::Granularity;
    /// # let pool = hugeswap::Pool::builder().memory(64 << 20).build()?;
    /// # let mut region = pool.region(256 << 20)?;
    /// let epoch = region.track_writes(Granularity::Pages)?;
    /// region.as_mut_slice()[5000] = 1;
    /// assert_eq!(region.changed_since(&epoch)?, [4096..8192]);
    /// # Ok::<(), hugeswap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Track`] with the cause, for instance for a mapped file.
    pub fn track_writes(&self, by: Granularity) -> Result<Epoch, Error> {
        let at = self.as_ptr() as usize;
        let engine = self.pool.inner.engine;
        let pages = by == Granularity::Pages;
        let (number, first) = engine.begin_epoch(at, self.len(), pages, |number| {
            let first = self.tracked().map_or(number, |(first, _)| first);
            let tracked = u64::from(first) << 1 | u64::from(pages);
            self.tracked.store(tracked, Release);
            (number, first)
        })?;
        Ok(Epoch {
            number,
            first,
            region: at,
        })
    }

    /// The parts of the range that were written since `epoch` began, as offsets in bytes, in order,
    /// neighbours as one. Every write that came before this call is among them, and nothing else but
    /// what docs/snapshots.md lists. Giving up content counts as writing; swapping does not. In
    /// message mode it reads the memory that may have been written.
    ///
    /// # Errors
    /// [`Error::Epoch`].
    pub fn changed_since(&self, epoch: &Epoch) -> Result<Vec<Range<usize>>, Error> {
        self.knows(epoch)?;
        let at = self.as_ptr() as usize;
        let mut found = Vec::new();
        let engine = self.pool.inner.engine;
        engine.written_since(at, self.len(), epoch.number, |range| {
            found.push(range.start - at..(range.end - at).min(self.len()));
        });
        // Tracking may have been stopped meanwhile.
        self.knows(epoch)?;
        Ok(found)
    }

    /// Checks that the epoch is one of this range's, and that tracking was not stopped since.
    pub(crate) fn knows(&self, epoch: &Epoch) -> Result<(), Error> {
        let known = self
            .tracked()
            .is_some_and(|(first, _)| first == epoch.first);
        match known && epoch.region == self.as_ptr() as usize {
            true => Ok(()),
            false => Err(Error::Epoch),
        }
    }

    /// Ends tracking: writes cost no fault any more, and epochs that began before are refused.
    pub fn stop_tracking(&self) {
        let engine = self.pool.inner.engine;
        let at = self.as_ptr() as usize;
        engine.end_tracking(at, self.len(), || self.tracked.store(0, Release));
    }

    /// True while writes are tracked.
    pub fn is_tracked(&self) -> bool {
        self.tracked().is_some()
    }

    /// The first epoch since tracking began, and the granularity of the last.
    pub(crate) fn tracked(&self) -> Option<(u32, Granularity)> {
        let tracked = self.tracked.load(Acquire);
        let by = match tracked & 1 {
            0 => Granularity::Units,
            _ => Granularity::Pages,
        };
        (tracked != 0).then_some(((tracked >> 1) as u32, by))
    }
}
