//! What an engine has whose pool encrypts, and pages on their way through it.
//!
//! Pages are read to where they are wanted and decrypted there; no thread sees them before. The
//! program's own memory cannot be encrypted where it is, so pages on their way out are copied to a
//! buffer and encrypted there. That one copy is what is encrypted and what the tag is of, whatever
//! the program does to its memory meanwhile. The sums that go with it were made of an earlier look
//! at the same memory, so tag and sums disagree exactly if the program changed it in between. In
//! that case its write fault has set WRITABLE, and the thread that writes out forgets sums and
//! seals of what was written. Where memory cannot change (base pages are write-protected, copies
//! are ours) they agree.

use super::buffers::{Buffer, Buffers};
use super::seal::{Cipher, Nonces, Seal};
use super::{PAGE, PAGES, Store};
use crate::checksum;
use crate::error::EngineError;
use crate::pool::Pool;
use hugeswap_sys::Errno;
use std::ops::Range;

/// The cipher of an engine whose pool encrypts, with its numbers and buffers.
pub(crate) struct Sealing {
    cipher: Cipher,
    nonces: Nonces,
    pub buffers: Buffers,
}

impl Sealing {
    /// `None`: the pool does not encrypt.
    pub fn new(pool: &mut Pool) -> Result<Option<Sealing>, EngineError> {
        let Some(cipher) = pool.take_cipher()? else {
            return Ok(None);
        };
        let sys = |e| EngineError::System("no memory for encryption", e);
        Ok(Some(Sealing {
            cipher,
            nonces: Nonces::new().map_err(sys)?,
            buffers: Buffers::new().map_err(sys)?,
        }))
    }

    /// In a forked child. (Its numbers are wiped by the kernel.)
    pub fn reset_in_child(&self) {
        self.cipher.lock_in_child();
        self.buffers.reset_in_child();
    }
}

/// Pages that are encrypted, on their way to swap.
pub(super) struct Sealed<'a> {
    buffer: Buffer<'a>,
    first: u64,
    count: u64,
}

impl Sealed<'_> {
    /// Where they are.
    pub fn at(&self) -> usize {
        self.buffer.at
    }

    /// The numbers they were encrypted under.
    pub fn nonces(&self) -> Range<u64> {
        self.first..self.first + self.count
    }
}

impl Pool {
    pub(super) fn seals_of(&self, cluster: u64, pages: Range<usize>) -> Result<&[Seal], Errno> {
        let seals = self.seals().get(cluster as usize);
        seals.and_then(|s| s.get(pages)).ok_or(Errno::EIO)
    }
}

impl Store {
    /// Decrypts pages of a cluster that were read to `at`. False: some are not what was written
    /// there.
    pub(super) fn open_pages(
        &self,
        sealing: &Sealing,
        cluster: u64,
        pages: Range<usize>,
        at: usize,
    ) -> bool {
        let Some((area, offset)) = self.pool.locate(cluster) else {
            return false;
        };
        let Ok(seals) = self.pool.seals_of(cluster, pages.clone()) else {
            return false;
        };
        seals
            .iter()
            .zip(pages)
            .enumerate()
            .all(|(k, (seal, page))| {
                // SAFETY: the caller's memory, as many pages as were read.
                let bytes =
                    unsafe { std::slice::from_raw_parts_mut((at + k * PAGE) as *mut u8, PAGE) };
                let place = (area, offset + (page * PAGE) as u64);
                sealing.cipher.open(place, bytes, seal)
            })
    }

    /// Encrypts pages at `from` that are to be written to a cluster; at most a unit's. Their tags
    /// are noted, but they can only be read back once their numbers are, after the write.
    #[inline(never)]
    pub(super) fn seal_pages<'a>(
        &self,
        sealing: &'a Sealing,
        cluster: u64,
        pages: Range<usize>,
        from: usize,
    ) -> Result<Sealed<'a>, Errno> {
        let (area, offset) = self.pool.locate(cluster).ok_or(Errno::EIO)?;
        let seals = self.pool.seals_of(cluster, pages.clone())?;
        if pages.len() > PAGES {
            return Err(Errno::EINVAL);
        }
        let writers = &self.pool.header().writers;
        // None left: the pages stay where they are, as if the device took none.
        let first = sealing.nonces.take(seals.len() as u64, writers);
        let first = first.ok_or(Errno::ENOSPC)?;
        let buffer = sealing.buffers.take(&self.pool, pages.len() * PAGE);
        let begin = offset + (pages.start * PAGE) as u64;
        for (k, seal) in seals.iter().enumerate() {
            let to = (buffer.at + k * PAGE) as *mut u8;
            // SAFETY: the buffer is ours, and `from` the caller's; if it changes meanwhile, that is
            // what is copied.
            let page = unsafe {
                std::ptr::copy_nonoverlapping((from + k * PAGE) as *const u8, to, PAGE);
                std::slice::from_raw_parts_mut(to, PAGE)
            };
            let place = (area, begin + (k * PAGE) as u64);
            if !sealing.cipher.seal(first + k as u64, place, page, seal) {
                return Err(Errno::EIO);
            }
        }
        Ok(Sealed {
            buffer,
            first,
            count: seals.len() as u64,
        })
    }

    /// Notes that nothing is known of pages of a cluster, so that they cannot be read any more.
    pub(crate) fn forget_stored(&self, cluster: u64, pages: Range<usize>) {
        self.zswap.forget(cluster, pages.clone());
        let sums = self.pool.cluster_sums().get(cluster as usize);
        if let Some(sums) = sums.and_then(|s| s.get(pages.clone())) {
            checksum::forget(sums);
        }
        let all = pages.len() == PAGES;
        // (Seals of a packed cluster are not those of its pages.)
        if self.sealing.is_some()
            && (all || !self.pool.is_packed(cluster))
            && let Ok(seals) = self.pool.seals_of(cluster, pages)
        {
            seals.iter().for_each(Seal::forget);
        }
        if all {
            self.pool.set_packed(cluster, false);
        }
    }
}
