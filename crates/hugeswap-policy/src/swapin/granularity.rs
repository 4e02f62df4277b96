//! How much to bring in at a fault: 4 KiB, 64 KiB, or the whole unit of 2 MiB.
//!
//! Whole units win sequential work by a factor of ten and lose random work by twenty, and no hint
//! says beforehand which it is. The decision is made from faults alone, for each unit, by five
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
//! **Runs have a length** (`granularity/lengths.rs`). How long those became that have ended tells how
//! much more there will be of one that goes on, and up to 512 KiB come at once where that costs least.
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
//! | steps of 64 KiB or more, for a run or for pages nearby, of which one page is used | such a transfer for each page, until they add up to `B`: then still `2 B` |
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
mod decision;
mod ghost;
mod lengths;
mod near;
mod progress;
mod streams;
mod trust;
mod verdict;

use account::{BY_STREAM, TRIAL, TRIED, WORTH};
pub use account::{Density, UnitHistory};
pub use cost::{Costs, DeviceCost, Direction, MemoryPrice, PerSize, follow};
pub use decision::{Advice, Allowed, Decision, Fault, Reason, STAY, Size, decide};
use decision::{costs_of, small_cost, whole_cost};
pub use ghost::{Ghost, Room};
pub use lengths::LONGEST;
use lengths::{Lengths, TRIAL as LENGTH_TRIAL};
pub use near::Near;
use near::Neighbours;
pub use progress::{Progress, Seen, Trial};
pub use streams::{MAX_PAGE_STRIDE, PAGE_STREAMS, PageStreams, Run};
use trust::Trust;
pub use verdict::Verdict;

use crate::UNIT_PAGES;

/// Number of pages in a unit.
const PAGES: u16 = UNIT_PAGES as u16;
/// Number of pages in a piece of 64 KiB.
pub const PIECE_PAGES: u16 = 16;

/// Pages that came in a shorter part of a stay say no more of the rest than if it had been this
/// long.
const SHORT_STAY: u16 = STAY / 4;

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
    /// How long runs become.
    lengths: Lengths,
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
            lengths: Lengths::default(),
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
        if let Some(ended) = self.streams.ended() {
            self.lengths.note(ended);
        }
        let (history, mut advice, missed) = self.advise(costs, allowed, fault, history, run);
        if allowed.base_4k && matches!(advice, Advice::None | Advice::Run(_)) {
            let costs = costs_of(costs, history).for_stay(fault.stay);
            advice = self.ahead(&costs, fault.page).unwrap_or(advice);
        }
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

    /// Whether the run of the last fault will use more than its page, by what runs have become; now
    /// and then such a run comes as if nothing were known.
    fn ahead(&mut self, costs: &Costs, page: u16) -> Option<Advice> {
        let (made, weight) = self.streams.upward()?;
        if weight > 1 {
            return None;
        }
        let pages = self.lengths.pages(costs, made, page);
        if pages == 1 {
            return None;
        }
        if weight > 0 && self.lengths.is_tried() {
            self.streams.lead(LENGTH_TRIAL);
            return None;
        }
        self.streams.lead(0);
        Some(Advice::Ahead(pages))
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
        // As many as would have cost as much one by one: what counts is whether the whole is cheaper.
        let alone = costs.of(Size::Page).max(1);
        let alone = u16::try_from(history.paid().div_ceil(alone)).unwrap_or(u16::MAX);
        let dense = history.touched().div_ceil(WORTH).min(alone);
        let news = (!history.is_leaving()).then(|| Density::of(dense));
        let history = match left {
            0 => UnitHistory::NEW,
            _ => history.keep(left),
        };
        (history, news)
    }
}

#[cfg(test)]
mod tests;
