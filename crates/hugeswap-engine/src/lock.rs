//! A mutex that program code cannot hold: a futex, without allocation and without poisoning.
//!
//! Only code of ours that runs with every signal blocked holds one (the fault handler, the engine's
//! threads, calls under `signal::Blocked`), so code that needs the lock never interrupts its
//! holder. A holder never touches managed memory. A lock is held only inside the gate, so a forked
//! child finds it free. There are two exceptions: locks that the forking thread takes for the fork
//! ([`Lock::taken_by_forks`]; a thread that holds one never enters the gate), and locks that the
//! child frees ([`Lock::freed_in_children`]). Debug builds, and the injected object of a debug
//! build, check all of this and end the process where a lock is taken against these rules.
//!
//! # Order of locks
//!
//! From the first to the last:
//!
//! 1. the gate ([`crate::gate`]): no lock, but it counts the threads inside, and no thread enters
//!    twice
//! 2. `space`: addresses. Never in the fault path
//! 3. the locks of units. A thread waits for several only if they are in ranges that belong to its
//!    caller; kswapd only tries
//! 4. the reclaim lists, streams (which the fault path only tries), learnt costs, deferred slots:
//!    held for a few instructions, with no other lock taken inside
//!
//! A fault that waits for memory may hold the lock of its unit only if that unit is absent: no
//! thread needs an absent unit to free memory. It unlocks a base-mapped unit before it waits,
//! because that unit's own pages may be the ones that have to leave.
//!
//! The injected object's own locks (blocks, marks, its allocator) are never held across a call of
//! the engine. One of them, of marks, is also taken inside `space`, by a function that the engine
//! is asked to call (`with_mapped`). At a fork they are taken once the engine is at rest.

use crate::gate;
use hugeswap_sys::{fs, futex, process, signal};
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicI32, AtomicU32};

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

/// Why a forked child finds a lock free.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OfChild {
    /// It is held inside the gate only.
    Gate,
    /// The forking thread takes it for so long.
    Taken,
    /// The child frees it.
    Freed,
}

/// A mutex around a value; its holder has every signal blocked.
pub struct Lock<T> {
    word: AtomicU32,
    of_child: OfChild,
    value: UnsafeCell<T>,
}

