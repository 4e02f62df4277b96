//! How much room is left in swap: areas that cannot grow for want of space on their disk, and the warning before all are full.
//!
//! An area whose file system has no space left gives what it has: its slots without blocks are passed over for a while, then tried
//! again, for somebody may have freed some. Meanwhile it counts as no larger than it is.

use super::Pool;
use hugeswap_policy::UNIT_BYTES;
use hugeswap_policy::slots::area;
use hugeswap_sys::now_ns;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// So long an area that found no room does not try to grow. Shorter than those wait who find no memory.
const RETRY_NS: u64 = 500_000_000;
/// No more often is it looked how full swap is.
const LOOK_NS: u64 = 1_000_000_000;
/// Swap is nearly full when so many percent of it are in use.
pub const SOFT_FULL_PERCENT: u64 = 90;

impl Pool {
    /// May number `area` be tried to grow?
    pub(crate) fn may_grow(&self, area: usize) -> bool {
        let since = self.header().areas[area].no_room.load(Relaxed);
        since == 0 || now_ns().saturating_sub(since) > RETRY_NS
    }

    /// Number `area` has grown, or could not.
    pub(crate) fn note_room(&self, area: usize, there_was: bool) {
        let now = if there_was { 0 } else { now_ns().max(1) };
        let cell = &self.header().areas[area].no_room;
        if now != 0 || cell.load(Relaxed) != 0 {
            cell.store(now, Relaxed);
        }
    }

    /// Bytes that can be swapped, as far as is known: areas without room to grow are as large as they are.
    pub fn swap_room(&self) -> u64 {
        let on = self.segment_areas(area::ON);
        let room = |a: &super::layout::Area| {
            let all = a.slots.load(Relaxed).saturating_mul(UNIT_BYTES);
            match a.no_room.load(Relaxed) {
                0 => all,
                _ => all.min(a.allocated.load(Relaxed)),
            }
        };
        on.map(room).fold(0, u64::saturating_add)
    }

    /// Looks, now and then, whether swap is nearly full. True for the one who finds that first in the life of the pool.
    pub(crate) fn look_at_room(&self) -> bool {
        let h = self.header();
        let (seen, now) = (h.room_seen.load(Relaxed), now_ns());
        let mine = now.saturating_sub(seen) > LOOK_NS
            && h.soft_full.load(Relaxed) == 0
            && h.room_seen
                .compare_exchange(seen, now, Relaxed, Relaxed)
                .is_ok();
        mine && self.is_nearly_full() && h.soft_full.swap(1, Relaxed) == 0
    }

    fn is_nearly_full(&self) -> bool {
        let (used, room) = (self.swap_usage().used_bytes(), self.swap_room());
        used > 0 && used.saturating_mul(100) >= room.saturating_mul(SOFT_FULL_PERCENT)
    }

    /// Was swap nearly full at any time?
    pub fn was_nearly_full(&self) -> bool {
        self.header().soft_full.load(Acquire) != 0
    }
}
