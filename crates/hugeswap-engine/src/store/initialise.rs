//! Clusters are written before they are first used. The first write to blocks that the file system
//! has given but nobody has written yet (an unwritten extent) costs more, because the file system
//! has to note that they were written.
//!
//! An I/O thread does it, a cluster at a time, only while nothing else is read or written in the
//! whole pool ([`QUIET_NS`]). It writes zeros to the clusters that are claimed next: at most a step
//! ahead, and no more than this process has in use, so that fewer bytes are written for nothing
//! than that; once for each cluster, and only to what the file system calls unwritten. Where the
//! file system does not write in place ([`writes_in_place`]) there is nothing to gain.
//!
//! Concurrency: a thread that initialises a cluster has claimed it, by the same word and the same
//! two looks at the area's state as a thread that swaps to it
//! ([`hugeswap_policy::thp_swap::area`]). So no other thread gets the cluster meanwhile: claims
//! pass over it, an area that is taken off waits for it, and if this process dies, the cluster is
//! found by its record number like any other (a process is not gone before its writes have ended).
//! The cluster is given back before the gate is left, so a fork never sees it. A claim may find no
//! cluster because of it only if it was the last one; then that claim tries again, as it does
//! whenever clusters are given back.

use super::growth::STEP;
use super::{Pages, Store};
use crate::pool::JoinedArea;
use crate::pool::swap::{Kind, RESERVE};
use hugeswap_policy::counters::Counter;
use hugeswap_policy::extents::layout::Layout;
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::thp_swap::clusters;
use hugeswap_policy::{PAGE_BYTES, UNIT_BYTES};
use hugeswap_sys::{Errno, Result, fiemap, fs, now_ns};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};

/// Nothing is done while there was a transfer in the pool less than that ago.
pub(crate) const QUIET_NS: u64 = 2_000_000;

/// What came of looking for something to initialise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ahead {
    /// A cluster was.
    Done,
    /// Others read or write.
    Later,
    /// There is nothing.
    Nothing,
}

/// Whether a thread initialises clusters, and for how long nothing was transferred in the pool.
#[derive(Default)]
pub(crate) struct Initialiser {
    /// One of the I/O threads does it; the other one is free for other work.
    busy: AtomicBool,
    /// Transfers of the pool as they were seen last, and when.
    transfers: AtomicU64,
    since: AtomicU64,
}

impl Initialiser {
    /// Has it been `now` long enough that there were as many transfers?
    fn is_quiet(&self, transfers: u64, now: u64) -> bool {
        if self.transfers.swap(transfers, Relaxed) != transfers {
            self.since.store(now, Relaxed);
        }
        now.saturating_sub(self.since.load(Relaxed)) >= QUIET_NS
    }
}

/// Is what is written once written there again, without looking for other blocks?
fn writes_in_place(magic: u64) -> bool {
    const XFS: u64 = 0x5846_5342;
    magic == libc::EXT4_SUPER_MAGIC as u64 || magic == XFS
}

impl Store {
    /// Initialises a cluster, if there is one to be. For an I/O thread that is inside the gate;
    /// `idle`: the engine reads and writes nothing, as far as it can be seen.
    pub(crate) fn initialise_ahead(&self, idle: impl Fn() -> bool) -> Ahead {
        if self.pool.knob(Knob::Initialise) == 0 || self.initialiser.busy.swap(true, Acquire) {
            return Ahead::Nothing;
        }
        let found = self.pool.areas().find_map(|(i, area)| {
            let cluster = self.unwritten_ahead(i, &area)?;
            Some((i, area, cluster))
        });
        let quiet = |n| self.initialiser.is_quiet(n, now_ns());
        let ahead = match found {
            None => Ahead::Nothing,
            Some(_) if !(self.pool.transfers().is_some_and(quiet) && idle()) => Ahead::Later,
            Some((i, area, cluster)) => self.initialise(i, &area, cluster),
        };
        self.initialiser.busy.store(false, Release);
        ahead
    }

    /// The cluster of number `index` that is to be initialised next.
    fn unwritten_ahead(&self, index: usize, area: &JoinedArea) -> Option<u64> {
        let next = self.next_claim(index, area)?;
        let shared = self.pool.header().areas.get(index)?;
        let file = shared.kind.load(Relaxed) != Kind::Device as u32;
        if !file || shared.direct.load(Relaxed) == 0 || self.pool.avoids(next) {
            return None;
        }
        let (layouts, words) = (self.pool.layouts(), self.pool.cluster_words());
        let layout = |cluster: u64| layouts.of(cluster as usize);
        // What is in pieces is claimed when there is nothing else: only then is it next.
        let also_apart = next > area.first_cluster && layout(next - 1) == Layout::Fragmented;
        let end = (next + STEP.min(self.owned_in(index))).min(area.range().end);
        (next..end).find(|&cluster| {
            let free = words
                .get(cluster as usize)
                .is_some_and(|w| w.load(Relaxed) == 0);
            let next = match layout(cluster) {
                Layout::Contiguous => true,
                Layout::Fragmented => also_apart,
                Layout::Unallocated => false,
            };
            free && next && layouts.is_unwritten(cluster as usize)
        })
    }

    fn initialise(&self, index: usize, area: &JoinedArea, cluster: u64) -> Ahead {
        // Never to what is something else; and blocks that are there already take no space, but a
        // disk that is full has other cares.
        let ours = fs::identity(area.fd) == Ok(area.identity);
        let on = fs::file_system(area.fd).ok().filter(|_| ours);
        if !on.is_some_and(|f| writes_in_place(f.magic) && f.free_bytes > RESERVE) {
            return Ahead::Nothing;
        }
        let (words, me) = (self.pool.cluster_words(), self.pool.me() as u16 + 1);
        if !clusters::claim_at(words, me, cluster as usize) {
            return Ahead::Done;
        }
        if self.pool.still_on(index) {
            // Whatever comes of it: if it fails, the first write will tell.
            self.pool.layouts().note_unwritten(cluster as usize, false);
            let _ = self.write_zeros(area, (cluster - area.first_cluster) * UNIT_BYTES);
        }
        clusters::release(words, cluster as usize, me);
        self.look_again_for_clusters();
        Ahead::Done
    }

    /// Writes zeros to what was never written of a claimed cluster, at `at` in its file.
    fn write_zeros(&self, area: &JoinedArea, at: u64) -> Result<()> {
        // Never touched, so that it takes no memory of its own.
        let zeros = Pages::new(UNIT_BYTES as usize)?;
        let end = at + UNIT_BYTES;
        for extent in fiemap::extents_in(area.fd, at, end) {
            let extent = extent?;
            if !extent.unwritten() {
                continue;
            }
            let from = extent.logical.max(at);
            let len = extent.logical.saturating_add(extent.length).min(end) - from;
            if from % PAGE_BYTES != 0 || len % PAGE_BYTES != 0 {
                return Err(Errno::EINVAL);
            }
            // SAFETY: of memory just mapped, which is that long.
            unsafe { fs::write_all_at(area.fd, zeros.addr(), len as usize, from) }?;
            self.pool.count(Counter::SwapInitialised, len / PAGE_BYTES);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_quiet_after_a_while_without_transfers() {
        let i = Initialiser::default();
        let at = |n: u64| 1_000_000_000 + n * QUIET_NS;
        assert!(!i.is_quiet(7, at(0)));
        assert!(!i.is_quiet(7, at(1) - 1));
        assert!(i.is_quiet(7, at(1)) && i.is_quiet(7, at(9)));
        assert!(!i.is_quiet(8, at(10)) && i.is_quiet(8, at(11)));
    }
}
