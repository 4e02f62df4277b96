//! Where the pages of packed clusters are ([`crate::store`]'s `pack`): a bit for each cluster that is
//! packed, and the length of each of its pages' blocks, in the segment, so that every process of the
//! pool can read them.
//!
//! That a cluster is packed is forgotten when nothing is known of it any more, and when it is claimed:
//! the process that had it before may have died. Lengths of clusters that never were take no memory.

use super::Pool;
use hugeswap_policy::UNIT_PAGES;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::sync::atomic::{AtomicU16, AtomicU64};

/// The lengths of a packed cluster's blocks, bytes: 1 to 4096 each.
pub type Lengths = [AtomicU16; UNIT_PAGES as usize];

impl Pool {
    /// Those of a cluster, packed or not.
    pub(crate) fn pack_lengths(&self, cluster: u64) -> Option<&Lengths> {
        let at = self.base + self.offsets.pack_lengths + cluster as usize * size_of::<Lengths>();
        // SAFETY: the segment is mapped for the life of `self` and holds atomics only; `offsets`
        // leaves room for `capacity` of them.
        ((cluster as usize) < self.clusters_high()).then(|| unsafe { &*(at as *const Lengths) })
    }

    /// The word that has a cluster's bit, and the bit.
    fn packed_bit(&self, cluster: u64) -> Option<(&AtomicU64, u64)> {
        let at = self.base + self.offsets.packed_bits + cluster as usize / 64 * 8;
        // SAFETY: as above; there is a bit for each of `capacity` clusters.
        let word = || unsafe { &*(at as *const AtomicU64) };
        ((cluster as usize) < self.clusters_high()).then(|| (word(), 1 << (cluster % 64)))
    }

    /// Is a cluster packed? The caller owns it, or the lock of a unit that has pages in it.
    pub(crate) fn is_packed(&self, cluster: u64) -> bool {
        let found = self.packed_bit(cluster);
        found.is_some_and(|(word, bit)| word.load(Acquire) & bit != 0)
    }

    /// A cluster of this process's own is packed, or, since nothing is known of it, not.
    pub(crate) fn set_packed(&self, cluster: u64, packed: bool) {
        if let Some((word, bit)) = self.packed_bit(cluster)
            && packed != (word.load(Acquire) & bit != 0)
        {
            match packed {
                true => word.fetch_or(bit, AcqRel),
                false => word.fetch_and(!bit, AcqRel),
            };
        }
    }
}
