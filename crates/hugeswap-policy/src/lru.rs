//! Which unit goes next: least recently used order over unit numbers.
//!
//! [`Reclaim`] is what the engine asks of any such policy; [`Lru`] is the plain
//! one. A list holds each unit at most once, newest first. Every operation
//! but [`Reclaim::isolate`] takes constant time, and nothing allocates
//! after construction.
//!
//! Links are indices into one preallocated array that starts out as zeros, where
//! 0 means "not linked": of a list with room for millions of units, only the
//! parts that were used cost memory.
//!
//! Concurrency: none here; a list has one owner, and faults are fed to it in batches.

/// What reclaim needs to know of an ordering of units.
///
/// Unit numbers are below the capacity the implementation was made for; a larger one panics.
pub trait Reclaim {
    /// `unit` is newly resident.
    fn insert(&mut self, unit: u32);
    /// `unit` was touched. It is inserted if it was not there.
    fn reference(&mut self, unit: u32);
    /// `unit` is resident no more. Nothing happens if it was not there.
    fn remove(&mut self, unit: u32);
    /// `unit` was isolated but could not be reclaimed: it is not to be tried again soon.
    fn rotate(&mut self, unit: u32);
    /// Takes up to `max` units (and no more than fit `out`) that should go first, in
    /// that order, off the list; returns how many were written to `out`.
    fn isolate(&mut self, max: usize, out: &mut [u32]) -> usize;
    /// Units on the list.
    fn len(&self) -> usize;
    /// Is `unit` on the list?
    fn contains(&self, unit: u32) -> bool;
    /// Is the list empty?
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The list's own node: its `next` is the newest unit, its `prev` the oldest.
const ENDS: u32 = 1;
const NEXT: usize = 0;
const PREV: usize = 1;

/// A doubly linked list of units, least recently used at its end.
///
/// A node's name is unit + 2, so that 0 can say "not linked" and 1 can
/// be the node that closes the ring; node `x` has its links at `2 * (x - 1)`.
pub struct Lru {
    links: Vec<u32>,
    len: u32,
}

impl Lru {
    /// A list for units `0..capacity`; 8 bytes of address space each.
    ///
    /// # Panics
    /// If `capacity` is above `u32::MAX - 2`.
    pub fn new(capacity: u32) -> Lru {
        assert!(
            capacity <= u32::MAX - 2,
            "an LRU list holds at most 2^32 - 3 units"
        );
        let mut links = vec![0u32; 2 * (capacity as usize + 1)];
        links[NEXT] = ENDS;
        links[PREV] = ENDS;
        Lru { links, len: 0 }
    }

    fn at(node: u32, side: usize) -> usize {
        2 * (node as usize - 1) + side
    }

    fn link_newest(&mut self, node: u32) {
        let old = self.links[NEXT];
        self.links[Self::at(node, PREV)] = ENDS;
        self.links[Self::at(node, NEXT)] = old;
        self.links[Self::at(old, PREV)] = node;
        self.links[NEXT] = node;
        self.len += 1;
    }

    /// Takes a node out; false if it was not linked.
    fn unlink(&mut self, node: u32) -> bool {
        let (next, prev) = (
            self.links[Self::at(node, NEXT)],
            self.links[Self::at(node, PREV)],
        );
        if next == 0 {
            return false;
        }
        self.links[Self::at(prev, NEXT)] = next;
        self.links[Self::at(next, PREV)] = prev;
        self.links[Self::at(node, NEXT)] = 0;
        self.links[Self::at(node, PREV)] = 0;
        self.len -= 1;
        true
    }

    /// See [`Reclaim::insert`]; a unit already there becomes the newest.
    pub fn insert(&mut self, unit: u32) {
        self.reference(unit);
    }

    /// See [`Reclaim::reference`].
    pub fn reference(&mut self, unit: u32) {
        let node = unit + 2;
        if self.links[NEXT] != node {
            self.unlink(node);
            self.link_newest(node);
        }
    }

