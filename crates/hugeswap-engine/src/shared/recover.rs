//! Words that another thread has to see to the end: words of processes that died with them, and of
//! threads of this process that lacked the descriptors for it. Also, units whose swap area is to be
//! taken off.

use super::evict::{DISCARD, KSWAPD, is_userfaultfd};
use super::lock::Locked;
use super::{Fds, Maintenance, Map};
use super::{Host, Sharing};
use hugeswap_policy::shared::step::Event;
use hugeswap_policy::shared::{Kind, Op, Word};
use hugeswap_policy::thp_swap::clusters;
use hugeswap_policy::{UNIT_BYTES, UNIT_PAGES};
use hugeswap_sys::{Errno, Result, fs, process, uffd};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

impl Sharing {
    /// kswapd: carries on what the dead have begun.
    pub(crate) fn carry_on_for_the_dead(&self, host: &impl Host) {
        // (Each may take reads that fail again and again.)
        const AT_A_TIME: usize = 64;
        let mut state = self.maintenance.lock();
        for (region, m) in self.maps() {
            let orphans = m.units().filter(|&u| self.is_orphan(u));
            for unit in orphans.take(AT_A_TIME) {
                if let Ok(fds) = self.fds_of(&mut state, region, m) {
                    self.carry_on_orphan(host, region, fds, m, unit);
                }
            }
        }
    }

    /// hs-swapoff: what shared units have in `range` of swap goes elsewhere, of the regions that
    /// this process has. False: something is there still.
    pub(crate) fn leave_area_of(&self, host: &impl Host, range: &Range<u64>) -> bool {
        let there = |w: Word| w.cluster().is_some_and(|c| range.contains(&c));
        for (region, m) in self.maps() {
            for unit in m.units() {
                if there(self.load(unit)) && !self.leave_area(host, region, m, unit, &there) {
                    return false;
                }
            }
        }
        let words = self.pool.cluster_words();
        !range
            .clone()
            .any(|c| clusters::is_shared(words, c as usize))
    }

    fn leave_area(
        &self,
        host: &impl Host,
        region: usize,
        m: &Map,
        unit: u32,
        there: &impl Fn(Word) -> bool,
    ) -> bool {
        let mut state = self.maintenance.lock();
        let _discarding = self.discarding.lock();
        let Ok(fds) = self.fds_of(&mut state, region, m) else {
            return false;
        };
        let w = self.load(unit);
        let op = match w.kind() {
            Kind::Swapped => Op::In,
            _ => Op::Touch,
        };
        if !there(w) || w.is_locked() {
            return false;
        }
        let Some(held) = self.take(unit, w, op) else {
            return false;
        };
        if w.kind() != Kind::Swapped {
            held.settle_without_cluster(Event::Unplaced, DISCARD);
            return true;
        }
        // Beyond the budget if need be, for the moment it takes to write it elsewhere.
        self.pool.charge_shared(unit, true);
        if self.fill(region, fds, m, unit, w, false).is_err() {
            held.settle();
            return false;
        }
        held.settle_elsewhere(DISCARD);
        self.evict(host, &mut state, region, m, unit);
        true
    }

    fn is_orphan(&self, unit: u32) -> bool {
        let w = self.load(unit);
        w.is_locked() && !self.pool.owner_lives(w.owner())
    }

    /// If the owner of a unit's word is dead, does what it had begun.
    pub(super) fn carry_on_orphan(
        &self,
        host: &impl Host,
        region: usize,
        fds: Fds,
        m: &Map,
        unit: u32,
    ) {
        let w = self.load(unit);
        if !w.is_locked() || self.pool.owner_lives(w.owner()) {
            return;
        }
        match w.op() {
            // A write-out is not carried on. (Held for one, the word could be taken from us, too.)
            Op::Out => {
                if let Some(held) = self.take(unit, w, Op::Touch) {
                    held.settle_by(Event::Touched { displaced: false });
                }
            }
            op => {
                if let Some(held) = self.take(unit, w, op) {
                    self.finish(host, region, fds, m, held);
                }
            }
        }
    }

    /// kswapd: does what a thread of this process could not; the word came with the job.
    pub(super) fn carry_on_own(&self, host: &impl Host, state: &mut Maintenance, unit: u32) {
        let Some((region, m)) = self.map_with(unit) else {
            return;
        };
        let held = self.passed(unit);
        match self.fds_of(state, region, m) {
            Ok(fds) => self.finish(host, region, fds, m, held),
            Err(_) => held.settle(),
        }
    }

    /// In kswapd's table.
    pub(super) fn fds_of(&self, state: &mut Maintenance, region: usize, m: &Map) -> Result<Fds> {
        let (serial, number) = (m.serial.load(Relaxed), m.uffd.load(Relaxed));
        // As `meet_clients` has it, also if the program has closed its own.
        let me = self.pool.client_word(self.pool.me());
        Ok(Fds {
            memory: self.memory_of(state, region, m)?,
            uffd: state.reach(region, serial, me, process::pid(), number, is_userfaultfd)?,
        })
    }

    /// Does what the op of a unit says, and unlocks the unit.
    pub(super) fn finish(
        &self,
        host: &impl Host,
        region: usize,
        fds: Fds,
        m: &Map,
        held: Locked<'_>,
    ) {
        let unit = held.unit();
        let punch = || {
            let _ = fs::punch_at_last(fds.memory, m.offset_of(unit), UNIT_BYTES);
        };
        if matches!(held.op(), Op::Touch | Op::Punch | Op::Discard) {
            // It may be writable somewhere, or its protection be lost.
            self.stamp(region, unit, 0..UNIT_PAGES as usize);
        }
        match held.op() {
            Op::In if !held.is_in_memory() => self.finish_in(host, region, fds, m, held),
            Op::Touch => {
                let _ = uffd::write_protect(fds.uffd, m.addr_of(unit), m.span_of(unit), false);
                held.settle();
            }
            Op::Punch => {
                punch();
                self.end_in_memory(host, held, Event::Dropped);
            }
            Op::Discard => {
                punch();
                self.end_in_memory(host, held, Event::Discarded);
            }
            // The word is nonsense: what is in memory need not be brought in, and no write-out is
            // carried on.
            Op::In | Op::Out | Op::None => held.settle(),
        }
    }

    fn finish_in(&self, host: &impl Host, region: usize, fds: Fds, m: &Map, held: Locked<'_>) {
        let unit = held.unit();
        // Pages of it may be there.
        self.pool.charge_shared(unit, true);
        match self.fill(region, fds, m, unit, *held, false) {
            Ok(()) => held.settle_by(Event::Arrived { ahead: false }),
            Err(Errno::EIO) => {
                self.stamp(region, unit, 0..UNIT_PAGES as usize);
                let _ = fs::punch_at_last(fds.memory, m.offset_of(unit), UNIT_BYTES);
                self.end_in_memory(host, held, Event::Lost);
            }
            // Tried again at the next touch.
            Err(_) => held.settle(),
        }
    }

    /// The memory of a unit was dropped, as `event` says. For a thread that has `maintenance`.
    pub(super) fn end_in_memory(&self, host: &impl Host, held: Locked<'_>, event: Event) {
        self.pool.uncharge_shared(held.unit());
        held.settle_without_cluster(event, KSWAPD);
        host.note_available();
    }
}
