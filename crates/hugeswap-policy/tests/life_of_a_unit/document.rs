//! The tables of docs/states.md.

use crate::{events, shared_units, words_of};
use hugeswap_policy::unit::State;
use hugeswap_policy::unit::step::{Lists, step};
use std::collections::{BTreeMap, BTreeSet};

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/states.md");
const BEGIN: &str = "<!-- steps: printed by crates/hugeswap-policy/tests/life_of_a_unit -->\n";
const BEGIN_SHARED: &str =
    "<!-- shared steps: printed by crates/hugeswap-policy/tests/life_of_a_unit -->\n";
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
    check_table(BEGIN_SHARED, &shared_units::table());
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
