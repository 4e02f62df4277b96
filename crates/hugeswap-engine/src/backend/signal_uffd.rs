//! Signal mode with userfaultfd: whole units by mremap, and single pages by a userfaultfd of
//! user-mode faults, which turns a touch of an absent page, or a write to a protected one, into
//! SIGBUS.
//!
//! A unit whose pages come by themselves is registered and mapped with the program's access. A page
//! is copied into place by UFFDIO_COPY, and its protection is userfaultfd's, so no page takes a
//! mapping.

use super::seam::{Capabilities, Placement, advise, protect, write_protect};
use crate::bits::Bits;
use crate::call::{Call, CallError, Done};
use crate::{PAGE, PAGES, UNIT};
use hugeswap_sys::{Result, mm, uffd};
use std::ops::Range;

/// Signal mode with userfaultfd.
pub(super) struct SignalUffd {
    /// The userfaultfd, in a thread of the engine's.
    pub fd: i32,
}

/// A userfaultfd of user-mode faults, which needs no privilege.
pub(super) fn open() -> Result<i32> {
    let features = uffd::feature::SIGBUS | uffd::feature::PAGEFAULT_FLAG_WP;
    uffd::open(uffd::USER_MODE_ONLY, features).map(|(fd, _)| fd)
}

/// Does the kernel discard several ranges by one call? Tried on memory of the caller's that nobody
/// uses, 3 pages of it at `at`.
pub(super) fn discards_ranges(at: usize) -> bool {
    let span = |i: usize| mm::Span {
        at: at + 2 * i * PAGE,
        len: PAGE,
    };
    // SAFETY: nothing is in that memory.
    let done = unsafe { mm::discard_ranges(&[span(0), span(1)]) };
    done == Ok(2 * PAGE)
}

impl Placement for SignalUffd {
    const CAN: Capabilities = Capabilities {
        watches_in_place: true,
        arrives_read_only: true,
        replaces_at_once: true,
        moves_untouched: true,
        fills_in_place: true,
        faults_are_messages: false,
        absent_has_access: false,
        takes_mappings: true,
        smallest_part: 1,
        fills_stages: false,
        parts_take_mappings: false,
    };

    fn map_for_parts(&self, unit: usize, writable: bool) -> Done {
        // Writes that the program does not allow itself are to be SIGSEGV, as anywhere else.
        let access = if writable { mm::PROT_RW } else { mm::PROT_READ };
        set_apart(unit)
            .and_then(|()| self.register(unit))
            // SAFETY: from now on a touch raises SIGBUS and waits for the unit's lock.
            .and_then(|()| unsafe { protect(unit, UNIT, access) })
            .inspect_err(|_| {
                // As it was: a new mapping is not registered.
                let _ = self.drop_units(unit, UNIT);
            })
    }

    fn split(&self, unit: usize) -> Done {
        // Advice first: it makes the unit a mapping of its own, so that nothing after it can meet
        // the limit on mappings.
        set_apart(unit)
            // SAFETY: the bytes are the program's to read; writers fault and wait for the unit's
            // lock.
            .and_then(|()| unsafe { protect(unit, UNIT, mm::PROT_READ) })
            // All of it is to be present: a page that the program never touched, of a unit whose
            // memory comes from the kernel as it is touched, would be missing once it is registered.
            .and_then(|()| {
                let populated = mm::populate_read(unit, UNIT);
                populated.map_err(|e| Call::Madvise.failed(e))
            })
            .and_then(|()| self.register(unit))
            .and_then(|()| write_protect(self.fd, unit, UNIT, true))
            .inspect(|()| split_huge_page(unit))
            // SAFETY: all of it is write-protected: a write raises SIGBUS and waits for the unit's
            // lock.
            .and_then(|()| unsafe { protect(unit, UNIT, mm::PROT_RW) })
            .inspect_err(|_| {
                let _ = uffd::unregister(self.fd, unit, UNIT);
                set_together(unit);
            })
    }

    fn install(&self, unit: usize, pages: Range<usize>, from: usize, write: bool) -> Done {
        let (at, len) = (unit + pages.start * PAGE, pages.len() * PAGE);
        uffd::copy(self.fd, at, from, len, !write).map_err(|e| Call::Copy.failed(e))
    }

