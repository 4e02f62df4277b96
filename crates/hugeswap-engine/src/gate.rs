//! The gate: counts the threads inside the engine, and keeps them out during a fork.
//!
//! Threads of the program enter by [`Gate::enter`], threads of the engine by
//! [`Gate::enter_daemon`]. A fork closes the gate for the former and waits until they are out. The
//! engine's threads work on meanwhile, because a thread inside may need them, and finish what is
//! queued. Then the fork closes the gate for them in the same way. So a forked child finds nothing
//! half done and no lock held.
//!
//! A thread never enters twice: a fork that closes the gate in between would wait for ever. Debug
//! builds know of each thread whether it is inside ([`is_inside`]).

use crate::lock;
use hugeswap_sys::signal::Blocked;
use hugeswap_sys::{futex, process};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

/// Counts the threads inside the engine, and keeps them out while a fork has it closed.
pub struct Gate {
    closed: AtomicU32,
    inside: AtomicU32,
    daemons_closed: AtomicU32,
    daemons_inside: AtomicU32,
    /// The thread that is forking: it passes, for other libraries' fork handlers, which run between
    /// ours, may touch managed memory.
    forker: AtomicI32,
    /// Threads that resolve a fault of the forker's.
    deputies: [AtomicI32; 8],
}

/// A thread is inside until this is dropped.
pub struct Inside<'a> {
    count: &'a AtomicU32,
    closed: &'a AtomicU32,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        note_less(1);
        if self.count.fetch_sub(1, SeqCst) == 1 && self.closed.load(SeqCst) != 0 {
            futex::wake(self.count, u32::MAX >> 1, false);
        }
    }
}

/// In debug builds: which threads are inside, and [`Alone`], and how often.
struct Threads {
    /// By a part of a thread's number: that number, and how often.
    places: [AtomicU64; 1024],
    /// How often all those are together that found their place taken by another.
    unplaced: AtomicU64,
}

static THREADS: Threads = Threads::new();
const ALONE: u64 = 1 << 16;

impl Threads {
    const fn new() -> Threads {
        Threads {
            places: [const { AtomicU64::new(0) }; 1024],
            unplaced: AtomicU64::new(0),
        }
    }

    /// The place of a thread, and what is in it if it is the thread's own or free.
    fn of(&self, tid: u32) -> (&AtomicU64, Option<u64>) {
        let place = &self.places[tid as usize % self.places.len()];
        let now = place.load(SeqCst);
        (
            place,
            Some(now).filter(|n| *n == 0 || n >> 32 == tid.into()),
        )
    }

    fn note(&self, tid: u32, more: u64) {
        let (place, now) = self.of(tid);
        let new = |now: u64| (now | u64::from(tid) << 32) + more;
        // (The place of nobody may become another thread's meanwhile. Nobody else changes one's
        // own.)
        let placed = |now| {
            place
                .compare_exchange(now, new(now), SeqCst, SeqCst)
                .is_ok()
        };
        if !now.is_some_and(placed) {
            self.unplaced.fetch_add(more, SeqCst);
        }
    }

    fn note_less(&self, tid: u32, less: u64) {
        match self.of(tid) {
            (place, Some(now)) if now != 0 => {
                let left = now - less;
                let over = left == u64::from(tid) << 32;
                place.store(if over { 0 } else { left }, SeqCst);
            }
            _ => {
                let left = |n: u64| n.checked_sub(less);
                let _ = self.unplaced.fetch_update(SeqCst, SeqCst, left);
            }
        }
    }

    /// How often a thread is known to be inside, and [`Alone`].
    fn known(&self, tid: u32) -> u64 {
        self.of(tid).1.unwrap_or(0) & 0xffff_ffff
    }

    /// Is a thread inside? (Yes, if that is not known.)
    fn is_inside(&self, tid: u32) -> bool {
        self.known(tid) > 0 || self.unplaced.load(SeqCst) > 0
    }

    fn forget(&self) {
        self.places.iter().for_each(|t| t.store(0, SeqCst));
        self.unplaced.store(0, SeqCst);
    }
}

fn me() -> u32 {
    process::tid().cast_unsigned()
}

fn note(more: u64) {
    if cfg!(debug_assertions) {
        THREADS.note(me(), more);
    }
}

fn note_less(less: u64) {
    if cfg!(debug_assertions) {
        THREADS.note_less(me(), less);
    }
}

/// Is the calling thread inside a gate, or has it closed one, or an engine to itself? (Yes, if that
/// is not known.)
pub(crate) fn is_inside() -> bool {
    THREADS.is_inside(me())
}

/// Is it known to be inside?
fn is_twice_inside() -> bool {
    THREADS.known(me()) & (ALONE - 1) > 0
}

/// In a forked child, whose only thread is inside each gate until that is reset.
pub(crate) fn inside_in_child(gates: u32) {
    if cfg!(debug_assertions) {
        lock::forget_holders_in_child();
        THREADS.forget();
        note(u64::from(gates));
    }
}

/// For a thread that has an engine to itself, while it is made and when it ends: counts as inside,
/// with signals blocked. But for one that every thread has to answer: threads are started and
/// waited for meanwhile (see `spawn_pthread`).
pub(crate) struct Alone {
    _blocked: Blocked,
}

