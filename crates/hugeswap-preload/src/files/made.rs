//! Candidates: files that a program has just made, that have no length yet, and that may become
//! regions.

use super::{fcntl, stat};
use crate::lock::Lock;
use libc::c_int;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// The most candidates that are kept at a time.
const MOST: usize = 64;

/// A file that was just made and is empty, as far as is known.
pub(super) struct Candidate {
    dev: u64,
    ino: u64,
    /// shm_open made the file, and no other process has had it since.
    pub named: bool,
}

static CANDIDATES: Lock<Vec<Candidate>> = Lock::new(Vec::new());
/// How many candidates there are; read without the lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Notes a file that the program has just made as a candidate, if it is empty.
pub(super) fn note(fd: c_int, named: bool) {
    let empty = |st: &libc::stat| st.st_mode & libc::S_IFMT == libc::S_IFREG && st.st_size == 0;
    let Some(st) = stat(fd).filter(empty) else {
        return;
    };
    let mut all = CANDIDATES.lock();
    if all.len() >= MOST {
        all.remove(0);
    }
    all.push(Candidate {
        dev: st.st_dev,
        ino: st.st_ino,
        named,
    });
    COUNT.store(all.len(), Relaxed);
}

/// Removes and returns the candidate for the file of `fd`, if there is one: the file gets its
/// length, or is mapped, now.
pub(super) fn take(fd: c_int) -> Option<Candidate> {
    if COUNT.load(Relaxed) == 0 {
        return None;
    }
    let st = stat(fd)?;
    let mut all = CANDIDATES.lock();
    let i = all
        .iter()
        .position(|c| (c.dev, c.ino) == (st.st_dev, st.st_ino))?;
    let c = all.swap_remove(i);
    COUNT.store(all.len(), Relaxed);
    Some(c)
}

/// Leaves the file of `fd` to the kernel, because the program has mapped it before it has its
/// length.
#[cold]
pub fn mapped(fd: c_int) {
    if let Some(c) = take(fd) {
        keep_out(fd, &c);
    }
}

/// Is there any candidate, so that mappings must be reported to [`mapped`]?
pub fn is_any_expected() -> bool {
    COUNT.load(Relaxed) > 0
}

/// Makes a file that stays the kernel's what the program has made: a file of memfd_create that
/// cannot be sealed.
pub(super) fn keep_out(fd: c_int, c: &Candidate) {
    if !c.named {
        let _ = fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SEAL);
    }
}

fn forget_named() {
    if COUNT.load(Relaxed) > 0 {
        let mut all = CANDIDATES.lock();
        all.retain(|c| !c.named);
        COUNT.store(all.len(), Relaxed);
    }
}

/// Forgets the candidates that shm_open made, because another process may get a descriptor.
pub fn descriptors_leave() {
    forget_named();
}

/// Forgets the candidates that shm_open made, and takes this module's lock for the time of a fork;
/// see [`Lock::before_fork`].
pub fn before_fork() {
    forget_named();
    CANDIDATES.before_fork();
}

/// Releases the lock after a fork, in parent and child.
pub fn after_fork() {
    CANDIDATES.after_fork();
}
