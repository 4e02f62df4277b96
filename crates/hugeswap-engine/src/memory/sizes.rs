//! What the policy needs to decide how much a fault brings in, kept and measured: costs of the
//! device (from every read of exactly 4 KiB, 64 KiB or 2 MiB), the price of memory, and what each
//! unit's last stay was like. `hugeswap_policy::swapin::granularity` makes the decision. It is
//! asked the same, with costs of mapping only, when a watched unit is touched. Base-mapped units
//! themselves are not watched, so touches of their pages in memory are not seen: on the reclaim
//! lists a unit is as young as the first page of its present stay.
//!
//! Concurrency: one engine lock around what learns; the rest are atomics, and records under the
//! units' locks. The fault path calls this, and its rules hold here.

use super::learning::CPU;
use crate::bits::Bits;
use crate::memory::Memory;
use crate::pages::record::Record;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::defrag::gfp::Caller;
use hugeswap_policy::defrag::thp::Bring;
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::recording::{self, Happening};
use hugeswap_policy::swapin::granularity::{
    Allowed, Costs, Density, Fault, Near, PIECE_PAGES, PerSize, Reason, Room, STAY, Seen, Trial,
    UnitHistory,
};
use hugeswap_policy::unit::Kind;
use hugeswap_policy::watermark::Watermarks;
use hugeswap_policy::workingset::lruvec::Event;
use hugeswap_policy::workingset::{MeanDistance, lives};
use hugeswap_policy::{UNIT_PAGES, advisor};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// What of the time that a program's threads run outside the kernel goes into a fault, if it is a
/// signal, and into each page that it brings (its sum), nanoseconds. (For how long threads
/// poll for reads is added up apart.)
const HANDLING: u64 = 3_000;
const HANDLING_PAGE: u64 = 600;

/// The same where pages are moved by mremap.
const REMAP: PerSize = PerSize {
    page: 25_000,
    piece: 25_000,
    whole: 25_000,
};

/// The same for a touch of a watched unit.
const WATCHED: PerSize = PerSize {
    page: 7_000,
    piece: 15_000,
    whole: 10_000,
};

/// Neighbours that a stream may have reached already.
const NEIGHBOURS: u32 = 8;

impl Memory {
    /// Is it left to the faults how much of `unit` they bring in, and is there a choice?
    fn size_is_automatic(&self, unit: u32) -> bool {
        matches!(self.bring_of(unit), Bring::AsFaulted | Bring::Pieces)
    }

