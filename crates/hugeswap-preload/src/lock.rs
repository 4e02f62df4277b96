//! A mutex for this object's own state: the engine's ([`hugeswap_engine::lock`]), which can also be
//! held across a fork.
//!
//! Every signal is blocked in a thread that holds the lock, so no handler of the program can run on
//! top of it. A forked child finds the lock free, because the forking thread held it
//! ([`Lock::before_fork`]). A thread that holds the lock must not touch managed memory: it could
//! not take a fault.

use hugeswap_engine::lock;
use hugeswap_sys::signal::{self, Blocked};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// A mutex that guards a `T`. Its holder has every signal blocked and must not touch managed
/// memory.
pub struct Lock<T> {
    inner: lock::Lock<T>,
    /// The signal mask to restore after a fork.
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

    /// Takes the lock, waiting for it if need be, and blocks every signal until the guard is
    /// dropped.
    pub fn lock(&self) -> Held<'_, T> {
        let blocked = Blocked::all();
        Held {
            held: self.inner.lock(),
            _blocked: blocked,
        }
    }

    /// Takes the lock, and blocks every signal, for the time of a fork: until [`Lock::after_fork`].
    pub fn before_fork(&self) {
        let mask = signal::set_mask(signal::ALL);
        std::mem::forget(self.inner.lock());
        self.mask.store(mask, Relaxed);
    }

    /// Releases the lock that [`Lock::before_fork`] took, in the parent and in the child.
    pub fn after_fork(&self) {
        let mask = self.mask.load(Relaxed);
        // SAFETY: taken by `before_fork`, which forgot the guard.
        unsafe { self.inner.release() };
        signal::set_mask(mask);
    }
}

/// Access to the value that the lock guards, until this is dropped.
pub struct Held<'a, T> {
    // In this order: the lock is released before a signal can arrive.
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
