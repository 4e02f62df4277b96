//! Which process of a pool gives memory to one that has to wait for some.
//!
//! The budget has no fixed parts. It is shared by the processes that are *awake*: those that
//! faulted on managed memory within the last [`REST_NS`]. Each of them may have its share, the
//! budget divided by their number, and is not asked for that. A process that rests has no share:
//! memory that it does not touch is worth most to a process that waits. It is asked for a quarter
//! of what it has at a time. If that is in use after all, it faults, is awake, and has its share
//! again.
//!
//! Without this rule many resting processes, each with a frame or two, would hold most of a budget,
//! while the one that works thrashes in its share.

/// A process that has not faulted for so long rests.
pub const REST_NS: u64 = 1_000_000_000;
/// Frames that a process is asked for at a time, at most.
pub const MOST: u64 = 16;

/// What is known of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Frames that it can give: what it is charged, without what the kernel has for good.
    pub frames: u64,
    /// Frames that it was asked for and has not given yet.
    pub owed: u64,
    /// Does it rest?
    pub rests: bool,
}

impl Holder {
    /// Does a process rest that last faulted at `touched`?
    pub fn rests(touched: u64, now: u64) -> bool {
        now.saturating_sub(touched) > REST_NS
    }

    /// What it may be asked for, so that a process that is awake keeps its `share`.
    fn spare(&self, share: u64) -> u64 {
        match self.rests {
            true => self.frames,
            false => self.frames.saturating_sub(share),
        }
    }
}

/// The process out of `others` that is to be asked for frames, and for how many, by a process that
/// has `mine` of the `budget` and waits. `hungry`: it has waited in vain for its own memory to
/// become free, and may ask for what it has no claim to.
pub fn choose<T, I: Iterator<Item = (T, Holder)>>(
    budget: u64,
    mine: u64,
    hungry: bool,
    others: impl Fn() -> I,
) -> Option<(T, u64)> {
    let awake = 1 + others().filter(|(_, h)| !h.rests).count() as u64;
    let share = budget / awake;
    if mine >= share && !hungry {
        return None;
    }
    let owed: u64 = others().map(|(_, h)| h.owed).sum();
    if owed >= MOST && !hungry {
        return None;
    }
    let (who, h) = others()
        .filter(|(_, h)| h.owed == 0 && h.frames > 0)
        .filter(|(_, h)| hungry || h.spare(share) > 0)
        .max_by_key(|(_, h)| (h.rests, h.frames))?;
    let wanted = match h.rests {
        true => h.frames / 4,
        false => share.saturating_sub(mine),
    };
    Some((who, wanted.clamp(1, MOST)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn awake(frames: u64) -> Holder {
        Holder {
            frames,
            owed: 0,
            rests: false,
        }
    }

    fn resting(frames: u64) -> Holder {
        Holder {
            rests: true,
            ..awake(frames)
        }
    }

    fn ask(budget: u64, mine: u64, hungry: bool, others: &[Holder]) -> Option<(usize, u64)> {
        choose(budget, mine, hungry, || others.iter().copied().enumerate())
    }

    #[test]
    fn the_richest_gives_what_it_has_beyond_its_share() {
        assert_eq!(ask(30, 4, false, &[awake(8), awake(18)]), Some((1, 6)));
        assert_eq!(ask(30, 10, false, &[awake(2), awake(18)]), None);
        assert_eq!(ask(30, 10, false, &[awake(10), awake(10)]), None);
    }

    #[test]
    fn many_resting_processes_leave_the_budget_to_the_one_that_works() {
        let others = [resting(1); 60];
        for mine in 1..63 {
            assert!(ask(64, mine, false, &others).is_some(), "with {mine}");
        }
        assert_eq!(ask(64, 64, false, &others), None);
    }

    #[test]
    fn resting_memory_is_taken_before_that_of_processes_that_are_awake() {
        assert_eq!(ask(64, 3, false, &[awake(50), resting(11)]), Some((1, 2)));
        assert_eq!(ask(64, 3, false, &[awake(50), resting(0)]), Some((0, 16)));
    }

    #[test]
    fn a_hungry_process_asks_for_what_it_has_no_claim_to() {
        assert_eq!(ask(30, 20, true, &[awake(4), awake(6)]), Some((1, 1)));
        assert_eq!(ask(30, 20, true, &[awake(0)]), None);
    }

    #[test]
    fn a_process_that_does_not_give_holds_nobody_up() {
        let stuck = Holder {
            owed: 2,
            ..resting(40)
        };
        assert_eq!(ask(64, 3, false, &[stuck, awake(50)]), Some((1, 16)));
    }

    #[test]
    fn enough_is_asked_for_at_a_time() {
        let others: Vec<Holder> = (0..20)
            .map(|i| Holder {
                owed: u64::from(i < 16),
                ..resting(1)
            })
            .collect();
        assert_eq!(ask(64, 3, false, &others), None);
        assert!(ask(64, 3, true, &others).is_some());
    }

    proptest! {
        #[test]
        fn nobody_that_is_awake_loses_its_share_to_a_process_that_is_not_hungry(
            budget in 2u64..4096,
            mine in 0u64..4096,
            others in prop::collection::vec((0u64..512, 0u64..3, any::<bool>()), 0..40),
        ) {
            let others: Vec<Holder> = others
                .into_iter()
                .map(|(frames, owed, rests)| Holder { frames, owed, rests })
                .collect();
            let share = budget / (1 + others.iter().filter(|h| !h.rests).count() as u64);
            if let Some((who, n)) = ask(budget, mine, false, &others) {
                prop_assert!(mine < share);
                prop_assert!((1..=MOST).contains(&n));
                prop_assert!(others[who].rests || others[who].frames > share);
                prop_assert!(others[who].frames > 0);
            }
        }
    }
}
