//! The gate: who is inside the engine, and how everybody is got out before a fork.
//!
//! Program threads enter by [`Gate::enter`], engine threads by [`Gate::enter_daemon`]. Fork closes the gate
//! for the former, waits until they are out (the engine's threads still work, for
//! those inside may need them), then does the same with the latter. A forked child so finds nothing half done, and no
//! lock held. Debug builds know of each thread whether it is inside ([`is_inside`]).

use crate::lock;
use hugeswap_sys::signal::Blocked;
use hugeswap_sys::{futex, process};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

/// See the file's head.
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

/// Somebody is inside until this is dropped.
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

/// In debug builds: a thread that is inside, by a part of its number: that number, and how often it is inside and [`Alone`].
static THREADS: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];
const ALONE: u64 = 1 << 16;

/// The calling thread's place, and what is in it.
fn of_thread() -> (&'static AtomicU64, u64, u64) {
    let me = process::tid() as u64;
    let place = &THREADS[me as usize % THREADS.len()];
    (place, place.load(SeqCst), me << 32)
}

/// Is the place another thread's? Then nothing is known of this one.
fn is_anothers(was: u64, me: u64) -> bool {
    was != 0 && was & !0xffff_ffff != me
}

fn note(more: u64) {
    if cfg!(debug_assertions) {
        let (place, was, me) = of_thread();
        if !is_anothers(was, me) {
            let _ = place.compare_exchange(was, (was | me) + more, SeqCst, SeqCst);
        }
    }
}

fn note_less(less: u64) {
    if cfg!(debug_assertions) {
        let (place, was, me) = of_thread();
        if was > me && !is_anothers(was, me) {
            let now = was - less;
            place.store(if now == me { 0 } else { now }, SeqCst);
        }
    }
}

/// Is the calling thread inside a gate, or has it closed one, or an engine to itself? (Yes, if that is not known.)
pub(crate) fn is_inside() -> bool {
    let (_, was, me) = of_thread();
    was > me || is_anothers(was, me)
}

/// Is it known to be inside?
fn is_twice_inside() -> bool {
    let (_, was, me) = of_thread();
    !is_anothers(was, me) && was & (ALONE - 1) > 0
}

/// In a forked child, whose only thread is inside each gate until that is reset.
pub(crate) fn inside_in_child(gates: u32) {
    if cfg!(debug_assertions) {
        lock::forget_holders_in_child();
        THREADS.iter().for_each(|t| t.store(0, SeqCst));
        note(u64::from(gates));
    }
}

/// For who has an engine to itself, while it is made and when it ends: counts as inside, with signals blocked. But for one that
/// every thread has to answer: threads are started and waited for meanwhile (see `spawn_pthread`).
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
    /// An open gate with nobody inside.
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

    /// Runs `f` as if the caller were thread `tid`, if that is the one that forks: for a thread that
    /// resolves another's faults.
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

    /// In a forked child: open, and nobody inside.
    pub fn reset_in_child(&self) {
        note_less(1);
        self.forker.store(0, SeqCst);
        self.inside.store(0, SeqCst);
        self.daemons_inside.store(0, SeqCst);
        self.daemons_closed.store(0, SeqCst);
        self.closed.store(0, SeqCst);
    }
}
