//! How units move between a region and the arena: two ways behind one interface.
//!
//! * *Remap* (signal mode): an absent unit is a PROT_NONE mapping; a frame is moved into place by one
//!   mremap, which is atomic, copies nothing and keeps the page huge. Protection carries the state.
//! * *Uffd* (message mode): an absent unit is a registered hole; UFFDIO_MOVE moves a frame. It
//!   always arrives writable, so a unit that came in this way counts as dirty until its checksum says otherwise.
//!
//! Every call here is made by the owner of the unit's lock.

use crate::uffd_move::{self, LITTLE_PATIENCE, PATIENCE};
use hugeswap_policy::UNIT_BYTES;
use hugeswap_sys::{Result, mm, uffd};

const UNIT: usize = UNIT_BYTES as usize;

/// See the file's head.
#[derive(Clone, Copy, Debug)]
pub enum Mover {
    /// mprotect and mremap.
    Remap,
    /// userfaultfd and /proc/self/pagemap (-1: not to be had), by their descriptors in the engine's own threads.
    Uffd(i32, i32),
}

impl Mover {
    /// Can a unit be watched where it stands? (Otherwise it is moved to the arena, which is
    /// just as good a swap cache.)
    pub fn watches_in_place(self) -> bool {
        matches!(self, Mover::Remap)
    }

    /// Can memory be moved that was never touched?
    pub fn moves_holes(self) -> bool {
        matches!(self, Mover::Remap)
    }

    /// Does a frame take the place of another without a moment in which there is neither?
    pub fn replaces_at_once(self) -> bool {
        matches!(self, Mover::Remap)
    }

    /// Can a unit arrive read-only?
    pub fn arrives_clean(self) -> bool {
        matches!(self, Mover::Remap)
    }

    /// Moves the frame at `frame` to `unit`, readable and, if `write`, writable.
    pub fn map_in(self, frame: usize, unit: usize, write: bool) -> Result<()> {
        match self {
            Mover::Remap => {
                if !write {
                    // SAFETY: the frame is the caller's; nobody else can reach it.
                    unsafe { mm::protect(frame, UNIT, mm::PROT_READ) }?;
                }
                // SAFETY: the frame is the caller's, the unit absent and locked.
                let moved = unsafe { mm::move_pages(frame, unit, UNIT) };
                if moved.is_err() && !write {
                    // SAFETY: as above; the frame stays the caller's and must be writable again.
                    let _ = unsafe { mm::protect(frame, UNIT, mm::PROT_RW) };
                }
                moved
            }
            Mover::Uffd(fd, pagemap) => {
                // A missing fault leaves an empty page table behind, which would make MOVE
                // split the page; discarding the empty range frees it.
                // SAFETY: the unit is absent and locked: nothing in it is lost.
                unsafe { mm::advise(unit, UNIT, libc::MADV_DONTNEED) }?;
                // SAFETY: the unit and the place are the caller's.
                unsafe { uffd_move::unit(fd, pagemap, frame, unit, PATIENCE) }
            }
        }
    }

    /// Moves the memory of `unit` to the empty place `frame`; the unit is absent then,
    /// and the frame readable and writable. `watched`: the unit is mapped without access already.
    pub fn map_out(self, unit: usize, frame: usize, watched: bool) -> Result<()> {
        match self {
            Mover::Remap => {
                if !watched {
                    // SAFETY: a touch from now on faults and waits for the unit's lock.
                    unsafe { mm::protect(unit, UNIT, mm::PROT_NONE) }?;
                }
                // SAFETY: the unit is locked, the place empty and the caller's.
                unsafe { mm::move_pages(unit, frame, UNIT) }?;
                // SAFETY: the frame is the caller's now. Making a mapping of its own more
                // permissive splits nothing, so it cannot meet the limit on mappings.
                unsafe { mm::protect(frame, UNIT, mm::PROT_RW) }
            }
            Mover::Uffd(fd, pagemap) => {
                // SAFETY: the place is empty: nothing in it is lost.
                unsafe { mm::advise(frame, UNIT, libc::MADV_DONTNEED) }?;
                // SAFETY: the unit and the place are the caller's.
                unsafe { uffd_move::unit(fd, pagemap, unit, frame, LITTLE_PATIENCE) }
            }
        }
    }

