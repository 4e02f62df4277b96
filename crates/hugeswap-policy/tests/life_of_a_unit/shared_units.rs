//! The state machine of shared units.

use hugeswap_policy::shared;
use std::collections::BTreeSet;

/// Every event, with its facts, and its name in the document.
fn events() -> Vec<(shared::step::Event, &'static str)> {
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
fn words() -> impl Iterator<Item = shared::Word> {
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

/// The rows of the document: which states lead to which, by what, and what that counts.
pub fn table() -> String {
    let mut text = String::from("| from | while it is | to | by | counter |\n");
    text += "| --- | --- | --- | --- | --- |\n";
    for (event, name) in events() {
        // What is the same in several states or ops is one row.
        let mut rows: Vec<(Vec<&str>, Vec<&str>, String, String)> = Vec::new();
        for &op in shared::Op::ALL {
            for &kind in shared::Kind::ALL {
                let of = |w: &shared::Word| w.kind() == kind && w.op() == op;
                // With the cluster that the table's events speak of.
                let w = words().filter(of).find(|w| w.cluster().is_some());
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
    for (event, _) in events() {
        let mut happens = false;
        for w in words() {
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
