//! A swap area's state, and claims in it against its being emptied.
//!
//! Who claims a slot looks at the state before, so as not to begin, and once more after ([`may_keep`]): then either it sees that the area
//! is to be emptied, and gives the slot back, or whoever empties it ([`is_to_be_emptied`]) sees the claim. Each orders what it wrote or read
//! first before what it reads next by a full fence, as in Dekker's mutual exclusion. Explored by loom (`tests/area_loom.rs`).

use crate::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// There is none.
pub const FREE: u32 = 0;
/// In use.
pub const ON: u32 = 1;
/// Being taken off: nothing is claimed there any more, and what is there moves away.
pub const DRAINING: u32 = 2;
/// Empty, and about to be free.
pub const ENDING: u32 = 3;

/// An area's state, as an atomic; another one than the machine's for exploring.
pub trait State: Cell<u32> {
    /// A sequentially consistent fence.
    fn fence();
}

impl State for AtomicU32 {
    fn fence() {
        fence(Ordering::SeqCst);
    }
}

/// May a slot that has just been claimed be kept?
pub fn may_keep<S: State>(state: &S) -> bool {
    S::fence();
    state.get() == ON
}

/// Is the area to be emptied? If so, every claim that is kept is seen from now on.
pub fn is_to_be_emptied<S: State>(state: &S) -> bool {
    let draining = state.get() == DRAINING;
    S::fence();
    draining
}
