//! The lock of a unit, private or shared: bits of its state word.
//!
//! A word that is not locked is stable, and every thread may read it. A thread that changes what a
//! word says, or touches the unit's mapping, first locks the word by one compare-and-swap. A thread
//! that needs a locked unit sets the waiters bit and sleeps until the word changes. The holder of
//! the lock ends by storing a stable word, and wakes the sleepers if there are any. What changes
//! neither bytes nor mapping (the number of pins of a private unit) changes by compare-and-swap of
//! an unlocked word only, so a holder may rely on it.
//!
//! *Private units.* The holder may also *offer* the lock: it stores [`QUEUED`] in the place of the
//! unit's frame number, and the first thread that replaces it by [`NO_FRAME`] holds the lock. So a
//! read that is planned ahead is done by an I/O thread, or by the thread that needs it first.
//!
//! *Shared units.* A locked word names its holder, for a holder may die. A thread that finds a dead
//! holder takes the lock over by the compare-and-swap that also takes a free one ([`Lock::take`]),
//! and so does a thread that displaces a holder that allows it. Such a holder may not store its
//! word; it changes the word only while the word still names it ([`Lock::change`]).
//!
//! Generic over the words and the cells, so that an explorer of schedules runs the code that the
//! engine runs (`tests/protocol_loom.rs`, `tests/shared_loom.rs`).

use std::fmt::Debug;

/// In place of a frame number: the lock is offered to the first thread that comes.
pub const QUEUED: u32 = u32::MAX;
/// In place of a frame number: the unit has no frame.
pub const NO_FRAME: u32 = u32::MAX - 1;

/// A state word, as its lock sees it.
pub trait StateWord: Copy + PartialEq + Debug {
    /// What a locked word says of the thread or process that holds the lock.
    type Holder: Copy;
    /// Is the memory of the words written by this process only? Then a word that breaks the
    /// protocol is a bug, which debug builds report.
    const IS_TRUSTED: bool;

    /// The word with these bits.
    fn from_raw(raw: u64) -> Self;
    /// Its bits.
    fn raw(self) -> u64;
    /// Is it locked?
    fn is_locked(self) -> bool;
    /// The same word, locked by `by`, whether it was locked or not. The waiters bit stays.
    #[must_use]
    fn locked(self, by: Self::Holder) -> Self;
    /// The same word, without lock, holder and waiters bit.
    #[must_use]
    fn unlocked(self) -> Self;
    /// Does a thread wait for the word to change?
    fn has_waiters(self) -> bool;
    /// The same word with the waiters bit.
    #[must_use]
    fn with_waiters(self) -> Self;
    /// Does it obey the invariants of stable words?
    fn is_consistent(self) -> bool;
}

/// The state word of one unit: an atomic cell that threads can wait for. All operations are
/// ordered as the methods say.
pub trait Cells {
    /// What the cell holds.
    type Word: StateWord;
    /// How often a locked word is loaded before the thread sleeps.
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
}

/// The cells of a unit whose lock can be offered.
pub trait Offers: Cells {
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
    pub fn load(&self) -> C::Word {
        C::Word::from_raw(self.0.word())
    }

    /// Replaces the word `seen` by `new`. The error is the word as it is; a spurious failure is
    /// allowed.
    pub fn replace(&self, seen: C::Word, new: C::Word) -> Result<(), C::Word> {
        let replaced = self.0.replace_word(seen.raw(), new.raw());
        replaced.map_err(C::Word::from_raw)
    }

    /// Takes the lock for `by` if the word is still `seen`. The caller has seen that the lock is
    /// free, that its holder is dead, or that its holder may be displaced. Threads that wait go on
    /// waiting. The error is the word as it is; a spurious failure is allowed.
    pub fn take(&self, seen: C::Word, by: Holder<C>) -> Result<(), C::Word> {
        self.replace(seen, seen.locked(by))
    }

    /// Locks the unit if it is unlocked and `wanted` accepts its word. The word as it was, without
    /// the waiters bit.
    pub fn try_lock_if(&self, by: Holder<C>, wanted: impl Fn(C::Word) -> bool) -> Option<C::Word> {
        let mut w = self.load();
        loop {
            if w.is_locked() || !wanted(w) {
                return None;
            }
            match self.take(w, by) {
                Ok(()) => return Some(w.unlocked()),
                Err(now) => w = now,
            }
        }
    }

    /// Locks the unit, and waits for that if need be.
    pub fn lock(&self, by: Holder<C>) -> C::Word {
        loop {
            if let Some(w) = self.try_lock_if(by, |_| true) {
                return w;
            }
            self.wait_locked();
        }
    }

    /// Ends the lock, which no other thread can have taken from the caller: the word becomes `new`,
    /// and threads that wait are woken.
    pub fn unlock(&self, new: C::Word) {
        let new = new.unlocked();
        debug_assert!(!C::Word::IS_TRUSTED || new.is_consistent(), "{new:?}");
        let old = C::Word::from_raw(self.0.swap_word(new.raw()));
        debug_assert!(!C::Word::IS_TRUSTED || old.is_locked());
        if old.has_waiters() {
            self.0.wake();
        }
    }

    /// Changes the word by `f`, unless `f` declines the word as it is. The waiters bit stays. For
    /// the holder of the lock, who declines a word that does not name it if the lock can be taken
    /// from it. The word stored.
    pub fn change(&self, mut f: impl FnMut(C::Word) -> Option<C::Word>) -> Option<C::Word> {
        let mut w = self.load();
        loop {
            let new = f(w)?;
            let new = match w.has_waiters() {
                true => new.with_waiters(),
                false => new,
            };
            match self.replace(w, new) {
                Ok(()) => return Some(new),
                Err(now) => w = now,
            }
        }
    }

    /// Waits until the word is no longer `seen`, which is its present value; may return early.
    pub fn wait_change(&self, seen: C::Word) {
        let waits = seen.with_waiters();
        if waits == seen || self.replace(seen, waits).is_ok() {
            self.0.wait(waits.raw());
        }
    }

    /// Waits while the unit is locked; may return early.
    pub fn wait_locked(&self) {
        for _ in 0..C::SPINS {
            if !self.load().is_locked() {
                return;
            }
            std::hint::spin_loop();
        }
        let seen = self.load();
        if seen.is_locked() {
            self.wait_change(seen);
        }
    }

    /// Changes an unlocked word by `f`, unless `f` declines. The word stored. Only for changes that
    /// do not touch the mapping (pins).
    pub fn update(&self, mut f: impl FnMut(C::Word) -> Option<C::Word>) -> Option<C::Word> {
        let mut w = self.load();
        loop {
            if w.is_locked() {
                self.wait_locked();
                w = self.load();
                continue;
            }
            let new = f(w)?;
            match self.replace(w, new) {
                Ok(()) => return Some(new),
                Err(now) => w = now,
            }
        }
    }
}

impl<C: Offers> Lock<C> {
    /// Offers the lock, which the caller holds until then.
    pub fn offer(&self) {
        self.0.set_frame(QUEUED);
    }

    /// Is the lock offered?
    pub fn is_offered(&self) -> bool {
        self.0.frame() == QUEUED
    }

    /// Takes the lock if it is offered. The word, without the bits of the lock.
    pub fn claim(&self) -> Option<C::Word> {
        let claimed = self.is_offered() && self.0.take_offer();
        claimed.then(|| self.load().unlocked())
    }
}

/// What names the holder of a lock of these cells.
type Holder<C> = <<C as Cells>::Word as StateWord>::Holder;
