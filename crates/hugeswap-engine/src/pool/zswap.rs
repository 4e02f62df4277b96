//! The part of the segment that is compressed memory: its frames, and a word for each slot of swap
//! that says where in them the slot's page is ([`hugeswap_policy::zswap::entry`]).
//!
//! A frame belongs to one record. Only the process that has the record stores there, and only
//! pages of its own clusters; it alone removes them. Other processes, which it was forked into,
//! read them. So a process can die at any instant: the frames are given back with the record, after
//! the words of its clusters have been cleared. A page that is read without a lock is right if its
//! word is the same afterwards, and its sum tells the rest.
//!
//! The frames are charged to the record, with its others.

use super::Pool;
use super::layout::{Area, Record, state};
use super::swap::Kind;
use crate::{PAGES, UNIT};
use hugeswap_policy::knobs::{Knob, compressor};
use hugeswap_policy::thp_swap::area;
use hugeswap_policy::zswap::codec::Codec;
use hugeswap_sys::mm;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// The words of a cluster's slots.
pub(crate) type Words = [AtomicU64; PAGES];

impl Pool {
    /// Frames that compressed memory can have.
    pub(crate) fn zswap_capacity(&self) -> usize {
        self.zswap_frames
    }

    /// Is a cluster of an area without a device?
    pub(crate) fn is_in_memory(&self, cluster: u64) -> bool {
        let area = self.locate(cluster);
        area.is_some_and(|(index, _)| self.is_memory_area(index))
    }

    /// Is an area one without a device?
    pub(crate) fn is_memory_area(&self, index: usize) -> bool {
        self.segment_area(index).is_some_and(is_memory)
    }

    /// The compressor that the settings name; `None`: they leave that to us.
    pub(crate) fn given_codec(&self) -> Option<Codec> {
        match self.knob(Knob::ZswapCompressor) {
            compressor::LZ4 => Some(Codec::Lz4),
            compressor::ZSTD_FAST => Some(Codec::ZstdFast),
            compressor::ZSTD => Some(Codec::Zstd),
            _ => None,
        }
    }

    /// Is there an area without a device?
    pub(crate) fn has_memory_area(&self) -> bool {
        self.turned_on().any(is_memory)
    }

    /// Is there an area with a device?
    pub(crate) fn has_device_area(&self) -> bool {
        self.turned_on().any(|a| !is_memory(a))
    }

    /// Is swap compressed memory, and nothing else?
    pub fn is_without_device(&self) -> bool {
        self.has_memory_area() && !self.has_device_area()
    }

    fn turned_on(&self) -> impl Iterator<Item = &Area> {
        let areas = self.header().areas.iter();
        areas.filter(|a| matches!(a.state.load(Acquire), area::ON | area::DRAINING))
    }

    /// The number of a cluster's pages that are in compressed memory.
    pub(crate) fn zswap_count(&self, cluster: u64) -> Option<&AtomicU32> {
        let at = self.base + self.offsets.zswap_counts + cluster as usize * 4;
        // SAFETY: the segment is mapped for the life of `self` and holds atomics only; `offsets`
        // leaves room for `capacity` of them.
        ((cluster as usize) < self.clusters_high()).then(|| unsafe { &*(at as *const AtomicU32) })
    }

    /// Where its pages are in compressed memory.
    pub(crate) fn zswap_words(&self, cluster: u64) -> Option<&Words> {
        let at = self.base + self.offsets.zswap_words + cluster as usize * size_of::<Words>();
        // SAFETY: as in `zswap_count`.
        ((cluster as usize) < self.clusters_high()).then(|| unsafe { &*(at as *const Words) })
    }

    fn zswap_owners(&self) -> &[AtomicU32] {
        let at = (self.base + self.offsets.zswap_owners) as *const AtomicU32;
        // SAFETY: as in `zswap_count`; `offsets` leaves room for so many.
        unsafe { std::slice::from_raw_parts(at, self.zswap_frames) }
    }

    /// Bytes in use in each frame of compressed memory.
    pub(crate) fn zswap_used(&self) -> &[AtomicU32] {
        let at = (self.base + self.offsets.zswap_used) as *const AtomicU32;
        // SAFETY: as in `zswap_owners`.
        unsafe { std::slice::from_raw_parts(at, self.zswap_frames) }
    }

