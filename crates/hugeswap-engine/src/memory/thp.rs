//! Which units may be huge: what the program advised for its ranges and what is set for them alone,
//! kept beside the unit table in two bytes a unit. The rules are those of
//! `hugeswap_policy::defrag::thp`.
//!
//! The advice on a unit outlives its memory and its swap, moves with the unit, is inherited by a
//! forked child, and is forgotten when the unit is unmapped. Every fault looks at it; memory that
//! is there stays as it is.
//!
//! Concurrency: entries change by single atomic operations, without the units' locks. A fault under
//! way may still go by the advice before.

use crate::memory::Memory;
use hugeswap_policy::defrag::thp::{Advised, Bring, Collapse};
use hugeswap_policy::knobs::Knob;

impl Memory {
    /// May `unit` be huge from its first touch on? (Always, where there are no single pages.)
    pub(crate) fn may_be_huge(&self, unit: u32) -> bool {
        !self.backend.can().has_single_pages()
            || self
                .usage
                .of(unit)
                .may_be_huge(self.pool.knob(Knob::ThpEnabled))
                && !self.markers.is_marked(unit)
                && !self.markers.is_parted(unit)
    }

    /// What was said of `unit`.
    pub(crate) fn usage_of(&self, unit: u32) -> Advised {
        self.usage.of(unit)
    }

    /// How `unit` comes in. (Whole, where there are no base pages.)
    pub(crate) fn bring_of(&self, unit: u32) -> Bring {
        if !self.backend.can().has_parts() {
            return Bring::Whole;
        }
        let bring = self.usage.of(unit).bring(
            self.pool.knob(Knob::ThpEnabled),
            self.pool.knob(Knob::ThpSwapin),
        );
        match self.markers.is_marked(unit) || self.markers.is_parted(unit) {
            true => bring.by_parts(),
            false => bring,
        }
    }

    /// Is `unit`, which is base-mapped, to become whole without a fault?
    pub(crate) fn collapse_of(&self, unit: u32) -> Collapse {
        if self.markers.is_marked(unit) {
            return Collapse::Never;
        }
        self.usage.of(unit).collapse(
            self.pool.knob(Knob::ThpEnabled),
            self.pool.knob(Knob::ThpSwapin),
        )
    }
}
