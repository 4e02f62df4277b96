//! How much to bring in at a fault: 4 KiB, 64 KiB, or the whole unit of 2 MiB.
//!
//! Whole units win sequential work by a factor of ten and lose random work by twenty, and no hint
//! says beforehand which it is. The decision is made from faults alone, for each unit, by four
//! rules.
//!
//! **A unit pays for itself** (ski rental: Karlin, Manasse, Rudolph and Sleator, *Competitive
//! snoopy caching*, 1988). Small transfers go on until their cost since the unit came in would
//! exceed the cost of having brought it whole; then the rest comes in one piece. The cost of a
//! transfer is the device's time, the CPU's, and the memory that it takes from others for the rest
//! of the unit's stay ([`Costs`]). For a unit of which `n` pages are touched, each fault costing
//! `c`, the better choice in hindsight costs `min(n c, B)`, where `B` is the cost of the whole.
//! This rule pays `n c` while that is at most `B`, and no more than `2 B` after that: **never more
//! than twice the better choice**.
//!
//! **A run ramps** ([`PageStreams`]). A fault stream that advances is expected to go on for as many
//! steps as it has made. It gets 64 KiB at once when the page faults that these save, by that
//! measure, cost as much. Once the run has come by more than a unit, it gets whole units, and units
//! ahead of it ([`Decision::ahead`]), if its stride touches enough of each. So one threshold, in
//! steps, serves any stride and any device.
//!
//! **Pages nearby** (`granularity/near.rs`). Faults near each other in no order are no run. How
//! many more there will be soon on a piece of 64 KiB is observed on a few pieces that come by single
//! pages, and the piece comes at once where that saves more than its transfer, and the memory that
//! the rest of it takes, cost.
//!
//! **A unit is remembered** ([`Density`]). The number of its pages that were touched while it was
//! last in memory tells at its first fault whether a whole transfer is worth its cost. If it was
//! sparse, the first rule alone decides, which costs a sparse unit nothing. An unknown unit is
//! expected to be what the unknown ones before it turned out to be.
//!
//! What is said of runs, and remembered, is advice, and can be wrong: how much is used of a unit that
//! came whole cannot be seen. A rule that is `1 + t` times the best when advice is right is at
//! worst `1 + 1/t` times (Kumar, Purohit and Svitkina, *Improving online algorithms via ML
//! predictions*, 2018), where `t` is the share of the rent that is paid before advice is followed.
//! Here it is followed at once, but not always: now and then an advised unit is tried by the first
//! rule, and the outcome decides how often (`granularity/trust.rs` has the argument). For single
//! pages and whole units, constant prices, and units that leave memory as one, this promises:
//!
//! | | at most, times the better choice in hindsight |
//! | --- | --- |
//! | no advice ([`decide`] with [`Advice::None`]) | 2, each unit; an eighth more where [`Costs::fill`] is above [`Costs::whole`] |
//! | advice that is right | 1 1/64 in the long run |
//! | advice that is wrong, however often, given without knowing our coin | 2 1/12 on average, and 22 whole transfers once for each kind of advice |
//! | one unit wrongly advised | not bounded by its own use: what it had paid, and one whole transfer |
//! | steps of 64 KiB, of a run that went by pages or for pages nearby, of which one page is used | a 64 KiB transfer for each page, until they add up to `B`: then still `2 B` |
//!
//! There is no promise against a program that sees the coin (finds out which units came whole, and
//! leaves those alone). The factor compares costs with memory at its price: where the price is high
//! and yet no page is displaced that would have stayed (a loop over less than a quarter more than
//! memory), dense units without advice go on by pages for longer than they should. For a unit that
//! is tried because of a stream, memory is not counted, so that trials stay cheap.
//!
//! When pages of a unit are evicted one by one, their payments leave its account, so that each
//! fault counts towards one whole transfer only.
//!
//! No allocation, constant time, no clock. [`decide`] is a pure function; the owner of a
//! [`Granularity`] serialises calls.

mod account;
mod cost;
mod ghost;
mod near;
mod progress;
mod streams;
mod trust;
mod verdict;

use account::{BY_STREAM, TRIAL, TRIED, WORTH};
pub use account::{Density, UnitHistory};
pub use cost::{Costs, DeviceCost, Direction, MemoryPrice, PerSize, follow};
pub use ghost::{Ghost, Room};
pub use near::Near;
use near::Neighbours;
pub use progress::{Progress, Seen, Trial};
pub use streams::{MAX_PAGE_STRIDE, PAGE_STREAMS, PageStreams, Run};
use trust::Trust;
pub use verdict::Verdict;

use crate::UNIT_PAGES;
use std::ops::Range;

/// Number of pages in a unit.
const PAGES: u16 = UNIT_PAGES as u16;
/// Number of pages in a piece of 64 KiB.
pub const PIECE_PAGES: u16 = 16;

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
    const fn smallest(self) -> Size {
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
/// Pages that came in a shorter part of a stay say no more of the rest than if it had been this
/// long.
const SHORT_STAY: u16 = STAY / 4;

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
    /// A run of this stride, in pages, will use the unit.
    Stream(u16),
    /// The unit was dense.
    Dense,
}

