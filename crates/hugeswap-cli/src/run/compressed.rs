//! The lines of the report about what was compressed, in memory and on devices.

use crate::text;
use hugeswap_engine::pool::Report;
use hugeswap_policy::PAGE_BYTES;
use hugeswap_policy::counters::Counter;

/// For people, if it was used.
pub fn line(report: &Report) -> Option<String> {
    let [kept, bytes, by_zstd, written, from, came] = [
        Counter::ZswpOut,
        Counter::ZswpBytes,
        Counter::ZswpZstd,
        Counter::ZswpWb,
        Counter::ZswpIn,
        Counter::PswpIn,
    ]
    .map(|c| report.get(c));
    let percent = |part: u64, all: u64| 100.0 * part as f64 / all.max(1) as f64;
    (kept > 0).then(|| {
        format!(
            "  compressed {} were kept in memory as {} ({:.1} times less, {:.0}% of it by Zstandard), {} of them written \
             to swap later; {:.1}% of the pages that came in were among them",
            text::bytes(kept * PAGE_BYTES),
            text::bytes(bytes),
            (kept * PAGE_BYTES) as f64 / bytes.max(1) as f64,
            percent(by_zstd, kept),
            text::bytes(written * PAGE_BYTES),
            percent(from, came),
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
        report.counters[Counter::ZswpOut as usize] = 3 << 18;
        report.counters[Counter::ZswpBytes as usize] = 1 << 30;
        report.counters[Counter::ZswpZstd as usize] = 1 << 18;
        report.counters[Counter::ZswpWb as usize] = 1 << 17;
        report.counters[Counter::ZswpIn as usize] = 256;
        report.counters[Counter::PswpIn as usize] = 1024;
        assert_eq!(
            line(&report).as_deref(),
            Some(
                "  compressed 3.00 GiB were kept in memory as 1.00 GiB (3.0 times less, 33% of it by Zstandard), \
                 512 MiB of them written to swap later; 25.0% of the pages that came in were among them"
            )
        );
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
