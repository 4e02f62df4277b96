//! What is left where a page was: shadows, and what the distance of a refault says.
//!
//! On its way out a page leaves a *shadow* beside its place in swap: the eviction clock of its group, in pages, and whether it
//! was part of the working set. When it comes back, the clock has gone on by the *refault distance*: with so many more pages of
//! memory it would still have been there. If the working set as it is has as many pages, which may have been idle all that time, the
//! page has as good a claim as they: it is activated at once, unless those that make room for such pages are wanted back as much ([`Duel`]). A shadow goes with the content it stands for.
//!
//! Whole units have a shadow each, whose distance is in pages. Of base pages, which leave a unit at a time, the unit's record
//! keeps which left when; [`lives`] says what their distance is worth.
//!
//! Source: the Linux kernel's `mm/workingset.c`; J. Weiner, "Thrash detection-based file cache sizing" (2012); J. Kim, "workingset
//! protection/detection on the anonymous LRU list" (2020). [`lives`] is ours.

use crate::UNIT_PAGES;

/// What was decided about a unit before it left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// Nothing that would be of interest when it comes back.
    #[default]
    Other = 0,
    /// It was active, and had to make room for others.
    Deactivated = 1,
    /// It came back in time, and was not activated.
    Refused = 2,
}

impl Origin {
    /// From two bits.
    pub(crate) fn from_bits(bits: u8) -> Origin {
        match bits & 3 {
            1 => Origin::Deactivated,
            2 => Origin::Refused,
            _ => Origin::Other,
        }
    }
}

/// Where a unit was evicted: clock, group, and what it was. Fits 64 bits; 0 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shadow {
    /// The group it belonged to.
    pub group: u8,
    /// The group's eviction clock, in pages, of which 54 bits are kept.
    pub clock: u64,
    /// It was part of the working set: active, or activated as it came back.
    pub workingset: bool,
    /// What was decided about it.
    pub origin: Origin,
}

const CLOCK: u64 = (1 << 54) - 1;

impl Shadow {
    /// As it is kept.
    pub fn to_bits(self) -> u64 {
        (self.clock & CLOCK) << 10
            | (self.origin as u64) << 8
            | u64::from(self.group & 31) << 2
            | u64::from(self.workingset) << 1
            | 1
    }

    /// From what was kept; `None` if nothing was.
    pub fn from_bits(bits: u64) -> Option<Shadow> {
        (bits & 1 == 1).then_some(Shadow {
            group: (bits >> 2 & 31) as u8,
            clock: bits >> 10,
            workingset: bits & 2 != 0,
            origin: Origin::from_bits((bits >> 8) as u8),
        })
    }

    /// Pages evicted since, by a clock that shows `now`.
    pub fn distance(self, now: u64) -> u64 {
        now.wrapping_sub(self.clock) & CLOCK
    }
}

/// Is a page that came back in time to take the place of an active one? What it says of itself, the refault distance, the other
/// might say too if it had to leave: in a loop over somewhat more than memory each page that comes back has
/// just that claim, and if each is granted, none is there when its turn comes.
///
/// So both are watched: how many of those that were deactivated for others come back in time, and how many of those
/// that were refused. Claims are granted while the refused come back more often than the deactivated; of every eight the
/// contrary is done with one, so that something is always known of both. Counts fade.
///
/// Source: the idea of letting two rules compete on samples is set dueling (Qureshi et al., "Adaptive insertion policies for high
/// performance caching", 2007).
#[derive(Clone, Debug, Default)]
pub struct Duel {
    /// Pages that left, deactivated and refused.
    left: [u64; 2],
    /// Of those, that came back in time.
    back: [u64; 2],
    /// Claims so far.
    claims: u32,
}

/// Pages that left of which [`Duel`] knows; then what it knows is halved.
const MEMORY: u64 = 64 * UNIT_PAGES;
/// So many pages are taken to have been refused and to have come back, and deactivated and not.
const PRIOR: u64 = 2 * UNIT_PAGES;
/// One claim in so many is decided the other way.
const TRIAL: u32 = 8;

