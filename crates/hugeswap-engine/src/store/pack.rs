//! Whole units written to a device compressed: their pages' blocks ([`super::codec`]) one after the
//! other, by one write that is as much shorter.
//!
//! A device with a limit on bytes moves so much more in the same time. The cluster is no smaller: it
//! has the slots of all pages, and what is saved is transfers, not room. By what a unit is compressed,
//! if at all, is [`hugeswap_policy::zswap::packing`]'s choice, from what the device takes, and what
//! the compressors make of units.
//!
//! # A packed cluster
//!
//! The blocks end where a block of 4 KiB of the device ends; before the first is what is missing to a
//! full one. The segment says how long each is (`pool::packs`), and so where. All of a unit is read to
//! the end of the memory that it is to fill, and decoded from the front: no page is longer than its
//! block's part of what is left, so none is overwritten before it is decoded. Pages by themselves are
//! read to a buffer, with what else there is in the same blocks of the device.
//!
//! Sums are of pages, as everywhere; a pool that encrypts seals the blocks of the device.
//!
//! Nothing is ever written to a part of a packed cluster. Its unit is scattered where it is when pages
//! of it have changed: they go to other slots, and those that they had are claimed by nothing before
//! all of the cluster is free. Therefore units are packed only while half of swap is free; and where
//! no cluster is free at all, the cluster is written anew, with what is left in it, not packed
//! ([`Store::write_as_it_is`]).
//!
//! A unit is packed in a buffer that the budget has a frame for. Before there is one, units are written
//! as they are ([`Buffers::take_charged`](super::buffers::Buffers::take_charged)).

use super::buffers::Buffer;
use super::codec::{Block, LONGEST, Scratch};
use super::scatter::{CLUSTERS, Places, Single};
use super::{PAGE, PAGES, Store};
use crate::UNIT;
use crate::bits::Bits;
use crate::pool::packs::Lengths;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::knobs::{Knob, compress};
use hugeswap_policy::zswap::codec::Codec;
use hugeswap_sys::{Errno, Result, now_ns};
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Release};

/// Pages of a unit that are compressed first: if they become no shorter, the unit does not.
const FIRST: usize = 8;
/// What of so many bytes may remain for them to be worth it.
const fn most_of(bytes: usize) -> usize {
    bytes * 7 / 8
}

/// Where pages of a packed cluster are on the device.
pub(super) struct Packed {
    /// In which of its blocks of 4 KiB.
    pub blocks: Range<usize>,
    /// Where the first of them begins there, bytes.
    at: usize,
}

impl Packed {
    /// Where pages of a cluster with blocks of these lengths are. `None`: there can be none such. All
    /// that is found lies within the cluster, whatever the lengths are.
    fn find(lengths: &Lengths, pages: &Range<usize>) -> Option<Packed> {
        let (mut before, mut those, mut all) = (0, 0, 0);
        for (page, length) in lengths.iter().enumerate() {
            let len = usize::from(length.load(Acquire));
            before += if page < pages.start { len } else { 0 };
            those += if pages.contains(&page) { len } else { 0 };
            all += len;
        }
        if all > UNIT || those == 0 {
            return None;
        }
        let begin = all.next_multiple_of(PAGE) - all + before;
        let first = begin / PAGE;
        Some(Packed {
            blocks: first..(begin + those).div_ceil(PAGE),
            at: begin - first * PAGE,
        })
    }
}

/// A unit that is compressed, on its way to swap.
pub(super) struct Pack<'a> {
    buffer: Buffer<'a>,
    /// Blocks of 4 KiB.
    pub blocks: usize,
    /// Nanoseconds that it took to compress them.
    pub took: u64,
}

impl Pack<'_> {
    /// Where they are.
    pub fn at(&self) -> usize {
        self.buffer.at + UNIT - self.blocks * PAGE
    }
}

impl Store {
    /// May whole units be packed, as the settings and the areas are?
    pub(super) fn wants_packs(&self) -> bool {
        self.pool.knob(Knob::SwapCompress) != compress::NEVER && self.pool.has_device_area()
    }

    /// By what the next unit is to be packed, and whether only to see what comes of it; `None`: it
    /// is to be written as it is.
    fn packs_by(&self, cluster: u64) -> Option<(Codec, bool)> {
        if !self.wants_packs() || !self.has_room_to_move() || cluster >= CLUSTERS {
            return None;
        }
        let always = self.pool.knob(Knob::SwapCompress) == compress::ALWAYS;
        let by = self.packing.choose(self.pool.given_codec(), always)?;
        Some((by, !always && !self.packing.is_used()))
    }

