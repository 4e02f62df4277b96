//! Whole units by mprotect and mremap: what both backends of signal mode do.
//!
//! An absent unit is a mapping without access. One mremap moves a frame into place: it is atomic,
//! copies nothing and keeps the page huge. The protection of the mapping carries the state.

use super::seam::{advise, map_without_access, protect};
use super::uffd_move::end_rather_than_lose;
use crate::UNIT;
use crate::call::{Call, Done};
use hugeswap_sys::mm;

/// [`super::Placement::move_in`].
pub(super) fn move_in(frame: usize, unit: usize, write: bool) -> Done {
    if !write {
        // SAFETY: the frame is the caller's; no other thread can reach it.
        unsafe { protect(frame, UNIT, mm::PROT_READ) }?;
    }
    // SAFETY: the frame is the caller's, the unit absent and locked.
    let moved = unsafe { mremap(frame, unit) };
    if moved.is_err() && !write {
        // SAFETY: as above; the frame stays the caller's and must be writable again.
        let _ = unsafe { protect(frame, UNIT, mm::PROT_RW) };
    }
    moved
}

/// [`super::Placement::move_out`].
pub(super) fn move_out(unit: usize, frame: usize, watched: bool) -> Done {
    if !watched {
        // SAFETY: a touch from now on faults and waits for the unit's lock.
        unsafe { protect(unit, UNIT, mm::PROT_NONE) }?;
    }
    // SAFETY: the unit is locked, the place empty and the caller's.
    unsafe { mremap(unit, frame) }?;
    // SAFETY: the frame is the caller's now. Making a mapping of its own more
    // permissive splits nothing, so it does not meet the limit on mappings.
    unsafe { protect(frame, UNIT, mm::PROT_RW) }.inspect_err(|_| {
        // SAFETY: back again: the unit is locked, and empty.
        if unsafe { mremap(frame, unit) }.is_err() {
            end_rather_than_lose();
        }
    })
}

/// [`super::Placement::relocate`].
pub(super) fn relocate(from: usize, to: usize, watched: bool) -> Done {
    if !watched {
        // SAFETY: a touch from now on faults and waits for the unit's lock.
        unsafe { protect(from, UNIT, mm::PROT_NONE) }?;
    }
    // SAFETY: both units are locked, the destination is absent.
    unsafe { mremap(from, to) }
}

/// [`super::Placement::map_anew`].
pub(super) fn map_anew(unit: usize, len: usize) -> Done {
    // SAFETY: the content is the caller's to drop; the range stays reserved.
    unsafe { map_without_access(unit, len) }?;
    // SAFETY: advice that discards nothing; without it the range would not merge with its
    // neighbours.
    let _ = unsafe { advise(unit, len, libc::MADV_HUGEPAGE) };
    Ok(())
}

/// Moves one unit.
///
/// # Safety
/// As for [`mm::move_pages`].
unsafe fn mremap(from: usize, to: usize) -> Done {
    // SAFETY: passed on to the caller.
    unsafe { mm::move_pages(from, to, UNIT) }.map_err(|e| Call::Mremap.failed(e))
}
