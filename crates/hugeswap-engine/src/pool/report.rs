//! What a pool did, summed over its processes: the figures of the exit report.

use super::layout::Record;
use super::losses::Loss;
use super::{FaultMode, Pool};
use crate::health::{AreaReport, LatencyReport};
use hugeswap_policy::UNIT_BYTES;
use hugeswap_policy::advisor::advice::Advice;
use hugeswap_policy::advisor::{Tally, WORDS};
use hugeswap_policy::counters::{Counter, FaultClass};
use hugeswap_policy::histogram;
use std::sync::atomic::Ordering::Relaxed;

/// Latencies of one class of faults.
#[derive(Clone, Debug)]
pub struct FaultReport {
    /// The class.
    pub class: FaultClass,
    /// How long they took, from the handler's beginning to its end.
    pub took: LatencyReport,
}

/// What a living process of a pool holds, and has done since it joined; sizes in bytes.
#[derive(Clone, Copy, Debug)]
pub struct ProcessReport {
    /// Its process id.
    pub pid: i32,
    /// Managed memory in use.
    pub resident_bytes: u64,
    /// Of that, compressed memory.
    pub zswap_bytes: u64,
    /// Of that, what is the kernel's for good.
    pub foreign_bytes: u64,
    /// What it has in swap, about: units that hold something, those it shares with its parent left
    /// out, less what is in memory.
    pub swapped_bytes: u64,
    /// Base pages read from swap.
    pub pages_in: u64,
    /// Base pages written to swap.
    pub pages_out: u64,
    /// Faults that read swap.
    pub major_faults: u64,
    /// Nanoseconds its threads spent in faults.
    pub fault_ns: u64,
}

/// Totals over a pool's processes, living and gone.
#[derive(Clone, Debug)]
pub struct Report {
    /// The budget, bytes.
    pub memory_bytes: u64,
    /// Largest total of managed memory that held something at one time, in memory or in swap,
    /// bytes.
    pub peak_managed_bytes: u64,
    /// Largest total of managed memory in use at one time, arena included, bytes.
    pub peak_resident_bytes: u64,
    /// By [`Counter`].
    pub counters: Vec<u64>,
    /// Nanoseconds threads spent in faults, summed over threads.
    pub fault_ns: u64,
    /// By class.
    pub faults: Vec<FaultReport>,
    /// Share of managed memory that was mapped by huge pages, over all samples; `None` without
    /// samples.
    pub huge_share: Option<f64>,
    /// How faults were taken ("signal", "message", "signal+message", or "none" if nothing was
    /// managed).
    pub fault_mode: &'static str,
    /// Processes that joined.
    pub processes: u64,
    /// Processes that were ended since neither memory nor swap was left.
    pub exhausted: u64,
    /// How the swap areas in use are.
    pub areas: Vec<AreaReport>,
    /// Places in swap that did not give back what was written, the last ones.
    pub losses: Vec<Loss>,
    /// The events that the advisor was told.
    pub tally: Box<[u64; WORDS]>,
}

impl Report {
    /// The value of a counter.
    pub fn get(&self, c: Counter) -> u64 {
        self.counters[c as usize]
    }

    /// What other budgets would have brought; `None` if too little came back from swap to tell.
    /// Takes some milliseconds.
    pub fn advice(&self) -> Option<Advice> {
        let pages_in = self.get(Counter::PswpIn);
        Advice::new(&Tally::new(&self.tally), pages_in, self.memory_bytes)
    }
}

pub(super) fn process(r: &Record) -> ProcessReport {
    let counter = |c: Counter| r.events.counters[c as usize].load(Relaxed);
    let class = |c: FaultClass| -> u64 {
        let buckets = &r.events.faults[c as usize];
        buckets.iter().map(|n| n.load(Relaxed)).sum()
    };
    ProcessReport {
        pid: r.pid.load(Relaxed),
        resident_bytes: r.charged.load(Relaxed) * UNIT_BYTES,
        zswap_bytes: r.zswap.load(Relaxed) * UNIT_BYTES,
        foreign_bytes: r.foreign.load(Relaxed) * UNIT_BYTES,
        swapped_bytes: { r.touched_bytes() }.saturating_sub(r.uncompressed() * UNIT_BYTES),
        pages_in: counter(Counter::PswpIn),
        pages_out: counter(Counter::PswpOut),
        major_faults: class(FaultClass::Major) + class(FaultClass::Base),
        fault_ns: r.events.fault_ns.load(Relaxed),
    }
}

pub(super) fn collect(pool: &Pool) -> Report {
    pool.note_touched();
    let h = pool.header();
    let sets: Vec<&super::Events> = std::iter::once(&h.retired)
        .chain(pool.live().map(|(_, r)| &r.events))
        .collect();
    let counters = (0..Counter::COUNT)
        .map(|c| sets.iter().map(|e| e.counters[c].load(Relaxed)).sum())
        .collect();
    let faults = FaultClass::ALL
        .iter()
        .map(|&class| {
            let c = class as usize;
            let counts: Vec<u64> = (0..histogram::BUCKETS)
                .map(|b| sets.iter().map(|e| e.faults[c][b].load(Relaxed)).sum())
                .collect();
            let max_ns = sets
                .iter()
                .map(|e| e.fault_max_ns[c].load(Relaxed))
                .max()
                .unwrap_or(0);
            FaultReport {
                class,
                took: LatencyReport::of(&counts, max_ns),
            }
        })
        .collect();
    let present: u64 = sets.iter().map(|e| e.sampled_present.load(Relaxed)).sum();
    let huge: u64 = sets.iter().map(|e| e.sampled_huge.load(Relaxed)).sum();
    Report {
        areas: pool.area_health(),
        losses: pool.losses(),
        tally: Box::new(tally(pool)),
        memory_bytes: pool.frames() * UNIT_BYTES,
        peak_managed_bytes: h.peak_managed.load(Relaxed),
        peak_resident_bytes: h.peak_frames.load(Relaxed) * UNIT_BYTES,
        counters,
        fault_ns: sets.iter().map(|e| e.fault_ns.load(Relaxed)).sum(),
        faults,
        huge_share: (present > 0).then(|| huge as f64 / present as f64),
        fault_mode: match h.mode_used.load(Relaxed) {
            0 => "none",
            1 => FaultMode::Signal.name(),
            2 => FaultMode::Message.name(),
            _ => "signal+message",
        },
        processes: h.joined.load(Relaxed),
        exhausted: u64::from(h.exhausted.load(Relaxed)),
    }
}

/// The events that the advisor was told, by all processes.
pub(super) fn tally(pool: &Pool) -> [u64; WORDS] {
    let retired = &pool.header().retired;
    let sets = || std::iter::once(retired).chain(pool.live().map(|(_, r)| &r.events));
    std::array::from_fn(|i| {
        let all = sets().map(|e| e.advisor[i].load(Relaxed));
        all.fold(0, u64::saturating_add)
    })
}
