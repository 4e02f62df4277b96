//! Changed pages from here and there of a unit, written side by side to new slots: one write where
//! each page in its own place would take one. As a log-structured file system does (Rosenblum and
//! Ousterhout, 1991).
//!
//! A disk carries out so many small transfers in a second, reads and writes together, so that each
//! write that is saved makes room for a read. The unit is scattered from then on
//! ([`scatter`](super::scatter)), and its pages come back one by one, or together at the price of
//! many reads ([`apart`](super::apart)). So it is done only where they come one by one anyway: what
//! has changed is many short runs; and not while several threads wait before whole units were tried
//! to no avail. And where half of swap is free: slots that are given up become free clusters only
//! later (`swap::compact`). What came whole and goes unchanged is written to one place again.

use super::{BUFFER, PAGE, PAGES, Store};
use crate::bits::Bits;
use crate::checksum::{self, UnitSums};
use hugeswap_policy::counters::Counter;
use hugeswap_policy::extents::layout::Layout;
use hugeswap_policy::knobs::{Knob, gather};
use hugeswap_sys::mm::Span;
use hugeswap_sys::{Result, fs, now_ns};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// So many runs of changed pages, at least,
const RUNS: u64 = 16;
/// of fewer pages than so many each.
const LENGTH: u64 = 2;
/// Slots side by side that are worth a write.
const WORTH: usize = 8;
/// Pages that one call writes, at most: what one request to a device takes.
pub(crate) const AT_ONCE: usize = 256;
/// Every so many looks it is seen how much of swap is free.
const LOOKS: u64 = 5;

/// Where this process gathers.
#[derive(Default)]
pub(super) struct Gather {
    /// The cluster that is being filled, and 1; 0: none.
    cluster: AtomicU64,
    /// The setting, and how many threads wait, say that it is to be done.
    wanted: AtomicBool,
    /// Half of swap is free.
    room: AtomicBool,
    /// Looks so far.
    looks: AtomicU64,
}

impl Gather {
    /// In a forked child, which owns nothing yet.
    pub fn begin(&self) {
        self.cluster.store(0, Relaxed);
    }
}

impl Store {
    /// Are these changed pages of a unit, which is this process's, to be written to new slots?
    pub(crate) fn gathers(&self, dirty: &Bits) -> bool {
        let runs = dirty.runs();
        runs >= RUNS && runs * LENGTH > dirty.count() && self.is_to_gather() && !self.is_fast()
    }

    /// Is there a wish to gather, and room?
    pub(crate) fn is_to_gather(&self) -> bool {
        self.gather.wanted.load(Relaxed) && self.has_room_to_move()
    }

    /// Is there room for units to move about in swap?
    pub(crate) fn has_room_to_move(&self) -> bool {
        self.gather.room.load(Relaxed)
    }

    /// A few times a second: is there a wish to gather, and room? `by_pages`: pages come one by one,
    /// and whole units are not about to be tried.
    pub(crate) fn look_at_gather(&self, by_pages: bool) {
        let g = &self.gather;
        let wanted = match self.pool.knob(Knob::SwapGather) {
            gather::NEVER => false,
            gather::ALWAYS => true,
            _ => by_pages,
        };
        // Writes that are saved are saved to a device; and what comes back to a scattered unit
        // keeps its compressed block.
        let wanted = wanted && !self.pool.is_without_device();
        g.wanted.store(wanted, Relaxed);
        let used = wanted || self.scatter.was_used() || self.wants_packs();
        if used && g.looks.fetch_add(1, Relaxed).is_multiple_of(LOOKS) {
            g.room.store(self.half_is_free(), Relaxed);
        }
    }

    fn half_is_free(&self) -> bool {
        let words = self.pool.cluster_words();
        let of_areas = self.pool.areas().flat_map(|(_, area)| {
            let range = area.range();
            let words = words.get(range.start as usize..range.end as usize);
            words.unwrap_or_default()
        });
        let (all, free) = of_areas.fold((0u64, 0), |(all, free), w| {
            (all + 1, free + u64::from(w.load(Relaxed) == 0))
        });
        free * 2 > all
    }

