//! Memory of the window that a forked child does not inherit (MADV_DONTFORK).
//!
//! The kernel's advice would hand the memory to the kernel. So the ranges are kept here, and a child
//! unmaps them before it goes on.

use crate::lock::Lock;
use crate::mmap;
use hugeswap_engine::Engine;
use hugeswap_engine::intervals::Intervals;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

static EXCLUDED: Lock<Intervals> = Lock::new(Intervals::new());
/// Was there ever any?
static IS_ANY: AtomicBool = AtomicBool::new(false);

/// A child does not inherit `[at, at+len)`, which is mapped.
pub fn exclude(at: usize, len: usize) {
    IS_ANY.store(true, Relaxed);
    EXCLUDED.lock().insert(at, at + len);
}

/// A child inherits it; or it is not mapped any more, or mapped anew.
pub fn include(at: usize, len: usize) {
    if IS_ANY.load(Relaxed) {
        EXCLUDED.lock().remove(at, at.saturating_add(len));
    }
}

/// Is any of `[at, at+len)` not inherited?
pub fn is_excluded(at: usize, len: usize) -> bool {
    IS_ANY.load(Relaxed) && EXCLUDED.lock().bytes_in(at, at.saturating_add(len)) > 0
}

/// In a child, once its engine has settled.
pub fn settle_child(engine: &Engine) {
    if !IS_ANY.load(Relaxed) {
        return;
    }
    let gone = std::mem::take(&mut *EXCLUDED.lock());
    for (at, end) in gone.within(0, usize::MAX) {
        mmap::release(engine, at, end - at);
    }
}

/// Around a fork; see [`Lock::before_fork`].
pub fn before_fork() {
    EXCLUDED.before_fork();
}

/// Around a fork, in parent and child.
pub fn after_fork() {
    EXCLUDED.after_fork();
}
