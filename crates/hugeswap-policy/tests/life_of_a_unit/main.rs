//! The state machines of private and of shared units: from consistent words they lead to consistent
//! words, and the tables of docs/states.md are printed from them.

mod document;
mod shared_units;

use hugeswap_policy::unit::step::{Effects, Event, Lists, step};
use hugeswap_policy::unit::{
    CLEAN, COW, FilePlace, Kind, LOCKED, MAY_READ, MAY_WRITE, Place, READAHEAD, State, UNCHARGED,
    WAITERS, WATCHED, WRITABLE, WRITEBACK, Word,
};
use proptest::prelude::*;
use std::collections::BTreeSet;

const FILE: FilePlace = FilePlace {
    mapping: 1,
    unit: 2,
};

/// Every event, with its facts, and its name in the document. Events of one name share rows.
fn events() -> Vec<(Event, &'static str)> {
    use Event::*;
    const MAPPED: &str = "the program maps memory, or a file";
    const TOUCH: &str = "a touch (soft): a read";
    const WRITE: &str = "a write (soft)";
    const PROTECT: &str = "the program allows itself other access";
    const ARRIVES: &str = "a fault: its frame is moved into place";
    const COPIED: &str = "a write: copied, as a relative shares it";
    const UNSHARED: &str = "a write, and no relative shares it any more";
    const WRITTEN: &str =
        "the write is done, or is needless because the place holds the same bytes";
    const FORK: &str = "fork, in the parent";
    const CHILD: &str = "fork, in the child";
    const LEAVES_BASE: &str = "the program moves it or takes all access to it, or mappings are short: its pages were written and dropped";
    const WHOLE: &str = "a fault that is to bring in the whole, a pin, `willneed`";
    const KHUGEPAGED: &str = "khugepaged";
    const EJECTED: &str = "the program asks for what only the kernel can do; or base pages cannot be had, and it has markers";
    const MOVED: &str = "the content of another unit moves here";
    const FIRST: &str = "first touch; in sequence several units at once, where they stand, while the budget is not used up";
    const COMES: &str = "a fault brings in a page, or 64 KiB";
    const PLACED: &str = "its bytes in swap are placed elsewhere";
    const ADOPTED: &str = "what the kernel has there is managed from now on";
    const UNPLACED: &str = "its place in swap is given up: memory holds it";
    let mut events = vec![
        (Mapped, MAPPED),
        (
            MappedFile {
                place: FILE,
                may_write: true,
            },
            MAPPED,
        ),
        (
            MappedFile {
                place: FILE,
                may_write: false,
            },
            MAPPED,
        ),
        (
            Claimed,
            "the kernel is to map something there, at the program's wish",
        ),
        (Adopted { holds: true }, ADOPTED),
        (Adopted { holds: false }, ADOPTED),
        (FirstTouched { writable: true }, FIRST),
        (
            FirstTouched { writable: false },
            "first read, with a recycled frame (signal mode)",
        ),
        (
            Filled,
            "readahead, `willneed`; a frame that could not be mapped",
        ),
        (Arrived { writable: false }, ARRIVES),
        (Arrived { writable: true }, ARRIVES),
        (Touched { write: false }, TOUCH),
        (Touched { write: true }, WRITE),
        (WriteBegun, "kswapd, a run of neighbours by one call"),
        (
            Written {
                place: Place::Cluster(9),
            },
            WRITTEN,
        ),
        (NotWritten, "the write failed (tried again later)"),
        (FoundZero, "all bytes are zero: no place, no I/O"),
        (Watched, "kswapd, in signal mode: nothing to write"),
        (MovedOut, "kswapd, in message mode: nothing to write"),
        (FrameTaken, "its frame is taken, oldest first"),
        (
            Dropped,
            "dropped where it stands: its frame is shared, or mappings are short",
        ),
        (Dirtied, "what its place holds is bad, or may be"),
        (
            PutBack,
            "it changed while it was moved out, and is put back",
        ),
        (
            MadeReadOnly,
            "an epoch of write tracking begins; a write-out that could not begin",
        ),
        (
            Unwatched,
            "access is given back, or perhaps so, without a touch",
        ),
        (
            BecameBase,
            "a part is to come in, or go; a first touch of what may not be huge, or has no frame; a write where pages are told apart",
        ),
        (PagesCame { first: true }, COMES),
        (PagesCame { first: false }, COMES),
        (PagesWent, "kswapd: dirty pages written, pages dropped"),
        (LeftBase { zero: false }, LEAVES_BASE),
        (LeftBase { zero: true }, LEAVES_BASE),
    ];
    for (writable, clean) in [(true, true), (true, false), (false, true), (false, false)] {
        events.push((
            BecameWhole {
                writable,
                clean,
                khugepaged: false,
            },
            WHOLE,
        ));
        events.push((
            BecameWhole {
                writable,
                clean,
                khugepaged: true,
            },
            KHUGEPAGED,
        ));
    }
    events.extend([
        (Forked { read_only: true }, FORK),
        (Forked { read_only: false }, FORK),
        (
            Inherited {
                watched: false,
                changed: false,
            },
            CHILD,
        ),
        (
            Inherited {
                watched: false,
                changed: true,
            },
            CHILD,
        ),
        (
            Inherited {
                watched: true,
                changed: false,
            },
            CHILD,
        ),
        (Copied { writable: true }, COPIED),
        (Copied { writable: false }, COPIED),
        (Unshared { writable: true }, UNSHARED),
        (Unshared { writable: false }, UNSHARED),
        (Placed(Place::Cluster(11)), PLACED),
        (Placed(Place::Singles), PLACED),
        (Placed(Place::Nothing), UNPLACED),
        (
            Lost,
            "it cannot be read, again and again, and not by pages either; or be mapped again",
        ),
        (Ejected { keeps_place: false }, EJECTED),
        (Ejected { keeps_place: true }, EJECTED),
        (MovedAway, "its content moves to another unit"),
        (
            Protected {
                may_read: true,
                may_write: true,
            },
            PROTECT,
        ),
        (
            Protected {
                may_read: true,
                may_write: false,
            },
            PROTECT,
        ),
        (
            Protected {
                may_read: false,
                may_write: false,
            },
            PROTECT,
        ),
        (Discarded { file: None }, "discarded"),
        (
            Discarded { file: Some(FILE) },
            "discarded, a part of a file",
        ),
        (
            Emptied,
            "discarded or unmapped, and the kernel does not take the memory back",
        ),
        (Unmapped, "unmapped"),
    ]);
    let managed = Word::none();
    let stored = managed.with_place(Place::Cluster(7));
    for from in [
        managed,
        managed.with_kind(Kind::Present).set(WRITABLE),
        stored.with_kind(Kind::Present).set(CLEAN | WATCHED),
        stored.with_kind(Kind::Swapped),
        stored.with_kind(Kind::Cached),
        stored.with_kind(Kind::Cached).set(READAHEAD),
    ] {
        for read_only in [true, false] {
            events.push((MovedHere { from, read_only }, MOVED));
        }
    }
    events
}

