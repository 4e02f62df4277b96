//! A page-granular allocator of the addresses of the managed window.
//!
//! It hands out addresses only; nothing here maps or touches memory. What is kept is the set of
//! free ranges, twice: by address (coalesced, so two entries never touch) and by length. A page is
//! allocated when it is in the window and in no free range. Best fit, lowest address among equals,
//! so small requests fill holes and large ones leave the far end of the window whole.
//! Every operation is O(log n) in the number of free ranges, apart from the ranges it reports.
//!
//! Some allocated pages hold mappings that the kernel made at the program's wish (files, shared
//! memory, executable memory); these are *the kernel's*. Others are *reserved*: mapped without
//! access until the program asks for memory there. The pool has promised nothing for either.
//!
//! Not shareable: the owner locks.

use crate::intervals::Intervals;
use crate::{PAGE, UNIT};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// How many ranges that are long enough but badly placed are looked at before one is taken that
/// fits wherever it starts.
const MISFITS: usize = 16;

/// The addresses of one window. Those of its low part are handed out on request only. What is said
/// of a range `[addr, addr+len)` is said of the part of the window that it meets first.
#[derive(Debug)]
pub struct Space {
    /// In the order of addresses.
    parts: Box<[Range<usize>]>,
    /// The low part, if there is one.
    low: Option<Range<usize>>,
    /// Start to length.
    free: BTreeMap<usize, usize>,
    /// (length, start) of the same ranges, without those of the low part.
    by_len: BTreeSet<(usize, usize)>,
    /// Allocated pages that are the kernel's.
    kernel: Intervals,
    /// Allocated pages that are reserved. None of them is the kernel's.
    reserved: Intervals,
    /// What is about to be the kernel's, whatever it is now.
    claimed: Intervals,
}

impl Space {
    /// A window of these parts, all free, of which `low` is one. Their ends are page-aligned, and none
    /// touches another.
    pub fn new(parts: impl IntoIterator<Item = Range<usize>>, low: Option<Range<usize>>) -> Space {
        let mut parts: Vec<_> = parts.into_iter().collect();
        parts.sort_unstable_by_key(|p| p.start);
        let is_aligned = |p: &Range<usize>| (p.start | p.end).is_multiple_of(PAGE);
        debug_assert!(parts.iter().all(is_aligned));
        let mut space = Space {
            parts: parts.clone().into(),
            low,
            free: BTreeMap::new(),
            by_len: BTreeSet::new(),
            kernel: Intervals::default(),
            reserved: Intervals::default(),
            claimed: Intervals::default(),
        };
        for part in parts {
            space.put(part.start, part.end);
        }
        space
    }

    /// Takes `len` bytes (rounded up to pages) at a multiple of `align` (a power of two; at least
    /// a page, and at least 2 MiB if `len` is). `None`: no room, or `len` is 0 or absurd.
    pub fn alloc(&mut self, len: usize, align: usize) -> Option<usize> {
        let len = pages_up(len)?;
        let align = align
            .max(if len >= UNIT { UNIT } else { PAGE })
            .checked_next_power_of_two()?;
        let fits = |&(l, start): &(usize, usize)| {
            let at = start.checked_next_multiple_of(align)?;
            (at.checked_add(len)? <= start + l).then_some((start, at))
        };
        let close = self.by_len.range((len, 0)..).take(MISFITS).find_map(fits);
        let anywhere = || {
            self.by_len
                .range((len.checked_add(align - PAGE)?, 0)..)
                .find_map(fits)
        };
        let (start, at) = close.or_else(anywhere)?;
        self.carve(start, at, at + len);
        Some(at)
    }

    /// Where `len` bytes (rounded up to pages; units are aligned) are free in the low part: the lowest
    /// such address.
    pub fn hole_in_low(&self, len: usize) -> Option<usize> {
        let (len, low) = (pages_up(len)?, self.low.as_ref()?);
        let align = if len >= UNIT { UNIT } else { PAGE };
        let mut holes = self.free.range(low.clone());
        holes.find_map(|(&start, &l)| {
            let at = start.next_multiple_of(align);
            (at.checked_add(len)? <= start + l).then_some(at)
        })
    }

