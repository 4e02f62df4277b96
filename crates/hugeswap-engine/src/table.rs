//! The page table of a window: one state word and one frame number for each unit of 2 MiB.
//!
//! Concurrency: the protocol of `hugeswap_policy::unit::lock`, over a futex. The frame number of a
//! unit is read and written only by the owner of its lock, except where the owner offers the lock.

use crate::lock::check_inside;
use crate::numbering::Numbering;
use crate::zeroed::Zeroed;
use crate::{PAGE, UNIT};
use hugeswap_policy::UNIT_PAGES;
pub use hugeswap_policy::unit::lock::NO_FRAME;
use hugeswap_policy::unit::lock::{self, Lock, QUEUED, StateWord};
use hugeswap_policy::unit::step::{Effects, Event, Step, step};
use hugeswap_policy::unit::{Kind, LOCKED, UNCHARGED, WAITERS, WRITEBACK, Word};
use hugeswap_policy::workingset::lruvec::Weights;
use hugeswap_sys::{Result, futex, mm};
use std::mem::ManuallyDrop;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicI64, AtomicPtr, AtomicU16, AtomicU32, AtomicU64};

/// The cells of one unit.
struct Cells<'a> {
    word: &'a AtomicU64,
    frame: &'a AtomicU32,
}

impl lock::Cells for Cells<'_> {
    type Word = Word;
    const SPINS: u32 = 50;

    fn word(&self) -> u64 {
        self.word.load(Acquire)
    }

    fn replace_word(&self, old: u64, new: u64) -> std::result::Result<(), u64> {
        self.word
            .compare_exchange_weak(old, new, AcqRel, Acquire)
            .map(|_| ())
    }

    fn swap_word(&self, new: u64) -> u64 {
        self.word.swap(new, Release)
    }

    fn wait(&self, seen: u64) {
        // The timeout only bounds the harm of a lost wake-up; none is known.
        let timeout = Some(100_000_000);
        futex::wait(futex::low_half(self.word), seen as u32, timeout, false);
    }

    fn wake(&self) {
        futex::wake(futex::low_half(self.word), u32::MAX >> 1, false);
    }
}

impl lock::Offers for Cells<'_> {
    fn frame(&self) -> u32 {
        self.frame.load(Acquire)
    }

    fn set_frame(&self, frame: u32) {
        self.frame.store(frame, Release);
    }

    fn take_offer(&self) -> bool {
        self.frame
            .compare_exchange(QUEUED, NO_FRAME, AcqRel, Relaxed)
            .is_ok()
    }
}

/// A window of managed addresses and what each of its units is.
pub struct Table {
    numbering: Numbering,
    words: &'static [AtomicU64],
    frames: &'static [AtomicU32],
    /// How much of each unit is in memory. All or nothing follows from its word; for a base-mapped
    /// unit the code that changes it tells.
    weights: Arc<Weights<Zeroed<AtomicU16>>>,
    /// Where units are counted that hold something of this process's own ([`Table::count_in`]);
    /// null is nowhere.
    touched: AtomicPtr<AtomicI64>,
    /// See [`Table::watched`].
    watched: AtomicI64,
}

impl Deref for Table {
    type Target = Numbering;

    fn deref(&self) -> &Numbering {
        &self.numbering
    }
}

impl Table {
    /// Makes a table for a window; its own memory is touched only where units are. `weights` are to
    /// be kept true.
    pub(crate) fn new(
        numbering: Numbering,
        weights: Arc<Weights<Zeroed<AtomicU16>>>,
    ) -> Result<Table> {
        let units = numbering.units() as usize;
        let words = mm::map_own(units * 8, mm::PROT_RW)?;
        let frames = mm::map_own(units * 4, mm::PROT_RW)?;
        let table = Table {
            numbering,
            // SAFETY: zeroed, page-aligned, long enough, and unmapped only in Drop; zeros are valid
            // atomics.
            words: unsafe { std::slice::from_raw_parts(words as *const AtomicU64, units) },
            // SAFETY: as above.
            frames: unsafe { std::slice::from_raw_parts(frames as *const AtomicU32, units) },
            weights,
            touched: AtomicPtr::new(std::ptr::null_mut()),
            watched: AtomicI64::new(0),
        };
        for number in table.numbering.unused() {
            let _ = table.reset_by(number, Event::Claimed);
        }
        Ok(table)
    }

