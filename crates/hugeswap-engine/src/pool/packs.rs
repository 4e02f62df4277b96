//! Where the pages of packed clusters are ([`crate::store`]'s `pack`): the length of each page's
//! block, in the segment, so that every process of the pool can read them.
//!
//! A cluster is packed if its first page has a length. That is forgotten when nothing is known of the
//! cluster any more, and when it is claimed: the process that had it before may have died.

use super::Pool;
use hugeswap_policy::UNIT_PAGES;
use std::sync::atomic::AtomicU16;
use std::sync::atomic::Ordering::{Acquire, Release};

/// The lengths of a cluster's blocks, bytes: 1 to 4096 each, or the first is 0.
pub type Lengths = [AtomicU16; UNIT_PAGES as usize];

impl Pool {
    /// Those of a cluster, packed or not.
    pub(crate) fn pack_lengths(&self, cluster: u64) -> Option<&Lengths> {
        let at = self.base + self.offsets.pack_lengths + cluster as usize * size_of::<Lengths>();
        // SAFETY: the segment is mapped for the life of `self` and holds atomics only; `offsets`
        // leaves room for `capacity` of them.
        ((cluster as usize) < self.clusters_high()).then(|| unsafe { &*(at as *const Lengths) })
    }

    /// Is a cluster packed? The caller owns it, or the lock of a unit that has pages in it.
    pub(crate) fn is_packed(&self, cluster: u64) -> bool {
        let lengths = self.pack_lengths(cluster);
        lengths.is_some_and(|l| l[0].load(Acquire) != 0)
    }

    /// A cluster, of which nothing is known, is not packed.
    pub(crate) fn forget_pack(&self, cluster: u64) {
        // (Of what was never packed the page of the segment is not touched.)
        if let Some(lengths) = self.pack_lengths(cluster)
            && lengths[0].load(Acquire) != 0
        {
            lengths[0].store(0, Release);
        }
    }
}
