//! Markers that the program installs and removes ([`crate::markers`]).

use crate::base::Split;
use crate::marker_table::Tables;
use crate::outcome::{Fault, Outcome};
use crate::ranges::{MarkerError, Ranges};
use crate::stack;
use crate::table::{Locked, NO_FRAME};
use crate::{PAGE, UNIT};
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::markers::Marker;
use hugeswap_policy::unit::step::Event;
use hugeswap_policy::unit::{COW, Kind, WRITABLE};
use hugeswap_sys::signal::Blocked;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

impl Ranges {
    /// The pages of `[addr, addr+len)` become guards, or poisoned: what they hold is given up.
    ///
    /// # Errors
    /// Pages before the unit of 2 MiB that met the error are marked.
    pub fn install_markers(
        &self,
        addr: usize,
        len: usize,
        marker: Marker,
    ) -> std::result::Result<(), MarkerError> {
        if !addr.is_multiple_of(PAGE) || !len.is_multiple_of(PAGE) {
            return Err(MarkerError::NotWholePages);
        }
        let none = !self.backend.can().has_single_pages() || self.pool.knob(Knob::Markers) == 0;
        if none || self.sharing.is_shared(addr) || self.is_of_file(addr) {
            return Err(MarkerError::Unsupported);
        }
        if !self.is_mapped(addr, len) {
            return Err(MarkerError::NotMapped);
        }
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        // (Inside: a child forked in the middle of this would wait for it.)
        let tables = self.markers.open(self.table.units())?;
        self.note_range_written(addr, len);
        let mut units = self.table.units_of(addr, len);
        let done = units.try_for_each(|unit| {
            let pages = self.table.pages_in(unit, addr, len);
            self.mark_unit(tables, unit, pages, marker)
        });
        self.note_range_written(addr, len);
        self.note_available();
        done
    }

    pub(super) fn mark_unit(
        &self,
        tables: &Tables,
        unit: u32,
        pages: Range<usize>,
        marker: Marker,
    ) -> std::result::Result<(), MarkerError> {
        let was_whole = matches!(
            self.table.load(unit).kind(),
            Kind::Present | Kind::Cached | Kind::Swapped
        );
        let w = self.lock_in_parts(unit, &pages)?;
        if was_whole && marker == Marker::NoAccess {
            self.markers.set_parted(unit, true);
        }
        let marked = &tables.pages[unit as usize];
        if marker == Marker::Poison && pages.clone().any(|p| marked.guard.get(p)) {
            w.settle();
            return Err(MarkerError::IsGuard);
        }
        if w.kind() == Kind::Foreign
            && let Err(e) = self.backend.close_foreign(self.table.addr(unit), &pages)
        {
            w.settle();
            return Err(e.into());
        }
        tables.change(unit, |m| {
            if marker != Marker::NoAccess {
                m.guard.put(pages.clone(), false);
                m.poison.put(pages.clone(), false);
            }
            m.bits(marker).put(pages, true);
        });
        self.high_unit.fetch_max(unit + 1, Relaxed);
        debug_assert_eq!(self.check_markers(unit, *w), Ok(()));
        w.settle();
        Ok(())
    }

