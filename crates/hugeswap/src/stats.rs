//! Counters of a pool, under the kernel's names.

use hugeswap_engine::Engine;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::workingset::vmscan::PageKind;
use hugeswap_policy::{PAGE_BYTES, UNIT_BYTES};

/// What a pool has now and did so far, summed over its processes unless it is said otherwise.
///
/// Counters are in base pages or huge pages since the pool was made. docs/settings.md explains each.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// Managed memory in use now, bytes, including frames that are free or in I/O.
    pub resident_bytes: u64,
    /// Memory that is free, bytes: the rest of the budget, and frames of this process that are free.
    pub free_bytes: u64,
    /// The part of it that is free in whole units of 2 MiB, bytes.
    pub free_huge_bytes: u64,
    /// This process's anonymous memory on the active list, bytes.
    pub active_anon_bytes: u64,
    /// This process's anonymous memory on the inactive list, bytes.
    pub inactive_anon_bytes: u64,
    /// This process's memory of mapped files on the active list, bytes.
    pub active_file_bytes: u64,
    /// This process's memory of mapped files on the inactive list, bytes.
    pub inactive_file_bytes: u64,
    /// The most that `resident_bytes` ever was.
    pub peak_resident_bytes: u64,
    /// The most managed memory that had content at one time, in memory or in swap, bytes.
    pub peak_managed_bytes: u64,
    /// Size of all swap areas, bytes.
    pub swap_bytes: u64,
    /// Swap in use now, bytes, including what is reserved for forked children.
    pub swap_used_bytes: u64,
    /// Swap that is free in whole units of 2 MiB, bytes. The rest that is not in use is free in single
    /// pages.
    pub swap_free_bytes: u64,
    /// Swap that is not used any more, since it could not be read or written, bytes. It is neither
    /// used nor free.
    pub swap_bad_bytes: u64,
    /// Memory in use for compressed pages, bytes.
    pub zswap_bytes: u64,
    /// Bytes of the pages that are compressed there.
    pub zswapped_bytes: u64,
    /// Base pages read from swap, those that were compressed in memory included.
    pub pswpin: u64,
    /// Base pages written to swap, those that are compressed in memory included.
    pub pswpout: u64,
    /// Base pages read from mapped files.
    pub filein: u64,
    /// Base pages written back to mapped files.
    pub fileout: u64,
    /// Huge pages read whole.
    pub thp_swpin: u64,
    /// Huge pages written whole.
    pub thp_swpout: u64,
    /// Units dropped without a write, since swap had their bytes already.
    pub clean_drops: u64,
    /// Units dropped without I/O, since they were all zeros.
    pub zero_drops: u64,
    /// Faults that had to wait for memory.
    pub stalls: u64,
    /// Time in faults, nanoseconds, summed over threads.
    pub fault_ns: u64,
    /// Share of the memory in use that is in huge pages, from 0 to 1, the mean of all samples.
    pub huge_share: Option<f64>,
    /// Every counter, by its name in docs/settings.md.
    pub counters: Vec<(&'static str, u64)>,
}

impl Stats {
    pub(crate) fn of(engine: &Engine) -> Stats {
        let pool = engine.pool();
        let (r, swap) = (pool.report(), pool.swap_usage());
        let zswap = pool.zswap_usage();
        let (free_bytes, free_huge_bytes) = engine.free_bytes();
        let listed = |kind, active| engine.listed_bytes(kind, active);
        Stats {
            resident_bytes: pool.used_frames() * UNIT_BYTES,
            free_bytes,
            free_huge_bytes,
            swap_bytes: swap.clusters * UNIT_BYTES,
            swap_used_bytes: swap.used_bytes(),
            swap_free_bytes: swap.free * UNIT_BYTES,
            swap_bad_bytes: pool.bad_bytes(),
            zswap_bytes: zswap.bytes,
            zswapped_bytes: zswap.pages * PAGE_BYTES,
            active_anon_bytes: listed(PageKind::Anon, true),
            inactive_anon_bytes: listed(PageKind::Anon, false),
            active_file_bytes: listed(PageKind::File, true),
            inactive_file_bytes: listed(PageKind::File, false),
            peak_resident_bytes: r.peak_resident_bytes,
            peak_managed_bytes: r.peak_managed_bytes,
            pswpin: r.get(Counter::PswpIn),
            pswpout: r.get(Counter::PswpOut),
            filein: r.get(Counter::FileIn),
            fileout: r.get(Counter::FileOut),
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
