//! How clusters lie on their device, and which of them a claim takes first.
//!
//! All processes of the pool share three bits a cluster: whether its blocks are in one piece on the
//! device, so that one transfer of the cluster is one stretch of the device; whether they are in
//! several; and whether some of them were never written, which the first write has to make known to
//! the file system. A claim for a whole unit takes a cluster in one piece first; a claim for single
//! slots takes one in several pieces first, and loses nothing by it.
//!
//! The bits are hints: a process that gives a cluster its blocks sets them, and a claim that goes
//! by an old bit gets a worse cluster, not a wrong one. Claims look at the bits of 64 clusters at a
//! time. No lock; may be called from the fault path.

use crate::cell::Cell;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

/// How a cluster lies on its device, as far as that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// It has no blocks yet: the first write finds some.
    Unallocated,
    /// In one piece.
    Contiguous,
    /// In several pieces.
    Fragmented,
}

impl Layout {
    /// The layout of a cluster whose blocks are in so many pieces.
    pub fn in_pieces(pieces: u32) -> Layout {
        match pieces {
            0 => Layout::Unallocated,
            1 => Layout::Contiguous,
            _ => Layout::Fragmented,
        }
    }
}

/// How all clusters lie: three bits for each, in three maps.
#[derive(Clone, Copy)]
pub struct Layouts<'a> {
    contiguous: &'a [AtomicU64],
    fragmented: &'a [AtomicU64],
    unwritten: &'a [AtomicU64],
}

/// Where a claim looks for a cluster, and in which order.
#[derive(Clone, Debug)]
pub struct Order {
    /// The clusters that it may take.
    pub within: Range<usize>,
    /// Those of them that are near the other clusters of the process.
    pub near: Range<usize>,
    /// The cluster at which the sequence of the process goes on.
    pub from: usize,
    /// The cluster at which it goes on if it leaves `near`.
    pub far: usize,
    /// It may take a cluster that has no blocks yet.
    pub grow: bool,
}

/// Number of maps of one bit a cluster that [`Layouts`] needs.
pub const MAPS: usize = 3;

/// Number of words in the map of so many clusters.
pub const fn words(clusters: usize) -> usize {
    clusters.div_ceil(64)
}

impl<'a> Layouts<'a> {
    /// The layouts of as many clusters as there are bits in each map; the maps are equally long.
    pub fn new(
        contiguous: &'a [AtomicU64],
        fragmented: &'a [AtomicU64],
        unwritten: &'a [AtomicU64],
    ) -> Self {
        debug_assert!(contiguous.len() == fragmented.len());
        debug_assert!(fragmented.len() == unwritten.len());
        Layouts {
            contiguous,
            fragmented,
            unwritten,
        }
    }

    /// How cluster `i` lies.
    pub fn of(&self, i: usize) -> Layout {
        match (bit(self.contiguous, i), bit(self.fragmented, i)) {
            (true, _) => Layout::Contiguous,
            (false, true) => Layout::Fragmented,
            (false, false) => Layout::Unallocated,
        }
    }

    /// Notes how cluster `i` lies. True if nothing was known of it before; of several threads that
    /// note the same at once, one is told so.
    pub fn note(&self, i: usize, layout: Layout) -> bool {
        let known = [
            set(self.contiguous, i, layout == Layout::Contiguous),
            set(self.fragmented, i, layout == Layout::Fragmented),
        ];
        !known.contains(&true)
    }

    /// Was a part of cluster `i` given blocks, but never written?
    pub fn is_unwritten(&self, i: usize) -> bool {
        bit(self.unwritten, i)
    }

    /// Notes whether cluster `i` is unwritten. Writes nothing where that is known already.
    pub fn note_unwritten(&self, i: usize, unwritten: bool) {
        if self.is_unwritten(i) != unwritten {
            set(self.unwritten, i, unwritten);
        }
    }