/// The reason for the size of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It is the smallest allowed: there is no reason for more.
    Small,
    /// A run will use a piece.
    Run,
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
    /// Pages of the unit, aligned to their number (1, 16 or 512). Resident ones are left out of the
    /// transfer.
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
    /// [`Granularity::admits_ahead`] decides about each of those units.
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
    let reason_for_whole = match advice {
        Advice::Stream(_) if allowed.whole => Some(Reason::Stream),
        Advice::Dense if allowed.whole => Some(Reason::Dense),
        _ => {
            let next = history.paid().saturating_add(costs.of(small));
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
    let pages = small.pages();
    let start = page / pages * pages;
    let (reason, touched) = match advice {
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
            _ => history.and(costs.of(small), fault.present, pages, touched),
        },
        density: fault.density,
        ahead: false,
        missed: reason_for_whole.is_some() && small != Size::Whole,
    }
}

/// The costs that count for a unit. Pages of a stream leave soon whatever the size, so memory is no
/// argument when the unit is tried.
fn costs_of(costs: &Costs, history: UnitHistory) -> Costs {
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
fn whole_cost(costs: &Costs, fault: &Fault, history: UnitHistory) -> u64 {
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
fn small_cost(costs: &Costs, small: Size, touches: u64) -> u64 {
    let transfers = touches.min(u64::from(PAGES / small.pages()));
    costs.of(small).saturating_mul(transfers)
}

/// The decision and all that it learns from. One for each process.
#[derive(Clone, Debug)]
pub struct Granularity {
    streams: PageStreams,
    /// Trust in runs that come by a unit.
    stream_trust: Trust,
    /// Trust in the remembered density.
    memory_trust: Trust,
    /// Trust that unknown units are as dense as others were.
    new_trust: Trust,
    /// What is expected of pieces.
    neighbours: Neighbours,
}

impl Granularity {
    /// A state that has learnt nothing. `seed` is any number that the program does not know.
    pub fn new(seed: u64) -> Granularity {
        Granularity {
            streams: PageStreams::new(),
            stream_trust: Trust::new(seed),
            memory_trust: Trust::new(!seed),
            new_trust: Trust::none(seed.rotate_left(32)),
            neighbours: Neighbours::default(),
        }
    }

    /// Trust in streams and in remembered density, for counters.
    pub fn trust(&self) -> (u32, u32) {
        (self.stream_trust.level(), self.memory_trust.level())
    }

    /// Trust in the kind of advice that a unit is tried for.
    fn tried(&mut self, history: UnitHistory) -> Option<&mut Trust> {
        match history.touched & TRIAL {
            0 => None,
            TRIAL => Some(&mut self.stream_trust),
            TRIED => Some(&mut self.memory_trust),
            _ => Some(&mut self.new_trust),
        }
    }

    /// Decides about a fault that needs data from swap.
    pub fn on_fault(
        &mut self,
        costs: &Costs,
        allowed: Allowed,
        fault: &Fault,
        history: UnitHistory,
    ) -> Decision {
        let base = fault.unit.saturating_mul(UNIT_PAGES);
        let run = self
            .streams
            .on_fault(base.saturating_add(u64::from(fault.page)));
        let (history, mut advice, missed) = self.advise(costs, allowed, fault, history, run);
        if allowed.base_4k && allowed.piece_64k && advice == Advice::None {
            let piece = base.saturating_add(fault.page.into()) / u64::from(PIECE_PAGES);
            if !self.neighbours.on_fault(piece, &fault.near) {
                let memory = costs.memory.max(fault.near.price);
                let costs = Costs { memory, ..*costs }.for_stay(fault.stay);
                advice = self.neighbours.advice(&costs, &fault.near);
            }
        }
        let mut decision = decide(costs, allowed, fault, history, advice);
        decision.missed |= missed;
        if decision.reason == Reason::Paid
            && let Some(trust) = self.tried(history)
        {
            trust.good();
        }
        decision.ahead = matches!(decision.reason, Reason::Stream | Reason::Dense);
        let at = |page: u16| base.saturating_add(u64::from(page));
        let (start, end) = (at(decision.pages.start), at(decision.pages.end));
        self.streams.on_brought(start, end);
        if decision.pages.len() > 1 {
            let piece = u64::from(PIECE_PAGES);
            self.neighbours.on_more(start / piece..end.div_ceil(piece));
        }
        decision
    }

    /// The account and the advice to decide by, and whether there would have been advice for the
    /// whole, were it allowed.
    fn advise(
        &mut self,
        costs: &Costs,
        allowed: Allowed,
        fault: &Fault,
        history: UnitHistory,
        run: Run,
    ) -> (UnitHistory, Advice, bool) {
        let costs = &costs.for_stay(fault.stay);
        if history.is_tried() {
            let history = if run.is_long() {
                history.for_stream()
            } else {
                history
            };
            return (history, self.run_advice(costs, run), false);
        }
        let small = allowed.smallest();
        // Payments before this point are not looked at again.
        let whole = whole_cost(costs, fault, UnitHistory::NEW);
        // Pages that are there already save nothing.
        let missing = u64::from(PAGES.saturating_sub(fault.present));
        let pays = |touches: u64| {
            let saved = small_cost(costs, small, (touches * missing).div_ceil(UNIT_PAGES));
            saved >= whole
        };
        let rest = if run.down {
            fault.page.saturating_add(1)
        } else {
            PAGES.saturating_sub(fault.page)
        };
        let stream = run.is_long() && pays(run.touches(u64::from(rest)));
        let first = history.brought == 0;
        if !allowed.whole {
            let missed = stream || first && pays(u64::from(fault.density.pages()));
            return (history, self.run_advice(costs, run), missed);
        }
        let new = first && fault.density == Density::UNKNOWN && fault.present == 0;
        if !stream && new && small != Size::Whole {
            if self.new_trust.believes() {
                return (history, Advice::Dense, false);
            }
            let tried = UnitHistory {
                touched: BY_STREAM,
                ..UnitHistory::NEW
            };
            return (tried, self.run_advice(costs, run), false);
        }
        let advice = if stream {
            // The pages between two pieces came with the first.
            let stride = if run.stride <= small.pages() {
                1
            } else {
                run.stride
            };
            Advice::Stream(stride)
        } else if first && pays(u64::from(fault.density.pages())) {
            Advice::Dense
        } else {
            return (history, self.run_advice(costs, run), false);
        };
        let trust = if stream {
            &mut self.stream_trust
        } else {
            &mut self.memory_trust
        };
        if small == Size::Whole || trust.believes() {
            (history, advice, false)
        } else {
            (UnitHistory::trial(stream), Advice::None, false)
        }
    }

    /// True if a run is worth a piece.
    fn run_advice(&self, costs: &Costs, run: Run) -> Advice {
        let touches = run.touches(u64::from(PIECE_PAGES));
        let saved = costs.of(Size::Page).saturating_mul(touches);
        if touches > 1 && saved >= costs.of(Size::Piece) {
            Advice::Run(run.stride)
        } else {
            Advice::None
        }
    }

    /// Decides whether an absent unit that [`crate::swapin::readahead::Streams`] wants is read
    /// ahead; `by` is the reason of the [`Decision`] that asked for it. If not, the error is the
    /// account under which the unit is left to its faults.
    pub fn admits_ahead(
        &mut self,
        costs: &Costs,
        by: Reason,
        density: Density,
        history: UnitHistory,
    ) -> (bool, UnitHistory) {
        let touches = match by {
            Reason::Stream => PAGES,
            _ => density.pages(),
        };
        let saved = small_cost(costs, Size::Page, u64::from(touches));
        if history.is_tried() || saved < costs.of(Size::Whole) {
            return (false, history);
        }
        if self.stream_trust.believes() {
            (true, history)
        } else {
            (false, UnitHistory::trial(true))
        }
    }

    /// Notes that units `start..end` are whole in memory or were read ahead, so that streams that
    /// have reached them fault beyond them, if at all. To be called with the neighbours (a few, on
    /// both sides) of every unit that a decision brings to its end.
    pub fn on_ahead(&mut self, start: u64, end: u64) {
        let page = |unit: u64| unit.saturating_mul(UNIT_PAGES);
        self.streams.on_brought(page(start), page(end));
    }

    /// Notes a touch of a page that was in memory but not mapped (read ahead, or watched).
    pub fn on_soft_fault(&mut self, unit: u64, page: u16) {
        self.streams.on_fault(
            unit.saturating_mul(UNIT_PAGES)
                .saturating_add(u64::from(page)),
        );
    }

    /// Notes that reclaim took pages of a unit that is not whole, after `stayed` of [`STAY`], and
    /// that `left` pages of it are still resident. Returns the account from now on, and the density
    /// to remember if it is news. (The account of a discarded or unmapped unit is dropped.)
    pub fn on_evicted(
        &mut self,
        costs: &Costs,
        history: UnitHistory,
        left: u16,
        stayed: u16,
    ) -> (UnitHistory, Option<Density>) {
        // Pages from before the account are older, and left first.
        if left >= history.brought {
            return (history, None);
        }
        let whole = costs_of(costs, history).of(Size::Whole);
        if let Some(trust) = self.tried(history) {
            // At this rate, in a whole stay.
            let stayed = u64::from(stayed.clamp(SHORT_STAY, STAY));
            let paid = history.paid().saturating_mul(u64::from(STAY)) / stayed;
            if paid > whole {
                trust.good();
            } else {
                trust.bad();
            }
        }
        let news = (!history.is_leaving()).then(|| Density::of(history.touched().div_ceil(WORTH)));
        let history = match left {
            0 => UnitHistory::NEW,
            _ => history.keep(left),
        };
        (history, news)
    }
}

#[cfg(test)]
mod tests;
