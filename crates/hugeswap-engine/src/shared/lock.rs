//! Shared units that this process has locked, as values: [`Locked`], and [`Leaving`] while another
//! process may still displace this one.
//!
//! The protocol is that of [`hugeswap_policy::unit::lock`], which private units have too, over a
//! futex that the processes of the pool share. What becomes of a unit is
//! [`hugeswap_policy::shared::step`]. A thread that waits for a word long wakes kswapd, which
//! checks whether the holder is alive, and carries on if it is not (`recover`).

use super::{DOUBT_NS, Sharing};
use hugeswap_policy::shared::step::{Effects, Event, step};
use hugeswap_policy::shared::{Holder, Op, Word};
use hugeswap_policy::unit::lock::{self, Lock, StateWord};
use hugeswap_sys::{futex, process};
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

/// The word of one unit, in the segment.
pub(super) struct Cells<'s> {
    word: &'s AtomicU64,
    sharing: &'s Sharing,
}

impl lock::Cells for Cells<'_> {
    type Word = Word;
    /// A lock is held while a unit is copied, at least.
    const SPINS: u32 = 0;

    fn word(&self) -> u64 {
        self.word.load(Acquire)
    }

    fn replace_word(&self, old: u64, new: u64) -> Result<(), u64> {
        self.word
            .compare_exchange(old, new, AcqRel, Acquire)
            .map(|_| ())
    }

    fn swap_word(&self, new: u64) -> u64 {
        self.word.swap(new, Release)
    }

    fn wait(&self, seen: u64) {
        let Cells { word, sharing } = self;
        sharing.waiting.fetch_add(1, AcqRel);
        futex::wait(futex::low_half(word), seen as u32, Some(DOUBT_NS), true);
        if word.load(Acquire) == seen {
            // kswapd checks whether the holder is alive.
            sharing.pool.kick();
            process::yield_now();
        }
        sharing.waiting.fetch_sub(1, AcqRel);
    }

    fn wake(&self) {
        futex::wake(futex::low_half(self.word), u32::MAX >> 1, true);
    }
}

/// A shared unit that this process has locked, in a way that no living process takes it from it. It
/// reads as its [`Word`]. Others see the steps taken when the lock ends.
///
/// The lock ends by one of the methods that take the value, and a debug build ends the process if
/// it is lost otherwise.
#[must_use = "a unit that is left locked blocks all processes that need it"]
pub(super) struct Locked<'s> {
    sharing: &'s Sharing,
    unit: u32,
    word: Word,
}

impl Deref for Locked<'_> {
    type Target = Word;

    fn deref(&self) -> &Word {
        &self.word
    }
}

impl<'s> Locked<'s> {
    /// Its number.
    pub fn unit(&self) -> u32 {
        self.unit
    }

    /// Takes the step of an event that has happened to the unit, unless its word is nonsense. The
    /// cluster that the unit has no longer.
    fn step(&mut self, event: Event) -> Option<u64> {
        let step = step(self.word, event).ok()?;
        self.word = step.word;
        self.sharing.count(step.effects)
    }

    /// Unlocks the unit.
    pub fn settle(self) {
        let held = ManuallyDrop::new(self);
        held.sharing.lock_of(held.unit).unlock(held.word);
    }

    /// Takes the step of an event, and unlocks the unit.
    pub fn settle_by(mut self, event: Event) {
        self.step(event);
        self.settle();
    }

    /// Takes the step of an event by which the unit gives its cluster up, if it has one, and
    /// unlocks it. The cluster is free then. The caller may use `hand` of [`Sharing::in_hand`].
    pub fn settle_without_cluster(mut self, event: Event, hand: usize) {
        let sharing = self.sharing;
        let given_up = self.step(event);
        if given_up.is_some() {
            sharing.in_hand(hand, given_up);
        }
        self.settle();
        if let Some(cluster) = given_up {
            sharing.drop_in_hand(hand, cluster);
        }
    }

    /// The lock goes with a job, to the thread that calls [`Sharing::passed`].
    pub fn pass(self) {
        let _ = ManuallyDrop::new(self);
    }