    /// Takes exactly `[addr, addr+len)`, if all of it is free.
    pub fn take_at(&mut self, addr: usize, len: usize) -> bool {
        let Some((from, to)) = self
            .clip(addr, len)
            .filter(|&(f, t)| f == addr && t - f >= len)
        else {
            return false;
        };
        match self.hole_at(from) {
            Some((start, end)) if end >= to => {
                self.carve(start, from, to);
                true
            }
            _ => false,
        }
    }

    /// Makes the range at `addr` longer where it stands, if the pages behind it are free.
    /// `false`: nothing changed.
    pub fn extend(&mut self, addr: usize, old_len: usize, new_len: usize) -> bool {
        let (Some(old), Some(new)) = (pages_up(old_len), pages_up(new_len)) else {
            return false;
        };
        new <= old
            || addr
                .checked_add(old)
                .is_some_and(|at| self.take_at(at, new - old))
    }

    /// Gives `[addr, addr+len)` back; pages of it that are free already, or outside the window, are
    /// left alone.
    pub fn free(&mut self, addr: usize, len: usize) {
        let Some((mut from, mut to)) = self.clip(addr, len) else {
            return;
        };
        self.kernel.remove(from, to);
        self.reserved.remove(from, to);
        // The new range swallows every range it overlaps or touches.
        while let Some((&start, &l)) = self.free.range(..=to).next_back() {
            let end = start + l;
            if end < from {
                break;
            }
            self.take(start, l);
            from = from.min(start);
            to = to.max(end);
        }
        self.put(from, to);
    }

    /// Takes every free page of `[addr, addr+len)` for the kernel. Which ranges these were.
    pub fn take_for_kernel(&mut self, addr: usize, len: usize) -> Vec<(usize, usize)> {
        let Some((from, to)) = self.clip(addr, len) else {
            return Vec::new();
        };
        let mut taken = Vec::new();
        let mut at = from;
        while at < to {
            let next = self.allocated_in(at, to - at).next();
            let (used, used_len) = next.unwrap_or((to, 0));
            if used > at && self.take_at(at, used - at) {
                self.kernel.insert(at, used);
                taken.push((at, used - at));
            }
            at = used + used_len;
        }
        taken
    }

    /// The allocated pages of `[addr, addr+len)` are about to be the kernel's (`claimed`), or are not
    /// any more. Meanwhile reserved ones count as those that are not.
    pub fn set_claimed(&mut self, addr: usize, len: usize, claimed: bool) {
        match claimed {
            true => self.claimed.insert(addr, addr.saturating_add(len)),
            false => self.claimed.remove(addr, addr.saturating_add(len)),
        }
    }

    /// The allocated pages of `[addr, addr+len)` are the kernel's. How many bytes something was
    /// promised for before.
    pub fn make_kernels(&mut self, addr: usize, len: usize) -> usize {
        let before = self.unpromised_bytes(addr, len);
        self.reserved.remove(addr, addr.saturating_add(len));
        let mut after = 0;
        let ranges: Vec<_> = self.allocated_in(addr, len).collect();
        for (at, n) in ranges {
            self.kernel.insert(at, at + n);
            after += n;
        }
        after - before
    }

    /// The free ranges (address, length), in order.
    pub fn free_ranges(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.free.iter().map(|(&at, &len)| (at, len))
    }

    /// The pages of `[addr, addr+len)` are not the kernel's any more.
    pub fn make_engines(&mut self, addr: usize, len: usize) {
        self.kernel.remove(addr, addr.saturating_add(len));
    }

    /// Bytes of `[addr, addr+len)` that are the kernel's.
    pub fn kernel_bytes(&self, addr: usize, len: usize) -> usize {
        self.kernel.bytes_in(addr, addr.saturating_add(len))
    }

