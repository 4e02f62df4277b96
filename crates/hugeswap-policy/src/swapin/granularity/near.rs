//! Whether pages near a fault are used soon after it, in whatever order.
//!
//! Objects that were made together are often used together, and not in the order of their addresses:
//! what a garbage collector marks, nodes of a tree, the tables of a query. Such faults are no run, and
//! yet most pages of the 64 KiB around each are asked for soon. Random accesses look the same one by
//! one, and there nothing near is asked for.
//!
//! So it is observed. Of now and then a piece of 64 KiB (a *sample*), pages come one by one for as
//! long as a quarter of memory takes to be evicted. The faults on it tell how many more there are
//! after the first, after the second, and so on: by how many pages of the piece are in memory. That
//! many are expected of every other piece.
//!
//! The kernel's readahead of swapped pages asks the same (`swap_vma_readahead`: its window follows
//! how many pages of the last were used), and sees use in the access bits of pages that it brought.
//! Here what is brought is mapped, and its use is not seen.
//!
//! No allocation; constant time; the owner serialises calls.

use super::{Advice, Costs, PIECE_PAGES};
use std::ops::Range;

/// Pieces that are observed at a time.
const SAMPLES: usize = 16;
/// A piece is observed while this part of what is resident is evicted (1/`SOON`).
const SOON: u64 = 4;
/// Observations after which older ones count half, and those without which nothing is expected.
const WINDOW: u32 = 64;
const FEW: u32 = 4;
/// Parts in which expected pages are counted.
const PARTS: u64 = 16;
/// Pages of a piece in memory, other than that of the fault, up to which a class goes.
const CLASSES: [u16; 5] = [0, 1, 3, 7, PIECE_PAGES];

/// What is in memory near the page of a fault, and the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Near {
    /// Pages of its 64 KiB that are in memory.
    pub present: u16,
    /// Pages that would come with it, if 64 KiB were brought.
    pub absent: u16,
    /// Pages evicted so far.
    pub evicted: u64,
    /// Pages in memory. 0: nothing is to be learnt or expected.
    pub resident: u64,
    /// [`MemoryPrice::near`](super::MemoryPrice::near), if no memory is free. (What the costs say
    /// counts if it is more.)
    pub price: u64,
}

/// A piece that is observed.
#[derive(Clone, Copy, Debug)]
struct Sample {
    piece: u64,
    began: u64,
    /// Pages of it that were in memory at its first fault.
    first: u16,
    faults: u16,
}

/// Faults of one class, and how many came after them.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    faults: u32,
    after: u32,
}

/// What was observed. About 500 bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct Neighbours {
    samples: [Option<Sample>; SAMPLES],
    /// When the next sample begins, in pages evicted.
    next: u64,
    classes: [Sums; CLASSES.len()],
}

fn class_of(present: u16) -> usize {
    CLASSES
        .iter()
        .position(|&most| present <= most)
        .unwrap_or(CLASSES.len() - 1)
}

impl Neighbours {
    /// Notes a fault on a page of `piece` (its number in the address space). True if the piece is
    /// observed, and so comes by single pages.
    pub(super) fn on_fault(&mut self, piece: u64, near: &Near) -> bool {
        let soon = near.resident / SOON;
        if soon == 0 {
            return false;
        }
        for i in 0..SAMPLES {
            let over = |s: &Sample| near.evicted.saturating_sub(s.began) > soon;
            if self.samples[i].is_some_and(|s| over(&s)) {
                self.end(i);
            }
        }
        let found = |s: &Option<Sample>| s.is_some_and(|s| s.piece == piece);
        if let Some(i) = self.samples.iter().position(found) {
            if let Some(s) = &mut self.samples[i] {
                s.faults += 1;
                if s.faults >= PIECE_PAGES {
                    self.end(i);
                }
            }
            return true;
        }
        // (It goes back with a new member of the pool.)
        let is_time = near.evicted >= self.next || self.next - near.evicted > soon;
        let free = self.samples.iter_mut().find(|s| s.is_none());
        let Some(free) = free.filter(|_| is_time) else {
            return false;
        };
        *free = Some(Sample {
            piece,
            began: near.evicted,
            first: near.present,
            faults: 1,
        });
        self.next = near.evicted.saturating_add(soon / SAMPLES as u64);
        true
    }

    /// Pieces `pieces` are not observed any more: more than single pages of them comes.
    pub(super) fn on_more(&mut self, pieces: Range<u64>) {
        for s in &mut self.samples {
            if s.is_some_and(|s| pieces.contains(&s.piece)) {
                *s = None;
            }
        }
    }