    /// Which pages to bring in for a fault on one that is away, of a locked unit in swap or
    /// base-mapped; or to map again of one that is whole and `watched`. `None`: all of it. What
    /// that teaches of the unit is kept in its record.
    pub(crate) fn decide_size(
        &self,
        unit: u32,
        page: usize,
        present: u64,
        watched: bool,
    ) -> Option<Range<usize>> {
        let record = self.base.records.of(unit);
        // What is spared would be again: no argument for bringing the rest.
        let present = present - record.present.common(&record.workingset).min(present);
        let pages = self.pages_can_come();
        let caller = match present {
            0 => Caller::SwapIn,
            _ => Caller::Collapse,
        };
        let single = pages && self.backend.can().has_single_pages();
        // (Pieces that are moved take mappings, of which there may be too few.)
        let compressed = single && !watched && self.is_partly_compressed(unit, page);
        let full = self.pool.used_frames() >= self.pool.frames();
        let only_whole = full && self.sizes.only_whole.load(Relaxed);
        let by_parts = self.bring_of(unit) == Bring::Pieces;
        let only_whole = only_whole && !by_parts;
        let wanted = (only_whole || !compressed) && !by_parts;
        let allowed = match watched || !pages || wanted && self.huge_is_to_be_had(unit, caller) {
            true if only_whole => Allowed::WHOLE,
            whole => Allowed {
                base_4k: single,
                piece_64k: pages,
                whole,
            },
        };
        let mut fault = Fault {
            unit: u64::from(unit),
            page: page as u16,
            present: present as u16,
            density: record.density(),
            stay: self.stay(record, present),
            near: match watched {
                true => Near::default(),
                false => self.near(unit, record, page),
            },
        };
        let mut learning = self.sizes.learning.lock();
        let memory = match full && !only_whole {
            true => learning.price.price(),
            false => 0,
        };
        let costs = if watched {
            Costs::resident(WATCHED, memory)
        } else {
            let costs = self.costs_of(unit, page, learning.fill, memory);
            if full && !only_whole && !learning.ghost.wins() {
                fault.near.price = learning.price.near();
            }
            let memory = learning.ghost.price(memory, costs.page, costs.whole);
            Costs { memory, ..costs }
        };
        let d = learning
            .granularity
            .on_fault(&costs, allowed, &fault, record.history());
        if !watched {
            let alone = match d.whole && present > 0 {
                true => costs.fill,
                false => Costs { memory: 0, ..costs }.of_pages(d.pages.len() as u16),
            };
            let distance = self.refault_distance(unit, record, page);
            let resident = self.resident_pages();
            let brought = match d.reason {
                Reason::Run | Reason::Near if single => u64::from(fault.near.absent) + 1,
                _ => (d.pages.len() as u64).min(UNIT_PAGES - present),
            };
            learning.price.on_fault(brought, distance, resident, alone);
            if !self.backend.can().faults_are_messages {
                let took = HANDLING + HANDLING_PAGE * brought;
                self.sizes.handled_ns.fetch_add(took, Relaxed);
            }
            // (What cannot come whole is on no list of what would.)
            if !by_parts {
                let units = resident / UNIT_PAGES;
                let room = Room {
                    // (What is kept free for whole units is not in use.)
                    units: units.saturating_sub(Watermarks::for_budget(units).high / UNIT_PAGES),
                    whole: self.weights.full(),
                };
                learning
                    .ghost
                    .on_fault(unit, alone, costs.whole, d.whole, room);
            }
        }
        if d.whole {
            // Streams pass what is in memory without a fault.
            let whole = |u: u32| {
                u < self.table.units()
                    && matches!(self.table.load(u).kind(), Kind::Present | Kind::Cached)
            };
            let above = (1..=NEIGHBOURS).take_while(|i| whole(unit.saturating_add(*i)));
            let end = unit + 1 + above.count() as u32;
            let below = (1..=NEIGHBOURS.min(unit)).take_while(|i| whole(unit - i));
            let start = unit - below.count() as u32;
            let g = &mut learning.granularity;
            g.on_ahead(u64::from(unit) + 1, u64::from(end));
            g.on_ahead(u64::from(start), u64::from(unit));
        }
        drop(learning);
        if d.missed && !watched && !compressed && !by_parts {
            if caller == Caller::SwapIn {
                self.pool.count(Counter::ThpSwpInFallback, 1);
                self.note_fell_back(unit);
            } else {
                self.pool.count(Counter::ThpCollapseFailed, 1);
            }
        }
        record.set_history(d.history);
        record.set_density(d.density);
        (!d.whole).then_some(usize::from(d.pages.start)..usize::from(d.pages.end))
    }

    /// What is in memory around `page` of a locked unit, and what could come with it.
    fn near(&self, unit: u32, record: &Record, page: usize) -> Near {
        const PIECE: usize = PIECE_PAGES as usize;
        let piece = page / PIECE * PIECE..page / PIECE * PIECE + PIECE;
        let (present, stored) = match self.table.load(unit).kind() {
            Kind::Base => {
                let count = |bits: &Bits| piece.clone().filter(|&p| bits.get(p)).count();
                (count(&record.present), count(&record.stored))
            }
            _ => (0, PIECE),
        };
        Near {
            present: present as u16,
            absent: stored.saturating_sub(present + 1) as u16,
            evicted: self.sizes.evicted.load(Relaxed),
            resident: self.resident_pages(),
            price: 0,
        }
    }

    /// Is a unit whose page `page` is wanted in compressed memory, at least in part? It comes by
    /// pages and pieces then: a page costs hardly more than its part of the whole, and what is
    /// brought beyond what is used displaces as much, which has to be compressed.
    fn is_partly_compressed(&self, unit: u32, page: usize) -> bool {
        let slot = self
            .store
            .slot_of(unit, self.table.load(unit).place(), page);
        slot.is_some_and(|s| self.store.zswap.has(s.cluster))
    }

    /// What it costs to bring a page of a locked unit, and more of it.
    fn costs_of(&self, unit: u32, page: usize, fill: u32, memory: u64) -> Costs {
        let place = self.table.load(unit).place();
        // (See `decide_size`.)
        let single = self.backend.can().has_single_pages();
        let cost = match single && self.store.is_compressed(unit, place, page) {
            true => self.store.zswap.cost(),
            false => &self.store.cost,
        };
        let costs = Costs::new(cost, self.cpu(), fill, memory);
        self.store.price_apart(unit, place, costs)
    }

    fn cpu(&self) -> PerSize {
        match self.backend.can().fills_stages {
            true => REMAP,
            false => CPU,
        }
    }

