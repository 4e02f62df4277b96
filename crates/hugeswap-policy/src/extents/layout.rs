//! Which clusters to take first: by how they lie on their device.
//!
//! Two bits a cluster, shared by all processes of the pool, say whether it has blocks of the device, and whether those are
//! in one piece, so that one transfer of the whole is one stretch of the device. Where whole units go, those in one piece
//! come first; for single slots those in several pieces do, which lose nothing by it.
//!
//! A third bit says that a cluster is *raw*: some of its blocks were given to it, but never written, which the first write has to make known
//! to the file system.
//!
//! The bits are hints: whoever gives a cluster its blocks sets them, and a claim that goes by old ones is only less good.
//! They are looked at 64 clusters at a time. No lock; may be called from the fault path.

use crate::cell::Cell;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

/// How a cluster lies on its device, as far as that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Nowhere yet: the first write finds blocks for it.
    Nowhere,
    /// In one piece.
    Together,
    /// In several pieces.
    Apart,
}

/// How all clusters lie.
#[derive(Clone, Copy)]
pub struct Lies<'a> {
    together: &'a [AtomicU64],
    apart: &'a [AtomicU64],
    raw: &'a [AtomicU64],
}

/// Where a claim looks.
#[derive(Clone, Debug)]
pub struct Order {
    /// Clusters it may take.
    pub within: Range<usize>,
    /// Those of them near the claimer's others.
    pub near: Range<usize>,
    /// Where its sequence goes on.
    pub from: usize,
    /// Where it would go on if it were not to stay near.
    pub far: usize,
    /// May it take a cluster that lies nowhere yet?
    pub grow: bool,
}

/// Maps of one bit a cluster that [`Lies`] needs.
pub const MAPS: usize = 3;

/// Words for the bits of so many clusters.
pub const fn words(clusters: usize) -> usize {
    clusters.div_ceil(64)
}

impl<'a> Lies<'a> {
    /// Of as many clusters as there are bits, in three maps of equal length.
    pub fn new(together: &'a [AtomicU64], apart: &'a [AtomicU64], raw: &'a [AtomicU64]) -> Self {
        debug_assert!(together.len() == apart.len() && apart.len() == raw.len());
        Lies {
            together,
            apart,
            raw,
        }
    }

    /// How cluster `i` lies.
    pub fn of(&self, i: usize) -> Lie {
        match (bit(self.together, i), bit(self.apart, i)) {
            (true, _) => Lie::Together,
            (false, true) => Lie::Apart,
            (false, false) => Lie::Nowhere,
        }
    }

    /// Notes how cluster `i` lies. True if nothing was known of it, which of several who note the same only one is told.
    pub fn note(&self, i: usize, lie: Lie) -> bool {
        let known = [
            set(self.together, i, lie == Lie::Together),
            set(self.apart, i, lie == Lie::Apart),
        ];
        !known.contains(&true)
    }

    /// Is cluster `i` raw?
    pub fn is_raw(&self, i: usize) -> bool {
        bit(self.raw, i)
    }

    /// Notes whether cluster `i` is raw. Nothing is written where that is known.
    pub fn note_raw(&self, i: usize, raw: bool) {
        if self.is_raw(i) != raw {
            set(self.raw, i, raw);
        }
    }

