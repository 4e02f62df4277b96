//! What a fault does about a unit that the kernel does not map. Whatever the reason is, no thread
//! waits for ever.

use crate::call::CallError;
use crate::outcome::Outcome;
use crate::paging::Paging;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::unit::{CLEAN, Kind, Word};
use hugeswap_sys::{futex, now_ns};
use std::sync::atomic::Ordering::Acquire;

/// How long it rests between two attempts.
const REST_NS: u64 = 1_000_000;

impl Paging {
    /// The unit of a fault that began at `start`, whose lock is not held, was not mapped, for
    /// `error`. Makes room where that helps, or rests; `None`: the fault tries again. After too
    /// long a time the fault ends.
    #[cold]
    #[inline(never)]
    pub(crate) fn not_mapped(&self, error: CallError, start: u64) -> Option<Outcome> {
        self.pool.count(Counter::MapError, 1);
        if self.has_been_long(error, start) {
            return Some(Outcome::Unmapped(error));
        }
        if error.is_shortage() {
            self.note_mappings_short();
            // (What was merged may have been one mapping before: that is no reason to try for ever.)
            if self.make_room() && now_ns().saturating_sub(start) < REST_NS {
                return None;
            }
            // kswapd makes clean units of dirty ones; those can be dropped.
            self.want_mappings();
        }
        let seq = self.avail_seq.load(Acquire);
        futex::wait(&self.avail_seq, seq, Some(REST_NS), false);
        None
    }

    /// Frees mappings: absent neighbours become one, empty places of the arena too, and some clean
    /// units are dropped where they stand, which needs no mapping. False if nothing was found.
    pub(crate) fn make_room(&self) -> bool {
        let mut made = self.merge_absent() > 0;
        if self.backend.can().takes_mappings {
            made |= self.leave_stored_pages();
            self.arena.merge_empty();
            for _ in 0..8 {
                let Some(unit) = self.clean.pop(self.far_nodes()) else {
                    break;
                };
                let takeable = |w: Word| w.evictable() && w.kind() == Kind::Present && w.has(CLEAN);
                if let Some(w) = self.table.try_lock_if(unit, takeable) {
                    made |= self.drop_clean(w);
                }
            }
        }
        made
    }
}
