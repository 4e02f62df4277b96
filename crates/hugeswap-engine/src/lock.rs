//! A mutex that program code cannot hold: futex-based, no allocation, no poisoning.
//!
//! Held only by code of ours that runs with every signal blocked (fault handler, engine threads,
//! calls under `signal::Blocked`), so no holder can be interrupted by code that needs it.

use hugeswap_sys::futex;
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

/// See the file's head.
pub struct Lock<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the word admits one holder at a time, so the value is only ever used by one thread.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// A free lock around `value`.
    pub const fn new(value: T) -> Lock<T> {
        Lock {
            word: AtomicU32::new(FREE),
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<Held<'_, T>> {
        self.word
            .compare_exchange(FREE, HELD, Acquire, Relaxed)
            .ok()
            .map(|_| Held { lock: self })
    }

    /// Takes the lock, waiting for it if need be.
    pub fn lock(&self) -> Held<'_, T> {
        for _ in 0..100 {
            if let Some(h) = self.try_lock() {
                return h;
            }
            std::hint::spin_loop();
        }
        while self.word.swap(CONTENDED, Acquire) != FREE {
            futex::wait(&self.word, CONTENDED, None, false);
        }
        Held { lock: self }
    }

    /// In a forked child: free, and around `value`. What it was around is forgotten, for its holder, who is not here, may have been changing it.
    ///
    /// # Safety
    ///
    /// There is one thread, and it holds no guard of this lock.
    pub unsafe fn reset_in_child(&self, value: T) {
        // SAFETY: nobody else uses the value, says the caller.
        unsafe { self.value.get().write(value) };
        self.word.store(FREE, Release);
    }

    /// Gives the lock back without its guard.
    ///
    /// # Safety
    ///
    /// The lock is held, its guard was forgotten, and nobody uses the value through it any more.
    pub unsafe fn release(&self) {
        if self.word.swap(FREE, Release) == CONTENDED {
            futex::wake(&self.word, 1, false);
        }
    }
}

/// The right to use what the lock holds.
pub struct Held<'a, T> {
    lock: &'a Lock<T>,
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
        // SAFETY: held by this guard, which ends here.
        unsafe { self.lock.release() };
    }
}
