//! How much to bring in at a fault: 4 KiB, 64 KiB, or the whole unit of 2 MiB.
//!
//! Whole units win sequential work by ten times and lose random work by twenty, and nobody says
//! beforehand which it is. The decision is made from faults alone, for each unit, by three rules.
//!
//! **A unit pays for itself** (ski rental: Karlin, Manasse, Rudolph and Sleator, *Competitive snoopy
//! caching*, 1988). Small transfers go on until what they have cost since the unit came in would
//! exceed the cost of having brought it whole; then the rest comes in one piece. What a transfer
//! costs is the device's time, the CPU's, and the memory it takes from others for the rest of the unit's stay ([`Costs`]). Of a unit
//! of which `n` pages are touched, each fault costing `c`, the better choice in hindsight costs
//! `min(n c, B)`, `B` being the whole; this rule pays `n c` while that is at most `B`, and no more
//! than `2 B` after that: **never more than twice the better choice**.
//!
//! **A run ramps** ([`PageStreams`]). A fault stream that advances is taken to go on for as many
//! steps as it has made. 64 KiB come at once when the page faults they save by that measure cost as
//! much; and once the run has come by more than a unit, so do whole units, and units ahead of it
//! ([`Decision::ahead`]), if its stride touches enough of each. So one threshold, in steps, serves
//! any stride and any device.
//!
//! **A unit is remembered** ([`Density`]). How many of its pages were touched while it was last in
//! memory tells at its first fault whether it is worth a whole transfer. If it was sparse, the first rule alone decides, which costs a sparse
//! unit nothing. Of an unknown unit is believed what the unknown ones before it turned out to be.
//!
//! The second and third rule are advice, and advice can be wrong: a unit that came whole cannot be
//! seen to be used. A rule that is `1 + t` times the best when advice is right is at worst `1 + 1/t`
//! times (Kumar, Purohit and Svitkina, *Improving online algorithms via ML predictions*, 2018), `t`
//! being the share of the rent that is paid before advice is followed. Here it is followed at once,
//! but not always: now and then an advised unit is tried by the first rule, and the outcome says how
//! often (`granularity/trust.rs` has the argument). For single pages and whole units, prices that
//! stand still, and units that leave memory as one, that promises:
//!
//! | | at most, times the better choice in hindsight |
//! | --- | --- |
//! | no advice ([`decide`] with [`Advice::None`]) | 2, each unit; an eighth more where [`Costs::fill`] is above [`Costs::whole`] |
//! | advice that is right | 1 1/64 in the long run |
//! | advice that is wrong, however often, given without knowing our coin | 2 1/12 on average, and 22 whole transfers once for each kind of advice |
//! | one unit wrongly advised | not bounded by its own use: what it had paid, and one whole transfer |
//! | a run that goes on in steps of 64 KiB after having gone by pages | a 64 KiB transfer for each page, until they add up to `B`: then still `2 B` |
//!
//! What it does not promise: anything against a program that sees our coin (looks which units came
//! whole, and leaves those alone). And the factor is one of costs with memory at its price: where the
//! price is high and yet nothing is displaced that would have stayed (a loop over less than a quarter more
//! than memory), dense units without advice go on by pages for longer than they should. For a unit
//! that is tried on a stream's behalf memory is not counted, so that trying stays cheap.
//!
//! A unit that is evicted bit by bit takes what the pages that leave have paid out of its account, so
//! each fault is counted towards one whole transfer only.
//!
//! No allocation, constant time, no clock. [`decide`] is a pure function; [`Granularity`] has an owner
//! who serialises calls.

mod account;
mod cost;
mod streams;
mod trust;

use account::{BY_STREAM, TRIAL, TRIED, WORTH};
pub use account::{Density, UnitHistory};
pub use cost::{Costs, DeviceCost, Direction, MemoryPrice, PerSize, follow};
pub use streams::{MAX_PAGE_STRIDE, PAGE_STREAMS, PageStreams, Run};
use trust::Trust;

