//! The bytes of shared units are given up, for every process: memory and swap behind whole units
//! are freed, parts are overwritten with zeros.

use super::evict::{DISCARD, is_memory};
use super::{Host, Map, Sharing};
use crate::PAGES;
use crate::careful;
use hugeswap_policy::UNIT_BYTES;
use hugeswap_policy::shared::step::Event;
use hugeswap_policy::shared::{Kind, Op, Word};
use hugeswap_sys::fs;

static ZEROS: [u8; 4096] = [0; 4096];

impl Sharing {
    /// The bytes of a range of a shared region become zero for every process, and memory and swap
    /// behind whole units are free. False: some could not be had.
    pub(crate) fn discard_shared(&self, host: &impl Host, addr: usize, len: usize) -> bool {
        let Some((_, m)) = self.map_of(addr) else {
            return true;
        };
        let (all, whole) = (m.units_in(addr, len, false), m.units_in(addr, len, true));
        let mut done = true;
        for unit in all {
            if whole.contains(&unit) && !self.is_kept(unit) {
                continue;
            }
            if matches!(self.load(unit).kind(), Kind::None | Kind::Lost) {
                continue;
            }
            let at = m.addr_of(unit);
            let (mut from, to) = (addr.max(at), (addr + len).min(at + m.span_of(unit)));
            while from < to {
                let n = (to - from).min(ZEROS.len());
                // SAFETY: the caller asked for these bytes to be zero.
                if unsafe { careful::copy(from, ZEROS.as_ptr() as usize, n) }.is_err() {
                    // If they are lost, so are the rest.
                    done &= self.load(unit).kind() == Kind::Lost;
                    break;
                }
                from += n;
            }
        }
        done & (whole.is_empty() || self.discard_units(host, addr, len))
    }

    fn discard_units(&self, host: &impl Host, addr: usize, len: usize) -> bool {
        let _blocked = hugeswap_sys::signal::Blocked::all();
        let _inside = self.gate.enter();
        let Some((region, m)) = self.map_of(addr) else {
            return true;
        };
        let mut units = m.units_in(addr, len, true);
        let done = units.all(|unit| self.discard_unit(region, m, unit));
        self.pool.note_release();
        host.note_available();
        done
    }

    fn discard_unit(&self, region: usize, m: &Map, unit: u32) -> bool {
        let mut since = None;
        let mut wait = |w: Word| {
            self.wait(unit, w);
            !self.is_stuck(&mut since)
        };
        let held = loop {
            let w = self.load(unit);
            if w.is_locked() && w.op() != Op::Out {
                if !wait(w) {
                    return false;
                }
                continue;
            }
            if w.kind() == Kind::Kept {
                return true;
            }
            if let Some(held) = self.take(unit, w, Op::Discard) {
                break held;
            }
        };
        self.stamp(region, unit, 0..PAGES);
        let memory = m.fds().memory;
        let charged = self.pool.is_charged_shared(unit);
        if charged
            && (!is_memory(m, memory) || fs::punch(memory, m.offset_of(unit), UNIT_BYTES).is_err())
        {
            // kswapd has a descriptor of its own.
            if let Some(held) = self.hand_over(held) {
                held.settle();
                return false;
            }
            let by = self.holder(Op::Discard);
            loop {
                let now = self.load(unit);
                if !now.is_held(by) {
                    return true;
                }
                if !wait(now) {
                    return false;
                }
            }
        }
        self.pool.uncharge_shared(unit);
        let _discarding = self.discarding.lock();
        held.settle_without_cluster(Event::Discarded, DISCARD);
        true
    }
}
