//! Which addresses a window has, and the numbers of its units of 2 MiB.
//!
//! A window is one main range, and, in a process that had memory before it was managed, or asks for
//! some below 2 GiB, far parts: whole units elsewhere. Units are numbered in the order of addresses,
//! but far parts come first. Behind each of those stands one number that is no unit: its word says
//! for ever that it is the kernel's. So units that are neighbours by number, and not the kernel's,
//! are neighbours in memory.

use crate::UNIT;
use hugeswap_policy::UNIT_SHIFT;
use std::ops::Range;

/// The addresses of a window and the numbers of its units. It does not change.
#[derive(Clone, Debug)]
pub struct Numbering {
    base: usize,
    /// Numbers there are.
    units: u32,
    /// The number of the first unit of the main range.
    first: u32,
    /// Far parts, and the number of the first unit of each, in the order of addresses.
    far: Box<[(Range<usize>, u32)]>,
    /// From the first address of the far parts to the last.
    far_hull: Range<usize>,
}

impl Numbering {
    /// Of a window: `main` and `far` are whole units, and do not meet.
    pub fn new(main: Range<usize>, far: &[Range<usize>]) -> Numbering {
        let mut parts = far.to_vec();
        parts.sort_unstable_by_key(|p| p.start);
        let (mut first, mut numbered) = (0, Vec::new());
        for part in parts {
            let units = (part.len() >> UNIT_SHIFT) as u32;
            numbered.push((part, first));
            first += units + 1;
        }
        let start = numbered.first().map_or(0, |(at, _)| at.start);
        let end = numbered.last().map_or(0, |(at, _)| at.end);
        Numbering {
            base: main.start,
            units: first + (main.len() >> UNIT_SHIFT) as u32,
            first,
            far: numbered.into(),
            far_hull: start..end,
        }
    }

    /// Numbers there are: all units are below.
    pub fn units(&self) -> u32 {
        self.units
    }

    /// The number of the first unit of the main range.
    pub fn first(&self) -> u32 {
        self.first
    }

