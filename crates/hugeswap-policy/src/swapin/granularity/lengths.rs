//! How long runs of faults become, learnt from those that have ended.
//!
//! A program that copies, hashes or sorts blocks of some hundred KiB faults once on a place in no
//! order, and then goes on page by page as far as its block reaches. By the rule that a run is
//! expected to make as many steps as it has made ([`super::PageStreams`]) each block takes some
//! fifteen faults; where the lengths of runs are known, one or two.
//!
//! What is kept is how many runs ended at which length, in classes of powers of two with the mean
//! length of each. Of a run that has come so far, those that became longer tell how much more there
//! will be. From that the expected cost of bringing `n` pages at once is computed: their transfer,
//! their memory, and, for runs that go on beyond them, the least cost of what follows. The cheapest
//! `n` is brought.
//!
//! How far a run that got its pages at once used them is not seen. So now and then one of these runs
//! comes as if nothing were known, and counts for all that did not ([`TRIAL`]).
//!
//! The kernel's readahead of files learns the length of a sequence by its steps, too
//! (`ondemand_readahead`: the window doubles), and remembers nothing of those before.
//!
//! No allocation; constant time; the owner serialises calls.

use super::streams::Ended;
use super::{Costs, PIECE_PAGES};
use crate::UNIT_PAGES;

/// Classes of lengths: 1, 2, to 4, to 8 ... pages. The last is of those that are longer than a unit.
const CLASSES: usize = 11;
/// Runs after which older ones count half, and those without which nothing is expected.
const WINDOW: u32 = 512;
const FEW: u32 = 8;
/// One run of so many that would get more than the next page comes as if nothing were known.
pub(super) const TRIAL: u32 = 32;
/// Pages that are brought at once, at most: from there on a larger transfer is hardly cheaper by the
/// page, and stays longer with one that does not need it.
pub const LONGEST: u16 = 128;

/// What was learnt. About 100 bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct Lengths {
    /// Of the runs of each class: how many ended, and how long they were together, in pages.
    classes: [(u32, u32); CLASSES],
    all: u32,
    /// Runs that would get more, since the last trial.
    turn: u32,
}

fn class_of(pages: u32) -> usize {
    let log = u32::BITS - pages.max(1).saturating_sub(1).leading_zeros();
    (log as usize).min(CLASSES - 1)
}

impl Lengths {
    /// Notes that a run ended.
    pub(super) fn note(&mut self, run: Ended) {
        let Some((n, pages)) = self.classes.get_mut(class_of(run.pages)) else {
            return;
        };
        *n += run.weight;
        *pages = pages.saturating_add(run.pages.min(1 << 16) * run.weight);
        self.all += run.weight;
        if self.all >= WINDOW {
            self.all = 0;
            for (n, pages) in &mut self.classes {
                let mean = *pages / (*n).max(1);
                *n /= 2;
                *pages = *n * mean;
                self.all += *n;
            }
        }
    }

    /// How many pages to bring for a run that has made `before` pages, with that of its fault, which
    /// is `page` of its unit. 1: no more than that is expected.
    pub(super) fn pages(&self, costs: &Costs, before: u32, page: u16) -> u16 {
        // (The means of classes rise.)
        let mut longer = [(0, 0); CLASSES];
        let mut found = 0;
        for (n, pages) in self.classes.iter().filter(|(n, _)| *n > 0) {
            let length = pages / n;
            if length > before {
                longer[found] = (length, *n);
                found += 1;
            }
        }
        let longer = longer.get(..found).unwrap_or_default();
        let known: u32 = longer.iter().map(|(_, n)| n).sum();
        let go_on: u32 = longer
            .iter()
            .filter(|l| l.0 > before + 1)
            .map(|l| l.1)
            .sum();
        if known < FEW || go_on * 2 * u32::from(PIECE_PAGES) < known {
            return 1;
        }
        // Least costs from each length on, for the runs that became longer, from the longest on.
        let mut from = [0; CLASSES];
        let (mut left, mut best) = (0u32, before + 1);
        for i in (0..=found).rev() {
            let at = i.checked_sub(1).map_or(before, |i| longer[i].0);
            let (mut least, mut beyond) = (u64::MAX, left);
            for (j, &(length, n)) in longer.iter().enumerate().skip(i) {
                beyond -= n;
                let rest: u64 = from[j];
                let rest = rest.saturating_mul(beyond.into()) / u64::from(left.max(1));
                let cost = of_step(costs, length - at).saturating_add(rest);
                if cost < least {
                    (least, best) = (cost, length);
                }
            }
            if let Some(i) = i.checked_sub(1) {
                from[i] = if left > 0 { least } else { 0 };
                left += longer[i].1;
            }
        }
        let pages = u16::try_from(best - before)
            .unwrap_or(u16::MAX)
            .min(LONGEST);
        let end = match pages > PIECE_PAGES {
            // A few more are cheaper than another fault.
            true => (page + pages).next_multiple_of(PIECE_PAGES),
            false => page + pages,
        };
        end.min(UNIT_PAGES as u16)
            .saturating_sub(page)
            .clamp(1, LONGEST)
    }

