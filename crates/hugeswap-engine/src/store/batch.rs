//! Several small writes to swap at once, by io_uring.
//!
//! A device serves sixteen writes of 4 KiB in the time of four that wait for each other, and one
//! system call for all of them costs a fourth of the processor's time. One whole unit at a time
//! keeps the device busy, so units are written by plain calls.
//!
//! The ring belongs to kswapd, in its own table of descriptors, where the program cannot reach it;
//! other threads write one page after the other. kswapd does so, too, in these cases: io_uring is
//! refused or turned off; the device is so fast that waiting for each write costs nothing; the pool
//! encrypts; a faulty device is in front. What failed in a batch goes through [`Store::write`],
//! which finds the reasons and tries again.

use super::transfer::WriteTarget;
use super::{PAGE, Store};
use crate::checksum::{self, UnitSums};
use crate::lock::Lock;
use hugeswap_policy::UNIT_PAGES;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::swapin::granularity::Direction;
use hugeswap_sys::fs::Extent;
use hugeswap_sys::uring::Ring;
use hugeswap_sys::{Errno, Result, now_ns, process};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// Writes at a time.
pub(crate) const MOST: usize = 16;
/// The same while readers wait for writers.
const FEW: usize = 4;
/// Where a read of 4 KiB takes less, nanoseconds, a write is not worth a batch: memory.
pub(super) const FAST: u32 = 15_000;

/// Pages of a cluster, and where in memory they are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    pub cluster: u64,
    pub pages: Range<usize>,
    pub memory: usize,
}

impl Run {
    /// No page.
    pub const NONE: Run = Run {
        cluster: 0,
        pages: 0..0,
        memory: 0,
    };
}

/// The ring, and whose it is.
pub(crate) struct Batches(Lock<Option<(i32, Ring)>>);

impl Batches {
    /// None yet.
    pub fn new() -> Batches {
        Batches(Lock::new(None))
    }

    /// The calling thread, whose table of descriptors is out of the program's reach, may batch what
    /// it writes, if it can.
    pub fn open(&self) {
        *self.0.lock() = Ring::new(MOST as u32).ok().map(|r| (process::tid(), r));
    }

    /// For the thread that called [`Batches::open`], before it ends.
    pub fn close(&self) {
        *self.0.lock() = None;
    }

    /// In a forked child, which has neither the descriptor nor the mappings.
    pub fn forget_in_child(&self) {
        std::mem::forget(self.0.lock().take());
    }
}

/// How many writes at a time are worth it on a device whose reads of 4 KiB take `read_ns`, while
/// so many writers are allowed. (Its writes may be fast only because it has a cache for them.)
fn depth_for(read_ns: Option<u32>, writers: u32) -> usize {
    match (read_ns, writers) {
        (Some(ns), _) if ns < FAST => 0,
        (_, 1) => FEW,
        _ => MOST,
    }
}

impl Store {
    /// Writes runs, at most [`MOST`], of different pages, each to a cluster of this process's own
    /// from memory where no thread changes it. Which were written, as bits.
    pub(crate) fn write_runs(&self, runs: &[Run]) -> u32 {
        let mut done = 0;
        let mut rest: [Run; MOST] = Default::default();
        let (mut which, mut n) = ([0; MOST], 0);
        for (k, run) in runs.iter().enumerate().take(MOST) {
            if self.zswap.admits(run.cluster, false) && self.keep_run(run) {
                done |= 1 << k;
            } else if !self.pool.is_in_memory(run.cluster) {
                (rest[n], which[n]) = (run.clone(), k);
                n += 1;
            }
        }
        let rest = &rest[..n];
        let written = self.write_batch(rest);
        for (k, run) in rest.iter().enumerate() {
            if written >> k & 1 == 1 || self.write_run(run).is_ok() {
                done |= 1 << which[k];
            }
        }
        done
    }

    /// Keeps some of a run in compressed memory, and writes the rest. False: it is to be written
    /// whole.
    fn keep_run(&self, run: &Run) -> bool {
        let mut sums: UnitSums = [0; UNIT_PAGES as usize];
        let sums = self.fill_sums(run, &mut sums);
        let pages = run.pages.clone();
        let kept = self.keep_compressed(run.cluster, pages.clone(), run.memory, sums);
        kept.is_ok_and(|kept| {
            kept.any()
                && self
                    .write_not_kept((run.cluster, pages), run.memory, sums, &kept, true)
                    .is_ok()
        })
    }

    fn write_run(&self, run: &Run) -> Result<()> {
        let mut sums: UnitSums = [0; UNIT_PAGES as usize];
        let sums = self.fill_sums(run, &mut sums);
        let written =
            self.write_to_device(run.cluster, run.pages.clone(), run.memory, Some(sums), true);
        self.note_write_error(written)
    }