    /// The numbers that are no units.
    pub fn unused(&self) -> impl Iterator<Item = u32> + '_ {
        let behind = |(at, first): &(Range<usize>, u32)| first + (at.len() >> UNIT_SHIFT) as u32;
        self.far.iter().map(behind)
    }

    /// The unit that `addr` lies in, if it lies in the window.
    pub fn unit_of(&self, addr: usize) -> Option<u32> {
        if let Some(at) = addr.checked_sub(self.base)
            && at >> UNIT_SHIFT < (self.units - self.first) as usize
        {
            return Some(self.first + (at >> UNIT_SHIFT) as u32);
        }
        let (part, first) = self.far_part(addr, addr.saturating_add(1))?;
        Some(first + ((addr - part.start) >> UNIT_SHIFT) as u32)
    }

    /// First address of a unit.
    pub fn addr(&self, unit: u32) -> usize {
        if let Some(unit) = unit.checked_sub(self.first) {
            return self.base + ((unit as usize) << UNIT_SHIFT);
        }
        let later = self.far.partition_point(|(_, first)| *first <= unit);
        let (part, first) = &self.far[later - 1];
        part.start + (((unit - first) as usize) << UNIT_SHIFT)
    }

    /// The main range.
    pub fn window(&self) -> Range<usize> {
        self.base..self.base + (((self.units - self.first) as usize) << UNIT_SHIFT)
    }

    /// All parts, the main range last.
    pub fn parts(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let far = self.far.iter().map(|(at, _)| at.clone());
        far.chain(std::iter::once(self.window()))
    }

    /// The part that `[addr, addr+len)` meets first; the main range, if none.
    pub fn part_at(&self, addr: usize, len: usize) -> Range<usize> {
        self.part(addr, len).0
    }

    /// Does `[addr, addr+len)` meet more than one part?
    pub fn meets_several(&self, addr: usize, len: usize) -> bool {
        let end = addr.saturating_add(len);
        let met = |p: &Range<usize>| addr < p.end && end > p.start;
        !self.far.is_empty() && self.parts().filter(met).count() > 1
    }

    /// Units that `[addr, addr+len)` meets, of the part that it meets first.
    pub fn units_of(&self, addr: usize, len: usize) -> Range<u32> {
        let (part, first) = self.part(addr, len);
        let from = (addr.max(part.start) - part.start) / UNIT;
        let to = (addr + len)
            .min(part.end)
            .saturating_sub(part.start)
            .div_ceil(UNIT);
        first + from as u32..first + to.max(from) as u32
    }

    /// Units that `[addr, addr+len)`, which is in one part, has all of.
    pub fn whole_units_of(&self, addr: usize, len: usize) -> Range<u32> {
        let (part, first) = self.part(addr, len);
        let from = (addr - part.start).div_ceil(UNIT);
        let to = (addr + len - part.start) / UNIT;
        first + from as u32..first + to.max(from) as u32
    }

    /// A part as [`Numbering::part_at`] says, and the number of its first unit.
    fn part(&self, addr: usize, len: usize) -> (Range<usize>, u32) {
        let main = self.window();
        let end = addr.saturating_add(len);
        let meets_main = addr < main.end && end > main.start;
        match self.far_part(addr, end) {
            Some((at, first)) if !meets_main || at.start < main.start => (at.clone(), *first),
            _ => (main, self.first),
        }
    }

    /// The far part that `[addr, end)` meets first.
    fn far_part(&self, addr: usize, end: usize) -> Option<&(Range<usize>, u32)> {
        if addr >= self.far_hull.end || end <= self.far_hull.start {
            return None;
        }
        let met = |(at, _): &&(Range<usize>, u32)| addr < at.end && end > at.start;
        self.far.iter().find(met)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAIN: Range<usize> = 1000 * UNIT..1100 * UNIT;

    #[test]
    fn far_parts_have_numbers_of_their_own() {
        let heap = 10 * UNIT..13 * UNIT;
        let behind = 2000 * UNIT..2001 * UNIT;
        let n = Numbering::new(MAIN, &[behind.clone(), heap.clone()]);
        assert_eq!((n.units(), n.first()), (3 + 1 + 1 + 1 + 100, 6));
        assert_eq!(n.unused().collect::<Vec<_>>(), [3, 5]);
        assert_eq!(n.unit_of(heap.start), Some(0));
        assert_eq!(n.unit_of(heap.end - 1), Some(2));
        assert_eq!(n.unit_of(heap.end), None);
        assert_eq!(n.unit_of(behind.start), Some(4));
        assert_eq!(n.unit_of(MAIN.start), Some(6));
        assert_eq!(n.unit_of(MAIN.end), None);
        assert_eq!(n.unit_of(usize::MAX), None);
        assert_eq!(n.parts().collect::<Vec<_>>(), [heap.clone(), behind, MAIN]);
        assert_eq!(n.part_at(heap.start - 5, 6), heap);
        assert_eq!(n.part_at(heap.end, 990 * UNIT), MAIN);
        for (addr, len, several) in [
            (0, UNIT, false),
            (heap.start, UNIT, false),
            (heap.end, 980 * UNIT, false),
            (heap.end - 1, 990 * UNIT, true),
            (MAIN.end, 800 * UNIT, false),
            (MAIN.end, 900 * UNIT + 1, false),
            (MAIN.end - 1, 900 * UNIT + 1, false),
            (MAIN.end - 1, 900 * UNIT + 2, true),
            (2100 * UNIT, UNIT, false),
            (0, usize::MAX, true),
        ] {
            assert_eq!(n.meets_several(addr, len), several, "{addr:x} {len:x}");
        }
        assert_eq!(n.units_of(heap.start - UNIT, 3 * UNIT), 0..2);
        assert_eq!(n.units_of(heap.end - 1, 100), 2..3);
        assert!(n.units_of(heap.end, UNIT).is_empty());
        assert_eq!(n.whole_units_of(heap.start + 1, 2 * UNIT), 1..2);
    }

    proptest! {
        #[test]
        fn a_unit_is_where_its_number_says(
            lens in proptest::collection::vec((1usize..9, 0usize..9), 0..6),
            at in 0usize..1200 * UNIT,
        ) {
            let mut next = 3;
            let far: Vec<_> = lens
                .into_iter()
                .map(|(len, gap)| {
                    let part = next * UNIT..(next + len) * UNIT;
                    next += len + gap;
                    part
                })
                .collect();
            let n = Numbering::new(MAIN, &far);
            let inside = n.parts().any(|p| p.contains(&at));
            prop_assert_eq!(n.unit_of(at).is_some(), inside);
            if let Some(unit) = n.unit_of(at) {
                prop_assert_eq!(n.addr(unit), at & !(UNIT - 1));
                prop_assert!(n.unused().all(|u| u != unit));
                prop_assert_eq!(n.units_of(at, 1), unit..unit + 1);
                prop_assert!(n.part_at(at, 1).contains(&at));
            }
            for unit in (0..n.units()).filter(|&u| n.unused().all(|x| x != u)) {
                prop_assert_eq!(n.unit_of(n.addr(unit)), Some(unit));
            }
        }
    }
}
