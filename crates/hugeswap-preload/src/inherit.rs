//! Memory in the window that a forked child does not inherit (MADV_DONTFORK).
//!
//! To pass this advice to the kernel, the engine would have to hand over the memory. Instead the
//! ranges are kept here, and a child unmaps them before it goes on.

use crate::lock::Lock;
use crate::mmap;
use hugeswap_engine::Engine;
use hugeswap_engine::intervals::Intervals;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

static EXCLUDED: Lock<Intervals> = Lock::new(Intervals::new());
/// Was any range ever excluded?
static IS_ANY: AtomicBool = AtomicBool::new(false);

/// Excludes `[at, at+len)`, which is mapped, from what a child inherits.
pub fn exclude(at: usize, len: usize) {
    IS_ANY.store(true, Relaxed);
    EXCLUDED.lock().insert(at, at + len);
}

/// Ends the exclusion of `[at, at+len)`: a child inherits it again, or it is unmapped or mapped
/// anew.
pub fn include(at: usize, len: usize) {
    if IS_ANY.load(Relaxed) {
        EXCLUDED.lock().remove(at, at.saturating_add(len));
    }
}

/// Is any byte of `[at, at+len)` not inherited by a child?
pub fn is_excluded(at: usize, len: usize) -> bool {
    IS_ANY.load(Relaxed) && EXCLUDED.lock().bytes_in(at, at.saturating_add(len)) > 0
}

/// The parts of `[at, at+len)` that a child inherits, and those that it does not (true), in order.
pub fn parts(at: usize, len: usize) -> Vec<(Range<usize>, bool)> {
    let mut all = Vec::new();
    let mut next = at;
    if IS_ANY.load(Relaxed) {
        for (start, end) in EXCLUDED.lock().within(at, at + len) {
            if start > next {
                all.push((next..start, false));
            }
            all.push((start..end, true));
            next = end;
        }
    }
    if next < at + len {
        all.push((next..at + len, false));
    }
    all
}

/// Unmaps the excluded ranges in a forked child, once the child's engine has settled.
pub fn settle_child(engine: &Engine) {
    if !IS_ANY.load(Relaxed) {
        return;
    }
    let gone = std::mem::take(&mut *EXCLUDED.lock());
    for (at, end) in gone.within(0, usize::MAX) {
        mmap::release(engine, at, end - at);
    }
}

/// Takes this module's lock for the time of a fork; see [`Lock::before_fork`].
pub fn before_fork() {
    EXCLUDED.before_fork();
}

/// Releases the lock after a fork, in parent and child.
pub fn after_fork() {
    EXCLUDED.after_fork();
}
