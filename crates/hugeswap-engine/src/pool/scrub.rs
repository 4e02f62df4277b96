//! Scrubs of a pool: requested by any process, done by each process ([`crate::swap::scrub`]), and
//! what they found.

use super::Pool;
use super::layout::Scrub;
use hugeswap_sys::futex;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// The result of a scrub of a pool, over its processes, in base pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScrubReport {
    /// Pages that were read and are what was written.
    pub good: u64,
    /// Pages that are not, again and again.
    pub bad: u64,
    /// Of those, pages that are still in memory, and will be written elsewhere.
    pub recovered: u64,
    /// Of those, pages that are lost: touching one is SIGBUS.
    pub lost: u64,
}

impl Pool {
    /// Asks every process of the pool to scrub what it has in swap; its number, for
    /// [`Pool::scrubbed`].
    pub fn request_scrub(&self) -> u32 {
        let number = self.header().scrubs.fetch_add(1, AcqRel).wrapping_add(1);
        for (_, r) in self.live() {
            r.kick.fetch_add(1, Release);
            futex::wake(&r.kick, 1, true);
        }
        number
    }

    /// What a scrub found, once all processes that were there when it was asked for are done, or
    /// gone. Asked for once more meanwhile, it is the later one that they do.
    pub fn scrubbed(&self, number: u32) -> Option<ScrubReport> {
        let mut report = ScrubReport::default();
        for (_, r) in self.live() {
            let s = &r.scrub;
            if s.done.load(Acquire).wrapping_sub(number).cast_signed() < 0 {
                return None;
            }
            report.good += s.good.load(Relaxed);
            report.bad += s.bad.load(Relaxed);
            report.recovered += s.recovered.load(Relaxed);
            report.lost += s.lost.load(Relaxed);
        }
        Some(report)
    }
}

impl Scrub {
    /// Begins anew; `done`: the last one that is of no concern.
    pub(crate) fn begin(&self, done: u32) {
        for cell in [&self.good, &self.bad, &self.recovered, &self.lost] {
            cell.store(0, Relaxed);
        }
        self.done.store(done, Release);
    }
}