    /// Is a run that would get more than its page to come as if nothing were known?
    pub(super) fn is_tried(&mut self) -> bool {
        self.turn = (self.turn + 1) % TRIAL;
        self.turn == 0
    }
}

/// The cost of bringing so many pages of a run.
fn of_step(costs: &Costs, pages: u32) -> u64 {
    let longest = u32::from(LONGEST);
    let of = |n: u32| match n {
        0 => 0,
        n => costs.of_pages(n as u16),
    };
    u64::from(pages / longest)
        .saturating_mul(of(longest))
        .saturating_add(of(pages % longest))
}

#[cfg(test)]
mod tests {
    use super::super::near::tests::mixed;
    use super::super::{Allowed, Density, Fault, Granularity, Near, Reason, STAY, UnitHistory};
    use super::*;
    use std::collections::{HashMap, VecDeque};

    /// 60 us a page, 110 us for 64 KiB, 1.9 ms for 2 MiB.
    const COSTS: Costs = Costs {
        page: 60_000,
        piece: 110_000,
        whole: 1_900_000,
        fill: 1_900_000,
        memory: 2_000,
    };
    const MEMORY: u64 = 32 * UNIT_PAGES;

    /// What faults took, in a memory of half of what is used, from which pages leave in the order in
    /// which they came.
    #[derive(Debug, Default)]
    struct Took {
        touches: u64,
        faults: u64,
        brought: u64,
        ns: u64,
        by: HashMap<Reason, u64>,
    }

    /// Touches the pages that `page` tells, until it has no more. What came for the first half of
    /// them is not counted.
    fn touch(pages: &[u64]) -> Took {
        let mut g = Granularity::new(7);
        let mut present = vec![false; 2 * MEMORY as usize];
        let mut came: VecDeque<u64> = VecDeque::new();
        let mut evicted = 0;
        let mut took = Took::default();
        let allowed = Allowed {
            whole: false,
            ..Allowed::ALL
        };
        for (i, &page) in pages.iter().enumerate() {
            if present[page as usize] {
                continue;
            }
            let first = page / UNIT_PAGES * UNIT_PAGES;
            let there =
                |range: std::ops::Range<u64>| range.filter(|&p| present[p as usize]).count() as u16;
            let in_piece = there(page / 16 * 16..page / 16 * 16 + 16);
            let fault = Fault {
                unit: page / UNIT_PAGES,
                page: (page % UNIT_PAGES) as u16,
                present: there(first..first + UNIT_PAGES),
                density: Density::UNKNOWN,
                stay: STAY,
                near: Near {
                    present: in_piece,
                    absent: 15 - in_piece,
                    evicted,
                    resident: came.len() as u64,
                    price: 0,
                },
            };
            let d = g.on_fault(&COSTS, allowed, &fault, UnitHistory::NEW);
            let counts = i >= pages.len() / 2;
            if counts {
                took.faults += 1;
                took.ns += COSTS.of_pages(d.pages.len() as u16);
                *took.by.entry(d.reason).or_default() += 1;
            }
            for p in d.pages.map(|p| first + u64::from(p)) {
                if !std::mem::replace(&mut present[p as usize], true) {
                    came.push_back(p);
                    took.brought += u64::from(counts);
                }
            }
            while came.len() as u64 > MEMORY {
                let oldest = came.pop_front().unwrap();
                present[oldest as usize] = false;
                evicted += 1;
            }
        }
        took.touches = pages.len() as u64 / 2;
        took
    }

