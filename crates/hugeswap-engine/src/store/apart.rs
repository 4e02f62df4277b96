//! Pages of a scattered unit, which lie apart in swap, read several at one time.
//!
//! A device serves many reads of 4 KiB at one time in far less time than one after the other; what a
//! page costs so is measured as it is done. What could not be read so goes through [`Store::read`],
//! which finds the reasons and tries again. In a pool that encrypts, with a faulty device in front,
//! without sums (they tell that it was our file that was read) and on a device as fast as memory,
//! all of it does, and what is packed. The rules of the fault path hold.

use super::batch::{FAST, Run};
use super::holes::Wanted;
use super::scatter::Places;
use super::{PAGE, PAGES, Store};
use crate::checksum;
use hugeswap_policy::UNIT_PAGES;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::swapin::granularity::{Costs, Direction, follow};
use hugeswap_policy::unit::Place;
use hugeswap_sys::aio::MOST;
use hugeswap_sys::fs::Extent;
use hugeswap_sys::{Errno, Result, now_ns};
use std::ops::Range;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// Where a unit is in so many places it is read and priced as what lies apart.
const FAR_APART: u64 = 32;

/// What a page costs where many are read at one time.
pub(super) struct Apart {
    page_ns: AtomicU32,
}

impl Apart {
    /// `page_ns`: what a read of one page takes.
    pub fn new(page_ns: u32) -> Apart {
        Apart {
            page_ns: AtomicU32::new(page_ns / 2),
        }
    }
}

impl Store {
    /// Reads pages of a scattered unit to `to`. What has no slot is zero, or, without `zeros`, EIO.
    pub(super) fn read_apart(
        &self,
        places: &Places,
        pages: Range<usize>,
        to: usize,
        zeros: bool,
    ) -> Result<()> {
        let mut runs = [const { Run::NONE }; MOST];
        let mut n = 0;
        let mut page = pages.start;
        while page < pages.end {
            let memory = to + (page - pages.start) * PAGE;
            let Some((cluster, slots)) = places.run(page..pages.end) else {
                if !zeros {
                    return Err(Errno::EIO);
                }
                // SAFETY: the memory is the caller's.
                unsafe { std::ptr::write_bytes(memory as *mut u8, 0, PAGE) };
                page += 1;
                continue;
            };
            page += slots.len();
            runs[n] = Run {
                cluster,
                pages: slots,
                memory,
            };
            n += 1;
            if n == MOST {
                self.read_runs(&runs)?;
                n = 0;
            }
        }
        self.read_runs(&runs[..n])
    }

    fn read_runs(&self, runs: &[Run]) -> Result<()> {
        let done = self.read_together(runs, None);
        let rest = (0..runs.len()).filter(|k| done >> k & 1 == 0);
        for run in rest.filter_map(|k| runs.get(k)) {
            self.read_pages(run.cluster, run.pages.clone(), run.memory)?;
        }
        Ok(())
    }

    /// Reads `runs`, at most [`MOST`]. Which of them could be, as bits.
    pub(super) fn read_some(&self, runs: &[Run]) -> u32 {
        let mut done = self.read_together(runs, None);
        for (k, run) in runs.iter().enumerate() {
            let read = |run: &Run| self.read_pages(run.cluster, run.pages.clone(), run.memory);
            if done >> k & 1 == 0 && read(run).is_ok() {
                done |= 1 << k;
            }
        }
        done
    }

