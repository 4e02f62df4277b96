//! Shadows: what a page leaves behind as it is evicted, and what the distance of a refault says.
//!
//! A page that leaves memory leaves a *shadow* beside its place in swap: the eviction clock of its
//! group, in pages, and whether it was part of the working set. When it comes back, the clock has
//! advanced by the *refault distance*: with as many more pages of memory it would still be there.
//! If the working set has that many pages, which may have been idle all that time, the returned
//! page has as good a claim as they and is activated at once, unless the pages that make room for
//! such pages come back as often ([`Duel`]). A shadow is dropped with the content it stands for.
//!
//! A whole unit has one shadow, with a distance in pages. Base pages leave a unit one at a time,
//! and the record of the unit keeps when each left; [`lives`] says what their distance is worth.
//!
//! Source: the Linux kernel's `mm/workingset.c`; J. Weiner, "Thrash detection-based file cache
//! sizing" (2012); J. Kim, "workingset protection/detection on the anonymous LRU list" (2020).
//! [`MeanDistance`] and [`lives`] are not from there.

use crate::UNIT_PAGES;

/// What was decided about a unit before it left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// Nothing that matters when it comes back.
    #[default]
    Other = 0,
    /// It was active, and was deactivated to make room.
    Deactivated = 1,
    /// It had come back in time, and was not activated.
    Refused = 2,
}

impl Origin {
    /// The value of two bits.
    pub(crate) fn from_bits(bits: u8) -> Origin {
        match bits & 3 {
            1 => Origin::Deactivated,
            2 => Origin::Refused,
            _ => Origin::Other,
        }
    }
}

/// When and from where a unit was evicted. Fits 64 bits; 0 is no shadow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shadow {
    /// Group of the unit.
    pub group: u8,
    /// Eviction clock of the group, in pages; 54 bits are kept.
    pub clock: u64,
    /// The unit was part of the working set: active, or activated as it came back.
    pub workingset: bool,
    /// What was decided about the unit.
    pub origin: Origin,
}

const CLOCK: u64 = (1 << 54) - 1;

impl Shadow {
    /// The shadow as one word.
    pub fn to_bits(self) -> u64 {
        (self.clock & CLOCK) << 10
            | (self.origin as u64) << 8
            | u64::from(self.group & 31) << 2
            | u64::from(self.workingset) << 1
            | 1
    }

    /// The shadow of a word, or `None` if there is none.
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

/// Decides whether a page that came back in time takes the place of an active one.
///
/// The active page might have the same claim if it had to leave. In a loop over slightly more than
/// memory each page that comes back has just that claim; if each were granted, no page would be
/// there when its turn comes. So both are watched: how many of the pages deactivated for others
/// come back in time, and how many of those that were refused. Claims are granted while the refused
/// pages come back more often than the deactivated ones. One claim in eight is decided the other
/// way, so that something is known of both. Counts fade.
///
/// Source: the idea of letting two rules compete on samples is set dueling (Qureshi et al.,
/// "Adaptive insertion policies for high performance caching", 2007).
#[derive(Clone, Debug, Default)]
pub struct Duel {
    /// Pages that left, deactivated and refused.
    left: [u64; 2],
    /// Those of them that came back in time.
    back: [u64; 2],
    /// Number of claims since the last that was decided the other way.
    claims: u32,
}

/// When [`Duel`] knows of so many pages that left, its counts are halved.
const MEMORY: u64 = 64 * UNIT_PAGES;
/// At first, so many pages count as refused and back, and as deactivated and not back.
const PRIOR: u64 = 2 * UNIT_PAGES;
/// One claim in so many is decided the other way.
const TRIAL: u32 = 8;

impl Duel {
    fn index(origin: Origin) -> Option<usize> {
        (origin as usize).checked_sub(1)
    }

    /// Notes that `pages` leave.
    pub fn on_left(&mut self, origin: Origin, pages: u64) {
        if let Some(i) = Self::index(origin) {
            self.left[i] += pages;
            if self.left[i] > MEMORY {
                self.left[i] /= 2;
                self.back[i] /= 2;
            }
        }
    }

    /// Notes that `pages` are back in time.
    pub fn on_back(&mut self, origin: Origin, pages: u64) {
        if let Some(i) = Self::index(origin) {
            self.back[i] += pages;
        }
    }

