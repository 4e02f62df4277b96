//! Pages between memory and swap: the one place where clusters are read and written.
//!
//! What is read is verified against the sums of its pages. The sums of what is written are noted
//! after the write, so that the content of a cluster counts as nothing while it is unknown. What
//! fails, or is not what was written, is tried again after 1, 4 and 16 ms
//! ([`hugeswap_policy::device::retry`]). An area whose writes fail in a row is avoided for a
//! growing time ([`crate::health`]). Both may be called from the fault path, whose rules hold.
//!
//! What compressed memory keeps goes by [`super::compressed`].
//!
//! In a pool that encrypts, pages go through [`super::sealing`]: its tags verify what is read. Sums
//! are kept all the same, of what is in memory, because they tell whether it has changed.

use super::backing::{Failed, SwapPage, Transfer};
use super::codec::{Block, Room};
use super::growth::is_no_room;
use super::seal::Cipher;
use super::sealing::Sealed;
use super::{PAGE, PAGES, Store, faulty, observe};
use crate::checksum::{self, UnitSums};
use crate::pool::layout::Area;
use crate::pool::losses::{Cause, Loss, LossKey};
use crate::stack;
use hugeswap_policy::UNIT_PAGES;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::device::retry;
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::swapin::granularity::Direction;
use hugeswap_sys::{Errno, Result, fs, now_ns};
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Clusters that a unit is tried to be written to.
const PLACES_TRIED: usize = 5;

/// After attempt number `attempt` at a transfer has failed: is there to be another? If so, after a
/// rest.
#[inline(never)]
pub(crate) fn may_try_again(attempt: u32) -> bool {
    retry::rest_ns(attempt).map(faulty::rest).is_some()
}

impl Store {
    /// Reads pages of a cluster to `to`, which is the caller's, and verifies them. EIO: the device
    /// failed, or gave back something else than was written.
    ///
    /// `doubt`: the caller is a program thread, whose descriptor table is the program's to change.
    /// EBADF: it did.
    pub(crate) fn read(
        &self,
        cluster: u64,
        pages: Range<usize>,
        to: usize,
        doubt: bool,
    ) -> Result<()> {
        self.read_until(cluster, pages, to, doubt, may_try_again)
    }

    /// [`Store::read`], as often as `again` says, which is told which attempt has failed.
    pub(crate) fn read_until(
        &self,
        cluster: u64,
        pages: Range<usize>,
        to: usize,
        doubt: bool,
        again: impl Fn(u32) -> bool,
    ) -> Result<()> {
        let sums = self.pool.cluster_sums().get(cluster as usize);
        let known = sums.and_then(|s| s.get(pages.clone()));
        if !known.is_some_and(checksum::known) {
            // It was lost before.
            return Err(Errno::EIO);
        }
        let operation = self.backing.operation();
        let mut attempt = 0;
        loop {
            let tried = self.read_once(cluster, pages.clone(), to, (operation, attempt));
            let Err(failed) = tried else {
                return Ok(());
            };
            let Failed {
                error, on_purpose, ..
            } = failed;
            if error == Errno::EIO && again(attempt) {
                self.pool.count(Counter::SwapRetry, 1);
                attempt += 1;
                continue;
            }
            let area = self.pool.locate(cluster);
            if error == Errno::EBADF && doubt && area.is_some_and(|(i, _)| self.pool.reach(i)) {
                // An area that was added since this process began, and can be read now.
                continue;
            }
            if !on_purpose && error != Errno::EBADF && self.backing.faulty.keeps_account() {
                self.pool.count(Counter::FaultUnexplained, 1);
                let kept = self.zswap.has(cluster);
                faulty::tell_of_unexplained(&self.pool, cluster, &pages, kept, failed);
            }
            if error != Errno::EBADF {
                self.note_failed_read(cluster, &pages, failed);
            }
            // Whatever the device says, the caller can only go by whether there is any use in
            // asking a thread with other descriptors.
            return Err(match error {
                Errno::EBADF => Errno::EBADF,
                _ => Errno::EIO,
            });
        }
    }