    fn map(&self, lie: Lie) -> &'a [AtomicU64] {
        match lie {
            Lie::Together => self.together,
            Lie::Apart => self.apart,
            Lie::Nowhere => &[],
        }
    }

    /// The first cluster that `take` takes: of those near that lie as `prefer` says, else of all of those, else of the
    /// rest in sequence. Before it leaves what is near for one that lies better elsewhere it takes one that lies nowhere
    /// yet, if it may, for that may turn out as good. `words`: the clusters' words, of which a free one is 0.
    pub fn find<W: Cell<u32>>(
        &self,
        words: &[W],
        order: &Order,
        prefer: Lie,
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
        if self.of(next) != Lie::Nowhere || !order.grow {
            let other = match prefer {
                Lie::Apart => Lie::Together,
                _ => Lie::Apart,
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

    fn maps(lies: &[Lie]) -> [Vec<AtomicU64>; 3] {
        let map = || (0..words(lies.len())).map(|_| AtomicU64::new(0)).collect();
        [map(), map(), map()]
    }

    fn lie() -> impl Strategy<Value = Lie> {
        prop_oneof![Just(Lie::Nowhere), Just(Lie::Together), Just(Lie::Apart)]
    }

    proptest! {
        /// Whatever is free is found, and what is found is as good as the rules say.
        #[test]
        fn what_is_found_is_free_and_the_best(
            clusters in prop::collection::vec((lie(), 0..3u8), 1..200),
            (a, b, c, d) in (0..220usize, 0..220usize, 0..220usize, 0..220usize),
            from in 0..220usize,
            far in 0..220usize,
            grow: bool,
            apart_first: bool,
        ) {
            let lies: Vec<_> = clusters.iter().map(|c| c.0).collect();
            let [together, apart, raw] = maps(&lies);
            let known = Lies::new(&together, &apart, &raw);
            for (i, &l) in lies.iter().enumerate() {
                known.note_raw(i, true);
                known.note_raw(i, i % 2 == 0);
                // Noted over what was known before.
                known.note(i, [Lie::Nowhere, Lie::Together, Lie::Apart][i % 3]);
                known.note(i, l);
                prop_assert_eq!(known.of(i), l);
            }
            prop_assert!((0..lies.len()).all(|i| known.is_raw(i) == (i % 2 == 0)));
            let taken: Vec<_> = clusters.iter().map(|c| AtomicU32::new((c.1 == 0).into())).collect();
            let order = Order { within: a.min(b)..a.max(b), near: c.min(d)..c.max(d), from, far, grow };
            let prefer = if apart_first { Lie::Apart } else { Lie::Together };
            let mut asked = Vec::new();
            let found = known.find(&taken, &order, prefer, |i| { asked.push(i); true });
            prop_assert!(asked.len() <= 1 && asked.first().copied() == found);
            let free: Vec<_> = (0..lies.len())
                .filter(|&i| order.within.contains(&i) && clusters[i].1 != 0)
                .collect();
            let best: Vec<_> = free.iter().copied().filter(|&i| lies[i] == prefer).collect();
            let Some(i) = found else {
                prop_assert!(free.iter().all(|&i| !grow && lies[i] == Lie::Nowhere));
                return Ok(());
            };
            prop_assert!(free.contains(&i));
            prop_assert!(grow || lies[i] != Lie::Nowhere);
            let near = |i: &usize| order.near.contains(i);
            if best.iter().any(near) {
                prop_assert!(best.contains(&i) && near(&i));
            } else if !best.is_empty() && lies[i] != prefer {
                prop_assert_eq!(lies[i], Lie::Nowhere);
            }
        }
    }

    #[test]
    fn a_sequence_skips_what_is_apart_and_comes_back_to_it() {
        use Lie::{Apart, Nowhere, Together};
        let lies = [Together, Apart, Together, Apart, Together, Nowhere, Nowhere];
        let [together, apart, raw] = maps(&lies);
        let known = Lies::new(&together, &apart, &raw);
        for (i, &l) in lies.iter().enumerate() {
            known.note(i, l);
        }
        let words: Vec<_> = lies.iter().map(|_| AtomicU32::new(0)).collect();
        let claim = |from: usize, grow: bool, prefer: Lie| {
            let order = Order {
                within: 0..7,
                near: 0..7,
                from,
                far: from,
                grow,
            };
            known.find(&words, &order, prefer, |i| words[i].change(0, 1).is_ok())
        };
        let whole = |from| claim(from, true, Together);
        assert_eq!((whole(0), whole(1), whole(3)), (Some(0), Some(2), Some(4)));
        assert_eq!(whole(5), Some(5), "what lies nowhere may be as good");
        assert_eq!(claim(6, true, Apart), Some(1));
        assert_eq!(claim(6, false, Together), Some(3), "it may not grow");
        assert_eq!(claim(6, false, Together), None);
        assert_eq!(claim(0, true, Together), Some(6));
        assert_eq!(claim(0, true, Together), None);
    }

    #[test]
    fn who_is_beaten_to_it_looks_on() {
        let [together, apart, raw] = maps(&[Lie::Together; 70]);
        let known = Lies::new(&together, &apart, &raw);
        for i in 0..70 {
            known.note(i, Lie::Together);
        }
        let words: Vec<_> = (0..70).map(|_| AtomicU32::new(0)).collect();
        let order = Order {
            within: 0..70,
            near: 0..70,
            from: 60,
            far: 60,
            grow: true,
        };
        let found = known.find(&words, &order, Lie::Together, |i| i == 3);
        assert_eq!(found, Some(3));
        assert_eq!(known.find(&words, &order, Lie::Together, |_| false), None);
    }
}
