//! What a process knows about its own fork: whether it is a child that was made without the
//! engine's handlers, and whether it lacks something that its parent had.

use hugeswap_sys::{Errno, mm};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU64};

/// Why a forked child has none of, or not all of, what its parent had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InheritanceLoss {
    /// The pool had no record left for it, so none of its parent's swap was kept for it.
    NoRecord = 1,
    /// Neither swap nor memory took some of what its parent had changed.
    NotWritten = 2,
}

/// Never cleared: children of such a child lack the same.
static INHERITANCE_LOSS: AtomicU8 = AtomicU8::new(0);

/// Why this process lost something of its parent's, if it did.
pub(crate) fn inheritance_loss() -> Option<InheritanceLoss> {
    match INHERITANCE_LOSS.load(Relaxed) {
        1 => Some(InheritanceLoss::NoRecord),
        2 => Some(InheritanceLoss::NotWritten),
        _ => None,
    }
}

/// Remembers it for good.
pub(crate) fn note_inheritance_loss(why: InheritanceLoss) {
    INHERITANCE_LOSS.store(why as u8, Relaxed);
}

/// A page by which a child can tell that it is one (see [`is_raw_fork_child`]).
pub(crate) fn fork_mark() -> Result<usize, Errno> {
    let at = mm::map_own(4096, mm::PROT_RW)?;
    // SAFETY: the page is ours; a forked child sees it zeroed.
    let _ = unsafe { mm::advise(at, 4096, libc::MADV_WIPEONFORK) };
    set_fork_mark(at);
    Ok(at)
}

/// Marks the page: this process is prepared.
pub(crate) fn set_fork_mark(at: usize) {
    // SAFETY: the page made by `fork_mark`, used as one atomic by this module only.
    unsafe { &*(at as *const AtomicU64) }.store(1, Relaxed);
}

/// Is this process a child that a raw `fork` system call made?
pub(crate) fn is_raw_fork_child(at: usize) -> bool {
    // SAFETY: as in `set_fork_mark`.
    unsafe { &*(at as *const AtomicU64) }.load(Relaxed) == 0
}