    fn give_access(&self, unit: usize, part: Range<usize>, write: bool, _dirty: bool) -> Done {
        match write {
            true => {
                let (at, len) = (unit + part.start * PAGE, part.len() * PAGE);
                write_protect(self.fd, at, len, false)
            }
            // What is present can be read.
            false => Ok(()),
        }
    }

    fn freeze(&self, unit: usize, which: &Bits, others: u64) -> Done {
        if others == 0 || which.runs() > others {
            return self.freeze_range(unit, UNIT);
        }
        which.each_run(|run| self.freeze_range(unit + run.start * PAGE, run.len() * PAGE))
    }

    fn freeze_range(&self, at: usize, len: usize) -> Done {
        write_protect(self.fd, at, len, true)
    }

    fn drop_present(&self, unit: usize, _present: &Bits) -> Done {
        // SAFETY: swap holds what is dropped, or it is zeros.
        unsafe { advise(unit, UNIT, libc::MADV_DONTNEED) }
    }

    fn drop_pages(&self, unit: usize, pages: Range<usize>) -> Done {
        let (at, len) = (unit + pages.start * PAGE, pages.len() * PAGE);
        // SAFETY: swap holds what is dropped, or it is zeros.
        unsafe { advise(at, len, libc::MADV_DONTNEED) }
    }

    fn drop_some(&self, unit: usize, going: &Bits) -> std::result::Result<usize, CallError> {
        const MOST: usize = PAGES / 2;
        let mut spans = [mm::Span { at: 0, len: 0 }; MOST];
        let (mut n, mut next) = (0, 0);
        while n < MOST
            && let Some(run) = going.run(next, PAGES, true)
        {
            next = run.end;
            spans[n] = mm::Span {
                at: unit + run.start * PAGE,
                len: run.len() * PAGE,
            };
            n += 1;
        }
        // SAFETY: swap holds what is dropped, or it is zeros.
        let dropped = unsafe { mm::discard_ranges(&spans[..n]) };
        dropped
            .map(|bytes| bytes / PAGE)
            .map_err(|e| Call::Madvise.failed(e))
    }

    fn give_up(
        &self,
        unit: usize,
        pages: Range<usize>,
    ) -> std::result::Result<Range<usize>, CallError> {
        let (at, len) = (unit + pages.start * PAGE, pages.len() * PAGE);
        // SAFETY: the caller gave the content up.
        unsafe { advise(at, len, libc::MADV_DONTNEED) }?;
        Ok(pages)
    }
}

impl SignalUffd {
    fn register(&self, unit: usize) -> Done {
        let mode = uffd::mode::MISSING | uffd::mode::WP;
        uffd::register(self.fd, unit, UNIT, mode).map_err(|e| Call::Register.failed(e))
    }
}

/// Advice for a unit whose parts are to come by themselves. A write to a hole in a range that may
/// be huge would have the kernel make a huge page and throw it away. And a child does not inherit
/// the registration: holes would read as zeros there, so it inherits nothing.
pub(super) fn set_apart(unit: usize) -> Done {
    // SAFETY: advice that discards nothing.
    unsafe { advise(unit, UNIT, libc::MADV_NOHUGEPAGE) }
        // SAFETY: as above.
        .and_then(|()| unsafe { advise(unit, UNIT, libc::MADV_DONTFORK) })
}

/// Takes the advice of [`set_apart`] back.
pub(super) fn set_together(unit: usize) {
    // SAFETY: advice that discards nothing.
    let _ = unsafe { advise(unit, UNIT, libc::MADV_DOFORK) };
    // SAFETY: as above.
    let _ = unsafe { advise(unit, UNIT, libc::MADV_HUGEPAGE) };
}

/// Has the kernel put the memory of a unit into base pages, so that what is dropped of it goes back
/// to the kernel. It does that with advice on a part of a huge page; this advice has no further
/// effect than that the part is cold.
pub(super) fn split_huge_page(unit: usize) {
    // SAFETY: advice that discards nothing.
    let _ = unsafe { advise(unit, PAGE, libc::MADV_COLD) };
}
