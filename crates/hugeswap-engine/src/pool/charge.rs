//! What processes hold of the pool: frames charged against the budget, and bytes promised against
//! budget and swap together.
//!
//! Neither total is stored. Both are sums over the live processes, so a process that dies at any
//! instant takes nothing with it.

use super::Pool;
use super::layout::{Record, state};
use hugeswap_policy::defrag::frames;
use hugeswap_sys::futex;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};

impl Pool {
    /// Frames charged over all processes, and to shared regions.
    pub fn used_frames(&self) -> u64 {
        let own: u64 = self.live().map(|(_, r)| r.charged.load(Relaxed)).sum();
        own + self.zswap_of_the_gone() + self.shared_frames()
    }

    /// Of these, frames of buffers, which are free when no process writes to swap.
    pub(super) fn buffer_frames(&self) -> u64 {
        self.live().map(|(_, r)| r.buffers.load(Relaxed)).sum()
    }

    /// Frames of compressed memory of processes that are gone, whose children may read there.
    fn zswap_of_the_gone(&self) -> u64 {
        let gone = |r: &&Record| r.state() == state::ZOMBIE;
        let used = self.used().map(|(_, r)| r).filter(gone);
        used.map(|r| r.zswap.load(Relaxed)).sum()
    }

    /// Tries to charge `n` more frames to record `me`. Two processes that try for the last
    /// frames at once may both be refused; both then reclaim or try again.
    pub fn charge(&self, me: usize, n: u64) -> bool {
        let own = &self.records()[me].charged;
        let Some(used) = frames::charge(own, n, || self.used_frames(), self.frames()) else {
            return false;
        };
        let peak = &self.header().peak_frames;
        // (Mostly it is not, and then no other processor's cache is disturbed.)
        if peak.load(Relaxed) < used {
            peak.fetch_max(used, Relaxed);
        }
        true
    }

    /// Frames that are the kernel's.
    pub fn foreign_frames(&self) -> u64 {
        self.live().map(|(_, r)| r.foreign.load(Relaxed)).sum()
    }

    /// One more frame of record `me`'s becomes the kernel's, unless that leaves too few for
    /// all other memory: an instruction may need two to come in, and calls that have no other
    /// way hold two.
    pub fn hand_to_kernel(&self, me: usize) -> bool {
        let frames = self.frames();
        let rest = (frames / 8).clamp(4.min(frames / 2), 64);
        let fits = self.foreign_frames() < frames - rest;
        if fits {
            self.hand_over_to_kernel(me);
        }
        fits
    }

    /// The same, however few that leaves.
    pub fn hand_over_to_kernel(&self, me: usize) {
        self.records()[me].foreign.fetch_add(1, Relaxed);
    }

    /// `n` frames of record `me`'s are the kernel's no longer.
    pub fn take_from_kernel(&self, me: usize, n: u64) {
        self.records()[me].foreign.fetch_sub(n, Relaxed);
    }

    /// Charges a frame whatever the budget says: for a thread that is forking, which no thread can
    /// make room for.
    pub fn charge_over(&self, me: usize) {
        self.records()[me].charged.fetch_add(1, AcqRel);
    }

    /// Charges record `me` a frame for a buffer, if need be beyond the budget: for a thread that has to
    /// have one. kswapd makes up for it.
    pub fn charge_buffer(&self, me: usize) {
        if !self.charge(me, 1) {
            self.charge_over(me);
        }
        self.note_buffer(me);
    }

    /// A frame that record `me` is charged is for a buffer now.
    pub fn note_buffer(&self, me: usize) {
        self.records()[me].buffers.fetch_add(1, AcqRel);
    }

    /// The frame of such a buffer is not in use any more.
    pub fn uncharge_buffer(&self, me: usize) {
        self.records()[me].buffers.fetch_sub(1, AcqRel);
        self.uncharge(me, 1);
    }

    /// Gives `n` frames of record `me` back to the pool and wakes the threads that wait for them.
    pub fn uncharge(&self, me: usize, n: u64) {
        if n > 0 {
            // What a process inherited by fork it was never charged for.
            let charged = &self.records()[me].charged;
            let _ = charged.fetch_update(AcqRel, Relaxed, |c| Some(c.saturating_sub(n)));
            self.note_release();
        }
    }

    pub(crate) fn note_release(&self) {
        let word = &self.header().released;
        word.fetch_add(1, Release);
        futex::wake(word, i32::MAX as u32, true);
    }

    /// Changes the managed bytes of record `me`; false, and nothing changed, if the pool
    /// could not honour them.
    pub fn commit(&self, me: usize, bytes: u64) -> bool {
        let r = &self.records()[me];
        r.managed.fetch_add(bytes, AcqRel);
        let own: u64 = self.live().map(|(_, r)| r.managed.load(Relaxed)).sum();
        let total = own.saturating_add(self.shared_bytes());
        if total > self.capacity_bytes() {
            r.managed.fetch_sub(bytes, AcqRel);
            return false;
        }
        true
    }

    /// Managed memory that holds something, in memory or in swap, bytes: by whole units, but for
    /// base-mapped ones. What a forked child shares with its parent counts once.
    pub fn touched_bytes(&self) -> u64 {
        // (A process that died is not in the pool any more, but has not been cleaned up after: the
        // last look at what it had.)
        let there = |r: &&Record| matches!(r.state(), state::LIVE | state::REAPING);
        let used = self.used().map(|(_, r)| r);
        used.filter(there).map(Record::touched_bytes).sum::<u64>() + self.shared_touched_bytes()
    }

    /// The peak of [`Pool::touched_bytes`] is at least what it is now: to be called before it
    /// becomes less.
    pub fn note_touched(&self) {
        let peak = &self.header().peak_managed;
        peak.fetch_max(self.touched_bytes(), Relaxed);
    }

    /// Takes managed bytes back.
    pub fn uncommit(&self, me: usize, bytes: u64) {
        self.records()[me].managed.fetch_sub(bytes, AcqRel);
    }
}
