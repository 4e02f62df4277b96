//! How many threads write whole units to swap, and until when none begins.

use hugeswap_sys::now_ns;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// The writers of this process.
#[derive(Default)]
pub(crate) struct Writers {
    /// How many write now.
    pub(crate) active: AtomicU32,
    /// No thread begins before.
    pub(crate) rest_until: AtomicU64,
}

impl Writers {
    /// Nanoseconds for which no thread is to write; `None`: a thread may.
    pub fn rest_left(&self) -> Option<u64> {
        let until = self.rest_until.load(Relaxed);
        (until != 0)
            .then(|| until.saturating_sub(now_ns()))
            .filter(|left| *left > 0)
    }
}
