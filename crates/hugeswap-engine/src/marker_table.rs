//! Which pages have markers, and which are read-only: four bits for each page, beside the unit
//! table. A unit in whose pages anything is set is called marked.
//!
//! Concurrency: a unit's bits change under its lock. Every thread may read them.

use crate::PAGES;
use crate::bits::Bits;
use crate::table::Locked;
use crate::zeroed::{FromZeros, Zeroed};
use hugeswap_policy::markers::Marker;
use hugeswap_policy::markers::pagemap::{Categories, State};
use hugeswap_sys::Result;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

/// The markers of one unit.
pub(crate) struct Marked {
    pub guard: Bits,
    pub poison: Bits,
    pub no_access: Bits,
    /// Pages that the program may read and not write. (Not a marker: they can be in memory.)
    pub read_only: Bits,
}

// SAFETY: atomics only; no bit set is valid.
unsafe impl FromZeros for Marked {}

impl Marked {
    pub(crate) fn bits(&self, marker: Marker) -> &Bits {
        match marker {
            Marker::Guard => &self.guard,
            Marker::Poison => &self.poison,
            Marker::NoAccess => &self.no_access,
        }
    }

    fn all(&self) -> [&Bits; 4] {
        [&self.guard, &self.poison, &self.no_access, &self.read_only]
    }

    pub(crate) fn of(&self, page: usize) -> Option<Marker> {
        let order = [Marker::NoAccess, Marker::Guard, Marker::Poison];
        order.into_iter().find(|&m| self.bits(m).get(page))
    }

    /// The first run of pages at or after `from` that has a marker, or that has none.
    pub(crate) fn run(&self, from: usize, marked: bool) -> Option<Range<usize>> {
        self.run_of(from, |page| self.of(page).is_some() == marked)
    }

    /// The first run of pages at or after `from` that `is` holds for.
    pub(crate) fn run_of(&self, from: usize, is: impl Fn(usize) -> bool) -> Option<Range<usize>> {
        let start = (from..PAGES).find(|&p| is(p))?;
        let end = (start..PAGES).find(|&p| !is(p)).unwrap_or(PAGES);
        Some(start..end)
    }
}

pub(crate) struct Tables {
    /// A bit for each unit: it is marked.
    units: Zeroed<AtomicU64>,
    /// A bit for each unit: it is to come in by pages until khugepaged makes it whole, since it was
    /// in one piece when pages of it lost access, or less than half of it is mapped. (A heap that
    /// gives pages up and takes them again would have it split and copied together each time.)
    parted: Zeroed<AtomicU64>,
    pub pages: Zeroed<Marked>,
}

/// The markers of all pages of a window. Made when the first marker is installed.
pub(crate) struct Markers(OnceLock<Tables>);

impl Markers {
    /// None, and no memory for them.
    pub fn new() -> Markers {
        Markers(OnceLock::new())
    }

    pub(crate) fn open(&self, units: u32) -> Result<&Tables> {
        if let Some(tables) = self.0.get() {
            return Ok(tables);
        }
        let tables = Tables {
            units: Zeroed::new(units.div_ceil(64) as usize)?,
            parted: Zeroed::new(units.div_ceil(64) as usize)?,
            pages: Zeroed::new(units as usize)?,
        };
        // If another thread was faster, its are taken.
        Ok(self.0.get_or_init(|| tables))
    }

    /// The tables, if there were ever markers.
    pub(crate) fn tables(&self) -> Option<&Tables> {
        self.0.get()
    }

    pub(crate) fn of(&self, unit: u32) -> Option<&Marked> {
        let tables = self.0.get()?;
        let word = tables.units.get(unit as usize / 64)?.load(Acquire);
        (word >> (unit % 64) & 1 == 1).then(|| &tables.pages[unit as usize])
    }
}

impl Tables {
    /// Changes what is said of a locked unit.
    pub(crate) fn change(&self, unit: u32, f: impl FnOnce(&Marked)) {
        let marked = &self.pages[unit as usize];
        f(marked);
        let (word, bit) = (&self.units[unit as usize / 64], 1 << (unit % 64));
        if marked.all().iter().any(|bits| bits.any()) {
            word.fetch_or(bit, Release);
        } else {
            word.fetch_and(!bit, Release);
        }
    }
}

