//! Readahead as faults drive it: the units that a stream will want next are queued for the I/O
//! threads. No fault waits for that.
//!
//! [`hugeswap_policy::swapin::readahead`] finds the streams, in a table of 16. Under
//! `thp.swapin=auto` readahead leaves out units that are to be tried by pages, and a run of faults
//! by pages comes to it once the run is worth whole units: it brings in whole units only. First
//! touches have streams of their own: in sequence, up to 32 units get memory at once.
//!
//! The rules of the fault path hold.

use crate::paging::Job;
use crate::paging::Paging;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::swapin::readahead::run_before;
use hugeswap_policy::unit::Kind;

impl Paging {
    /// Plans reads of what a sequential stream will want next. `cached`: the fault met readahead.
    pub(super) fn read_ahead(&self, unit: u32, cached: bool) {
        let Some(mut streams) = self.try_streams() else {
            return;
        };
        let present = |u| self.table.load(u).kind() == Kind::Present;
        let resident = run_before(unit, 0, present);
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
