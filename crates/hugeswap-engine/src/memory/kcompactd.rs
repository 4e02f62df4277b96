//! kcompactd: works for huge pages to be available.
//!
//! Within the budget that is kswapd's work: a fault that found no huge page and does not wait has
//! kswapd keep more available ([`Memory::wake_for_huge`]). What is left is the machine's memory. A
//! frame consists of base pages if the kernel had no huge page when the frame was first touched,
//! and stays so. Free frames are looked at after they have become free, a few at a time, and made
//! huge by the kernel on request (MADV_COLLAPSE). Both back off after failures.
//!
//! khugepaged's thread does the second, outside the gate but for one frame at a time. A frame that
//! it looks at is not available to other threads.

use crate::memory::Memory;
use hugeswap_policy::counters::Counter;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

/// Frames looked at in one go (a microsecond each), and made huge (some milliseconds).
const LOOKS: usize = 64;

const COLLAPSES: u32 = 4;

impl Memory {
    /// A thread that does not wait has found no huge page: kswapd makes as many available as faults
    /// on huge pages need. The rules of the fault path hold.
    pub(crate) fn wake_for_huge(&self) {
        if self.kcompactd.reclaim.passes() {
            return;
        }
        self.pool.count(Counter::CompactDaemonWake, 1);
        self.frame_demand.raise();
        self.kcompactd.asked.store(true, Relaxed);
        self.kick_if_idle();
    }

    /// kswapd: what came of that, `success` or not.
    pub(crate) fn woken_for_huge(&self, success: bool) {
        if self.kcompactd.asked.swap(false, AcqRel) {
            self.kcompactd.reclaim.ended(success);
        }
    }

    /// kswapd: are there free frames to be looked at, by khugepaged's thread? (Those that no thread
    /// has looked at since they are free, or that could not be made huge.)
    pub(crate) fn has_frames_to_compact(&self) -> bool {
        let k = &self.kcompactd;
        let wanted = self.arena.any_to_look_at() && self.memory_is_plenty();
        let due = wanted && !k.frames.passes();
        if due {
            k.look.store(true, Relaxed);
        }
        due
    }

    /// Looks at free frames, if that is to be done, and makes huge what is not.
    pub(crate) fn compact_frames(&self) {
        let k = &self.kcompactd;
        if !k.look.swap(false, AcqRel) {
            return;
        }
        let mut made = 0;
        for _ in 0..LOOKS {
            let _inside = self.gate.enter_daemon();
            let Some(place) = self.arena.take_to_look_at() else {
                return;
            };
            let at = self.arena.addr(place);
            let done = match self.backend.is_huge(at) {
                Some(false) => Some(self.backend.make_huge(at)),
                _ => None,
            };
            self.arena.put_looked_at(place, done == Some(false));
            self.note_available();
            match done {
                None => {}
                Some(true) => {
                    self.pool.count(Counter::CompactDaemonSuccess, 1);
                    k.frames.ended(true);
                    made += 1;
                    if made == COLLAPSES {
                        return;
                    }
                }
                Some(false) => {
                    self.pool.count(Counter::CompactDaemonFail, 1);
                    return k.frames.ended(false);
                }
            }
            // A frame that is being looked at is one less to be had.
            if self.stopping.load(Acquire) || !self.memory_is_plenty() {
                return;
            }
        }
    }
}