impl Markers {
    /// Does `unit` come in by pages until khugepaged makes it whole?
    pub(crate) fn is_parted(&self, unit: u32) -> bool {
        let Some(tables) = self.0.get() else {
            return false;
        };
        let word = tables.parted.get(unit as usize / 64);
        word.is_some_and(|w| w.load(Acquire) >> (unit % 64) & 1 == 1)
    }

    /// A locked unit comes in by pages from now on (`to`), or is whole, or nobody's.
    pub(crate) fn set_parted(&self, unit: u32, to: bool) {
        let Some(tables) = self.0.get().filter(|_| self.is_parted(unit) != to) else {
            return;
        };
        let (word, bit) = (&tables.parted[unit as usize / 64], 1 << (unit % 64));
        match to {
            true => word.fetch_or(bit, Release),
            false => word.fetch_and(!bit, Release),
        };
    }

    /// Has any page of `unit` a marker, or is read-only? With its lock the answer stays true.
    pub(crate) fn is_marked(&self, unit: u32) -> bool {
        self.of(unit).is_some()
    }

    /// The marker of a page, if it has one.
    pub(crate) fn marker_of(&self, unit: u32, page: usize) -> Option<Marker> {
        self.of(unit)?.of(page)
    }

    /// May the program not write to a page that it may read otherwise?
    pub(crate) fn is_read_only(&self, unit: u32, page: usize) -> bool {
        self.of(unit).is_some_and(|m| m.read_only.get(page))
    }

    /// Clears the bits of pages that have markers.
    pub(crate) fn without_marked(&self, unit: u32, bits: &Bits) {
        if let Some(marked) = self.of(unit) {
            for marker in [&marked.guard, &marked.poison, &marked.no_access] {
                bits.take_out(marker);
            }
        }
    }

    /// Clears the bits of pages that hold nothing, since they are guards or poisoned.
    pub(crate) fn without_empty(&self, unit: u32, bits: &Bits) {
        if let Some(marked) = self.of(unit) {
            for marker in [&marked.guard, &marked.poison] {
                bits.take_out(marker);
            }
        }
    }

    /// A locked unit is no longer in use.
    pub(crate) fn forget_unit_markers(&self, unit: u32) {
        self.set_parted(unit, false);
        if let Some(tables) = self.0.get().filter(|_| self.is_marked(unit)) {
            tables.change(unit, |m| {
                m.all().iter().for_each(|bits| bits.fill(false));
            });
        }
    }

    /// The markers of a locked unit are another's now, also locked, which has none.
    pub(crate) fn move_markers(&self, from: u32, to: u32) {
        let Some(tables) = self.0.get().filter(|_| self.is_marked(from)) else {
            return;
        };
        let source = &tables.pages[from as usize];
        tables.change(to, |m| {
            for (to, from) in m.all().iter().zip(source.all()) {
                to.copy(from);
            }
        });
        self.forget_unit_markers(from);
    }

    /// Calls `tell` for pages of a unit that are all in `state`, and says also which have markers.
    pub(crate) fn with_markers(
        &self,
        unit: u32,
        pages: Range<usize>,
        state: State,
        mut tell: impl FnMut(Range<usize>, State),
    ) {
        let Some(marked) = self.of(unit) else {
            return tell(pages, state);
        };
        let kept = state.categories & (Categories::IN_TRANSIT | Categories::FOREIGN);
        let mut page = pages.start;
        while page < pages.end {
            let marker = marked.of(page);
            let end = (page + 1..pages.end).find(|&p| marked.of(p) != marker);
            let end = end.unwrap_or(pages.end);
            let told = match marker {
                // (What holds something is in swap, and the state says so.)
                None | Some(Marker::NoAccess) => state.nth((page - pages.start) as u64),
                Some(Marker::Guard) => State {
                    categories: kept | Categories::GUARD,
                    swap: None,
                },
                Some(Marker::Poison) => State {
                    categories: kept | Categories::POISONED,
                    swap: None,
                },
            };
            tell(page..end, told);
            page = end;
        }
    }

    /// The unit, if it has no markers; else it is unlocked.
    pub(crate) fn settle_if_marked<'a>(&self, w: Locked<'a>) -> Option<Locked<'a>> {
        if self.is_marked(w.unit()) {
            w.settle();
            return None;
        }
        Some(w)
    }
}