    /// Address of a frame of compressed memory.
    pub(crate) fn zswap_addr(&self, frame: u32) -> usize {
        debug_assert!((frame as usize) < self.zswap_frames);
        self.base + self.offsets.zswap_frames + frame as usize * UNIT
    }

    /// A frame of compressed memory for record `me`, which has charged one for it.
    pub(crate) fn claim_zswap_frame(&self, me: usize) -> Option<u32> {
        let owner = me as u32 + 1;
        let free = |o: &AtomicU32| {
            o.load(Relaxed) == 0 && o.compare_exchange(0, owner, AcqRel, Relaxed).is_ok()
        };
        let frame = self.zswap_owners().iter().position(free)?;
        self.zswap_used()[frame].store(0, Relaxed);
        self.records()[me].zswap.fetch_add(1, AcqRel);
        Some(frame as u32)
    }

    /// Gives an empty frame of record `me`'s back to the machine. It stays charged.
    pub(crate) fn free_zswap_frame(&self, me: usize, frame: u32) {
        self.empty_zswap_frame(frame);
        self.records()[me].zswap.fetch_sub(1, AcqRel);
        self.zswap_owners()[frame as usize].store(0, Release);
    }

    fn empty_zswap_frame(&self, frame: u32) {
        // SAFETY: no word leads to the frame, and a thread that still reads it by an old word finds
        // that the word has changed. Where the kernel refuses, the memory is used again with the
        // frame.
        let _ = unsafe { mm::advise(self.zswap_addr(frame), UNIT, libc::MADV_REMOVE) };
    }

    /// Compressed memory of record `i`, whose process is gone, and of whose slots none may be read
    /// any more.
    pub(super) fn release_zswap_of(&self, i: usize) {
        if self.records()[i].zswap.load(Acquire) == 0 {
            return;
        }
        let owner = i as u32 + 1;
        for (cluster, word) in self.cluster_words().iter().enumerate() {
            if word.load(Acquire) >> 16 == owner {
                self.clear_zswap_words(cluster as u64);
            }
        }
        for (frame, o) in self.zswap_owners().iter().enumerate() {
            if o.load(Relaxed) == owner {
                self.empty_zswap_frame(frame as u32);
                o.store(0, Release);
            }
        }
        self.records()[i].zswap.store(0, Relaxed);
        self.records()[i].zswap_pages.store(0, Relaxed);
    }

    /// No page of a cluster is in compressed memory.
    fn clear_zswap_words(&self, cluster: u64) {
        let Some(count) = self.zswap_count(cluster) else {
            return;
        };
        // (A death between the words and the count leaves it as it is: see `Zswap::store`.)
        if count.load(Acquire) > 0 {
            let words = self.zswap_words(cluster).into_iter().flatten();
            words.for_each(|w| w.store(0, Relaxed));
            count.store(0, Release);
        }
    }

    /// Compressed memory: frames, bytes in use in them, and pages that these hold.
    pub fn zswap_usage(&self) -> ZswapUsage {
        let there = |r: &&Record| matches!(r.state(), state::LIVE | state::ZOMBIE);
        let mut usage = ZswapUsage::default();
        for r in self.used().map(|(_, r)| r).filter(there) {
            usage.bytes += r.zswap.load(Relaxed) * UNIT as u64;
            usage.pages += r.zswap_pages.load(Relaxed);
        }
        if usage.bytes > 0 {
            let owned = |(o, _): &(&AtomicU32, &AtomicU32)| o.load(Relaxed) != 0;
            let frames = self.zswap_owners().iter().zip(self.zswap_used());
            let used = frames
                .filter(owned)
                .map(|(_, n)| u64::from(n.load(Relaxed)));
            usage.used = used.sum();
        }
        usage
    }
}

/// What compressed memory takes, and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZswapUsage {
    /// Memory that it takes, bytes.
    pub bytes: u64,
    /// Of that, bytes in use.
    pub used: u64,
    /// Base pages that it holds.
    pub pages: u64,
}

fn is_memory(area: &Area) -> bool {
    area.kind.load(Relaxed) == Kind::Memory as u32
}
