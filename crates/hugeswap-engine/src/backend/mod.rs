//! How memory is put in place and taken away: the one seam between what the engine decides and the
//! kernel's ways to do it.
//!
//! | backend | a fault is | whole units move by | parts of units |
//! | --- | --- | --- | --- |
//! | [`signal_uffd`] | SIGSEGV, SIGBUS | mremap | 4 KiB, by userfaultfd |
//! | [`signal_remap`] | SIGSEGV | mremap | 64 KiB, by mremap |
//! | [`message`] | a message | UFFDIO_MOVE | none |
//!
//! [`Backend`] is the one that a process uses. [`Placement`] is what each of them does, and
//! [`Capabilities`] what a caller may count on. A backend knows addresses, pages, descriptors and
//! errors; it knows no unit's word, no store and no engine.
//!
//! In signal mode the protection of a mapping carries the state of a unit. A unit whose state
//! differs from its neighbour's is a mapping of its own, and the kernel limits those (65,530 by
//! default): [`Capabilities::takes_mappings`]. In message mode a unit always arrives writable, so
//! checksums tell whether it changed. A forked child of either mode goes on in signal mode.
//!
//! Concurrency: a caller owns the lock of each unit that it names. The backend of a process changes
//! in a forked child only, before that has a second thread.

mod foreign;
pub(crate) use foreign::Cover;
mod message;
mod pieces;
mod remap;
mod seam;
mod signal_remap;
mod signal_uffd;
#[cfg(test)]
mod tests;
mod uffd_move;

use crate::bits::Bits;
use crate::call::{CallError, Done};
use crate::{PAGE, PAGES, UNIT};
use hugeswap_sys::{Errno, Result, fs, mm, uffd};
use message::Message;
use pieces::Pieces;
pub(crate) use pieces::Stage;
pub(crate) use seam::{Capabilities, Placement};
use signal_remap::SignalRemap;
use signal_uffd::SignalUffd;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8};

/// Which backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    SignalUffd,
    SignalRemap,
    Message,
}

/// The backend that a process is to have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// Message mode; otherwise signal mode.
    pub message: bool,
    /// In signal mode: userfaultfd may be used, if it is to be had.
    pub userfaultfd: bool,
    /// Descriptors are to have numbers from here on.
    pub low_fd: i32,
    /// Huge pages that the process may have.
    pub frames: u32,
    /// Mappings that parts of units may take; 0: what is left to them.
    pub mappings: u64,
}

/// Why there is no such backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenError {
    /// The userfaultfd of message mode is refused.
    Messages(Errno),
    /// No addresses for stages.
    Stages(Errno),
}

/// The backend of a process: the one kind that it uses, and the descriptors and stages for it.
pub(crate) struct Backend {
    kind: AtomicU8,
    /// Its userfaultfd, or -1.
    uffd: AtomicI32,
    /// /proc/self/pagemap, or -1.
    pagemap: AtomicI32,
    low_fd: i32,
    /// The stages in which parts are filled, if parts are moved into place.
    pieces: Pieces,
    /// Are some pages of a unit dropped by one call, and others kept?
    drops_some: AtomicBool,
}

/// Evaluates `$what` with `$b` as the implementation that a process uses.
macro_rules! dispatch {
    ($backend:expr, $b:ident => $what:expr) => {
        match $backend.kind() {
            Kind::SignalUffd => {
                let $b = SignalUffd { fd: $backend.fd() };
                $what
            }
            Kind::SignalRemap => {
                let $b = SignalRemap {
                    pieces: &$backend.pieces,
                };
                $what
            }
            Kind::Message => {
                let $b = Message {
                    fd: $backend.fd(),
                    pagemap: $backend.pagemap.load(Relaxed),
                };
                $what
            }
        }
    };
}

/// The verbs of [`Placement`], by the implementation that a process uses.
macro_rules! verbs {
    ($(fn $verb:ident(&self $(, $arg:ident: $type:ty)*) -> $out:ty;)*) => {
        impl Backend {
            $(
                #[doc = concat!("See [`Placement::", stringify!($verb), "`].")]
                pub fn $verb(&self $(, $arg: $type)*) -> $out {
                    dispatch!(self, b => b.$verb($($arg),*))
                }
            )*
        }
    };
}