    /// How much of a unit's stay in memory lies ahead: units leave about in the order in which they
    /// came, so it ends when as much was evicted as there is.
    fn stay(&self, record: &Record, present: u64) -> u16 {
        match present {
            0 => STAY,
            _ => STAY - self.stayed(record).min(STAY - 1),
        }
    }

    /// How much of a stay has gone by since the first pages of a unit came.
    fn stayed(&self, record: &Record) -> u16 {
        let evicted = self.sizes.evicted.load(Relaxed);
        let since = evicted.wrapping_sub(record.came_at.load(Relaxed));
        let resident = self.resident_pages();
        let gone = since.saturating_mul(STAY.into()) / resident.max(1);
        gone.min(STAY.into()) as u16
    }

    /// Absent pages of a locked, base-mapped unit are about to be brought in: how often they are to
    /// be spared, and what of them are refaults.
    pub(crate) fn note_refaults(&self, unit: u32, record: &Record, pages: Range<usize>) {
        let detection = self.pool.knob(Knob::WorkingsetDetection) != 0;
        let resident = self.resident_pages();
        let (group, kind) = self.weights.place(unit);
        let most = detection.then(|| self.weights.in_time(group, kind));
        let (mut refaults, mut activated, mut restored, mut in_time) = (0, 0, 0, 0);
        for page in pages.filter(|&p| !record.present.get(p)) {
            let one = page..page + 1;
            let distance = self.refault_distance(unit, record, page);
            refaults += u64::from(distance.is_some());
            let mean = MeanDistance(self.sizes.mean_distance.load(Relaxed));
            if let Some(d) = distance {
                in_time += u64::from(most.is_some_and(|most| d <= most));
                let now = mean.on_refault(d, resident);
                self.sizes.mean_distance.store(now.0, Relaxed);
            }
            let lives = match distance {
                Some(d) if detection => lives(d, mean, resident),
                _ => 0,
            };
            record.set_lives(one.clone(), lives);
            if lives > 0 {
                activated += 1;
                restored += u64::from(record.workingset.get(page));
            } else {
                record.workingset.put(one, false);
            }
        }
        if refaults > 0 {
            let counts = [refaults, activated, restored];
            self.groups.count_pages(group, kind, counts);
        }
        if in_time > 0 {
            let deactivated = record.was_deactivated();
            self.groups.claim(group, kind, deactivated, in_time);
        }
        let counted = [
            (Event::Refault, refaults),
            (Event::Activate, activated),
            (Event::Restore, restored),
        ];
        for (event, n) in counted.into_iter().filter(|&(_, n)| n > 0) {
            self.pool.count(Counter::of_lists(event, kind), n);
        }
    }

    /// The first pages of a locked, base-mapped unit came.
    pub(crate) fn note_pages_came(&self, unit: u32) {
        let evicted = self.sizes.evicted.load(Relaxed);
        self.base.records.of(unit).came_at.store(evicted, Relaxed);
    }

    /// May readahead bring in `unit`, locked and in swap, for a stream?
    pub(crate) fn admits_ahead(&self, unit: u32) -> bool {
        match self.bring_of(unit) {
            Bring::AsFaulted => {}
            bring => return bring == Bring::Whole,
        }
        let record = self.base.records.of(unit);
        let mut learning = self.sizes.learning.lock();
        let costs = Costs::new(&self.store.cost, self.cpu(), learning.fill, 0);
        let place = self.table.load(unit).place();
        let costs = self.store.price_apart(unit, place, costs);
        let (admitted, history) = learning.granularity.admits_ahead(
            &costs,
            Reason::Stream,
            record.density(),
            record.history(),
        );
        record.set_history(history);
        admitted
    }

