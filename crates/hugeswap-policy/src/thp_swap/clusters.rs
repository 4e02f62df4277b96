//! Where in swap a unit goes: clusters of 2 MiB with an owner and a count.
//!
//! The pool segment has one 32-bit word for each cluster: the process record that owns it in the
//! upper half (0 is none), and the number of units that refer to it in the lower half. The word of
//! a free cluster is 0. A cluster is free, *whole* (of one unit) or *split* into slots of 4 KiB
//! that are handed out singly ([`slots`]); then the lower half says so and counts the slots in use.
//! Claiming is one compare-and-swap that names the owner, so whatever a process holds when it dies
//! is found again by the number of its record.
//!
//! All functions work on a shared slice of atomics and take no lock. They may be called from the
//! fault path.

use super::slots;
use std::sync::atomic::{AtomicU32, Ordering};

/// In the upper half of a word: the cluster belongs to no process and is never claimed, since its
/// device fails there.
const BAD: u16 = u16::MAX;
/// In the lower half of a word: the cluster is split.
pub(super) const SPLIT: u16 = 0x8000;
/// The largest number of units that can refer to a whole cluster.
const COUNT_MAX: u16 = SPLIT - 1;

pub(super) fn word(owner: u16, count: u16) -> u32 {
    (u32::from(owner) << 16) | u32::from(count)
}

/// Claims a free cluster for `owner` (not 0) and returns its number, or `None` if no cluster is
/// free. The search starts at `hint` and wraps around, so that a stream of claims is laid out in
/// sequence.
pub fn claim(map: &[AtomicU32], owner: u16, hint: usize) -> Option<usize> {
    debug_assert!(owner != 0);
    let n = map.len();
    if n == 0 {
        return None;
    }
    let start = hint % n;
    (start..n)
        .chain(0..start)
        .find(|&i| map[i].load(Ordering::Relaxed) == 0 && claim_at(map, owner, i))
}

/// Claims cluster `i` for `owner` (not 0) if it is free, and returns whether it was.
pub fn claim_at(map: &[AtomicU32], owner: u16, i: usize) -> bool {
    debug_assert!(owner != 0);
    map.get(i).is_some_and(|w| {
        w.compare_exchange(0, word(owner, 1), Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    })
}

/// The number of units that refer to whole cluster `i`.
pub fn count(map: &[AtomicU32], i: usize) -> u32 {
    match map[i].load(Ordering::Acquire) as u16 {
        c if c & SPLIT != 0 => 0,
        c => c.into(),
    }
}

/// Adds a reference to a whole cluster that has at least one (a fork). False, and nothing changed,
/// if the count is full or the cluster is free or split.
pub fn share(map: &[AtomicU32], i: usize) -> bool {
    map[i]
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, |w| {
            let c = w as u16;
            (c != 0 && c < COUNT_MAX).then_some(w + 1)
        })
        .is_ok()
}

/// Gives up one reference on behalf of process record `by`. True if the cluster is free now; false
/// also if it was free already or is split, and then nothing changes.
pub fn release(map: &[AtomicU32], i: usize, by: u16) -> bool {
    map[i]
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, |w| {
            let (owner, c) = ((w >> 16) as u16, w as u16);
            match c {
                _ if owner == BAD => None,
                0 | SPLIT.. => None,
                1 => Some(0),
                _ if owner == by => Some(word(0, c - 1)),
                _ => Some(word(owner, c - 1)),
            }
        })
        .is_ok_and(|old| old as u16 == 1)
}

/// Takes a cluster of process record `owner`, whole or split, out of use for good. False if the
/// owner is another.
pub fn quarantine(map: &[AtomicU32], i: usize, owner: u16) -> bool {
    let owned = |w: u32| (w != 0 && (w >> 16) as u16 == owner).then_some(word(BAD, 1));
    map.get(i).is_some_and(|cell| {
        cell.fetch_update(Ordering::AcqRel, Ordering::Acquire, owned)
            .is_ok()
    })
}

/// True for the word of a cluster that is never claimed again.
pub fn is_bad(word: u32) -> bool {
    (word >> 16) as u16 == BAD
}

