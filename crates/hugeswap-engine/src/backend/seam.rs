//! What a backend does, and what it declares that it can do.

use crate::backend::remap;
use crate::bits::Bits;
use crate::call::{Call, CallError, Done};
use crate::{PAGES, UNIT};
use hugeswap_sys::{Errno, mm, uffd};
use std::ops::Range;

/// What a backend can do beyond the verbs that all have. A caller asks for one of these, not for
/// the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capabilities {
    /// A present unit can be mapped without access where it stands ([`Placement::watch`]), and a
    /// touch gives it back. Otherwise a unit is moved to the arena, which is as good a swap cache.
    pub watches_in_place: bool,
    /// A unit or page can come into place read-only, and no thread writes to what is read-only
    /// without a fault, so it is known exactly what has changed. Otherwise checksums tell.
    pub arrives_read_only: bool,
    /// A frame takes the place of another without a moment in which there is neither.
    pub replaces_at_once: bool,
    /// Memory can be moved that was never touched.
    pub moves_untouched: bool,
    /// The kernel fills an absent unit with zeros where it stands, once that is made writable.
    pub fills_in_place: bool,
    /// A fault is a message to a thread of the engine's, and the kernel's own touches of absent
    /// memory wait for it too. Otherwise a thread takes its faults itself, and a system call fails
    /// with EFAULT.
    pub faults_are_messages: bool,
    /// An absent unit is mapped with access, so it reads as zeros where the backend does not see
    /// the touch, as in a forked child. Otherwise it is mapped without access.
    pub absent_has_access: bool,
    /// Units in different states are mappings of their own, of which the kernel allows a process
    /// only so many.
    pub takes_mappings: bool,
    /// Pages of the smallest part of a unit that comes and goes by itself; all of a unit's, where
    /// no part does.
    pub smallest_part: usize,
    /// A part is filled in a stage that is moved into place ([`super::Backend::take_stage`]).
    /// Otherwise it is copied from where the caller has it.
    pub fills_stages: bool,
    /// Parts in memory take mappings, of which the kernel allows a process only so many.
    pub parts_take_mappings: bool,
}

impl Capabilities {
    /// Can parts of a unit come and go by themselves?
    pub fn has_parts(&self) -> bool {
        self.smallest_part < PAGES
    }

    /// Can each of its pages?
    pub fn has_single_pages(&self) -> bool {
        self.smallest_part == 1
    }
}

/// The verbs. An address of a unit or a frame is that of its first byte; lengths are in bytes.
///
/// A caller owns the lock of each unit that it names, and the frame. The rules of the fault path
/// hold: nothing here allocates, panics or waits for another thread's lock. What is the same for
/// all backends that place units by mremap is the default.
pub(crate) trait Placement {
    /// Its capabilities.
    const CAN: Capabilities;

    /// Moves the frame at `frame` to the absent unit, readable and, if `write`, writable. If that
    /// fails, the frame is where it was. Where not [`Capabilities::arrives_read_only`] the unit is
    /// writable always.
    fn move_in(&self, frame: usize, unit: usize, write: bool) -> Done {
        remap::move_in(frame, unit, write)
    }

    /// Moves the memory of a present unit to the empty place `frame`; the unit is absent then, and
    /// the frame readable and writable. `watched`: the unit is mapped without access already. If it
    /// fails, the memory is where it was, perhaps without access.
    fn move_out(&self, unit: usize, frame: usize, watched: bool) -> Done {
        remap::move_out(unit, frame, watched)
    }

    /// Moves a present unit to an absent one. Where [`Capabilities::watches_in_place`], both are
    /// without access afterwards, and the next touch of the destination gives access; otherwise the
    /// destination is writable.
    fn relocate(&self, from: usize, to: usize, watched: bool) -> Done {
        remap::relocate(from, to, watched)
    }

    /// Makes present units from `unit` on read-only. If it fails, some may be so.
    fn set_read_only(&self, unit: usize, len: usize) -> Done {
        // SAFETY: writers fault and wait for the unit's lock.
        unsafe { protect(unit, len, mm::PROT_READ) }
    }

    /// Makes a present unit readable, after it was watched.
    fn set_readable(&self, unit: usize) -> Done {
        // SAFETY: the unit's bytes are the program's to read.
        unsafe { protect(unit, UNIT, mm::PROT_READ) }
    }

    /// Makes present units from `unit` on readable and writable.
    fn set_writable(&self, unit: usize, len: usize) -> Done {
        // SAFETY: the units are the program's to write; their owner marks them dirty.
        unsafe { protect(unit, len, mm::PROT_RW) }
    }

    /// Maps a present unit without access, where it stands. Only where
    /// [`Capabilities::watches_in_place`].
    fn watch(&self, unit: usize) -> Done {
        // SAFETY: a touch faults and waits for the unit's lock.
        unsafe { protect(unit, UNIT, mm::PROT_NONE) }
    }

    /// Copies what a present, writable unit shares with a forked relative, or did: there are
    /// backends that cannot move such pages.
    fn make_private(&self, _unit: usize) {}

    /// Drops the memory of the units from `unit` on; they are absent then.
    fn drop_units(&self, unit: usize, len: usize) -> Done {
        // A new mapping, unlike MADV_DONTNEED, also lets neighbours merge into one.
        self.map_anew(unit, len)
    }

    /// Drops the memory of the units from `unit` on, and maps them as absent units are mapped,
    /// whatever has become of their mappings. If it fails, a touch of what is dropped faults: it
    /// does not read as zeros.
    fn map_anew(&self, unit: usize, len: usize) -> Done {
        remap::map_anew(unit, len)
    }

