//! Counters of a pool, under the kernel's names.

use hugeswap_engine::pool;
use hugeswap_policy::UNIT_BYTES;
use hugeswap_policy::counters::Counter;

/// What a pool did so far, summed over its processes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// Managed memory in use now, arena included, bytes.
    pub resident_bytes: u64,
    /// The most there ever was, bytes.
    pub peak_resident_bytes: u64,
    /// Most managed bytes ever mapped at one time.
    pub peak_managed_bytes: u64,
    /// All swap, bytes.
    pub swap_bytes: u64,
    /// Swap in use now, bytes: whole units of 2 MiB, and single pages; what is kept back for forked children included.
    pub swap_used_bytes: u64,
    /// Swap that is free in whole units of 2 MiB, bytes. What is in neither figure is free in single pages.
    pub swap_free_bytes: u64,
    /// Base pages read from swap.
    pub pswpin: u64,
    /// Base pages written to swap.
    pub pswpout: u64,
    /// Huge pages read whole.
    pub thp_swpin: u64,
    /// Huge pages written whole.
    pub thp_swpout: u64,
    /// Units dropped without a write since swap held their bytes already.
    pub clean_drops: u64,
    /// Units dropped without I/O since they were all zeros.
    pub zero_drops: u64,
    /// Faults that had to wait for memory.
    pub stalls: u64,
    /// Nanoseconds threads spent in faults, summed over threads.
    pub fault_ns: u64,
    /// Share of managed memory in memory that is huge, over all samples.
    pub huge_share: Option<f64>,
    /// Every counter by its name.
    pub counters: Vec<(&'static str, u64)>,
}

impl Stats {
    pub(crate) fn of(pool: &pool::Pool) -> Stats {
        let (r, swap) = (pool.report(), pool.swap_usage());
        Stats {
            resident_bytes: pool.used_frames() * UNIT_BYTES,
            swap_bytes: swap.clusters * UNIT_BYTES,
            swap_used_bytes: swap.used_bytes(),
            swap_free_bytes: swap.free * UNIT_BYTES,
            peak_resident_bytes: r.peak_resident_bytes,
            peak_managed_bytes: r.peak_managed_bytes,
            pswpin: r.get(Counter::PswpIn),
            pswpout: r.get(Counter::PswpOut),
            thp_swpin: r.get(Counter::ThpSwpIn),
            thp_swpout: r.get(Counter::ThpSwpOut),
            clean_drops: r.get(Counter::CleanDrop),
            zero_drops: r.get(Counter::ZeroDrop),
            stalls: r.get(Counter::AllocStall),
            fault_ns: r.fault_ns,
            huge_share: r.huge_share,
            counters: Counter::ALL.iter().map(|&c| (c.name(), r.get(c))).collect(),
        }
    }
}