    /// Blocks of `length` pages at random, by two threads in turn.
    fn blocks(length: u64) -> Vec<u64> {
        let blocks = 2 * MEMORY / length;
        let turns = 400_000 / (2 * length);
        let in_turn = |n: u64| (0..2 * length).map(move |i| (2 * n + i % 2, i / 2));
        let pages = (0..turns).flat_map(in_turn);
        pages
            .map(|(n, page)| mixed(n) % blocks * length + page)
            .collect()
    }

    #[test]
    fn blocks_come_by_one_or_two_faults() {
        for length in [32, 64, 128] {
            let took = touch(&blocks(length));
            let came = took.brought / length;
            assert!(took.faults < came * 5 / 2, "{length}: {took:?}");
            // Of half of what is used hardly more than half comes back.
            assert!(took.brought < took.touches * 7 / 10, "{length}: {took:?}");
        }
    }

    #[test]
    fn random_pages_come_alone() {
        let pages: Vec<u64> = (0..400_000).map(|n| mixed(n) % (2 * MEMORY)).collect();
        let took = touch(&pages);
        let ahead = took.by.get(&Reason::Ahead).copied().unwrap_or(0);
        assert!(ahead * 100 < took.faults, "{took:?}");
    }

    #[test]
    fn what_is_brought_costs_least_by_what_runs_became() {
        let learnt = |lengths: &[(u32, u32)]| {
            let mut seen = Lengths::default();
            for &(pages, runs) in lengths {
                (0..runs).for_each(|_| seen.note(Ended { pages, weight: 1 }));
            }
            seen
        };
        // Nothing is known, or too little.
        assert_eq!(learnt(&[]).pages(&COSTS, 0, 0), 1);
        assert_eq!(learnt(&[(100, FEW - 1)]).pages(&COSTS, 0, 0), 1);
        // All became 100 pages long: what is left of that, and as far as the next 64 KiB.
        let seen = learnt(&[(100, 50)]);
        assert_eq!(seen.pages(&COSTS, 0, 0), 112);
        assert_eq!(seen.pages(&COSTS, 2, 2), 110);
        assert_eq!(seen.pages(&COSTS, 100, 100), 1);
        // No more than is left of the unit, nor than at most.
        assert_eq!(seen.pages(&COSTS, 0, 500), 12);
        assert_eq!(learnt(&[(400, 50)]).pages(&COSTS, 0, 0), LONGEST);
        // One page in most cases: the second shows which it is.
        let seen = learnt(&[(1, 90), (100, 10)]);
        assert_eq!(seen.pages(&COSTS, 0, 0), 1);
        assert_eq!(seen.pages(&COSTS, 1, 1), 111);
        // Memory that is dear makes for smaller steps.
        let seen = learnt(&[(16, 2), (100, 48)]);
        let dear = Costs {
            memory: 60_000,
            ..COSTS
        };
        assert_eq!(seen.pages(&COSTS, 0, 0), 112);
        assert_eq!(seen.pages(&dear, 0, 0), 16);
        // What was long ago does not count.
        let mut seen = learnt(&[(100, 500)]);
        (0..4000).for_each(|_| {
            seen.note(Ended {
                pages: 1,
                weight: 1,
            })
        });
        assert_eq!(seen.pages(&COSTS, 0, 0), 1);
    }

    #[test]
    fn a_page_of_any_unit_at_any_length_is_within_it() {
        let mut seen = Lengths::default();
        for n in 0..5000 {
            let weight = if n % 7 == 0 { TRIAL } else { 1 };
            let pages = match n % 50 {
                0 => u32::MAX,
                _ => (mixed(n) >> 40) as u32 % 700,
            };
            seen.note(Ended { pages, weight });
            let page = (mixed(n) % UNIT_PAGES) as u16;
            let pages = seen.pages(&COSTS, (mixed(n) >> 32) as u32 % 600, page);
            assert!((1..=LONGEST).contains(&pages));
            assert!(page + pages <= UNIT_PAGES as u16);
        }
    }
}
