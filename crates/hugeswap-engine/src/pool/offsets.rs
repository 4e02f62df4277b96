//! Where the parts of a segment are, one after the other, as the head of [`super::layout`] lists them.

use super::layout::{Header, NOBODY, Record, SHARED_UNITS, SharedPageStamps, SharedStamps};
use super::packs::Lengths;
use super::recording::{HAPPENINGS, STACK_BYTES, STACKS, Slot};
use crate::UNIT;
use crate::checksum::Sums;
use crate::store::seal::Seals;
use hugeswap_policy::extents::layout;
use hugeswap_policy::thp_swap::slots as split;
use hugeswap_policy::zswap::entry;

/// Offsets of the parts of a segment.
#[derive(Clone, Copy, Debug)]
pub struct Offsets {
    /// Offset of the records.
    pub records: usize,
    /// Offset of the clusters' words.
    pub cluster_words: usize,
    /// Offset of the bitmaps of split clusters.
    pub split_maps: usize,
    /// Offset of the maps that say how clusters lie ([`layout`]), one after the other.
    pub layouts: usize,
    /// Offset of the page sums.
    pub cluster_sums: usize,
    /// Offset of the seals, for a pool that encrypts.
    pub seals: usize,
    /// Offset of the bitmaps of bad slots.
    pub bad_maps: usize,
    /// Offset of the words of shared units.
    pub shared_words: usize,
    /// Offset of the bits of shared units that are charged.
    pub shared_charged: usize,
    /// Offset of the stamps of shared units.
    pub shared_stamps: usize,
    /// Offset of the stamps of their pages.
    pub shared_page_stamps: usize,
    /// Offset of what happens while the pool is recorded.
    pub happenings: usize,
    /// Offset of what stacks were recorded for.
    pub stacks: usize,
    /// Offset of the stacks.
    pub stack_bytes: usize,
    /// Offset of a bit for each cluster that is packed ([`super::packs`]).
    pub packed_bits: usize,
    /// Offset of the lengths of packed clusters' blocks.
    pub pack_lengths: usize,
    /// Offset of the numbers of pages of each cluster that are in compressed memory.
    pub zswap_counts: usize,
    /// Offset of their words.
    pub zswap_words: usize,
    /// Offset of the owners of the frames of compressed memory.
    pub zswap_owners: usize,
    /// Offset of the numbers of bytes in use in them.
    pub zswap_used: usize,
    /// Offset of the frames.
    pub zswap_frames: usize,
    /// Offset of the end.
    pub end: usize,
}

/// Computes them, with `zswap` frames of compressed memory; `None` if the numbers are absurd.
pub fn offsets(clusters: u64, zswap: u64) -> Option<Offsets> {
    if clusters > 1 << 32 || zswap > entry::MAX_FRAMES as u64 {
        return None;
    }
    let align = |n: usize| n.next_multiple_of(4096);
    let clusters = clusters as usize;
    let records = align(size_of::<Header>());
    let cluster_words = align(records + size_of::<Record>() * (NOBODY + 1));
    let split_maps = align(cluster_words + clusters * 4);
    let layouts = align(split_maps + clusters * split::MAP_WORDS * 8);
    let cluster_sums = align(layouts + layout::MAPS * layout::words(clusters) * 8);
    let seals = align(cluster_sums + clusters * size_of::<Sums>());
    let bad_maps = align(seals + clusters * size_of::<Seals>());
    let shared_words = align(bad_maps + clusters * split::MAP_WORDS * 8);
    let shared_charged = align(shared_words + SHARED_UNITS * 8);
    let shared_stamps = align(shared_charged + SHARED_UNITS / 8);
    let shared_page_stamps = align(shared_stamps + SHARED_UNITS * size_of::<SharedStamps>());
    let happenings = align(shared_page_stamps + SHARED_UNITS * size_of::<SharedPageStamps>());
    let stacks = align(happenings + HAPPENINGS * size_of::<Slot>());
    let stack_bytes = align(stacks + STACKS * size_of::<Slot>());
    let packed_bits = align(stack_bytes + STACKS * STACK_BYTES);
    let pack_lengths = align(packed_bits + clusters.div_ceil(64) * 8);
    let zswap_counts = align(pack_lengths + clusters * size_of::<Lengths>());
    let zswap_words = align(zswap_counts + clusters * 4);
    let zswap_owners = align(zswap_words + clusters * size_of::<Sums>());
    let zswap_used = align(zswap_owners + zswap as usize * 4);
    let zswap_frames = align(zswap_used + zswap as usize * 4).next_multiple_of(UNIT);
    let end = zswap_frames + zswap as usize * UNIT;
    Some(Offsets {
        records,
        cluster_words,
        split_maps,
        layouts,
        cluster_sums,
        seals,
        bad_maps,
        shared_words,
        shared_charged,
        shared_stamps,
        shared_page_stamps,
        happenings,
        stacks,
        stack_bytes,
        packed_bits,
        pack_lengths,
        zswap_counts,
        zswap_words,
        zswap_owners,
        zswap_used,
        zswap_frames,
        end,
    })
}
