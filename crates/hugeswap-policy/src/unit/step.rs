//! The life of a unit as a state machine: [`step`] takes a [`Word`] and an [`Event`], and gives the
//! next word and its [`Effects`].
//!
//! The owner of a unit's lock first does to the memory what the event says, then takes the step,
//! and carries out the effects. Facts that the word does not say (is it mapped writable, where was
//! it written to) are fields of the event. This module knows neither time, threads nor memory: the
//! engine takes the steps on real memory, [`driver`](crate::driver) on a machine of counters, and
//! an explorer of schedules in a model around the lock (`tests/protocol_loom.rs`).
//!
//! The table in docs/states.md is printed from [`step`] (`tests/life_of_a_unit`).

use super::{
    CLEAN, COW, FilePlace, HAS_PLACE, Kind, MAY_READ, MAY_WRITE, Place, READAHEAD, State,
    UNCHARGED, WATCHED, WRITABLE, WRITEBACK, Word,
};
use crate::counters::Counter;

/// What happens to a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The program maps memory there.
    Mapped,
    /// The program maps a file there.
    MappedFile {
        /// Which part of which file.
        place: FilePlace,
        /// May the program write to it?
        may_write: bool,
    },
    /// The kernel is to map something there, at the program's wish.
    Claimed,
    /// What the kernel has there is managed from now on, as memory that may be read and written.
    Adopted {
        /// It holds something, and is mapped writable; else it reads as zero, and is absent.
        holds: bool,
    },
    /// The program unmaps it; nothing of it is in memory any more.
    Unmapped,
    /// The program gives its content up; nothing of it is in memory any more.
    Discarded {
        /// What it is a part of, if that is a file.
        file: Option<FilePlace>,
    },
    /// The program gives its content up, and the kernel did not take the memory back, which holds
    /// zeros now.
    Emptied,
    /// The program sets what access it allows itself. A unit in memory that may not be written is
    /// not mapped writable any more.
    Protected {
        /// Reads are allowed.
        may_read: bool,
        /// Writes are allowed.
        may_write: bool,
    },
    /// Its content has moved to another unit, with its memory and its place.
    MovedAway,
    /// The content of another unit has moved here, with its memory and its place.
    MovedHere {
        /// The word of the other unit before that.
        from: Word,
        /// Memory arrived read-only.
        read_only: bool,
    },
    /// Its memory, mapped as the program wants it, is the kernel's for good.
    Ejected {
        /// Its place in swap is given up later.
        keeps_place: bool,
    },

    /// It was touched for the first time, and has memory of zeros.
    FirstTouched {
        /// The memory is mapped writable.
        writable: bool,
    },
    /// A frame with its bytes was moved into place, for a touch.
    Arrived {
        /// It is mapped writable.
        writable: bool,
    },
    /// A touch faulted though the memory is there, and has access now.
    Touched {
        /// The touch is a write: it is mapped writable.
        write: bool,
    },
    /// A shared frame was replaced by a copy of its own.
    Copied {
        /// The copy is mapped writable.
        writable: bool,
    },
    /// No relative shares its frame any more.
    Unshared {
        /// It is mapped writable, for a write.
        writable: bool,
    },
    /// A frame of the arena has its bytes: they were read ahead of a touch, or could not be mapped
    /// for one.
    Filled,

    /// It is mapped read-only.
    MadeReadOnly,
    /// It is mapped read-only, and is to be written out.
    WriteBegun,
    /// A write-out is done, or was needless because the place holds the same bytes.
    Written {
        /// Where the bytes are.
        place: Place,
    },
    /// A write-out has failed, or it found zeros and the memory could not be dropped.
    NotWritten,
    /// A write-out found zeros only; nothing of the unit is in memory any more.
    FoundZero,
    /// It is mapped without access, to see whether it is touched.
    Watched,
    /// It is mapped with access again, or may be, without a touch.
    Unwatched,
    /// Its frame was moved to the arena.
    MovedOut,
    /// Its frame was moved to the arena and back, and is mapped writable: its place may not hold
    /// its bytes.
    PutBack,
    /// Its place does not hold its bytes any more, or cannot be relied on.
    Dirtied,
    /// Its frame was taken for other use.
    FrameTaken,
    /// Its memory was dropped where it stood.
    Dropped,

    /// It is mapped by base pages: all of them present if it was mapped, else none.
    BecameBase,
    /// Pages of it came into memory.
    PagesCame {
        /// None was there.
        first: bool,
    },
    /// Pages of it left memory.
    PagesWent,
    /// Its base pages were gathered in one frame, which is mapped in their place.
    BecameWhole {
        /// The frame is mapped writable.
        writable: bool,
        /// Its place holds the same bytes.
        clean: bool,
        /// khugepaged has done it.
        khugepaged: bool,
    },
    /// None of its base pages is in memory, and it is not mapped by them any more.
    LeftBase {
        /// None is stored either.
        zero: bool,
    },

    /// Its bytes, as far as they are stored, are elsewhere; for [`Place::Nothing`] memory has all
    /// of them.
    Placed(Place),
    /// Its bytes are lost.
    Lost,

    /// The process forks, which shares the frame.
    Forked {
        /// It is mapped read-only for that; else the kernel copies what is written.
        read_only: bool,
    },
    /// In the child of a fork: what it finds.
    Inherited {
        /// Access could not be given.
        watched: bool,
        /// The memory may have changed since it was last written out.
        changed: bool,
    },
}

