//! The arena: where frames live while no region maps them.
//!
//! A *place* is 2 MiB of arena address space; it holds a frame (2 MiB of real memory) or is
//! empty. Frames are recycled: a fresh huge page costs hundreds of microseconds in a VM, a recycled one nothing.
//!
//! Concurrency: two stacks of place numbers under one engine lock, held for a few instructions.

use crate::lock::Lock;
use hugeswap_policy::{UNIT_BYTES, UNIT_SHIFT};
use hugeswap_sys::{Result, mm};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

const UNIT: usize = UNIT_BYTES as usize;

struct Stacks {
    /// Places that hold a frame nobody uses.
    free: Stack,
    /// Places without a frame.
    empty: Stack,
    /// Places without a frame where a fresh one may be faulted in, if those are set apart.
    fresh: Stack,
}

/// Place numbers, with room for every place there is: the fault path pushes, and must not allocate.
struct Stack {
    places: Box<[u32]>,
    len: usize,
}

impl Stack {
    fn with_room(n: u32) -> Stack {
        Stack {
            places: vec![0; n as usize].into_boxed_slice(),
            len: 0,
        }
    }

    fn push(&mut self, place: u32) {
        // Each place is in one stack at most, so there is always room.
        self.places[self.len] = place;
        self.len += 1;
    }

    fn pop(&mut self) -> Option<u32> {
        self.len = self.len.checked_sub(1)?;
        Some(self.places[self.len])
    }

    fn set(&mut self, places: impl Iterator<Item = u32>) {
        self.len = 0;
        places.for_each(|p| self.push(p));
    }

    fn as_slice(&self) -> &[u32] {
        &self.places[..self.len]
    }
}

/// See the file's head.
pub struct Arena {
    base: usize,
    places: u32,
    /// Places from here on are set apart for fresh frames. With userfaultfd the others are
    /// registered, as MOVE asks of its destination, and must not be touched while empty.
    fresh_from: AtomicU32,
    stacks: Lock<Stacks>,
    free: AtomicU64,
}

impl Arena {
    /// An arena of `places` empty places, and if `registered` as many again for fresh frames.
    pub fn new(places: u32, registered: bool) -> Result<Arena> {
        let fresh_from = places;
        let places = if registered { places * 2 } else { places };
        let len = (places as usize + 1) << UNIT_SHIFT;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let raw = unsafe { mm::map_anon(0, len, mm::PROT_RW, false) }?;
        let base = raw.next_multiple_of(UNIT);
        // SAFETY: the slack before and after the aligned part, unused.
        unsafe {
            if base > raw {
                let _ = mm::unmap(raw, base - raw);
            }
            let end = base + ((places as usize) << UNIT_SHIFT);
            let _ = mm::unmap(end, raw + len - end);
        }
        let arena = Arena {
            base,
            places,
            fresh_from: AtomicU32::new(fresh_from),
            stacks: Lock::new(Stacks {
                free: Stack::with_room(places),
                empty: Stack::with_room(places),
                fresh: Stack::with_room(places),
            }),
            free: AtomicU64::new(0),
        };
        arena.all_empty();
        Self::advise(base, (places as usize) << UNIT_SHIFT);
        Ok(arena)
    }

    fn all_empty(&self) {
        let mut s = self.stacks.lock();
        let fresh_from = self.fresh_from.load(Relaxed);
        s.free.set(std::iter::empty());
        s.empty.set((0..fresh_from).rev());
        s.fresh.set((fresh_from..self.places).rev());
        self.free.store(0, Relaxed);
    }

    fn advise(at: usize, len: usize) {
        // SAFETY: advice on the arena's own range that discards nothing. Fork is dealt with by making the
        // child's arena anew.
        let _ = unsafe { mm::advise(at, len, libc::MADV_HUGEPAGE) };
    }

    /// First address and length of the places that frames can be moved to.
    pub fn destinations(&self) -> (usize, usize) {
        (
            self.base,
            (self.fresh_from.load(Relaxed) as usize) << UNIT_SHIFT,
        )
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
        self.free.load(Relaxed)
    }

    /// How many places there are, and how many hold a free frame or nothing.
    pub fn counts(&self) -> (u32, u32) {
        let s = self.stacks.lock();
        (self.places, (s.free.len + s.empty.len + s.fresh.len) as u32)
    }

    /// Takes a free frame: the place it stands in, readable and writable, with old bytes in it.
    pub fn take_free(&self) -> Option<u32> {
        if self.free.load(Relaxed) == 0 {
            return None;
        }
        let place = self.stacks.lock().free.pop()?;
        self.free.fetch_sub(1, Relaxed);
        Some(place)
    }

    /// Takes an empty place. There is one for every frame the process can hold, so this only fails
    /// if that invariant is broken.
    pub fn take_empty(&self) -> Option<u32> {
        self.stacks.lock().empty.pop()
    }

    /// Takes an empty place fit to be faulted in fresh, zeroed.
    pub fn take_fresh(&self) -> Option<u32> {
        if self.fresh_from.load(Relaxed) < self.places {
            return self.stacks.lock().fresh.pop();
        }
        let place = self.take_empty()?;
        let at = self.addr(place);
        // SAFETY: an empty place is nobody's; mapping it anew discards nothing.
        if unsafe { mm::map_anon(at, UNIT, mm::PROT_RW, true) }.is_err() {
            self.put_empty(place);
            return None;
        }
        Self::advise(at, UNIT);
        Some(place)
    }

    /// Returns a frame: its place is readable and writable.
    pub fn put_free(&self, place: u32) {
        self.stacks.lock().free.push(place);
        self.free.fetch_add(1, Relaxed);
    }

    /// Returns a place whose frame went elsewhere.
    pub fn put_empty(&self, place: u32) {
        let mut s = self.stacks.lock();
        if place < self.fresh_from.load(Relaxed) {
            s.empty.push(place)
        } else {
            s.fresh.push(place)
        }
    }

    /// Hands the memory of a frame back to the kernel; its place is empty then.
    pub fn discard(&self, place: u32) {
        // SAFETY: the frame is the caller's and holds nothing that counts.
        let _ = unsafe { mm::advise(self.addr(place), UNIT, libc::MADV_DONTNEED) };
        self.put_empty(place);
    }

    /// Maps the empty places anew where neighbours can become one mapping.
    pub fn merge_empty(&self) {
        let s = self.stacks.lock();
        for &place in s.empty.as_slice() {
            let at = self.addr(place);
            // SAFETY: an empty place is nobody's, and cannot be taken while the lock is held.
            if unsafe { mm::map_anon(at, UNIT, mm::PROT_RW, true) }.is_ok() {
                Self::advise(at, UNIT);
            }
        }
    }

    /// Keeps the arena out of a child about to be forked (or no longer): a shared frame could neither be
    /// read into nor moved without being copied by base pages first. Only while nobody moves frames, for in signal mode
    /// the mark would move along.
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
        self.fresh_from.store(self.places, Relaxed);
        self.all_empty();
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
