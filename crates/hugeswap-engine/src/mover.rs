//! How units move between a region and the arena: two ways behind one interface.
//!
//! * *Remap* (signal mode): an absent unit is a PROT_NONE mapping; a frame is moved into place by one
//!   mremap, which is atomic, copies nothing and keeps the page huge. Protection carries the state.
//! * *Uffd* (message mode): an absent unit is a registered hole; UFFDIO_MOVE moves a frame. It
//!   always arrives writable, so a unit that came in this way counts as dirty until its checksum says otherwise.
//!
//! Every call here is made by the owner of the unit's lock.

use crate::UNIT;
use crate::call::{Call, CallError, Done};
use crate::uffd_move::{self, LITTLE_PATIENCE, PATIENCE};
use hugeswap_sys::{Errno, mm, uffd};

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

    /// Moves the frame at `frame` to `unit`, readable and, if `write`, writable. If that fails, the frame is where it was.
    pub fn map_in(self, frame: usize, unit: usize, write: bool) -> Done {
        match self {
            Mover::Remap => {
                if !write {
                    // SAFETY: the frame is the caller's; nobody else can reach it.
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
            Mover::Uffd(fd, pagemap) => {
                // A missing fault leaves an empty page table behind, which would make MOVE
                // split the page; discarding the empty range frees it.
                // SAFETY: the unit is absent and locked: nothing in it is lost.
                unsafe { madvise(unit, UNIT, libc::MADV_DONTNEED) }?;
                // SAFETY: the unit and the place are the caller's.
                let moved = unsafe { uffd_move::unit(fd, pagemap, frame, unit, PATIENCE) };
                let Err(errno) = moved else { return Ok(()) };
                if passes(errno) {
                    return Err(Call::Move.failed(errno));
                }
                // The mapping there is not as it should be: the program, or a call that failed, has left it in parts or without
                // registration.
                self.map_anew(unit, UNIT)?;
                // SAFETY: as above.
                unsafe { uffd_move::unit(fd, pagemap, frame, unit, PATIENCE) }
                    .or_else(|errno| copy_in(fd, frame, unit, errno))
            }
        }
    }

    /// Moves the memory of `unit` to the empty place `frame`; the unit is absent then,
    /// and the frame readable and writable. `watched`: the unit is mapped without access already. If it fails, the memory is where it
    /// was, perhaps without access.
    pub fn map_out(self, unit: usize, frame: usize, watched: bool) -> Done {
        match self {
            Mover::Remap => {
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
                        uffd_move::end_rather_than_lose();
                    }
                })
            }
            Mover::Uffd(fd, pagemap) => {
                // SAFETY: the place is empty: nothing in it is lost.
                unsafe { madvise(frame, UNIT, libc::MADV_DONTNEED) }?;
                // SAFETY: the unit and the place are the caller's.
                unsafe { uffd_move::unit(fd, pagemap, unit, frame, LITTLE_PATIENCE) }
                    .map_err(|e| Call::Move.failed(e))
            }
        }
    }

    /// Makes present units from `unit` on, `len` bytes, read-only.
    pub fn set_read_only(self, unit: usize, len: usize) -> Done {
        match self {
            // SAFETY: writers fault and wait for the unit's lock.
            Mover::Remap => unsafe { protect(unit, len, mm::PROT_READ) },
            Mover::Uffd(fd, _) => write_protect(fd, unit, len, true),
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
    pub fn set_readable(self, unit: usize) -> Done {
        match self {
            // SAFETY: the unit's bytes are the program's to read.
            Mover::Remap => unsafe { protect(unit, UNIT, mm::PROT_READ) },
            Mover::Uffd(..) => Ok(()),
        }
    }

    /// Makes present units from `unit` on, `len` bytes, readable and writable.
    pub fn set_writable(self, unit: usize, len: usize) -> Done {
        match self {
            // SAFETY: the units are the program's to write; their owner marks them dirty.
            Mover::Remap => unsafe { protect(unit, len, mm::PROT_RW) },
            Mover::Uffd(fd, _) => write_protect(fd, unit, len, false),
        }
    }

    /// Maps a present unit without access, in place. Only where [`Mover::watches_in_place`].
    pub fn watch(self, unit: usize) -> Done {
        // SAFETY: a touch faults and waits for the unit's lock.
        unsafe { protect(unit, UNIT, mm::PROT_NONE) }
    }

    /// Moves a present unit to an absent one. Remap: both are mapped without access afterwards, and the
    /// next touch of the destination gives access; Uffd: the destination is writable.
    pub fn relocate(self, from: usize, to: usize, watched: bool) -> Done {
        match self {
            Mover::Remap => {
                if !watched {
                    // SAFETY: a touch from now on faults and waits for the unit's lock.
                    unsafe { protect(from, UNIT, mm::PROT_NONE) }?;
                }
                // SAFETY: both units are locked, the destination is absent.
                unsafe { mremap(from, to) }
            }
            Mover::Uffd(fd, pagemap) => {
                // SAFETY: the destination is absent: nothing in it is lost.
                unsafe { madvise(to, UNIT, libc::MADV_DONTNEED) }?;
                // SAFETY: the unit and the place are the caller's.
                unsafe { uffd_move::unit(fd, pagemap, from, to, PATIENCE) }
                    .map_err(|e| Call::Move.failed(e))
            }
        }
    }

    /// Drops whatever memory stands at the units from `unit` on, `len` bytes; they are absent then.
    pub fn drop_pages(self, unit: usize, len: usize) -> Done {
        match self {
            // A fresh mapping, unlike DONTNEED, also lets neighbours merge into one.
            Mover::Remap => self.map_anew(unit, len),
            // SAFETY: the content is the caller's to drop; registration stays.
            Mover::Uffd(..) => unsafe { madvise(unit, len, libc::MADV_DONTNEED) },
        }
    }

    /// [`Mover::map_anew`], for units that nobody needs yet: it is enough that nothing stands there any more.
    pub fn drop_anew(self, unit: usize, len: usize) -> Done {
        match self.map_anew(unit, len) {
            Err(e) if e.call == Call::Mmap => Err(e),
            _ => Ok(()),
        }
    }

    /// Drops whatever stands at the units from `unit` on, `len` bytes, and maps them as absent units are mapped, whatever has become of
    /// their mappings. If it fails, a touch of what is dropped faults: it does not read as zeros.
    pub fn map_anew(self, unit: usize, len: usize) -> Done {
        // SAFETY: the content is the caller's to drop; the range stays reserved.
        unsafe { mm::map_anon(unit, len, mm::PROT_NONE, true) }
            .map_err(|e| Call::Mmap.failed(e))?;
        match self {
            Mover::Remap => {
                // SAFETY: advice that discards nothing; without it the range would not merge.
                let _ = unsafe { madvise(unit, len, libc::MADV_HUGEPAGE) };
                Ok(())
            }
            Mover::Uffd(fd, _) => {
                // SAFETY: advice that discards nothing; it is as the window is, so that the range merges with that.
                unsafe { madvise(unit, len, libc::MADV_NOHUGEPAGE) }?;
                let mode = uffd::mode::MISSING | uffd::mode::WP;
                uffd::register(fd, unit, len, mode).map_err(|e| Call::Register.failed(e))?;
                // SAFETY: a touch is told to the userfaultfd from now on.
                unsafe { protect(unit, len, mm::PROT_RW) }
            }
        }
    }
}

/// May a call that failed so succeed later, without anything being done about it here?
fn passes(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::EAGAIN | Errno::EBUSY | Errno::EINTR | Errno::ENOMEM
    )
}