verbs! {
    fn move_in(&self, frame: usize, unit: usize, write: bool) -> Done;
    fn move_out(&self, unit: usize, frame: usize, watched: bool) -> Done;
    fn relocate(&self, from: usize, to: usize, watched: bool) -> Done;
    fn set_read_only(&self, unit: usize, len: usize) -> Done;
    fn set_readable(&self, unit: usize) -> Done;
    fn set_writable(&self, unit: usize, len: usize) -> Done;
    fn watch(&self, unit: usize) -> Done;
    fn make_private(&self, unit: usize) -> ();
    fn drop_units(&self, unit: usize, len: usize) -> Done;
    fn map_anew(&self, unit: usize, len: usize) -> Done;
    fn drop_anew(&self, unit: usize, len: usize) -> Done;
    fn fence(&self, at: usize, len: usize) -> Done;
    fn empty(&self, unit: usize, by_parts: bool) -> Done;
    fn map_for_parts(&self, unit: usize, writable: bool) -> Done;
    fn split(&self, unit: usize) -> Done;
    fn install(&self, unit: usize, pages: Range<usize>, from: usize, write: bool) -> Done;
    fn give_access(&self, unit: usize, part: Range<usize>, write: bool, dirty: bool) -> Done;
    fn freeze(&self, unit: usize, which: &Bits, others: u64) -> Done;
    fn freeze_range(&self, at: usize, len: usize) -> Done;
    fn drop_present(&self, unit: usize, present: &Bits) -> Done;
    fn drop_pages(&self, unit: usize, pages: Range<usize>) -> Done;
    fn give_up(&self, unit: usize, pages: Range<usize>) -> std::result::Result<Range<usize>, CallError>;
}

impl Backend {
    /// The backend that is wanted, or what comes next to it: the userfaultfd of signal mode may be
    /// refused. Fails if that of message mode is.
    pub fn open(wanted: Wanted) -> std::result::Result<Backend, OpenError> {
        let Wanted {
            message,
            userfaultfd,
            low_fd,
            frames,
            mappings,
        } = wanted;
        let pieces = Pieces::new(frames, mappings).map_err(OpenError::Stages)?;
        let (kind, fd) = match message {
            true => {
                let fd = message::open().map_err(OpenError::Messages)?;
                (Kind::Message, put_above(fd, low_fd))
            }
            false => signal(userfaultfd, low_fd),
        };
        let drops_some =
            !message && userfaultfd && signal_uffd::discards_ranges(pieces.addresses());
        Ok(Backend {
            kind: AtomicU8::new(kind as u8),
            uffd: AtomicI32::new(fd),
            pagemap: AtomicI32::new(open_pagemap(low_fd)),
            low_fd,
            pieces,
            drops_some: AtomicBool::new(drops_some),
        })
    }

    pub fn kind(&self) -> Kind {
        const { assert!(Kind::Message as u8 == 2) };
        match self.kind.load(Relaxed) {
            0 => Kind::SignalUffd,
            1 => Kind::SignalRemap,
            _ => Kind::Message,
        }
    }

    /// Its capabilities.
    pub fn can(&self) -> &'static Capabilities {
        match self.kind() {
            Kind::SignalUffd => &SignalUffd::CAN,
            Kind::SignalRemap => &SignalRemap::CAN,
            Kind::Message => &Message::CAN,
        }
    }

    fn fd(&self) -> i32 {
        self.uffd.load(Relaxed)
    }

    /// In a forked child, where nothing is registered: starts anew, in signal mode.
    pub fn reset_in_child(&self, userfaultfd: bool) {
        let (kind, fd) = signal(userfaultfd, self.low_fd);
        self.kind.store(kind as u8, Relaxed);
        close(self.uffd.swap(fd, Relaxed));
        // The parent's tells of the parent.
        close(self.pagemap.swap(open_pagemap(self.low_fd), Relaxed));
        let _ = self.pieces.reset_in_child();
    }

    /// Closes its descriptors: nothing is asked of it any more.
    pub fn close(&self) {
        close(self.uffd.swap(-1, Relaxed));
        close(self.pagemap.swap(-1, Relaxed));
    }

    /// Its descriptors.
    pub fn fds(&self) -> impl Iterator<Item = i32> + use<> {
        [self.fd(), self.pagemap.load(Relaxed)]
            .into_iter()
            .filter(|&fd| fd >= 0)
    }
}