/// Gives up everything that process record `dead` (not 0) owns, and returns how many clusters
/// became free.
///
/// Several processes may do this for the same record at once: each reference is given up once. The
/// record must not be handed out again before all of them are done.
pub fn release_owner(map: &[AtomicU32], dead: u16) -> usize {
    debug_assert!(dead != 0);
    let frees = |w: u32| matches!(w as u16, 1 | SPLIT..);
    let give_up = |w: u32| {
        let c = w as u16;
        let left = if frees(w) {
            0
        } else {
            word(0, c.saturating_sub(1))
        };
        ((w >> 16) as u16 == dead && c != 0).then_some(left)
    };
    map.iter()
        .filter(|cell| {
            cell.fetch_update(Ordering::AcqRel, Ordering::Acquire, give_up)
                .is_ok_and(frees)
        })
        .count()
}

/// The owner of the whole clusters of shared memory, which belong to no single process.
pub const SHARED: u16 = 0x7ff0;

/// Hands a whole cluster of `owner` with one reference over to shared memory. False if it is not
/// such a cluster.
pub fn share_out(map: &[AtomicU32], i: usize, owner: u16) -> bool {
    swap_word(map, i, word(owner, 1), word(SHARED, 1))
}

/// Frees a cluster of shared memory. False if it is none.
pub fn release_shared(map: &[AtomicU32], i: usize) -> bool {
    swap_word(map, i, word(SHARED, 1), 0)
}

/// True if cluster `i` belongs to shared memory.
pub fn is_shared(map: &[AtomicU32], i: usize) -> bool {
    map.get(i)
        .is_some_and(|w| w.load(Ordering::Acquire) == word(SHARED, 1))
}

fn swap_word(map: &[AtomicU32], i: usize, from: u32, to: u32) -> bool {
    map.get(i).is_some_and(|w| {
        w.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    })
}

/// The number of clusters in use, without bad ones.
pub fn used(map: &[AtomicU32]) -> usize {
    let used = |w: u32| w != 0 && !is_bad(w);
    map.iter()
        .filter(|w| used(w.load(Ordering::Relaxed)))
        .count()
}

/// What the clusters of a map are used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Number of clusters.
    pub clusters: u64,
    /// Free clusters.
    pub free: u64,
    /// Split clusters.
    pub split: u64,
    /// Slots of 4 KiB in use in split clusters.
    pub singles: u64,
    /// Clusters that are never used again.
    pub bad: u64,
}

impl Usage {
    /// Bytes in use.
    pub fn used_bytes(&self) -> u64 {
        let whole = self.clusters - self.free - self.split - self.bad;
        whole * crate::UNIT_BYTES + self.singles * crate::PAGE_BYTES
    }
}

impl std::ops::Add for Usage {
    type Output = Usage;
    fn add(self, other: Usage) -> Usage {
        Usage {
            clusters: self.clusters + other.clusters,
            free: self.free + other.free,
            split: self.split + other.split,
            singles: self.singles + other.singles,
            bad: self.bad + other.bad,
        }
    }
}

