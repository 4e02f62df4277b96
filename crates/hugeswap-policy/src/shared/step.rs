//! The life of a unit of shared memory as a state machine: [`step`] takes a [`Word`] and an
//! [`Event`], and gives the next word and its [`Effects`].
//!
//! The state of a unit is the kind and the op of its word. The holder of the lock first does to the
//! memory what the event says, then takes the step. A step leaves the word locked as it is, except
//! that the op of a unit that leaves memory becomes [`Op::Punch`] with the step that says where its
//! bytes are: from then on no process can displace the holder. Taking and ending the lock are no
//! steps ([`lock`](crate::unit::lock)).
//!
//! The segment is memory that other processes write to. So an event that cannot happen to a unit
//! is no bug of the caller: the caller then leaves the word as it is.
//!
//! The table in docs/states.md is printed from [`step`] (`tests/life_of_a_unit`).

use super::{Kind, Op, Word};
use crate::counters::Counter;

/// What happens to a unit of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// All of the unit is in memory, as its word says where its bytes are.
    Arrived {
        /// It was read ahead of a touch.
        ahead: bool,
    },
    /// A process touched the unit, which is in memory, and has the access that it needs.
    Touched {
        /// For this the unit was taken from a process that was writing it out.
        displaced: bool,
    },
    /// Reclaim passes over the unit because it was used, and will take it the next time.
    Spared,
    /// The unit is to stay in memory until its region ends.
    Kept,
    /// Its cluster is no longer its own: memory has its bytes.
    Unplaced,
    /// A write-out found zeros only. The memory is to be dropped.
    FoundZero,
    /// The bytes are in this cluster. The memory is to be dropped.
    Stored {
        /// Which.
        cluster: u64,
    },
    /// The memory was dropped.
    Dropped,
    /// The memory could not be dropped.
    NotDropped,
    /// The bytes were given up, and the memory was dropped.
    Discarded,
    /// The bytes cannot be read from swap, and what was in memory of them was dropped.
    Lost,
    /// The region of the unit has ended.
    Ended,
}

/// What the holder of the lock has to do besides storing the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the caller carries out the effects"]
pub struct Effects {
    /// Each of these counts one more.
    pub counts: &'static [Counter],
    /// A cluster that the unit has no longer.
    pub frees: Option<u64>,
}

/// What comes of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The next word.
    pub word: Word,
    /// What goes with it.
    pub effects: Effects,
}

impl Step {
    /// This word, without effects.
    pub const fn to(word: Word) -> Step {
        let effects = Effects {
            counts: &[],
            frees: None,
        };
        Step { word, effects }
    }

    const fn counts(mut self, counters: &'static [Counter]) -> Step {
        self.effects.counts = counters;
        self
    }

    /// The unit gives its cluster up.
    fn unplaced(mut self) -> Step {
        self.effects.frees = self.word.cluster();
        self.word = self.word.with_cluster(None);
        self
    }
}

/// An event that cannot happen to a unit in its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Illegal {
    /// The unit.
    pub word: Word,
    /// The event.
    pub event: Event,
}

/// What `event` makes of the unit `w`, whose lock the caller holds, unless the op of `w` is
/// [`Op::None`].
///
/// # Errors
/// [`Illegal`] if the event cannot happen to the unit as it is.
pub fn step(w: Word, event: Event) -> Result<Step, Illegal> {
    use Counter as Count;
    use Event as E;
    use Kind::{Kept, Lost, None, Resident, Swapped};

    let used = |w: Word| Step::to(w.referenced(true));
    let step = match (w.kind(), w.op(), event) {
        // The unit comes in, and is used.
        (None | Swapped, Op::In, E::Arrived { ahead }) => {
            let counts: &'static [Counter] = match ahead {
                true => &[Count::SwapRa],
                false => &[],
            };
            used(w.with_kind(Resident)).counts(counts)
        }
        (Swapped, Op::In, E::Lost) => Step::to(w.with_kind(Lost))
            .counts(&[Count::SwapReadError, Count::Poisoned])
            .unplaced(),
        (Resident | Kept, Op::Touch, E::Touched { displaced: false }) => used(w),
        (Resident | Kept, Op::Touch, E::Touched { displaced: true }) => {
            used(w).counts(&[Count::WriteRedirtied])
        }
        (Resident, Op::None, E::Kept) => Step::to(w.with_kind(Kept)),

        // The unit leaves.
        (Resident, Op::None, E::Spared) => Step::to(w.referenced(false)),
        (Resident, Op::Out, E::FoundZero) => {
            Step::to(w.with_kind(None).with_op(Op::Punch)).counts(&[Count::ZeroDrop])
        }
        (Resident, Op::Out, E::Stored { cluster }) => {
            let away = w.with_kind(Swapped).with_cluster(Some(cluster));
            let step = Step::to(away.with_op(Op::Punch));
            match w.cluster() == Some(cluster) {
                // It was not written again.
                true => step.counts(&[Count::CleanDrop]),
                false => step,
            }
        }
        (Swapped, Op::Punch, E::Dropped) => Step::to(w),
        (None, Op::Punch, E::Dropped) => Step::to(w).unplaced(),
        (None | Swapped, Op::Punch, E::NotDropped) => used(w.with_kind(Resident)),

        // The bytes are given up, or are elsewhere.
        (None | Resident | Swapped | Lost, Op::Discard, E::Discarded) => {
            Step::to(w.with_kind(None).referenced(false)).unplaced()
        }
        (Resident, Op::In | Op::Out | Op::Touch, E::Unplaced)
        | (None | Kept | Lost, Op::Touch, E::Unplaced) => Step::to(w).unplaced(),
        (_, _, E::Ended) => Step {
            word: Word::NONE,
            ..Step::to(w).unplaced()
        },

        _ => return Err(Illegal { word: w, event }),
    };
    Ok(step)
}
