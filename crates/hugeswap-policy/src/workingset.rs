//! What is left where a page was: shadows, and what the distance of a refault says.
//!
//! On its way out a page leaves a *shadow* beside its place in swap: the eviction clock of its group, in pages, and whether it
//! was part of the working set. When it comes back, the clock has gone on by the *refault distance*: with so many more pages of
//! memory it would still have been there. If the working set as it is has as many pages, which may have been idle all that time, the
//! page has as good a claim as they: it is activated at once. A shadow goes with the content it stands for.
//!
//! Whole units have a shadow each, whose distance is in pages. Of base pages, which leave a unit at a time, the unit's record
//! keeps which left when; [`lives`] says what their distance is worth.
//!
//! Source: the Linux kernel's `mm/workingset.c`; J. Weiner, "Thrash detection-based file cache sizing" (2012); J. Kim, "workingset
//! protection/detection on the anonymous LRU list" (2020). [`lives`] is ours.

/// Where a unit was evicted: clock, group, and what it was. Fits 64 bits; 0 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shadow {
    /// The group it belonged to.
    pub group: u8,
    /// The group's eviction clock, in pages, of which 56 bits are kept.
    pub clock: u64,
    /// It was part of the working set: active, or activated as it came back.
    pub workingset: bool,
}

const CLOCK: u64 = (1 << 56) - 1;

impl Shadow {
    /// As it is kept.
    pub fn to_bits(self) -> u64 {
        (self.clock & CLOCK) << 8
            | u64::from(self.group & 31) << 2
            | u64::from(self.workingset) << 1
            | 1
    }

    /// From what was kept; `None` if nothing was.
    pub fn from_bits(bits: u64) -> Option<Shadow> {
        (bits & 1 == 1).then_some(Shadow {
            group: (bits >> 2 & 31) as u8,
            clock: bits >> 8,
            workingset: bits & 2 != 0,
        })
    }

    /// Pages evicted since, by a clock that shows `now`.
    pub fn distance(self, now: u64) -> u64 {
        now.wrapping_sub(self.clock) & CLOCK
    }
}

/// Most turns through memory that a base page is spared: what is kept of each page are four bits.
pub const MOST_LIVES: u8 = 15;

/// How many turns through memory a base page that came back after `distance` is spared: as often as it would
/// have been missed in one. `resident`: pages in memory. 0: it came back so late that more memory would not have helped.
///
/// References of base pages that are in memory are not seen. But the time a page was away is a sample of the time between its uses, and as
/// many turns as it is shorter than a turn is how long its being there is worth its place.
pub fn lives(distance: u64, resident: u64) -> u8 {
    let turns = resident.checked_div(distance).unwrap_or(u64::MAX);
    turns.min(MOST_LIVES.into()) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn shadows_are_kept(group in 0u8..32, clock in 0..=CLOCK, workingset: bool, later in 0u64..1 << 50) {
            let s = Shadow { group, clock, workingset };
            prop_assert_eq!(Shadow::from_bits(s.to_bits()), Some(s));
            prop_assert_eq!(s.distance(clock + later), later);
        }
    }

    #[test]
    fn no_shadow_is_none() {
        assert_eq!(Shadow::from_bits(0), None);
    }

    #[test]
    fn sooner_is_longer() {
        assert_eq!(lives(0, 1000), MOST_LIVES);
        assert_eq!(lives(100, 1000), 10);
        assert_eq!(lives(1000, 1000), 1);
        assert_eq!(lives(1001, 1000), 0);
        assert_eq!(lives(u64::MAX, 1000), 0);
    }
}
