//! Compressed memory gets its frames from kswapd, and has them made empty by a thread of its own
//! ([`crate::store::zswap`] has the rest).

use crate::memory::Memory;
use crate::store::zswap::shrink::{Shrinker, Shrunk};
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
        z.started.load(Relaxed) && (short || z.is_eager()) && z.wants_frame()
    }

    /// kswapd: gives compressed memory a frame. Did it?
    pub(crate) fn feed_zswap(&self) -> bool {
        let z = &self.store.zswap;
        // What it is charged stays charged.
        let Some(frame) = self.get_frame_nowait() else {
            return false;
        };
        if !z.supply() {
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
