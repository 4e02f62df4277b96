//! Split clusters: the 512 slots of 4 KiB of a cluster, handed out singly.
//!
//! A split cluster belongs to one process record, named by its word as that of a whole cluster is.
//! The rest of the word counts the slots in use, and a bitmap beside the word says which they are.
//! Several threads of the owner claim and free at once, without a lock. The order of their steps
//! makes that safe:
//!
//! * a claim *reserves* slots by counting up the word, and only then sets bits; freeing clears
//!   bits, and only then counts down. So there are never more bits set than the word counts, and a
//!   thread that has reserved slots always finds as many bits clear;
//! * a thread that counts down to nothing makes the word 0 in the same step: the cluster is free,
//!   no bit is set, and no thread has slots reserved in it. Any process may claim it whole;
//! * a cluster that was just claimed is marked full until its opener has cleared the bitmap, which
//!   a dead owner may have left set.
//!
//! A process that dies at any step leaves words that name its record; its bitmaps are of no
//! interest then. The protocol is explored by loom (`tests/split_loom.rs`).

use super::clusters::{SPLIT, word};
use crate::cell::Cell;
use std::ops::Range;

/// In the count of a word: the thread that claimed the cluster is opening it. Counts as full.
const OPENING: u16 = SPLIT | 0x7fff;
/// Number of words in the bitmap of a cluster.
pub const MAP_WORDS: usize = crate::UNIT_PAGES as usize / 64;

/// The clusters of a pool as seen by one process record. Cheap to make.
pub struct Clusters<'a, W, B> {
    words: &'a [W],
    bits: &'a [B],
    /// Words of each bitmap.
    per: usize,
    owner: u16,
}

/// The number of slots in use in a split cluster, by its word, or `None` if it is not split.
pub fn used_singly(word: u32) -> Option<u32> {
    let count = word as u16;
    (count & SPLIT != 0).then_some(match count {
        OPENING => 0,
        c => u32::from(c & !SPLIT),
    })
}

impl<'a, W: Cell<u32>, B: Cell<u64>> Clusters<'a, W, B> {
    /// The clusters of `owner` (not 0). `bits` has `per` words for each cluster ([`MAP_WORDS`] but
    /// in tests).
    pub fn new(words: &'a [W], bits: &'a [B], per: usize, owner: u16) -> Self {
        debug_assert!(owner != 0 && bits.len() == words.len() * per);
        Clusters {
            words,
            bits,
            per,
            owner,
        }
    }

    fn slots(&self) -> u16 {
        self.per as u16 * 64
    }

