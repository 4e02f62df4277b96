//! Base pages are charged by whole frames, of which a process keeps what it has not used up. The rules of the fault path hold.

use super::Memory;
use hugeswap_policy::UNIT_PAGES;
use hugeswap_policy::defrag::frames::{self, Sources};

impl Memory {
    /// Can another part of a unit come by itself now, or must it be the whole unit?
    pub(crate) fn pages_can_come(&self) -> bool {
        let can = self.backend.can();
        match can.parts_take_mappings {
            false => can.has_parts(),
            true => self.backend.has_mappings() && !self.mappings_are_short(),
        }
    }

    /// Charges `n` pages, if that is possible without waiting.
    pub(crate) fn take_pages_nowait(&self, n: u64) -> bool {
        if !self.leaves_reserve(n) {
            return false;
        }
        let Some(left) = frames::take_pages(self, n, self.far_nodes()) else {
            return false;
        };
        if (left + n) / UNIT_PAGES != left / UNIT_PAGES {
            self.took_frame();
        } else if left < UNIT_PAGES {
            self.check_watermark();
        }
        true
    }

    /// Charges `n` pages, waiting if need be. Not with a base-mapped or present unit's lock held.
    pub(crate) fn take_pages(&self, n: u64) -> bool {
        self.wait_for_memory(None, || self.take_pages_nowait(n).then_some(()))
            .is_some()
    }

    /// Takes back a charge of `n` pages; their memory went back to the kernel before.
    pub(crate) fn put_pages(&self, n: u64) {
        self.credits().put(n);
    }
}