    /// Reads as many of `runs`, at most [`MOST`], as can be, at one time. Which were read and are
    /// what was written, as bits. `wanted`: only these pages of them count, and one run is enough.
    pub(super) fn read_together(&self, runs: &[Run], wanted: Option<&Wanted<'_>>) -> u32 {
        const { assert!(MOST <= u32::BITS as usize) };
        let plain = self.sealing.is_none() && self.backing.is_plain(&self.pool);
        let summed = self.pool.knob(Knob::Checksum) != 0;
        let least = if wanted.is_some() { 1 } else { 2 };
        if runs.len() < least || !plain || !summed || self.is_fast() {
            return 0;
        }
        let mut extents = [Extent::NONE; MOST];
        let (mut which, mut areas) = ([0; MOST], [0; MOST]);
        let mut n = 0;
        for (k, run) in runs.iter().enumerate() {
            let Some((area, offset)) = self.pool.locate(run.cluster) else {
                continue;
            };
            let Some(joined) = self.pool.area(area) else {
                continue;
            };
            let elsewhere = self.zswap.has(run.cluster) || self.pool.is_packed(run.cluster);
            if elsewhere || self.pool.is_gone(area) || !self.is_summed(run, wanted) {
                continue;
            }
            extents[n] = Extent {
                fd: joined.fd,
                memory: run.memory,
                len: run.pages.len() * PAGE,
                offset: offset + (run.pages.start * PAGE) as u64,
            };
            (which[n], areas[n]) = (k, area);
            n += 1;
        }
        if n < least {
            return 0;
        }
        let mut results = [Err(Errno::EAGAIN); MOST];
        let going_on = &self.pool.record().transferring;
        going_on.fetch_add(1, Relaxed);
        let start = now_ns();
        let pollers = &self.backing.pollers;
        // SAFETY: the memory of `read_apart`'s caller.
        unsafe { pollers.read_together(&extents[..n], &mut results[..n]) };
        let took = now_ns().saturating_sub(start);
        going_on.fetch_sub(1, Relaxed);
        let (mut done, mut pages) = (0u32, 0);
        for k in 0..n {
            let run = &runs[which[k]];
            if results[k] != Ok(extents[k].len) || !self.is_as_written(run, wanted) {
                continue;
            }
            if let Some(area) = self.pool.header().areas.get(areas[k]) {
                area.note_transfer(false, extents[k].len, took, None);
            }
            // (Each waited for the others: that says nothing of writers.)
            self.pool.note_wait(areas[k], PAGES, took);
            pages += wanted.map_or(run.pages.len() as u64, |w| w.count(run));
            done |= 1 << which[k];
        }
        if wanted.is_none() && n == MOST && done.count_ones() as usize == MOST {
            let mean = &self.apart.page_ns;
            mean.store(follow(mean.load(Relaxed), took / pages.max(1)), Relaxed);
        }
        self.pool.count(Counter::PswpIn, pages);
        self.pool
            .count(Counter::SwapReadTogether, done.count_ones().into());
        done
    }

    fn is_summed(&self, run: &Run, wanted: Option<&Wanted<'_>>) -> bool {
        let Some(sums) = self.pool.cluster_sums().get(run.cluster as usize) else {
            return false;
        };
        let known = |at: Range<usize>| {
            let sums = sums.get(run.pages.start + at.start..run.pages.start + at.end);
            sums.is_some_and(checksum::known)
        };
        match wanted {
            Some(wanted) => wanted.all_parts(run, known),
            None => known(0..run.pages.len()),
        }
    }

    fn is_as_written(&self, run: &Run, wanted: Option<&Wanted<'_>>) -> bool {
        let Some(sums) = self.pool.cluster_sums().get(run.cluster as usize) else {
            return false;
        };
        let matches = |at: Range<usize>| {
            let sums = sums.get(run.pages.start + at.start..run.pages.start + at.end);
            let (memory, len) = (run.memory + at.start * PAGE, at.len() * PAGE);
            // SAFETY: just filled, and the caller's.
            let got = unsafe { std::slice::from_raw_parts(memory as *const u8, len) };
            sums.is_some_and(|sums| checksum::matches(&self.key, got, sums))
        };
        match wanted {
            Some(wanted) => wanted.all_parts(run, matches),
            None => matches(0..run.pages.len()),
        }
    }

    /// Is the device as fast as memory?
    pub(super) fn is_fast(&self) -> bool {
        self.cost.per_size(Direction::In).page < FAST
    }

    /// Does it take many reads to read all of a locked unit whose place this is?
    pub(crate) fn is_far_apart(&self, unit: u32, place: Place) -> bool {
        self.reads_of(unit, place) >= FAR_APART
    }

    /// How many places a locked unit is in; if it is many, by the share of its pages in which the
    /// first of them were found.
    fn reads_of(&self, unit: u32, place: Place) -> u64 {
        if place != Place::Singles {
            return 1;
        }
        let Some(places) = self.scatter.of(unit) else {
            return 1;
        };
        let (mut page, mut reads) = (0, 0);
        while page < PAGES && reads < FAR_APART {
            page += places.run(page..PAGES).map_or(1, |(_, run)| {
                reads += 1;
                run.len()
            });
        }
        match reads {
            FAR_APART => FAR_APART * UNIT_PAGES / page as u64,
            _ => reads,
        }
    }

    /// What it costs to bring more than a page of a locked unit whose place this is, where that
    /// lies apart.
    pub(crate) fn price_apart(&self, unit: u32, place: Place, costs: Costs) -> Costs {
        let reads = self.reads_of(unit, place);
        if reads < FAR_APART || self.is_fast() {
            return costs;
        }
        // (A piece is in a 32nd of them.)
        let more = |reads: u64| costs.page + reads * u64::from(self.apart.page_ns.load(Relaxed));
        let whole = costs.whole.max(more(reads));
        Costs {
            piece: costs.piece.max(more(reads / 32)),
            whole,
            fill: costs.fill.max(whole),
            ..costs
        }
    }
}