/// Counts what the clusters of `map` are used for. Exact if no cluster changes meanwhile.
pub fn usage(map: &[AtomicU32]) -> Usage {
    let mut u = Usage {
        clusters: map.len() as u64,
        ..Usage::default()
    };
    for w in map.iter().map(|w| w.load(Ordering::Relaxed)) {
        u.free += u64::from(w == 0);
        u.bad += u64::from(is_bad(w));
        if let Some(n) = slots::used_singly(w) {
            u.split += 1;
            u.singles += u64::from(n);
        }
    }
    u
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Barrier;

    fn map(n: usize) -> Vec<AtomicU32> {
        (0..n).map(|_| AtomicU32::new(0)).collect()
    }

    #[derive(Clone, Debug)]
    enum Op {
        Claim { owner: u16, hint: usize },
        Share(usize),
        Release { which: usize, by: u16 },
        Die(u16),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => (1u16..5, 0usize..40).prop_map(|(owner, hint)| Op::Claim { owner, hint }),
            2 => (0usize..12).prop_map(Op::Share),
            3 => (0usize..12, 1u16..5).prop_map(|(which, by)| Op::Release { which, by }),
            1 => (1u16..5).prop_map(Op::Die),
        ]
    }

    proptest! {
        #[test]
        fn agrees_with_a_model(ops in prop::collection::vec(op(), 0..300)) {
            // The model: the owner of a cluster, if any, and how many units refer to it.
            let map = map(12);
            let mut model = [(None::<u16>, 0u32); 12];
            for op in ops {
                match op {
                    Op::Claim { owner, hint } => {
                        let want = (0..12).map(|k| (hint + k) % 12).find(|&i| model[i].1 == 0);
                        prop_assert_eq!(claim(&map, owner, hint), want);
                        if let Some(i) = want { model[i] = (Some(owner), 1); }
                    }
                    Op::Share(i) => {
                        let live = model[i].1 > 0;
                        prop_assert_eq!(share(&map, i), live);
                        if live { model[i].1 += 1; }
                    }
                    Op::Release { which, by } => {
                        let (owner, n) = model[which];
                        prop_assert_eq!(release(&map, which, by), n == 1);
                        if n > 0 {
                            let owner = owner.filter(|&o| o != by && n > 1);
                            model[which] = (owner, n - 1);
                        }
                    }
                    Op::Die(dead) => {
                        let mut freed = 0;
                        for m in model.iter_mut().filter(|m| m.0 == Some(dead)) {
                            *m = (None, m.1 - 1);
                            freed += usize::from(m.1 == 0);
                        }
                        prop_assert_eq!(release_owner(&map, dead), freed);
                        prop_assert_eq!(release_owner(&map, dead), 0, "a second death");
                    }
                }
                for (i, m) in model.iter().enumerate() {
                    prop_assert_eq!(count(&map, i), m.1);
                    prop_assert_eq!((map[i].load(Ordering::Relaxed) >> 16) as u16, m.0.unwrap_or(0));
                }
                prop_assert_eq!(used(&map), model.iter().filter(|m| m.1 > 0).count());
            }
        }
    }

    #[test]
    fn a_full_count_is_refused() {
        let map = map(1);
        assert_eq!(claim(&map, 7, 0), Some(0));
        assert!((1..COUNT_MAX).all(|_| share(&map, 0)));
        assert!(!share(&map, 0));
        assert_eq!(count(&map, 0), COUNT_MAX.into());
        assert!((1..COUNT_MAX).all(|_| !release(&map, 0, 8)));
        assert!(release(&map, 0, 7));
        assert!(!release(&map, 0, 7));
        assert_eq!(used(&map), 0);
    }

    #[test]
    fn what_is_bad_is_nobodys() {
        let map = map(3);
        assert_eq!(claim(&map, 7, 0), Some(0));
        assert_eq!(claim(&map, 7, 1), Some(1));
        assert!(!quarantine(&map, 0, 8) && !quarantine(&map, 2, 7) && !quarantine(&map, 9, 7));
        assert!(quarantine(&map, 0, 7));
        assert!(!release(&map, 0, 7));
        assert_eq!(release_owner(&map, 7), 1);
        assert_eq!(claim(&map, 7, 0), Some(1));
        assert_eq!(claim(&map, 7, 0), Some(2));
        assert_eq!(claim(&map, 7, 0), None);
        let u = usage(&map);
        assert_eq!((u.clusters, u.free, u.bad, used(&map)), (3, 0, 1, 2));
        assert_eq!(u.used_bytes(), 2 * crate::UNIT_BYTES);
    }

    #[test]
    fn what_is_shared_is_no_processs() {
        let map = map(2);
        assert_eq!(claim(&map, 7, 0), Some(0));
        assert!(!share_out(&map, 0, 8) && !share_out(&map, 1, 7) && !share_out(&map, 9, 7));
        assert!(!is_shared(&map, 0) && !release_shared(&map, 0));
        assert!(share_out(&map, 0, 7) && is_shared(&map, 0) && !is_shared(&map, 9));
        assert_eq!(release_owner(&map, 7), 0);
        assert!(release_shared(&map, 0) && !release_shared(&map, 0));
        assert_eq!(used(&map), 0);
    }

    #[test]
    fn a_map_of_nothing_has_no_cluster() {
        assert_eq!(claim(&[], 1, 3), None);
    }

    /// Threads stand for processes: each claims, shares with itself, releases, and keeps what it
    /// has at the end. `refs` is the truth, changed while the reference is held: it can only be 0
    /// when a claim succeeds.
    #[test]
    fn racing_claims_never_meet_and_lose_nothing() {
        const THREADS: u16 = 4;
        for clusters in [3, 40] {
            let map = map(clusters);
            let refs: Vec<AtomicU32> = (0..clusters).map(|_| AtomicU32::new(0)).collect();
            let start = Barrier::new(THREADS.into());
            let kept: usize = std::thread::scope(|scope| {
                let workers: Vec<_> = (1..=THREADS)
                    .map(|me| {
                        let (map, refs, start) = (&map, &refs, &start);
                        scope.spawn(move || {
                            let mut held: Vec<usize> = Vec::new();
                            let mut x = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(me.into());
                            start.wait();
                            for _ in 0..20_000 {
                                x ^= x << 13;
                                x ^= x >> 7;
                                x ^= x << 17;
                                match x % 5 {
                                    0 | 1 => {
                                        if let Some(i) = claim(map, me, (x >> 8) as usize) {
                                            let before = refs[i].fetch_add(1, Ordering::SeqCst);
                                            assert_eq!(before, 0, "cluster {i} was in use");
                                            held.push(i);
                                        }
                                    }
                                    2 if !held.is_empty() => {
                                        let i = held[(x >> 8) as usize % held.len()];
                                        assert!(share(map, i));
                                        refs[i].fetch_add(1, Ordering::SeqCst);
                                        held.push(i);
                                    }
                                    _ if !held.is_empty() => {
                                        let i = held.swap_remove((x >> 8) as usize % held.len());
                                        refs[i].fetch_sub(1, Ordering::SeqCst);
                                        let last = !held.contains(&i);
                                        assert_eq!(release(map, i, me), last);
                                    }
                                    _ => {}
                                }
                            }
                            held.len()
                        })
                    })
                    .collect();
                workers.into_iter().map(|w| w.join().unwrap()).sum()
            });
            let counted: u32 = (0..clusters).map(|i| count(&map, i)).sum();
            assert_eq!(counted as usize, kept);
            for (i, n) in refs.iter().enumerate() {
                assert_eq!(count(&map, i), n.load(Ordering::SeqCst));
            }
        }
    }

    /// Every third cluster is also used by a relative. Its owner dies, and several survivors
    /// notice it at the same time, while another process goes on claiming.
    #[test]
    fn a_death_noticed_by_many_frees_exactly_its_own() {
        const DEAD: u16 = 1;
        const OTHER: u16 = 2;
        for _ in 0..50 {
            let map = map(300);
            for i in 0..200 {
                assert_eq!(
                    claim(&map, if i % 2 == 0 { DEAD } else { OTHER }, i),
                    Some(i)
                );
                if i % 3 == 0 {
                    assert!(share(&map, i));
                }
            }
            let start = Barrier::new(4);
            let (freed, claimed) = std::thread::scope(|scope| {
                let survivors: Vec<_> = (0..3)
                    .map(|_| {
                        scope.spawn(|| {
                            start.wait();
                            release_owner(&map, DEAD)
                        })
                    })
                    .collect();
                let busy = scope.spawn(|| {
                    start.wait();
                    (0..100).filter_map(|_| claim(&map, OTHER, 0)).count()
                });
                let freed: usize = survivors.into_iter().map(|s| s.join().unwrap()).sum();
                (freed, busy.join().unwrap())
            });
            let shared = (0..200).filter(|i| i % 2 == 0 && i % 3 == 0).count();
            assert_eq!(freed, 100 - shared);
            assert_eq!(used(&map), 200 - freed + claimed);
            for i in (0..200).filter(|i| i % 2 == 0 && i % 3 == 0) {
                assert_eq!(count(&map, i), 1, "the relative still uses {i}");
            }
            for i in (0..200).filter(|i| i % 2 == 1) {
                assert_eq!(count(&map, i), 1 + u32::from(i % 3 == 0));
            }
        }
    }
}