    /// See [`Reclaim::remove`].
    pub fn remove(&mut self, unit: u32) {
        self.unlink(unit + 2);
    }

    /// See [`Reclaim::rotate`].
    pub fn rotate(&mut self, unit: u32) {
        self.reference(unit);
    }

    /// See [`Reclaim::isolate`]: the oldest first.
    pub fn isolate(&mut self, max: usize, out: &mut [u32]) -> usize {
        let want = max.min(out.len()).min(self.len());
        for place in &mut out[..want] {
            let oldest = self.links[PREV];
            self.unlink(oldest);
            *place = oldest - 2;
        }
        want
    }

    /// See [`Reclaim::len`].
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Is the list empty?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// See [`Reclaim::contains`].
    pub fn contains(&self, unit: u32) -> bool {
        self.links[Self::at(unit + 2, NEXT)] != 0
    }
}

impl Reclaim for Lru {
    fn insert(&mut self, unit: u32) {
        Lru::insert(self, unit);
    }
    fn reference(&mut self, unit: u32) {
        Lru::reference(self, unit);
    }
    fn remove(&mut self, unit: u32) {
        Lru::remove(self, unit);
    }
    fn rotate(&mut self, unit: u32) {
        Lru::rotate(self, unit);
    }
    fn isolate(&mut self, max: usize, out: &mut [u32]) -> usize {
        Lru::isolate(self, max, out)
    }
    fn len(&self) -> usize {
        Lru::len(self)
    }
    fn contains(&self, unit: u32) -> bool {
        Lru::contains(self, unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[derive(Clone, Debug)]
    enum Op {
        Insert(u32),
        Reference(u32),
        Rotate(u32),
        Remove(u32),
        Isolate(usize),
    }

    fn op(capacity: u32) -> impl Strategy<Value = Op> {
        prop_oneof![
            (0..capacity).prop_map(Op::Insert),
            (0..capacity).prop_map(Op::Reference),
            (0..capacity).prop_map(Op::Rotate),
            (0..capacity).prop_map(Op::Remove),
            (0usize..6).prop_map(Op::Isolate),
        ]
    }

    proptest! {
        #[test]
        fn behaves_like_a_plain_list(ops in prop::collection::vec(op(12), 0..200)) {
            let mut lru = Lru::new(12);
            let mut model: VecDeque<u32> = VecDeque::new();
            for op in ops {
                match op {
                    Op::Insert(u) | Op::Reference(u) | Op::Rotate(u) => {
                        match op {
                            Op::Insert(_) => lru.insert(u),
                            Op::Reference(_) => lru.reference(u),
                            _ => lru.rotate(u),
                        }
                        model.retain(|&x| x != u);
                        model.push_front(u);
                    }
                    Op::Remove(u) => {
                        lru.remove(u);
                        model.retain(|&x| x != u);
                    }
                    Op::Isolate(max) => {
                        let mut out = [u32::MAX; 4];
                        let n = lru.isolate(max, &mut out);
                        let want: Vec<u32> =
                            (0..max.min(4)).map_while(|_| model.pop_back()).collect();
                        prop_assert_eq!(&out[..n], &want[..]);
                    }
                }
                prop_assert_eq!(lru.len(), model.len());
                prop_assert_eq!(lru.is_empty(), model.is_empty());
                for u in 0..12 {
                    prop_assert_eq!(lru.contains(u), model.contains(&u));
                }
            }
            let mut rest = [0; 12];
            let n = lru.isolate(12, &mut rest);
            prop_assert_eq!(&rest[..n], &model.iter().rev().copied().collect::<Vec<_>>()[..]);
        }
    }

    #[test]
    fn a_list_for_no_units_is_empty() {
        let mut lru = Lru::new(0);
        assert!(lru.is_empty());
        assert_eq!(lru.isolate(1, &mut [0]), 0);
    }
}