    /// Makes present units from `unit` on, `len` bytes, read-only.
    pub fn set_read_only(self, unit: usize, len: usize) -> Result<()> {
        match self {
            // SAFETY: writers fault and wait for the unit's lock.
            Mover::Remap => unsafe { mm::protect(unit, len, mm::PROT_READ) },
            Mover::Uffd(fd, _) => uffd::write_protect(fd, unit, len, true),
        }
    }

    /// Makes the pages of a present, writable unit the process's alone, which they may not be though a child that shared them has ended:
    /// the kernel does not move them before.
    pub fn own(self, unit: usize) {
        if let Mover::Uffd(..) = self {
            mm::populate(unit, UNIT);
        }
    }

    /// Makes a present unit readable (after it was watched).
    pub fn set_readable(self, unit: usize) -> Result<()> {
        match self {
            // SAFETY: the unit's bytes are the program's to read.
            Mover::Remap => unsafe { mm::protect(unit, UNIT, mm::PROT_READ) },
            Mover::Uffd(..) => Ok(()),
        }
    }

    /// Makes present units from `unit` on, `len` bytes, readable and writable.
    pub fn set_writable(self, unit: usize, len: usize) -> Result<()> {
        match self {
            // SAFETY: the units are the program's to write; their owner marks them dirty.
            Mover::Remap => unsafe { mm::protect(unit, len, mm::PROT_RW) },
            Mover::Uffd(fd, _) => uffd::write_protect(fd, unit, len, false),
        }
    }

    /// Maps a present unit without access, in place. Only where [`Mover::watches_in_place`].
    pub fn watch(self, unit: usize) -> Result<()> {
        // SAFETY: a touch faults and waits for the unit's lock.
        unsafe { mm::protect(unit, UNIT, mm::PROT_NONE) }
    }

    /// Moves a present unit to an absent one. Remap: both are mapped without access afterwards, and the
    /// next touch of the destination gives access; Uffd: the destination is writable.
    pub fn relocate(self, from: usize, to: usize, watched: bool) -> Result<()> {
        match self {
            Mover::Remap => {
                if !watched {
                    // SAFETY: a touch from now on faults and waits for the unit's lock.
                    unsafe { mm::protect(from, UNIT, mm::PROT_NONE) }?;
                }
                // SAFETY: both units are locked, the destination is absent.
                unsafe { mm::move_pages(from, to, UNIT) }
            }
            Mover::Uffd(fd, pagemap) => {
                // SAFETY: the destination is absent: nothing in it is lost.
                unsafe { mm::advise(to, UNIT, libc::MADV_DONTNEED) }?;
                // SAFETY: the unit and the place are the caller's.
                unsafe { uffd_move::unit(fd, pagemap, from, to, PATIENCE) }
            }
        }
    }

    /// Drops whatever memory stands at the units from `unit` on, `len` bytes; they are absent then.
    pub fn drop_pages(self, unit: usize, len: usize) -> Result<()> {
        match self {
            Mover::Remap => {
                // A fresh mapping, unlike DONTNEED, also lets neighbours merge into one.
                // SAFETY: the content is the caller's to drop; the range stays reserved.
                unsafe { mm::map_anon(unit, len, mm::PROT_NONE, true) }?;
                // SAFETY: advice that discards nothing; without it the range would not merge.
                let _ = unsafe { mm::advise(unit, len, libc::MADV_HUGEPAGE) };
                Ok(())
            }
            // SAFETY: the content is the caller's to drop; registration stays.
            Mover::Uffd(..) => unsafe { mm::advise(unit, len, libc::MADV_DONTNEED) },
        }
    }
}
