//! What the active list has of memory: which units come to be active without having been seen in use,
//! and which make room.
//!
//! A list that is far below its share is filled with units of which nothing is known ([`FILLED`]), no
//! faster than others leave. Base pages that come back in time claim room of it; what was never seen
//! in use gives way first. See [`super`] for the rules of whole units.

use super::{Event, GROUPS, Lruvecs, WORKINGSET, group_of, lruvec, ring};
use crate::UNIT_PAGES;
use crate::workingset::Origin;
use crate::workingset::vmscan::{self, PageKind};
use std::ops::Deref;
use std::sync::atomic::AtomicU16;

/// Flag of an active unit of which nothing is known: it came with others to fill the active list.
pub(super) const FILLED: u8 = 1 << 3;

/// The claim of base pages that came back on the active list.
#[derive(Clone, Debug, Default)]
pub(super) struct Claims {
    /// Pages claimed; less than a unit.
    pages: u64,
    /// The group's eviction clock at the last claim.
    last: Option<u64>,
}

/// Largest claim at one time, in pages.
const MOST_CLAIMS: u64 = 64 * UNIT_PAGES;

impl<W: Deref<Target = [AtomicU16]>> Lruvecs<W> {
    /// Largest number of pages on the active list.
    fn active_share(&self, v: usize) -> u64 {
        let total = self.weights.sum(v, false) + self.weights.sum(v, true);
        total - vmscan::inactive_target(total)
    }

    /// Notes that base pages came back in time ([`super::Weights::in_time`]): `others` of units that were
    /// inactive as they left, and `deactivated` of those that had made room. As many active pages
    /// as claims are granted go back to the inactive list, since they may have been idle all the
    /// while. Units of which nothing is known are the next to leave then.
    pub fn claimed(&mut self, group: usize, kind: PageKind, others: u64, deactivated: u64) {
        let v = lruvec(group.min(GROUPS - 1), kind);
        let duel = &mut self.page_duels[v];
        duel.on_back(Origin::Refused, others);
        duel.on_back(Origin::Deactivated, deactivated);
        let claimed = (others + deactivated).min(MOST_CLAIMS);
        let granted = u64::from(duel.grant(claimed as u32));
        if granted == 0 {
            return;
        }
        let claims = &mut self.claims[v];
        claims.pages += granted;
        claims.last = Some(self.groups[group_of(v)].clock);
        while self.claims[v].pages >= UNIT_PAGES {
            self.claims[v].pages -= UNIT_PAGES;
            let oldest = self.rings.oldest(ring(v, true));
            let unknown = oldest.filter(|&u| self.flags[u as usize] & FILLED != 0);
            self.deactivate_oldest(v);
            if let Some(unit) = unknown {
                self.rings.put_oldest(unit, ring(v, false));
            }
        }
    }

    /// True if there is a claim on the active list from within the last turn through memory.
    fn is_claimed(&self, v: usize) -> bool {
        let total = self.weights.sum(v, false) + self.weights.sum(v, true);
        let last = self.claims[v].last;
        last.is_some_and(|at| self.groups[group_of(v)].clock - at < total)
    }

    /// True if the active list is so far below its share that it takes a unit that was not seen in use
    /// now: one that was before (`known`), or one of which nothing is known, no faster than others
    /// leave. (Without detection at once: what comes back early changes nothing then.)
    pub(super) fn active_is_filling(&mut self, v: usize, known: bool) -> bool {
        let slowly = self.detection && !known;
        if self.is_claimed(v) || slowly && self.left_since_filled[v] < UNIT_PAGES {
            return false;
        }
        let (share, active) = (self.active_share(v), self.weights.sum(v, true));
        let enough = if self.filling[v] {
            share
        } else {
            share / 4 * 3
        };
        self.filling[v] = active + UNIT_PAGES <= enough;
        self.filling[v]
    }

    /// True if the inactive list has less than half of its target. Memory comes and goes a little
    /// all the time: if the active list gave and took each time, it would soon have lost its
    /// content.
    pub(super) fn inactive_is_short(&self, v: usize) -> bool {
        let (inactive, active) = (self.weights.sum(v, false), self.weights.sum(v, true));
        inactive < vmscan::inactive_target(inactive + active) / 2
    }

    /// Moves what the active list has beyond its share back to the inactive one.
    pub(super) fn shrink_active(&mut self, v: usize) {
        while self.weights.sum(v, true) > self.active_share(v) && self.deactivate_oldest(v) {}
    }

