//! When kcompactd passes an occasion by, because it failed before.

use hugeswap_policy::defrag::compaction::Defer;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};

/// A [`Defer`] for several threads.
#[derive(Default)]
pub(super) struct Deferred(AtomicU32);

impl Deferred {
    pub(super) fn change<R>(&self, f: impl Fn(Defer) -> (R, Defer)) -> R {
        let mut bits = self.0.load(Relaxed);
        loop {
            let (result, new) = f(Defer::from_bits(bits));
            match self
                .0
                .compare_exchange_weak(bits, new.to_bits(), Relaxed, Relaxed)
            {
                Ok(_) => return result,
                Err(now) => bits = now,
            }
        }
    }

    /// There is an occasion: is it to be passed by?
    pub(super) fn passes(&self) -> bool {
        self.change(Defer::on_occasion)
    }

    pub(super) fn ended(&self, success: bool) {
        self.change(|d| match success {
            true => ((), d.on_success()),
            false => ((), d.on_failure()),
        });
    }
}

/// What kcompactd goes by.
#[derive(Default)]
pub(crate) struct Kcompactd {
    /// kswapd was asked for more huge pages, and has not had success or failed yet.
    pub(super) asked: AtomicBool,
    pub(super) reclaim: Deferred,
    pub(super) frames: Deferred,
    /// Frames are to be looked at.
    pub(super) look: AtomicBool,
}