    fn map(&self, layout: Layout) -> &'a [AtomicU64] {
        match layout {
            Layout::Contiguous => self.contiguous,
            Layout::Fragmented => self.fragmented,
            Layout::Unallocated => &[],
        }
    }

    /// The first free cluster that `take` accepts, in this order: a near one of the preferred
    /// layout; if `order.grow`, one without blocks where that comes next, for it may turn out as
    /// good; one of the preferred layout elsewhere; the rest in sequence. `words` are the words of
    /// the clusters, of which 0 is a free one ([`crate::thp_swap::clusters`]).
    pub fn find<W: Cell<u32>>(
        &self,
        words: &[W],
        order: &Order,
        prefer: Layout,
        mut take: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        let within = order.within.start..order.within.end.min(words.len());
        let near = order.near.start.max(within.start)..order.near.end.min(within.end);
        let mut free_and_taken = |i: usize| words[i].get() == 0 && take(i);
        let mut of_map = |range: &Range<usize>, from: usize, map| {
            around(range, from)
                .into_iter()
                .find_map(|part| first_set(map, part, &mut free_and_taken))
        };
        let preferred = self.map(prefer);
        if let Some(i) = of_map(&near, order.from, preferred) {
            return Some(i);
        }
        let parts = around(&within, order.from);
        let next = parts
            .iter()
            .find_map(|p| p.clone().find(|&i| words[i].get() == 0))?;
        if self.of(next) != Layout::Unallocated || !order.grow {
            let other = match prefer {
                Layout::Fragmented => Layout::Contiguous,
                _ => Layout::Fragmented,
            };
            let found = of_map(&within, order.far, preferred);
            if found.is_some() || !order.grow {
                return found.or_else(|| of_map(&within, order.from, self.map(other)));
            }
        }
        parts
            .into_iter()
            .find_map(|mut p| p.find(|&i| free_and_taken(i)))
    }
}

fn bit(map: &[AtomicU64], i: usize) -> bool {
    let word = map.get(i / 64).map_or(0, |w| w.load(Acquire));
    word >> (i % 64) & 1 == 1
}

/// Sets or clears a bit; what it was.
fn set(map: &[AtomicU64], i: usize, on: bool) -> bool {
    let (word, bit) = (map.get(i / 64), 1 << (i % 64));
    let old = word.map_or(0, |w| {
        if on {
            w.fetch_or(bit, AcqRel)
        } else {
            w.fetch_and(!bit, AcqRel)
        }
    });
    old & bit != 0
}

/// A range from a place in it on, and around the end.
fn around(range: &Range<usize>, from: usize) -> [Range<usize>; 2] {
    let from = if range.contains(&from) {
        from
    } else {
        range.start
    };
    [from..range.end, range.start..from]
}

