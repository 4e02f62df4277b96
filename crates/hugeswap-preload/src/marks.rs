//! What of the window the engine does not know: units that have, or had, pages with a property that
//! only the kernel keeps.
//!
//! It is kept by unit of 2 MiB. A unit without a mark is as the engine gave it.

use crate::lock::Lock;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

const UNIT: usize = 2 << 20;
/// A unit that was locked and unlocked so many times stays the kernel's: to hand it over and take
/// it back costs more than the call.
const MOST_RELEASES: u8 = 4;

/// What a unit has, or had.
#[derive(Clone, Copy, Default)]
struct Mark {
    /// Pages with another access than read and write.
    has_access: bool,
    /// Pages of which the kernel was told something that stays (not to give them to a child), or
    /// that it may use by their addresses at any time (the stack of a signal handler).
    is_told: bool,
    /// Locked pages. The kernel was told nothing else then.
    was_locked: bool,
    /// How often it has become managed again since it was mapped.
    releases: u8,
}

impl Mark {
    fn is_any(self) -> bool {
        self.has_access || self.is_told || self.was_locked
    }
}

/// By the address of the unit.
static MARKS: Lock<BTreeMap<usize, Mark>> = Lock::new(BTreeMap::new());
/// How many units are in [`MARKS`]; read without the lock.
static MARKED: AtomicUsize = AtomicUsize::new(0);

/// The addresses of the units that `[from, to)` meets.
pub fn units(from: usize, to: usize) -> impl Iterator<Item = usize> {
    (from & !(UNIT - 1)..to).step_by(UNIT)
}

/// Is there a note of any unit?
pub fn is_any() -> bool {
    MARKED.load(Relaxed) > 0
}

/// Notes that pages of `[addr, addr+len)` may have another access than read and write.
pub fn note(addr: usize, len: usize) {
    note_as(addr, len, |mark| mark.has_access = true);
}

/// Notes that the kernel is told something of pages of `[addr, addr+len)` that is neither their
/// access nor to lock them, or that it may use them by their addresses.
pub fn note_told(addr: usize, len: usize) {
    note_as(addr, len, |mark| mark.is_told = true);
}

/// Notes that the kernel is told to lock pages of `[addr, addr+len)`.
pub fn note_locked(addr: usize, len: usize) {
    note_as(addr, len, |mark| mark.was_locked = true);
}

fn note_as(addr: usize, len: usize, set: impl Fn(&mut Mark)) {
    let mut marks = MARKS.lock();
    for unit in units(addr, addr + len) {
        set(marks.entry(unit).or_default());
    }
    MARKED.store(marks.len(), Relaxed);
}

/// Removes the notes of those units of `[addr, addr+len)` for which `gone` is true. `gone` must not
/// call the engine.
pub fn forget(addr: usize, len: usize, gone: impl Fn(usize) -> bool) {
    if is_any() {
        let mut marks = MARKS.lock();
        for unit in units(addr, addr + len).filter(|&u| gone(u)) {
            marks.remove(&unit);
        }
        MARKED.store(marks.len(), Relaxed);
    }
}

/// Is there a note of any unit that `[addr, addr+len)` meets?
pub fn is_noted(addr: usize, len: usize) -> bool {
    has_mark(addr, len, Mark::is_any)
}

/// Was the kernel told something of any unit that `[addr, addr+len)` meets that is not its access?
pub fn is_told(addr: usize, len: usize) -> bool {
    has_mark(addr, len, |mark| mark.is_told || mark.was_locked)
}

fn has_mark(addr: usize, len: usize, is_meant: impl Fn(Mark) -> bool) -> bool {
    is_any() && {
        let marks = MARKS.lock();
        let mut met = marks.range(addr & !(UNIT - 1)..addr + len);
        met.any(|(_, &mark)| is_meant(mark))
    }
}

/// Was `unit` locked, and is nothing else known of it? Then that note is removed.
pub fn begin_release(unit: usize) -> bool {
    let mut marks = MARKS.lock();
    let found = marks.get_mut(&unit).filter(|mark| {
        let other = mark.has_access || mark.is_told;
        mark.was_locked && !other && mark.releases < MOST_RELEASES
    });
    let Some(mark) = found else {
        return false;
    };
    mark.was_locked = false;
    mark.releases += 1;
    true
}

/// `unit` could not be released yet.
pub fn undo_release(unit: usize) {
    if let Some(mark) = MARKS.lock().get_mut(&unit) {
        mark.was_locked = true;
        mark.releases -= 1;
    }
}

/// Takes this module's lock for the time of a fork; see [`Lock::before_fork`].
pub fn before_fork() {
    MARKS.before_fork();
}

/// Releases the lock after a fork, in parent and child. What was locked is shared with the other by
/// the kernel: it stays the kernel's.
pub fn after_fork() {
    // (The lock is held.)
    MARKS.after_fork();
    if is_any() {
        let mut marks = MARKS.lock();
        marks
            .values_mut()
            .for_each(|mark| mark.is_told |= mark.was_locked);
    }
}
