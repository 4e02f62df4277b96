//! Groups of regions: what each may count on, and what it has.

use crate::{Error, Pool};
use hugeswap_engine::groups::GroupLimits;
use hugeswap_policy::PAGE_BYTES;
use hugeswap_policy::workingset::lruvec::Event;

/// A named group of regions of one pool, with promises and limits of its own: what is hot in one region is not reclaimed for
/// another. Cheap to clone, and the same for everybody who asks the pool for its name.
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
/// A group counts for the process that made it; a forked child has groups as they were at the fork. Base pages count one each, huge pages
/// 512.
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

    /// So many bytes of the group in memory are protected: while it has no more, others are reclaimed. 0 at first. Refused if all groups'
    /// together are more than the budget less 16 MiB, or above `high`.
    pub fn set_min(&self, bytes: u64) -> Result<(), Error> {
        self.change(|l| l.min = bytes)
    }

    /// A soft limit, in bytes: while the group has more in memory and memory is short, it is reclaimed before others. `None`: none.
    pub fn set_high(&self, bytes: Option<u64>) -> Result<(), Error> {
        self.change(|l| l.high = bytes.unwrap_or(u64::MAX))
    }

    /// The most swap the group may take, in bytes. `None`: as much as there is. What finds no room there stays in memory.
    pub fn set_swap_max(&self, bytes: Option<u64>) -> Result<(), Error> {
        self.change(|l| l.swap_max = bytes.unwrap_or(u64::MAX))
    }

    /// What the group has, and what was counted for it so far.
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

/// What a group has, and what was counted for it, under the kernel's names, in pages of 4 KiB.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GroupStats {
    /// In memory, bytes.
    pub resident_bytes: u64,
    /// Of that, on active lists, bytes.
    pub active_bytes: u64,
    /// Of what is in memory, of mapped files, bytes.
    pub file_bytes: u64,
    /// In swap, bytes: a unit that has 2 MiB there counts all of that.
    pub swap_bytes: u64,
    /// Pages that came back from swap or their file.
    pub workingset_refault: u64,
    /// Of those, taken for part of the working set at once.
    pub workingset_activate: u64,
    /// Of those, part of it before.
    pub workingset_restore: u64,
    /// Pages that became active.
    pub pgactivate: u64,
    /// Pages that became inactive again.
    pub pgdeactivate: u64,
    /// Pages that reclaim looked at.
    pub pgscan: u64,
}
