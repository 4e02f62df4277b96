//! Which unit is reclaimed next: least recently used order over unit numbers.
//!
//! [`Reclaim`] is the interface of any such order; [`Lru`] is the plain one. A list holds each unit
//! at most once, newest first. Every operation but [`Reclaim::isolate`] takes constant time, and
//! nothing allocates after construction.
//!
//! Links are indices into one preallocated array of zeros, where 0 is "not linked": of lists with
//! room for millions of units, only the parts in use cost memory. Several lists over the same units
//! share the array ([`Rings`]).
//!
//! Concurrency: none. A list has one owner, and faults are passed to it in batches.

/// An order in which units are reclaimed.
///
/// Unit numbers are below the capacity that the order was made for; a larger number panics.
pub trait Reclaim {
    /// Adds `unit`, which is newly resident.
    fn insert(&mut self, unit: u32);
    /// Notes that `unit` was touched, and adds it if it is not there.
    fn reference(&mut self, unit: u32);
    /// Removes `unit`, which is no longer resident. Does nothing if it is not there.
    fn remove(&mut self, unit: u32);
    /// Puts back `unit`, which was isolated and could not be reclaimed, where its turn comes late.
    fn rotate(&mut self, unit: u32);
    /// Takes off the units that are to be reclaimed first, up to `max` and no more than fit `out`.
    /// Writes them to `out` in that order, and returns how many they are.
    fn isolate(&mut self, max: usize, out: &mut [u32]) -> usize;
    /// Number of units on the list.
    fn len(&self) -> usize;
    /// True if `unit` is on the list.
    fn contains(&self, unit: u32) -> bool;
    /// True if the list is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Several doubly linked rings over one set of units. Each unit is in at most one ring; the oldest
/// of each ring is at its end.
///
/// Ring `r` is closed by a node of its own, number `r + 1`. Unit `u` is node `u + rings + 1`, so
/// that 0 can stand for "not linked". Node `x` has its links at `2 * (x - 1)`.
pub(crate) struct Rings {
    links: Vec<u32>,
    /// Number of the ring that a unit is in, counted from 1; 0 for none.
    member: Vec<u8>,
    len: Vec<u32>,
}

const NEXT: usize = 0;
const PREV: usize = 1;

impl Rings {
    /// Rings `0..rings` for units `0..capacity`. Costs 9 bytes of address space a unit.
    ///
    /// # Panics
    /// If that makes 2^32 nodes, or there are more than 255 rings.
    pub fn new(capacity: u32, rings: usize) -> Rings {
        let nodes = capacity as usize + rings;
        assert!(
            nodes < u32::MAX as usize && rings < 256,
            "LRU lists hold at most 2^32 units, and there are at most 255"
        );
        let mut links = vec![0u32; 2 * nodes];
        for (end, pair) in links.chunks_exact_mut(2).take(rings).enumerate() {
            pair.fill(end as u32 + 1);
        }
        Rings {
            links,
            member: vec![0; capacity as usize],
            len: vec![0; rings],
        }
    }

    fn at(node: u32, side: usize) -> usize {
        2 * (node as usize - 1) + side
    }

    fn node(&self, unit: u32) -> u32 {
        unit + self.len.len() as u32 + 1
    }

    /// The ring that a unit is in.
    pub fn ring_of(&self, unit: u32) -> Option<usize> {
        usize::from(self.member[unit as usize]).checked_sub(1)
    }

    /// Number of units in a ring.
    pub fn len(&self, ring: usize) -> usize {
        self.len[ring] as usize
    }

    /// The unit that has been in a ring for longest.
    pub fn oldest(&self, ring: usize) -> Option<u32> {
        let node = self.links[Self::at(ring as u32 + 1, PREV)];
        node.checked_sub(self.len.len() as u32 + 1)
    }

    /// Makes a unit the newest of `ring`, wherever it was.
    pub fn put_newest(&mut self, unit: u32, ring: usize) {
        self.put(unit, ring, NEXT, PREV);
    }

    /// Makes a unit the oldest of `ring`, wherever it was.
    pub fn put_oldest(&mut self, unit: u32, ring: usize) {
        self.put(unit, ring, PREV, NEXT);
    }

    /// Puts a unit on one `side` of the node that closes a ring.
    fn put(&mut self, unit: u32, ring: usize, side: usize, other: usize) {
        self.remove(unit);
        let (node, end) = (self.node(unit), ring as u32 + 1);
        let old = self.links[Self::at(end, side)];
        self.links[Self::at(node, other)] = end;
        self.links[Self::at(node, side)] = old;
        self.links[Self::at(old, other)] = node;
        self.links[Self::at(end, side)] = node;
        self.member[unit as usize] = ring as u8 + 1;
        self.len[ring] += 1;
    }

    /// Takes a unit out of its ring, if it is in one.
    pub fn remove(&mut self, unit: u32) {
        let Some(ring) = self.ring_of(unit) else {
            return;
        };
        let node = self.node(unit);
        let (next, prev) = (
            self.links[Self::at(node, NEXT)],
            self.links[Self::at(node, PREV)],
        );
        self.links[Self::at(prev, NEXT)] = next;
        self.links[Self::at(next, PREV)] = prev;
        self.links[Self::at(node, NEXT)] = 0;
        self.links[Self::at(node, PREV)] = 0;
        self.member[unit as usize] = 0;
        self.len[ring] -= 1;
    }
}

/// One list in order of use: the plain policy.
pub struct Lru(Rings);

impl Lru {
    /// A list for units `0..capacity`. Costs 9 bytes of address space a unit.
    ///
    /// # Panics
    /// If `capacity` is above `u32::MAX - 2`.
    pub fn new(capacity: u32) -> Lru {
        Lru(Rings::new(capacity, 1))
    }

    /// See [`Reclaim::insert`]; a unit already there becomes the newest.
    pub fn insert(&mut self, unit: u32) {
        self.reference(unit);
    }

    /// See [`Reclaim::reference`].
    pub fn reference(&mut self, unit: u32) {
        self.0.put_newest(unit, 0);
    }

    /// See [`Reclaim::remove`].
    pub fn remove(&mut self, unit: u32) {
        self.0.remove(unit);
    }

    /// See [`Reclaim::rotate`].
    pub fn rotate(&mut self, unit: u32) {
        self.reference(unit);
    }

    /// See [`Reclaim::isolate`]: the oldest first.
    pub fn isolate(&mut self, max: usize, out: &mut [u32]) -> usize {
        let want = max.min(out.len());
        let mut n = 0;
        while n < want
            && let Some(oldest) = self.0.oldest(0)
        {
            self.0.remove(oldest);
            out[n] = oldest;
            n += 1;
        }
        n
    }

    /// See [`Reclaim::len`].
    pub fn len(&self) -> usize {
        self.0.len(0)
    }

    /// True if the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// See [`Reclaim::contains`].
    pub fn contains(&self, unit: u32) -> bool {
        self.0.ring_of(unit).is_some()
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