/// The first bit of a range that is set and that `take` takes.
fn first_set(
    map: &[AtomicU64],
    range: Range<usize>,
    take: &mut impl FnMut(usize) -> bool,
) -> Option<usize> {
    let mut at = range.start;
    while at < range.end {
        let bits = map.get(at / 64)?.load(Relaxed) & (u64::MAX << (at % 64));
        let first = at / 64 * 64;
        let mut bits = bits;
        while bits != 0 {
            let i = first + bits.trailing_zeros() as usize;
            if i >= range.end {
                return None;
            }
            if take(i) {
                return Some(i);
            }
            bits &= bits - 1;
        }
        at = first + 64;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::AtomicU32;

    fn maps(layouts: &[Layout]) -> [Vec<AtomicU64>; 3] {
        let map = || {
            (0..words(layouts.len()))
                .map(|_| AtomicU64::new(0))
                .collect()
        };
        [map(), map(), map()]
    }

    fn layout() -> impl Strategy<Value = Layout> {
        prop_oneof![
            Just(Layout::Unallocated),
            Just(Layout::Contiguous),
            Just(Layout::Fragmented)
        ]
    }

    proptest! {
        /// Whatever is free is found, and what is found is as good as the rules say.
        #[test]
        fn what_is_found_is_free_and_the_best(
            clusters in prop::collection::vec((layout(), 0..3u8), 1..200),
            (a, b, c, d) in (0..220usize, 0..220usize, 0..220usize, 0..220usize),
            from in 0..220usize,
            far in 0..220usize,
            grow: bool,
            fragmented_first: bool,
        ) {
            let layouts: Vec<_> = clusters.iter().map(|c| c.0).collect();
            let [contiguous, fragmented, unwritten] = maps(&layouts);
            let known = Layouts::new(&contiguous, &fragmented, &unwritten);
            for (i, &l) in layouts.iter().enumerate() {
                known.note_unwritten(i, true);
                known.note_unwritten(i, i % 2 == 0);
                // Noted over what was known before.
                known.note(i, [Layout::Unallocated, Layout::Contiguous, Layout::Fragmented][i % 3]);
                known.note(i, l);
                prop_assert_eq!(known.of(i), l);
            }
            prop_assert!((0..layouts.len()).all(|i| known.is_unwritten(i) == (i % 2 == 0)));
            let taken: Vec<_> = clusters.iter().map(|c| AtomicU32::new((c.1 == 0).into())).collect();
            let order = Order { within: a.min(b)..a.max(b), near: c.min(d)..c.max(d), from, far, grow };
            let prefer = if fragmented_first { Layout::Fragmented } else { Layout::Contiguous };
            let mut asked = Vec::new();
            let found = known.find(&taken, &order, prefer, |i| { asked.push(i); true });
            prop_assert!(asked.len() <= 1 && asked.first().copied() == found);
            let free: Vec<_> = (0..layouts.len())
                .filter(|&i| order.within.contains(&i) && clusters[i].1 != 0)
                .collect();
            let best: Vec<_> = free.iter().copied().filter(|&i| layouts[i] == prefer).collect();
            let Some(i) = found else {
                prop_assert!(free.iter().all(|&i| !grow && layouts[i] == Layout::Unallocated));
                return Ok(());
            };
            prop_assert!(free.contains(&i));
            prop_assert!(grow || layouts[i] != Layout::Unallocated);
            let near = |i: &usize| order.near.contains(i);
            if best.iter().any(near) {
                prop_assert!(best.contains(&i) && near(&i));
            } else if !best.is_empty() && layouts[i] != prefer {
                prop_assert_eq!(layouts[i], Layout::Unallocated);
            }
        }
    }

    #[test]
    fn a_sequence_skips_fragmented_clusters_and_comes_back_to_them() {
        use Layout::{Contiguous, Fragmented, Unallocated};
        let layouts = [
            Contiguous,
            Fragmented,
            Contiguous,
            Fragmented,
            Contiguous,
            Unallocated,
            Unallocated,
        ];
        let [contiguous, fragmented, unwritten] = maps(&layouts);
        let known = Layouts::new(&contiguous, &fragmented, &unwritten);
        for (i, &l) in layouts.iter().enumerate() {
            known.note(i, l);
        }
        let words: Vec<_> = layouts.iter().map(|_| AtomicU32::new(0)).collect();
        let claim = |from: usize, grow: bool, prefer: Layout| {
            let order = Order {
                within: 0..7,
                near: 0..7,
                from,
                far: from,
                grow,
            };
            known.find(&words, &order, prefer, |i| words[i].change(0, 1).is_ok())
        };
        let whole = |from| claim(from, true, Contiguous);
        assert_eq!((whole(0), whole(1), whole(3)), (Some(0), Some(2), Some(4)));
        assert_eq!(
            whole(5),
            Some(5),
            "a cluster without blocks may turn out as good"
        );
        assert_eq!(claim(6, true, Fragmented), Some(1));
        assert_eq!(claim(6, false, Contiguous), Some(3), "it may not grow");
        assert_eq!(claim(6, false, Contiguous), None);
        assert_eq!(claim(0, true, Contiguous), Some(6));
        assert_eq!(claim(0, true, Contiguous), None);
    }

    #[test]
    fn a_claim_that_loses_a_cluster_to_another_looks_on() {
        let [contiguous, fragmented, unwritten] = maps(&[Layout::Contiguous; 70]);
        let known = Layouts::new(&contiguous, &fragmented, &unwritten);
        for i in 0..70 {
            known.note(i, Layout::Contiguous);
        }
        let words: Vec<_> = (0..70).map(|_| AtomicU32::new(0)).collect();
        let order = Order {
            within: 0..70,
            near: 0..70,
            from: 60,
            far: 60,
            grow: true,
        };
        let found = known.find(&words, &order, Layout::Contiguous, |i| i == 3);
        assert_eq!(found, Some(3));
        assert_eq!(
            known.find(&words, &order, Layout::Contiguous, |_| false),
            None
        );
    }
}