    fn map(&self, i: usize) -> &'a [B] {
        self.bits
            .get(i * self.per..(i + 1) * self.per)
            .unwrap_or(&[])
    }

    /// The count of a cluster that is split, open and the owner's.
    fn count(&self, word: u32) -> Option<u16> {
        let count = word as u16;
        let ours = (word >> 16) as u16 == self.owner && count & SPLIT != 0 && count != OPENING;
        ours.then_some(count & !SPLIT)
    }

    /// Number of clusters.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// True if there are no clusters.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// True if cluster `i` is split and belongs to the owner.
    pub fn is_ours(&self, i: usize) -> bool {
        self.words
            .get(i)
            .is_some_and(|w| self.count(w.get()).is_some())
    }

    /// The number of free slots of cluster `i`, or `None` if it is not split or not the owner's.
    pub fn room(&self, i: usize) -> Option<u32> {
        let n = self.count(self.words.get(i)?.get())?;
        Some(u32::from(self.slots().saturating_sub(n)))
    }

    /// Splits a free cluster of `among` and claims its first `want` slots (at least 1). The search
    /// starts at the `hint`th cluster of `among` and wraps around.
    pub fn open(&self, among: Range<usize>, hint: usize, want: usize) -> Option<usize> {
        let among = among.start..among.end.min(self.words.len());
        let start = among.start + hint.checked_rem(among.len())?;
        (start..among.end)
            .chain(among.start..start)
            .find(|&i| self.open_at(i, want))
    }

    /// Splits cluster `i` if it is free, and claims its first `want` slots (at least 1). Returns
    /// whether it was free.
    pub fn open_at(&self, i: usize, want: usize) -> bool {
        let opening = word(self.owner, OPENING);
        if self.words[i].get() != 0 || self.words[i].change(0, opening).is_err() {
            return false;
        }
        let want = want.clamp(1, self.slots().into());
        for (k, b) in self.map(i).iter().enumerate() {
            b.put(mask(k, &(0..want)));
        }
        // No other thread changes a cluster that is being opened.
        self.words[i].put(word(self.owner, SPLIT | want as u16));
        true
    }

    /// Splits a whole cluster of the owner where it is, with all slots in use. False if it is not
    /// such a cluster.
    pub fn split(&self, i: usize) -> bool {
        let whole = |w: &&W| {
            w.change(word(self.owner, 1), word(self.owner, OPENING))
                .is_ok()
        };
        let Some(w) = self.words.get(i).filter(whole) else {
            return false;
        };
        self.map(i).iter().for_each(|b| b.put(u64::MAX));
        w.put(word(self.owner, SPLIT | self.slots()));
        true
    }

    /// Claims up to `want` neighbouring slots of a split cluster of the owner: the shortest free
    /// run that is long enough, or else the longest. `None` if the cluster has no room.
    pub fn claim(&self, i: usize, want: usize) -> Option<Range<usize>> {
        let cell = self.words.get(i)?;
        let mut w = cell.get();
        let reserved = loop {
            let n = self.count(w)?;
            let take = (want as u16).min(self.slots().saturating_sub(n));
            if take == 0 {
                return None;
            }
            match cell.change(w, w + u32::from(take)) {
                Ok(()) => break usize::from(take),
                Err(now) => w = now,
            }
        };
        let got = loop {
            // Other threads may be changing the bits; as many as were reserved are clear somewhere.
            if let Some(run) = self.run(i, reserved).and_then(|r| self.set(i, r)) {
                break run;
            }
        };
        self.count_down(i, reserved - got.len());
        Some(got)
    }

    /// Frees those of `slots` of cluster `i` that are in use. Returns how many they were, and
    /// whether the cluster is free now; none if the cluster is not split or belongs to another
    /// record.
    pub fn free(&self, i: usize, slots: Range<usize>) -> (usize, bool) {
        if !self.is_ours(i) {
            return (0, false);
        }
        let mut freed = 0;
        for (k, b) in self.map(i).iter().enumerate() {
            let m = mask(k, &slots);
            let mut bits = b.get();
            while m & bits != 0 {
                match b.change(bits, bits & !m) {
                    Ok(()) => {
                        freed += (bits & m).count_ones() as usize;
                        break;
                    }
                    Err(now) => bits = now,
                }
            }
        }
        (freed, self.count_down(i, freed))
    }

    /// True if slot `slot` of cluster `i` is in use, as far as can be seen while others change it.
    pub fn in_use(&self, i: usize, slot: usize) -> bool {
        let word = self.map(i).get(slot / 64);
        word.is_some_and(|b| b.get() >> (slot % 64) & 1 == 1)
    }

    fn count_down(&self, i: usize, by: usize) -> bool {
        if by == 0 {
            return false;
        }
        let mut w = self.words[i].get();
        while let Some(n) = self.count(w) {
            let left = n.saturating_sub(by as u16);
            let to = if left == 0 {
                0
            } else {
                word(self.owner, SPLIT | left)
            };
            match self.words[i].change(w, to) {
                Ok(()) => return left == 0,
                Err(now) => w = now,
            }
        }
        false
    }

    /// The run of free slots that [`Clusters::claim`] takes.
    fn run(&self, i: usize, want: usize) -> Option<Range<usize>> {
        let map = self.map(i);
        let slots = map.len() * 64;
        let mut best: Option<Range<usize>> = None;
        let mut at = 0;
        while let Some(start) = next(map, at, false) {
            let end = next(map, start, true).unwrap_or(slots);
            let fits = end - start >= want;
            let better = best.as_ref().is_none_or(|b| {
                let b_fits = b.len() >= want;
                match (fits, b_fits) {
                    (true, true) => end - start < b.len(),
                    (false, false) => end - start > b.len(),
                    (now, _) => now,
                }
            });
            if better {
                best = Some(start..end);
            }
            at = end;
        }
        best.map(|b| b.start..b.end.min(b.start + want))
    }

    /// Sets the bits of a run, as far as they are still clear, and returns those that it set.
    fn set(&self, i: usize, run: Range<usize>) -> Option<Range<usize>> {
        for (k, b) in self.map(i).iter().enumerate() {
            let m = mask(k, &run);
            if m == 0 {
                continue;
            }
            let mut bits = b.get();
            loop {
                if bits & m != 0 {
                    let end = (k * 64).max(run.start);
                    return (end > run.start).then_some(run.start..end);
                }
                match b.change(bits, bits | m) {
                    Ok(()) => break,
                    Err(now) => bits = now,
                }
            }
        }
        Some(run)
    }
}

