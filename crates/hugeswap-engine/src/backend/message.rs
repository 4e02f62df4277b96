//! Message mode: whole units by userfaultfd, whose faults are messages that the engine's threads
//! read.
//!
//! An absent unit is a registered hole, and UFFDIO_MOVE moves a frame. A unit that came in this way
//! is writable, so it counts as dirty until its checksum says otherwise. Base pages do not come and
//! go by themselves: the kernel writes to memory that nobody pinned (direct I/O), which a move of
//! the whole unit notices and dropping a page would not.

use super::seam::{Capabilities, Placement, advise, map_without_access, protect, write_protect};
use super::uffd_move::{self, LITTLE_PATIENCE, PATIENCE};
use crate::call::{Call, Done};
use crate::{PAGES, UNIT};
use hugeswap_sys::{Errno, Result, mm, uffd};

/// Message mode.
pub(super) struct Message {
    /// The userfaultfd, in a thread of the engine's.
    pub fd: i32,
    /// /proc/self/pagemap, or -1.
    pub pagemap: i32,
}

/// How a window is registered.
const WINDOW: u64 = uffd::mode::MISSING | uffd::mode::WP;

/// A userfaultfd whose messages tell of all faults, the kernel's own too.
pub(super) fn open() -> Result<i32> {
    let features =
        uffd::feature::PAGEFAULT_FLAG_WP | uffd::feature::MOVE | uffd::feature::THREAD_ID;
    uffd::open(libc::O_NONBLOCK as usize, features).map(|(fd, _)| fd)
}

/// Has touches of absent memory in a window be messages.
pub(super) fn register_window(fd: i32, at: usize, len: usize) -> Result<()> {
    uffd::register(fd, at, len, WINDOW)
}

/// Has touches of a unit's absent memory be messages; none of it is absent.
pub(super) fn take_from_kernel(fd: i32, unit: usize) -> Result<()> {
    // SAFETY: advice that discards nothing.
    unsafe { advise(unit, UNIT, libc::MADV_POPULATE_WRITE) }?;
    uffd::register(fd, unit, UNIT, WINDOW)
}

/// Makes the places of an arena fit for frames to be moved to.
pub(super) fn register_places(fd: i32, at: usize, len: usize) -> Result<()> {
    uffd::register(fd, at, len, uffd::mode::MISSING)
}

impl Placement for Message {
    const CAN: Capabilities = Capabilities {
        watches_in_place: false,
        arrives_read_only: false,
        replaces_at_once: false,
        moves_untouched: false,
        fills_in_place: false,
        faults_are_messages: true,
        absent_has_access: true,
        takes_mappings: false,
        smallest_part: PAGES,
        fills_stages: false,
        parts_take_mappings: false,
    };

    fn move_in(&self, frame: usize, unit: usize, _write: bool) -> Done {
        // A missing fault leaves an empty page table behind, which would make MOVE
        // split the page; discarding the empty range frees it.
        // SAFETY: the unit is absent and locked: nothing in it is lost.
        unsafe { advise(unit, UNIT, libc::MADV_DONTNEED) }?;
        let Err(errno) = self.move_unit(frame, unit, PATIENCE) else {
            return Ok(());
        };
        if passes(errno) {
            return Err(Call::Move.failed(errno));
        }
        // The mapping there is not as it should be: the program, or a call that failed, has left it
        // in parts or without registration.
        self.map_anew(unit, UNIT)?;
        self.move_unit(frame, unit, PATIENCE)
            .or_else(|errno| self.copy_in(frame, unit, errno))
    }

    fn move_out(&self, unit: usize, frame: usize, _watched: bool) -> Done {
        // SAFETY: the place is empty: nothing in it is lost.
        unsafe { advise(frame, UNIT, libc::MADV_DONTNEED) }?;
        self.move_unit(unit, frame, LITTLE_PATIENCE)
            .map_err(|e| Call::Move.failed(e))
    }

    fn relocate(&self, from: usize, to: usize, _watched: bool) -> Done {
        // SAFETY: the destination is absent: nothing in it is lost.
        unsafe { advise(to, UNIT, libc::MADV_DONTNEED) }?;
        self.move_unit(from, to, PATIENCE)
            .map_err(|e| Call::Move.failed(e))
    }

    fn set_read_only(&self, unit: usize, len: usize) -> Done {
        write_protect(self.fd, unit, len, true)
    }

    fn set_readable(&self, _unit: usize) -> Done {
        Ok(())
    }

    fn set_writable(&self, unit: usize, len: usize) -> Done {
        write_protect(self.fd, unit, len, false)
    }

    fn make_private(&self, unit: usize) {
        mm::populate(unit, UNIT);
    }

    fn drop_units(&self, unit: usize, len: usize) -> Done {
        // SAFETY: the content is the caller's to drop; registration stays.
        unsafe { advise(unit, len, libc::MADV_DONTNEED) }
    }

    fn fence(&self, at: usize, len: usize) -> Done {
        // SAFETY: the content is the caller's to drop.
        unsafe { map_without_access(at, len) }?;
        // SAFETY: advice that discards nothing.
        let _ = unsafe { advise(at, len, libc::MADV_NOHUGEPAGE) };
        Ok(())
    }

    fn map_anew(&self, unit: usize, len: usize) -> Done {
        // SAFETY: the content is the caller's to drop; the range stays reserved.
        unsafe { map_without_access(unit, len) }?;
        // SAFETY: advice that discards nothing; it is as the window is, so that the range merges
        // with that.
        unsafe { advise(unit, len, libc::MADV_NOHUGEPAGE) }?;
        uffd::register(self.fd, unit, len, WINDOW).map_err(|e| Call::Register.failed(e))?;
        // SAFETY: a touch is told to the userfaultfd from now on.
        unsafe { protect(unit, len, mm::PROT_RW) }
    }
}

impl Message {
    /// Moves all of a unit or frame to an absent or empty one, or nothing.
    fn move_unit(&self, from: usize, to: usize, patience: u32) -> Result<()> {
        // SAFETY: both are the caller's, by the contract of [`Placement`].
        unsafe { uffd_move::unit(self.fd, self.pagemap, from, to, patience) }
    }

    /// Copies the frame at `frame` to the absent unit, where it cannot be moved, which failed with
    /// `errno`. The frame's memory is given up then.
    fn copy_in(&self, frame: usize, unit: usize, errno: Errno) -> Done {
        if passes(errno) {
            return Err(Call::Move.failed(errno));
        }
        let copied =
            uffd::copy(self.fd, unit, frame, UNIT, false).map_err(|e| Call::Copy.failed(e));
        let dropped = if copied.is_ok() { frame } else { unit };
        // SAFETY: what is in the other place is whole.
        let _ = unsafe { advise(dropped, UNIT, libc::MADV_DONTNEED) };
        copied
    }
}

/// May a call that failed so succeed later, without anything being done about it here?
fn passes(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::EAGAIN | Errno::EBUSY | Errno::EINTR | Errno::ENOMEM
    )
}
