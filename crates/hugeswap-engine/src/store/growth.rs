//! Areas grow: clusters are given blocks of their device before they are first written, a step of
//! neighbouring clusters at a time.
//!
//! The segment notes which clusters have blocks, and how those lie (`pool::extents`). Several
//! threads may grow the same step at once: the file system gives blocks once, and the notes are the
//! same. An I/O thread with nothing else to do grows areas a step or two ahead of the claims of
//! this process. Where there is no space for a step, there may be for a part of it. An area that
//! cannot grow gives what it has (`pool::room`).

use super::Store;
use crate::pool::swap::RESERVE;
use crate::pool::{JoinedArea, Pool};
use hugeswap_policy::UNIT_BYTES;
use hugeswap_policy::extents::layout::Layout;
use hugeswap_policy::knobs::Knob;
use hugeswap_sys::{Errno, Result, fs, process};
use std::ops::Range;

/// Clusters that an area grows by: 64 MiB.
pub(super) const STEP: u64 = 32;
/// Clusters beyond the next claim that should have blocks.
const AHEAD: u64 = STEP;

/// Is it only that there is no space?
pub(super) fn is_no_room(e: Errno) -> bool {
    matches!(e, Errno::ENOSPC | Errno::EDQUOT)
}

impl Pool {
    /// Has a cluster just claimed blocks, by now? If not, for there is no room, another is to be
    /// taken. (Of other failures the write will tell.)
    pub(crate) fn has_blocks(&self, cluster: u64) -> bool {
        let Some((area, _)) = self.locate(cluster) else {
            return true;
        };
        !self.find_blocks(area, cluster).is_err_and(is_no_room)
    }

    /// Sees to it that cluster `cluster` of area number `area` has blocks. ENOSPC: there are none
    /// left for it.
    pub(super) fn find_blocks(&self, area: usize, cluster: u64) -> Result<()> {
        if self.layouts().of(cluster as usize) != Layout::Unallocated {
            return Ok(());
        }
        self.grow_area(area, cluster)
    }

    #[cold]
    #[inline(never)]
    fn grow_area(&self, area: usize, cluster: u64) -> Result<()> {
        let a = self.area(area).ok_or(Errno::EIO)?;
        // Where there is no space for all of it: eight clusters, two, the one.
        let mut size = STEP;
        let got = loop {
            let begin = a.first_cluster + (cluster - a.first_cluster) / size * size;
            let part = begin..(begin + size).min(a.first_cluster + a.clusters);
            match self.allocate(&a, &part) {
                Ok(()) => break part,
                Err(e) if is_no_room(e) && size > 1 => size = (size / 4).max(1),
                Err(e) => {
                    if is_no_room(e) {
                        self.note_room(area, false);
                    }
                    return Err(e);
                }
            }
        };
        self.note_grown(area, a.fd, got, a.first_cluster);
        // Where a part could be had, the next may be too.
        self.note_room(area, true);
        process::yield_now();
        Ok(())
    }

    fn allocate(&self, a: &JoinedArea, clusters: &Range<u64>) -> Result<()> {
        let (at, end) = (
            clusters.start - a.first_cluster,
            clusters.end - a.first_cluster,
        );
        let space = self.knob(Knob::SwapSpace);
        if space != 0 && end * UNIT_BYTES > space {
            return Err(Errno::ENOSPC);
        }
        // Program threads come here, and the number may be something of the program's by now.
        if fs::identity(a.fd) != Ok(a.identity) {
            return Err(Errno::EBADF);
        }
        match fs::allocate(a.fd, at * UNIT_BYTES, (end - at) * UNIT_BYTES) {
            // Then the first write finds blocks.
            Err(Errno::EOPNOTSUPP) => Ok(()),
            result => result,
        }
    }
}

impl Store {
    /// Grows an area that this process is about to need more of, but not into what others may need
    /// more. False: there is none. For a thread that is inside the gate.
    pub(crate) fn grow_ahead(&self) -> bool {
        self.pool.areas().any(|(i, a)| {
            let Some(next) = self.next_claim(i, &a).filter(|_| self.pool.may_grow(i)) else {
                return false;
            };
            let end = (next + AHEAD).min(a.first_cluster + a.clusters);
            let layouts = self.pool.layouts();
            let bare = (next..end).find(|&s| layouts.of(s as usize) == Layout::Unallocated);
            let Some(cluster) = bare else { return false };
            let free = fs::file_system(a.fd).map_or(0, |f| f.free_bytes);
            free > RESERVE && self.pool.grow_area(i, cluster).is_ok()
        })
    }
}