    #[inline(never)]
    fn read_once(
        &self,
        cluster: u64,
        pages: Range<usize>,
        to: usize,
        attempt: (u64, u32),
    ) -> Result<(), Failed> {
        if !self.zswap.has(cluster) {
            return self.read_device(cluster, pages, to, attempt);
        }
        let start = now_ns();
        // What is written back meanwhile is found on the device.
        let (first, mut away, mut compressed) = (pages.start, pages.start, 0);
        for page in pages.clone() {
            let at = to + (page - first) * PAGE;
            if !self.read_compressed(cluster, page, at, first)? {
                continue;
            }
            compressed += 1;
            if away < page {
                let to = to + (away - first) * PAGE;
                self.read_device(cluster, away..page, to, attempt)?;
            }
            away = page + 1;
        }
        if away < pages.end {
            let to = to + (away - first) * PAGE;
            self.read_device(cluster, away..pages.end, to, attempt)?;
        }
        if compressed == pages.len() {
            let took = now_ns().saturating_sub(start);
            observe(self.zswap.cost(), Direction::In, compressed, took);
        }
        self.pool.count(Counter::ZswpIn, compressed as u64);
        Ok(())
    }

    fn read_device(
        &self,
        cluster: u64,
        pages: Range<usize>,
        to: usize,
        (operation, attempt): (u64, u32),
    ) -> Result<(), Failed> {
        let (area, offset) = self.pool.locate(cluster).ok_or(Errno::EIO)?;
        let a = self.pool.area(area).ok_or(Errno::EIO)?;
        // With a sum, or a tag, the content itself tells.
        let summed = self.pool.knob(Knob::Checksum) != 0;
        let strange = || fs::identity(a.fd) != Ok(a.identity);
        if self.pool.is_gone(area) {
            return Err(Failed {
                error: Errno::ENODEV,
                on_purpose: self.backing.faulty.keeps_account(),
                changed: None,
            });
        }
        if !summed && self.sealing.is_none() && strange() {
            return Err(Errno::EBADF.into());
        }
        let in_place = pages.len() == PAGES;
        // With a page in which each block is decoded, and room for what is not read in place.
        let packed = self.find_packed(cluster, &pages)?.map(|packed| {
            let apart = if in_place { 0 } else { packed.blocks.len() };
            (packed, self.buffers.take(&self.pool, (1 + apart) * PAGE))
        });
        // Where what the device has is read to: blocks of 4 KiB.
        let (blocks, memory) = match &packed {
            None => (pages.clone(), to),
            Some((packed, _)) if in_place => {
                let blocks = packed.blocks.clone();
                (blocks.clone(), to + (PAGES - blocks.len()) * PAGE)
            }
            Some((packed, buffer)) => (packed.blocks.clone(), buffer.at + PAGE),
        };
        let len = blocks.len() * PAGE;
        let transfer = Transfer {
            write: false,
            fd: a.fd,
            memory,
            len,
            chunk: len,
            enough: len,
            offset: offset + (blocks.start * PAGE) as u64,
            page: Some(self.swap_page(area, cluster, blocks.start)),
            expected_ns: self.cost.cost(Direction::In, len as u64),
            operation,
            attempt,
        };
        let start = now_ns();
        // SAFETY: the caller's memory.
        let read = unsafe { self.backing.carry_out(&self.pool, &transfer) };
        let took = now_ns().saturating_sub(start);
        let note = |failed| {
            if let Some(shared) = self.pool.header().areas.get(area) {
                shared.note_transfer(false, len, took, failed);
            }
        };
        let moved = read.map_err(|failed| match strange() {
            true => Errno::EBADF.into(),
            false => {
                note(Some(failed.error));
                failed
            }
        })?;
        self.packing.note_device(Direction::In, len as u64, took);
        let sums = self.pool.cluster_sums().get(cluster as usize);
        let want = sums.and_then(|s| s.get(pages.clone()));
        let pages_read = pages.len();
        let opened = match &self.sealing {
            Some(sealing) => self.open_pages(sealing, cluster, blocks, memory),
            None => true,
        };
        let there = opened
            && packed.as_ref().is_none_or(|(packed, buffer)| {
                // SAFETY: the first page of a buffer that is this thread's.
                let block = Block::new(unsafe { &mut *(buffer.at as *mut Room) });
                self.unpack(cluster, pages.clone(), packed, (memory, to), block)
            });
        match packed {
            None => self.observe(Direction::In, pages_read, took),
            Some(_) if self.packing.is_used() => {
                self.observe(Direction::In, pages_read, now_ns().saturating_sub(start));
            }
            // (What single units that are packed take says nothing of the others.)
            Some(_) => {}
        }
        // SAFETY: the caller's, and filled.
        let got = unsafe { std::slice::from_raw_parts(to as *const u8, pages_read * PAGE) };
        let matches = |page: usize, n: usize| {
            let want = want.and_then(|w| w.get(page..page + n));
            let got = got.get(page * PAGE..(page + n) * PAGE);
            want.zip(got)
                .is_some_and(|(w, g)| checksum::matches(&self.key, g, w))
        };
        let right = there && (self.sealing.is_some() || !summed || matches(0, pages_read));
        if right {
            note(None);
            self.pool.note_wait(area, pages_read, took);
            // (Of a packed cluster it may be some other page that was. A seal notices that, too.)
            if moved.spoilt && (packed.is_none() || self.sealing.is_some()) {
                self.pool.count(Counter::FaultUndetected, 1);
            }
            return Ok(());
        }
        if strange() {
            return Err(Errno::EBADF.into());
        }
        note(Some(Errno::EIO));
        self.pool.count(Counter::SwapSumError, 1);
        if moved.spoilt {
            self.pool.count(Counter::FaultDetected, 1);
        }
        Err(Failed {
            error: Errno::EIO,
            on_purpose: moved.spoilt,
            // (Of what is encrypted that is not known.)
            changed: match self.sealing {
                Some(_) => Some(0),
                None if !summed => Some(0),
                None => (0..pages_read).find(|&page| !matches(page, 1)).or(Some(0)),
            },
        })
    }

