//! The lock of a unit: a bit of its state word, a bit that says that threads wait, and an offer of
//! the lock in its frame number.
//!
//! A word without [`LOCKED`] is stable, and every thread may read it. A thread that changes what a
//! word says, or touches the unit's mapping, first sets `LOCKED` by one compare-and-swap. A thread
//! that needs a locked unit sets [`WAITERS`] and sleeps until the word changes. The owner ends by
//! storing a stable word, and wakes the sleepers if `WAITERS` was set. The number of pins changes
//! by compare-and-swap of an unlocked word only, so an owner may rely on it.
//!
//! The owner may also *offer* the lock: it stores [`QUEUED`] in the place of the unit's frame
//! number, and the first thread that replaces it by [`NO_FRAME`] owns the lock. So a read that is
//! planned ahead is done by an I/O thread, or by the thread that needs it first.
//!
//! Generic over the cells, so that an explorer of schedules runs the code that the engine runs
//! (`tests/protocol_loom.rs`).

use super::{LOCKED, WAITERS, Word};

/// In place of a frame number: the lock is offered to the first thread that comes.
pub const QUEUED: u32 = u32::MAX;
/// In place of a frame number: the unit has no frame.
pub const NO_FRAME: u32 = u32::MAX - 1;

/// The two atomic cells of one unit. All operations on them are ordered as the methods say.
pub trait Cells {
    /// How often a locked word is looked at before the thread sleeps.
    const SPINS: u32;

    /// The state word (acquire).
    fn word(&self) -> u64;

    /// Replaces the word `old` by `new` (acquire and release). The error is the word as it is; a
    /// spurious failure is allowed.
    fn replace_word(&self, old: u64, new: u64) -> Result<(), u64>;

    /// Stores the word and gives the one before (release).
    fn swap_word(&self, new: u64) -> u64;

    /// Sleeps while the low half of the word is that of `seen`; may return early.
    fn wait(&self, seen: u64);

    /// Wakes all threads that sleep in [`Cells::wait`].
    fn wake(&self);

    /// The frame number (acquire).
    fn frame(&self) -> u32;

    /// Stores the frame number (release).
    fn set_frame(&self, frame: u32);

    /// Replaces [`QUEUED`] by [`NO_FRAME`] (acquire and release). Was it there?
    fn take_offer(&self) -> bool;
}

/// A unit, seen through its lock.
#[derive(Clone, Copy, Debug)]
pub struct Lock<C>(pub C);

impl<C: Cells> Lock<C> {
    /// The word as it is now.
    pub fn load(&self) -> Word {
        Word(self.0.word())
    }

    /// Locks the unit if it is unlocked and `wanted` accepts its word. The word as it was, without
    /// the bits of the lock.
    pub fn try_lock_if(&self, wanted: impl Fn(Word) -> bool) -> Option<Word> {
        let mut w = self.load();
        loop {
            if w.has(LOCKED) || !wanted(w) {
                return None;
            }
            match self.0.replace_word(w.0, w.set(LOCKED).0) {
                Ok(()) => return Some(w.clear(WAITERS)),
                Err(now) => w = Word(now),
            }
        }
    }

    /// Locks the unit, and waits for that if need be.
    pub fn lock(&self) -> Word {
        loop {
            if let Some(w) = self.try_lock_if(|_| true) {
                return w;
            }
            self.wait_locked();
        }
    }

    /// Ends the ownership: the word becomes `new`, and threads that wait are woken.
    pub fn unlock(&self, new: Word) {
        let new = new.clear(LOCKED | WAITERS);
        debug_assert!(new.is_consistent(), "{new:?}");
        let old = Word(self.0.swap_word(new.0));
        debug_assert!(old.has(LOCKED));
        if old.has(WAITERS) {
            self.0.wake();
        }
    }

    /// Changes the word of a unit whose lock the caller goes on owning, or offers.
    pub fn put_locked(&self, new: Word) {
        let new = new.clear(LOCKED | WAITERS);
        let mut old = self.0.word();
        while let Err(now) = self.0.replace_word(old, new.0 | old & (LOCKED | WAITERS)) {
            old = now;
        }
    }

    /// Waits until the word is no longer `seen`, which is its present value; may return early.
    pub fn wait_change(&self, seen: Word) {
        let waits = seen.set(WAITERS);
        if waits == seen || self.0.replace_word(seen.0, waits.0).is_ok() {
            self.0.wait(waits.0);
        }
    }

    /// Waits while the unit is locked; may return early.
    pub fn wait_locked(&self) {
        for _ in 0..C::SPINS {
            if !self.load().has(LOCKED) {
                return;
            }
            std::hint::spin_loop();
        }
        let seen = self.load();
        if seen.has(LOCKED) {
            self.wait_change(seen);
        }
    }

    /// Changes an unlocked word by `f`, unless `f` declines. The word stored. Only for changes that
    /// do not touch the mapping (pins).
    pub fn update(&self, mut f: impl FnMut(Word) -> Option<Word>) -> Option<Word> {
        let mut w = self.load();
        loop {
            if w.has(LOCKED) {
                self.wait_locked();
                w = self.load();
                continue;
            }
            let new = f(w)?;
            match self.0.replace_word(w.0, new.0) {
                Ok(()) => return Some(new),
                Err(now) => w = Word(now),
            }
        }
    }

    /// Offers the lock, which the caller owns until then.
    pub fn offer(&self) {
        self.0.set_frame(QUEUED);
    }

    /// Is the lock offered?
    pub fn is_offered(&self) -> bool {
        self.0.frame() == QUEUED
    }

    /// Takes the lock if it is offered. The word, without the bits of the lock.
    pub fn claim(&self) -> Option<Word> {
        let claimed = self.is_offered() && self.0.take_offer();
        claimed.then(|| self.load().clear(LOCKED | WAITERS))
    }
}