use crate::UNIT_PAGES;
use std::ops::Range;

/// Pages in a unit.
const PAGES: u16 = UNIT_PAGES as u16;
/// Pages in a piece of 64 KiB.
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
    /// Pages in it.
    pub const fn pages(self) -> u16 {
        match self {
            Size::Page => 1,
            Size::Piece => PIECE_PAGES,
            Size::Whole => PAGES,
        }
    }
}

/// Which transfers may be made, by what the machine allows and what is set.
///
/// Under `thp.swapin = always` only `whole` (while a huge frame is to be had), under `never` only `base_4k`; without
/// userfaultfd `piece_64k` while the budget of mappings lasts, and `whole`. With nothing allowed a page is decided on.
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
    /// Everything.
    pub const ALL: Allowed = Allowed {
        base_4k: true,
        piece_64k: true,
        whole: true,
    };

    /// The smallest transfer there is.
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

/// A fault on a unit of which the page asked for is in swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The unit's number in the address space.
    pub unit: u64,
    /// The page in the unit, below 512.
    pub page: u16,
    /// How many pages of the unit are resident.
    pub present: u16,
    /// What is remembered of it.
    pub density: Density,
    /// How much of the unit's stay in memory lies ahead, of [`STAY`].
    pub stay: u16,
}

/// A whole stay in memory.
pub const STAY: u16 = 1 << 10;
/// What came in less of a stay says no more of the rest than if it had taken as long as this.
const SHORT_STAY: u16 = STAY / 4;

/// What is known beyond the unit's own account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Advice {
    /// Nothing.
    #[default]
    None,
    /// A run of this stride, in pages, will use a 64 KiB piece.
    Run(u16),
    /// A run of this stride will use the unit.
    Stream(u16),
    /// The unit was dense.
    Dense,
}

/// Why a transfer is of its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The smallest there is: nothing speaks for more.
    Small,
    /// A run will use a piece.
    Run,
    /// Small transfers have cost as much as the whole unit.
    Paid,
    /// A run will use the whole unit.
    Stream,
    /// The unit was dense when it was last in memory.
    Dense,
}

/// What to bring in, and what to keep in mind once that is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Pages of the unit, aligned to their number (1, 16 or 512). Those that are resident already are to be left out.
    pub pages: Range<u16>,
    /// The whole unit, as a huge page if one is to be had.
    pub whole: bool,
    /// Why.
    pub reason: Reason,
    /// The unit's account from now on.
    pub history: UnitHistory,
    /// What is remembered of the unit from now on.
    pub density: Density,
    /// The unit comes whole on advice, and more may follow: ask [`crate::swapin::readahead::Streams`] what comes next,
    /// and [`Granularity::admits_ahead`] for each of those units.
    pub ahead: bool,
    /// It would have come whole, but that was not allowed.
    pub missed: bool,
}

/// Decides. Pure: the same arguments give the same decision.
///
/// If the decision cannot be carried out (no huge frame, no mapping left), it is dropped and another made with less allowed.
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
        Advice::Run(_) if allowed.piece_64k => Size::Piece,
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
            // How many more will be touched nobody will see.
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

/// The costs that count for a unit. What a stream passes by goes soon whatever its size: the memory it takes is no argument when
/// it is tried.
fn costs_of(costs: &Costs, history: UnitHistory) -> Costs {
    match history.is_tried_stream() {
        true => Costs {
            memory: 0,
            ..*costs
        },
        false => *costs,
    }
}

/// What the unit would have cost, had it come whole before its first small transfer, for a whole stay; what it takes
/// more to fill it up now counts up to an eighth of that.
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

/// What a page that comes for the rest of a stay is worth, in [`WORTH`] parts of one that comes for all of it.
fn worth(full: &Costs, rest: &Costs) -> u16 {
    let parts = rest.of(Size::Page).saturating_mul(u64::from(WORTH));
    (parts.div_ceil(full.of(Size::Page).max(1)) as u16).min(WORTH)
}