impl Alone {
    /// The caller is the only thread that can reach the engine that it is about to deal with.
    pub fn new() -> Alone {
        note(ALONE);
        Alone {
            _blocked: Blocked::all_but_user(),
        }
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        note_less(ALONE);
    }
}

impl Gate {
    /// An open gate with no thread inside.
    pub const fn new() -> Gate {
        Gate {
            closed: AtomicU32::new(0),
            inside: AtomicU32::new(0),
            daemons_closed: AtomicU32::new(0),
            daemons_inside: AtomicU32::new(0),
            forker: AtomicI32::new(0),
            deputies: [const { AtomicI32::new(0) }; 8],
        }
    }

    /// A thread of the program enters; waits while a fork is going on.
    pub fn enter(&self) -> Inside<'_> {
        self.pass(&self.inside, &self.closed)
    }

    /// A thread of the engine enters, for one step of its work.
    pub fn enter_daemon(&self) -> Inside<'_> {
        self.pass(&self.daemons_inside, &self.daemons_closed)
    }

    fn pass<'a>(&'a self, count: &'a AtomicU32, closed: &'a AtomicU32) -> Inside<'a> {
        if cfg!(debug_assertions) && !self.is_forker() {
            lock::check_none_held();
            if is_twice_inside() {
                lock::broken("a thread enters the gate twice: a fork in between waits for ever");
            }
        }
        loop {
            count.fetch_add(1, SeqCst);
            note(1);
            if closed.load(SeqCst) == 0 || self.is_forker() {
                return Inside { count, closed };
            }
            drop(Inside { count, closed });
            futex::wait(closed, 1, Some(100_000_000), false);
        }
    }

    /// Closes the gate to the program's threads but the caller, and waits until they are out.
    pub fn close(&self) {
        // Forks of several threads at once come one after the other.
        while self.closed.compare_exchange(0, 1, SeqCst, SeqCst).is_err() {
            futex::wait(&self.closed, 1, Some(100_000_000), false);
        }
        Self::wait_empty(&self.inside);
        self.forker.store(process::tid(), SeqCst);
        note(1);
    }

    /// Is a fork going on, or waiting for those inside?
    pub fn is_closed(&self) -> bool {
        self.closed.load(SeqCst) != 0
    }

    /// Is a fork going on, and the caller the thread that forks (or one that acts for it)?
    pub fn is_forker(&self) -> bool {
        let forker = self.forker.load(SeqCst);
        if forker == 0 {
            return false;
        }
        let me = process::tid();
        forker == me || self.deputies.iter().any(|d| d.load(SeqCst) == me)
    }

    /// Closes the gate to the engine's threads and waits until they are out.
    pub fn close_daemons(&self) {
        self.daemons_closed.store(1, SeqCst);
        Self::wait_empty(&self.daemons_inside);
    }

    fn wait_empty(count: &AtomicU32) {
        loop {
            let n = count.load(SeqCst);
            if n == 0 {
                return;
            }
            futex::wait(count, n, Some(10_000_000), false);
        }
    }

    /// Runs `f` as if the caller were thread `tid`, if that is the one that forks: for a thread
    /// that resolves another's faults.
    pub fn on_behalf_of<R>(&self, tid: i32, f: impl FnOnce() -> R) -> R {
        if tid == 0 || self.forker.load(SeqCst) != tid {
            return f();
        }
        let me = process::tid();
        let place = self
            .deputies
            .iter()
            .find(|d| d.compare_exchange(0, me, SeqCst, SeqCst).is_ok());
        let result = f();
        if let Some(place) = place {
            place.store(0, SeqCst);
        }
        result
    }

    /// Opens the gate to the engine's threads.
    pub fn open_daemons(&self) {
        self.daemons_closed.store(0, SeqCst);
        futex::wake(&self.daemons_closed, u32::MAX >> 1, false);
    }

    /// Opens the gate to all. By the thread that has closed it.
    pub fn open(&self) {
        note_less(1);
        self.forker.store(0, SeqCst);
        for closed in [&self.daemons_closed, &self.closed] {
            closed.store(0, SeqCst);
            futex::wake(closed, u32::MAX >> 1, false);
        }
    }

    /// In a forked child: open, and no thread inside.
    pub fn reset_in_child(&self) {
        note_less(1);
        self.forker.store(0, SeqCst);
        self.inside.store(0, SeqCst);
        self.daemons_inside.store(0, SeqCst);
        self.daemons_closed.store(0, SeqCst);
        self.closed.store(0, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_found_its_place_taken_is_inside_all_the_same() {
        let t = Threads::new();
        let (a, b) = (7, 7 + 1024);
        t.note(a, 1);
        t.note(b, 1);
        assert!(t.is_inside(a) && t.is_inside(b));
        t.note_less(a, 1);
        // Its place is free now, and it is not there.
        assert!(t.is_inside(b));
        t.note(b, ALONE);
        t.note_less(b, ALONE);
        assert!(t.is_inside(b));
        t.note_less(b, 1);
        assert!(!t.is_inside(a) && !t.is_inside(b) && !t.is_inside(8));
        t.note(a, 2);
        t.note_less(a, 1);
        assert_eq!((t.known(a), t.known(b)), (1, 0));
    }
}
