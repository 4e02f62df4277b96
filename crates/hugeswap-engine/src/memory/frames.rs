//! Where frames come from, in this order: free frames of the thread's node, the rest of the budget,
//! free base pages, free frames of other nodes, the oldest clean unit that is watched or cached (or
//! the oldest rest of one, [`Rests`](super::rests::Rests)), and other processes ([`hugeswap_policy::defrag::frames`] has the lists, the charges and the
//! order, and is checked against a model). The lists of free frames and empty places take no lock.
//! A thread that finds little left wakes kswapd; a thread that finds nothing waits for it.
//!
//! The fault path calls this, and its rules hold here (see `fault`). So do kswapd and the I/O
//! threads.

use crate::memory::Memory;
use crate::memory::take::is_takeable;
use hugeswap_policy::defrag::frames::{self, Credits, Frame, Sources};
use hugeswap_policy::defrag::gfp::Gfp;
use hugeswap_policy::numa;
use hugeswap_policy::unit::{Kind, LOCKED};
use hugeswap_policy::{PAGE_BYTES, UNIT_BYTES, UNIT_PAGES};
use std::sync::atomic::AtomicU64;

impl Sources for Memory {
    type Word = AtomicU64;

    fn take_free(&self, nodes: &[u8]) -> Option<u32> {
        self.arena.take_free(nodes)
    }

    fn take_fresh(&self) -> Option<u32> {
        self.arena.take_fresh()
    }

    fn charge(&self) -> bool {
        self.pool.charge(self.pool.me(), 1)
    }

    fn uncharge(&self) {
        self.pool.uncharge(self.pool.me(), 1);
    }

    /// Of a unit that was not touched since it was watched, or the rest of one that was.
    fn take_clean(&self, nodes: &[u8]) -> Option<u32> {
        // Rests that are more than the watched units are older, too.
        if self.rests.len() > self.table.watched()
            && let Some(place) = self.rests.take()
        {
            return Some(place);
        }
        while let Some(unit) = self.clean.pop(nodes) {
            let Some(w) = self.table.try_lock_if(unit, is_takeable) else {
                let w = self.table.load(unit);
                if w.has(LOCKED) && matches!(w.kind(), Kind::Present | Kind::Cached) {
                    // The thread that has it locked may leave it as it is: the lists bring it back
                    // here.
                    self.note_resident(unit);
                }
                continue;
            };
            // If it failed, the unit may have been dropped: then there is room for a fresh frame.
            return self.take_locked(w);
        }
        self.rests.take()
    }

    fn discard(&self, place: u32) {
        self.arena.discard(place);
    }

    fn credits(&self) -> &Credits<AtomicU64> {
        self.base.credits()
    }

    fn shed(&self, left: u64) {
        self.backend.shed(left as i64);
    }
}

impl Memory {
    /// A frame without waiting: a free one, a fresh one within the budget, or that of the
    /// oldest watched clean unit.
    pub(crate) fn get_frame_nowait(&self) -> Option<Frame> {
        self.frame_of(Gfp::USER, None)
    }

    /// The same of the nodes that `gfp` allows, `wanted` (else the caller's) first.
    pub(crate) fn frame_of(&self, gfp: Gfp, wanted: Option<u8>) -> Option<Frame> {
        match self.leaves_reserve(UNIT_PAGES) {
            true => self.frame_from(gfp, wanted),
            false => None,
        }
    }

    /// [`Memory::get_frame_nowait`], also of those that are not for programs.
    pub(crate) fn any_frame(&self) -> Option<Frame> {
        self.frame_from(Gfp::USER, None)
    }

    fn frame_from(&self, gfp: Gfp, wanted: Option<u8>) -> Option<Frame> {
        self.frame_demand.note();
        let numa = &self.arena.numa;
        let here = numa.here().node;
        let wanted = wanted.unwrap_or(here);
        let nodes = gfp.nodes(numa.near(wanted));
        let frame = frames::take_frame(self, nodes, self.backend.can().has_single_pages())?;
        self.count_node(wanted, numa.of_place(frame.place), here, 1);
        self.took_frame();
        Some(frame)
    }

    /// `n` frames came from node `got`, wanted on `wanted` by a thread on `here`.
    pub(crate) fn count_node(&self, wanted: u8, got: u8, here: u8, n: u64) {
        if self.arena.numa.nodes() > 1 {
            numa::events(wanted, got, here).for_each(|c| self.pool.count(c, n));
        }
    }

    /// The nodes in the order in which the caller does without their frames.
    pub(crate) fn far_nodes(&self) -> &[u8] {
        self.arena.numa.far(self.arena.numa.here().node)
    }

    /// The node that the memory at `addr` is on, as far as that is known: by the machine's number,
    /// or the pretended one. None: it is not in a huge page, or not in memory.
    pub fn node_of(&self, addr: usize) -> Option<usize> {
        let unit = self.table.unit_of(addr)?;
        let there = matches!(self.table.load(unit).kind(), Kind::Present | Kind::Cached);
        let numa = &self.arena.numa;
        there.then(|| numa.number(numa.of_unit(unit)))
    }

    /// Memory that is not in use, bytes: the rest of the budget, and what of this process's is
    /// charged and free (not what is watched). All of it, and what of it is in whole frames.
    pub fn free_bytes(&self) -> (u64, u64) {
        let rest = self.pool.frames().saturating_sub(self.pool.used_frames());
        let frames = rest + self.arena.free_frames() + self.base.credits().frames();
        let pages = self.base.credits().pages() % UNIT_PAGES;
        let in_frames = frames * UNIT_BYTES;
        (in_frames + pages * PAGE_BYTES, in_frames)
    }

    /// Gives a frame of this process's that is free, or clean and watched, back to the pool.
    pub(crate) fn hand_back_one(&self) -> bool {
        frames::hand_back(self, self.far_nodes())
    }
}
