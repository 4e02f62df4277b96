//! Words that another thread has to see to the end: words of processes that died with them, and of
//! threads of this process that lacked the descriptors for it. Also, units whose swap area is to be
//! taken off.

use super::evict::is_userfaultfd;
use super::{Fds, Maintenance, Map, lock, unlock};
use super::{Host, Sharing};
use hugeswap_policy::counters::Counter;
use hugeswap_policy::shared::{Kind, Op, Word};
use hugeswap_policy::thp_swap::clusters;
use hugeswap_policy::{UNIT_BYTES, UNIT_PAGES};
use hugeswap_sys::{Errno, Result, fs, process, uffd};
use std::ops::Range;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

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
        let there = |w: Word| w.slot().is_some_and(|c| range.contains(&c));
        for (region, m) in self.maps() {
            for unit in m.units() {
                if there(Word(self.word_of(unit).load(Acquire)))
                    && !self.leave_area(host, region, m, unit, &there)
                {
                    return false;
                }
            }
        }
        let words = self.pool.slot_words();
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
        let cell = self.word_of(unit);
        let me = self.pool.owner(self.pool.me());
        let w = Word(cell.load(Acquire));
        let op = match w.kind() {
            Kind::Swapped => Op::In,
            _ => Op::Touch,
        };
        if !there(w) || w.is_locked() || !lock(cell, w, op, me) {
            return false;
        }
        if w.kind() == Kind::Swapped {
            // Beyond the budget if need be, for the moment it takes to write it elsewhere.
            self.pool.charge_shared(unit, true);
            if self.fill(region, fds, m, unit, w, false).is_err() {
                unlock(cell, w);
                return false;
            }
        }
        let was = w.kind();
        let kept = match was {
            Kind::Swapped | Kind::Resident => Kind::Resident,
            other => other,
        };
        self.give_up_slot(unit, w.with_kind(kept));
        if was == Kind::Swapped {
            self.evict(host, &mut state, region, m, unit);
        }
        true
    }

    fn is_orphan(&self, unit: u32) -> bool {
        let w = Word(self.word_of(unit).load(Acquire));
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
        let cell = self.word_of(unit);
        let w = Word(cell.load(Acquire));
        if !w.is_locked() || self.pool.owner_lives(w.owner()) {
            return;
        }
        let mine = w.locked(w.op(), self.pool.owner(self.pool.me()));
        if cell.compare_exchange(w.0, mine.0, AcqRel, Relaxed).is_ok() {
            self.finish(host, region, fds, m, unit);
        }
    }

    /// kswapd: does what a thread of this process could not; the word came with the job.
    pub(super) fn carry_on_own(&self, host: &impl Host, state: &mut Maintenance, unit: u32) {
        let Some((region, m)) = self.map_with(unit) else {
            return;
        };
        match self.fds_of(state, region, m) {
            Ok(fds) => self.finish(host, region, fds, m, unit),
            Err(_) => {
                let cell = self.word_of(unit);
                unlock(cell, Word(cell.load(Acquire)));
            }
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

    /// Ends what the op of this process's word says.
    pub(super) fn finish(&self, host: &impl Host, region: usize, fds: Fds, m: &Map, unit: u32) {
        let cell = self.word_of(unit);
        let w = Word(cell.load(Acquire));
        if matches!(w.op(), Op::Touch | Op::Punch | Op::Discard) {
            // It may be writable somewhere, or its protection be lost.
            self.stamp(region, unit, 0..UNIT_PAGES as usize);
        }
        match w.op() {
            Op::None => {}
            // (There is nothing to bring in: the word is nonsense.)
            Op::In if w.is_in_memory() => unlock(cell, w),
            Op::In => self.finish_in(host, region, fds, m, unit, w),
            Op::Touch => {
                let _ = uffd::write_protect(fds.uffd, m.addr_of(unit), m.span_of(unit), false);
                unlock(cell, w);
            }
            Op::Out => unlock(cell, w.referenced(true)),
            Op::Punch => {
                let _ = fs::punch_at_last(fds.memory, m.offset_of(unit), UNIT_BYTES);
                self.end_punch(host, unit);
            }
            Op::Discard => {
                let _ = fs::punch_at_last(fds.memory, m.offset_of(unit), UNIT_BYTES);
                self.change_kind(unit, Kind::None);
                self.end_punch(host, unit);
            }
        }
    }

    /// For a word of this process; others may begin to wait for it meanwhile.
    pub(super) fn change_kind(&self, unit: u32, kind: Kind) {
        let change = |w| Some(Word(w).with_kind(kind).0);
        let _ = self.word_of(unit).fetch_update(AcqRel, Acquire, change);
    }

    fn finish_in(&self, host: &impl Host, region: usize, fds: Fds, m: &Map, unit: u32, w: Word) {
        let cell = self.word_of(unit);
        // Some of it may be there.
        self.pool.charge_shared(unit, true);
        match self.fill(region, fds, m, unit, w, false) {
            Ok(()) => unlock(cell, w.with_kind(Kind::Resident).referenced(true)),
            Err(Errno::EIO) => {
                self.pool.count(Counter::SwapReadError, 1);
                self.pool.count(Counter::Poisoned, 1);
                self.stamp(region, unit, 0..UNIT_PAGES as usize);
                let _ = fs::punch_at_last(fds.memory, m.offset_of(unit), UNIT_BYTES);
                self.change_kind(unit, Kind::Lost);
                self.end_punch(host, unit);
            }
            // Tried again at the next touch.
            Err(_) => unlock(cell, w),
        }
    }
}
