//! The line of the report about compressed memory.

use crate::text;
use hugeswap_engine::pool::Report;
use hugeswap_policy::counters::Counter;

/// For people, if it was used.
pub fn line(report: &Report) -> Option<String> {
    let [kept, written, from, came] = [
        Counter::ZswpOut,
        Counter::ZswpWb,
        Counter::ZswpIn,
        Counter::PswpIn,
    ]
    .map(|c| report.get(c));
    (kept > 0).then(|| {
        format!(
            "  compressed {} pages were kept in memory, {} of them written to swap later; {:.1}% of the pages that came \
             in were among them",
            text::count(kept),
            text::count(written),
            100.0 * from as f64 / came.max(1) as f64,
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::report::tests::report;

    #[test]
    fn it_is_there_if_compressed_memory_was_used() {
        let mut report = report();
        assert_eq!(line(&report), None);
        report.counters[Counter::ZswpOut as usize] = 2000;
        report.counters[Counter::ZswpWb as usize] = 100;
        report.counters[Counter::ZswpIn as usize] = 256;
        let line = line(&report).unwrap();
        assert!(
            line.contains("2,000 pages") && line.contains("100 of them"),
            "{line}"
        );
        assert!(line.contains("25.0%"), "{line}");
    }
}
