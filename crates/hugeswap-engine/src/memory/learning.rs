//! What is learnt for the decision how much a fault brings in: costs of the device, the price of
//! memory, how much was evicted.
//!
//! Concurrency: one lock around what learns; the count is an atomic. The rules of the fault path
//! hold.

use crate::lock::Lock;
use hugeswap_policy::swapin::granularity::{
    DeviceCost, Direction, Ghost, Granularity, MemoryPrice, PerSize, Progress, Verdict, follow,
};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// What the processor does for a fault, nanoseconds: taking it, and mapping what it brought.
pub(super) const CPU: PerSize = PerSize {
    page: 5_000,
    piece: 12_000,
    whole: 25_000,
};

/// What the engine has learnt for the sizes of faults.
pub(crate) struct Sizes {
    pub(super) learning: Lock<Learning>,
    /// What of the program's processor time faults took, without polling.
    pub(super) handled_ns: AtomicU64,
    /// Pages evicted so far.
    pub(super) evicted: AtomicU64,
    /// [`MeanDistance`](hugeswap_policy::workingset::MeanDistance) of the refaults so far.
    pub(super) mean_distance: AtomicU64,
    /// What [`Progress::is_whole`] said last.
    pub(super) only_whole: AtomicBool,
    /// What [`Progress::is_alone`] said last.
    pub(super) alone: AtomicBool,
    /// What [`Progress::is_by_pages`] said last.
    pub(super) by_pages: AtomicBool,
    /// What [`Progress::is_quiet`] said last.
    pub(super) quiet: AtomicBool,
}

pub(super) struct Learning {
    pub(super) granularity: Granularity,
    pub(super) price: MemoryPrice,
    pub(super) ghost: Ghost,
    pub(super) progress: Progress,
    pub(super) verdict: Verdict,
    /// Nanoseconds that making a base-mapped unit whole takes, as last seen.
    pub(super) fill: u32,
}

impl Sizes {
    /// Nothing learnt; `seed` is any number that the program does not know. `measured`: what swap
    /// cost at first. `units`: of the window.
    pub fn new(seed: u64, device: &DeviceCost, units: u32) -> Sizes {
        let r#in = device.per_size(Direction::In);
        Sizes {
            learning: Lock::new(Learning {
                granularity: Granularity::new(seed),
                price: MemoryPrice::new(u64::from(r#in.page.saturating_add(CPU.page))),
                ghost: Ghost::new(units),
                progress: Progress::default(),
                verdict: Verdict::default(),
                fill: r#in.whole.saturating_add(CPU.whole),
            }),
            handled_ns: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            mean_distance: AtomicU64::new(0),
            only_whole: AtomicBool::new(false),
            alone: AtomicBool::new(false),
            by_pages: AtomicBool::new(false),
            quiet: AtomicBool::new(false),
        }
    }

    /// In a forked child, whose processor time begins anew.
    pub fn reset_in_child(&self) {
        self.handled_ns.store(0, Relaxed);
    }

    /// A base-mapped unit was made whole, which took `ns`.
    pub fn observe_fill(&self, ns: u64) {
        let mut learning = self.learning.lock();
        learning.fill = follow(learning.fill, ns);
    }

    /// Does one thread at most wait for swap at a time?
    pub fn is_alone(&self) -> bool {
        self.alone.load(Relaxed)
    }

    /// What [`Progress::is_by_pages`] said last.
    pub fn are_by_pages(&self) -> bool {
        self.by_pages.load(Relaxed)
    }

    /// Is no trial of whole units under way or expected soon?
    pub fn is_no_trial_near(&self) -> bool {
        self.are_by_pages() || self.quiet.load(Relaxed)
    }

    /// Pages evicted so far.
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Relaxed)
    }

    /// A unit was written to swap, as a whole; `ns`: what that costs now.
    pub fn note_written(&self, ns: u32) {
        self.learning.lock().price.on_written(ns.into());
    }
}