/// Every consistent word without lock bits, of a few places and pins.
fn words() -> impl Iterator<Item = Word> {
    let flags = [
        WRITABLE, WATCHED, WRITEBACK, CLEAN, COW, MAY_READ, MAY_WRITE, READAHEAD, UNCHARGED,
    ];
    let kinds = [
        Kind::Free,
        Kind::None,
        Kind::Present,
        Kind::Swapped,
        Kind::Cached,
        Kind::Foreign,
        Kind::Poisoned,
        Kind::Base,
    ];
    let places = [
        Place::Nothing,
        Place::Cluster(5),
        Place::Singles,
        Place::File(FILE),
    ];
    let flagged = (0..1u64 << flags.len()).map(move |set| {
        let set = (0..flags.len()).filter(|i| set >> i & 1 == 1);
        set.fold(Word::FREE, |w, i| w.set(flags[i]))
    });
    let of_kinds = flagged.flat_map(move |w| kinds.map(|k| w.with_kind(k)));
    let placed = of_kinds.flat_map(move |w| places.map(|p| w.with_place(p)));
    let held = placed.flat_map(|w| [Some(w), w.pinned()].into_iter().flatten());
    held.filter(|w| w.is_consistent())
}

/// The words of one state that the table is made from: what the program may do anything with.
fn words_of(state: State) -> impl Iterator<Item = Word> {
    words().filter(move |w| {
        let managed = !matches!(state, State::Free | State::Foreign);
        State::of(*w) == state && (!managed || w.allows(true) && w.allows(false))
    })
}