    /// From now on `touched` counts the units that hold something of this process's own, beginning
    /// with what it says now.
    ///
    /// # Safety
    /// It must live as long as the table is used.
    pub(crate) unsafe fn count_in(&self, touched: &AtomicI64) {
        let at = std::ptr::from_ref(touched).cast_mut();
        self.touched.store(at, Release);
    }

    /// Units are counted nowhere from now on.
    pub(crate) fn count_nowhere(&self) {
        self.touched.store(std::ptr::null_mut(), Release);
    }

    /// How many units are watched, where they are mapped or in the arena: a fault can take their
    /// frames at once.
    pub(crate) fn watched(&self) -> u64 {
        self.watched.load(Relaxed).max(0) as u64
    }

    /// Locks a unit once no write-out reads it.
    pub(crate) fn lock_settled(&self, unit: u32) -> Locked<'_> {
        loop {
            let seen = self.load(unit);
            if seen.has(LOCKED) {
                if let Some(w) = self.claim(unit) {
                    return w;
                }
                self.wait_locked(unit);
                continue;
            }
            if seen.has(WRITEBACK) {
                self.wait_change(unit, seen);
                continue;
            }
            if let Some(w) = self.try_lock_if(unit, |w| !w.has(WRITEBACK)) {
                return w;
            }
        }
    }

    /// Pages of `unit` that `[addr, addr+len)` meets.
    pub(crate) fn pages_in(&self, unit: u32, addr: usize, len: usize) -> Range<usize> {
        let at = self.addr(unit);
        let (from, to) = (at.max(addr), (at + UNIT).min(addr + len));
        (from - at) / PAGE..(to - at).div_ceil(PAGE)
    }

    fn lock_of(&self, unit: u32) -> Lock<Cells<'_>> {
        Lock(Cells {
            word: &self.words[unit as usize],
            frame: &self.frames[unit as usize],
        })
    }

    /// The word as it is now.
    pub fn load(&self, unit: u32) -> Word {
        Word(self.words[unit as usize].load(Acquire))
    }

    /// Locks the unit if it is unlocked and `wanted` accepts its word. See [`Lock::try_lock_if`].
    pub(crate) fn try_lock_if(
        &self,
        unit: u32,
        wanted: impl Fn(Word) -> bool,
    ) -> Option<Locked<'_>> {
        check_inside();
        let word = self.lock_of(unit).try_lock_if((), wanted)?;
        Some(self.locked(unit, word))
    }

    /// Locks the unit, waiting for it if need be.
    pub(crate) fn lock(&self, unit: u32) -> Locked<'_> {
        check_inside();
        let word = self.lock_of(unit).lock(());
        self.locked(unit, word)
    }

    /// Takes the lock of a unit if it is offered.
    pub(crate) fn claim(&self, unit: u32) -> Option<Locked<'_>> {
        let word = self.lock_of(unit).claim()?;
        Some(self.locked(unit, word))
    }

    /// The unit that came with a job ([`Locked::pass`]).
    pub(crate) fn passed(&self, unit: u32) -> Locked<'_> {
        let word = self.load(unit);
        debug_assert!(word.has(LOCKED), "{unit}: {word:?}");
        self.locked(unit, word.clear(LOCKED | WAITERS))
    }

    fn locked(&self, unit: u32, word: Word) -> Locked<'_> {
        Locked {
            table: self,
            unit,
            word,
        }
    }

    /// Keeps weights and counts true while a unit's word changes.
    fn weigh(&self, unit: u32, old: Word, new: Word) {
        let more = i64::from(new.is_watched()) - i64::from(old.is_watched());
        if more != 0 {
            self.watched.fetch_add(more, Relaxed);
        }
        let more = i64::from(is_touched(new)) - i64::from(is_touched(old));
        if more != 0 {
            // SAFETY: null, or alive, by the contract of `count_in`.
            if let Some(touched) = unsafe { self.touched.load(Acquire).as_ref() } {
                touched.fetch_add(more, Relaxed);
            }
        }
        match new.kind() {
            kind if kind == old.kind() => {}
            Kind::Present | Kind::Cached => self.weights.set(unit, UNIT_PAGES),
            Kind::Base => {}
            _ => self.weights.set(unit, 0),
        }
    }

    /// See [`Lock::wait_change`].
    pub fn wait_change(&self, unit: u32, seen: Word) {
        self.lock_of(unit).wait_change(seen);
    }

    /// Waits while the unit is locked; may return early.
    pub fn wait_locked(&self, unit: u32) {
        self.lock_of(unit).wait_locked();
    }

    /// See [`Lock::update`].
    pub fn update(&self, unit: u32, f: impl FnMut(Word) -> Option<Word>) -> Option<Word> {
        self.lock_of(unit).update(f)
    }

    /// Is the lock of a unit offered?
    pub fn is_offered(&self, unit: u32) -> bool {
        self.lock_of(unit).is_offered()
    }

    /// Sets the unit's frame number without its lock: only while no other thread can look.
    pub fn set_frame(&self, unit: u32, frame: u32) {
        self.frames[unit as usize].store(frame, Release);
    }

    /// Takes a step of an unlocked unit whose memory and mapping do not change. The word stored;
    /// `None` if the event cannot happen to the unit as it is.
    pub(crate) fn update_by(&self, unit: u32, event: Event) -> Option<Word> {
        self.update(unit, |w| step(w, event).ok().map(|step| step.word))
    }

    /// Takes a step without the lock: only while no other thread can look (a fork).
    pub(crate) fn reset_by(&self, unit: u32, event: Event) -> Effects {
        let step = take(self.load(unit), event);
        self.reset(unit, step.word);
        step.effects
    }

    /// Stores a word without any protocol.
    fn reset(&self, unit: u32, word: Word) {
        self.weigh(unit, self.load(unit), word);
        self.words[unit as usize].store(word.0, Release);
    }
}

