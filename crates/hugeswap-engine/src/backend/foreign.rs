//! Memory of the window that is the kernel's or is about to be: units that the program has had
//! handed to the kernel, guards in them, and what forked children inherit. The same for all
//! backends.

use super::Backend;
use crate::call::{Call, Done};
use crate::{PAGE, UNIT};
use hugeswap_sys::{Result, mm};
use std::ops::Range;

// libc does not name them everywhere.
const MADV_GUARD_INSTALL: i32 = 102;
const MADV_GUARD_REMOVE: i32 = 103;

/// What becomes of a page of a unit that is handed to the kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cover {
    /// It can be accessed.
    Open,
    /// It can be read.
    ReadOnly,
    /// It holds nothing, and is a guard of the kernel's if that has guards.
    Guarded,
    /// It is mapped without access.
    Closed,
}

impl Backend {
    /// Gives a locked unit of the kernel's the access that the program has set (`mm::PROT_*`).
    pub fn set_foreign_access(&self, unit: usize, access: u32) -> Result<()> {
        // SAFETY: the program's own memory, and its own wish.
        unsafe { mm::protect(unit, UNIT, access) }
    }

    /// Drops pages of a locked unit of the kernel's, which the program has given up.
    pub fn empty_foreign(&self, at: usize, len: usize) -> Result<()> {
        // SAFETY: the content is the caller's to drop.
        unsafe { mm::advise(at, len, libc::MADV_DONTNEED) }
    }

    /// Maps `frame` to a locked unit for the kernel, with `access` to the pages that are to be open.
    /// `run`: the first run of pages, from a page on, that are to be so. If it fails, nothing is
    /// changed.
    pub fn map_marked(
        &self,
        frame: usize,
        unit: usize,
        access: u32,
        run: impl Fn(usize, Cover) -> Option<Range<usize>>,
    ) -> Done {
        // No thread touches it before it is as it is to be.
        // SAFETY: the frame is the caller's; the unit is absent, or its pages are dropped by this.
        unsafe { mm::protect(frame, UNIT, mm::PROT_NONE) }.map_err(|e| Call::Mprotect.failed(e))?;
        // SAFETY: as above.
        let mapped = unsafe { mm::move_pages(frame, unit, UNIT) };
        let opened = mapped.map_err(|e| Call::Mremap.failed(e)).and_then(|()| {
            let opened = open_around(unit, access, run).map_err(|e| Call::Mprotect.failed(e));
            opened.inspect_err(|_| {
                // SAFETY: back again: the frame's place is empty, the unit the caller's.
                let _ = unsafe { mm::protect(unit, UNIT, mm::PROT_NONE) }
                    // SAFETY: as above.
                    .and_then(|()| unsafe { mm::move_pages(unit, frame, UNIT) });
            })
        });
        opened.inspect_err(|_| {
            // SAFETY: the frame is the caller's still.
            let _ = unsafe { mm::protect(frame, UNIT, mm::PROT_RW) };
        })
    }

    /// Takes access, and content, from pages of a locked unit of the kernel's.
    pub fn close_foreign(&self, unit: usize, pages: &Range<usize>) -> Result<()> {
        if guard(unit, pages).is_ok() {
            return Ok(());
        }
        let (at, len) = span(unit, pages);
        // SAFETY: what the pages hold is given up; touching them is to be an error.
        unsafe { mm::advise(at, len, libc::MADV_DONTNEED) }
            // SAFETY: as above.
            .and_then(|()| unsafe { mm::protect(at, len, mm::PROT_NONE) })
    }

    /// Undoes [`Backend::close_foreign`].
    pub fn open_foreign(&self, unit: usize, pages: &Range<usize>) {
        let (at, len) = span(unit, pages);
        // SAFETY: the pages hold nothing.
        if unsafe { mm::advise(at, len, MADV_GUARD_REMOVE) }.is_err() {
            // SAFETY: the program's memory.
            let _ = unsafe { mm::protect(at, len, mm::PROT_RW) };
        }
    }

    /// Message mode: sets the access to a locked unit that is absent, or write-protected by
    /// userfaultfd. A unit that is not in use, or may not be written, has less than full access.
    pub fn set_absent_access(&self, unit: usize, access: u32) -> Result<()> {
        // SAFETY: a touch of the absent unit is a fault that the engine takes; a thread that is
        // given the unit, or moves it, gets access back, under the same lock.
        unsafe { mm::protect(unit, UNIT, access) }
    }

    /// Children that are forked from now on inherit the range, or find nothing mapped there.
    pub fn let_inherit(&self, at: usize, len: usize, inherit: bool) -> Result<()> {
        let advice = match inherit {
            true => libc::MADV_DOFORK,
            false => libc::MADV_DONTFORK,
        };
        // SAFETY: advice that discards nothing in this process.
        unsafe { mm::advise(at, len, advice) }
    }
}

/// Gives access to the pages of a mapped unit that are to have it.
fn open_around(
    unit: usize,
    access: u32,
    run: impl Fn(usize, Cover) -> Option<Range<usize>>,
) -> Result<()> {
    let runs = |cover| {
        let (run, mut from) = (&run, 0);
        std::iter::from_fn(move || {
            let run = run(from, cover)?;
            from = run.end;
            Some(run)
        })
    };
    let give = |r: Range<usize>, access| {
        let (at, len) = span(unit, &r);
        // SAFETY: the program's memory.
        unsafe { mm::protect(at, len, access) }
    };
    let open = |r| give(r, access);
    if runs(Cover::Guarded).all(|r| guard(unit, &r).is_ok()) {
        // The kernel guards them, and removes its guards without changing access.
        runs(Cover::Guarded).try_for_each(open)?;
    } else {
        for r in runs(Cover::Guarded) {
            let (at, len) = span(unit, &r);
            // SAFETY: guarded pages hold nothing.
            unsafe { mm::advise(at, len, libc::MADV_DONTNEED) }?;
        }
    }
    runs(Cover::ReadOnly).try_for_each(|r| give(r, access & mm::PROT_READ))?;
    runs(Cover::Open).try_for_each(open)
}

/// The kernel's own guards.
fn guard(unit: usize, pages: &Range<usize>) -> Result<()> {
    let (at, len) = span(unit, pages);
    // SAFETY: what the pages hold is given up.
    unsafe { mm::advise(at, len, MADV_GUARD_INSTALL) }
}

fn span(unit: usize, pages: &Range<usize>) -> (usize, usize) {
    (unit + pages.start * PAGE, pages.len() * PAGE)
}