    /// Compresses the unit at `from`, which is to be written to a cluster of this process's own of
    /// which nothing is known. `None`: it is to be written as it is.
    #[inline(never)]
    pub(super) fn pack(&self, cluster: u64, from: usize) -> Option<Pack<'_>> {
        let (by, only_to_see) = self.packs_by(cluster)?;
        // What only shows what would come of it needs no memory.
        let buffer = match only_to_see {
            true => None,
            false => Some(self.buffers.take_charged(&self.pool)?),
        };
        let start = now_ns();
        let packed = self.pack_in(cluster, by, from, buffer.as_ref().map(|b| b.at));
        let took = now_ns().saturating_sub(start);
        self.packing.note_packed(by, packed, took);
        match (packed, buffer) {
            (Some(blocks), Some(buffer)) => Some(Pack {
                buffer,
                blocks,
                took,
            }),
            (Some(_), None) => None,
            (None, _) => {
                self.pool.count(Counter::SwapPackPoor, 1);
                None
            }
        }
    }

    /// [`Store::pack`] to the end of the buffer at `to`; without one, nowhere. How many blocks of the
    /// device they take.
    fn pack_in(&self, cluster: u64, by: Codec, from: usize, to: Option<usize>) -> Option<usize> {
        let lengths = self.pool.pack_lengths(cluster)?;
        let mut scratch = self.codecs.scratch();
        let scratch = scratch.get_or_insert_with(Scratch::new);
        let mut compressed = |page: usize| {
            // SAFETY: the caller's memory. If the program changes it meanwhile, what is written is of
            // no use, and it is the caller that knows.
            unsafe { scratch.copy_page(from + page * PAGE) };
            let len = scratch.compress(by, LONGEST).unwrap_or(PAGE);
            let bytes = match len {
                PAGE => scratch.page.as_ptr(),
                _ => scratch.block.as_ptr(),
            };
            (bytes, len)
        };
        let some = (0..FIRST).map(|k| compressed(k * (PAGES / FIRST) + PAGES / FIRST / 2).1);
        if some.sum::<usize>() > most_of(FIRST * PAGE) {
            return None;
        }
        let mut at = UNIT;
        // Downwards: so they end where the buffer does.
        for (page, length) in lengths.iter().enumerate().rev() {
            let (bytes, len) = compressed(page);
            at = at
                .checked_sub(len)
                .filter(|&at| UNIT - at <= most_of(UNIT))?;
            if let Some(to) = to {
                // SAFETY: bytes of `scratch`, to the buffer, which is the caller's.
                unsafe { std::ptr::copy_nonoverlapping(bytes, (to + at) as *mut u8, len) };
                length.store(len as u16, Release);
            }
        }
        let begin = at / PAGE * PAGE;
        if let Some(to) = to {
            // SAFETY: within the buffer.
            unsafe { std::ptr::write_bytes((to + begin) as *mut u8, 0, at - begin) };
            self.pool.set_packed(cluster, true);
        }
        Some((UNIT - begin) / PAGE)
    }

    /// Where pages of a cluster are on the device, if it is packed; EIO: the segment says what
    /// cannot be.
    #[inline(never)]
    pub(super) fn find_packed(&self, cluster: u64, pages: &Range<usize>) -> Result<Option<Packed>> {
        if !self.pool.is_packed(cluster) {
            return Ok(None);
        }
        let lengths = self.pool.pack_lengths(cluster).ok_or(Errno::EIO)?;
        Packed::find(lengths, pages).map(Some).ok_or(Errno::EIO)
    }

    /// Decodes pages of a packed cluster, whose blocks of the device are at `from`, to `to`, one after
    /// the other in `block`. If these are all pages of the unit, they may be at the end of where they
    /// go. False: they are not what was written.
    #[inline(never)]
    pub(super) fn unpack(
        &self,
        cluster: u64,
        pages: Range<usize>,
        packed: &Packed,
        (from, to): (usize, usize),
        mut block: Block<'_>,
    ) -> bool {
        let Some(lengths) = self.pool.pack_lengths(cluster) else {
            return false;
        };
        let start = now_ns();
        let (mut at, end) = (packed.at, packed.blocks.len() * PAGE);
        for (k, length) in lengths.get(pages.clone()).into_iter().flatten().enumerate() {
            let len = usize::from(length.load(Acquire));
            // (Another process may have changed the lengths since they were added up.)
            if len == 0 || at + len > end {
                return false;
            }
            let page = to + k * PAGE;
            // SAFETY: what was read, and the caller's page.
            let decoded = unsafe {
                block.copy((from + at) as *const u8, len, page)
                    && self.codecs.decoders.decompress(&mut block, page)
            };
            if !decoded {
                return false;
            }
            at += len;
        }
        if pages.len() == PAGES {
            let took = now_ns().saturating_sub(start);
            self.packing.note_unpacked(took);
        }
        self.pool.count(Counter::SwapPackedIn, pages.len() as u64);
        true
    }

    /// The packed cluster that a scattered unit has pages in, and in which slots.
    pub(crate) fn packed_part(&self, places: &Places) -> Option<(u64, Bits)> {
        let slots = || (0..PAGES).filter_map(|page| places.get(page));
        let Single { cluster, .. } = slots().find(|s| self.pool.is_packed(s.cluster))?;
        let of_it = Bits::none();
        slots()
            .filter(|s| s.cluster == cluster)
            .for_each(|s| of_it.put(s.at..s.at + 1, true));
        Some((cluster, of_it))
    }

    /// Is most of a scattered unit in a packed cluster?
    pub(crate) fn is_mostly_packed(&self, unit: u32) -> bool {
        let part = self.scatter.of(unit).and_then(|p| self.packed_part(p));
        part.is_some_and(|(_, slots)| slots.count() > PAGES as u64 / 2)
    }

    /// Writes slots of a packed cluster of this process's own anew, as they are, so that the rest can
    /// be claimed by others: for where no cluster is free. Under the lock of the unit that has pages
    /// in these slots. False: that cannot be, or failed; what could then not be written is lost.
    pub(crate) fn write_as_it_is(&self, cluster: u64, slots: &Bits) -> bool {
        if !self.pool.owns_cluster(cluster) || self.kept.may_be_read(cluster) {
            return false;
        }
        // (The caller is the only thread that has one and waits for another to read to.)
        let buffer = self.buffers.take(&self.pool, UNIT);
        let at = |slot: usize| buffer.at + slot * PAGE;
        let read = slots.each_run(|run| self.read(cluster, run.clone(), at(run.start), false));
        if read.is_err() {
            return false;
        }
        self.forget_stored(cluster, 0..PAGES);
        let mut all = true;
        let _ = slots.each_run(|run| -> Result<()> {
            if self
                .write_pages(cluster, run.clone(), at(run.start))
                .is_err()
            {
                all = false;
                run.for_each(|slot| self.pool.note_lost(cluster, slot));
            }
            Ok(())
        });
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::AtomicU16;

    fn lengths(of: impl Fn(usize) -> u16) -> Lengths {
        std::array::from_fn(|page| AtomicU16::new(of(page)))
    }

    #[test]
    fn blocks_end_where_a_block_of_the_device_ends() {
        let l = lengths(|page| match page {
            0 => 3096,
            1..=510 => 100,
            _ => 900,
        });
        let all: usize = l.iter().map(|n| usize::from(n.load(Acquire))).sum();
        let whole = Packed::find(&l, &(0..PAGES)).unwrap();
        assert_eq!(whole.blocks, 0..all.div_ceil(PAGE));
        assert_eq!(whole.blocks.len() * PAGE, whole.at + all);
        let last = Packed::find(&l, &(PAGES - 1..PAGES)).unwrap();
        assert_eq!(last.blocks.end, whole.blocks.end);
    }

    proptest! {
        /// Any process of the pool can write the lengths.
        #[test]
        fn what_is_found_lies_within_the_cluster(
            few in proptest::collection::vec(any::<u16>(), 1..40), most in 0u16..5000,
            first in 0usize..PAGES, n in 1usize..PAGES,
        ) {
            let l = lengths(|page| few.get(page % 97).map_or(most, |&n| n));
            let pages = first..(first + n).min(PAGES);
            if let Some(found) = Packed::find(&l, &pages) {
                prop_assert!(found.at < PAGE && found.blocks.start < found.blocks.end);
                prop_assert!(found.blocks.end <= PAGES);
                let those: usize = l[pages].iter().map(|n| usize::from(n.load(Acquire))).sum();
                let room = found.blocks.len() * PAGE;
                prop_assert!(found.at + those <= room && room < found.at + those + PAGE);
            }
        }
    }
}
