//! How far advice is believed: by trial.
//!
//! Advice says that a unit will be used so densely that it had better come whole at its first fault. Once it
//! has, nobody sees how much of it is used. So now and then such a unit is *tried* instead: it comes page by page,
//! as if there were no advice, and either its own faults pay for the whole (the advice was good) or reclaim takes its first page before
//! that. Then the advice was bad, unless faults came so fast that in a whole stay they would have paid: single pages come slowly, and
//! what one stream has used may leave before it has come to the end of its unit. With trust `w`, a unit is tried with probability `1 / (1 + w)`; a good trial makes `w` 7/4 of what it was, a
//! bad one 1/4, and at 0 everything is tried.
//!
//! Why that keeps the promise: let `B` be the cost of a whole unit (memory at its price, as in all that follows), and take `4/3 w B` as a debt that may be run up. A unit
//! whose advice is good costs `B`, or `2 B` if tried, and a trial raises the debt by `w B`: `B (1 + 1 / (1 + w) + w / (1 + w)) = 2 B` on
//! average, twice the best. One whose advice is bad costs `B` if not tried, and a trial lowers the debt by `w B`: no more on average than
//! twice the best either. From 0, a good trial gives `w = 1/16`, which adds a twelfth of `B`. So, whoever wrote the advice
//! without knowing the coin: **at most 2 1/12 times the best on average, and `4/3 B` times the trust given at the start**. When advice is good,
//! `w` grows to its maximum and 1 unit in 64 is tried: 1.6% more than the whole alone costs.
//!
//! That counts a trial as settled at once. While trials are under way no more than `2 (1 + w)` units ride on the last one
//! settled; after that, every unit is tried. It holds for each kind of advice by itself.

/// One unit of trust.
const ONE: u32 = 16;
/// The most trust: 1 unit in 64 is tried.
const MAX: u32 = 63 * ONE;
/// What advice is trusted before anything is known of it.
const START: u32 = 16 * ONE;

/// See the file's head.
#[derive(Clone, Debug)]
pub(super) struct Trust {
    /// Trust, in 1/[`ONE`].
    level: u32,
    /// Units believed since a trial was last settled.
    riding: u32,
    /// State of the coin (xorshift); never 0.
    coin: u64,
}

impl Trust {
    /// The trust a process starts with. `seed` makes the trials unpredictable to the program.
    pub(super) fn new(seed: u64) -> Trust {
        Trust {
            level: START,
            riding: 0,
            // Mixed, so that seeds that differ little give different coins.
            coin: (seed ^ seed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) | 1,
        }
    }

    /// How many units come on advice for each that is tried, on average.
    pub(super) fn level(&self) -> u32 {
        self.level / ONE
    }

    /// No trust yet: everything is tried.
    pub(super) fn none(seed: u64) -> Trust {
        Trust {
            level: 0,
            ..Trust::new(seed)
        }
    }

    fn most_riding(&self) -> u32 {
        2 * (ONE + self.level) / ONE
    }

    /// Advice wants a whole unit. True: believe it. False: try it, and tell how that ended.
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

    /// A tried unit has paid for a whole one.
    pub(super) fn good(&mut self) {
        // More trials than the coin asked for must not raise trust faster than it may.
        if self.riding < self.most_riding() {
            self.level = (self.level + (self.level * 3 / 4).max(1)).min(MAX);
        }
        self.riding = 0;
    }

    /// A tried unit began to be evicted before it had.
    pub(super) fn bad(&mut self) {
        self.level /= 4;
        self.riding = 0;
    }
}
