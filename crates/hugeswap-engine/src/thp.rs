//! Which units may be huge: what the program advised for its ranges and what is set for them alone, kept beside the unit
//! table in two bytes a unit. The rules are `hugeswap_policy::thp`'s.
//!
//! What is said of a unit outlives its memory and its swap, goes where the unit is moved, is inherited by a forked child, and is
//! forgotten when the unit is unmapped. It is looked at by every fault; memory that is there stays as it is.
//!
//! Concurrency: words change by single atomic operations, without the units' locks: a fault under way may still go by what was
//! said before.

use crate::PAGE;
use crate::base::Pager;
use crate::engine::{Engine, UNIT};
use crate::zeroed::Zeroed;
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::thp::{Advised, Bring, Collapse, Usage};
use hugeswap_sys::Result;
use hugeswap_sys::signal::Blocked;
use std::sync::atomic::AtomicU16;
use std::sync::atomic::Ordering::Relaxed;

/// See the file's head.
pub(crate) struct Said(Zeroed<AtomicU16>);

impl Said {
    /// Nothing was said.
    pub fn new(units: u32) -> Result<Said> {
        Ok(Said(Zeroed::new(units as usize)?))
    }

    fn of(&self, unit: u32) -> Advised {
        self.0
            .get(unit as usize)
            .map_or(Advised::NOTHING, |w| Advised(w.load(Relaxed)))
    }

    fn change(&self, unit: u32, f: impl Fn(Advised) -> Advised) {
        if let Some(w) = self.0.get(unit as usize) {
            let _ = w.fetch_update(Relaxed, Relaxed, |now| Some(f(Advised(now)).0));
        }
    }

    /// `unit` has another life, or none: nothing was said of it.
    pub fn forget(&self, unit: u32) {
        if self.of(unit) != Advised::NOTHING {
            self.change(unit, |_| Advised::NOTHING);
        }
    }

    /// What was said of `from` holds for `to`.
    pub fn carry(&self, from: u32, to: u32) {
        let said = self.of(from);
        if said != self.of(to) {
            self.change(to, |_| said);
        }
    }
}

impl Engine {
    /// Can pages of 4 KiB come and go by themselves?
    pub(crate) fn has_single_pages(&self) -> bool {
        matches!(self.pager(), Some(Pager::Uffd(_)))
    }

    /// May `unit` be huge from its first touch on? (Always, where there are no single pages.)
    pub(crate) fn may_be_huge(&self, unit: u32) -> bool {
        !self.has_single_pages()
            || self
                .said
                .of(unit)
                .may_be_huge(self.pool.knob(Knob::ThpEnabled))
                && !self.markers.is_marked(unit)
    }

    /// What was said of `unit`.
    pub(crate) fn said_of(&self, unit: u32) -> Advised {
        self.said.of(unit)
    }

    /// How `unit` comes in. (Whole, where there are no base pages.)
    pub(crate) fn bring_of(&self, unit: u32) -> Bring {
        if self.pager().is_none() {
            return Bring::Whole;
        }
        if self.markers.is_marked(unit) {
            return Bring::Pages;
        }
        self.said.of(unit).bring(
            self.pool.knob(Knob::ThpEnabled),
            self.pool.knob(Knob::ThpSwapin),
        )
    }

    /// Is `unit`, which is base-mapped, to become whole without a fault?
    pub(crate) fn collapse_of(&self, unit: u32) -> Collapse {
        if self.markers.is_marked(unit) {
            return Collapse::Never;
        }
        self.said.of(unit).collapse(
            self.pool.knob(Knob::ThpEnabled),
            self.pool.knob(Knob::ThpSwapin),
        )
    }

    /// What the program says of a range; see [`Usage::counts_for_parts`] for units that it has only a part of.
    pub fn advise_use(&self, addr: usize, len: usize, usage: Usage) {
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        for unit in self.table.units_of(addr, len) {
            if usage.counts_for_parts() || self.is_all_of(unit, addr, len) {
                self.said.change(unit, |a| a.and(usage));
            }
        }
    }

    /// Is everything that is mapped of `unit` within `[addr, addr+len)`?
    fn is_all_of(&self, unit: u32, addr: usize, len: usize) -> bool {
        let at = self.table.addr(unit);
        let (from, to) = (at.max(addr), (at + UNIT).min(addr + len));
        if to - from == UNIT {
            return true;
        }
        let space = self.space.lock();
        let within: usize = space.allocated_in(from, to - from).map(|(_, n)| n).sum();
        within / PAGE == space.live_pages(at)
    }

    /// Sets [`Knob::ThpEnabled`], [`Knob::ThpSwapin`] or [`Knob::ThpDefrag`] for the units of a range alone, or has them follow the
    /// pool again. False for any other setting.
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
            self.said.change(unit, |a| set(a).unwrap_or(a));
        }
        true
    }

    /// Was anything said of the range?
    pub fn is_advised(&self, addr: usize, len: usize) -> bool {
        self.table
            .units_of(addr, len)
            .any(|unit| self.said.of(unit) != Advised::NOTHING)
    }

    /// What was said of the range `[from, from+len)` holds for `[to, to+new_len)`, which it is moved to or grows into; of what is
    /// beyond it the last of it.
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
                self.said.carry(of, unit);
            }
        }
    }
}
