//! The state machines of private and of shared units: from consistent words they lead to consistent
//! words, and the tables of docs/states.md are printed from them.

use hugeswap_policy::shared;
use hugeswap_policy::unit::step::{Effects, Event, Lists, step};
use hugeswap_policy::unit::{
    CLEAN, COW, FilePlace, Kind, LOCKED, MAY_READ, MAY_WRITE, Place, READAHEAD, State, UNCHARGED,
    WAITERS, WATCHED, WRITABLE, WRITEBACK, Word,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

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
    const LEAVES_BASE: &str = "the program moves or protects it, or mappings are short: its pages were written and dropped";
    const WHOLE: &str = "a fault that is to bring in the whole, a pin, `willneed`";
    const KHUGEPAGED: &str = "khugepaged";
    const EJECTED: &str = "the program asks for what only the kernel can do; or base pages cannot be had, and it has markers";
    const MOVED: &str = "the content of another unit moves here";
    const FIRST: &str = "first touch; in sequence several units at once, where they stand, while the budget is not used up";
    const COMES: &str = "a fault brings in a page, or 64 KiB";
    const PLACED: &str = "its bytes in swap are placed elsewhere";
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

// The table of the document.

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/states.md");
const BEGIN: &str = "<!-- steps: printed by crates/hugeswap-policy/tests/life_of_a_unit.rs -->\n";
const BEGIN_SHARED: &str =
    "<!-- shared steps: printed by crates/hugeswap-policy/tests/life_of_a_unit.rs -->\n";
const END: &str = "<!-- end of steps -->\n";
const WRITE: &str = "HUGESWAP_WRITE_TABLES";

fn names(states: &BTreeSet<State>) -> String {
    let rest: BTreeSet<_> = State::ALL.iter().filter(|s| !states.contains(s)).collect();
    let list = |of: Vec<&str>| of.join(", ");
    match rest.len() {
        0 => "any".into(),
        1..=5 => format!(
            "any but {}",
            list(rest.into_iter().map(|s| s.name()).collect())
        ),
        _ => list(states.iter().map(|s| s.name()).collect()),
    }
}

/// What leads where: from which state, and with which counters.
type Rows = BTreeMap<(State, String), BTreeSet<State>>;

/// The rows: which states lead to which, by what, and what that counts.
fn table() -> String {
    // Names in the order of the list above; of each, what leads where with which counters.
    let mut by_name: Vec<(&str, Rows)> = Vec::new();
    for (event, name) in events() {
        let rows = match by_name.iter_mut().find(|(n, _)| *n == name) {
            Some((_, rows)) => rows,
            None => {
                by_name.push((name, BTreeMap::new()));
                &mut by_name.last_mut().expect("just pushed").1
            }
        };
        for &from in State::ALL {
            for w in words_of(from) {
                let Ok(next) = step(w, event) else { continue };
                let counts: Vec<_> = next.effects.counts.iter().map(|c| c.name()).collect();
                let told = next.effects.lists != Lists::Untold;
                let to = State::of(next.word);
                if to == from && counts.is_empty() && !told && next.word.place() == w.place() {
                    continue;
                }
                rows.entry((from, counts.join("`, `")))
                    .or_default()
                    .insert(to);
            }
        }
    }
    let mut text = String::from("| from | to | by | counter |\n| --- | --- | --- | --- |\n");
    for (name, rows) in by_name {
        // What leads to the same and counts the same is one row.
        let mut merged: Vec<(BTreeSet<State>, BTreeSet<State>, String)> = Vec::new();
        for ((from, counts), to) in rows {
            let stays = to == BTreeSet::from([from]);
            let same = |row: &&mut (BTreeSet<State>, BTreeSet<State>, String)| {
                row.2 == counts && (row.1 == to || stays && row.1.is_empty())
            };
            match merged.iter_mut().find(same) {
                Some((states, ..)) => {
                    states.insert(from);
                }
                None => {
                    let to = if stays { BTreeSet::new() } else { to };
                    merged.push((BTreeSet::from([from]), to, counts));
                }
            }
        }
        for (from, to, counts) in merged {
            let to = if to.is_empty() {
                "the same".into()
            } else {
                names(&to)
            };
            let counts = if counts.is_empty() {
                String::new()
            } else {
                format!("`{counts}` ")
            };
            text += &format!("| {} | {to} | {name} | {counts}|\n", names(&from));
        }
    }
    text
}

/// Replaces the table after `begin` in the document, or compares it.
fn check_table(begin: &str, table: &str) {
    let document = std::fs::read_to_string(DOCUMENT).expect("docs/states.md");
    let begin = document
        .find(begin)
        .map(|at| at + begin.len())
        .expect("the table's beginning is marked");
    let length = document[begin..].find(END);
    let end = begin + length.expect("the table's end is marked");
    if std::env::var_os(WRITE).is_some() {
        let new = [&document[..begin], table, &document[end..]].concat();
        std::fs::write(DOCUMENT, new).expect("docs/states.md can be written");
    } else {
        assert!(
            &document[begin..end] == table,
            "a table of steps in docs/states.md is not what the code does: run \
             `{WRITE}=1 cargo test -p hugeswap-policy --test life_of_a_unit` and look at what changed"
        );
    }
}

#[test]
fn the_document_has_the_tables() {
    check_table(BEGIN, &table());
    check_table(BEGIN_SHARED, &shared_table());
}

/// The table of states in the document has exactly these states, in this order.
#[test]
fn the_document_has_the_states() {
    let document = std::fs::read_to_string(DOCUMENT).expect("docs/states.md");
    let rows = document
        .lines()
        .skip_while(|l| !l.starts_with("| state | kind and flags |"));
    let rows = rows.skip(2).take_while(|l| l.starts_with('|'));
    let found: Vec<_> = rows
        .map(|l| l.split('|').nth(1).unwrap_or("").trim())
        .collect();
    let states: Vec<_> = State::ALL.iter().map(|s| s.name()).collect();
    assert_eq!(found, states);
}

// Shared units.

/// Every event, with its facts, and its name in the document.
fn shared_events() -> Vec<(shared::step::Event, &'static str)> {
    use shared::step::Event::*;
    const TOUCH: &str = "a process touches it, and has the access that it needs";
    vec![
        (
            Arrived { ahead: false },
            "a fault fills the absent pages; or its swap area is taken off",
        ),
        (Arrived { ahead: true }, "readahead, `willneed`"),
        (Touched { displaced: false }, TOUCH),
        (
            Touched { displaced: true },
            "the same, of a process that displaced a write-out",
        ),
        (
            Kept,
            "the kernel, or a mapping that no userfaultfd watches, may use it from now on",
        ),
        (Spared, "reclaim passes over a unit that was used"),
        (FoundZero, "a write-out finds zeros: no cluster, no I/O"),
        (
            Unplaced,
            "its cluster is to be written over, or its area is taken off",
        ),
        (Stored { cluster: 9 }, "the write is done"),
        (
            Stored { cluster: 7 },
            "the write is needless because the cluster holds the same bytes",
        ),
        (Dropped, "its memory was dropped"),
        (NotDropped, "the kernel does not drop its memory"),
        (Discarded, "discarded, and its memory was dropped"),
        (
            Lost,
            "it cannot be read, and what was there of it is dropped",
        ),
        (Ended, "the last process that had its region has gone"),
    ]
}

/// Words of every kind and op, with a cluster and without.
fn shared_words() -> impl Iterator<Item = shared::Word> {
    use hugeswap_policy::unit::lock::StateWord;
    let owner = shared::Owner {
        record: 3,
        generation: 9,
    };
    let kinds = shared::Kind::ALL.iter();
    let of_kinds = kinds.map(|&kind| shared::Word::NONE.with_kind(kind));
    let placed = of_kinds.flat_map(|w| [None, Some(7)].map(|c| w.with_cluster(c)));
    let used = placed.flat_map(|w| [w, w.referenced(true)]);
    let locked = used.flat_map(move |w| {
        shared::Op::ALL.iter().map(move |&op| match op {
            shared::Op::None => w,
            _ => w.locked(shared::Holder { op, owner }),
        })
    });
    locked.filter(|w| w.check().is_ok())
}

fn shared_table() -> String {
    let mut text = String::from("| from | while it is | to | by | counter |\n");
    text += "| --- | --- | --- | --- | --- |\n";
    for (event, name) in shared_events() {
        // What is the same in several states or ops is one row.
        let mut rows: Vec<(Vec<&str>, Vec<&str>, String, String)> = Vec::new();
        for &op in shared::Op::ALL {
            for &kind in shared::Kind::ALL {
                let of = |w: &shared::Word| w.kind() == kind && w.op() == op;
                // With the cluster that the table's events speak of.
                let w = shared_words().filter(of).find(|w| w.cluster().is_some());
                let Some(next) = w.and_then(|w| shared::step::step(w, event).ok()) else {
                    continue;
                };
                let mut to = match next.word.kind() {
                    same if same == kind => "the same".into(),
                    other => String::from(other.name()),
                };
                if next.word.op() != op && next.word.is_locked() {
                    to += &format!(", {}", next.word.op().name());
                }
                let freed = next.effects.frees.is_some() && event != shared::step::Event::Ended;
                if freed {
                    to += ", without its cluster";
                }
                let counts = next
                    .effects
                    .counts
                    .iter()
                    .map(|c| format!("`{}`", c.name()));
                let counts = counts.collect::<Vec<_>>().join(", ");
                let (op, kind) = (op.name(), kind.name());
                match rows.iter_mut().find(|r| r.2 == to && r.3 == counts) {
                    Some((kinds, ops, ..)) => {
                        kinds.extend((!kinds.contains(&kind)).then_some(kind));
                        ops.extend((!ops.contains(&op)).then_some(op));
                    }
                    None => rows.push((vec![kind], vec![op], to, counts)),
                }
            }
        }
        for (kinds, ops, to, counts) in rows {
            let list = |names: Vec<&str>, all| match names.len() {
                n if n == all => String::from("any"),
                _ => names.join(", "),
            };
            let kinds = list(kinds, shared::Kind::COUNT);
            let ops = list(ops, shared::Op::COUNT);
            let counts = if counts.is_empty() {
                counts
            } else {
                counts + " "
            };
            text += &format!("| {kinds} | {ops} | {to} | {name} | {counts}|\n");
        }
    }
    text
}

#[test]
fn words_of_shared_units_lead_to_words_that_can_be() {
    let mut reached = BTreeSet::from([shared::Kind::None as usize]);
    for (event, _) in shared_events() {
        let mut happens = false;
        for w in shared_words() {
            let Ok(next) = shared::step::step(w, event) else {
                continue;
            };
            happens = true;
            let (new, was) = (next.word, format!("{w:?}, {event:?}: {next:?}"));
            assert_eq!(new.check(), Ok(()), "{was}");
            reached.insert(new.kind() as usize);
            // The lock is no business of a step, apart from the op of a unit that leaves.
            let may_not_be_displaced = w.op() == shared::Op::Out && new.op() == shared::Op::Punch;
            let ended = event == shared::step::Event::Ended;
            assert!(new.op() == w.op() || may_not_be_displaced || ended, "{was}");
            assert!(new.owner() == w.owner() || ended, "{was}");
            // While a unit is locked, only what its op is about happens to it.
            assert!(
                w.op() != shared::Op::Out || new.is_locked() || ended,
                "{was}"
            );
            // Nothing is given up that the unit still has, or did not have.
            let frees = next.effects.frees;
            assert!(
                frees.is_none() || frees == w.cluster() && new.cluster().is_none(),
                "{was}"
            );
            // A unit that stays for good stays.
            assert!(
                w.kind() != shared::Kind::Kept || new.is_in_memory() || ended,
                "{was}"
            );
        }
        assert!(happens, "{event:?} can never happen");
    }
    assert_eq!(reached.len(), shared::Kind::COUNT);
}