impl Duel {
    fn index(origin: Origin) -> Option<usize> {
        (origin as usize).checked_sub(1)
    }

    /// Pages leave.
    pub fn on_left(&mut self, origin: Origin, pages: u64) {
        if let Some(i) = Self::index(origin) {
            self.left[i] += pages;
            if self.left[i] > MEMORY {
                self.left[i] /= 2;
                self.back[i] /= 2;
            }
        }
    }

    /// Pages are back in time.
    pub fn on_back(&mut self, origin: Origin, pages: u64) {
        if let Some(i) = Self::index(origin) {
            self.back[i] += pages;
        }
    }

    /// Is the next claim granted?
    pub fn grants(&mut self) -> bool {
        self.claims = self.claims.wrapping_add(1);
        let [deactivated, refused] = self.left.map(|n| n + PRIOR);
        // Shares as cross products; seven eighths, for a change has to pay.
        let gain = (self.back[1] + PRIOR).saturating_mul(deactivated) / 8 * 7;
        let loss = self.back[0].saturating_mul(refused);
        (gain > loss) != self.claims.is_multiple_of(TRIAL)
    }
}

/// Most turns through memory that a base page is spared: what is kept of each page are four bits.
pub const MOST_LIVES: u8 = 15;

/// How many turns through memory a base page that came back after `distance` is spared: twice as often as it would
/// have been missed in one. `resident`: pages in memory. 0: it came back so late that more memory would not have helped.
///
/// References of base pages that are in memory are not seen. But the time a page was away is a sample of the time between its uses, and
/// the more often that goes into a turn, the longer the page is worth its place. (Twice, for on traces that was better than once and as good as
/// four times.)
pub fn lives(distance: u64, resident: u64) -> u8 {
    if distance > resident {
        return 0;
    }
    let turns = (2 * resident).checked_div(distance).unwrap_or(u64::MAX);
    turns.min(MOST_LIVES.into()) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn shadows_are_kept(group in 0u8..32, clock in 0..=CLOCK, workingset: bool, later in 0u64..1 << 50) {
            let origin = Origin::from_bits(group % 3);
            let s = Shadow { group, clock, workingset, origin };
            prop_assert_eq!(Shadow::from_bits(s.to_bits()), Some(s));
            prop_assert_eq!(s.distance(clock + later), later);
        }
    }

    fn granted(duel: &mut Duel) -> usize {
        (0..80).filter(|_| duel.grants()).count()
    }

    #[test]
    fn claims_are_granted_until_those_that_made_room_come_back_as_often() {
        let mut duel = Duel::default();
        assert_eq!(granted(&mut duel), 70, "all but trials");
        for _ in 0..100 {
            for origin in [Origin::Deactivated, Origin::Refused] {
                duel.on_left(origin, UNIT_PAGES);
                duel.on_back(origin, UNIT_PAGES);
            }
        }
        assert_eq!(granted(&mut duel), 10, "trials only");
        // What is deactivated comes back no more: it has had its time.
        (0..200).for_each(|_| duel.on_left(Origin::Deactivated, UNIT_PAGES));
        assert_eq!(granted(&mut duel), 70);
        // What is of no interest is not counted, and counts stay small.
        (0..600).for_each(|_| duel.on_left(Origin::Refused, UNIT_PAGES));
        duel.on_left(Origin::Other, 1 << 40);
        assert!(duel.left.iter().all(|&n| n <= MEMORY));
    }

    #[test]
    fn no_shadow_is_none() {
        assert_eq!(Shadow::from_bits(0), None);
    }

    #[test]
    fn sooner_is_longer() {
        assert_eq!(lives(0, 1000), MOST_LIVES);
        assert_eq!(lives(200, 1000), 10);
        assert_eq!(lives(1000, 1000), 2);
        assert_eq!(lives(1001, 1000), 0);
        assert_eq!(lives(u64::MAX, 1000), 0);
    }
}
