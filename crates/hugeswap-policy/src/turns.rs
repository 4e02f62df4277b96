//! Many act on what they have looked at, and one at a time changes it: only while nobody acts. What is
//! to be changed waits until then, and the last who acts sees to it.
//!
//! A word and its transitions, generic over the cell, so that loom explores what ships. Who acts never
//! waits for anything but a change under way, which is short; a change never waits.

use crate::cell::Cell;

/// A change is under way.
const CHANGING: u32 = 1 << 31;
/// Something waits to be changed.
const WAITING: u32 = 1 << 30;

/// How many act, [`WAITING`] and [`CHANGING`].
#[derive(Debug, Default)]
pub struct Turns<C>(pub C);

impl<C: Cell<u32>> Turns<C> {
    fn update(&self, next: impl Fn(u32) -> Option<u32>) -> bool {
        loop {
            let seen = self.0.get();
            let Some(next) = next(seen) else {
                return false;
            };
            if self.0.change(seen, next).is_ok() {
                return true;
            }
        }
    }

    /// Begins to act. `wait` is called while a change is under way, and again until it is done.
    pub fn enter(&self, mut wait: impl FnMut()) {
        while !self.update(|seen| (seen & CHANGING == 0).then_some(seen + 1)) {
            wait();
        }
    }

    /// Begins to act, by somebody for whom the change that is under way waits.
    pub fn enter_at_once(&self) {
        self.update(|seen| Some(seen + 1));
    }

    /// Ends to act. Then call [`Turns::begin`] if something is waiting.
    pub fn leave(&self) {
        self.update(|seen| Some(seen - 1));
    }

    /// Is something waiting?
    pub fn is_waiting(&self) -> bool {
        self.0.get() & WAITING != 0
    }

    /// Something is to be changed. Then call [`Turns::begin`].
    pub fn ask(&self) {
        self.update(|seen| Some(seen | WAITING));
    }

    /// Begins to change all that waits. False: nothing does; or somebody acts, or changes, and will
    /// call this.
    pub fn begin(&self) -> bool {
        self.update(|seen| (seen == WAITING).then_some(CHANGING))
    }

    /// What was begun is done. Then call [`Turns::begin`] if something is waiting: it has been asked
    /// for meanwhile.
    pub fn end(&self) {
        self.update(|seen| Some(seen & !CHANGING));
    }

    /// In a forked child, where `own` of those that acted are: nobody changes anything, and nothing
    /// waits.
    pub fn restart(&self, own: u32) {
        // (What is not written to need not be copied for the child.)
        if self.0.get() != own {
            self.0.put(own);
        }
    }
}
