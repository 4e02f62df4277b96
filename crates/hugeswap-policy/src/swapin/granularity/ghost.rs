//! Whether the program would wait less if all units came whole.
//!
//! The price of memory ([`super::MemoryPrice`]) is what a displaced page costs as it comes back, at
//! the size at which pages come back now. So there are two states that both seem right. While pages
//! come one by one, a page that is displaced costs a whole fault; memory is dear, and a unit that is
//! brought whole displaces 512 of them. While units come whole, a page costs a 512th of a transfer;
//! memory is cheap. Where the program works in a few units at a time, the second is faster by ten
//! times and more; where it touches all of its units in turn, the first is. How much of a unit is
//! touched tells nothing of that: both programs touch nearly all, one at once and the other over a
//! long time.
//!
//! So both are carried out, one of them on paper. A *ghost list* has the units that would be in
//! memory if each fault had brought its unit whole and units left in the order of their last
//! faults. A fault on a unit that is not on it would have cost a whole transfer. What faults cost
//! in fact is compared with that.
//!
//! A change replaces all of memory, and if it was for nothing, the pages that were there come back
//! one by one. So it is made once whole units would have saved as much as that takes. Programs go
//! through a few units for a short while all the time.
//!
//! Source: the idea of a list of what a different choice would have kept is from Megiddo and Modha,
//! "ARC: a self-tuning, low overhead replacement cache" (2003); that a change is made once staying
//! has cost as much is the rule for renting skis (Karlin et al., "Competitive snoopy caching", 1988).

use crate::UNIT_PAGES;
use crate::workingset::lru::Lru;

/// After so many faults, older ones count half.
const WINDOW: u32 = 512;
/// Whole units must cost so many times less for a change to them.
const LESS: u64 = 4;
/// A change takes one part in so many of the pages in memory to come back one by one, if it is for
/// nothing; no more than those of so many units, for it is seen before.
const BACK: u64 = 4;
const MOST_BACK: u64 = 128;
/// Faults after a change back before the next change to whole units, at first and at most. Each
/// change that does not last doubles it.
const WAIT: u64 = 4096;
const LONGEST_WAIT: u64 = 1 << 20;
/// A change lasted if memory was filled so many times over in that time.
const LASTED: u64 = 8;

/// The memory of a process, in units.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// All that may be in use.
    pub units: u64,
    /// Units that are whole in memory in fact. They raise no faults, so they are not on the list.
    pub whole: u64,
}

impl Room {
    /// How long the list may be. Where all is whole, a few units are tried by pages all the same.
    fn for_ghosts(self) -> u64 {
        self.units.saturating_sub(self.whole).max(self.units / 4)
    }
}

/// The list, and what was compared. The owner serialises calls.
pub struct Ghost {
    units: Lru,
    faults: u32,
    /// Nanoseconds that faults took, and would have taken.
    paid: u64,
    whole: u64,
    wins: bool,
    /// How much more faults took than they would have, since the last time that it was the less:
    /// what whole units would have saved so far.
    lost: u64,
    /// Units that came whole since the last change.
    came: u64,
    /// Faults since the last change, and how many there must be.
    since: u64,
    wait: u64,
    barred: bool,
}

impl Ghost {
    /// An empty list, for units `0..units`. Costs 9 bytes of address space a unit.
    ///
    /// # Panics
    /// As [`Lru::new`].
    pub fn new(units: u32) -> Ghost {
        Ghost {
            units: Lru::new(units),
            faults: 0,
            paid: 0,
            whole: 0,
            wins: false,
            lost: 0,
            came: 0,
            since: 0,
            wait: 0,
            barred: false,
        }
    }

    /// Notes a fault on `unit` that cost `paid` nanoseconds; `came`: the unit is whole now. A whole
    /// unit would cost `whole`.
    pub fn on_fault(&mut self, unit: u32, paid: u64, whole: u64, came: bool, room: Room) {
        let missed = if self.units.contains(unit) { 0 } else { whole };
        self.whole = self.whole.saturating_add(missed);
        let lost = self.lost.saturating_add(paid);
        self.lost = lost.saturating_sub(missed);
        match came {
            true => self.units.remove(unit),
            false => self.units.reference(unit),
        }
        self.came += u64::from(came);
        self.since += 1;
        // (Two at a time: memory may have become less.)
        let more = (self.units.len() as u64).saturating_sub(room.for_ghosts());
        self.units.isolate(more.min(2) as usize, &mut [0; 2]);
        self.paid = self.paid.saturating_add(paid);
        self.faults += 1;
        if self.wins && self.came < room.units {
            // Memory still has the pages from before, and faults are not what they will be.
            (self.faults, self.paid, self.whole) = (0, 0, 0);
        }
        if self.faults >= WINDOW {
            self.compare(room, whole);
            self.faults /= 2;
            self.paid /= 2;
            self.whole /= 2;
        }
    }

    /// What a change to whole units takes if it is for nothing: nanoseconds.
    fn change(&self, room: Room, whole: u64) -> u64 {
        let page = self.paid / u64::from(self.faults.max(1));
        let back = room.units.min(MOST_BACK) * UNIT_PAGES / BACK;
        let units = room.units.saturating_mul(whole);
        units.saturating_add(back.saturating_mul(page))
    }

    fn compare(&mut self, room: Room, whole: u64) {
        if self.wins {
            if self.whole <= self.paid {
                return;
            }
            let lasted = self.came >= room.units.saturating_mul(LASTED);
            self.change_back(lasted);
        } else {
            let change = self.change(room, whole);
            let enough = self.lost >= change && self.whole.saturating_mul(LESS) < self.paid;
            self.lost = self.lost.min(change);
            if self.barred || self.since < self.wait || !enough {
                return;
            }
            self.wins = true;
            (self.came, self.since, self.lost) = (0, 0, 0);
        }
    }

