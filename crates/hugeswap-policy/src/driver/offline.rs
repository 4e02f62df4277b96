//! Compares an order of reclaim with others on one trace: how many accesses find their unit in
//! memory with it, with plain LRU that sees every access, and at best.
//!
//! The order under test runs in a [`Machine`]: as in the engine, it does not see the touch of a
//! unit in memory unless the unit was watched. Plain LRU sees every touch, which no real memory
//! allows; and the optimum knows the future. Where accesses are drawn independently of each other
//! (uniform, by Zipf's law), the best expectation without knowledge of the future is to keep the
//! units that are accessed most.
//!
//! For comparisons, not for the engine: this module allocates as it goes.

mod traces;

pub use traces::{Trace, traces};

use super::{Access, Config, Machine};
use crate::counters::FaultClass;
use crate::workingset::lru::{Lru, Reclaim};
use crate::workingset::lruvec::Lruvecs;
use std::collections::BinaryHeap;
use std::sync::atomic::AtomicU16;

/// The lists of the engine for units `0..units`; `detection` turns on the use of refault distances.
pub fn lists(units: u32, detection: bool) -> impl Reclaim {
    let weights: Vec<AtomicU16> = (0..units).map(|_| AtomicU16::new(0)).collect();
    let mut lists = Lruvecs::new(units, weights);
    lists.set_detection(detection);
    lists
}

/// Number of accesses of a trace that found their unit in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hits {
    /// Units that memory holds.
    pub capacity: u32,
    /// Accesses, with the first to each unit.
    pub accesses: u64,
    /// Hits of the order under test.
    pub ours: u64,
    /// Hits of LRU that sees every access (the exact stack order).
    pub lru: u64,
    /// Hits if the units that are accessed most over the trace were kept, once there.
    pub hottest: u64,
    /// Upper bound: hits of Belady's MIN.
    pub best: u64,
}

impl Hits {
    /// Compares `policy`, which has room for the trace's units, with the other orders in memory of
    /// `capacity` units.
    ///
    /// # Panics
    /// If the capacity is 0.
    pub fn of<R: Reclaim>(trace: &Trace, capacity: u32, policy: R) -> Hits {
        Hits {
            capacity,
            accesses: trace.accesses.len() as u64,
            ours: replay(trace, capacity, policy),
            lru: lru(trace, capacity),
            hottest: hottest(trace, capacity),
            best: best(trace, capacity),
        }
    }

    /// A number of hits as a share of the accesses.
    pub fn rate(&self, hits: u64) -> f64 {
        hits as f64 / self.accesses.max(1) as f64
    }
}

/// Hits of `policy` in a machine without readahead, whose devices take no time.
///
/// # Panics
/// If the machine contradicts itself.
pub fn replay<R: Reclaim>(trace: &Trace, capacity: u32, policy: R) -> u64 {
    let config = Config {
        units: trace.units,
        budget: capacity,
        // Never half full, so clusters are kept.
        clusters: 2 * trace.units + 2,
        readahead_max: 0,
        io_steps: 0,
    };
    let mut machine = Machine::with_policy(config, policy);
    let mut written = vec![false; trace.units as usize];
    let mut hits = 0;
    for &unit in &trace.accesses {
        let first = !std::mem::replace(&mut written[unit as usize], true);
        let access = if first {
            Access::Write(unit)
        } else {
            Access::Read(unit)
        };
        match machine.step(access, &mut |_| ()) {
            Ok(None | Some(FaultClass::Soft)) => hits += 1,
            Ok(_) => {}
            Err(refused) => panic!("{}: {refused}", trace.name),
        }
    }
    machine.check().expect("the machine holds what was written");
    hits
}

/// Hits of LRU that sees every access.
pub fn lru(trace: &Trace, capacity: u32) -> u64 {
    let mut list = Lru::new(trace.units);
    let mut hits = 0;
    for &unit in &trace.accesses {
        if list.contains(unit) {
            hits += 1;
        } else if list.len() == capacity as usize {
            list.isolate(1, &mut [0]);
        }
        list.reference(unit);
    }
    hits
}