    fn end(&mut self, i: usize) {
        let Some(s) = self.samples[i].take() else {
            return;
        };
        for n in 0..s.faults {
            let sums = &mut self.classes[class_of(s.first + n)];
            if sums.faults >= WINDOW {
                sums.faults /= 2;
                sums.after /= 2;
            }
            sums.faults += 1;
            sums.after += u32::from(s.faults - 1 - n);
        }
    }

    /// How many more faults on a piece are expected soon after one, in [`PARTS`].
    fn expected(&self, near: &Near) -> u64 {
        let sums = self.classes[class_of(near.present)];
        if sums.faults < FEW || near.resident == 0 {
            return 0;
        }
        let after = u64::from(sums.after) * PARTS / u64::from(sums.faults);
        after.min(u64::from(near.absent) * PARTS)
    }

    /// Whether 64 KiB are worth it. What is not used takes memory for the rest of the stay; what is
    /// used takes it sooner than it would, by an eighth of a stay in the mean.
    pub(super) fn advice(&self, costs: &Costs, near: &Near) -> Advice {
        let expected = self.expected(near);
        let unused = (u64::from(near.absent) * PARTS).saturating_sub(expected - expected / 8);
        let saved = costs.page.saturating_mul(expected);
        let more = costs.piece.saturating_sub(costs.page).saturating_mul(PARTS);
        let cost = more.saturating_add(costs.memory.saturating_mul(unused));
        match saved > cost {
            true => Advice::Near(1 + expected.div_ceil(PARTS) as u16),
            false => Advice::None,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::{Allowed, Density, Fault, Granularity, MemoryPrice, STAY, UnitHistory};
    use super::*;
    use crate::UNIT_PAGES;

    /// Pages in memory.
    const RESIDENT: u64 = 8192;
    /// 25 us a page, 40 us for 64 KiB, and the processor's.
    const COSTS: Costs = Costs {
        page: 30_000,
        piece: 52_000,
        whole: 600_000,
        fill: 600_000,
        memory: 0,
    };

    /// A memory of single pages that leave in the order in which they came. Touches of `page(n)`
    /// that fault are noted.
    fn learnt(touches: u64, page: impl Fn(u64) -> u64) -> Neighbours {
        let mut seen = Neighbours::default();
        let mut came = std::collections::VecDeque::new();
        let mut present = std::collections::HashSet::new();
        let mut evicted = 0;
        for n in 0..touches {
            let page = page(n);
            if !present.contains(&page) {
                let piece = page / 16;
                let there = (piece * 16..piece * 16 + 16).filter(|p| present.contains(p));
                let there = there.count() as u16;
                seen.on_fault(piece, &near(there, evicted));
                present.insert(page);
                came.push_back(page);
                if present.len() as u64 > RESIDENT {
                    evicted += u64::from(came.pop_front().is_some_and(|p| present.remove(&p)));
                }
            }
        }
        seen
    }

    fn near(present: u16, evicted: u64) -> Near {
        Near {
            present,
            absent: 15 - present,
            evicted,
            resident: RESIDENT,
            price: 0,
        }
    }

    pub fn mixed(n: u64) -> u64 {
        let n = (n ^ n >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        n ^ n >> 32
    }

    /// Pieces at random, of which `used` pages are touched, in an order of their own, while those of
    /// 16 other pieces are.
    fn clustered(n: u64, used: u64) -> u64 {
        let round = n / (used * 16);
        let piece = mixed(round * 16 + n % 16) % 8192;
        let page = (n / 16 % used * 7 + piece) % 16;
        piece * 16 + page
    }

    #[test]
    fn pages_that_are_used_together_come_together() {
        let seen = learnt(200_000, |n| clustered(n, 12));
        let Advice::Near(used) = seen.advice(&COSTS, &near(0, 0)) else {
            panic!("{seen:?}");
        };
        assert!((11..=13).contains(&used), "{used}: {seen:?}");
        // Three of 16: what the rest displaces decides.
        let seen = learnt(200_000, |n| clustered(n, 3));
        assert_eq!(seen.advice(&COSTS, &near(0, 0)), Advice::Near(3));
        let dear = Costs {
            memory: 30_000,
            ..COSTS
        };
        assert_eq!(seen.advice(&dear, &near(0, 0)), Advice::None);
    }

    #[test]
    fn random_pages_come_alone() {
        let dear = Costs {
            memory: COSTS.page,
            ..COSTS
        };
        for share in [2, 4, 16] {
            let seen = learnt(200_000, |n| mixed(n) % (RESIDENT * share));
            for present in 0..15 {
                let advice = seen.advice(&dear, &near(present, 0));
                assert_eq!(advice, Advice::None, "{share} {present} {seen:?}");
            }
        }
        // Sixteen times memory: hardly any other page of a piece is touched in time.
        let seen = learnt(200_000, |n| mixed(n) % (RESIDENT * 16));
        assert_eq!(seen.advice(&COSTS, &near(0, 0)), Advice::None);
    }

    #[test]
    fn nothing_is_expected_of_what_was_not_observed() {
        let seen = Neighbours::default();
        assert_eq!(seen.advice(&COSTS, &near(0, 0)), Advice::None);
        // Pieces that came for another reason end no observation.
        let mut seen = Neighbours::default();
        for i in 0..1000 {
            assert!(seen.on_fault(i, &near(0, i * RESIDENT)));
            seen.on_more(i..i + 1);
        }
        assert!(seen.classes.iter().all(|s| s.faults == 0), "{seen:?}");
        // A memory that has nothing, or a clock that goes back.
        assert!(!seen.on_fault(1, &Near::default()));
        assert!(seen.on_fault(1, &near(0, 0)));
    }

    /// So few pieces are observed at a time that those that are used up cost little.
    #[test]
    fn observed_pieces_are_few() {
        let mut seen = Neighbours::default();
        let observed = (0..100_000u64).filter(|&i| seen.on_fault(i, &near(0, i * 16)));
        let observed = observed.count();
        let turns = 100_000 * 16 / RESIDENT as usize;
        assert!((50..=70).contains(&(observed / turns)), "{observed}");
    }

    /// Random accesses to an eighth more than memory, of which units leave as one: all pages around
    /// a fault are away, and will be used soon; but what comes with it displaces what would have
    /// been, too.
    #[test]
    fn where_nearly_all_fits_random_pages_come_alone() {
        let (with, without) = (
            pieces_where_nearly_all_fits(true),
            pieces_where_nearly_all_fits(false),
        );
        assert!(with * 4 < without, "{with} {without}");
    }

    /// Pieces at 40,000 faults; `priced`: the price that is meant for them is told.
    fn pieces_where_nearly_all_fits(priced: bool) -> u64 {
        const MEMORY: u64 = 64 * UNIT_PAGES;
        const USED: u64 = 72 * UNIT_PAGES;
        let (mut g, mut price) = (Granularity::new(1), MemoryPrice::new(0));
        let mut present = vec![false; USED as usize];
        let mut left_at = vec![None; (USED / UNIT_PAGES) as usize];
        let mut came: std::collections::VecDeque<u64> = std::collections::VecDeque::new();
        let (mut resident, mut evicted, mut n) = (0, 0, 0u64);
        let (mut faults, mut pieces) = (0, 0);
        let costs = Costs {
            page: 60_000,
            piece: 100_000,
            whole: 2_000_000,
            fill: 2_000_000,
            memory: 0,
        };
        while faults < 60_000 {
            n += 1;
            let page = (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) % USED;
            if present[page as usize] {
                continue;
            }
            let unit = page / UNIT_PAGES;
            let first = unit * UNIT_PAGES;
            let there = |range: Range<u64>| range.filter(|&p| present[p as usize]).count() as u16;
            let piece = page / 16 * 16..page / 16 * 16 + 16;
            let (in_piece, in_unit) = (there(piece.clone()), there(first..first + UNIT_PAGES));
            let fault = Fault {
                unit,
                page: (page % UNIT_PAGES) as u16,
                present: in_unit,
                density: Density::UNKNOWN,
                stay: STAY,
                near: Near {
                    present: in_piece,
                    absent: 15 - in_piece,
                    evicted,
                    resident,
                    price: if priced { price.near() } else { 0 },
                },
            };
            let costs = Costs {
                memory: price.price(),
                ..costs
            };
            let allowed = Allowed {
                whole: false,
                ..Allowed::ALL
            };
            let d = g.on_fault(&costs, allowed, &fault, UnitHistory::NEW);
            let brought = first + u64::from(d.pages.start)..first + u64::from(d.pages.end);
            if !came.contains(&unit) {
                came.push_back(unit);
            }
            let before = resident;
            for p in brought {
                resident += u64::from(!std::mem::replace(&mut present[p as usize], true));
            }
            let distance = left_at[unit as usize].map(|then: u64| evicted - then);
            price.on_fault(resident - before, distance, resident, costs.page);
            // (The first of all have to come, and the price has to be learnt.)
            faults += u64::from(evicted > 0);
            pieces += u64::from(faults > 20_000 && d.pages.len() > 1);
            while resident > MEMORY
                && let Some(oldest) = came.pop_front()
            {
                let pages = oldest * UNIT_PAGES..(oldest + 1) * UNIT_PAGES;
                let gone = pages.filter(|&p| std::mem::take(&mut present[p as usize]));
                let gone = gone.count() as u64;
                resident -= gone;
                evicted += gone;
                left_at[oldest as usize] = Some(evicted);
                price.on_evicted(gone, gone, gone * 1_000);
            }
        }
        pieces
    }
}
