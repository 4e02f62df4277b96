//! Where the pages of scattered units are in swap: a slot number of 32 bits for each page, 2 KiB a
//! unit.
//!
//! A unit is scattered when its place is [`Place::Singles`](hugeswap_policy::unit::Place::Singles).
//! Its table then says of each page which slot of a split cluster holds it, or that it is zero (or,
//! while base-mapped, only in memory). The table of a unit that is not scattered is empty.
//! Addresses are reserved for all units (0.1% of them); memory is taken for units that were ever
//! scattered, and counted against a strict limit on memory (vm.overcommit_memory=2) for 1024 units
//! at a time. A forked child reads the scattered units of its parent through its own copy of the
//! table.
//!
//! Concurrency: the owner of a unit's lock reads and changes its table.

use crate::PAGES;
use hugeswap_policy::UNIT_PAGES;
use hugeswap_sys::{Result, mm};
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

const TABLE: usize = PAGES * 4;
/// Units whose tables get memory at one time.
const CHUNK: usize = 1024;

/// A slot of 4 KiB: which cluster, and which of its slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Single {
    pub cluster: u64,
    pub at: usize,
}

impl Single {
    /// Its number over all areas.
    pub fn number(self) -> u64 {
        self.cluster * UNIT_PAGES + self.at as u64
    }

    /// What stands for it in a table; `None`: that is beyond what one can say.
    fn entry(self) -> Option<u32> {
        u32::try_from(self.number()).ok()?.checked_add(1)
    }
}

/// Clusters below this number can be split.
pub(crate) const CLUSTERS: u64 = (u32::MAX as u64) / UNIT_PAGES;

/// The table of one unit.
#[repr(transparent)]
pub(crate) struct Places([AtomicU32; PAGES]);

impl Places {
    /// Where page `page` is.
    pub fn get(&self, page: usize) -> Option<Single> {
        let n = self.0.get(page)?.load(Relaxed).checked_sub(1)?;
        Some(Single {
            cluster: u64::from(n) / UNIT_PAGES,
            at: n as usize % PAGES,
        })
    }

    /// Page `page` is there now, or nowhere.
    pub fn put(&self, page: usize, to: Option<Single>) {
        if let Some(e) = self.0.get(page) {
            e.store(to.and_then(Single::entry).unwrap_or(0), Relaxed);
        }
    }

    /// The pages from `pages.start` on that lie side by side, and where. `None`: that page is
    /// nowhere.
    pub fn run(&self, pages: Range<usize>) -> Option<(u64, Range<usize>)> {
        let first = self.get(pages.start)?;
        let follows = |&k: &usize| {
            self.get(pages.start + k)
                .is_some_and(|s| s.cluster == first.cluster && s.at == first.at + k)
        };
        let n = 1 + (1..pages.len()).take_while(follows).count();
        Some((first.cluster, first.at..first.at + n))
    }

    /// Pages that are somewhere.
    pub fn count(&self) -> u64 {
        let some = self.0.iter().filter(|e| e.load(Relaxed) != 0);
        some.count() as u64
    }

    /// No page is anywhere.
    pub fn clear(&self) {
        self.0.iter().for_each(|e| e.store(0, Relaxed));
    }

    /// The same as another.
    pub fn copy(&self, from: &Places) {
        let both = self.0.iter().zip(&from.0);
        both.for_each(|(to, from)| to.store(from.load(Relaxed), Relaxed));
    }
}

/// The tables of a window's units.
pub(crate) struct Scatter {
    at: usize,
    units: usize,
    /// A bit for each chunk that may be used.
    open: Box<[AtomicU64]>,
}

impl Scatter {
    pub fn new(units: u32) -> Result<Scatter> {
        let units = (units as usize).next_multiple_of(CHUNK);
        let at = mm::map_own(units * TABLE, mm::PROT_NONE)?;
        // Else one table might take a huge page.
        // SAFETY: advice that discards nothing.
        let _ = unsafe { mm::advise(at, units * TABLE, libc::MADV_NOHUGEPAGE) };
        let words = (units / CHUNK).div_ceil(64);
        Ok(Scatter {
            at,
            units,
            open: (0..words).map(|_| AtomicU64::new(0)).collect(),
        })
    }

    /// Has any unit ever had a table?
    pub fn was_used(&self) -> bool {
        self.open.iter().any(|w| w.load(Relaxed) != 0)
    }

    /// The unit's table; the caller owns the unit's lock. `None`: it never had one.
    pub fn of(&self, unit: u32) -> Option<&Places> {
        let (unit, chunk) = (unit as usize, unit as usize / CHUNK);
        let open = self.open.get(chunk / 64)?.load(Acquire) >> (chunk % 64) & 1 == 1;
        // SAFETY: zeros are a valid table, and the chunk has been made readable and writable for
        // good.
        (open && unit < self.units)
            .then(|| unsafe { &*((self.at + unit * TABLE) as *const Places) })
    }

    /// [`Scatter::of`], with memory for it. `None`: there is none to be had.
    pub fn open(&self, unit: u32) -> Option<&Places> {
        if let Some(places) = self.of(unit) {
            return Some(places);
        }
        let chunk = unit as usize / CHUNK;
        let (at, len) = (self.at + chunk * CHUNK * TABLE, CHUNK * TABLE);
        // SAFETY: ours, and nothing is there yet; to do it twice at once does no harm.
        unsafe { mm::protect(at, len, mm::PROT_RW) }.ok()?;
        self.open
            .get(chunk / 64)?
            .fetch_or(1 << (chunk % 64), Release);
        self.of(unit)
    }
}

impl Drop for Scatter {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and the engine that owns the tables is gone.
        let _ = unsafe { mm::unmap(self.at, self.units * TABLE) };
    }
}

const _: () = assert!(size_of::<Places>() == TABLE && (CHUNK * TABLE).is_multiple_of(4096));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_say_where_pages_are() {
        let s = Scatter::new(3000).unwrap();
        assert!(s.of(2100).is_none());
        let p = s.open(2100).unwrap();
        assert!(s.of(1023).is_none() && s.of(2048).is_some() && s.of(u32::MAX).is_none());
        let single = |cluster, at| Single { cluster, at };
        for (page, at) in [(3, 510), (4, 511), (5, 0), (6, 1), (8, 3)] {
            p.put(page, Some(single(7 + u64::from(at < 100), at)));
        }
        assert_eq!(p.run(3..10), Some((7, 510..512)), "never across clusters");
        assert_eq!(p.run(5..10), Some((8, 0..2)));
        assert_eq!(p.run(5..6), Some((8, 0..1)));
        assert_eq!((p.run(7..10), p.get(8)), (None, Some(single(8, 3))));
        let last = single(CLUSTERS - 1, 511);
        p.put(9, Some(last));
        assert_eq!(p.get(9), Some(last));
        s.open(0).unwrap().copy(p);
        p.clear();
        assert_eq!(
            (p.get(8), s.of(0).unwrap().get(8)),
            (None, Some(single(8, 3)))
        );
    }
}
