//! Groups of regions, with minimums and limits of memory and swap.

use crate::{Error, Pool};
use hugeswap_engine::groups::GroupLimits;
use hugeswap_policy::PAGE_BYTES;
use hugeswap_policy::workingset::lruvec::Event;

/// A named group of regions of one pool, with promises and limits of its own, so that memory in use by
/// one region is not reclaimed for another. Cheap to clone; [`Pool::group`] returns the same group
/// for the same name. At most 15 in a pool.
///
/// ```no_run
/// # let pool = hugeswap::Pool::builder().memory(1 << 30).build()?;
/// let index = pool.region(2 << 30)?;
/// let group = pool.group("index")?;
/// group.set_min(512 << 20)?; // of the budget, whatever else goes on
/// index.set_group(&group)?;
/// # Ok::<(), hugeswap::Error>(())
/// ```
///
/// A group counts for the process that made it; a forked child has the groups as they were at the
/// fork.
#[derive(Clone)]
pub struct Group {
    pool: Pool,
    number: usize,
}

impl Group {
    pub(crate) fn new(pool: Pool, name: &str) -> Result<Group, Error> {
        let number = pool.inner.engine.group(name)?;
        Ok(Group { pool, number })
    }

    pub(crate) fn number(&self) -> usize {
        self.number
    }

    pub(crate) fn is_of(&self, pool: &Pool) -> bool {
        std::ptr::eq(self.pool.inner.engine, pool.inner.engine)
    }

    fn change(&self, change: impl FnOnce(&mut GroupLimits)) -> Result<(), Error> {
        let engine = self.pool.inner.engine;
        let mut limits = engine.group_limits(self.number);
        change(&mut limits);
        Ok(engine.set_group_limits(self.number, limits)?)
    }

    /// Protects the first `bytes` of the group in memory: while it has no more, others are reclaimed.
    /// 0 at first.
    ///
    /// # Errors
    /// [`Error::Group`] if all groups' minimums together are more than the budget less 16 MiB, or if
    /// `bytes` is above the high limit.
    pub fn set_min(&self, bytes: u64) -> Result<(), Error> {
        self.change(|l| l.min = bytes)
    }

    /// Sets a soft limit in bytes: while the group has more in memory and memory is short, it is
    /// reclaimed before others. `None`, at first: no limit.
    ///
    /// # Errors
    /// [`Error::Group`] if it is below the minimum.
    pub fn set_high(&self, bytes: Option<u64>) -> Result<(), Error> {
        self.change(|l| l.high = bytes.unwrap_or(u64::MAX))
    }

    /// Limits the swap that the group may take, in bytes; what finds no room there stays in memory.
    /// `None`, at first: as much as there is.
    ///
    /// # Errors
    /// None today.
    pub fn set_swap_max(&self, bytes: Option<u64>) -> Result<(), Error> {
        self.change(|l| l.swap_max = bytes.unwrap_or(u64::MAX))
    }

    /// What the group has now, and its counters so far.
    pub fn stats(&self) -> GroupStats {
        let u = self.pool.inner.engine.group_use(self.number);
        let sum = |e: Event| u.events.iter().map(|k| k[e as usize]).sum();
        GroupStats {
            resident_bytes: u.resident.iter().sum::<u64>() * PAGE_BYTES,
            active_bytes: u.active.iter().sum::<u64>() * PAGE_BYTES,
            file_bytes: u.resident[1] * PAGE_BYTES,
            swap_bytes: u.swap * PAGE_BYTES,
            workingset_refault: sum(Event::Refault),
            workingset_activate: sum(Event::Activate),
            workingset_restore: sum(Event::Restore),
            pgactivate: sum(Event::PgActivate),
            pgdeactivate: sum(Event::PgDeactivate),
            pgscan: sum(Event::Scan),
        }
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group")
            .field("number", &self.number)
            .field("stats", &self.stats())
            .finish()
    }
}

/// What a group has now, in bytes, and its counters under the kernel's names, in pages of 4 KiB (a
/// huge page counts 512).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GroupStats {
    /// In memory, bytes.
    pub resident_bytes: u64,
    /// The part of it on active lists, bytes.
    pub active_bytes: u64,
    /// The part in memory that is of mapped files, bytes.
    pub file_bytes: u64,
    /// In swap, bytes. A unit that has 2 MiB there counts all of that.
    pub swap_bytes: u64,
    /// Pages that came back from swap or their file.
    pub workingset_refault: u64,
    /// Of those, the pages that became active at once.
    pub workingset_activate: u64,
    /// Of those, the pages that were active before they left.
    pub workingset_restore: u64,
    /// Pages that became active.
    pub pgactivate: u64,
    /// Pages that became inactive again.
    pub pgdeactivate: u64,
    /// Pages that reclaim looked at.
    pub pgscan: u64,
}
