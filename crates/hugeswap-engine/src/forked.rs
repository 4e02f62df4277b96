//! What a process knows of having been forked: whether it is a child that was made behind our back, and whether it lacks something of its parent's.

use hugeswap_sys::{Errno, mm};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU64};

/// Why a forked child has none of, or not all of, what its parent had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bereft {
    /// The pool had no record left for it, so none of its parent's swap was kept for it.
    NoRecord = 1,
    /// Neither swap nor memory took some of what its parent had changed.
    NotWritten = 2,
}

/// Never taken back: children of such a child lack the same.
static BEREFT: AtomicU8 = AtomicU8::new(0);

/// Is this such a child?
pub(crate) fn bereft() -> Option<Bereft> {
    match BEREFT.load(Relaxed) {
        1 => Some(Bereft::NoRecord),
        2 => Some(Bereft::NotWritten),
        _ => None,
    }
}

pub(crate) fn be_bereft(why: Bereft) {
    BEREFT.store(why as u8, Relaxed);
}

/// A page by which a child can tell that it is one (see [`forked_unseen`]).
pub(crate) fn fork_mark() -> Result<usize, Errno> {
    let at = mm::map_own(4096, mm::PROT_RW)?;
    // SAFETY: the page is ours; a forked child sees it zeroed.
    let _ = unsafe { mm::advise(at, 4096, libc::MADV_WIPEONFORK) };
    set_fork_mark(at);
    Ok(at)
}

pub(crate) fn set_fork_mark(at: usize) {
    // SAFETY: the page made by `fork_mark`, used as one atomic by this module only.
    unsafe { &*(at as *const AtomicU64) }.store(1, Relaxed);
}

/// Are we in a child that was forked behind our back (by a raw system call)?
pub(crate) fn forked_unseen(at: usize) -> bool {
    // SAFETY: as in `set_fork_mark`.
    unsafe { &*(at as *const AtomicU64) }.load(Relaxed) == 0
}