// SAFETY: the word admits one holder at a time, so the value is only ever used by one thread.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// A free lock around `value`.
    pub const fn new(value: T) -> Lock<T> {
        Lock::with(value, OfChild::Gate)
    }

    const fn with(value: T, of_child: OfChild) -> Lock<T> {
        Lock {
            word: AtomicU32::new(FREE),
            of_child,
            value: UnsafeCell::new(value),
        }
    }

    /// A lock that is also held outside the gate, and that the forking thread takes for so long,
    /// once the gate is closed.
    pub const fn taken_by_forks(value: T) -> Lock<T> {
        Lock::with(value, OfChild::Taken)
    }

    /// A lock that is also held outside the gate, and that a forked child frees
    /// ([`Lock::reset_in_child`], [`Lock::free_in_child`]).
    pub const fn freed_in_children(value: T) -> Lock<T> {
        Lock::with(value, OfChild::Freed)
    }

    /// Debug builds: the rules of the file's head.
    fn check(&self) {
        if cfg!(debug_assertions) && !cfg!(test) && self.of_child == OfChild::Gate {
            check_inside();
            if signal::mask() & signal::bit(libc::SIGUSR1) == 0 {
                broken("a lock is taken with signals unblocked: a handler may need it");
            }
        }
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<Held<'_, T>> {
        self.check();
        self.take()
    }

    fn take(&self) -> Option<Held<'_, T>> {
        let free = self.word.compare_exchange(FREE, HELD, Acquire, Relaxed);
        free.ok().map(|_| self.taken())
    }

    fn taken(&self) -> Held<'_, T> {
        if cfg!(debug_assertions) && self.of_child == OfChild::Taken {
            note_holder(0, process::tid());
        }
        Held { lock: self }
    }

    /// Takes the lock, waiting for it if need be.
    pub fn lock(&self) -> Held<'_, T> {
        self.check();
        for _ in 0..100 {
            if let Some(h) = self.take() {
                return h;
            }
            std::hint::spin_loop();
        }
        while self.word.swap(CONTENDED, Acquire) != FREE {
            futex::wait(&self.word, CONTENDED, None, false);
        }
        self.taken()
    }

    /// In a forked child: free, and around `value` if another thread had it, which may have been
    /// changing what it was around and is not here.
    ///
    /// # Safety
    ///
    /// As [`Lock::reset_in_child`].
    pub unsafe fn free_in_child(&self, value: T) {
        if self.take().is_none() {
            // SAFETY: says the caller.
            unsafe { self.reset_in_child(value) };
        }
    }

    /// In a forked child: free, and around `value`. What it was around is forgotten, for its
    /// holder, which is not here, may have been changing it.
    ///
    /// # Safety
    ///
    /// There is one thread, and it holds no guard of this lock.
    pub unsafe fn reset_in_child(&self, value: T) {
        // SAFETY: no other thread uses the value, by the caller's promise.
        unsafe { self.value.get().write(value) };
        self.word.store(FREE, Release);
    }

    /// The value that the lock protects, for a caller that has it without a guard.
    ///
    /// # Safety
    ///
    /// The lock is held by the caller, its guard was forgotten, and nothing else uses the value
    /// meanwhile.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn held_value(&self) -> &mut T {
        // SAFETY: says the caller.
        unsafe { &mut *self.value.get() }
    }

    /// Gives the lock back without its guard.
    ///
    /// # Safety
    ///
    /// The lock is held, its guard was forgotten, and no thread uses the value through it any more.
    pub unsafe fn release(&self) {
        if cfg!(debug_assertions) && self.of_child == OfChild::Taken {
            note_holder(process::tid(), 0);
        }
        if self.word.swap(FREE, Release) == CONTENDED {
            futex::wake(&self.word, 1, false);
        }
    }
}

/// In debug builds: the threads that hold locks which forks take, each as often as it holds one.
static HOLDERS: [AtomicI32; 256] = [const { AtomicI32::new(0) }; 256];

/// Replaces one `from` by `to` among [`HOLDERS`]. (If there are too many, a rule that is broken
/// goes unseen.)
fn note_holder(from: i32, to: i32) {
    let change = |h: &AtomicI32| h.compare_exchange(from, to, SeqCst, Relaxed).is_ok();
    HOLDERS.iter().find(|h| change(h));
}

/// In debug builds, of a thread that enters the gate: the forking thread has closed it, and waits
/// for such a lock.
pub(crate) fn check_none_held() {
    let me = process::tid();
    if HOLDERS.iter().any(|h| h.load(SeqCst) == me) {
        broken("a thread enters the gate with a lock that a fork takes");
    }
}

/// In a forked child: what its threads hold is what the forking one held, which has another number
/// here.
pub(crate) fn forget_holders_in_child() {
    HOLDERS.iter().for_each(|h| h.store(0, SeqCst));
}

/// Ends the process if the calling thread is not inside the gate, in debug builds. (Tests of a part
/// have no gate.)
pub(crate) fn check_inside() {
    if cfg!(debug_assertions) && !cfg!(test) && !gate::is_inside() {
        broken("a lock is taken outside the gate: a child that is forked now never gets it");
    }
}

/// In debug builds: a rule of the file's head is broken. No panic: what unwinds may need the lock.
#[cold]
pub(crate) fn broken(what: &str) -> ! {
    let trace = std::backtrace::Backtrace::force_capture().to_string();
    fs::complain(&[b"hugeswap: ", what.as_bytes(), b"\n"]);
    // (A line of it at a time is not too long.)
    for line in trace.lines() {
        fs::complain(&[line.as_bytes(), b"\n"]);
    }
    std::process::abort();
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
