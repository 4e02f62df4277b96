//! The reclaim lists alone, on traces: without memory and without time, so the result is always the
//! same.

use crate::output::{Bars, Table, cell, percent, rounded};
use hugeswap_policy::driver::offline::{self, Hits};
use hugeswap_policy::workingset::lru::Reclaim;
use serde::Serialize;
use std::time::Instant;

/// Hit rates on one trace in so much memory.
#[derive(Debug, Serialize)]
pub struct Compared {
    trace: String,
    /// Units that are touched.
    footprint_units: u32,
    memory_units: u32,
    accesses: u64,
    /// The lists, with detection of refaults on and off.
    hugeswap: f64,
    without_detection: f64,
    /// LRU that sees every access.
    lru: f64,
    /// The units that are accessed most in the whole trace, kept.
    hottest: f64,
    /// Belady's algorithm.
    best: f64,
    /// hugeswap over LRU; `None` where LRU has no hit.
    vs_lru: Option<f64>,
    /// hugeswap over the best.
    vs_best: Option<f64>,
}

/// Replays every trace, in each amount of memory that it names.
pub fn compare(units: u32) -> Vec<Compared> {
    let mut all = Vec::new();
    for trace in offline::traces(units) {
        let mut touched = trace.accesses.clone();
        touched.sort_unstable();
        touched.dedup();
        for &memory in &trace.capacities {
            let lists = |detection| offline::lists(trace.units, detection);
            let hits = Hits::of(&trace, memory, lists(true));
            let without = offline::replay(&trace, memory, lists(false));
            let rate = |n| rounded(hits.rate(n), 5);
            let over = |n: u64| (n > 0).then(|| rounded(hits.ours as f64 / n as f64, 4));
            all.push(Compared {
                trace: trace.name.clone(),
                footprint_units: touched.len() as u32,
                memory_units: memory,
                accesses: hits.accesses,
                hugeswap: rate(hits.ours),
                without_detection: rate(without),
                lru: rate(hits.lru),
                hottest: rate(hits.hottest),
                best: rate(hits.best),
                vs_lru: over(hits.lru),
                vs_best: over(hits.best),
            });
        }
    }
    all
}

/// The cost of a fault in the lists, in nanoseconds: a unit is inserted, and another is isolated, with a
/// shadow; 16 GiB of memory, four times as many units. (It is work of kswapd, not of the faulting
/// thread.)
pub fn ns_a_fault() -> f64 {
    const MEMORY: u32 = 8192;
    const UNITS: u32 = 4 * MEMORY;
    const FAULTS: u32 = 1_000_000;
    let mut lists = offline::lists(UNITS, true);
    let mut out = [0; 8];
    let mut unit = 1;
    let mut fault = || {
        // Each unit comes again only after all others.
        unit = (unit * 5 + 3) % UNITS;
        lists.insert(unit);
        if lists.len() > MEMORY as usize {
            lists.isolate(out.len(), &mut out);
        }
    };
    (0..2 * UNITS).for_each(|_| fault());
    let start = Instant::now();
    (0..FAULTS).for_each(|_| fault());
    start.elapsed().as_nanos() as f64 / f64::from(FAULTS)
}

impl Compared {
    fn share(&self) -> f64 {
        f64::from(self.memory_units) / f64::from(self.footprint_units.max(1))
    }
}

/// Hit rates in percent.
pub fn table(compared: &[Compared]) -> Table {
    Table::of(
        compared,
        &[
            ("trace", &|c| c.trace.clone()),
            ("memory %", &|c| percent(c.share(), 0)),
            ("hugeswap", &|c| percent(c.hugeswap, 1)),
            ("no detection", &|c| percent(c.without_detection, 1)),
            ("LRU", &|c| percent(c.lru, 1)),
            ("hottest", &|c| percent(c.hottest, 1)),
            ("best", &|c| percent(c.best, 1)),
            ("over LRU", &|c| cell(c.vs_lru, 3)),
            ("over best", &|c| cell(c.vs_best, 3)),
        ],
    )
}

/// A row of bars for each.
pub fn draw(compared: &[Compared], bars: &mut Bars) {
    let series = ["hugeswap", "LRU", "best"];
    bars.panel("traces: hits, %", &series, |v| format!("{v:.1}"));
    for c in compared {
        let label = format!("{}, {:.0} % in memory", c.trace, c.share() * 100.0);
        let percent = |rate: f64| Some(rate * 100.0);
        bars.row(&label, &[c.hugeswap, c.lru, c.best].map(percent));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_for_every_trace_and_memory() {
        let compared = compare(128);
        let rows: usize = offline::traces(128)
            .iter()
            .map(|t| t.capacities.len())
            .sum();
        assert_eq!(compared.len(), rows);
        assert_eq!(table(&compared).text().lines().count(), rows + 1);
        for c in &compared {
            assert!(c.hugeswap <= c.best && c.lru <= c.best, "{c:?}");
            assert!((0.0..=1.0).contains(&c.share()), "{c:?}");
        }
        let mut bars = Bars::default();
        draw(&compared, &mut bars);
        let svg = bars.draw();
        assert_eq!(svg.matches("<rect").count(), 1 + 3 + 3 * rows);
        assert!(!svg.contains("NaN"));
    }
}
