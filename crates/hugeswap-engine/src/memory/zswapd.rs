//! Compressed memory gets its frames from kswapd, and has them made empty by a thread of its own
//! ([`crate::store::zswap`] has the rest). From kswapd come the frames of buffers, too
//! ([`crate::store::buffers`]).

use crate::memory::Memory;
use crate::store::zswap::RESERVE;
use crate::store::zswap::shrink::{Shrinker, Shrunk};
use hugeswap_policy::UNIT_PAGES;
use hugeswap_sys::{futex, now_ns};
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// Without work the thread looks again after so long.
const IDLE_NS: u64 = 1_000_000_000;
/// It rests so long after swap did not take a page.
const REST_NS: u64 = 10_000_000;

impl Memory {
    /// kswapd: is compressed memory to have one more frame? Mostly when one comes to be free while
    /// memory is `short`, for then pages will be stored.
    pub(crate) fn zswap_grows(&self, short: bool) -> bool {
        let z = &self.store.zswap;
        z.started.load(Relaxed)
            && z.wants_frame(short, self.is_waited_for())
            && (short || z.is_eager())
    }

    /// Does a thread wait for memory, or another process for some of this one's?
    fn is_waited_for(&self) -> bool {
        self.stalled.load(Relaxed) > 0 || self.frames_owed() > 0
    }

    /// May a program have `pages` pages now? Not those that compressed memory lacks to take
    /// anything in, where memory has nothing else to leave to: then nothing would come free any
    /// more.
    pub(crate) fn leaves_reserve(&self, pages: u64) -> bool {
        match self.store.zswap.lacking() {
            0 => true,
            lacking => self.have().0 >= lacking * UNIT_PAGES + pages,
        }
    }

    /// kswapd: compressed memory gets the frames that it lacks to take anything in. Where a thread
    /// waits, or another process, and there are none, beyond the budget, which is kept to again when
    /// there are. Did it get any?
    pub(crate) fn feed_reserve(&self) -> bool {
        let z = &self.store.zswap;
        if !z.started.load(Relaxed) || z.lacking() == 0 {
            let taken = z.has_reserve() || self.pool.record().buffers.load(Relaxed) > 0;
            let over = taken && self.pool.used_frames() > self.pool.frames();
            return over && self.have().0 >= UNIT_PAGES && self.hand_back_one();
        }
        if self.feed_zswap() {
            return true;
        }
        let (used, all) = (self.pool.used_frames(), self.pool.frames());
        let most = all + RESERVE + u64::from(z.is_loose());
        if !self.is_waited_for() || used >= most {
            return false;
        }
        self.pool.charge_over(self.pool.me());
        let fed = z.supply();
        if !fed {
            self.pool.uncharge(self.pool.me(), 1);
        }
        fed
    }

    /// kswapd: gives compressed memory a frame. Did it?
    pub(crate) fn feed_zswap(&self) -> bool {
        self.give_frame(|| self.store.zswap.supply())
    }

    /// kswapd: a buffer gets a frame, if a thread has done without one and there is a frame to spare.
    /// Did it?
    pub(crate) fn feed_buffers(&self) -> bool {
        self.store.wants_buffer()
            && self.leaves_reserve(UNIT_PAGES)
            && self.give_frame(|| self.store.supply_buffer())
    }

    /// A frame goes to other memory of this process, which `takes` it or not: what it is charged stays
    /// charged. Did it?
    fn give_frame(&self, takes: impl FnOnce() -> bool) -> bool {
        let Some(frame) = self.any_frame() else {
            return false;
        };
        if !takes() {
            self.arena.put_free(frame.place);
            return false;
        }
        self.arena.discard(frame.place);
        true
    }

    /// The thread's body.
    pub(crate) fn zswapd(&self) {
        let z = &self.store.zswap;
        let Some(mut with) = Shrinker::new() else {
            return z.started.store(false, Relaxed);
        };
        let mut idle = false;
        loop {
            let seen = z.call.load(Acquire);
            if self.stopping.load(Acquire) {
                return;
            }
            let shrunk = {
                let _inside = self.gate.enter_daemon();
                self.store.shrink_zswap(&mut with, idle)
            };
            let began = now_ns();
            match shrunk {
                Shrunk::Some => self.note_available(),
                Shrunk::Nothing => futex::wait(&z.call, seen, Some(IDLE_NS), false),
                Shrunk::Failed => futex::wait(
                    &self.work_seq,
                    self.work_seq.load(Relaxed),
                    Some(REST_NS),
                    false,
                ),
            }
            idle = shrunk == Shrunk::Nothing && now_ns() - began >= IDLE_NS;
        }
    }
}
