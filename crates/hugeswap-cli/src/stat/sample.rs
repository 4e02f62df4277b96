//! What is read of a pool at one time.

use hugeswap_engine::pool::{Pool, Report};
use hugeswap_policy::counters::{Counter, FaultClass};
use hugeswap_policy::{PAGE_BYTES, UNIT_BYTES};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The figures of a pool, as they were at a time.
pub struct Sample {
    pub at: Instant,
    /// Seconds since 1970.
    pub time: f64,
    /// The process that made the pool.
    pub maker: i32,
    pub processes: u64,
    /// Managed memory in use, bytes.
    pub resident: u64,
    pub swap: u64,
    pub swap_used: u64,
    /// Swap is compressed memory, and nothing else.
    pub no_device: bool,
    /// Memory that compressed pages take, bytes.
    pub zswap: u64,
    /// Totals since the pool was made.
    pub totals: Report,
}

impl Sample {
    pub fn of(pool: &Pool) -> Sample {
        let swap = pool.swap_usage();
        let time = SystemTime::now().duration_since(UNIX_EPOCH);
        Sample {
            at: Instant::now(),
            time: time.map_or(0.0, |t| t.as_secs_f64()),
            maker: pool.maker(),
            processes: pool.live().count() as u64,
            resident: pool.used_frames() * UNIT_BYTES,
            swap: swap.clusters * UNIT_BYTES,
            swap_used: swap.used_bytes(),
            no_device: pool.is_without_device(),
            zswap: pool.zswap_usage().bytes,
            totals: pool.report(),
        }
    }
}

/// What was done between two samples. (The events of a process that has just ended may be in neither
/// of its two places for a moment: no figure is below zero for that.)
pub struct Difference<'a> {
    pub before: &'a Sample,
    pub now: &'a Sample,
}

impl Difference<'_> {
    pub fn seconds(&self) -> f64 {
        let time = self.now.at.saturating_duration_since(self.before.at);
        time.as_secs_f64().max(1e-6)
    }

    pub fn of(&self, c: Counter) -> u64 {
        let before = self.before.totals.get(c);
        self.now.totals.get(c).saturating_sub(before)
    }

    pub fn bytes_of(&self, c: Counter) -> u64 {
        self.of(c) * PAGE_BYTES
    }

    /// Faults that read swap, if `major`; the others, if not.
    pub fn faults(&self, major: bool) -> u64 {
        let is_major = |class| matches!(class, FaultClass::Major | FaultClass::Base);
        let count = |s: &Sample| -> u64 {
            let of = s.totals.faults.iter();
            of.filter(|f| is_major(f.class) == major)
                .map(|f| f.took.count)
                .sum()
        };
        count(self.now).saturating_sub(count(self.before))
    }

    /// Seconds that threads spent in faults, all of them together.
    pub fn in_faults(&self) -> f64 {
        let ns = self.now.totals.fault_ns;
        ns.saturating_sub(self.before.totals.fault_ns) as f64 / 1e9
    }

    /// Seconds that threads waited for memory.
    pub fn stalled(&self) -> f64 {
        self.of(Counter::AllocStallUsec) as f64 / 1e6
    }
}