/// Copies the frame at `frame` to the absent unit, where it cannot be moved, which failed with `errno`. The frame's memory is given up then.
fn copy_in(fd: i32, frame: usize, unit: usize, errno: Errno) -> Done {
    if passes(errno) {
        return Err(Call::Move.failed(errno));
    }
    let copied = uffd::copy(fd, unit, frame, UNIT, false).map_err(|e| Call::Copy.failed(e));
    let dropped = if copied.is_ok() { frame } else { unit };
    // SAFETY: what is in the other place is whole.
    let _ = unsafe { madvise(dropped, UNIT, libc::MADV_DONTNEED) };
    copied
}

/// # Safety
/// As for [`mm::protect`].
unsafe fn protect(at: usize, len: usize, prot: u32) -> Done {
    // SAFETY: passed on to the caller.
    unsafe { mm::protect(at, len, prot) }.map_err(|e| Call::Mprotect.failed(e))
}

/// Moves one unit.
///
/// # Safety
/// As for [`mm::move_pages`].
unsafe fn mremap(from: usize, to: usize) -> Done {
    // SAFETY: passed on to the caller.
    unsafe { mm::move_pages(from, to, UNIT) }.map_err(|e| Call::Mremap.failed(e))
}

/// # Safety
/// As for [`mm::advise`].
unsafe fn madvise(at: usize, len: usize, advice: i32) -> Done {
    // SAFETY: passed on to the caller.
    unsafe { mm::advise(at, len, advice) }.map_err(|e| Call::Madvise.failed(e))
}

fn write_protect(fd: i32, at: usize, len: usize, protect: bool) -> Done {
    uffd::write_protect(fd, at, len, protect).map_err(|e| Call::WriteProtect.failed(e))
}

impl From<CallError> for Errno {
    fn from(error: CallError) -> Errno {
        error.errno
    }
}
