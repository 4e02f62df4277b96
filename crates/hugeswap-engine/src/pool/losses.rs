//! The last few places where swap failed to give back what was written, and how, in all processes:
//! for reports.
//!
//! Concurrency: any thread writes an entry, key last. A reader that sees the same key before and
//! after has the content of one entry, or of two failures of one place.

use super::Pool;
use hugeswap_sys::Errno;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// How many are kept.
pub(super) const KEPT: usize = 64;

/// What became of bytes in swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The device gave other bytes than were written: their checksum does not match.
    Changed,
    /// The device could not read them: the system's error number.
    Unreadable(i32),
}

/// A page that swap does not give back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The swap area, by its number.
    pub area: usize,
    /// Where in it, bytes.
    pub offset: u64,
    /// How it failed the last time.
    pub cause: Cause,
}

/// Whose loss it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LossKey {
    /// A page's of swap, by its number over all areas.
    Page(u64),
    /// A whole unit's, which has no place in swap any more: of this record.
    Unit(usize, u32),
}

impl LossKey {
    fn word(self) -> u64 {
        match self {
            LossKey::Page(number) => number + 1,
            LossKey::Unit(record, unit) => 1 << 63 | (record as u64) << 32 | u64::from(unit),
        }
    }
}

/// One entry of the segment.
#[repr(C)]
pub struct LossEntry {
    /// [`LossKey::word`], 0: nothing.
    key: AtomicU64,
    area: AtomicU64,
    offset: AtomicU64,
    /// An error number; 0: the bytes have changed.
    errno: AtomicU64,
}

impl LossEntry {
    fn read(&self) -> Option<(u64, Loss)> {
        let key = self.key.load(Acquire);
        let cause = match self.errno.load(Relaxed) {
            0 => Cause::Changed,
            errno => Cause::Unreadable(errno as i32),
        };
        let loss = Loss {
            area: self.area.load(Relaxed) as usize,
            offset: self.offset.load(Relaxed),
            cause,
        };
        std::sync::atomic::fence(Acquire);
        (key != 0 && self.key.load(Relaxed) == key).then_some((key, loss))
    }
}

impl Pool {
    /// Notes how a place has failed.
    pub(crate) fn note_loss(&self, key: LossKey, loss: Loss) {
        let h = self.header();
        let word = key.word();
        let same = h.lost.iter().find(|e| e.key.load(Relaxed) == word);
        let entry =
            same.unwrap_or_else(|| &h.lost[h.lost_next.fetch_add(1, Relaxed) as usize % KEPT]);
        entry.key.store(0, Relaxed);
        std::sync::atomic::fence(Release);
        entry.area.store(loss.area as u64, Relaxed);
        entry.offset.store(loss.offset, Relaxed);
        let errno = match loss.cause {
            Cause::Changed => 0,
            Cause::Unreadable(errno) => errno as u64,
        };
        entry.errno.store(errno, Relaxed);
        entry.key.store(word, Release);
    }

    /// How a place has failed, as long as that is remembered.
    pub(crate) fn loss(&self, key: LossKey) -> Option<Loss> {
        let word = key.word();
        let mut all = self.header().lost.iter().filter_map(LossEntry::read);
        all.find(|(key, _)| *key == word).map(|(_, loss)| loss)
    }

    /// The places in swap that have failed last, in order of their places.
    pub fn losses(&self) -> Vec<Loss> {
        let all = self.header().lost.iter().filter_map(LossEntry::read);
        let mut pages: Vec<Loss> = all
            .filter(|(key, _)| key >> 63 == 0)
            .map(|(_, l)| l)
            .collect();
        pages.sort_by_key(|l| (l.area, l.offset));
        pages
    }
}

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Loss {
            area,
            offset,
            cause,
        } = self;
        match cause {
            Cause::Changed => write!(
                f,
                "the bytes at offset {offset} of swap area {area} are not those that were written (checksum mismatch)"
            ),
            Cause::Unreadable(errno) => {
                let e = Errno(*errno);
                write!(
                    f,
                    "the device could not read offset {offset} of swap area {area}: {e}"
                )
            }
        }
    }
}
