//! What every page is: in memory, in swap and where, zero, lost. Exact, from the engine's own
//! tables, without a lock and without a fault.
//!
//! No thread waits and none is stopped. A unit that is being changed is reported as it was, and as
//! in transit; each page of a base-mapped unit as it was at some moment of the call. Memory that no
//! other thread changes is reported as it is.

use crate::UNIT;
use crate::bits::Bits;
use crate::ranges::Ranges;
use crate::{PAGE, PAGES};
use hugeswap_policy::PAGE_BYTES;
use hugeswap_policy::markers::pagemap::{Categories, State, SwapPlace};
use hugeswap_policy::unit::{CLEAN, COW, Kind, LOCKED, Place, WATCHED, WRITEBACK, Word};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// Looks at a unit that changes all the time.
const MOST_TRIES: u32 = 100;

impl Ranges {
    /// Calls `tell` with the pages of `[addr, addr+len)`, run by run in the order of addresses: the
    /// addresses of each run, and what its pages are. Runs are not as long as can be. What lies
    /// outside the window is left out.
    pub fn page_states(&self, addr: usize, len: usize, mut tell: impl FnMut(Range<usize>, State)) {
        let mut tell = |pages, state: State| {
            debug_assert_eq!(state.check(), Ok(()));
            tell(pages, state);
        };
        if self.sharing.is_shared(addr) {
            return self.sharing.page_states(addr, len, tell);
        }
        let end = addr.saturating_add(len);
        for unit in self.table.units_of(addr, len) {
            let at = self.table.addr(unit);
            let first = addr.max(at) - at;
            let last = (end.min(at + UNIT) - at).div_ceil(PAGE);
            self.unit_states(unit, first / PAGE..last, |pages, state| {
                self.markers
                    .with_markers(unit, pages, state, |pages, state| {
                        self.with_writes(unit, pages, state, |pages, state| {
                            tell(at + pages.start * PAGE..at + pages.end * PAGE, state);
                        });
                    });
            });
        }
    }

    fn unit_states(
        &self,
        unit: u32,
        pages: Range<usize>,
        mut tell: impl FnMut(Range<usize>, State),
    ) {
        let w = self.table.load(unit);
        let of_unit = Categories::NONE
            .and_if(w.has(LOCKED), Categories::IN_TRANSIT)
            .and_if(w.file().is_some(), Categories::FILE);
        let one = |categories| State {
            categories: of_unit | categories,
            swap: None,
        };
        match w.kind() {
            Kind::Free | Kind::None => tell(pages, one(Categories::ZERO)),
            Kind::Poisoned => tell(pages, one(Categories::POISONED)),
            Kind::Foreign => self.foreign_states(unit, pages, of_unit, tell),
            Kind::Present => {
                let categories = (Categories::PRESENT | Categories::HUGE)
                    .and_if(!w.has(CLEAN), Categories::DIRTY)
                    .and_if(w.has(WATCHED), Categories::IDLE)
                    .and_if(w.has(WRITEBACK), Categories::WRITEBACK)
                    .and_if(w.has(COW), Categories::SHARED)
                    .and_if(w.pins() > 0, Categories::PINNED);
                tell(pages, one(categories));
            }
            Kind::Swapped | Kind::Cached => {
                let cached = w.kind() == Kind::Cached;
                let categories = (of_unit | Categories::HUGE).and_if(cached, Categories::CACHED);
                self.swapped_states(unit, w, pages, (categories, false), &mut tell);
            }
            Kind::Base => self.base_states(unit, pages, tell),
        }
    }

    /// Pages that are where the unit's place says. Those that are nowhere are zero or, if they are
    /// known to be `stored`, on their way from single places to another one: the thread that has
    /// the unit locked gives those up before the word tells of the other.
    fn swapped_states(
        &self,
        unit: u32,
        w: Word,
        pages: Range<usize>,
        (of_all, stored): (Categories, bool),
        tell: &mut impl FnMut(Range<usize>, State),
    ) {
        let lossless = self.pool.header().losses.load(Relaxed) == 0;
        let state_of = |page| self.swapped_state(unit, w, page, of_all, stored);
        if w.file().is_some() || lossless && w.place() != Place::Singles {
            let state = state_of(pages.start);
            return tell(pages, state);
        }
        runs(pages, state_of, tell);
    }

