//! What a backend does, and what it declares that it can do.

use crate::UNIT;
use crate::backend::remap;
use crate::call::{Call, Done};
use hugeswap_sys::mm;

/// What a backend can do beyond the verbs that all have. A caller asks for one of these, not for the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capabilities {
    /// A present unit can be mapped without access where it stands ([`Placement::watch`]), and a touch gives it back. Otherwise a
    /// unit is moved to the arena, which is as good a swap cache.
    pub watches_in_place: bool,
    /// A unit or page can come into place read-only, and nobody writes to what is read-only without a fault, so it is known exactly what has
    /// changed. Otherwise checksums tell.
    pub arrives_read_only: bool,
    /// A frame takes the place of another without a moment in which there is neither.
    pub replaces_at_once: bool,
    /// Memory can be moved that was never touched.
    pub moves_untouched: bool,
}

/// The verbs. An address of a unit or a frame is that of its first byte; lengths are in bytes.
///
/// A caller owns the lock of each unit that it names, and the frame. The rules of the fault path hold: nothing here allocates, panics
/// or waits for another thread's lock. What is the same for all backends that place units by mremap is the default.
pub(crate) trait Placement {
    /// What it can do.
    const CAN: Capabilities;

    /// Moves the frame at `frame` to the absent unit, readable and, if `write`, writable. If that fails, the frame is where it was.
    /// Where not [`Capabilities::arrives_read_only`] the unit is writable always.
    fn move_in(&self, frame: usize, unit: usize, write: bool) -> Done {
        remap::move_in(frame, unit, write)
    }

    /// Moves the memory of a present unit to the empty place `frame`; the unit is absent then, and the frame readable and writable.
    /// `watched`: the unit is mapped without access already. If it fails, the memory is where it was, perhaps without access.
    fn move_out(&self, unit: usize, frame: usize, watched: bool) -> Done {
        remap::move_out(unit, frame, watched)
    }

    /// Moves a present unit to an absent one. Where [`Capabilities::watches_in_place`], both are without access afterwards, and the
    /// next touch of the destination gives access; otherwise the destination is writable.
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

    /// Maps a present unit without access, where it stands. Only where [`Capabilities::watches_in_place`].
    fn watch(&self, unit: usize) -> Done {
        // SAFETY: a touch faults and waits for the unit's lock.
        unsafe { protect(unit, UNIT, mm::PROT_NONE) }
    }

    /// Copies what a present, writable unit shares with a forked relative, or did: there are backends that cannot move such pages.
    fn make_private(&self, _unit: usize) {}

    /// Drops the memory of the units from `unit` on; they are absent then.
    fn drop_units(&self, unit: usize, len: usize) -> Done {
        // A new mapping, unlike MADV_DONTNEED, also lets neighbours merge into one.
        self.map_anew(unit, len)
    }

    /// Drops the memory of the units from `unit` on, and maps them as absent units are mapped, whatever has become of their mappings.
    /// If it fails, a touch of what is dropped faults: it does not read as zeros.
    fn map_anew(&self, unit: usize, len: usize) -> Done {
        remap::map_anew(unit, len)
    }

    /// [`Placement::map_anew`], for units that nobody needs yet: it is enough that no memory stands there any more.
    fn drop_anew(&self, unit: usize, len: usize) -> Done {
        match self.map_anew(unit, len) {
            Err(e) if e.call == Call::Mmap => Err(e),
            _ => Ok(()),
        }
    }
}

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
