//! The decision about one fault, from costs, the unit's account and advice. Pure: no state, no clock.

use super::account::{Density, UnitHistory, WORTH};
use super::cost::Costs;
use super::near::Near;
use super::{PAGES, PIECE_PAGES};
use std::ops::Range;

/// The sizes of transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// 4 KiB.
    Page,
    /// 64 KiB, aligned.
    Piece,
    /// 2 MiB, aligned.
    Whole,
}

impl Size {
    /// Number of pages in it.
    pub const fn pages(self) -> u16 {
        match self {
            Size::Page => 1,
            Size::Piece => PIECE_PAGES,
            Size::Whole => PAGES,
        }
    }
}

/// The sizes of transfer that the machine and the settings allow.
///
/// Under `thp.swapin = always` only `whole` (while there are huge frames), under `never` only
/// `base_4k`; without userfaultfd `piece_64k` while the number of mappings allows it, and `whole`.
/// If nothing is allowed, the decision is a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// Single pages.
    pub base_4k: bool,
    /// Pieces of 64 KiB.
    pub piece_64k: bool,
    /// Whole units.
    pub whole: bool,
}

impl Allowed {
    /// All sizes.
    pub const ALL: Allowed = Allowed {
        base_4k: true,
        piece_64k: true,
        whole: true,
    };

    /// Whole units only.
    pub const WHOLE: Allowed = Allowed {
        base_4k: false,
        piece_64k: false,
        whole: true,
    };

    /// The smallest size that is allowed.
    pub(super) const fn smallest(self) -> Size {
        match self {
            Allowed { base_4k: true, .. } => Size::Page,
            Allowed {
                piece_64k: true, ..
            } => Size::Piece,
            Allowed { whole: true, .. } => Size::Whole,
            _ => Size::Page,
        }
    }
}

/// A fault on a unit in which the page that was touched is in swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Number of the unit in the address space.
    pub unit: u64,
    /// Page of the unit, below 512.
    pub page: u16,
    /// Number of pages of the unit that are resident.
    pub present: u16,
    /// The density that is remembered of the unit.
    pub density: Density,
    /// The share of the unit's stay in memory that lies ahead, in parts of [`STAY`].
    pub stay: u16,
    /// What is in memory near the page.
    pub near: Near,
}

/// Parts of a whole stay in memory.
pub const STAY: u16 = 1 << 10;
/// What is expected of a unit beyond its own account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Advice {
    /// Nothing is known.
    #[default]
    None,
    /// A run of this stride, in pages, will use a piece of 64 KiB.
    Run(u16),
    /// So many pages of the piece of 64 KiB will be used, with that of the fault.
    Near(u16),
    /// A run will use so many pages from that of the fault on: most runs become so long.
    Ahead(u16),
    /// A run of this stride, in pages, will use the unit.
    Stream(u16),
    /// The unit was dense.
    Dense,
}

/// The reason for the size of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// It is the smallest allowed: there is no reason for more.
    Small,
    /// A run will use a piece.
    Run,
    /// A run is expected to become so long.
    Ahead,
    /// Much of a piece will be used.
    Near,
    /// Small transfers have cost as much as the whole unit.
    Paid,
    /// A run will use the whole unit.
    Stream,
    /// The unit was dense when it was last in memory.
    Dense,
}

/// What to bring in, and the state to keep once that is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Pages of the unit: one, an aligned piece or the whole, or some from that of the fault on.
    /// Resident ones are left out of the transfer.
    pub pages: Range<u16>,
    /// The whole unit comes in, as a huge page if there is a frame.
    pub whole: bool,
    /// The reason for the size.
    pub reason: Reason,
    /// The account of the unit from now on.
    pub history: UnitHistory,
    /// The density to remember of the unit from now on.
    pub density: Density,
    /// The unit comes whole on advice, and more units may follow:
    /// [`crate::swapin::readahead::Streams`] tells what comes next, and
    /// [`super::Granularity::admits_ahead`] decides about each of those units.
    pub ahead: bool,
    /// The unit would have come whole if that were allowed.
    pub missed: bool,
}

