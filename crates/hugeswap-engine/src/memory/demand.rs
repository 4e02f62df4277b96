//! How many whole frames are asked for, in vain or not.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// How many whole frames are asked for, from one of kswapd's ticks to the next.
#[derive(Default)]
pub(crate) struct FrameDemand {
    now: AtomicU32,
    before: AtomicU32,
}

impl FrameDemand {
    /// Fewer than this many are next to none.
    const LOW: u32 = 8;

    pub(super) fn note(&self) {
        self.now.fetch_add(1, Relaxed);
    }

    pub fn is_low(&self) -> bool {
        self.now.load(Relaxed).max(self.before.load(Relaxed)) < FrameDemand::LOW
    }

    /// As many as there are where huge pages are used, from now on.
    pub fn raise(&self) {
        self.now.fetch_max(FrameDemand::LOW, Relaxed);
    }

    /// A tick has passed.
    pub fn tick(&self) {
        self.before.store(self.now.swap(0, Relaxed), Relaxed);
    }
}
