//! The arena: where frames live while no region maps them.
//!
//! A *place* is 2 MiB of arena address space; it holds a frame (2 MiB of real memory) or is empty.
//! Frames are recycled: a fresh huge page costs hundreds of microseconds in a VM, a recycled one
//! nothing.
//!
//! Lists without a lock say which places are free or empty, by node and processor
//! ([`hugeswap_policy::defrag::frames`]). [`Numa`] says on which node the frame of a place is.

use crate::UNIT;
use crate::numa::Numa;
use crate::zeroed::Zeroed;
use hugeswap_policy::UNIT_SHIFT;
use hugeswap_policy::defrag::frames::{Here, Lists};
use hugeswap_sys::{Result, mm};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// The arena of a process: its addresses, and the lists of its free and empty places.
pub struct Arena {
    base: usize,
    places: u32,
    /// Places set apart are for fresh frames. With userfaultfd the others are
    /// registered, as MOVE asks of its destination, and must not be touched while empty.
    lists: Lists<AtomicU64, Zeroed<AtomicU32>, AtomicU32>,
    pub numa: Numa,
}

impl Arena {
    /// An arena of `places` empty places, and if `registered` as many again for fresh frames.
    /// `units` are what its frames are for; `fake` nodes are pretended, if that is not 0.
    pub fn new(places: u32, registered: bool, units: u32, fake: usize) -> Result<Arena> {
        let fresh_from = places;
        let places = if registered { places * 2 } else { places };
        let numa = Numa::new(fake, units, places)?;
        let next = Zeroed::new(places as usize)?;
        let zero = || AtomicU64::new(0);
        let lists = Lists::new(zero, next, numa.nodes(), numa.shards(), fresh_from);
        let len = (places as usize + 1) << UNIT_SHIFT;
        let raw = mm::map_own(len, mm::PROT_RW)?;
        let base = raw.next_multiple_of(UNIT);
        // SAFETY: the slack before and after the aligned part, unused.
        unsafe {
            if base > raw {
                let _ = mm::unmap(raw, base - raw);
            }
            let end = base + ((places as usize) << UNIT_SHIFT);
            let _ = mm::unmap(end, raw + len - end);
        }
        Self::advise(base, (places as usize) << UNIT_SHIFT);
        Ok(Arena {
            base,
            places,
            lists,
            numa,
        })
    }

    fn advise(at: usize, len: usize) {
        // SAFETY: advice on the arena's own range that discards nothing. Fork is dealt with by
        // making the child's arena anew.
        let _ = unsafe { mm::advise(at, len, libc::MADV_HUGEPAGE) };
    }

    /// First address and length of the places that frames can be moved to.
    pub fn destinations(&self) -> (usize, usize) {
        (self.base, (self.lists.fresh_from() as usize) << UNIT_SHIFT)
    }

    /// First address and length of all places.
    pub fn range(&self) -> (usize, usize) {
        (self.base, (self.places as usize) << UNIT_SHIFT)
    }

    /// Address of a place.
    pub fn addr(&self, place: u32) -> usize {
        debug_assert!(place < self.places);
        self.base + ((place as usize) << UNIT_SHIFT)
    }

    /// How many frames are free (a moment ago).
    pub fn free_frames(&self) -> u64 {
        self.lists.free()
    }

    /// How many are free on the node of the calling thread.
    pub fn free_frames_here(&self) -> u64 {
        self.lists.free_of(self.numa.here().node)
    }

    /// How many places there are, and how many hold a free frame or nothing, counted one by one.
    /// Only while the engine is at rest.
    pub fn counts(&self) -> (u32, u32) {
        let (free, empty) = self.lists.count();
        (self.places, (free + empty) as u32)
    }

    /// Takes a free frame, of the first of these nodes that has any: the place it stands in,
    /// readable and writable, with old bytes in it.
    pub fn take_free(&self, nodes: &[u8]) -> Option<u32> {
        self.lists.take_free(self.numa.here(), nodes)
    }