    fn swapped_state(
        &self,
        unit: u32,
        w: Word,
        page: usize,
        of_all: Categories,
        stored: bool,
    ) -> State {
        let swapped = State {
            categories: of_all | Categories::SWAPPED,
            swap: None,
        };
        let (cluster, at) = match w.place() {
            Place::Singles => {
                let places = self.store.scatter.of(unit);
                match places.and_then(|p| p.get(page)) {
                    Some(single) => (single.cluster, single.at),
                    None if stored => return swapped,
                    None => {
                        return State {
                            categories: of_all | Categories::ZERO,
                            swap: None,
                        };
                    }
                }
            }
            Place::Cluster(cluster) => (cluster, page),
            Place::Nothing | Place::File(_) => return swapped,
        };
        let some = self.pool.header().losses.load(Relaxed) > 0;
        if some && self.pool.is_bad_or_lost(cluster, at..at + 1) {
            return State {
                categories: of_all | Categories::POISONED,
                swap: None,
            };
        }
        let place = self.pool.locate(cluster).map(|(area, offset)| SwapPlace {
            area: area as u8,
            page: offset / PAGE_BYTES + at as u64,
        });
        State {
            swap: place,
            ..swapped
        }
    }

    fn base_states(
        &self,
        unit: u32,
        pages: Range<usize>,
        mut tell: impl FnMut(Range<usize>, State),
    ) {
        let record = self.base.records.of(unit);
        let (present, stored, dirty) = (Bits::none(), Bits::none(), Bits::none());
        // The place and what is stored there are to be of one moment. The owner of the lock of a
        // unit changes them one after the other: that is not waited for, but not missed either.
        let mut tries = 0;
        let w = loop {
            let w = self.table.load(unit);
            // In this order: what leaves is stored first, and what comes stays so.
            present.copy(&record.present);
            stored.copy(&record.stored);
            dirty.copy(&record.dirty);
            tries += 1;
            if self.table.load(unit) == w || tries == MOST_TRIES {
                break w;
            }
        };
        if w.kind() != Kind::Base {
            return self.unit_states(unit, pages, tell);
        }
        let of_unit = Categories::NONE
            .and_if(w.has(LOCKED), Categories::IN_TRANSIT)
            .and_if(w.file().is_some(), Categories::FILE);
        let is_file = of_unit.has(Categories::FILE);
        let one = |categories| State {
            categories: of_unit | categories,
            swap: None,
        };
        let mut page = pages.start;
        while page < pages.end {
            let ends = [&present, &dirty, &stored].map(|bits| bits.same_until(page, pages.end));
            let end = ends.into_iter().min().unwrap_or(pages.end);
            let stored = stored.get(page);
            let dirty = dirty.get(page) || !stored && !is_file;
            if present.get(page) {
                let categories = Categories::PRESENT.and_if(dirty, Categories::DIRTY);
                tell(page..end, one(categories));
            } else if stored || is_file {
                self.swapped_states(unit, w, page..end, (of_unit, true), &mut tell);
            } else {
                tell(page..end, one(Categories::ZERO));
            }
            page = end;
        }
    }

    /// Of memory that was handed to the kernel the kernel is asked; what it does not tell is only
    /// foreign.
    fn foreign_states(
        &self,
        unit: u32,
        pages: Range<usize>,
        of_unit: Categories,
        mut tell: impl FnMut(Range<usize>, State),
    ) {
        let at = self.table.addr(unit);
        let (mut entries, mut have) = ([0u64; 64], 0..0);
        let mut state_of = |page: usize| {
            if !have.contains(&page) {
                let len = entries.len().min(PAGES - page);
                let got = self
                    .backend
                    .page_entries(at + page * PAGE, &mut entries[..len]);
                have = page..page + got.unwrap_or(0);
            }
            let entry = match have.contains(&page) {
                true => entries[page - have.start],
                false => 0,
            };
            let bit = |n: u32| entry >> n & 1 == 1;
            let (present, swapped, guard) = (bit(63), bit(62), bit(58));
            State {
                categories: (of_unit | Categories::FOREIGN)
                    .and_if(present, Categories::PRESENT)
                    .and_if(swapped && !guard, Categories::SWAPPED)
                    .and_if(guard, Categories::GUARD),
                swap: None,
            }
        };
        runs(pages, &mut state_of, &mut tell);
    }
}

/// Tells of `pages`, of which `state_of` knows each, in runs.
fn runs(
    pages: Range<usize>,
    mut state_of: impl FnMut(usize) -> State,
    tell: &mut impl FnMut(Range<usize>, State),
) {
    let Some(first) = pages.clone().next() else {
        return;
    };
    let (mut start, mut state) = (first, state_of(first));
    for page in first + 1..pages.end {
        let next = state_of(page);
        if next != state.nth((page - start) as u64) {
            tell(start..page, state);
            (start, state) = (page, next);
        }
    }
    tell(start..pages.end, state);
}