#[test]
fn consistent_words_lead_to_consistent_words() {
    let events = events();
    let (mut taken, mut illegal) = (0, 0);
    for w in words() {
        for &(event, _) in &events {
            let Ok(next) = step(w, event) else {
                illegal += 1;
                continue;
            };
            taken += 1;
            let (new, was) = (next.word, format!("{w:?}, {event:?}: {next:?}"));
            assert!(new.is_consistent(), "{was}");
            assert!(!new.has(LOCKED | WAITERS), "{was}");
            // Nothing is given up that the unit still has, or did not have.
            let frees = next.effects.frees;
            assert!(
                frees == Place::Nothing || frees == w.place() && frees != new.place(),
                "{was}"
            );
            // A unit that is held stays in memory, unless the program itself gives it up.
            let given_up = matches!(
                event,
                Event::Unmapped | Event::Discarded { .. } | Event::Ejected { .. } | Event::Lost
            );
            assert!(w.pins() == new.pins() || given_up, "{was}");
        }
    }
    assert!(taken > 0 && illegal > 0);
}

#[test]
fn every_event_can_happen_and_every_state_be_reached() {
    let mut reached = BTreeSet::from([State::Free]);
    for (event, _) in events() {
        let legal: Vec<_> = words().filter_map(|w| step(w, event).ok()).collect();
        assert!(!legal.is_empty(), "{event:?} can never happen");
        reached.extend(legal.iter().map(|s| State::of(s.word)));
    }
    assert_eq!(reached.len(), State::ALL.len(), "{reached:?}");
}

proptest! {
    /// From a unit that nobody manages, whatever happens; of what cannot happen nothing comes.
    #[test]
    fn a_life_is_consistent(lived in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 0..200)) {
        let events = events();
        let mut w = Word::FREE;
        for (which, pins) in lived {
            let pinned = if pins { w.pinned() } else { w.unpinned() };
            let held = w.kind() == Kind::Present && !w.has(WATCHED);
            w = pinned.filter(|_| held).unwrap_or(w);
            let (event, _) = events[which.index(events.len())];
            match step(w, event) {
                Ok(next) => w = next.word,
                Err(illegal) => prop_assert_eq!((illegal.word, illegal.event), (w, event)),
            }
            prop_assert!(w.is_consistent(), "{:?} after {:?}", w, event);
            prop_assert_eq!(w.is_watched(), matches!(State::of(w), State::Watched | State::Cached)
                || State::of(w) == State::Shared && w.has(WATCHED));
        }
    }

    /// Any consistent word, any event.
    #[test]
    fn a_step_is_consistent(
        which in any::<prop::sample::Index>(), happens in any::<prop::sample::Index>(),
        cluster in 0u64..1 << 39, pins in 0u64..50
    ) {
        let words: Vec<Word> = words().collect();
        let mut w = words[which.index(words.len())];
        if w.cluster().is_some() {
            w = w.with_place(Place::Cluster(cluster));
        }
        for _ in 0..pins * u64::from(w.pins() > 0) {
            w = w.pinned().unwrap();
        }
        prop_assert!(w.is_consistent());
        let events = events();
        if let Ok(next) = step(w, events[happens.index(events.len())].0) {
            prop_assert!(next.word.is_consistent(), "{:?}: {:?}", w, next);
        }
    }
}

#[test]
fn the_lists_are_told_of_what_comes_to_memory_only() {
    let in_memory = |w: Word| matches!(w.kind(), Kind::Present | Kind::Cached | Kind::Base);
    for w in words() {
        for (event, _) in events() {
            let Ok(next) = step(w, event) else { continue };
            let Effects { lists, .. } = next.effects;
            assert!(
                lists == Lists::Untold || in_memory(next.word),
                "{w:?}, {event:?}: {next:?}"
            );
            assert_eq!(
                lists == Lists::PagesResident,
                matches!(event, Event::PagesCame { first: true })
                    || event == Event::BecameBase && w.kind() == Kind::Present
            );
        }
    }
}