/// Verbs for units whose parts come by themselves.
impl Backend {
    /// The smallest part of a unit with `page` in it that comes and goes by itself; `None`: only
    /// all of the unit.
    pub fn part_of(&self, page: usize) -> Option<Range<usize>> {
        let can = self.can();
        let start = page & !(can.smallest_part - 1);
        can.has_parts().then(|| start..start + can.smallest_part)
    }

    /// A stage to fill with a part. Only where [`Capabilities::fills_stages`].
    pub fn take_stage(&self) -> std::result::Result<Stage<'_>, CallError> {
        self.pieces.take()
    }

    /// Are there mappings for another part?
    pub fn has_mappings(&self) -> bool {
        !self.can().parts_take_mappings || self.pieces.have_mappings()
    }

    /// Changes which pages of a locked unit are present, by `change`: the mappings that it takes
    /// are counted.
    pub fn change_present(&self, present: &Bits, change: impl FnOnce()) {
        match self.can().parts_take_mappings {
            true => self.pieces.counted(present, change),
            false => change(),
        }
    }

    /// How many mappings the parts in memory take, as far as that is counted.
    pub fn mappings(&self) -> i64 {
        self.pieces.mappings()
    }

    /// How many of these a unit takes with these pages present.
    pub fn mappings_of(&self, present: &Bits) -> i64 {
        match self.can().parts_take_mappings {
            true => pieces::mappings_of(present),
            false => 0,
        }
    }

    /// Hands memory that is kept for parts back to the kernel, until it is no more than `pages`,
    /// which are charged as free. A caller that uses that charge otherwise calls this.
    pub fn shed(&self, pages: i64) {
        if self.can().fills_stages {
            self.pieces.shed(pages);
        }
    }

    /// Can some pages of a unit be dropped and others kept, by one call?
    pub fn can_drop_some(&self) -> bool {
        self.drops_some.load(Relaxed) && self.can().has_single_pages()
    }

    /// Drops the memory of the pages in `going`, which are clean, and of no others, by one call.
    /// How many of them, in their order, are absent now; if it fails, nothing has changed, and it
    /// is not tried again. Only where [`Backend::can_drop_some`].
    pub fn drop_some(&self, unit: usize, going: &Bits) -> std::result::Result<usize, CallError> {
        dispatch!(self, b => b.drop_some(unit, going))
            .inspect_err(|_| self.drops_some.store(false, Relaxed))
    }
}

/// Verbs that only message mode has.
impl Backend {
    /// The descriptor that its faults are read from; -1 in signal mode.
    pub fn messages(&self) -> i32 {
        match self.kind() {
            Kind::Message => self.fd(),
            _ => -1,
        }
    }

    /// Maps a window that is not in use yet as absent units are mapped.
    pub fn prepare_window(&self, at: usize, len: usize) -> Result<()> {
        if self.kind() != Kind::Message {
            // SAFETY: advice that discards nothing.
            let _ = unsafe { mm::advise(at, len, libc::MADV_HUGEPAGE) };
            return Ok(());
        }
        // Missing faults on ranges that may be huge would make the kernel allocate and throw away a
        // huge page each.
        // SAFETY: advice on a range that is not in use yet.
        let _ = unsafe { mm::advise(at, len, libc::MADV_NOHUGEPAGE) };
        // SAFETY: the window is not in use yet.
        unsafe { mm::protect(at, len, mm::PROT_RW) }
    }

    /// Makes the places of an arena fit for frames to be moved to.
    pub fn register_places(&self, at: usize, len: usize) -> Result<()> {
        match self.kind() {
            Kind::Message => message::register_places(self.fd(), at, len),
            _ => Ok(()),
        }
    }

    /// Has touches of absent memory in the window be messages from now on.
    pub fn register_window(&self, at: usize, len: usize) -> Result<()> {
        message::register_window(self.fd(), at, len)
    }

    /// A locked unit is the kernel's from now on: touches are no business of the backend's.
    pub fn hand_to_kernel(&self, unit: usize) -> Result<()> {
        match self.kind() {
            Kind::Message => uffd::unregister(self.fd(), unit, UNIT),
            _ => Ok(()),
        }
    }

    /// A locked unit that was handed to the kernel is mapped by us again, to be read and written.
    /// (What is free of it may have had no access. In message mode nothing of it may be absent.)
    pub fn take_from_kernel(&self, unit: usize) -> Result<()> {
        // SAFETY: the program may read and write what it has of the unit.
        unsafe { mm::protect(unit, UNIT, mm::PROT_RW) }?;
        match self.kind() {
            Kind::Message => message::take_from_kernel(self.fd(), unit),
            _ => Ok(()),
        }
    }