/// Decides about a fault. Pure: the same arguments give the same decision.
///
/// A decision that cannot be carried out (no huge frame, no mapping left) is dropped, and another
/// made with less allowed.
pub fn decide(
    costs: &Costs,
    allowed: Allowed,
    fault: &Fault,
    history: UnitHistory,
    advice: Advice,
) -> Decision {
    let full = &costs_of(costs, history);
    let costs = &full.for_stay(fault.stay);
    let page = fault.page.min(PAGES - 1);
    let small = match advice {
        Advice::Run(_) | Advice::Near(_) if allowed.piece_64k => Size::Piece,
        _ => allowed.smallest(),
    };
    let ahead = match advice {
        Advice::Ahead(pages) if small == Size::Page => pages.clamp(1, PAGES - page),
        _ => 0,
    };
    let cost = match ahead {
        0 => costs.of(small),
        pages => costs.of_pages(pages),
    };
    let reason_for_whole = match advice {
        Advice::Stream(_) if allowed.whole => Some(Reason::Stream),
        Advice::Dense if allowed.whole => Some(Reason::Dense),
        _ => {
            let next = history.paid().saturating_add(cost);
            let paid = next > whole_cost(full, fault, history);
            paid.then_some(Reason::Paid)
        }
    };
    if let Some(reason) = reason_for_whole.filter(|_| allowed.whole) {
        let density = match advice {
            Advice::Stream(stride) => Density::of(PAGES.div_ceil(stride.max(1))),
            // How many more pages will be touched cannot be seen.
            _ if reason == Reason::Paid => Density::FULL,
            _ => fault.density,
        };
        return Decision {
            pages: 0..PAGES,
            whole: true,
            reason,
            history: UnitHistory::NEW,
            density,
            ahead: false,
            missed: false,
        };
    }
    let (start, pages) = match ahead {
        0 => (page / small.pages() * small.pages(), small.pages()),
        pages => (page, pages),
    };
    let (reason, touched) = match advice {
        Advice::Ahead(_) if ahead > 0 => (Reason::Ahead, pages),
        Advice::Run(stride) if small == Size::Piece => {
            (Reason::Run, (pages / stride.max(1)).max(1))
        }
        Advice::Near(used) if small == Size::Piece => (Reason::Near, used.clamp(1, pages)),
        _ => (Reason::Small, 1),
    };
    let touched = touched * worth(full, costs);
    Decision {
        pages: start..start + pages,
        whole: small == Size::Whole,
        reason,
        history: match small {
            Size::Whole => UnitHistory::NEW,
            _ => history.and(cost, fault.present, pages, touched),
        },
        density: fault.density,
        ahead: false,
        missed: reason_for_whole.is_some() && small != Size::Whole,
    }
}

/// The costs that count for a unit. Pages of a stream leave soon whatever the size, so memory is no
/// argument when the unit is tried.
pub(super) fn costs_of(costs: &Costs, history: UnitHistory) -> Costs {
    match history.is_tried_stream() {
        true => Costs {
            memory: 0,
            ..*costs
        },
        false => *costs,
    }
}

/// What the unit would have cost for a whole stay, had it come whole before its first small
/// transfer. The extra cost of filling it up now counts up to an eighth of that.
pub(super) fn whole_cost(costs: &Costs, fault: &Fault, history: UnitHistory) -> u64 {
    let there = fault.present.saturating_sub(history.brought);
    let missing = PAGES.saturating_sub(there);
    let memory = costs.memory.saturating_mul(u64::from(missing));
    let whole = costs.whole.saturating_add(memory);
    let more = match history.brought {
        0 => 0,
        _ => costs.fill.saturating_sub(costs.whole).min(whole / 8),
    };
    whole.saturating_add(more)
}

/// The worth of a page that comes for the rest of a stay, in [`WORTH`] parts of one that comes for
/// all of it.
fn worth(full: &Costs, rest: &Costs) -> u16 {
    let parts = rest.of(Size::Page).saturating_mul(u64::from(WORTH));
    (parts.div_ceil(full.of(Size::Page).max(1)) as u16).min(WORTH)
}

/// The cost of small transfers for `touches` of a unit.
pub(super) fn small_cost(costs: &Costs, small: Size, touches: u64) -> u64 {
    let transfers = touches.min(u64::from(PAGES / small.pages()));
    costs.of(small).saturating_mul(transfers)
}
