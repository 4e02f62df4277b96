//! The lines of the report about what was compressed, in memory and on devices.

use crate::text;
use hugeswap_engine::pool::Report;
use hugeswap_policy::PAGE_BYTES;
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

/// For people, if whole units were written compressed.
pub fn line_of_units(report: &Report) -> Option<String> {
    let [pages, blocks, read] = [
        Counter::SwapPacked,
        Counter::SwapPackedBlocks,
        Counter::SwapPackedIn,
    ]
    .map(|c| report.get(c));
    (pages > 0).then(|| {
        format!(
            "  packed    {} were written to swap compressed, as {} ({:.1} times less); {} of it came back",
            text::bytes(pages * PAGE_BYTES),
            text::bytes(blocks * PAGE_BYTES),
            pages as f64 / blocks.max(1) as f64,
            text::bytes(read * PAGE_BYTES),
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

    #[test]
    fn it_is_told_how_much_less_was_written() {
        let mut report = report();
        assert_eq!(line_of_units(&report), None);
        report.counters[Counter::SwapPacked as usize] = 3 << 18;
        report.counters[Counter::SwapPackedBlocks as usize] = 1 << 18;
        report.counters[Counter::SwapPackedIn as usize] = 1 << 17;
        assert_eq!(
            line_of_units(&report).as_deref(),
            Some(
                "  packed    3.00 GiB were written to swap compressed, as 1.00 GiB (3.0 times less); \
                 512 MiB of it came back"
            )
        );
    }
}