    /// The allocated pages of `[addr, addr+len)`, none of which is the kernel's, are reserved.
    pub fn make_reserved(&mut self, addr: usize, len: usize) {
        let ranges: Vec<_> = self.allocated_in(addr, len).collect();
        for (at, n) in ranges {
            self.reserved.insert(at, at + n);
        }
    }

    /// The pages of `[addr, addr+len)` are not reserved any more.
    pub fn make_committed(&mut self, addr: usize, len: usize) {
        self.reserved.remove(addr, addr.saturating_add(len));
    }

    /// The reserved ranges (address, length) within `[addr, addr+len)`, in order.
    pub fn reserved_in(
        &self,
        addr: usize,
        len: usize,
    ) -> impl Iterator<Item = (usize, usize)> + '_ {
        let met = self.reserved.within(addr, addr.saturating_add(len));
        met.map(|(from, to)| (from, to - from))
    }

    /// Bytes of `[addr, addr+len)` that are reserved.
    pub fn reserved_bytes(&self, addr: usize, len: usize) -> usize {
        self.reserved.bytes_in(addr, addr.saturating_add(len))
    }

    /// Bytes of `[addr, addr+len)` that are allocated, and that the pool has promised nothing for.
    pub fn unpromised_bytes(&self, addr: usize, len: usize) -> usize {
        self.kernel_bytes(addr, len) + self.reserved_bytes(addr, len)
    }

    /// Is every page of `[addr, addr+len)` allocated? (No for an empty range.)
    pub fn is_allocated(&self, addr: usize, len: usize) -> bool {
        let Some(to) = addr.checked_add(len) else {
            return false;
        };
        len > 0
            && self
                .part(addr, to)
                .is_some_and(|p| p.start <= addr && to <= p.end)
            && self
                .free
                .range(..to)
                .next_back()
                .is_none_or(|(&start, &l)| start + l <= addr)
    }

    /// The allocated ranges (address, length) within `[addr, addr+len)`, in order, as long as they
    /// can be.
    pub fn allocated_in(
        &self,
        addr: usize,
        len: usize,
    ) -> impl Iterator<Item = (usize, usize)> + '_ {
        let (from, to) = self.clip(addr, len).unwrap_or((0, 0));
        let mut at = from;
        let first = self
            .free
            .range(..from)
            .next_back()
            .filter(|&(&s, &l)| s + l > from)
            .map_or(from, |(&s, _)| s);
        let mut holes = self.free.range(first..to.max(first));
        std::iter::from_fn(move || {
            while at < to {
                let (hole, after) = holes.next().map_or((to, to), |(&s, &l)| (s, s + l));
                let start = std::mem::replace(&mut at, after);
                if hole > start {
                    return Some((start, hole.min(to) - start));
                }
            }
            None
        })
    }

    /// Allocated pages (of 4 KiB) in the unit of 2 MiB at `unit_addr` that are not reserved, or are
    /// claimed.
    pub fn committed_pages(&self, unit_addr: usize) -> usize {
        let claimed = self.claimed.within(unit_addr, unit_addr + UNIT);
        let claimed: usize = { claimed }
            .map(|(from, to)| self.reserved_bytes(from, to - from))
            .sum();
        self.live_pages(unit_addr) - (self.reserved_bytes(unit_addr, UNIT) - claimed) / PAGE
    }

    /// Allocated pages (of 4 KiB) in the unit of 2 MiB at `unit_addr`.
    pub fn live_pages(&self, unit_addr: usize) -> usize {
        self.allocated_in(unit_addr, UNIT)
            .map(|(_, l)| l / PAGE)
            .sum()
    }

    /// `[addr, addr+len)` widened to pages and cut to the window; `None` if nothing is left.
    fn clip(&self, addr: usize, len: usize) -> Option<(usize, usize)> {
        let from = addr & !(PAGE - 1);
        let to = addr
            .saturating_add(len)
            .checked_next_multiple_of(PAGE)
            .unwrap_or(usize::MAX);
        let part = self.part(from, to).filter(|_| len > 0)?;
        Some((from.max(part.start), to.min(part.end)))
    }

    /// The part that `[from, to)` meets first.
    fn part(&self, from: usize, to: usize) -> Option<&Range<usize>> {
        self.parts.iter().find(|p| from < p.end && to > p.start)
    }

    /// The free range (start, end) that holds `at`.
    fn hole_at(&self, at: usize) -> Option<(usize, usize)> {
        self.free
            .range(..=at)
            .next_back()
            .map(|(&s, &l)| (s, s + l))
            .filter(|&(_, e)| e > at)
    }

    /// Takes `[from, to)` out of the free range at `start`, which holds it.
    fn carve(&mut self, start: usize, from: usize, to: usize) {
        let len = self.free[&start];
        self.take(start, len);
        self.put(start, from);
        self.put(to, start + len);
    }

    fn take(&mut self, start: usize, len: usize) {
        self.free.remove(&start);
        self.by_len.remove(&(len, start));
    }

    fn put(&mut self, from: usize, to: usize) {
        if from < to {
            self.free.insert(from, to - from);
            if self.low.as_ref().is_none_or(|low| !low.contains(&from)) {
                self.by_len.insert((to - from, from));
            }
        }
    }
}