/// The bits of `slots` that are in word `k` of a bitmap.
fn mask(k: usize, slots: &Range<usize>) -> u64 {
    let from = slots.start.clamp(k * 64, k * 64 + 64) - k * 64;
    let end = slots.end.clamp(k * 64, k * 64 + 64) - k * 64;
    if from < end {
        (u64::MAX >> (64 - (end - from))) << from
    } else {
        0
    }
}

/// The first slot at or after `from` that is in use, or that is free.
fn next<B: Cell<u64>>(map: &[B], from: usize, in_use: bool) -> Option<usize> {
    for (k, b) in map.iter().enumerate().skip(from / 64) {
        let bits = if in_use { b.get() } else { !b.get() };
        let bits = bits & mask(k, &(from..usize::MAX));
        if bits != 0 {
            return Some(k * 64 + bits.trailing_zeros() as usize);
        }
    }
    None
}

/// Number of clusters that [`Partial`] remembers.
const REMEMBERED: usize = 64;

/// Split clusters of one process that may have room. New slots come from the fullest of them that
/// has enough, so that the others empty and become whole again; another cluster is opened only when
/// none of these has room.
pub struct Partial {
    at: [u32; REMEMBERED],
    n: usize,
}

impl Default for Partial {
    fn default() -> Self {
        Partial {
            at: [0; REMEMBERED],
            n: 0,
        }
    }
}

impl Partial {
    /// The cluster to claim `want` slots from, or `None` if none has room. Clusters that `avoid`
    /// names are passed over.
    pub fn choose<W: Cell<u32>, B: Cell<u64>>(
        &mut self,
        of: &Clusters<'_, W, B>,
        want: usize,
        avoid: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let room = |i: u32| of.room(i as usize).filter(|&r| r > 0 && !avoid(i as usize));
        self.keep(|i| room(i).is_some());
        if self.n == 0 {
            for i in (0..of.len() as u32).filter(|&i| room(i).is_some()) {
                if self.n == REMEMBERED {
                    break;
                }
                self.remember(i);
            }
        }
        let known = || {
            self.at[..self.n]
                .iter()
                .filter_map(|&i| Some((room(i)?, i)))
        };
        let enough = known().filter(|(r, _)| *r as usize >= want).min();
        enough.or_else(|| known().max()).map(|(_, i)| i as usize)
    }

    /// Adds a cluster to choose from.
    pub fn remember(&mut self, i: u32) {
        if self.n < REMEMBERED && !self.at[..self.n].contains(&i) {
            self.at[self.n] = i;
            self.n += 1;
        }
    }