    fn fill_sums<'a>(&self, run: &Run, sums: &'a mut [u64]) -> &'a [u64] {
        // SAFETY: the memory of `write_runs`'s caller.
        let bytes =
            unsafe { std::slice::from_raw_parts(run.memory as *const u8, run.pages.len() * PAGE) };
        let sums = &mut sums[..run.pages.len()];
        checksum::fill(&self.key, bytes, sums);
        sums
    }

    /// As many of them as can be, at once.
    fn write_batch(&self, runs: &[Run]) -> u32 {
        let plain = self.sealing.is_none() && self.backing.is_plain(&self.pool);
        if runs.len() < 2 || !plain || self.pool.knob(Knob::IoUring) == 0 {
            return 0;
        }
        let Some(mut batches) = self.batches.0.try_lock() else {
            return 0;
        };
        let Some((owner, ring)) = batches.as_mut() else {
            return 0;
        };
        if *owner != process::tid() {
            return 0;
        }
        let mut done = 0;
        let mut next = 0;
        while next < runs.len().min(MOST) {
            let end = (next + self.depth(&runs[next])).min(runs.len()).min(MOST);
            if end - next < 2 {
                break;
            }
            done |= self.write_together(ring, &runs[next..end]) << next;
            next = end;
        }
        done
    }

    /// How many writes there are to be at a time, where this one goes.
    fn depth(&self, run: &Run) -> usize {
        let area = self.pool.locate(run.cluster).map(|(area, _)| area);
        let Some(area) = area.and_then(|a| self.pool.header().areas.get(a)) else {
            return 0;
        };
        let read_ns = area.costs.load().map(|m| m.r#in.page);
        depth_for(read_ns, self.pool.pace_of(area).writers)
    }

    fn write_together(&self, ring: &mut Ring, runs: &[Run]) -> u32 {
        let mut targets: [Option<WriteTarget<'_>>; MOST] = [const { None }; MOST];
        let mut writes = [Extent::NONE; MOST];
        let mut which = [0; MOST];
        let mut n = 0;
        // Those of what is written, and not of what is there afterwards: a sum that is that of memory
        // says that swap has the same.
        let mut sums: UnitSums = [0; UNIT_PAGES as usize];
        let mut summed = 0;
        let mut of_run = [const { 0..0 }; MOST];
        for (k, run) in runs.iter().enumerate() {
            let all = summed + run.pages.len();
            let Some(rest) = sums.get_mut(summed..all) else {
                continue;
            };
            let Ok(target) = self.prepare_write(run.cluster, run.pages.clone(), false) else {
                continue;
            };
            self.forget_stored(run.cluster, run.pages.clone());
            // SAFETY: the caller's memory, which is readable.
            unsafe {
                let at = |n| Some(run.memory + n * PAGE);
                self.zswap.sample(run.pages.len(), at);
            }
            writes[n] = Extent {
                fd: target.fd,
                memory: run.memory,
                len: run.pages.len() * PAGE,
                offset: target.offset,
            };
            (targets[n], which[n]) = (Some(target), k);
            self.fill_sums(run, rest);
            of_run[n] = summed..all;
            summed = all;
            n += 1;
        }
        let mut results = [Err(Errno::EAGAIN); MOST];
        let start = now_ns();
        let going_on = &self.pool.record().transferring;
        going_on.fetch_add(1, Relaxed);
        // SAFETY: the memory of `write_runs`'s caller, which is there until that returns.
        unsafe { ring.write(&writes[..n], &mut results[..n]) };
        going_on.fetch_sub(1, Relaxed);
        let took = now_ns().saturating_sub(start);
        let (mut done, mut pages) = (0, 0);
        for (k, target) in targets[..n].iter().flatten().enumerate() {
            let run = &runs[which[k]];
            if results[k] != Ok(writes[k].len) {
                continue;
            }
            target.area.note_transfer(true, writes[k].len, took, None);
            target.area.note_write(None);
            checksum::store(target.sums, &sums[of_run[k].clone()]);
            self.pool.count(Counter::PswpOut, run.pages.len() as u64);
            self.pool.count(Counter::SwapBatched, 1);
            pages += run.pages.len() as u64;
            done |= 1 << which[k];
        }
        if let Some(ns) = took.checked_div(pages) {
            // Pages are written so where they are, and hardly ever by themselves.
            self.observe(Direction::Out, 1, ns);
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_reads_take_says_whether_a_batch_is_worth_it() {
        let free = u32::MAX;
        assert_eq!(depth_for(Some(2_000), free), 0);
        assert_eq!(depth_for(Some(60_000), free), MOST);
        assert_eq!(depth_for(None, free), MOST);
        assert_eq!(depth_for(Some(60_000), 1), FEW);
        assert_eq!(depth_for(Some(2_000), 1), 0);
    }
}