/// Takes a step. An event that cannot happen to the unit is a bug: a debug build ends the process,
/// a release build leaves the unit as it is.
fn take(w: Word, event: Event) -> Step {
    step(w, event).unwrap_or_else(|_illegal| {
        #[cfg(debug_assertions)]
        crate::lock::broken(&_illegal.to_string());
        #[cfg(not(debug_assertions))]
        Step::to(w)
    })
}

/// A unit that the holder has locked. It reads as its [`Word`], which changes by the steps of
/// [`hugeswap_policy::unit::step`] only. Others see the new word when the lock ends.
///
/// The lock ends in one of these ways, and a debug build ends the process if it is lost otherwise:
/// [`Locked::settle`] unlocks the unit, [`Locked::offer`] leaves the lock to the first thread that
/// comes, [`Locked::pass`] sends it with a job.
#[must_use = "a unit that is left locked blocks all who need it"]
pub(crate) struct Locked<'t> {
    table: &'t Table,
    unit: u32,
    word: Word,
}

impl Deref for Locked<'_> {
    type Target = Word;

    fn deref(&self) -> &Word {
        &self.word
    }
}

impl<'t> Locked<'t> {
    /// Its number.
    pub fn unit(&self) -> u32 {
        self.unit
    }

    /// Its first address.
    pub fn addr(&self) -> usize {
        self.table.addr(self.unit)
    }

    /// Unlocks the unit, with the word that is held.
    pub fn settle(self) {
        let unit = ManuallyDrop::new(self);
        // Before others can change it again.
        unit.weigh();
        unit.lock().unlock(unit.word);
    }

    /// Takes the step of an event that has happened to the unit. The caller carries out the
    /// effects: see [`Memory::advance`](crate::memory::Memory::advance).
    pub fn step(&mut self, event: Event) -> Effects {
        let step = take(self.word, event);
        self.word = step.word;
        step.effects
    }

    /// Offers the lock to the first thread that comes, for a read that no thread has begun.
    pub fn offer(self) {
        ManuallyDrop::new(self).lock().offer();
    }

    /// The lock goes with a job, to the thread that calls [`Table::passed`].
    pub fn pass(self) {
        let unit = ManuallyDrop::new(self);
        unit.weigh();
        let word = unit.word.locked(());
        unit.lock().change(|_| Some(word));
    }

    /// The number of its frame.
    pub fn frame(&self) -> u32 {
        self.table.frames[self.unit as usize].load(Acquire)
    }

    /// Sets the number of its frame.
    pub fn set_frame(&self, frame: u32) {
        self.table.set_frame(self.unit, frame);
    }

    fn weigh(&self) {
        let old = self.table.load(self.unit);
        self.table.weigh(self.unit, old, self.word);
    }

