//! Readahead as faults drive it: what a stream will want next is queued for the I/O threads, and
//! never waited for. The rules of the fault path hold.

use crate::engine::{Engine, Job};
use crate::table::QUEUED;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::unit::Kind;

impl Engine {
    /// Plans reads of what a sequential stream will want next. `cached`: the fault met readahead.
    pub(super) fn read_ahead(&self, unit: u32, cached: bool) {
        let Some(mut streams) = self.streams.try_lock() else {
            return;
        };
        let resident = self.resident_before(unit);
        if resident < unit {
            streams.on_resident(u64::from(resident), u64::from(unit));
        }
        let window = streams.on_fault(u64::from(unit), u64::from(self.table.units()), cached);
        drop(streams);
        let mut planned = 0;
        for u in window.units(u64::from(unit)) {
            let u = u as u32;
            if self
                .table
                .try_lock_if(u, |w| w.kind() == Kind::Swapped)
                .is_none()
            {
                continue;
            }
            if !self.admits_ahead(u) {
                let w = self.table.load(u);
                self.table.unlock(u, w);
                continue;
            }
            self.table.set_frame(u, QUEUED);
            if self.reads.push(Job::Read(u)).is_err() {
                if self.table.claim_queued(u) {
                    let w = self.table.load(u);
                    self.table.unlock(u, w);
                }
                if let Some(mut streams) = self.streams.try_lock() {
                    streams.on_cut_short(u64::from(u));
                }
                break;
            }
            planned += 1;
        }
        if planned > 0 {
            self.count(Counter::SwapRa, planned);
            self.wake_workers(planned.min(2) as u32);
        }
    }

    /// First of the units in memory that end just before `unit` (at most 256 of them): a stream
    /// passes them without a fault.
    fn resident_before(&self, unit: u32) -> u32 {
        let floor = unit.saturating_sub(256);
        let mut first = unit;
        while first > floor && self.table.load(first - 1).kind() == Kind::Present {
            first -= 1;
        }
        // A stream that faults on unit after unit leaves them in memory: that is no jump.
        if unit - first > 1 { first } else { unit }
    }
}
