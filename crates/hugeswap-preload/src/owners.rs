//! When a unit that the kernel owns may become the engine's again.
//!
//! A call of the program looks at who owns a unit, and then acts on what it has found. Other threads
//! may hand the unit to the kernel between the two: the engine notices. It would not notice the
//! reverse, for the kernel does what it is told to whatever is mapped there. So a unit is taken back
//! only while no thread is within such a call ([`keep`]): what has been unlocked waits until then.
//!
//! What a system call uses by its address for as long as it takes is pinned instead
//! ([`crate::issue`]), and a pinned unit is not taken back.

use crate::local::{self, Word};
use crate::lock::Lock;
use crate::marks::{self, units};
use crate::state;
use hugeswap_engine::Engine;
use hugeswap_engine::intervals::Intervals;
use hugeswap_policy::turns::Turns;
use hugeswap_sys::futex;
use hugeswap_sys::signal::Blocked;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, fence};

const UNIT: usize = 2 << 20;

/// A thread acts from [`keep`] on. One that takes units back has every signal blocked, and waits for
/// nothing that a thread holds which waits for it.
static TURNS: Turns<AtomicU32> = Turns(AtomicU32::new(0));

/// Parts of the window.
struct Parts {
    /// Locked, or about to be.
    locked: Intervals,
    /// Units of which something has been unlocked.
    waiting: Intervals,
}

static PARTS: Lock<Parts> = Lock::new(Parts {
    locked: Intervals::new(),
    waiting: Intervals::new(),
});
/// Was anything ever locked?
static IS_ANY_LOCKED: AtomicBool = AtomicBool::new(false);

/// Waits a moment for units to be taken back.
fn pause() {
    const PAUSE_NS: u64 = 20_000;
    futex::wait(&AtomicU32::new(0), 0, Some(PAUSE_NS), false);
}

/// While it lives, no unit of the kernel's becomes the engine's.
pub struct Kept(());

/// Call it before owners are looked at, and hold the guard until what follows from them is done. May
/// be nested. Not with a [`Lock`] held.
pub fn keep() -> Kept {
    let depth = local::get(Word::Acting);
    // (A handler that runs between these lines counts for itself.)
    match depth {
        // (A thread that forks keeps all others from going on.)
        0 if local::get(Word::Forking) != 0 => TURNS.enter_at_once(),
        0 => TURNS.enter(pause),
        _ => {}
    }
    local::set(Word::Acting, depth + 1);
    Kept(())
}

impl Drop for Kept {
    fn drop(&mut self) {
        let depth = local::get(Word::Acting) - 1;
        local::set(Word::Acting, depth);
        if depth == 0 {
            TURNS.leave();
            take_back();
        }
    }
}

/// Notes that `[start, end)` is to be locked, with the guard of [`keep`] held. Was none of it locked?
pub fn note_locked(start: usize, end: usize) -> bool {
    IS_ANY_LOCKED.store(true, Relaxed);
    let mut parts = PARTS.lock();
    let was_locked = parts.locked.bytes_in(start, end) > 0;
    parts.locked.insert(start, end);
    drop(parts);
    marks::note_locked(start, end - start);
    !was_locked
}

/// Notes that `[start, end)` is not locked any more. Units of which nothing is locked then are taken
/// back, now or when the calls under way are done.
pub fn note_unlocked(start: usize, end: usize) {
    if !IS_ANY_LOCKED.load(Relaxed) {
        return;
    }
    let mut parts = PARTS.lock();
    let were: Vec<_> = parts.locked.within(start, end).collect();
    parts.locked.remove(start, end);
    for &(from, to) in &were {
        let units = from & !(UNIT - 1)..to.next_multiple_of(UNIT);
        parts.waiting.insert(units.start, units.end);
    }
    drop(parts);
    if !were.is_empty() {
        TURNS.ask();
        take_back();
    }
}

/// Takes back what waits for it, unless another thread acts on owners: then the last such thread
/// does. To be called again when something is not pinned any more.
pub fn take_back() {
    while TURNS.is_waiting()
        && let Some(engine) = state::engine()
    {
        let _blocked = Blocked::all();
        if !TURNS.begin() {
            break;
        }
        let waiting = std::mem::take(&mut PARTS.lock().waiting);
        let mut pinned = Intervals::new();
        for (from, to) in waiting.within(0, usize::MAX) {
            let pinned_ones = units(from, to).filter(|&unit| !take_unit_back(engine, unit));
            pinned_ones.for_each(|unit| pinned.insert(unit, unit + UNIT));
        }
        if pinned.is_empty() {
            TURNS.end();
            continue;
        }
        {
            let mut parts = PARTS.lock();
            let again = pinned.within(0, usize::MAX);
            again.for_each(|(from, to)| parts.waiting.insert(from, to));
        }
        TURNS.ask();
        TURNS.end();
        // Who unpins looks whether something waits, in this order.
        fence(SeqCst);
        let mut still = pinned
            .within(0, usize::MAX)
            .flat_map(|(from, to)| units(from, to));
        if still.all(|unit| engine.is_pinned(unit)) {
            break;
        }
    }
}

/// Makes a unit managed again that nothing but locks has made the kernel's, if none is left. False: it
/// is pinned.
fn take_unit_back(engine: &Engine, unit: usize) -> bool {
    let is_free = PARTS.lock().locked.bytes_in(unit, unit + UNIT) == 0;
    if !is_free || !engine.is_foreign(unit, UNIT) || !marks::begin_release(unit) {
        return true;
    }
    // SAFETY: the kernel was told to lock pages of it, which is undone, and nothing else: a thread
    // that tells it more either has made a note of that, or waits in `keep`.
    let taken = unsafe { engine.take_back(unit, UNIT) };
    let is_pinned = taken == 0 && engine.is_pinned(unit);
    if is_pinned {
        marks::undo_release(unit);
    }
    !is_pinned
}

/// Takes this module's lock for the time of a fork; see [`Lock::before_fork`].
pub fn before_fork() {
    PARTS.before_fork();
}

/// Releases the lock after a fork, in parent and child.
pub fn after_fork() {
    PARTS.after_fork();
}

/// In a forked child: the other threads that acted on owners are not here.
pub fn forget_others() {
    // (What waited has been shared by the fork, and stays the kernel's.)
    TURNS.restart(u32::from(local::get(Word::Acting) > 0));
}