/// `len` rounded up to pages; `None` for 0 and for what does not fit an address.
fn pages_up(len: usize) -> Option<usize> {
    (len > 0)
        .then(|| len.checked_next_multiple_of(PAGE))
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BASE: usize = 0x4000_0000_0000;

    #[test]
    fn small_ones_fill_holes_and_large_ones_stay_aligned() {
        let mut s = Space::new(Some(BASE..BASE + 64 * UNIT), None);
        let a = s.alloc(1, 1).unwrap();
        let b = s.alloc(2 * UNIT, PAGE).unwrap();
        assert_eq!((a, b), (BASE, BASE + UNIT));
        assert_eq!(s.alloc(UNIT - PAGE, PAGE), Some(BASE + PAGE));
        assert_eq!(s.live_pages(BASE), 512);
        s.free(a, PAGE);
        assert_eq!(s.live_pages(BASE), 511);
        assert_eq!(s.alloc(PAGE, PAGE), Some(BASE));
        assert_eq!(s.alloc(UNIT, 8 * UNIT), Some(BASE + 8 * UNIT));
    }

    #[test]
    fn the_low_part_is_for_those_who_ask_for_it() {
        const LOW: usize = 0x5000_0000;
        let low = LOW..LOW + 4 * UNIT;
        let mut s = Space::new([low.clone(), BASE..BASE + 4 * UNIT], Some(low));
        assert_eq!(s.hole_in_low(PAGE + 1), Some(LOW));
        assert!(s.take_at(LOW, 2 * PAGE));
        assert_eq!(s.hole_in_low(PAGE), Some(LOW + 2 * PAGE));
        assert_eq!(s.hole_in_low(UNIT), Some(LOW + UNIT));
        assert!(s.take_at(LOW + UNIT, 2 * UNIT));
        assert_eq!(s.hole_in_low(2 * UNIT), None);
        // Its holes fit best, and are not taken.
        assert_eq!(s.alloc(UNIT, PAGE), Some(BASE));
        assert_eq!(s.alloc(4 * UNIT, PAGE), None);
        s.free(LOW + UNIT, 2 * UNIT);
        assert_eq!(s.hole_in_low(3 * UNIT), Some(LOW + UNIT));
        assert_eq!(
            Space::new(Some(BASE..BASE + UNIT), None).hole_in_low(PAGE),
            None
        );
    }

    #[test]
    fn grows_only_into_free_pages() {
        let mut s = Space::new(Some(BASE..BASE + 8 * UNIT), None);
        let a = s.alloc(UNIT, 0).unwrap();
        assert!(s.extend(a, UNIT, 3 * UNIT) && s.is_allocated(a, 3 * UNIT));
        let b = s.alloc(PAGE, 0).unwrap();
        assert_eq!(b, a + 3 * UNIT);
        assert!(!s.extend(a, 3 * UNIT, 3 * UNIT + 1));
        assert!(
            s.extend(a, 3 * UNIT, UNIT),
            "a range is as long as a shorter one already"
        );
        s.free(b, PAGE);
        assert!(!s.extend(a, 3 * UNIT, 9 * UNIT), "past the window");
        assert!(s.extend(a, 3 * UNIT, 8 * UNIT));
    }

    #[test]
    fn absurd_requests_are_refused() {
        let mut s = Space::new(Some(BASE..BASE + 8 * UNIT), None);
        for (len, align) in [
            (0, 1),
            (usize::MAX, 1),
            (PAGE, usize::MAX),
            (9 * UNIT, 1),
            (usize::MAX - PAGE, UNIT),
        ] {
            assert_eq!(s.alloc(len, align), None, "{len} {align}");
        }
        s.free(0, usize::MAX);
        assert!(!s.is_allocated(BASE, 0) && !s.is_allocated(usize::MAX, 2));
        assert!(!s.take_at(BASE - PAGE, 2 * PAGE) && !s.take_at(BASE + 8 * UNIT, PAGE));
        assert_eq!(s.alloc(8 * UNIT, 0), Some(BASE));
    }

    #[derive(Clone, Debug)]
    enum Op {
        Alloc(usize, usize),
        Reserve(usize, usize),
        Extend(usize, usize, usize),
        Free(usize, usize),
        Kernel(usize, usize, bool),
        Hold(usize, usize),
        Commit(usize, usize),
    }

    const PAGES: usize = 8 * 512;

    fn op() -> impl Strategy<Value = Op> {
        let len = prop_oneof![4 => 1..64usize, 2 => 64..1024usize, 1 => 1024..PAGES];
        prop_oneof![
            4 => (len.clone(), 0..11u32).prop_map(|(l, a)| Op::Alloc(l, PAGE << a)),
            1 => (0..PAGES, len.clone()).prop_map(|(a, l)| Op::Reserve(a, l)),
            1 => (0..PAGES, 1..64usize, 1..128usize).prop_map(|(a, o, n)| Op::Extend(a, o, n)),
            3 => (0..PAGES, len.clone()).prop_map(|(a, l)| Op::Free(a, l)),
            2 => (0..PAGES, len.clone(), any::<bool>()).prop_map(|(a, l, all)| Op::Kernel(a, l, all)),
            2 => (0..PAGES, len.clone()).prop_map(|(a, l)| Op::Hold(a, l)),
            1 => (0..PAGES, len).prop_map(|(a, l)| Op::Commit(a, l)),
        ]
    }

    proptest! {
        /// Against a bitmap, a bit a page.
        #[test]
        fn agrees_with_a_bitmap(ops in prop::collection::vec(op(), 1..200)) {
            let mut s = Space::new(Some(BASE..BASE + PAGES * PAGE), None);
            let mut used = vec![false; PAGES];
            let mut kernel = vec![false; PAGES];
            let mut reserved = vec![false; PAGES];
            let at = |p: usize| BASE + p * PAGE;
            let all = |used: &[bool], a: usize, l: usize, want: bool| {
                a + l <= PAGES && used[a..a + l].iter().all(|&u| u == want)
            };
            for op in ops {
                match op {
                    Op::Alloc(l, align) => {
                        let align = align.max(if l >= 512 { UNIT } else { PAGE });
                        let possible = (0..PAGES).step_by(align / PAGE).any(|a| all(&used, a, l, false));
                        match s.alloc(l * PAGE, align) {
                            Some(addr) => {
                                let a = (addr - BASE) / PAGE;
                                prop_assert!(addr.is_multiple_of(align) && all(&used, a, l, false));
                                used[a..a + l].fill(true);
                            }
                            // Up to MISFITS candidates are tried, so a tiny window may rarely hide
                            // one.
                            None => prop_assert!(!possible || s.free.len() > MISFITS),
                        }
                    }
                    Op::Reserve(a, l) => {
                        let want = all(&used, a, l, false);
                        prop_assert_eq!(s.take_at(at(a), l * PAGE), want);
                        if want { used[a..a + l].fill(true); }
                    }
                    Op::Extend(a, o, n) => {
                        let want = n <= o || all(&used, a + o, n - o, false);
                        prop_assert_eq!(s.extend(at(a), o * PAGE, n * PAGE), want);
                        if n > o && want { used[a + o..a + n].fill(true); }
                    }
                    Op::Free(a, l) => {
                        s.free(at(a), l * PAGE);
                        let end = (a + l).min(PAGES);
                        used[a..end].fill(false);
                        kernel[a..end].fill(false);
                        reserved[a..end].fill(false);
                    }
                    Op::Kernel(a, l, all) => {
                        let end = (a + l).min(PAGES);
                        let free: usize = s.take_for_kernel(at(a), l * PAGE).iter().map(|r| r.1).sum();
                        let was = used[a..end].iter().filter(|&&u| !u).count();
                        prop_assert_eq!(free, was * PAGE);
                        for p in a..end {
                            kernel[p] |= !used[p];
                            used[p] = true;
                        }
                        if all {
                            let new = (a..end).filter(|&p| !kernel[p] && !reserved[p]).count();
                            prop_assert_eq!(s.make_kernels(at(a), l * PAGE), new * PAGE);
                            kernel[a..end].fill(true);
                            reserved[a..end].fill(false);
                        }
                    }
                    Op::Hold(a, l) => {
                        let end = (a + l).min(PAGES);
                        if s.kernel_bytes(at(a), l * PAGE) == 0 {
                            s.make_reserved(at(a), l * PAGE);
                            (a..end).filter(|&p| used[p]).for_each(|p| reserved[p] = true);
                        }
                    }
                    Op::Commit(a, l) => {
                        s.make_committed(at(a), l * PAGE);
                        reserved[a..(a + l).min(PAGES)].fill(false);
                    }
                }
                let listed: Vec<_> = s.allocated_in(BASE, PAGES * PAGE).collect();
                let mut seen = vec![false; PAGES];
                for (i, &(a, l)) in listed.iter().enumerate() {
                    prop_assert!(l > 0 && (i == 0 || listed[i - 1].0 + listed[i - 1].1 < a));
                    seen[(a - BASE) / PAGE..(a - BASE + l) / PAGE].fill(true);
                }
                prop_assert_eq!(&seen, &used);
                prop_assert_eq!(s.by_len.len(), s.free.len());
                for u in 0..PAGES / 512 {
                    let live = used[u * 512..(u + 1) * 512].iter().filter(|&&b| b).count();
                    prop_assert_eq!(s.live_pages(at(u * 512)), live);
                    let held = reserved[u * 512..(u + 1) * 512].iter().filter(|&&b| b).count();
                    prop_assert_eq!(s.committed_pages(at(u * 512)), live - held);
                }
                let mut held = vec![false; PAGES];
                for (a, l) in s.reserved_in(at(7), (PAGES - 9) * PAGE) {
                    held[(a - BASE) / PAGE..(a - BASE + l) / PAGE].fill(true);
                }
                prop_assert_eq!(&held[7..PAGES - 2], &reserved[7..PAGES - 2]);
                let (a, l) = (PAGES / 5, PAGES / 2);
                let of_kernel = kernel[a..a + l].iter().filter(|&&k| k).count();
                prop_assert_eq!(s.kernel_bytes(at(a), l * PAGE), of_kernel * PAGE);
                let (a, l) = (PAGES / 3, 17);
                prop_assert_eq!(s.is_allocated(at(a), l * PAGE), all(&used, a, l, true));
            }
        }
    }
}