    /// Pages of a cluster could not be had, again and again: where, and why, is remembered for any
    /// process that is told of it.
    #[cold]
    #[inline(never)]
    fn note_failed_read(&self, cluster: u64, pages: &Range<usize>, failed: Failed) {
        let page = pages.start + failed.changed.unwrap_or(0);
        let Some((area, offset)) = self.pool.locate(cluster) else {
            return;
        };
        let cause = match failed.changed {
            Some(_) => Cause::Changed,
            None => Cause::Unreadable(failed.error.0),
        };
        if failed.changed.is_some() {
            self.pool.count(Counter::SwapCorrupt, 1);
            if self.sealing.is_some() && pages.len() > 1 {
                // Which page it is turns out when they are read one by one.
                return;
            }
        }
        let loss = Loss {
            area,
            offset: offset + (page * PAGE) as u64,
            cause,
        };
        let number = cluster * UNIT_PAGES + page as u64;
        self.pool.note_loss(LossKey::Page(number), loss);
    }

    /// Reads pages of a cluster to `to` and verifies them.
    pub(crate) fn read_pages(
        &self,
        cluster: u64,
        pages: Range<usize>,
        to: usize,
    ) -> Result<(), Errno> {
        let count = pages.len() as u64;
        // Program threads come here.
        self.read(cluster, pages, to, true)?;
        self.pool.count(Counter::PswpIn, count);
        Ok(())
    }

    /// Writes pages to a cluster of this process's own from `from`, where no thread changes them.
    pub(crate) fn write_pages(
        &self,
        cluster: u64,
        pages: Range<usize>,
        from: usize,
    ) -> Result<(), Errno> {
        // Program threads come here too (forks, moves), with little stack perhaps.
        let mut written = Ok(());
        stack::call(|| written = self.sum_and_write(cluster, pages.clone(), from));
        written
    }

    fn sum_and_write(&self, cluster: u64, pages: Range<usize>, from: usize) -> Result<()> {
        // SAFETY: the caller's memory.
        let bytes = unsafe { std::slice::from_raw_parts(from as *const u8, pages.len() * PAGE) };
        let mut sums: UnitSums = [0; PAGES];
        checksum::fill(&self.key, bytes, &mut sums);
        self.write(cluster, pages, from, &sums, true)
    }