/// What small transfers would cost for `touches` of a unit.
fn small_cost(costs: &Costs, small: Size, touches: u64) -> u64 {
    let transfers = touches.min(u64::from(PAGES / small.pages()));
    costs.of(small).saturating_mul(transfers)
}

/// The decision with all that it learns from. One for each process.
#[derive(Clone, Debug)]
pub struct Granularity {
    streams: PageStreams,
    /// In runs that come by a unit.
    stream_trust: Trust,
    /// In what is remembered of units.
    memory_trust: Trust,
    /// In units of which nothing is known being as dense as others were.
    new_trust: Trust,
}

impl Granularity {
    /// Nothing learnt. `seed` is any number that the program does not know.
    pub fn new(seed: u64) -> Granularity {
        Granularity {
            streams: PageStreams::new(),
            stream_trust: Trust::new(seed),
            memory_trust: Trust::new(!seed),
            new_trust: Trust::none(seed.rotate_left(32)),
        }
    }

    /// How far streams are believed, and how far memory is, for counters.
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

    /// Decides about a fault that needs swap data.
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
        let (history, advice, missed) = self.advise(costs, allowed, fault, history, run);
        let mut decision = decide(costs, allowed, fault, history, advice);
        decision.missed |= missed;
        if decision.reason == Reason::Paid
            && let Some(trust) = self.tried(history)
        {
            trust.good();
        }
        decision.ahead = matches!(decision.reason, Reason::Stream | Reason::Dense);
        let at = |page: u16| base.saturating_add(u64::from(page));
        self.streams
            .on_brought(at(decision.pages.start), at(decision.pages.end));
        decision
    }

    /// The account and the advice to decide by, and would there have been advice to bring the whole, were it allowed?
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
        // From here on: what was paid is paid.
        let whole = whole_cost(costs, fault, UnitHistory::NEW);
        // Of the pages that will be touched, those that are there already save nothing.
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
            // What lies between two pieces was brought with the first.
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

    /// Is a run worth a piece?
    fn run_advice(&self, costs: &Costs, run: Run) -> Advice {
        let touches = run.touches(u64::from(PIECE_PAGES));
        let saved = costs.of(Size::Page).saturating_mul(touches);
        if touches > 1 && saved >= costs.of(Size::Piece) {
            Advice::Run(run.stride)
        } else {
            Advice::None
        }
    }

    /// May an absent unit that [`crate::swapin::readahead::Streams`] wants be read ahead? `by` is the reason of the [`Decision`] that it follows from.
    /// If not, it is left to its faults, under the account given back.
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

    /// Units `start..end` are whole in memory, or were read ahead: streams that have reached them will fault beyond them, if at all. To be
    /// told of the neighbours (a few, on both sides) of every unit that a decision brings to its end.
    pub fn on_ahead(&mut self, start: u64, end: u64) {
        let page = |unit: u64| unit.saturating_mul(UNIT_PAGES);
        self.streams.on_brought(page(start), page(end));
    }

    /// A touch of a page that was in memory but not mapped (read ahead, or watched).
    pub fn on_soft_fault(&mut self, unit: u64, page: u16) {
        self.streams.on_fault(
            unit.saturating_mul(UNIT_PAGES)
                .saturating_add(u64::from(page)),
        );
    }

    /// Reclaim took pages of a unit that is not whole, after `stayed` of [`STAY`]; `left` of it are resident still. Gives the account
    /// from now on, and what to remember if that is news. (For discarded and unmapped units the account is just dropped.)
    pub fn on_evicted(
        &mut self,
        costs: &Costs,
        history: UnitHistory,
        left: u16,
        stayed: u16,
    ) -> (UnitHistory, Option<Density>) {
        // Pages from before the account are older, and went first.
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
