//! The state of a swap area, and the protocol between claims of clusters and the emptying of the
//! area.
//!
//! A thread that claims a cluster, or a slot, checks the state before, to save the work, and once
//! more after the claim ([`may_keep`]). Either that check sees that the area is to be emptied, and
//! the thread gives it back, or the thread that empties the area ([`is_to_be_emptied`]) sees the
//! claim. A full fence on each side orders its first access before its second, as in Dekker's
//! mutual exclusion. Explored by loom (`tests/area_loom.rs`).

use crate::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// The entry holds no area.
pub const FREE: u32 = 0;
/// The area is in use.
pub const ON: u32 = 1;
/// The area is being taken off: nothing is claimed there any more, and what is there moves away.
pub const DRAINING: u32 = 2;
/// The area is empty, and its entry is about to be free.
pub const ENDING: u32 = 3;

/// The state of an area as an atomic, generic so that loom explores the protocol.
pub trait State: Cell<u32> {
    /// A sequentially consistent fence.
    fn fence();
}

impl State for AtomicU32 {
    fn fence() {
        fence(Ordering::SeqCst);
    }
}

/// True if a cluster, or a slot, that has just been claimed may be kept.
pub fn may_keep<S: State>(state: &S) -> bool {
    S::fence();
    state.get() == ON
}

/// True if the area is to be emptied. Every claim that is kept is visible to the caller from then
/// on.
pub fn is_to_be_emptied<S: State>(state: &S) -> bool {
    let draining = state.get() == DRAINING;
    S::fence();
    draining
}
