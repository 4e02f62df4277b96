//! Signal mode where userfaultfd is refused: whole units and parts of 64 KiB by mremap, with
//! nothing else of the kernel.
//!
//! An absent part is mapped without access. A part is filled in a stage ([`super::pieces`]) and
//! moved over the unit by one mremap, so other threads see it whole or fault. Its protection is
//! that of its mapping.

use super::pieces::{self, PIECE, Pieces};
use super::seam::{Capabilities, Placement, advise, protect};
use super::signal_uffd::{set_apart, set_together, split_huge_page};
use crate::bits::Bits;
use crate::call::{CallError, Done};
use crate::{PAGE, PAGES, UNIT};
use hugeswap_sys::mm;
use std::ops::Range;

/// Signal mode without userfaultfd.
pub(super) struct SignalRemap<'a> {
    pub pieces: &'a Pieces,
}

impl Placement for SignalRemap<'_> {
    const CAN: Capabilities = Capabilities {
        watches_in_place: true,
        arrives_read_only: true,
        replaces_at_once: true,
        moves_untouched: true,
        fills_in_place: true,
        faults_are_messages: false,
        absent_has_access: false,
        takes_mappings: true,
        smallest_part: pieces::PAGES,
        fills_stages: true,
        parts_take_mappings: true,
    };

    fn empty(&self, unit: usize, by_parts: bool) -> Done {
        if by_parts {
            // SAFETY: the content was given up; without access the parts are absent.
            unsafe { protect(unit, UNIT, mm::PROT_NONE) }?;
        }
        // SAFETY: as above.
        unsafe { advise(unit, UNIT, libc::MADV_DONTNEED) }
    }

    fn map_for_parts(&self, _unit: usize, _writable: bool) -> Done {
        // An absent unit is without access, as its parts are to be.
        Ok(())
    }

    fn split(&self, unit: usize) -> Done {
        // Advice first: it makes the unit a mapping of its own, so that nothing after it can meet
        // the limit on mappings.
        set_apart(unit)
            // SAFETY: the bytes are the program's to read; writers fault and wait for the unit's
            // lock.
            .and_then(|()| unsafe { protect(unit, UNIT, mm::PROT_READ) })
            .inspect(|()| split_huge_page(unit))
            .inspect_err(|_| set_together(unit))
    }

    fn install(&self, unit: usize, part: Range<usize>, from: usize, write: bool) -> Done {
        debug_assert_eq!(part.len() * PAGE, PIECE);
        let stage = self.pieces.take()?;
        // SAFETY: the stage is ours, `from` the caller's, and both are as long as a part.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, stage.addr() as *mut u8, PIECE) };
        stage.install(unit + part.start * PAGE, write)
    }

    fn give_access(&self, unit: usize, part: Range<usize>, write: bool, dirty: bool) -> Done {
        let access = if write || dirty {
            mm::PROT_RW
        } else {
            mm::PROT_READ
        };
        // SAFETY: the part is the program's to read, and to write once it is dirty.
        unsafe { protect(unit + part.start * PAGE, part.len() * PAGE, access) }
    }

    fn freeze(&self, unit: usize, which: &Bits, _others: u64) -> Done {
        // Not the whole unit at once: what is absent must stay without access.
        which.each_run(|run| {
            // SAFETY: the program may read what is present; writers fault and wait for the unit's
            // lock.
            unsafe { protect(unit + run.start * PAGE, run.len() * PAGE, mm::PROT_READ) }
        })
    }

    fn drop_present(&self, unit: usize, present: &Bits) -> Done {
        // One call, and one interruption of other processors, before parts are moved one by one.
        // Should it fail half way, a touch gives access again.
        // SAFETY: a touch faults and waits for the unit's lock.
        unsafe { protect(unit, UNIT, mm::PROT_NONE) }?;
        let mut next = 0;
        while let Some(run) = present.run(next, PAGES, true) {
            let piece = pieces::around(run.start);
            if !self.pieces.recycle(unit + piece.start * PAGE) {
                break;
            }
            next = piece.end;
        }
        if self.drop_units(unit, UNIT).is_err() {
            // For want of mappings: what is left of the parts' own goes with the next.
            // SAFETY: what is dropped is clean. Without access it is absent even if this fails.
            let _ = unsafe { advise(unit, UNIT, libc::MADV_DONTNEED) };
        }
        Ok(())
    }

    fn give_up(&self, unit: usize, pages: Range<usize>) -> Result<Range<usize>, CallError> {
        let at = |page: usize| unit + page * PAGE;
        // What is not dropped becomes zero where it stands. A clean part stays so: what is neither
        // stored nor dirty is zero when it comes back, too.
        // SAFETY: the caller gave the content up.
        unsafe { advise(at(pages.start), pages.len() * PAGE, libc::MADV_DONTNEED) }?;
        let first = pages.start.next_multiple_of(pieces::PAGES);
        let last = pages.end / pieces::PAGES * pieces::PAGES;
        let len = last.saturating_sub(first) * PAGE;
        if len == 0 || self.drop_units(at(first), len).is_err() {
            return Ok(first..first);
        }
        Ok(first..last)
    }
}