    fn swap_page(&self, area: usize, cluster: u64, page: usize) -> SwapPage {
        let shared = self.pool.header().areas.get(area);
        SwapPage {
            area,
            allocated: shared.map_or(0, |a| a.allocated.load(Relaxed)),
            number: cluster * UNIT_PAGES + page as u64,
        }
    }

    /// Writes pages to a cluster of this process's own from `from`, which is readable; `sums` are
    /// theirs. If the program changes them meanwhile, what the cluster holds is of no use, and it
    /// is the caller that knows.
    ///
    /// `doubt`: as for [`Store::read`].
    pub(crate) fn write(
        &self,
        cluster: u64,
        pages: Range<usize>,
        from: usize,
        sums: &[u64],
        doubt: bool,
    ) -> Result<()> {
        let written = match self.zswap.admits(cluster, pages.len() == PAGES) {
            true => self.write_compressed(cluster, pages, from, sums, doubt),
            false => self.write_to_device(cluster, pages, from, Some(sums), doubt),
        };
        self.note_write_error(written)
    }

    /// Counts a write that failed. No room is not an error: others have some, or all are full.
    pub(super) fn note_write_error(&self, written: Result<()>) -> Result<()> {
        if written.is_err_and(|e| !is_no_room(e)) {
            self.pool.count(Counter::SwapWriteError, 1);
        }
        written
    }

    /// Writes all of a unit from `from`: to the cluster `own`, or, where there is none or it does
    /// not take it, to another that `claim` finds outside the areas that have failed (bits). What
    /// does not take it goes to `release`. The cluster written; `None`: none would take it.
    pub(crate) fn write_unit(
        &self,
        own: Option<u64>,
        claim: impl Fn(u32) -> Option<u64>,
        release: impl Fn(u64),
        from: usize,
        sums: &[u64],
    ) -> Option<u64> {
        let (mut next, mut failed) = (own, 0);
        for _ in 0..PLACES_TRIED {
            let Some(cluster) = next.take().or_else(|| claim(failed)) else {
                break;
            };
            let written = self.write(cluster, 0..PAGES, from, sums, false);
            if written.is_ok() {
                self.note_full(false);
                return Some(cluster);
            }
            release(cluster);
            failed |= self.pool.locate(cluster).map_or(0, |(area, _)| 1 << area);
        }
        self.note_full(true);
        None
    }

    /// Writes pages of a cluster of this process's own to the device. `sums`: theirs; `None`: they
    /// have them already, and can be read from compressed memory meanwhile.
    pub(super) fn write_to_device(
        &self,
        cluster: u64,
        pages: Range<usize>,
        from: usize,
        sums: Option<&[u64]>,
        doubt: bool,
    ) -> Result<()> {
        let target = self.prepare_write(cluster, pages.clone(), doubt)?;
        if sums.is_some() {
            self.forget_stored(cluster, pages.clone());
            // SAFETY: the caller's memory, which is readable.
            unsafe { self.zswap.sample(pages.len(), |n| Some(from + n * PAGE)) };
        }
        let pack = match sums.is_some() && pages.len() == PAGES {
            true => self.pack(cluster, from),
            false => None,
        };
        debug_assert_eq!(pack.is_some(), self.pool.is_packed(cluster));
        let (blocks, from) = match &pack {
            Some(pack) => (0..pack.blocks, pack.at()),
            None => (pages.clone(), from),
        };
        let written = self.write_blocks(&target, cluster, blocks, from);
        let took = written.inspect_err(|_| self.pool.set_packed(cluster, false))?;
        if let Some(pack) = &pack {
            self.pool.count(Counter::SwapPacked, PAGES as u64);
            self.pool
                .count(Counter::SwapPackedBlocks, pack.blocks as u64);
        } else if pages.len() == PAGES {
            self.pool.layouts().note_unwritten(cluster as usize, false);
        }
        if pages.len() == PAGES && (pack.is_none() || self.packing.is_used()) {
            let took = took + pack.map_or(0, |pack| pack.took);
            self.observe(Direction::Out, PAGES, took);
        }
        if let Some(sums) = sums {
            checksum::store(target.sums, sums);
            self.pool.count(Counter::PswpOut, pages.len() as u64);
        }
        Ok(())
    }

