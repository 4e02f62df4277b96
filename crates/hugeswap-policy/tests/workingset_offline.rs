//! The lists that the engine uses against plain LRU and against the optimum, on traces. Everything
//! here is deterministic.
//!
//! `hugeswap bench workingset --parts traces` prints the whole table.

use hugeswap_policy::driver::offline::{Hits, Trace, lists, traces};

const UNITS: u32 = 1024;

/// Every trace in every capacity, with what the lists came to.
fn compared() -> Vec<(Trace, Hits)> {
    let mut all = Vec::new();
    for trace in traces(UNITS) {
        for &capacity in &trace.capacities {
            let lists = lists(trace.units, true);
            all.push((trace.clone(), Hits::of(&trace, capacity, lists)));
        }
    }
    all
}

#[test]
fn the_lists_against_lru_and_the_optimum() {
    // Where a scan goes by, or a loop is larger than memory, LRU keeps what is not used again: the
    // shares of the footprint in memory for which that is certain.
    let above = [
        ("loop", 0.0..1.0),
        ("hot + scan", 0.4..0.6),
        ("hot + long stream", 0.0..1.0),
        ("late hot + long", 0.0..1.0),
        ("4 zipf : 1 scan", 0.4..1.0),
        ("4 scan : 1 zipf", 0.0..0.4),
    ];
    for (trace, hits) in compared() {
        let share = f64::from(hits.capacity) / f64::from(trace.units);
        let (ours, lru, best) = (
            hits.rate(hits.ours),
            hits.rate(hits.lru),
            hits.rate(hits.best),
        );
        println!(
            "{:<20} {share:.2} ours {ours:.4} LRU {lru:.4} hottest {:.4} best {best:.4}",
            trace.name,
            hits.rate(hits.hottest)
        );
        assert!(hits.ours <= hits.best);
        let asserted = above
            .iter()
            .any(|(name, shares)| *name == trace.name && shares.contains(&share));
        if asserted {
            assert!(ours > lru, "{} in {share:.2}: {hits:?}", trace.name);
        }
        // Zipf by itself: no scan to resist, and LRU sees more than the lists do.
        if trace.name.starts_with("zipf") || trace.name == "uniform" {
            assert!(ours >= 0.97 * lru, "{} in {share:.2}: {hits:?}", trace.name);
        }
    }
}

#[test]
fn a_hot_half_of_memory_survives_a_stream() {
    let all = compared();
    for name in [
        "hot + stream",
        "hot + long stream",
        "late hot + stream",
        "late hot + long",
    ] {
        let found = all.iter().find(|(t, _)| t.name == name);
        let (_, hits) = found.expect("it is among the traces");
        assert!(10 * hits.ours >= 8 * hits.best, "{name}: {hits:?}");
    }
}

#[test]
fn detection_finds_the_working_set_that_protection_keeps_out() {
    let all = traces(UNITS);
    let trace = all.last().expect("there are traces");
    assert_eq!(trace.name, "cold, hot-1, hot-2");
    let capacity = trace.capacities[0];
    let hits = |detection| {
        let lists = lists(trace.units, detection);
        Hits::of(trace, capacity, lists).ours as f64
    };
    assert!(hits(true) >= 1.15 * hits(false));
}

#[test]
fn the_same_trace_is_decided_alike() {
    assert!(compared().iter().zip(&compared()).all(|(a, b)| a.1 == b.1));
}
