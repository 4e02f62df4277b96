//! How the program says it uses each unit, in two bytes: a table beside the unit table.
//!
//! Concurrency: entries change by single atomic operations, without the units' locks.

use crate::zeroed::Zeroed;
use hugeswap_policy::defrag::thp::Advised;
use hugeswap_sys::Result;
use std::sync::atomic::AtomicU16;
use std::sync::atomic::Ordering::Relaxed;

/// The entries of all units of a window.
pub(crate) struct UsageTable(Zeroed<AtomicU16>);

impl UsageTable {
    /// No unit has an entry.
    pub fn new(units: u32) -> Result<UsageTable> {
        Ok(UsageTable(Zeroed::new(units as usize)?))
    }

    pub(crate) fn of(&self, unit: u32) -> Advised {
        self.0
            .get(unit as usize)
            .map_or(Advised::NOTHING, |w| Advised(w.load(Relaxed)))
    }

    pub(crate) fn change(&self, unit: u32, f: impl Fn(Advised) -> Advised) {
        if let Some(w) = self.0.get(unit as usize) {
            let _ = w.fetch_update(Relaxed, Relaxed, |now| Some(f(Advised(now)).0));
        }
    }

    /// `unit` is mapped anew, or unmapped: its entry is cleared.
    pub fn forget(&self, unit: u32) {
        if self.of(unit) != Advised::NOTHING {
            self.change(unit, |_| Advised::NOTHING);
        }
    }

    /// The entry of `from` becomes that of `to`.
    pub fn carry(&self, from: u32, to: u32) {
        let usage = self.of(from);
        if usage != self.of(to) {
            self.change(to, |_| usage);
        }
    }
}
