//! A mutex that can be held across fork and is safe to meet in a signal handler.
//!
//! While it is held every signal is blocked in the holder, so no handler of the program's can run on
//! top of it; a forked child finds it free because the forking thread held it ([`Lock::before_fork`]).
//! Nothing done under such a lock may touch managed memory: a fault could not be taken.

use hugeswap_sys::{futex, signal};
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

/// See the file's head.
pub struct Lock<T> {
    word: AtomicU32,
    /// The mask to go back to after a fork.
    mask: AtomicU64,
    value: UnsafeCell<T>,
}

// SAFETY: the word admits one holder at a time, so the value is only ever used by one thread.
unsafe impl<T> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// A free lock around `value`, which only its holders use, whatever thread they are.
    pub const fn new(value: T) -> Lock<T> {
        Lock {
            word: AtomicU32::new(FREE),
            mask: AtomicU64::new(0),
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the lock, waiting for it if need be.
    pub fn lock(&self) -> Held<'_, T> {
        let mask = signal::set_mask(signal::ALL);
        self.take();
        Held { lock: self, mask }
    }

    fn take(&self) {
        for _ in 0..100 {
            if self
                .word
                .compare_exchange(FREE, HELD, Acquire, Relaxed)
                .is_ok()
            {
                return;
            }
            std::hint::spin_loop();
        }
        while self.word.swap(CONTENDED, Acquire) != FREE {
            futex::wait(&self.word, CONTENDED, None, false);
        }
    }

    fn release(&self) {
        if self.word.swap(FREE, Release) == CONTENDED {
            futex::wake(&self.word, 1, false);
        }
    }

    /// Takes the lock for the time of a fork.
    pub fn before_fork(&self) {
        let mask = signal::set_mask(signal::ALL);
        self.take();
        self.mask.store(mask, Relaxed);
    }

    /// Gives it back, in the parent and in the child.
    pub fn after_fork(&self) {
        let mask = self.mask.load(Relaxed);
        self.release();
        signal::set_mask(mask);
    }
}

/// The right to use what the lock holds.
pub struct Held<'a, T> {
    lock: &'a Lock<T>,
    mask: signal::Mask,
}

impl<T> Deref for Held<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the lock is held by this guard.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held by this guard, and the borrow of the guard is unique.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        self.lock.release();
        signal::set_mask(self.mask);
    }
}