/// What the reclaim lists are told of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lists {
    /// Nothing.
    Untold,
    /// It came into memory, or stays there after it was taken off its list.
    Resident,
    /// It was touched while it was watched.
    Referenced,
    /// The first of its base pages came into memory.
    PagesResident,
}

/// What the owner of the lock has to do besides storing the word. (Whether the unit counts as
/// watched, and what it weighs on the reclaim lists, follows from the word.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the caller carries out the effects"]
pub struct Effects {
    /// Each of these counts one more.
    pub counts: &'static [Counter],
    /// Best told once the unit is unlocked.
    pub lists: Lists,
    /// A place that the unit has no longer, to be given up before the unit is unlocked;
    /// [`Place::Nothing`] is none. After [`Event::Placed`] and [`Event::Lost`] the old place is the
    /// caller's to deal with, for it depends on the cause.
    pub frees: Place,
}

/// What comes of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// What the unit is now.
    pub word: Word,
    /// What goes with it.
    pub effects: Effects,
}

impl Step {
    /// This word, without effects.
    pub const fn to(word: Word) -> Step {
        let effects = Effects {
            counts: &[],
            lists: Lists::Untold,
            frees: Place::Nothing,
        };
        Step { word, effects }
    }

    const fn counts(mut self, counters: &'static [Counter]) -> Step {
        self.effects.counts = counters;
        self
    }

    const fn tells(mut self, lists: Lists) -> Step {
        self.effects.lists = lists;
        self
    }

    /// The place that `old` has is given up, unless the unit still has it.
    fn frees(mut self, old: Word) -> Step {
        if old.place() != self.word.place() {
            self.effects.frees = old.place();
        }
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

impl std::fmt::Display for Illegal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Illegal { word, event } = self;
        let state = State::of(*word).name();
        write!(
            f,
            "{event:?} cannot happen to a unit that is {state} ({word:?})"
        )
    }
}

impl std::error::Error for Illegal {}