    pub(super) fn deactivate_oldest(&mut self, v: usize) -> bool {
        let Some(unit) = self.rings.oldest(ring(v, true)) else {
            return false;
        };
        self.count(v, Event::PgDeactivate, self.weights.of(unit));
        self.weights.put_active(unit, false);
        let flags = &mut self.flags[unit as usize];
        *flags = Origin::Deactivated as u8 | *flags & WORKINGSET;
        self.rings.put_newest(unit, ring(v, false));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::lists;
    use super::*;
    use crate::workingset::lru::Reclaim;

    #[test]
    fn what_is_active_makes_room_for_base_pages_that_come_back() {
        let mut l = lists(200);
        (60..100).for_each(|u| Reclaim::insert(&mut l, u));
        (0..60).for_each(|u| Reclaim::reference(&mut l, u));
        let active = |l: &Lruvecs| l.weights().active(0, PageKind::Anon) / UNIT_PAGES;
        assert_eq!(active(&l), 60);
        // Page by page, as much as they are.
        // (One claim in eight is refused.)
        let claims = |units: u64| units * UNIT_PAGES / 7 * 8 + 64;
        (0..claims(10)).for_each(|_| l.claimed(0, PageKind::Anon, 1, 0));
        assert_eq!(active(&l), 50);
        assert!(
            (0..10).all(|u| l.rings.ring_of(u) == Some(ring(0, false))),
            "the oldest"
        );
        // Nor is it filled again meanwhile.
        let mut out = [0; 8];
        l.claimed(0, PageKind::Anon, claims(45), 0);
        let before = active(&l);
        l.isolate(8, &mut out);
        assert_eq!((before, active(&l)), (5, 5));
    }

    #[test]
    fn what_was_never_seen_in_use_becomes_active_as_slowly_as_others_leave() {
        let mut l = lists(200);
        (0..90).for_each(|u| Reclaim::insert(&mut l, u));
        let active = |l: &Lruvecs| l.weights().active(0, PageKind::Anon) / UNIT_PAGES;
        let mut out = [0; 1];
        for left in 1..20 {
            assert_eq!(l.isolate(1, &mut out), 1);
            assert_eq!(active(&l), left - 1);
        }
        // What comes back early has them leave next, before what is younger.
        let stay: Vec<u32> = (0..90)
            .filter(|&u| l.rings.ring_of(u) == Some(ring(0, true)))
            .collect();
        l.claimed(0, PageKind::Anon, 24 * UNIT_PAGES, 0);
        assert_eq!(active(&l), 0);
        let mut gone = Vec::new();
        while gone.len() < stay.len() {
            assert_eq!(l.isolate(1, &mut out), 1);
            gone.push(out[0]);
        }
        gone.sort_unstable();
        assert_eq!(gone, stay);
    }

    #[test]
    fn a_unit_whose_base_pages_come_back_in_time_is_active() {
        let mut l = lists(200);
        let weights = l.weights();
        (0..80).for_each(|u| Reclaim::insert(&mut l, u));
        let mut out = [0; 30];
        let n = l.isolate(30, &mut out);
        // No unit is active.
        l.claimed(0, PageKind::Anon, 60 * UNIT_PAGES, 0);
        assert_eq!(weights.active(0, PageKind::Anon), 0);
        let is_active = |l: &Lruvecs, u: u32| l.rings.ring_of(u) == Some(ring(0, true));
        // The last that left is in time, the first is not: more than a quarter of memory left since.
        for (unit, in_time) in [(out[0], false), (out[n - 1], true)] {
            weights.set(unit, 3);
            l.pages_came(unit);
            assert_eq!(is_active(&l, unit), in_time, "{unit}");
        }
        l.set_detection(false);
        weights.set(out[n - 2], 3);
        l.pages_came(out[n - 2]);
        assert!(!is_active(&l, out[n - 2]));
    }

    #[test]
    fn claims_are_refused_while_what_made_room_comes_back_as_often() {
        let mut l = lists(200);
        (60..100).for_each(|u| Reclaim::insert(&mut l, u));
        (0..60).for_each(|u| Reclaim::reference(&mut l, u));
        let active = |l: &Lruvecs| l.weights().active(0, PageKind::Anon) / UNIT_PAGES;
        // Units that made room leave, and all of their pages come back.
        l.claimed(0, PageKind::Anon, 50 * UNIT_PAGES, 0);
        let before = active(&l);
        let mut out = [0; 8];
        let mut back = 0;
        for _ in 0..12 {
            let n = l.isolate(8, &mut out);
            back += out[..n].iter().filter(|&&u| l.was_deactivated(u)).count();
        }
        assert!(back > 20, "{back} units that had been active left");
        l.claimed(0, PageKind::Anon, 0, back as u64 * UNIT_PAGES);
        let later = active(&l);
        l.claimed(0, PageKind::Anon, 4 * UNIT_PAGES, 4 * UNIT_PAGES);
        // One claim in eight is decided the other way.
        assert!(later - active(&l) <= 2, "{before}, {later}, {}", active(&l));
    }
}