    /// Has come in, for the unit to be written out again at once: as [`Locked::settle_by`], and the
    /// cluster is given up, too.
    pub fn settle_elsewhere(mut self, hand: usize) {
        self.step(Event::Arrived { ahead: false });
        self.settle_without_cluster(Event::Unplaced, hand);
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if cfg!(debug_assertions) && !std::thread::panicking() {
            crate::lock::broken(
                "a shared unit is left locked: a process that needs it waits in vain",
            );
        }
    }
}

/// A shared unit that this process writes out. A process that writes to the unit displaces this
/// one: then nothing has happened.
#[must_use = "a unit that is left locked blocks all processes that need it"]
pub(super) struct Leaving<'s>(Locked<'s>);

impl Deref for Leaving<'_> {
    type Target = Word;

    fn deref(&self) -> &Word {
        &self.0.word
    }
}

impl<'s> Leaving<'s> {
    /// Takes the step of an event that has happened to the unit, for all processes to see. False:
    /// this process was displaced.
    pub fn advance(&mut self, event: Event) -> bool {
        let Locked { sharing, unit, .. } = self.0;
        let held = sharing.holder(Op::Out);
        let mut effects = None;
        let stored = sharing.lock_of(unit).change(|w| {
            let next = step(w, event).ok().filter(|_| w.is_held(held))?;
            effects = Some(next.effects);
            Some(next.word)
        });
        if let (Some(word), Some(effects)) = (stored, effects) {
            self.0.word = word;
            sharing.count(effects);
        }
        stored.is_some()
    }

    /// The unit, after the step by which no process can displace this one any more.
    pub fn secured(self) -> Locked<'s> {
        self.0
    }

    /// The unit stays in memory, and is unlocked, if this process was not displaced.
    pub fn stay(self) {
        let Locked { sharing, unit, .. } = self.0;
        self.0.pass();
        let (mut w, held) = (sharing.load(unit), sharing.holder(Op::Out));
        while w.is_held(held) {
            if let Some(unit) = sharing.take(unit, w, Op::Touch) {
                return unit.settle_by(Event::Touched { displaced: false });
            }
            w = sharing.load(unit);
        }
    }
}

impl Sharing {
    pub(super) fn lock_of(&self, unit: u32) -> Lock<Cells<'_>> {
        Lock(Cells {
            word: self.word_of(unit),
            sharing: self,
        })
    }

    /// The word as it is now.
    pub(super) fn load(&self, unit: u32) -> Word {
        self.lock_of(unit).load()
    }

    /// This process, which does `op`.
    pub(super) fn holder(&self, op: Op) -> Holder {
        let owner = self.pool.owner(self.pool.me());
        Holder { op, owner }
    }

    /// Locks a unit if its word is still `seen`: free, of a dead process, or of one that may be
    /// displaced. `op` is not [`Op::Out`].
    pub(super) fn take(&self, unit: u32, seen: Word, op: Op) -> Option<Locked<'_>> {
        let by = self.holder(op);
        self.lock_of(unit).take(seen, by).ok()?;
        Some(Locked {
            sharing: self,
            unit,
            word: seen.locked(by),
        })
    }

    /// The same, for writing the unit out.
    pub(super) fn take_out(&self, unit: u32, seen: Word) -> Option<Leaving<'_>> {
        self.take(unit, seen, Op::Out).map(Leaving)
    }

    /// The unit that came with a job ([`Locked::pass`]).
    pub(super) fn passed(&self, unit: u32) -> Locked<'_> {
        Locked {
            sharing: self,
            unit,
            word: self.load(unit),
        }
    }

    /// Changes the word of an unlocked unit by an event, if it is still `seen`. False: it is not,
    /// or the event cannot happen.
    pub(super) fn change(&self, unit: u32, seen: Word, event: Event) -> bool {
        let lock = self.lock_of(unit);
        step(seen, event).is_ok_and(|step| lock.replace(seen, step.word).is_ok())
    }

    /// Waits until the word is no longer `seen`, its present value; may return early.
    pub(super) fn wait(&self, unit: u32, seen: Word) {
        self.lock_of(unit).wait_change(seen);
    }

    fn count(&self, effects: Effects) -> Option<u64> {
        for &counter in effects.counts {
            self.pool.count(counter, 1);
        }
        effects.frees
    }
}