    /// Takes a free frame that no thread has examined since it became free.
    pub fn take_to_look_at(&self) -> Option<u32> {
        self.lists.take_to_look_at(self.numa.here())
    }

    /// Is there one?
    pub fn any_to_look_at(&self) -> bool {
        self.lists.any_to_look_at()
    }

    /// Takes an empty place. There is one for every frame the process can hold, so this only fails
    /// if that invariant is broken, or for a moment while they are mapped anew.
    pub fn take_empty(&self) -> Option<u32> {
        self.lists.take_empty(self.numa.here())
    }

    /// Takes an empty place fit to be faulted in fresh, zeroed, by the calling thread.
    pub fn take_fresh(&self) -> Option<u32> {
        let here = self.numa.here();
        let place = if self.lists.fresh_from() < self.places {
            self.lists.take_fresh(here)?
        } else {
            let place = self.lists.take_empty(here)?;
            let at = self.addr(place);
            // SAFETY: an empty place is not in use; mapping it anew discards nothing.
            if unsafe { mm::map_anon(at, UNIT, mm::PROT_RW, true) }.is_err() {
                self.put_empty(place);
                return None;
            }
            Self::advise(at, UNIT);
            place
        };
        self.numa.set_place(place, here.node);
        Some(place)
    }

    /// Returns a frame: its place is readable and writable.
    pub fn put_free(&self, place: u32) {
        self.numa.ask_place(place, self.addr(place));
        self.list(place, false);
    }

    /// Returns one that was taken to be looked at; `again`: it is to be looked at again.
    pub fn put_looked_at(&self, place: u32, again: bool) {
        self.list(place, !again);
    }

    fn list(&self, place: u32, looked: bool) {
        let node = self.numa.of_place(place);
        let here = self.numa.here();
        self.lists.put_free(Here { node, ..here }, place, looked);
    }

    /// Returns a place whose frame went elsewhere.
    pub fn put_empty(&self, place: u32) {
        self.lists.put_empty(self.numa.here(), place);
    }

    /// Hands the memory of a frame back to the kernel; its place is empty then.
    pub fn discard(&self, place: u32) {
        // SAFETY: the frame is the caller's and holds nothing that counts.
        let _ = unsafe { mm::advise(self.addr(place), UNIT, libc::MADV_DONTNEED) };
        self.put_empty(place);
    }

    /// Maps the empty places anew where neighbours can become one mapping.
    pub fn merge_empty(&self) {
        self.lists.each_empty(|place| {
            let at = self.addr(place);
            // SAFETY: an empty place is not in use, and cannot be taken meanwhile.
            if unsafe { mm::map_anon(at, UNIT, mm::PROT_RW, true) }.is_ok() {
                Self::advise(at, UNIT);
            }
        });
    }

    /// Keeps the arena out of a child about to be forked (or no longer): a shared frame could
    /// neither be read into nor moved without being copied by base pages first. Only while nobody
    /// moves frames, for in signal mode the mark would move along.
    pub fn inherit(&self, inherit: bool) {
        let (base, len) = self.range();
        let advice = if inherit {
            libc::MADV_DOFORK
        } else {
            libc::MADV_DONTFORK
        };
        // SAFETY: advice that discards nothing in this process.
        let _ = unsafe { mm::advise(base, len, advice) };
    }

    /// In a forked child, which did not inherit the arena: starts empty.
    pub fn reset_in_child(&self) -> Result<()> {
        let (base, len) = self.range();
        // SAFETY: the child is single-threaded here and its units no longer refer to places.
        unsafe { mm::map_anon(base, len, mm::PROT_RW, true) }?;
        Self::advise(base, len);
        // Nothing is registered in a child, so no place is set apart.
        self.lists.reset(self.places);
        Ok(())
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let (base, len) = self.range();
        // SAFETY: the engine that owns the arena is gone.
        let _ = unsafe { mm::unmap(base, len) };
    }
}