    /// True if the next claim is granted.
    pub fn grants(&mut self) -> bool {
        self.grant(1) == 1
    }

    /// How many of the next `claims` are granted.
    pub fn grant(&mut self, claims: u32) -> u32 {
        let after = self.claims % TRIAL + claims;
        self.claims = after % TRIAL;
        let trials = after / TRIAL;
        let [deactivated, refused] = self.left.map(|n| n + PRIOR);
        // Shares are compared as cross products; with seven eighths, since a change has to pay.
        let gain = (self.back[1] + PRIOR).saturating_mul(deactivated) / 8 * 7;
        let loss = self.back[0].saturating_mul(refused);
        match gain > loss {
            true => claims - trials,
            false => trials,
        }
    }
}

/// Largest number of turns through memory that a base page is spared: four bits are kept for each
/// page.
pub const MOST_LIVES: u8 = 15;

/// The mean distance of refaults of base pages. Far ones count as four turns through memory.
///
/// Fits a word; 0 is none yet. Those who share one may lose a refault when two come at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeanDistance(pub u64);

impl MeanDistance {
    /// A refault counts for one part in 2^10.
    const WEIGHT: u32 = 10;

    /// The mean, in pages.
    pub fn pages(self) -> u64 {
        self.0 >> Self::WEIGHT
    }

    /// The mean after a refault of `distance`, where `resident` pages are in memory.
    #[must_use]
    pub fn on_refault(self, distance: u64, resident: u64) -> MeanDistance {
        let distance = distance.min(resident.saturating_mul(4)).min(1 << 50);
        match self.0 {
            0 => MeanDistance(distance << Self::WEIGHT),
            sum => MeanDistance(sum - self.pages() + distance),
        }
    }
}

/// Returns for how many turns through memory a base page that came back after `distance` is spared:
/// twice as often as it would have been missed in one turn. `resident` is the number of pages in
/// memory. 0 if it came back later than after a quarter of a turn, or of the `mean`.
///
/// References to base pages in memory are not seen. But the time a page was away is a sample of the
/// time between its uses, and the more often that fits into a turn, the longer the page is worth
/// its place. What is spared makes the turns of all others shorter, so that sparing too many is as
/// bad as sparing too few: of the pages that are used as seldom as most are, one in five comes back
/// within a quarter of the mean by chance, if those times are exponential; of those that are used
/// eight times as often, six in seven do.
pub fn lives(distance: u64, mean: MeanDistance, resident: u64) -> u8 {
    if distance > resident.min(mean.pages()) / 4 {
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

        #[test]
        fn many_claims_are_granted_as_one_by_one(before in 0u32..20, claims in 0u32..200, back: bool) {
            let mut duel = Duel::default();
            if back {
                duel.on_left(Origin::Deactivated, UNIT_PAGES);
                duel.on_back(Origin::Deactivated, 8 * UNIT_PAGES);
            }
            (0..before).for_each(|_| { duel.grants(); });
            let one_by_one = (0..claims).fold((duel.clone(), 0), |(mut d, n), _| {
                let granted = d.grants();
                (d, n + u32::from(granted))
            });
            prop_assert_eq!(duel.grant(claims), one_by_one.1);
            prop_assert_eq!(duel.grants(), one_by_one.0.clone().grants());
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
        // Deactivated pages do not come back: their time is over.
        (0..200).for_each(|_| duel.on_left(Origin::Deactivated, UNIT_PAGES));
        assert_eq!(granted(&mut duel), 70);
        // Pages without an origin are not counted, and counts stay small.
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
        let mut mean = MeanDistance::default();
        assert_eq!(lives(1, mean, 1000), 0, "nothing is known yet");
        mean = mean.on_refault(800, 1000);
        assert_eq!(mean.pages(), 800);
        assert_eq!(lives(0, mean, 1000), MOST_LIVES);
        assert_eq!(lives(200, mean, 1000), 10);
        assert_eq!(lives(201, mean, 1000), 0);
        // What is far counts as four turns.
        (0..10_000).for_each(|_| mean = mean.on_refault(u64::MAX, 10_000));
        assert!((39_000..=40_000).contains(&mean.pages()), "{mean:?}");
        assert_eq!(lives(250, mean, 1000), 8);
        assert_eq!(lives(251, mean, 1000), 0);
        assert_eq!(lives(u64::MAX, mean, 1000), 0);
    }
}
