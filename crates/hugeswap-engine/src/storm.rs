//! Testing: `debug.storm` has kswapd bring random units out all the time.
//!
//! Of the units that hold something one is drawn, and brought out if it is in memory: the less is in memory the less of it leaves. (A storm that drew
//! from what is in memory would outrun the faults where these take long, and leave the program nothing to go on with.)

use crate::engine::Engine;
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::unit::Kind;
use hugeswap_sys::now_ns;
use std::sync::atomic::Ordering::Relaxed;

/// How far a draw goes on from one unit to the next, counted in units that hold something.
const STRIDE: u64 = 8;
/// Most units a draw looks at.
const LOOKS: usize = 4096;

/// Where a storm is.
pub(crate) struct Storm {
    random: u64,
    /// The unit that was drawn last.
    at: u32,
    /// Nothing is drawn before, nanoseconds.
    next: u64,
}

impl Storm {
    pub fn new() -> Storm {
        Storm {
            random: now_ns() | 1,
            at: 0,
            next: 0,
        }
    }
}

impl Engine {
    /// Brings a unit out if it is time to. The nanoseconds from one to the next, if there is a storm.
    pub(crate) fn storm(&self, storm: &mut Storm) -> Option<u64> {
        let every = match self.pool.knob(Knob::Storm) {
            0 => return None,
            microseconds => microseconds * 1000,
        };
        if now_ns() < storm.next {
            return Some(every);
        }
        storm.next = now_ns() + every;
        storm.random ^= storm.random << 13;
        storm.random ^= storm.random >> 7;
        storm.random ^= storm.random << 17;
        let high = self.high_unit.load(Relaxed);
        let at = storm.at.min(high);
        let kind = |unit: u32| self.table.load(unit).kind();
        let holds = |unit: &u32| {
            matches!(
                kind(*unit),
                Kind::Present | Kind::Base | Kind::Swapped | Kind::Cached
            )
        };
        let after = (at + 1..high).chain(0..high).take(LOOKS).filter(holds);
        match after.take(1 + (storm.random % STRIDE) as usize).last() {
            Some(unit) => {
                storm.at = unit;
                if matches!(kind(unit), Kind::Present | Kind::Base) {
                    self.evict_now(unit);
                }
            }
            None if high - at > LOOKS as u32 => storm.at = at + LOOKS as u32,
            None => storm.at = 0,
        }
        Some(every)
    }
}
