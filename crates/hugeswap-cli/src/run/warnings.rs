//! The part of the report about what went wrong.

use crate::explain::Message;
use crate::text;
use hugeswap_engine::pool::{Report, SOFT_FULL_PERCENT};
use hugeswap_policy::counters::Counter;
use std::fmt::Write as _;

/// Places of losses that are named one by one.
const MOST: usize = 8;

/// Lines for people.
pub fn lines(out: &mut String, report: &Report, core_dumped: bool) {
    let mut warn = |what: &str, message: Message| {
        let _ = writeln!(out, "  WARNING   {what} {message}");
    };
    for (counter, what, message) in [
        (
            Counter::SwapWriteError,
            "swap writes failed; those pages stayed in memory",
            Message::SwapErrors,
        ),
        (
            Counter::SwapReadError,
            "swap reads failed, or brought bytes that had changed",
            Message::SwapErrors,
        ),
        (
            Counter::SwapCorrupt,
            "swap reads brought other bytes than were written (checksum mismatch): the device changed them",
            Message::Lost,
        ),
        (
            Counter::Poisoned,
            "pages, or units of 2 MiB, were lost",
            Message::Lost,
        ),
    ] {
        let n = report.get(counter);
        if n > 0 {
            warn(&format!("{} {what}", text::count(n)), message);
        }
    }
    for loss in report.losses.iter().take(MOST) {
        warn(&loss.to_string(), Message::Lost);
    }
    let more = report.losses.len().saturating_sub(MOST);
    if more > 0 {
        warn(
            &format!("and {} more places", text::count(more as u64)),
            Message::Lost,
        );
    }
    if report.get(Counter::SwapSoftFull) > 0 {
        warn(
            &format!(
                "swap was more than {SOFT_FULL_PERCENT}% full: give more --memory or --swap, or free space on its disks"
            ),
            Message::SwapFull,
        );
    }
    if report.exhausted > 0 {
        warn(
            &format!(
                "{} processes ended since memory and swap were full: give more --memory or --swap",
                text::count(report.exhausted)
            ),
            Message::OutOfMemory,
        );
    }
    if core_dumped && report.get(Counter::PswpOut) > 0 {
        warn(
            "the core dump has zeros for memory that was in swap: to see that, stop the program in gdb (hugeswap debug gdb-script)",
            Message::CoreDump,
        );
    }
}