    /// Forgets all clusters.
    pub fn clear(&mut self) {
        self.n = 0;
    }

    fn keep(&mut self, wanted: impl Fn(u32) -> bool) {
        let mut n = 0;
        for k in 0..self.n {
            if wanted(self.at[k]) {
                self.at[n] = self.at[k];
                n += 1;
            }
        }
        self.n = n;
    }
}

#[cfg(test)]
mod tests {
    use super::super::clusters::{claim as claim_whole, release, release_owner, share, used};
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicU32, AtomicU64};

    const N: usize = 4;

    fn pool() -> (Vec<AtomicU32>, Vec<AtomicU64>) {
        (
            (0..N).map(|_| AtomicU32::new(0)).collect(),
            // The bits that dead owners left.
            (0..N * MAP_WORDS).map(|_| AtomicU64::new(0xa5a5)).collect(),
        )
    }

    #[derive(Clone, Debug)]
    enum Op {
        Open(u16, usize, usize),
        Claim(u16, usize, usize),
        Free(u16, usize, usize, usize),
        Choose(u16, usize),
        Whole(u16),
        Split(u16, usize),
        Die(u16),
    }

    fn op() -> impl Strategy<Value = Op> {
        let (who, i, i2, n) = (1u16..3, 0..N, 0..N, 0usize..600);
        prop_oneof![
            1 => (who.clone(), 0..9usize, 1..600usize).prop_map(|(o, h, w)| Op::Open(o, h, w)),
            4 => (who.clone(), i.clone(), 0..600usize).prop_map(|(o, i, w)| Op::Claim(o, i, w)),
            4 => (who.clone(), i, n.clone(), n).prop_map(|(o, i, a, b)| Op::Free(o, i, a.min(b), a.max(b))),
            2 => (who.clone(), 1..100usize).prop_map(|(o, w)| Op::Choose(o, w)),
            1 => who.clone().prop_map(Op::Whole),
            1 => (who.clone(), i2).prop_map(|(o, i)| Op::Split(o, i)),
            1 => who.prop_map(Op::Die),
        ]
    }

    proptest! {
        #[test]
        fn agrees_with_a_model(ops in prop::collection::vec(op(), 0..200)) {
            let (words, bits) = pool();
            let of = |o| Clusters::new(&words, &bits, MAP_WORDS, o);
            let mut partial = [Partial::default(), Partial::default()];
            // The owner of a cluster, and which of its slots are in use (all of them: whole).
            let mut model: Vec<Option<(u16, Option<BTreeSet<usize>>)>> = vec![None; N];
            for op in ops {
                match op {
                    Op::Open(o, hint, want) => {
                        let i = (0..N).map(|k| (hint + k) % N).find(|&i| model[i].is_none());
                        prop_assert_eq!(of(o).open(0..of(o).len(), hint, want), i);
                        if let Some(i) = i {
                            model[i] = Some((o, Some((0..want.min(512)).collect())));
                        }
                    }
                    Op::Claim(o, i, want) => {
                        let got = of(o).claim(i, want);
                        match &mut model[i] {
                            Some((owner, Some(used))) if *owner == o && used.len() < 512 && want > 0 => {
                                let got = got.expect("there is room");
                                prop_assert!(!got.is_empty() && got.len() <= want);
                                for s in got {
                                    prop_assert!(used.insert(s), "slot {} was in use", s);
                                }
                            }
                            _ => prop_assert_eq!(got, None),
                        }
                    }
                    Op::Free(o, i, a, b) => {
                        let mut want = 0;
                        if let Some((owner, Some(used))) = &mut model[i] && *owner == o {
                            want = used.range(a..b).count();
                            used.retain(|s| !(a..b).contains(s));
                            if used.is_empty() { model[i] = None; }
                        }
                        let emptied = want > 0 && model[i].is_none();
                        prop_assert_eq!(of(o).free(i, a..b), (want, emptied));
                    }
                    Op::Choose(o, want) => {
                        let room = |m: &Option<(u16, Option<BTreeSet<usize>>)>| match m {
                            Some((owner, Some(used))) if *owner == o && used.len() < 512 => 512 - used.len(),
                            _ => 0,
                        };
                        match partial[o as usize - 1].choose(&of(o), want, |_| false) {
                            None => prop_assert!(model.iter().all(|m| room(m) == 0)),
                            Some(i) => prop_assert!(room(&model[i]) > 0),
                        }
                    }
                    Op::Whole(o) => {
                        let i = model.iter().position(|m| m.is_none());
                        prop_assert_eq!(claim_whole(&words, o, 0), i);
                        if let Some(i) = i { model[i] = Some((o, None)); }
                    }
                    Op::Split(o, i) => {
                        let whole = model[i] == Some((o, None));
                        prop_assert_eq!(of(o).split(i), whole);
                        if whole { model[i] = Some((o, Some((0..512).collect()))); }
                    }
                    Op::Die(o) => {
                        let had = model.iter().filter(|m| m.as_ref().is_some_and(|m| m.0 == o)).count();
                        prop_assert_eq!(release_owner(&words, o), had);
                        model.iter_mut().filter(|m| m.as_ref().is_some_and(|m| m.0 == o)).for_each(|m| *m = None);
                    }
                }
                for (i, m) in model.iter().enumerate() {
                    let w = words[i].get();
                    match m {
                        None => prop_assert_eq!(w, 0),
                        Some((o, None)) => prop_assert_eq!(w, word(*o, 1)),
                        Some((o, Some(used))) => {
                            prop_assert_eq!(w >> 16, u32::from(*o));
                            prop_assert_eq!(used_singly(w), Some(used.len() as u32));
                            prop_assert_eq!(of(*o).room(i), Some(512 - used.len() as u32));
                            let set: BTreeSet<_> = (0..512).filter(|&s| of(*o).in_use(i, s)).collect();
                            prop_assert_eq!(&set, used);
                            prop_assert!(!share(&words, i) && !release(&words, i, *o));
                        }
                    }
                }
                prop_assert_eq!(used(&words), model.iter().flatten().count());
            }
        }
    }

    #[test]
    fn the_fullest_with_enough_room_comes_first() {
        let (words, bits) = pool();
        let c = Clusters::new(&words, &bits, MAP_WORDS, 7);
        assert_eq!(
            (
                c.open(0..3, 0, 100),
                c.open(0..3, 0, 500),
                c.open(0..3, 0, 200)
            ),
            (Some(0), Some(1), Some(2))
        );
        let mut p = Partial::default();
        assert_eq!(p.choose(&c, 12, |_| false), Some(1));
        assert_eq!(p.choose(&c, 13, |_| false), Some(2));
        assert_eq!(
            p.choose(&c, 512, |_| false),
            Some(0),
            "none has enough: the one with most"
        );
        assert_eq!(p.choose(&c, 12, |i| i == 1), Some(2));
        assert_eq!(c.free(1, 0..512), (500, true));
        assert_eq!(words[1].get(), 0, "nothing in use: free, and whole");
        assert_eq!(p.choose(&c, 12, |_| false), Some(2));
    }

    #[test]
    fn runs_are_fitted() {
        let (words, bits) = pool();
        let c = Clusters::new(&words, &bits, MAP_WORDS, 7);
        assert_eq!(c.open(0..3, 0, 512), Some(0));
        for hole in [10..20, 60..70, 100..164, 300..303] {
            c.free(0, hole);
        }
        assert_eq!(c.claim(0, 3), Some(300..303));
        assert_eq!(c.claim(0, 4), Some(10..14));
        assert_eq!(c.claim(0, 10), Some(60..70));
        assert_eq!(c.claim(0, 100), Some(100..164));
        assert_eq!(c.claim(0, 100), Some(14..20));
        assert_eq!(c.claim(0, 1), None);
    }
}
