//! Pages on their way through compressed memory ([`super::zswap`]): what it keeps is summed and
//! verified as what goes to a device is, and what it does not keep goes there.

use super::backing::Failed;
use super::{PAGE, Store};
use crate::bits::Bits;
use crate::checksum;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::unit::Place;
use hugeswap_policy::zswap::entry::CLEAN;
use hugeswap_sys::{Errno, Result};
use std::ops::Range;

impl Store {
    /// Reads a page from compressed memory, if it is there. `first`: the first page of the read
    /// that it is a part of.
    pub(super) fn read_compressed(
        &self,
        cluster: u64,
        page: usize,
        to: usize,
        first: usize,
    ) -> Result<bool, Failed> {
        if !self.zswap.load(cluster, page, to) {
            return Ok(false);
        }
        let sums = self.pool.cluster_sums().get(cluster as usize);
        let want = sums.and_then(|s| s.get(page..page + 1));
        // SAFETY: just filled, and the caller's.
        let got = unsafe { std::slice::from_raw_parts(to as *const u8, PAGE) };
        if want.is_some_and(|w| checksum::matches(&self.key, got, w)) {
            return Ok(true);
        }
        self.pool.count(Counter::SwapSumError, 1);
        Err(Failed {
            error: Errno::EIO,
            on_purpose: false,
            changed: Some(page - first),
        })
    }

    /// [`Store::write`] to compressed memory, and what is not kept there to the device.
    pub(super) fn write_compressed(
        &self,
        cluster: u64,
        pages: Range<usize>,
        from: usize,
        sums: &[u64],
        doubt: bool,
    ) -> Result<()> {
        let kept = self.keep_compressed(cluster, pages.clone(), from, sums)?;
        self.write_not_kept((cluster, pages), from, sums, &kept, doubt)
    }

    /// Writes what of pages at `from` is not in compressed memory to the device.
    pub(super) fn write_not_kept(
        &self,
        (cluster, pages): (u64, Range<usize>),
        from: usize,
        sums: &[u64],
        kept: &Bits,
        doubt: bool,
    ) -> Result<()> {
        let mut page = pages.start;
        while let Some(run) = kept.run(page, pages.end, false) {
            page = run.end;
            let skipped = run.start - pages.start;
            let sums = sums.get(skipped..run.end - pages.start);
            let from = from + skipped * PAGE;
            self.write_to_device(cluster, run, from, sums, doubt)?;
        }
        Ok(())
    }

    /// Keeps pages of a cluster of this process's own, of which nothing is known from then on but
    /// what is kept, in compressed memory. Which are.
    pub(super) fn keep_compressed(
        &self,
        cluster: u64,
        pages: Range<usize>,
        from: usize,
        sums: &[u64],
    ) -> Result<Bits> {
        let known = self.pool.cluster_sums().get(cluster as usize);
        let known = known.and_then(|s| s.get(pages.clone())).ok_or(Errno::EIO)?;
        let only_here = self.pool.is_in_memory(cluster);
        let promise = only_here.then(|| self.zswap.promise_room(pages.len()));
        if matches!(promise, Some(None)) {
            self.zswap.wake();
            self.pool.note_no_memory(cluster);
            self.note_full(true);
            return Err(Errno::ENOSPC);
        }
        self.forget_stored(cluster, pages.clone());
        let kept = Bits::none();
        if self.pool.is_bad(cluster, pages.clone()) {
            return Ok(kept);
        }
        let how = (0, only_here);
        self.zswap.store(cluster, pages.clone(), from, how, |page| {
            let k = page - pages.start;
            if let (Some(known), Some(sums)) = (known.get(k..k + 1), sums.get(k..k + 1)) {
                checksum::store(known, sums);
                kept.put(page..page + 1, true);
            }
        });
        self.pool.count(Counter::PswpOut, kept.count());
        Ok(kept)
    }

    /// Keeps a page of a locked unit, at `from`, in compressed memory, if its slot is this process's
    /// and holds it.
    pub(crate) fn keep_clean(&self, unit: u32, place: Place, page: usize, from: usize) {
        let Some(slot) = self.slot_of(unit, place, page) else {
            return;
        };
        let slots = slot.at..slot.at + 1;
        let sums = self.pool.cluster_sums().get(slot.cluster as usize);
        let known = sums.and_then(|s| s.get(slots.clone()));
        if known.is_some_and(checksum::known)
            && self.zswap.admits(slot.cluster, false)
            && !self.pool.is_in_memory(slot.cluster)
            && !self.zswap.holds(slot.cluster, slot.at)
        {
            self.zswap
                .store(slot.cluster, slots, from, (CLEAN, false), |_| ());
        }
    }
}