    /// Looks how far the program has come; `ran_ns`: the processor time of its own code, in all.
    pub(crate) fn look_at_progress(&self, ran_ns: u64) {
        // (In message mode faults are handled by threads of ours, which are not counted.)
        let polled = match self.backend.can().faults_are_messages {
            true => 0,
            false => self.store.backing.pollers.polled_ns(),
        };
        let faults_took = self.sizes.handled_ns.load(Relaxed) + polled;
        let mut learning = self.sizes.learning.lock();
        let seen = Seen {
            ns: hugeswap_sys::now_ns(),
            ran_ns: ran_ns.saturating_sub(faults_took),
            stalled_ns: self.pool.record().events.stalled_ns.load(Relaxed),
            evicted: self.sizes.evicted(),
            resident: self.resident_pages(),
            full: self.pool.used_frames() >= self.pool.frames(),
        };
        let trial = learning.progress.on_look(seen);
        let only_whole = learning.progress.is_whole();
        // (While all comes whole, or did, for another reason, nothing is seen of the list's choice.)
        let wins = learning.ghost.wins();
        if !only_whole && learning.verdict.on_look(seen, wins) {
            learning.ghost.give_up();
        }
        let allowed = learning.verdict.allows(seen.ns);
        learning.ghost.bar(!allowed);
        let alone = learning.progress.is_alone();
        let by_pages = learning.progress.is_by_pages();
        let quiet = learning.progress.is_quiet();
        drop(learning);
        // (Counted before it takes effect: units that come whole by it are not taken for others'.)
        match trial {
            Some(Trial::Begun) => self.pool.count(Counter::ThpSwpInTrial, 1),
            Some(Trial::Kept) => self.pool.count(Counter::ThpSwpInTrialKept, 1),
            Some(Trial::Ended) | None => {}
        }
        if let Some(trial) = trial {
            self.pool.note(|| Happening {
                detail: trial as u8,
                pages: if only_whole { UNIT_PAGES as u32 } else { 1 },
                ..Happening::new(recording::Kind::Trial, seen.ns, 0)
            });
        }
        self.sizes.quiet.store(quiet, Relaxed);
        self.sizes.by_pages.store(by_pages, Relaxed);
        self.sizes.alone.store(alone, Relaxed);
        self.sizes.only_whole.store(only_whole, Relaxed);
    }

    /// A page that was in memory was mapped by a fault.
    pub(crate) fn note_soft_fault(&self, unit: u32, page: usize) {
        if self.size_is_automatic(unit) {
            let mut learning = self.sizes.learning.lock();
            learning
                .granularity
                .on_soft_fault(u64::from(unit), page as u16);
        }
    }

    /// `n` pages of a locked, base-mapped unit, all but what is spared, have left, which took `ns`.
    pub(crate) fn note_pages_evicted(&self, unit: u32, n: u64, ns: u64) {
        let record = self.base.records.of(unit);
        let stayed = self.stayed(record);
        let clock = self.sizes.evicted.fetch_add(n, Relaxed);
        self.note_evicted(unit, n);
        self.advise_turn(unit, record, n, clock);
        record.left_at.store(clock + n, Relaxed);
        // What is spared begins another stay.
        record.came_at.store(clock + n, Relaxed);
        let mut learning = self.sizes.learning.lock();
        let price = learning.price.price();
        let costs = Costs::new(&self.store.cost, self.cpu(), learning.fill, price);
        let (history, density) =
            learning
                .granularity
                .on_evicted(&costs, record.history(), 0, stayed);
        learning.price.on_evicted(n, n, ns);
        learning.price.on_spared(record.present.count());
        record.set_history(history);
        if let Some(density) = density {
            record.set_density(density);
        }
    }

    /// A locked unit that was whole keeps only the pages that are present now.
    pub(crate) fn note_split(&self, unit: u32) {
        let record = self.base.records.of(unit);
        self.advise_whole(record);
        record.left.copy_inverse(&record.present);
        let n = record.left.count();
        let clock = self.sizes.evicted.fetch_add(n, Relaxed);
        self.note_evicted(unit, n);
        record.left_at.store(clock + n, Relaxed);
        record.came_at.store(clock + n, Relaxed);
        self.sizes.learning.lock().price.on_evicted(n, n, 0);
    }

    /// A locked, whole unit has left memory.
    pub(crate) fn note_whole_evicted(&self, unit: u32) {
        let record = self.base.records.of(unit);
        let clock = self.sizes.evicted.fetch_add(UNIT_PAGES, Relaxed);
        self.note_evicted(unit, UNIT_PAGES);
        record.left_at.store(clock + UNIT_PAGES, Relaxed);
        record.has_left_whole();
        self.advise_whole(record);
        self.advise(advisor::LEFT_WHOLE, UNIT_PAGES);
        if !self.size_is_automatic(unit) {
            return;
        }
        record.left.fill(true);
        record.set_history(UnitHistory::NEW);
        let touched = match record.density() {
            Density::UNKNOWN | Density::FULL => UNIT_PAGES,
            d => u64::from(d.pages()),
        };
        // (What it took to write it is known since then.)
        let mut learning = self.sizes.learning.lock();
        learning.price.on_evicted(UNIT_PAGES, touched, 0);
    }

    /// A unit was written to swap as a whole, or could not be.
    pub(crate) fn note_unit_written(&self, written: bool) {
        if written {
            self.sizes.note_written(self.store.unit_out_ns());
        } else {
            self.rest_a_moment();
        }
    }
}