/// Hits if the units that are accessed most were kept, and one more place for all others.
pub fn hottest(trace: &Trace, capacity: u32) -> u64 {
    let mut counts = vec![0u64; trace.units as usize];
    trace.accesses.iter().for_each(|&u| counts[u as usize] += 1);
    counts.sort_unstable();
    let kept = counts.iter().rev().take(capacity as usize - 1);
    kept.map(|n| n.saturating_sub(1)).sum()
}

/// Largest number of hits: the unit that is used last is dropped first (L. Belady, "A study of
/// replacement algorithms for a virtual-storage computer", 1966). Takes O(n log n) of the accesses.
pub fn best(trace: &Trace, capacity: u32) -> u64 {
    let never = trace.accesses.len();
    let mut next = vec![never; trace.accesses.len()];
    let mut last = vec![never; trace.units as usize];
    for (at, &unit) in trace.accesses.iter().enumerate().rev() {
        next[at] = std::mem::replace(&mut last[unit as usize], at);
    }
    // Next use of each unit in memory; entries of the heap that differ are out of date.
    let mut due: Vec<Option<usize>> = vec![None; trace.units as usize];
    let mut furthest: BinaryHeap<(usize, u32)> = BinaryHeap::new();
    let (mut held, mut hits) = (0, 0);
    for (at, &unit) in trace.accesses.iter().enumerate() {
        if due[unit as usize].is_some() {
            hits += 1;
        } else if held < capacity {
            held += 1;
        } else {
            while let Some((when, other)) = furthest.pop() {
                if due[other as usize] == Some(when) {
                    due[other as usize] = None;
                    break;
                }
            }
        }
        due[unit as usize] = Some(next[at]);
        furthest.push((next[at], unit));
    }
    hits
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn trace(units: u32, accesses: Vec<u32>) -> Trace {
        Trace {
            name: "made up".into(),
            units,
            accesses,
            capacities: Vec::new(),
        }
    }

    /// Most hits over every choice of what to drop.
    fn tried_out(accesses: &[u32], capacity: usize, held: &mut Vec<u32>) -> u64 {
        let Some((&unit, rest)) = accesses.split_first() else {
            return 0;
        };
        if held.contains(&unit) {
            return 1 + tried_out(rest, capacity, held);
        }
        if held.len() < capacity {
            held.push(unit);
            let hits = tried_out(rest, capacity, held);
            held.pop();
            return hits;
        }
        let choices = 0..held.len();
        let hits = choices.map(|i| {
            let dropped = std::mem::replace(&mut held[i], unit);
            let hits = tried_out(rest, capacity, held);
            held[i] = dropped;
            hits
        });
        hits.max().unwrap_or(0)
    }

    proptest! {
        #[test]
        fn the_best_is_the_best(accesses in prop::collection::vec(0u32..5, 0..14), capacity in 1u32..4) {
            let t = trace(5, accesses.clone());
            prop_assert_eq!(best(&t, capacity), tried_out(&accesses, capacity as usize, &mut Vec::new()));
        }

        #[test]
        fn nobody_beats_the_best(accesses in prop::collection::vec(0u32..40, 0..400), capacity in 1u32..40) {
            let t = trace(40, accesses);
            let hits = Hits::of(&t, capacity, Lru::new(40));
            prop_assert!(hits.ours <= hits.best, "{:?}", hits);
            prop_assert!(hits.lru <= hits.best && hits.hottest <= hits.best, "{:?}", hits);
        }
    }

    #[test]
    fn a_loop_is_known() {
        // Over one unit more than there is room for, LRU finds nothing; at best one of every five
        // accesses misses.
        let t = trace(6, (0..6).cycle().take(6 * 100).collect());
        assert_eq!(lru(&t, 5), 0);
        assert_eq!(lru(&t, 6), 6 * 99);
        assert_eq!(best(&t, 5), 6 * 99 - 6 * 99 / 5);
    }
}
