//! How far advice is followed: decided by trials.
//!
//! Advice says that a unit will be used so densely that it had better come whole at its first
//! fault. Once it has, how much of it is used cannot be seen. So now and then such a unit is
//! *tried* instead: it comes page by page, as if there were no advice. Either its own faults pay
//! for the whole, and the advice was good; or reclaim takes its first page before that, and the
//! advice was bad, unless faults came so fast that in a whole stay they would have paid. (Single
//! pages come slowly, and pages that one stream has used may leave before it comes to the end of
//! its unit.) With trust `w`, a unit is tried with probability `1 / (1 + w)`. A good trial
//! multiplies `w` by 7/4, a bad one by 1/4, and at 0 every unit is tried.
//!
//! Why that keeps the promise: let `B` be the cost of a whole unit (with memory at its price, as
//! everywhere below), and take `4/3 w B` as a debt that may be run up. A unit whose advice is good
//! costs `B`, or `2 B` if tried, and a trial raises the debt by `w B`: on average `B (1 + 1 / (1 +
//! w) + w / (1 + w)) = 2 B`, twice the best. A unit whose advice is bad costs `B` if not tried, and
//! a trial lowers the debt by `w B`: on average no more than twice the best either. From 0, a good
//! trial gives `w = 1/16`, which adds a twelfth of `B`. So if the advice was given without
//! knowledge of the coin, the cost is **on average at most 2 1/12 times the best, and `4/3 B` times
//! the trust given at the start**. When advice is good, `w` grows to its maximum and 1 unit in 64
//! is tried: 1.6% more than the whole alone costs.
//!
//! That counts a trial as settled at once. While trials are under way no more than `2 (1 + w)`
//! units depend on the last one settled; after that, every unit is tried. The promise holds for
//! each kind of advice by itself.

/// One unit of trust.
const ONE: u32 = 16;
/// Largest trust: 1 unit in 64 is tried.
const MAX: u32 = 63 * ONE;
/// Trust in advice before anything is known of it.
const START: u32 = 16 * ONE;

/// The trust in one kind of advice; see the module.
#[derive(Clone, Debug)]
pub(super) struct Trust {
    /// Trust, in 1/[`ONE`].
    level: u32,
    /// Units that followed advice since a trial was last settled.
    riding: u32,
    /// State of the coin (xorshift); never 0.
    coin: u64,
}

impl Trust {
    /// The trust that a process starts with. `seed` makes the trials unpredictable to the program.
    pub(super) fn new(seed: u64) -> Trust {
        Trust {
            level: START,
            riding: 0,
            // Mixed, so that similar seeds give different coins.
            coin: (seed ^ seed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) | 1,
        }
    }

    /// Number of units that come on advice for each that is tried, on average.
    pub(super) fn level(&self) -> u32 {
        self.level / ONE
    }

    /// Makes trust 0: every unit is tried.
    pub(super) fn none(seed: u64) -> Trust {
        Trust {
            level: 0,
            ..Trust::new(seed)
        }
    }

    fn most_riding(&self) -> u32 {
        2 * (ONE + self.level) / ONE
    }

    /// Decides about advice for a whole unit. True: follow it. False: try the unit, and report how
    /// that ended.
    pub(super) fn believes(&mut self) -> bool {
        self.coin ^= self.coin << 13;
        self.coin ^= self.coin >> 7;
        self.coin ^= self.coin << 17;
        let sides = u64::from(ONE + self.level);
        let drawn = ((self.coin >> 32) * sides) >> 32;
        let believed = drawn >= u64::from(ONE) && self.riding < self.most_riding();
        self.riding += u32::from(believed);
        believed
    }

    /// Notes that a tried unit has paid for a whole one.
    pub(super) fn good(&mut self) {
        // More trials than the coin asked for must not raise trust faster than it may.
        if self.riding < self.most_riding() {
            self.level = (self.level + (self.level * 3 / 4).max(1)).min(MAX);
        }
        self.riding = 0;
    }

    /// Notes that a tried unit began to be evicted before it had paid.
    pub(super) fn bad(&mut self) {
        self.level /= 4;
        self.riding = 0;
    }
}