/// What `event` makes of the unit `w`, which its caller has locked.
///
/// # Errors
/// [`Illegal`] if the event cannot happen to the unit as it is.
pub fn step(w: Word, event: Event) -> Result<Step, Illegal> {
    use Counter as Count;
    use Event as E;
    use State::*;

    let state = State::of(w);
    let is_held = w.pins() > 0;
    // A unit that leaves memory is held by nobody.
    let may_leave = !is_held && !w.has(WRITEBACK);
    let step = match (state, event) {
        // The program maps, unmaps, gives up, protects and moves.
        (Free, E::Mapped) => Step::to(Word::none()),
        (Free, E::MappedFile { place, may_write }) => {
            let may = if may_write {
                MAY_READ | MAY_WRITE
            } else {
                MAY_READ
            };
            Step::to(Word::FREE.set(may).in_file(place))
        }
        (Free, E::Claimed) => Step::to(Word::FREE.with_kind(Kind::Foreign).set(UNCHARGED)),
        (Foreign, E::Adopted { holds }) if !is_held && !w.has(HAS_PLACE) => match holds {
            true => Step::to(Word::none().with_kind(Kind::Present).mapped(true, false))
                .tells(Lists::Resident),
            false => Step::to(Word::none()),
        },
        (BeingWritten | Redirtied, E::Unmapped | E::Discarded { .. } | E::Emptied) => {
            return Err(Illegal { word: w, event });
        }
        (_, E::Unmapped) => Step::to(Word::FREE).frees(w),
        (Free | Foreign, E::Discarded { .. }) => Step::to(w),
        (_, E::Discarded { file: None }) => Step::to(w.access().with_kind(Kind::None)).frees(w),
        (_, E::Discarded { file: Some(place) }) => Step::to(w.access().in_file(place)).frees(w),
        (Dirty | Clean | ReadOnly | Watched | Shared | BaseMapped, E::Emptied) => {
            Step::to(w.clear(CLEAN | WATCHED).with_place(Place::Nothing))
                .tells(Lists::Resident)
                .frees(w)
        }
        (Free | Foreign, E::Protected { .. }) => Step::to(w),
        (
            Zero | Swapped | Cached | ReadAhead | Poisoned,
            E::Protected {
                may_read,
                may_write,
            },
        ) => Step::to(w.allowing(may_read, may_write)),
        (
            Dirty | Clean | ReadOnly | Watched | Shared | BeingWritten,
            E::Protected {
                may_read,
                may_write,
            },
        ) => {
            let gone = if may_write { 0 } else { WRITABLE };
            Step::to(w.allowing(may_read, may_write).clear(gone))
        }
        (
            Redirtied,
            E::Protected {
                may_write: true, ..
            },
        ) => Step::to(w.allowing(true, true)),
        (_, E::MovedAway) if w.can_move() => Step::to(w.access().with_kind(Kind::None)),
        (Zero, E::MovedHere { from, read_only }) if from.can_move() => {
            let gone = if read_only {
                WATCHED | WRITABLE
            } else {
                WATCHED
            };
            let step = Step::to(from.clear(gone));
            match from.kind() {
                Kind::Present | Kind::Cached => step.tells(Lists::Resident),
                _ => step,
            }
        }
        (Zero | Dirty | Swapped | Cached | ReadAhead | BaseMapped, E::Ejected { keeps_place }) => {
            let kept = if keeps_place {
                w.place()
            } else {
                Place::Nothing
            };
            let foreign = Word::FREE.with_kind(Kind::Foreign).with_place(kept);
            Step::to(foreign).counts(&[Count::Ejected]).frees(w)
        }

        // Faults bring memory, or give access to it.
        (Zero, E::FirstTouched { writable }) => {
            Step::to(w.with_kind(Kind::Present).mapped(writable, false))
                .counts(&[Count::ThpFaultAlloc])
                .tells(Lists::Resident)
        }
        (Swapped, E::Arrived { writable }) => {
            Step::to(w.with_kind(Kind::Present).mapped(writable, true)).tells(Lists::Resident)
        }
        (Cached, E::Arrived { writable }) => {
            Step::to(w.with_kind(Kind::Present).mapped(writable, true))
                .counts(&[Count::SwapCacheHit])
                .tells(Lists::Referenced)
        }
        (ReadAhead, E::Arrived { writable }) => {
            let present = w.with_kind(Kind::Present).clear(READAHEAD);
            Step::to(present.mapped(writable, true))
                .counts(&[Count::SwapCacheHit, Count::SwapRaHit])
                .tells(Lists::Resident)
        }
        (Watched, E::Touched { write }) if !write || w.allows(true) => {
            Step::to(w.clear(WATCHED).mapped(write, true))
                .counts(&[Count::SwapCacheHit])
                .tells(Lists::Referenced)
        }
        (Dirty | Redirtied, E::Touched { .. }) => Step::to(w),
        (Clean | ReadOnly | BeingWritten, E::Touched { write: false }) => Step::to(w),
        (Clean | ReadOnly | BeingWritten, E::Touched { write: true })
            if w.allows(true) && !w.has(COW) =>
        {
            Step::to(w.mapped(true, false))
        }
        (Shared, E::Touched { write: false }) if w.has(WATCHED) => Step::to(w.clear(WATCHED))
            .counts(&[Count::SwapCacheHit])
            .tells(Lists::Referenced),
        (Shared, E::Touched { write: false }) => Step::to(w),
        (Shared | BeingWritten, E::Copied { writable }) if w.has(COW) => {
            let own = w.clear(WATCHED | COW | UNCHARGED);
            Step::to(own.mapped(writable, own.has(CLEAN)))
                .counts(&[Count::Cow])
                .tells(Lists::Resident)
        }
        (Shared | BeingWritten, E::Unshared { writable: true })
            if w.has(COW) && !w.has(UNCHARGED) =>
        {
            Step::to(w.clear(WATCHED | COW).mapped(true, false)).tells(Lists::Resident)
        }
        (Shared | BeingWritten, E::Unshared { writable: false })
            if w.has(COW) && !w.has(UNCHARGED) && (!w.has(WATCHED) || w.has(CLEAN)) =>
        {
            Step::to(w.clear(COW))
        }
        (Swapped | Cached | ReadAhead, E::Filled) => {
            Step::to(w.with_kind(Kind::Cached).set(READAHEAD)).tells(Lists::Resident)
        }

        // Reclaim takes it out.
        (Dirty | Clean | ReadOnly | Watched | Shared | BeingWritten, E::MadeReadOnly) => {
            Step::to(w.clear(WRITABLE))
        }
        (Dirty | ReadOnly | Shared, E::WriteBegun) if !is_held && !w.has(CLEAN) => {
            Step::to(w.clear(WRITABLE | WATCHED).set(WRITEBACK))
        }
        (
            _,
            E::Written {
                place: Place::Nothing,
            },
        ) => return Err(Illegal { word: w, event }),
        (Redirtied, E::Written { place }) => Step::to(w.clear(WRITEBACK).with_place(place))
            .counts(&[Count::WriteRedirtied])
            .tells(Lists::Referenced)
            .frees(w),
        (BeingWritten, E::Written { place }) => {
            let clean = w.clear(WRITEBACK).with_place(place).set(CLEAN);
            // What is held stays; what is not goes on to be watched.
            let lists = if is_held {
                Lists::Resident
            } else {
                Lists::Untold
            };
            Step::to(clean).tells(lists).frees(w)
        }
        (ReadOnly | Clean, E::Written { place }) => {
            Step::to(w.with_place(place).set(CLEAN)).frees(w)
        }
        (BeingWritten | Redirtied, E::NotWritten) => {
            Step::to(w.clear(WRITEBACK)).tells(Lists::Resident)
        }
        (BeingWritten, E::FoundZero) if !is_held => Step::to(w.access().with_kind(Kind::None))
            .counts(&[Count::ZeroDrop])
            .frees(w),
        (Clean, E::Watched) if may_leave => Step::to(w.set(WATCHED)),
        (Watched | Shared, E::Unwatched) if w.has(WATCHED) => {
            Step::to(w.clear(WATCHED)).tells(Lists::Resident)
        }
        (Dirty | Clean | ReadOnly | BeingWritten | Redirtied | Shared, E::Unwatched) => Step::to(w),
        (Clean | Watched, E::MovedOut) if may_leave => {
            Step::to(w.clear(CLEAN | WATCHED).with_kind(Kind::Cached))
        }
        (Clean | BeingWritten | Shared, E::PutBack) => {
            let dirty = w.clear(CLEAN | WATCHED | COW | UNCHARGED | WRITEBACK);
            Step::to(dirty.mapped(true, false))
                .counts(&[Count::WriteRedirtied])
                .tells(Lists::Resident)
        }
        (Dirty | Clean | ReadOnly | Watched | Shared, E::Dirtied) => {
            let step = Step::to(w.clear(CLEAN | WATCHED));
            match w.has(WATCHED) {
                true => step.tells(Lists::Resident),
                false => step,
            }
        }
        (Watched, E::FrameTaken) if may_leave => {
            Step::to(w.clear(CLEAN | WATCHED).with_kind(Kind::Swapped)).counts(&[Count::PgReclaim])
        }
        (Cached | ReadAhead, E::FrameTaken) => {
            Step::to(w.clear(READAHEAD).with_kind(Kind::Swapped))
        }
        (Clean | Watched | Shared, E::Dropped) if may_leave && w.has(CLEAN) => {
            let gone = CLEAN | WATCHED | COW | UNCHARGED;
            Step::to(w.clear(gone).with_kind(Kind::Swapped))
        }

        // Base pages.
        (Zero, E::BecameBase) => Step::to(w.with_kind(Kind::Base)),
        (Swapped | Cached, E::BecameBase) => {
            Step::to(w.with_kind(Kind::Base)).counts(&[Count::ThpSplitPmd])
        }
        (Clean | ReadOnly | Watched, E::BecameBase) if may_leave => {
            Step::to(w.clear(CLEAN | WATCHED).with_kind(Kind::Base))
                .counts(&[Count::ThpSplitPmd])
                .tells(Lists::PagesResident)
        }
        (BaseMapped, E::PagesCame { first: true }) => Step::to(w).tells(Lists::PagesResident),
        (BaseMapped, E::PagesCame { first: false }) => Step::to(w),
        (BaseMapped, E::PagesWent) => Step::to(w).counts(&[Count::PgReclaim]),
        (
            BaseMapped,
            E::BecameWhole {
                writable,
                clean,
                khugepaged,
            },
        ) if !clean || w.has(HAS_PLACE) => {
            let counts: &'static [Counter] = match khugepaged {
                true => &[Count::KhugepagedCollapsed],
                false => &[Count::ThpCollapse],
            };
            Step::to(w.with_kind(Kind::Present).mapped(writable, clean))
                .counts(counts)
                .tells(Lists::Resident)
        }
        (BaseMapped, E::LeftBase { zero: true }) => {
            Step::to(w.with_kind(Kind::None).with_place(Place::Nothing)).frees(w)
        }
        (BaseMapped, E::LeftBase { zero: false }) if w.has(HAS_PLACE) => {
            Step::to(w.with_kind(Kind::Swapped))
        }

        // Places.
        (Foreign, E::Placed(Place::Nothing)) => Step::to(w.with_place(Place::Nothing)),
        (Watched | Swapped | Cached | ReadAhead, E::Placed(Place::Nothing)) => {
            return Err(Illegal { word: w, event });
        }
        (Dirty | Clean | ReadOnly | Shared, E::Placed(Place::Nothing)) => {
            Step::to(w.clear(CLEAN).with_place(Place::Nothing))
        }
        (
            Dirty | Clean | ReadOnly | Watched | Shared | Swapped | Cached | ReadAhead | BaseMapped,
            E::Placed(place),
        ) => Step::to(w.with_place(place)),
        (
            Clean | ReadOnly | BeingWritten | Shared | Swapped | Cached | ReadAhead | BaseMapped,
            E::Lost,
        ) => Step::to(w.access().with_kind(Kind::Poisoned)).counts(&[Count::Poisoned]),

        // Forks.
        (Dirty | Clean | ReadOnly | Watched | Shared, E::Forked { read_only }) => {
            let told = match w.has(WATCHED) {
                true => Lists::Resident,
                false => Lists::Untold,
            };
            let w = w.clear(WATCHED);
            let shared = w.clear(WRITABLE).set(COW);
            Step::to(if read_only { shared } else { w }).tells(told)
        }
        (Dirty | Clean | ReadOnly | Watched | Shared, E::Inherited { watched, changed }) => {
            let flags = if watched { WATCHED } else { 0 };
            let gone = if watched || changed { CLEAN } else { 0 };
            let gone = gone | WRITABLE | WATCHED;
            Step::to(w.clear(gone).set(COW | UNCHARGED | flags))
        }
        (Foreign, E::Inherited { .. }) => Step::to(w.set(UNCHARGED)),
        (Cached | ReadAhead, E::Inherited { .. }) => {
            Step::to(w.clear(READAHEAD).with_kind(Kind::Swapped))
        }
        (Free | Zero | Swapped | Poisoned, E::Inherited { .. }) => Step::to(w),

        _ => return Err(Illegal { word: w, event }),
    };
    debug_assert!(
        step.word.is_consistent(),
        "{w:?}, {event:?}: {:?}",
        step.word
    );
    Ok(step)
}

impl Word {
    /// Nothing but what access the program allows itself.
    const fn access(self) -> Word {
        Word(self.0 & (MAY_READ | MAY_WRITE))
    }

    /// Can its content move to another unit?
    fn can_move(self) -> bool {
        use State::*;
        let state = State::of(self);
        self.pins() == 0
            && matches!(
                state,
                Zero | Dirty | Clean | ReadOnly | Watched | Swapped | Cached | ReadAhead
            )
    }

    fn allowing(self, read: bool, write: bool) -> Word {
        let allowed = if read { MAY_READ } else { 0 } | if write { MAY_WRITE } else { 0 };
        self.clear(MAY_READ | MAY_WRITE).set(allowed)
    }

    fn in_file(self, place: FilePlace) -> Word {
        self.with_kind(Kind::Swapped).with_place(Place::File(place))
    }

    /// In memory, with this access. Memory that the program may not write to stays clean, however
    /// it is mapped.
    const fn mapped(self, writable: bool, clean: bool) -> Word {
        if writable && self.has(MAY_WRITE) {
            self.clear(CLEAN).set(WRITABLE)
        } else if clean {
            self.set(CLEAN)
        } else {
            self
        }
    }
}
