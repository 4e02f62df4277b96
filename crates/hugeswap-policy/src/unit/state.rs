//! The states of a unit, decoded from its word.

use super::{CLEAN, COW, Kind, READAHEAD, WATCHED, WRITABLE, WRITEBACK, Word};

macro_rules! states {
    ($($(#[$doc:meta])* $state:ident => $name:literal;)*) => {
        /// What a unit is, in the terms of the state machine ([`step`](super::step)).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum State { $($(#[$doc])* $state,)* }

        impl State {
            /// Every state.
            pub const ALL: &'static [State] = &[$(State::$state,)*];

            /// The name in documents.
            pub const fn name(self) -> &'static str {
                match self { $(State::$state => $name,)* }
            }
        }
    };
}

states! {
    /// It is not managed.
    Free => "free";
    /// It holds zeros, and has neither memory nor a place in swap.
    Zero => "zero";
    /// In memory, mapped writable: what its place holds does not count.
    Dirty => "dirty";
    /// In memory, mapped read-only: its place holds the same bytes.
    Clean => "clean";
    /// In memory, mapped read-only: its place does not hold its bytes.
    ReadOnly => "read-only";
    /// In memory, mapped read-only, and a write-out reads it.
    BeingWritten => "being written";
    /// It was written to while a write-out reads it: what is being stored does not count.
    Redirtied => "redirtied";
    /// In memory and clean, but mapped without access: the next touch tells that it is in use.
    Watched => "watched";
    /// Its frame is shared with a forked relative: it is copied before it is written to.
    Shared => "shared";
    /// In swap only.
    Swapped => "swapped";
    /// In swap, and still in a frame, which was moved to the arena (message mode has this in place
    /// of watched).
    Cached => "cached";
    /// In swap, and in a frame of the arena, to which it was read before it is used.
    ReadAhead => "read ahead";
    /// Mapped by base pages, each of them in memory or not.
    BaseMapped => "base-mapped";
    /// Handed to the kernel for good.
    Foreign => "foreign";
    /// Its bytes are lost.
    Poisoned => "poisoned";
}

impl State {
    /// The state that a word says.
    pub fn of(w: Word) -> State {
        match w.kind() {
            Kind::Free => State::Free,
            Kind::None => State::Zero,
            Kind::Present if w.has(WRITEBACK) && w.has(WRITABLE) => State::Redirtied,
            Kind::Present if w.has(WRITEBACK) => State::BeingWritten,
            Kind::Present if w.has(COW) => State::Shared,
            Kind::Present if w.has(WATCHED) => State::Watched,
            Kind::Present if w.has(WRITABLE) => State::Dirty,
            Kind::Present if w.has(CLEAN) => State::Clean,
            Kind::Present => State::ReadOnly,
            Kind::Swapped => State::Swapped,
            Kind::Cached if w.has(READAHEAD) => State::ReadAhead,
            Kind::Cached => State::Cached,
            Kind::Foreign => State::Foreign,
            Kind::Poisoned => State::Poisoned,
            Kind::Base => State::BaseMapped,
        }
    }
}