    /// [`Placement::map_anew`], for units that no thread needs yet: it is enough that no memory
    /// stands there any more.
    fn drop_anew(&self, unit: usize, len: usize) -> Done {
        match self.map_anew(unit, len) {
            Err(e) if e.call == Call::Mmap => Err(e),
            _ => Ok(()),
        }
    }

    /// Puts memory without access in the place of whatever is mapped at `[at, at + len)`: addresses
    /// that are not in use, or whose content is given up. It merges with the same beside it.
    fn fence(&self, at: usize, len: usize) -> Done {
        remap::map_anew(at, len)
    }

    /// Drops the memory of a unit that could not be mapped anew; `by_parts`: it is mapped for
    /// parts. It is absent then, or reads as zeros.
    fn empty(&self, unit: usize, _by_parts: bool) -> Done {
        // SAFETY: the content is the caller's to drop.
        unsafe { advise(unit, UNIT, libc::MADV_DONTNEED) }
    }

    // What follows is for units whose parts come by themselves, and only where
    // [`Capabilities::has_parts`]. Ranges are of a unit's pages and made of whole parts, unless
    // something else is said.

    /// Maps an absent unit so that its parts can come by themselves; the program may write to them,
    /// if `writable`. If it fails, the unit is as it was.
    fn map_for_parts(&self, _unit: usize, _writable: bool) -> Done {
        Err(NO_PARTS)
    }

    /// Maps a present unit, which no thread writes to, so that each of its parts can be made
    /// writable, and dropped, by itself. All of it is read-only then. If it fails, the unit is
    /// mapped as before, perhaps readable where it was watched.
    fn split(&self, _unit: usize) -> Done {
        Err(NO_PARTS)
    }

    /// Installs an absent part, or any number of absent single pages, with what stands at `from`;
    /// read-only or writable. Other threads see each page whole or fault. ENOMEM: mappings are
    /// short.
    fn install(&self, _unit: usize, _pages: Range<usize>, _from: usize, _write: bool) -> Done {
        Err(NO_PARTS)
    }

    /// Gives the program the access that a present part should have, after a touch that faulted: a
    /// write, if `write`. `dirty`: it was writable before.
    fn give_access(&self, _unit: usize, _part: Range<usize>, _write: bool, _dirty: bool) -> Done {
        Err(NO_PARTS)
    }

    /// Makes the present pages in `which` read-only. If it fails, some may be so. `others`: how
    /// many pages there are besides that can be written and had better stay so. That takes a call
    /// for each run of `which`, and a page that becomes read-only costs a fault, so as many calls
    /// are made at most.
    fn freeze(&self, _unit: usize, _which: &Bits, _others: u64) -> Done {
        Err(NO_PARTS)
    }

    /// Makes pages at `[at, at + len)` read-only, whether they are present or not. Only where
    /// [`Capabilities::has_single_pages`].
    fn freeze_range(&self, _at: usize, _len: usize) -> Done {
        Err(NO_PARTS)
    }

    /// Drops the memory of all present pages, which are clean; they are absent then. If it fails,
    /// all are present.
    fn drop_present(&self, _unit: usize, _present: &Bits) -> Done {
        Err(NO_PARTS)
    }

    /// Drops the memory of pages, which are clean; they are absent then. Only where
    /// [`Capabilities::has_single_pages`].
    fn drop_pages(&self, _unit: usize, _pages: Range<usize>) -> Done {
        Err(NO_PARTS)
    }

    /// Drops the memory of the pages in `going`, and of no others, by one call. How many of them
    /// are absent now, in their order. If it fails, nothing has changed.
    fn drop_some(&self, _unit: usize, _going: &Bits) -> Result<usize, CallError> {
        Err(NO_PARTS)
    }

    /// Makes any pages zero. Which of them are absent now; the others are zero where they stand. If
    /// it fails, nothing has changed.
    fn give_up(&self, _unit: usize, _pages: Range<usize>) -> Result<Range<usize>, CallError> {
        Err(NO_PARTS)
    }
}

/// The answer of a backend that moves whole units only.
const NO_PARTS: CallError = CallError {
    call: Call::Register,
    errno: Errno::ENOSYS,
};

/// # Safety
/// As for [`mm::protect`].
pub(super) unsafe fn protect(at: usize, len: usize, access: u32) -> Done {
    // SAFETY: passed on to the caller.
    unsafe { mm::protect(at, len, access) }.map_err(|e| Call::Mprotect.failed(e))
}

/// # Safety
/// As for [`mm::advise`].
pub(super) unsafe fn advise(at: usize, len: usize, advice: i32) -> Done {
    // SAFETY: passed on to the caller.
    unsafe { mm::advise(at, len, advice) }.map_err(|e| Call::Madvise.failed(e))
}

/// Replaces whatever is mapped at `[at, at + len)` by memory without access.
///
/// # Safety
/// As for [`mm::map_anon`]: the content is dropped.
pub(super) unsafe fn map_without_access(at: usize, len: usize) -> Done {
    // SAFETY: passed on to the caller.
    unsafe { mm::map_anon(at, len, mm::PROT_NONE, true) }
        .map(drop)
        .map_err(|e| Call::Mmap.failed(e))
}

pub(super) fn write_protect(fd: i32, at: usize, len: usize, on: bool) -> Done {
    uffd::write_protect(fd, at, len, on).map_err(|e| Call::WriteProtect.failed(e))
}