    /// Locks a unit of which `pages` hold nothing, and which is not in memory in one piece.
    fn lock_in_parts(
        &self,
        unit: u32,
        pages: &Range<usize>,
    ) -> std::result::Result<Locked<'_>, MarkerError> {
        let mut w = self.lock_in_pieces(unit)?;
        if matches!(w.kind(), Kind::None | Kind::Foreign)
            || self.give_up_pages(&mut w, pages.clone())
        {
            return Ok(w);
        }
        w.settle();
        Err(MarkerError::NoMemory)
    }

    /// The frame of a locked unit that was read ahead is free.
    pub(super) fn drop_cached(&self, w: &mut Locked<'_>) {
        self.arena.put_free(w.frame());
        w.set_frame(NO_FRAME);
        self.advance(w, Event::FrameTaken);
    }

    /// Locks a unit that is not in memory in one piece: zero, in swap, in base pages, or the
    /// kernel's.
    pub(super) fn lock_in_pieces(&self, unit: u32) -> std::result::Result<Locked<'_>, MarkerError> {
        loop {
            let mut w = self.table.lock_settled(unit);
            let refused = match w.kind() {
                Kind::None | Kind::Foreign | Kind::Swapped | Kind::Base => None,
                Kind::Free => Some(MarkerError::NotMapped),
                Kind::Poisoned => Some(MarkerError::Lost),
                Kind::Cached => {
                    self.drop_cached(&mut w);
                    None
                }
                Kind::Present if w.pins() > 0 => Some(MarkerError::Held),
                Kind::Present if !w.allows(true) => Some(MarkerError::Protected),
                Kind::Present if w.has(COW) => {
                    w.settle();
                    let (at, mut outcome) = (self.table.addr(unit), Outcome::Retry);
                    stack::call(|| outcome = self.resolve(unit, Fault::by_engine(at, true)));
                    match outcome {
                        Outcome::Retry => continue,
                        _ => return Err(MarkerError::NoMemory),
                    }
                }
                Kind::Present
                    if w.has(WRITABLE) && self.backend.set_read_only(w.addr(), UNIT).is_err() =>
                {
                    Some(MarkerError::NoMemory)
                }
                Kind::Present => {
                    self.advance(&mut w, Event::MadeReadOnly);
                    match self.split_to_track(w) {
                        Split::Pages(pages) => {
                            w = pages;
                            None
                        }
                        Split::Later => continue,
                        Split::Whole(whole) => {
                            w = whole;
                            Some(MarkerError::NoMemory)
                        }
                    }
                }
            };
            let Some(refused) = refused else {
                return Ok(w);
            };
            w.settle();
            return Err(refused);
        }
    }

    /// The same for a part of it to be sent out: what else it has is written as before.
    pub(super) fn lock_apart(&self, unit: u32) -> std::result::Result<Locked<'_>, MarkerError> {
        let was_whole = self.table.load(unit).kind() == Kind::Present;
        let w = self.lock_in_pieces(unit)?;
        if was_whole && w.kind() == Kind::Base {
            self.allow_writes(&w);
        }
        Ok(w)
    }

    /// The markers of a kind in `[addr, addr+len)` are gone: their pages are zeros. What has none
    /// stays as it is.
    pub fn remove_markers(&self, addr: usize, len: usize, marker: Marker) {
        self.change_markers(addr, len, &[marker], true);
    }

    /// After what pages hold was given up: they are not poisoned any more.
    pub(crate) fn heal(&self, addr: usize, len: usize) {
        // (Whole pages of it.)
        let (from, to) = (addr.next_multiple_of(PAGE), (addr + len) & !(PAGE - 1));
        if from < to {
            self.change_markers(from, to - from, &[Marker::Poison], true);
        }
    }

    /// Pages are unmapped, of units that others use, or that are not in use now.
    pub(crate) fn forget_markers(&self, addr: usize, len: usize) {
        let all = [Marker::Guard, Marker::Poison, Marker::NoAccess];
        self.change_markers(addr, len, &all, false);
    }

    fn change_markers(&self, addr: usize, len: usize, markers: &[Marker], mapped: bool) {
        let Some(tables) = self.markers.tables() else {
            return;
        };
        let _blocked = Blocked::all();
        for unit in self
            .table
            .units_of(addr, len)
            .filter(|&u| self.markers.is_marked(u))
        {
            let _inside = mapped.then(|| self.gate.enter());
            let w = self.table.lock_settled(unit);
            let pages = self.table.pages_in(unit, addr, len);
            let marked = &tables.pages[unit as usize];
            if !mapped {
                tables.change(unit, |m| m.read_only.put(pages.clone(), false));
            }
            for &marker in markers {
                let mut from = pages.start;
                while let Some(run) = marked.bits(marker).run(from, pages.end, true) {
                    from = run.end;
                    if w.kind() == Kind::Foreign {
                        self.backend.open_foreign(self.table.addr(unit), &run);
                    }
                    tables.change(unit, |m| m.bits(marker).put(run, false));
                }
            }
            w.settle();
        }
    }
}
