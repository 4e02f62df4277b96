//! Readahead as faults drive it: what a stream will want next is queued for the I/O threads, and
//! never waited for. The rules of the fault path hold.

use crate::engine::{Engine, Job};
use crate::lock::Held;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::readahead::Streams;
use hugeswap_policy::unit::Kind;

impl Engine {
    /// What is known of streams, with `readahead.max` as it is set; `None` while somebody else has it.
    pub(crate) fn try_streams(&self) -> Option<Held<'_, Streams>> {
        let mut streams = self.streams.try_lock()?;
        streams.set_max_window(self.pool.knob(Knob::ReadaheadMax) as u32);
        Some(streams)
    }

    /// Plans reads of what a sequential stream will want next. `cached`: the fault met readahead.
    pub(super) fn read_ahead(&self, unit: u32, cached: bool) {
        let Some(mut streams) = self.try_streams() else {
            return;
        };
        let present = |u| self.table.load(u).kind() == Kind::Present;
        let resident = there_before(unit, 0, present);
        if resident < unit {
            streams.on_resident(u64::from(resident), u64::from(unit));
        }
        let window = streams.on_fault(u64::from(unit), u64::from(self.table.units()), cached);
        drop(streams);
        let mut planned = 0;
        let here = self.arena.numa.here().node;
        for u in window.units(u64::from(unit)) {
            let u = u as u32;
            let Some(w) = self.table.try_lock_if(u, |w| w.kind() == Kind::Swapped) else {
                continue;
            };
            if !self.admits_ahead(u) {
                w.settle();
                continue;
            }
            self.arena.numa.set_unit(u, here);
            w.offer();
            if self.reads.push(Job::Read(u)).is_err() {
                if let Some(w) = self.table.claim(u) {
                    w.settle();
                }
                if let Some(mut streams) = self.try_streams() {
                    streams.on_cut_short(u64::from(u));
                }
                break;
            }
            planned += 1;
        }
        if planned > 0 {
            self.pool.count(Counter::SwapRa, planned);
            self.wake_workers(planned.min(2) as u32);
        }
    }
}

/// First of the units in memory that end just before `unit` (at most 256 of them, and none before `start`): a stream
/// passes them without a fault.
pub(crate) fn there_before(unit: u32, start: u32, is_there: impl Fn(u32) -> bool) -> u32 {
    let floor = unit.saturating_sub(256).max(start);
    let mut first = unit;
    while first > floor && is_there(first - 1) {
        first -= 1;
    }
    // A stream that faults on unit after unit leaves them in memory: that is no jump.
    if unit - first > 1 { first } else { unit }
}
