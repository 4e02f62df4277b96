//! How much of each unit is in memory and on which lists, with sums.

use crate::UNIT_PAGES;
use crate::workingset::vmscan::PageKind;
use std::ops::Deref;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI64, AtomicU16};

/// Largest number of groups, with the one that regions are in by default.
pub const GROUPS: usize = 16;
/// Number of pairs of lists: one for each kind in each group.
pub(super) const LRUVECS: usize = GROUPS * 2;

pub(super) fn lruvec(group: usize, kind: PageKind) -> usize {
    group * 2 + kind as usize
}

pub(super) fn group_of(lruvec: usize) -> usize {
    lruvec / 2
}

pub(super) fn kind_of(lruvec: usize) -> PageKind {
    PageKind::ALL[lruvec % 2]
}

/// The pages of each unit that are in memory and the list they are on, with sums by list.
pub struct Weights<W = Vec<AtomicU16>> {
    /// Pages (10 bits), lruvec (5 bits), and [`ACTIVE`].
    units: W,
    /// Inactive and active pages of each lruvec. Exact while no thread changes a weight.
    pages: [[AtomicI64; 2]; LRUVECS],
    /// Units of which all pages are in memory, as exactly.
    full: AtomicI64,
}

const PAGES: u16 = (1 << 10) - 1;
const LRUVEC_SHIFT: u32 = 10;
const LRUVEC: u16 = (LRUVECS as u16 - 1) << LRUVEC_SHIFT;
const ACTIVE: u16 = 1 << 15;

impl<W: Deref<Target = [AtomicU16]>> Weights<W> {
    pub(super) fn new(units: W) -> Weights<W> {
        Weights {
            units,
            pages: std::array::from_fn(|_| [AtomicI64::new(0), AtomicI64::new(0)]),
            full: AtomicI64::new(0),
        }
    }

    /// Sets the number of pages of a unit that are in memory. Takes no lock; the caller orders
    /// calls for one unit.
    pub fn set(&self, unit: u32, pages: u64) {
        let pages = pages.min(UNIT_PAGES) as u16;
        self.change(unit, |w| w & !PAGES | pages);
    }

    /// Number of pages of a unit that are in memory.
    pub fn of(&self, unit: u32) -> u64 {
        u64::from(self.word(unit) & PAGES)
    }

    /// Number of units of which all pages are in memory.
    pub fn full(&self) -> u64 {
        self.full.load(Relaxed).max(0) as u64
    }

    /// Number of pages of a kind that a group has in memory.
    pub fn used(&self, group: usize, kind: PageKind) -> u64 {
        let v = lruvec(group, kind);
        self.sum(v, false) + self.sum(v, true)
    }

    /// Number of active pages of a kind in a group.
    pub fn active(&self, group: usize, kind: PageKind) -> u64 {
        self.sum(lruvec(group, kind), true)
    }

    /// Pages that may be idle while one of a kind comes back: the active ones, and all of the other
    /// kind.
    pub fn working_set(&self, group: usize, kind: PageKind) -> u64 {
        let other = PageKind::ALL[1 - kind as usize];
        self.active(group, kind) + self.used(group, other)
    }

    /// Base pages are back in time if no more were evicted since they were: had the working set been
    /// smaller by its present size, or by a quarter of memory, they would be here. (While little is
    /// active, what comes back says all the same that what is old had better go.)
    pub fn in_time(&self, group: usize, kind: PageKind) -> u64 {
        let all: u64 = PageKind::ALL.map(|k| self.used(group, k)).iter().sum();
        self.working_set(group, kind).max(all / 4)
    }

    /// Group and kind of a unit.
    pub fn place(&self, unit: u32) -> (usize, PageKind) {
        let v = self.lruvec(unit);
        (group_of(v), kind_of(v))
    }

    /// Number of pages of a kind on the active or inactive lists of all groups.
    pub fn listed(&self, kind: PageKind, active: bool) -> u64 {
        (0..GROUPS).map(|g| self.sum(lruvec(g, kind), active)).sum()
    }

    fn word(&self, unit: u32) -> u16 {
        self.units.get(unit as usize).map_or(0, |w| w.load(Relaxed))
    }

    pub(super) fn lruvec(&self, unit: u32) -> usize {
        usize::from((self.word(unit) & LRUVEC) >> LRUVEC_SHIFT)
    }

    pub(super) fn put_active(&self, unit: u32, active: bool) {
        self.change(unit, |w| if active { w | ACTIVE } else { w & !ACTIVE });
    }

    pub(super) fn put_lruvec(&self, unit: u32, lruvec: usize) {
        self.change(unit, |w| w & !LRUVEC | (lruvec as u16) << LRUVEC_SHIFT);
    }

    pub(super) fn sum(&self, lruvec: usize, active: bool) -> u64 {
        self.pages[lruvec][usize::from(active)].load(Relaxed).max(0) as u64
    }

    fn change(&self, unit: u32, to: impl Fn(u16) -> u16) {
        let Some(word) = self.units.get(unit as usize) else {
            return;
        };
        let mut old = word.load(Relaxed);
        if to(old) == old {
            return;
        }
        while let Err(now) = word.compare_exchange_weak(old, to(old), Relaxed, Relaxed) {
            old = now;
        }
        for (w, sign) in [(old, -1), (to(old), 1)] {
            let lruvec = usize::from((w & LRUVEC) >> LRUVEC_SHIFT);
            let pages = i64::from(w & PAGES);
            if pages != 0 {
                self.pages[lruvec][usize::from(w & ACTIVE != 0)].fetch_add(sign * pages, Relaxed);
            }
            if pages == UNIT_PAGES as i64 {
                self.full.fetch_add(sign, Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_full_with_its_last_page() {
        let w = Weights::new((0..4).map(|_| AtomicU16::new(0)).collect::<Vec<_>>());
        w.set(0, UNIT_PAGES);
        w.set(1, UNIT_PAGES - 1);
        w.set(2, UNIT_PAGES + 1);
        assert_eq!(w.full(), 2);
        w.set(1, UNIT_PAGES);
        w.set(0, 1);
        w.set(0, 1);
        assert_eq!(w.full(), 2);
        (0..4).for_each(|u| w.set(u, 0));
        assert_eq!(w.full(), 0);
    }
}