    /// Writes blocks of 4 KiB of the device, encrypted where the pool encrypts. Nanoseconds that the
    /// device took.
    fn write_blocks(
        &self,
        target: &WriteTarget<'_>,
        cluster: u64,
        blocks: Range<usize>,
        from: usize,
    ) -> Result<u64> {
        let (area, index) = (target.area, target.index);
        let len = blocks.len() * PAGE;
        // Attempts write the same ciphertext.
        let sealed = match &self.sealing {
            Some(sealing) => Some(self.seal_pages(sealing, cluster, blocks.clone(), from)?),
            None => None,
        };
        let mut transfer = Transfer {
            write: true,
            fd: target.fd,
            memory: sealed.as_ref().map_or(from, Sealed::at),
            len,
            chunk: self.pool.pace_of(area).chunk,
            enough: len,
            offset: target.offset,
            page: Some(self.swap_page(index, cluster, blocks.start)),
            expected_ns: 0,
            operation: self.backing.operation(),
            attempt: 0,
        };
        let start = now_ns();
        loop {
            let began = now_ns();
            // SAFETY: as the caller promises.
            let tried = unsafe { self.backing.carry_out(&self.pool, &transfer) };
            let failed = tried.err().map(|failed| failed.error);
            area.note_transfer(true, len, now_ns().saturating_sub(began), failed);
            let Some(error) = failed else { break };
            if is_no_room(error) {
                self.pool.note_room(index, false);
            }
            // Where all writes fail no thread waits, and it is not the cluster's fault.
            let avoided = self.pool.avoids(cluster);
            if error != Errno::EIO || avoided || !may_try_again(transfer.attempt) {
                if error == Errno::EIO && !avoided {
                    self.pool.mark_unwritable(cluster, blocks);
                }
                area.note_write(Some(error));
                return Err(error);
            }
            self.pool.count(Counter::SwapRetry, 1);
            transfer.attempt += 1;
        }
        area.note_write(None);
        let took = now_ns().saturating_sub(start);
        self.packing.note_device(Direction::Out, len as u64, took);
        if let Some(sealed) = sealed {
            self.pool
                .seals_of(cluster, blocks)?
                .iter()
                .zip(sealed.nonces())
                .for_each(|(seal, nonce)| Cipher::done(nonce, seal));
        }
        Ok(took)
    }

    /// Before pages of a cluster are written: where they go. The caller first makes sure that
    /// nothing is known of them until the write is done.
    pub(super) fn prepare_write(
        &self,
        cluster: u64,
        pages: Range<usize>,
        doubt: bool,
    ) -> Result<WriteTarget<'_>> {
        let (index, offset) = self.pool.locate(cluster).ok_or(Errno::EIO)?;
        let area = self.pool.header().areas.get(index).ok_or(Errno::EIO)?;
        let joined = self.pool.area(index).ok_or(Errno::EIO)?;
        if self.pool.is_in_memory(cluster) {
            // There is nothing behind it.
            return Err(Errno::ENOSPC);
        }
        // Never to what is something else, whatever made it so.
        let strange = fs::identity(joined.fd) != Ok(joined.identity);
        if strange && !(doubt && self.pool.reach(index)) {
            return Err(Errno::EBADF);
        }
        self.pool.find_blocks(index, cluster)?;
        let kept = self.pool.cluster_sums().get(cluster as usize);
        let sums = kept.and_then(|s| s.get(pages.clone())).ok_or(Errno::EIO)?;
        if self.pool.is_bad(cluster, pages.clone()) {
            return Err(Errno::EIO);
        }
        Ok(WriteTarget {
            index,
            area,
            fd: joined.fd,
            offset: offset + (pages.start * PAGE) as u64,
            sums,
        })
    }
}

/// Where pages of a cluster are written to.
pub(super) struct WriteTarget<'a> {
    index: usize,
    pub area: &'a Area,
    pub fd: i32,
    pub offset: u64,
    /// Where their sums are kept.
    pub sums: &'a [AtomicU64],
}
