//! The reclaim lists by themselves, on traces: no memory, no time, the same at every call.

use super::super::bars::Bars;
use super::super::output::{Table, rounded};
use hugeswap_policy::driver::offline::{self, Hits};
use hugeswap_policy::workingset::lru::Reclaim;
use serde::Serialize;
use std::time::Instant;

/// Hit rates on one trace in so much memory.
#[derive(Debug, Serialize)]
pub struct Compared {
    trace: String,
    /// Units that are touched at all.
    footprint_units: u32,
    memory_units: u32,
    accesses: u64,
    /// The lists, with refault distances looked at and not.
    hugeswap: f64,
    without_detection: f64,
    /// LRU that sees every access.
    lru: f64,
    /// The units that turn out to be accessed most, kept.
    hottest: f64,
    /// Belady's.
    best: f64,
    /// Over LRU's; none where LRU has no hit.
    vs_lru: Option<f64>,
    /// Over the best.
    vs_best: Option<f64>,
}

/// Every trace, in every amount of memory that is worth trying.
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

/// What a fault costs the lists, in nanoseconds: a unit comes, and another is taken, with a shadow; 16 GiB of memory, four times as
/// many units. (It is kswapd's work, not the faulting thread's.)
pub fn ns_a_fault() -> f64 {
    const MEMORY: u32 = 8192;
    const UNITS: u32 = 4 * MEMORY;
    const FAULTS: u32 = 1_000_000;
    let mut lists = offline::lists(UNITS, true);
    let mut out = [0; 8];
    let mut unit = 1;
    let mut fault = || {
        // Numbers that come round only after all of them.
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

/// For people, in percent.
pub fn table(compared: &[Compared]) -> Table {
    let mut t = Table::new(&[
        "trace",
        "memory %",
        "hugeswap",
        "no detection",
        "LRU",
        "hottest",
        "best",
        "over LRU",
        "over best",
    ]);
    for c in compared {
        let percent = |rate: f64| format!("{:.1}", rate * 100.0);
        let ratio = |r: Option<f64>| r.map_or("-".into(), |r| format!("{r:.3}"));
        t.row(vec![
            c.trace.clone(),
            format!("{:.0}", c.share() * 100.0),
            percent(c.hugeswap),
            percent(c.without_detection),
            percent(c.lru),
            percent(c.hottest),
            percent(c.best),
            ratio(c.vs_lru),
            ratio(c.vs_best),
        ]);
    }
    t
}

/// A row for each.
pub fn draw(compared: &[Compared], bars: &mut Bars) {
    bars.panel("traces: hits, %", &["hugeswap", "LRU", "best"], |v| {
        format!("{v:.1}")
    });
    for c in compared {
        let label = format!("{}, {:.0} % in memory", c.trace, c.share() * 100.0);
        let percent = |rate: f64| Some(rate * 100.0);
        bars.row(
            &label,
            &[percent(c.hugeswap), percent(c.lru), percent(c.best)],
        );
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