    /// Claims up to `want` single slots side by side, in a cluster that is filled with such pages if
    /// there is one, or can be.
    pub(crate) fn claim_gathered(&self, want: usize) -> Option<(u64, Range<usize>)> {
        if let Some(cluster) = self.gather.cluster.load(Relaxed).checked_sub(1)
            && self.takes_singles(cluster)
            && let Some(run) = self.claim_from(cluster, want)
        {
            if run.len() >= want.min(WORTH) {
                return Some((cluster, run));
            }
            self.release_singles(cluster, run);
        }
        if let Some(cluster) = self.open_cluster(want, Layout::Contiguous) {
            if self.pool.has_blocks(cluster) {
                self.gather.cluster.store(cluster + 1, Relaxed);
                return Some((cluster, 0..want));
            }
            self.release_singles(cluster, 0..want);
        }
        self.claim_singles(want)
    }

    /// Writes pages that lie apart in memory, where no thread changes them, to as many slots side by
    /// side, which are this process's. `buffer`: [`BUFFER`] bytes of the caller's.
    pub(crate) fn write_side_by_side(
        &self,
        cluster: u64,
        slots: Range<usize>,
        memory: &[usize],
        buffer: usize,
    ) -> Result<()> {
        let mut done = 0;
        while done < memory.len() {
            let rest = &memory[done..];
            let n = self.write_spans(cluster, slots.start + done, rest);
            if n > 0 {
                done += n;
                continue;
            }
            let n = rest.len().min(BUFFER / PAGE);
            for (k, &from) in rest[..n].iter().enumerate() {
                let to = (buffer + k * PAGE) as *mut u8;
                // SAFETY: the caller's page, which is readable, and the caller's buffer.
                unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to, PAGE) };
            }
            let at = slots.start + done;
            self.write_pages(cluster, at..at + n, buffer)?;
            done += n;
        }
        Ok(())
    }

    /// Writes the first of such pages by one call. How many; 0: they are to be copied, and written
    /// by [`Store::write_pages`], since there is something between memory and the device, or since
    /// the call failed.
    fn write_spans(&self, cluster: u64, at: usize, memory: &[usize]) -> usize {
        let plain = self.sealing.is_none() && self.backing.is_plain(&self.pool);
        if memory.len() < 2 || !plain || self.zswap.admits(cluster, false) {
            return 0;
        }
        let area = self.pool.locate(cluster);
        let Some(area) = area.and_then(|(i, _)| self.pool.header().areas.get(i)) else {
            return 0;
        };
        let most = self.pool.pace_of(area).chunk / PAGE;
        let n = memory.len().min(AT_ONCE).min(most);
        let Ok(target) = self.prepare_write(cluster, at..at + n, true) else {
            return 0;
        };
        self.forget_stored(cluster, at..at + n);
        // SAFETY: the caller's memory, which is readable.
        unsafe { self.zswap.sample(n, |k| memory.get(k).copied()) };
        let mut spans = [Span::NONE; AT_ONCE];
        let mut sums: UnitSums = [0; PAGES];
        for ((&at, span), sum) in memory.iter().zip(&mut spans).zip(&mut sums).take(n) {
            *span = Span { at, len: PAGE };
            // SAFETY: the caller's memory, which is readable.
            let bytes = unsafe { std::slice::from_raw_parts(at as *const u8, PAGE) };
            checksum::fill(&self.key, bytes, std::slice::from_mut(sum));
        }
        let going_on = &self.pool.record().transferring;
        going_on.fetch_add(1, Relaxed);
        let start = now_ns();
        // SAFETY: the caller's memory, which is there until this returns.
        let written = unsafe { fs::write_spans_at(target.fd, &spans[..n], target.offset) };
        let took = now_ns().saturating_sub(start);
        going_on.fetch_sub(1, Relaxed);
        // What is short is written again.
        if written != Ok(n * PAGE) {
            return 0;
        }
        target.area.note_transfer(true, n * PAGE, took, None);
        target.area.note_write(None);
        checksum::store(target.sums, &sums[..n]);
        self.pool.count(Counter::PswpOut, n as u64);
        n
    }
}
