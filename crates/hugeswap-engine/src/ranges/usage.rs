//! What the program says about how it uses its ranges ([`crate::memory::thp`]).

use crate::ranges::Ranges;
use crate::{PAGE, UNIT};
use hugeswap_policy::defrag::thp::{Advised, Usage};
use hugeswap_policy::knobs::Knob;
use hugeswap_sys::signal::Blocked;

impl Ranges {
    /// What the program says of a range; see [`Usage::counts_for_parts`] for units that it has only
    /// a part of.
    pub fn advise_use(&self, addr: usize, len: usize, usage: Usage) {
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        for unit in self.table.units_of(addr, len) {
            if usage.counts_for_parts() || self.is_all_of(unit, addr, len) {
                self.usage.change(unit, |a| a.and(usage));
            }
        }
    }

    /// Is everything that is mapped of `unit` within `[addr, addr+len)`?
    pub(crate) fn is_all_of(&self, unit: u32, addr: usize, len: usize) -> bool {
        let at = self.table.addr(unit);
        let (from, to) = (at.max(addr), (at + UNIT).min(addr + len));
        if to - from == UNIT {
            return true;
        }
        let space = self.space.lock();
        let within: usize = space.allocated_in(from, to - from).map(|(_, n)| n).sum();
        within / PAGE == space.live_pages(at)
    }

    /// Sets [`Knob::ThpEnabled`], [`Knob::ThpSwapin`] or [`Knob::ThpDefrag`] for the units of a
    /// range alone, or has them follow the pool again. False for any other setting.
    pub fn set_for_range(&self, addr: usize, len: usize, knob: Knob, value: Option<u64>) -> bool {
        let set = |a: Advised| match knob {
            Knob::ThpEnabled => Some(a.with_enabled(value)),
            Knob::ThpSwapin => Some(a.with_swapin(value)),
            Knob::ThpDefrag => Some(a.with_defrag(value)),
            _ => None,
        };
        if set(Advised::NOTHING).is_none() {
            return false;
        }
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        for unit in self.table.units_of(addr, len) {
            self.usage.change(unit, |a| set(a).unwrap_or(a));
        }
        true
    }

    /// Was anything said of the range?
    pub fn is_advised(&self, addr: usize, len: usize) -> bool {
        self.table
            .units_of(addr, len)
            .any(|unit| self.usage.of(unit) != Advised::NOTHING)
    }

    /// What was said of the range `[from, from+len)` holds for `[to, to+new_len)`, which it is
    /// moved to or grows into; of what is beyond it the last of it.
    pub fn carry_advice(&self, from: usize, len: usize, to: usize, new_len: usize) {
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        let (source, dest) = (
            self.table.units_of(from, len),
            self.table.units_of(to, new_len),
        );
        let Some(last) = source.clone().next_back() else {
            return;
        };
        for (i, unit) in dest.enumerate() {
            let of = source.start.saturating_add(i as u32).min(last);
            if of != unit && self.is_all_of(unit, to, new_len) {
                self.usage.carry(of, unit);
            }
        }
    }
}
