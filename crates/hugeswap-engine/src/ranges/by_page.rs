//! Access that the program sets on parts of units.
//!
//! Which pages have less access than their unit stands beside the unit table
//! ([`crate::marker_table`]), and moves with the unit, to swap and to a forked child. What a page
//! without access holds is in swap, and no touch and no readahead brings it in; a read-only page
//! comes and goes as any other, and is write-protected while it is there. Such a unit is in base
//! pages. It stays so until its pages have the same access again.
//!
//! Program threads call these; the rules are in the parent module.

use super::protect::{allowed_by, allowing};
use crate::base::Split;
use crate::bits::Bits;
use crate::marker_table::Tables;
use crate::ranges::{Prot, Ranges};
use crate::table::Locked;
use crate::{UNIT, stack};
use hugeswap_policy::unit::{COW, Kind, WRITEBACK};
use hugeswap_sys::signal::Blocked;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// Why access cannot be set by pages.
pub(super) enum Refused {
    /// The unit is in memory as a whole, with less access or shared with a child, and would have to
    /// leave first.
    Whole,
    /// Its pages are not to be had by themselves, or what they hold cannot be written out.
    Pages,
}

impl Ranges {
    /// Sets the access that the program allows on a part of one managed unit. False: it cannot be
    /// had by pages (single pages are not to be had, what they hold cannot be written out), and no
    /// access is changed.
    pub fn protect_part(&self, addr: usize, len: usize, prot: Prot) -> bool {
        let Some(unit) = self.table.unit_of(addr) else {
            return false;
        };
        if !self.backend.can().has_single_pages() || self.is_of_file(addr) {
            return false;
        }
        let pages = self.table.pages_in(unit, addr, len);
        let set = || {
            let _blocked = Blocked::all();
            let _inside = self.gate.enter();
            self.protect_pages(unit, pages.clone(), prot)
        };
        match set() {
            Err(Refused::Whole) => {
                self.pageout(self.table.addr(unit), UNIT);
                set().is_ok()
            }
            done => done.is_ok(),
        }
    }

    /// [`Ranges::protect_part`], inside the gate.
    pub(super) fn protect_pages(
        &self,
        unit: u32,
        pages: Range<usize>,
        prot: Prot,
    ) -> Result<(), Refused> {
        let tables = self.markers.open(self.table.units());
        let tables = tables.map_err(|_| Refused::Pages)?;
        if self.gate.is_forker() {
            // What the child will have is settled already.
            return Err(Refused::Pages);
        }
        let mut w = self.table.lock_settled(unit);
        let was_whole = matches!(w.kind(), Kind::Present | Kind::Cached | Kind::Swapped);
        match allowed_by(*w) {
            None => {}
            Some(same) if same == prot => {
                w.settle();
                return Ok(());
            }
            Some(less) => w = self.spread_access(tables, w, less)?,
        }
        let gives = prot == Prot::ReadWrite;
        if !gives {
            // What takes access has to be in pieces for that.
            w.settle();
            w = self.lock_in_pieces(unit).map_err(|_| Refused::Pages)?;
        }
        let done = match w.kind() {
            Kind::Free | Kind::Foreign | Kind::Poisoned => false,
            _ if gives => true,
            // (Its access was changed meanwhile.)
            _ if !w.allows(true) => false,
            Kind::None => true,
            Kind::Swapped => self.go_over_to_pages(&mut w),
            _ if prot == Prot::Read => self.freeze_part(&w, pages.clone()),
            _ => {
                let mut gone = false;
                // (To write takes some of a stack; the thread is a program's.)
                stack::call(|| gone = self.send_out(&mut w, pages.clone()));
                gone
            }
        };
        if done {
            tables.change(unit, |m| {
                m.no_access.put(pages.clone(), prot == Prot::None);
                m.read_only.put(pages, prot == Prot::Read);
            });
            if was_whole && !gives {
                self.markers.set_parted(unit, true);
            }
        }
        self.high_unit.fetch_max(unit + 1, Relaxed);
        debug_assert_eq!(self.check_markers(unit, *w), Ok(()));
        w.settle();
        self.note_available();
        done.then_some(()).ok_or(Refused::Pages)
    }

    /// The access that a locked unit has as a whole, which is not all, becomes its pages'. After an
    /// error it stays as it is, and the unit is unlocked.
    fn spread_access<'a>(
        &self,
        tables: &Tables,
        mut w: Locked<'a>,
        of_unit: Prot,
    ) -> Result<Locked<'a>, Refused> {
        let unit = w.unit();
        if w.kind() == Kind::Cached {
            self.drop_cached(&mut w);
        }
        let stands = w.kind() == Kind::Present;
        let can = match w.kind() {
            Kind::Base => self.leave_pages(&mut w),
            Kind::None | Kind::Swapped => true,
            // (What is there without access would be open to all for a moment.)
            Kind::Present => {
                of_unit == Prot::Read && w.pins() == 0 && !w.has(COW) && !w.has(WRITEBACK)
            }
            _ => false,
        };
        if !can {
            w.settle();
            return Err(if stands {
                Refused::Whole
            } else {
                Refused::Pages
            });
        }
        self.advance(&mut w, allowing(Prot::ReadWrite));
        let done = if stands {
            match self.split_to_track(w) {
                Split::Pages(pages) => {
                    w = pages;
                    true
                }
                Split::Whole(whole) => {
                    w = whole;
                    false
                }
                // (It is not being written out.)
                Split::Later => return Err(Refused::Pages),
            }
        } else {
            w.kind() == Kind::None || self.go_over_to_pages(&mut w)
        };
        if !done {
            self.settle_by(w, allowing(of_unit));
            return Err(Refused::Pages);
        }
        tables.change(unit, |m| match of_unit {
            // (But for what has none by itself.)
            Prot::Read => m.read_only.copy_inverse(&m.no_access),
            _ => m.no_access.fill(true),
        });
        if stands {
            self.markers.set_parted(unit, true);
        }
        Ok(w)
    }

    /// No thread writes to pages of a locked, base-mapped unit without a fault from now on.
    fn freeze_part(&self, w: &Locked<'_>, pages: Range<usize>) -> bool {
        let record = self.base.records.of(w.unit());
        let which = Bits::none();
        which.put(pages, true);
        let _absent = which.split_off(&record.present);
        let others = record.dirty.count() - record.dirty.common(&which);
        !which.any() || self.freeze(w.unit(), &which, others).is_ok()
    }
}
