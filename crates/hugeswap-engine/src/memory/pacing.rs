//! Pauses of threads that take memory faster than it is made available, and what else follows from
//! that: marks that are raised for a while.
//!
//! A thread that takes a frame's worth while less than `low` is left owes a pause. It pauses when
//! its next fault begins, outside the gate and without a lock, so that it holds up neither a fork
//! nor another thread. (Not after a fault: what that brought in could be gone before it is used.)
//! `hugeswap_policy::pace` says how long the pause is. The engine's own threads never owe one that
//! counts: they do not come by [`pause_if_owed`](super::Memory::pause_if_owed).
//!
//! The rules of the fault path hold.

use crate::lock::Lock;
use hugeswap_policy::UNIT_PAGES;
use hugeswap_policy::pace::Meter;
use hugeswap_policy::watermark::Boost;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

/// Threads that can owe a pause at one time; two in one place are one.
const PLACES: usize = 64;

/// Which threads owe a pause, and how far the marks are raised.
pub(crate) struct Pacing {
    /// Some thread may owe a pause.
    pub(super) any: AtomicU32,
    pub(super) owes: [AtomicI32; PLACES],
    /// Threads that pause.
    pub(super) paused: AtomicU32,
    /// Pages that reclaim has made available so far.
    pub(super) made: AtomicU64,
    pub(super) meter: Lock<Meter>,
    /// What the meter says.
    pub(super) frame_ns: AtomicU64,
    /// How far the marks are raised.
    pub(super) boost: AtomicU64,
}

impl Pacing {
    pub fn new() -> Pacing {
        Pacing {
            any: AtomicU32::new(0),
            owes: [const { AtomicI32::new(0) }; PLACES],
            paused: AtomicU32::new(0),
            made: AtomicU64::new(0),
            meter: Lock::new(Meter::new()),
            frame_ns: AtomicU64::new(Meter::new().frame_ns()),
            boost: AtomicU64::new(0),
        }
    }

    /// In a forked child: there is no other thread.
    pub fn reset_in_child(&self) {
        self.paused.store(0, Relaxed);
        self.any.store(0, Relaxed);
        self.owes.iter().for_each(|o| o.store(0, Relaxed));
    }

    /// Reclaim has made pages available.
    pub fn made(&self, pages: u64) {
        self.made.fetch_add(pages, Relaxed);
    }

    /// The same of a frame.
    pub fn made_frame(&self) {
        self.made(UNIT_PAGES);
    }

    pub(super) fn place(&self, tid: i32) -> &AtomicI32 {
        &self.owes[tid as usize % PLACES]
    }

    pub(super) fn boost(&self) -> Boost {
        Boost(self.boost.load(Relaxed))
    }
}
