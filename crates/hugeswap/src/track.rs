//! Which memory of a region was written since when. docs/snapshots.md tells what is promised.

use crate::{Error, Region};
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Release};

/// How closely writes are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granularity {
    /// By units of 2 MiB: memory stays in huge pages, and the first write to each costs a fault.
    Units,
    /// By pages of 4 KiB (where userfaultfd is refused: 64 KiB): a unit goes over to base pages with its first write, and each page costs a fault (in message mode it stays huge, and sums
    /// of its pages tell). A unit that is
    /// pinned to be written, or for which there are no base pages, is told as a whole.
    Pages,
}

/// A moment from which on writes to a region are told: [`Region::track_writes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    number: u32,
    /// The first since the region is tracked.
    first: u32,
    region: usize,
}

impl Region {
    /// Begins an epoch: from now on [`Region::changed_since`] tells what was written since. The first begins tracking, and each takes write access from all that
    /// has been written since the last, so that the next write is noticed. Writes of other threads during the call belong to this epoch or to the one before.
    ///
    /// Not for mapped files. A forked child has the epochs of its parent, and tracks its own writes.
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

    /// The ranges of the region that were written since `epoch` began, in order, neighbours as one: every write that has come before this call, and no others but those that
    /// docs/snapshots.md lists. In message mode it reads what may have been written. Discarding ([`crate::Advice::DontNeed`]) counts as writing; swapping does not.
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

    /// Is it an epoch of this region's, since it is tracked?
    pub(crate) fn knows(&self, epoch: &Epoch) -> Result<(), Error> {
        let known = self
            .tracked()
            .is_some_and(|(first, _)| first == epoch.first);
        match known && epoch.region == self.as_ptr() as usize {
            true => Ok(()),
            false => Err(Error::Epoch),
        }
    }

    /// Ends tracking: epochs begun before are worth nothing any more, and writes cost no fault.
    pub fn stop_tracking(&self) {
        let engine = self.pool.inner.engine;
        let at = self.as_ptr() as usize;
        engine.end_tracking(at, self.len(), || self.tracked.store(0, Release));
    }

    /// Are writes tracked?
    pub fn is_tracked(&self) -> bool {
        self.tracked().is_some()
    }

    /// The first epoch since writes are tracked, and how closely the last tells them.
    pub(crate) fn tracked(&self) -> Option<(u32, Granularity)> {
        let tracked = self.tracked.load(Acquire);
        let by = match tracked & 1 {
            0 => Granularity::Units,
            _ => Granularity::Pages,
        };
        (tracked != 0).then_some(((tracked >> 1) as u32, by))
    }
}
