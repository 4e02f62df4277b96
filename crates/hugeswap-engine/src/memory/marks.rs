//! How much memory is available, and the watermarks that it is compared with.
//!
//! *Available* is what a fault could have at once: free frames, free base pages, clean units that
//! are watched or cached, and what is left of the budget. Below `low` (1/16 of the process's share,
//! at most 32 units) faults wake kswapd. It works until `high` (1/8, at most 64 units), and counts
//! writes under way as available. Up to `min` (half of `low`) is not for huge pages whose place
//! base pages can take. Where little but base pages is asked for, `low` is 384 pages and `high` 768,
//! and less than half of that where no more than one thread waits for swap.
//! `hugeswap_policy::watermark` has the rule, and how settings and shortage move the marks.
//!
//! The rules of the fault path hold.

use crate::memory::Memory;
use hugeswap_policy::UNIT_PAGES;
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::watermark::{Boost, Demand, Setting, Watermarks};
use hugeswap_sys::process;
use std::sync::atomic::Ordering::Relaxed;

/// Of so few frames units are taken one at a time, and only for a thread that waits: an instruction
/// may need two units at once, and would never end if the first went each time the second came.
const FEW_FRAMES: u64 = 4;
/// Write-outs under way at one time.
pub(crate) const WRITE_DEPTH: u32 = 8;

impl Memory {
    /// The marks of this process for its `share` of the budget, as they are set.
    pub(crate) fn marks(&self, share: u64) -> Watermarks {
        let setting = Setting {
            min_free_kbytes: self.pool.knob(Knob::MinFreeKbytes),
            scale_factor: self.pool.knob(Knob::WatermarkScale),
        };
        let demand = match (self.frame_demand.is_low(), self.sizes.is_alone()) {
            (false, _) => Demand::Huge,
            (true, false) => Demand::Pages,
            (true, true) => Demand::PagesInTurn,
        };
        Watermarks::of(share, demand, setting)
    }

    /// The same, raised as it may be at the moment.
    pub(crate) fn raised_marks(&self, share: u64) -> Watermarks {
        let marks = self.marks(share);
        match self.pacing.boost() {
            Boost(0) => marks,
            boost => marks.boosted(boost.of(marks, share)),
        }
    }

    /// There is less than there should be: kswapd is to make more for a while.
    pub(crate) fn boost_marks(&self, marks: Watermarks) {
        let factor = self.pool.knob(Knob::WatermarkBoost);
        let boost = self.pacing.boost().on_shortage(marks, factor);
        self.pacing.boost.store(boost.0, Relaxed);
    }

    /// Pages that a fault could have at once, and the share of the budget, in frames, that the marks
    /// go by.
    pub(crate) fn have(&self) -> (u64, u64) {
        let (used, live) = self.pool.live().fold((0, 0u64), |(u, n), (_, r)| {
            (u + r.charged.load(Relaxed), n + 1)
        });
        let used = used + self.pool.shared_frames();
        let frames = self.pool.frames();
        let own = self.arena.free_frames()
            + self.table.watched()
            + self.rests.len()
            + frames.saturating_sub(used);
        let share = (frames / live.max(1)).max(self.pool.record().charged.load(Relaxed));
        // What has to be given back, since the budget is smaller now, is not available.
        let excess = self.pool.excess_of(self.pool.me());
        let pages = own * UNIT_PAGES + self.base.credits().pages();
        (pages.saturating_sub(excess * UNIT_PAGES), share)
    }

    /// Pages that a fault could have, and the marks they are held against.
    pub(crate) fn available(&self) -> (u64, Watermarks) {
        let (available, share) = self.have();
        (available, self.raised_marks(share))
    }

    /// Is no less available than kswapd stops at?
    pub(crate) fn memory_is_plenty(&self) -> bool {
        let (available, marks) = self.available();
        available >= marks.high
    }

    /// Frames that this process has to give back: to processes that asked, or to the machine since
    /// the budget is smaller now.
    pub(crate) fn frames_owed(&self) -> u64 {
        let asked = self.pool.record().give_back.load(Relaxed);
        match self.has_few_frames() {
            true => asked,
            false => asked.max(self.pool.excess_of(self.pool.me())),
        }
    }

    pub(crate) fn has_few_frames(&self) -> bool {
        self.pool.record().uncompressed() <= FEW_FRAMES
    }

    /// Something was taken.
    pub(crate) fn check_watermark(&self) {
        let (available, marks) = self.available();
        if available < marks.low {
            self.kick_if_idle();
        }
    }

    /// The same of a frame's worth.
    pub(crate) fn took_frame(&self) {
        let (available, share) = self.have();
        if available < self.raised_marks(share).low {
            self.kick_if_idle();
            self.note_taken(available, self.marks(share));
        }
    }

    /// Wakes kswapd if it is not at work anyway.
    pub(crate) fn kick_if_idle(&self) {
        if self.inflight_writes.load(Relaxed) < WRITE_DEPTH {
            self.pool.kick();
        }
    }

    /// A frame's worth was taken, and so many pages are `available`.
    pub(crate) fn note_taken(&self, available: u64, marks: Watermarks) {
        if available >= marks.low {
            return;
        }
        if available < marks.min.max(1) {
            self.boost_marks(marks);
        }
        // A thread that serves other threads' faults would hold those up.
        if self.backend.can().faults_are_messages {
            return;
        }
        let tid = process::tid();
        self.pacing.place(tid).store(tid, Relaxed);
        self.pacing.any.store(1, Relaxed);
    }

    /// Does any thread wait for memory, or pause?
    pub(crate) fn somebody_waits(&self) -> bool {
        self.stalled.load(Relaxed) > 0 || self.pacing.paused.load(Relaxed) > 0
    }
}