    fn change_back(&mut self, lasted: bool) {
        self.wait = match lasted {
            true => WAIT,
            false => (self.wait * 2).clamp(WAIT, LONGEST_WAIT),
        };
        self.wins = false;
        (self.came, self.since, self.lost) = (0, 0, 0);
    }

    /// No change to whole units is made while it is `barred` ([`super::Verdict::allows`]).
    pub fn bar(&mut self, barred: bool) {
        self.barred = barred;
    }

    /// The change to whole units was wrong ([`super::Verdict`]): pages come again.
    pub fn give_up(&mut self) {
        self.change_back(false);
        (self.faults, self.paid, self.whole) = (0, 0, 0);
    }

    /// Would whole units have cost far less?
    pub fn wins(&self) -> bool {
        self.wins
    }

    /// The price of memory, if pages come back at the size that costs least: `price` is that of
    /// pages that come back one by one, at `page` each.
    pub fn price(&self, price: u64, page: u64, whole: u64) -> u64 {
        match self.wins {
            true => {
                let each = u128::from(whole / UNIT_PAGES);
                let scaled = u128::from(price) * each / u128::from(page.max(1));
                price.min(u64::try_from(scaled).unwrap_or(u64::MAX))
            }
            false => price,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 98_000;
    const WHOLE: u64 = 2_400_000;

    /// Faults by pages on units that `unit(n)` names; does the ghost win?
    fn by_pages(ghost: &mut Ghost, n: u64, room: u64, unit: impl Fn(u64) -> u64) -> bool {
        let room = Room {
            units: room,
            whole: 0,
        };
        // (One of a hundred is brought whole.)
        (0..n).for_each(|i| ghost.on_fault(unit(i) as u32, PAGE, WHOLE, i % 100 == 99, room));
        ghost.wins()
    }

    fn scattered(i: u64) -> u64 {
        (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % 200
    }

    #[test]
    fn few_units_at_a_time_are_whole_and_all_in_turn_are_not() {
        const MANY: u64 = 50_000;
        let mut g = Ghost::new(300);
        assert!(!by_pages(&mut g, MANY, 100, scattered), "half are there");
        // A hundred faults on each unit before the next.
        assert!(by_pages(&mut g, MANY, 100, |i| i / 100 % 300));
        assert!(!by_pages(&mut g, MANY, 100, scattered), "and back");
        // All that is used has room.
        assert!(by_pages(&mut g, MANY, 100, |i| scattered(i) % 60));
        assert!(
            !by_pages(&mut g, MANY, 50, |i| scattered(i) % 90),
            "less room"
        );
    }

    #[test]
    fn a_short_while_in_a_few_units_is_no_reason() {
        let mut g = Ghost::new(300);
        // As when a collector of garbage goes through a part of a heap: a thousand faults in four
        // units, and then everywhere again.
        let unit = |i: u64| match i / 1000 % 8 {
            0 => i % 4,
            _ => scattered(i),
        };
        for i in 0..200_000 {
            assert!(!by_pages(&mut g, 1, 100, |_| unit(i)), "after {i} faults");
        }
    }

    #[test]
    fn a_change_that_does_not_last_is_tried_ever_more_rarely() {
        let mut g = Ghost::new(300);
        let room = Room {
            units: 100,
            whole: 0,
        };
        let (mut changes, mut last) = (Vec::new(), false);
        for i in 0..1_000_000u64 {
            // While pages come, it seems that whole units would do better, and then they do not.
            let unit = match g.wins() {
                true => scattered(i),
                false => i / 100 % 300,
            };
            g.on_fault(unit as u32, PAGE, WHOLE, i % 100 == 99, room);
            if g.wins() && !last {
                changes.push(i);
            }
            last = g.wins();
        }
        let [.., before, end] = changes[..] else {
            panic!("{changes:?}");
        };
        assert!(changes.len() < 12 && end - before > 200_000, "{changes:?}");
    }

    #[test]
    fn whole_units_that_are_as_good_stay() {
        let mut g = Ghost::new(300);
        assert!(by_pages(&mut g, 50_000, 100, |i| i / 100 % 300));
        let full = Room {
            units: 100,
            whole: 100,
        };
        for i in 0..5000 {
            g.on_fault(i % 300, WHOLE, WHOLE, true, full);
        }
        assert!(g.wins());
        assert_eq!(
            g.price(400_000, PAGE, WHOLE),
            400_000 * (WHOLE / 512) / PAGE
        );
        assert_eq!(Ghost::new(0).price(400_000, PAGE, WHOLE), 400_000);
        assert!(!Ghost::new(0).wins());
    }

    #[test]
    fn whole_units_that_raise_no_faults_take_room() {
        // Of 200 units 70 are whole; faults on the others do not see them.
        let room = Room {
            units: 100,
            whole: 70,
        };
        let mut g = Ghost::new(300);
        assert!(by_pages(&mut g, 50_000, 100, |i| i / 100 % 300));
        for i in 0..5000 {
            assert!(i > 0 || g.wins());
            g.on_fault(70 + scattered(i) as u32 % 130, PAGE, WHOLE, false, room);
        }
        assert!(!g.wins());
    }

    #[test]
    fn a_change_that_was_wrong_is_not_made_again_while_it_is_barred() {
        let mut g = Ghost::new(300);
        let few = |i: u64| i / 100 % 300;
        assert!(by_pages(&mut g, 50_000, 100, few));
        g.give_up();
        g.bar(true);
        assert!(!by_pages(&mut g, 200_000, 100, few));
        g.bar(false);
        assert!(by_pages(&mut g, 50_000, 100, few));
    }
}