    /// As [`Backend::hand_to_kernel`], of an absent unit that is not in use, which is without access
    /// then.
    pub fn hand_absent_to_kernel(&self, unit: usize) -> Result<()> {
        if self.kind() != Kind::Message {
            return Ok(());
        }
        // (First, for a touch of what is not registered and has access reads zeros.)
        // SAFETY: memory that is not in use.
        unsafe { mm::protect(unit, UNIT, mm::PROT_NONE) }?;
        let handed = self.hand_to_kernel(unit);
        if handed.is_err() {
            // SAFETY: as above; a touch is told of.
            let _ = unsafe { mm::protect(unit, UNIT, mm::PROT_RW) };
        }
        handed
    }

    /// Has touches of an absent page be SIGBUS. Fails if the kernel does not do that.
    pub fn refuse(&self, page: usize) -> Result<()> {
        match self.kind() {
            Kind::Message => uffd::poison(self.fd(), page, PAGE),
            _ => Err(Errno::ENOSYS),
        }
    }

    /// Lets the threads go on that a message about `page` told of.
    pub fn wake(&self, page: usize) {
        let _ = uffd::wake(self.fd(), page, PAGE);
    }
}

/// Huge pages, and what the kernel says of memory.
impl Backend {
    /// Is the unit or frame at `at` one huge page? `None` where the kernel cannot tell.
    pub fn is_huge(&self, at: usize) -> Option<bool> {
        let bytes = self.huge_bytes(at, at + UNIT).ok()?;
        Some(bytes == UNIT as u64)
    }

    /// Has the kernel make the free frame at `at` one huge page. (Holes in it are filled first: the
    /// kernel does not collapse those everywhere.) False: it is not one.
    pub fn make_huge(&self, at: usize) -> bool {
        mm::populate(at, UNIT);
        self.is_huge(at) == Some(true) || mm::collapse(at, UNIT).is_ok()
    }

    /// How much of a range is in memory, bytes.
    pub fn present_bytes(&self, from: usize, to: usize) -> Result<u64> {
        mm::present_bytes(self.pagemap.load(Relaxed), from, to)
    }

    /// How much of it is in huge pages, bytes.
    pub fn huge_bytes(&self, from: usize, to: usize) -> Result<u64> {
        mm::huge_bytes(self.pagemap.load(Relaxed), from, to)
    }

    /// Is every page of `which` of the unit at `unit`, all present, such that a write to it faults?
    /// Told by the kernel; `None`: it does not tell that of this backend's pages. For checks: a call
    /// for each unit.
    pub fn is_frozen(&self, unit: usize, which: &Bits) -> Option<bool> {
        const UFFD_WP: u64 = 1 << 57;
        let mut entries = [0; PAGES];
        let told =
            self.kind() == Kind::SignalUffd && self.page_entries(unit, &mut entries) == Ok(PAGES);
        told.then(|| (0..PAGES).all(|p| !which.get(p) || entries[p] & UFFD_WP != 0))
    }

    /// The entries of /proc/self/pagemap for the pages from `at` on. How many were read.
    pub fn page_entries(&self, at: usize, entries: &mut [u64]) -> Result<usize> {
        mm::pagemap(self.pagemap.load(Relaxed), at, entries)
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.close();
    }
}

/// The backend of signal mode that is to be had.
fn signal(userfaultfd: bool, low_fd: i32) -> (Kind, i32) {
    match userfaultfd.then(signal_uffd::open) {
        Some(Ok(fd)) => (Kind::SignalUffd, put_above(fd, low_fd)),
        _ => (Kind::SignalRemap, -1),
    }
}

fn open_pagemap(low_fd: i32) -> i32 {
    fs::open(c"/proc/self/pagemap", libc::O_RDONLY, 0).map_or(-1, |fd| put_above(fd, low_fd))
}

/// Gives a descriptor a number that programs do not use, if there is one.
fn put_above(fd: i32, low_fd: i32) -> i32 {
    let Ok(high) = fs::dup_above(fd, low_fd) else {
        return fd;
    };
    fs::close(fd);
    high
}

fn close(fd: i32) {
    if fd >= 0 {
        fs::close(fd);
    }
}
