//! What shared regions ask of the engine, as the engine answers it.

use super::Host;
use crate::lock::Held;
use crate::memory::Memory;
use crate::outcome::{Fault, Outcome};
use crate::paging::{Job, Paging};
use crate::pool::FaultMode;
use hugeswap_policy::counters::FaultClass;
use hugeswap_policy::defrag::gfp::Gfp;
use hugeswap_policy::swapin::readahead::Streams;
use std::sync::atomic::Ordering::Relaxed;

impl Host for Paging {
    fn note_available(&self) {
        Memory::note_available(self);
    }

    fn check_watermark(&self) {
        Memory::check_watermark(self);
    }

    fn hand_back_one(&self) -> bool {
        Memory::hand_back_one(self)
    }

    fn wait_for_memory<T>(&self, rounds: Option<u32>, take: impl Fn() -> Option<T>) -> Option<T> {
        Memory::wait_for_memory(self, rounds, take)
    }

    fn note_unit_written(&self, written: bool) {
        Memory::note_unit_written(self, written);
    }

    fn try_streams(&self) -> Option<Held<'_, Streams>> {
        Memory::try_streams(self)
    }

    fn huge_room(&self, gfp: Gfp) -> u64 {
        Memory::huge_room(self, gfp)
    }

    fn timed(&self, class: FaultClass, fault: Fault) -> Option<Outcome> {
        Memory::timed(self, class, fault)
    }

    fn queue_shared(&self, unit: u32) -> bool {
        self.reads.push(Job::Shared(unit)).is_ok()
    }

    fn wake_workers(&self, n: u32) {
        Memory::wake_workers(self, n);
    }

    fn takes_faults_by_signals(&self) -> bool {
        self.mode() == FaultMode::Signal
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Relaxed)
    }
}
