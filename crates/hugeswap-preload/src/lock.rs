//! The engine's mutex ([`hugeswap_engine::lock`]) for the object's own state, which may also be held
//! across a fork.
//!
//! While it is held every signal is blocked in the holder, so no handler of the program's can run on
//! top of it; a forked child finds it free because the forking thread held it ([`Lock::before_fork`]).
//! Nothing done under such a lock may touch managed memory: a fault could not be taken.

use hugeswap_engine::lock;
use hugeswap_sys::signal::{self, Blocked};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// See the file's head.
pub struct Lock<T> {
    inner: lock::Lock<T>,
    /// The mask to go back to after a fork.
    mask: AtomicU64,
}

impl<T> Lock<T> {
    /// A free lock around `value`.
    pub const fn new(value: T) -> Lock<T> {
        Lock {
            inner: lock::Lock::taken_by_forks(value),
            mask: AtomicU64::new(0),
        }
    }

    /// Takes the lock, waiting for it if need be.
    pub fn lock(&self) -> Held<'_, T> {
        let blocked = Blocked::all();
        Held {
            held: self.inner.lock(),
            _blocked: blocked,
        }
    }

    /// Takes the lock for the time of a fork.
    pub fn before_fork(&self) {
        let mask = signal::set_mask(signal::ALL);
        std::mem::forget(self.inner.lock());
        self.mask.store(mask, Relaxed);
    }

    /// Gives it back, in the parent and in the child.
    pub fn after_fork(&self) {
        let mask = self.mask.load(Relaxed);
        // SAFETY: taken by `before_fork`, which forgot the guard.
        unsafe { self.inner.release() };
        signal::set_mask(mask);
    }
}

/// The right to use what the lock holds.
pub struct Held<'a, T> {
    // In this order: the lock is given back before a signal can come.
    held: lock::Held<'a, T>,
    _blocked: Blocked,
}

impl<T> Deref for Held<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.held
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.held
    }
}