    fn lock(&self) -> Lock<Cells<'t>> {
        self.table.lock_of(self.unit)
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if cfg!(debug_assertions) && !std::thread::panicking() {
            left_locked();
        }
    }
}

#[cfg(not(test))]
fn left_locked() {
    crate::lock::broken("a unit is left locked: a thread that needs it waits for ever");
}

#[cfg(test)]
fn left_locked() {
    panic!("a unit is left locked");
}

/// Does the unit hold something that is neither a file's nor shared with the process that this one
/// was forked from?
fn is_touched(w: Word) -> bool {
    let of_file = || w.file().is_some();
    match w.kind() {
        Kind::Free | Kind::None | Kind::Poisoned => false,
        Kind::Present | Kind::Foreign if w.has(UNCHARGED) => false,
        Kind::Present | Kind::Foreign | Kind::Swapped | Kind::Cached | Kind::Base => !of_file(),
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and the engine that owns the table is gone.
        unsafe {
            let _ = mm::unmap(
                self.words.as_ptr() as usize,
                std::mem::size_of_val(self.words),
            );
            let _ = mm::unmap(
                self.frames.as_ptr() as usize,
                std::mem::size_of_val(self.frames),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugeswap_policy::unit::Place;
    use hugeswap_policy::unit::step::Lists;
    use hugeswap_policy::workingset::lruvec::Lruvecs;

    fn table() -> Table {
        let lists = Lruvecs::new(4, Zeroed::new(4).unwrap());
        let window = 1 << 40..(1 << 40) + 4 * UNIT;
        Table::new(Numbering::new(window, &[]), lists.weights()).unwrap()
    }

    #[test]
    fn others_see_a_step_when_the_lock_ends() {
        let t = table();
        let _ = t.reset_by(1, Event::Mapped);
        let mut unit = t.try_lock_if(1, |w| w.kind() == Kind::None).unwrap();
        assert!(t.try_lock_if(1, |_| true).is_none());
        let effects = unit.step(Event::FirstTouched { writable: false });
        assert_eq!(
            (effects.lists, effects.frees),
            (Lists::Resident, Place::Nothing)
        );
        assert_eq!((unit.kind(), t.load(1).kind()), (Kind::Present, Kind::None));
        unit.settle();
        assert!(t.load(1).kind() == Kind::Present && !t.load(1).has(LOCKED));
    }

    #[test]
    fn units_that_are_watched_are_counted() {
        let t = table();
        let place = Place::Cluster(5);
        let take = |events: &[Event]| {
            let mut unit = t.lock(3);
            for &event in events {
                let _ = unit.step(event);
            }
            unit.settle();
            t.watched()
        };
        let written = [Event::WriteBegun, Event::Written { place }, Event::Watched];
        assert_eq!(
            take(&[Event::Mapped, Event::FirstTouched { writable: true }]),
            0
        );
        assert_eq!(take(&written), 1);
        assert_eq!(take(&[Event::Touched { write: false }]), 0);
        assert_eq!(take(&[Event::MovedOut]), 1);
        assert_eq!(take(&[Event::Filled]), 0);
    }

    #[test]
    fn a_job_takes_the_word_and_the_lock_along() {
        let t = table();
        let _ = t.reset_by(2, Event::Mapped);
        let mut unit = t.lock(2);
        let _ = unit.step(Event::FirstTouched { writable: true });
        let _ = unit.step(Event::Placed(Place::Cluster(7)));
        unit.set_frame(3);
        unit.pass();
        assert!(t.load(2).has(LOCKED));
        let unit = t.passed(2);
        assert_eq!((unit.cluster(), unit.frame()), (Some(7), 3));
        unit.settle();
        assert!(!t.load(2).has(LOCKED));
    }

    #[test]
    fn an_offer_is_taken_once() {
        let t = table();
        t.lock(0).offer();
        assert!(t.is_offered(0) && t.try_lock_if(0, |_| true).is_none());
        let unit = t.claim(0).unwrap();
        assert!(t.claim(0).is_none());
        unit.settle();
    }

    #[test]
    #[should_panic(expected = "left locked")]
    #[cfg(debug_assertions)]
    fn a_unit_that_is_left_locked_is_noticed() {
        let _ = table().lock(0).unit();
    }
}
