//! Files that a program has just made, before they have a length: which of them may become regions.

use super::{fcntl, stat};
use crate::lock::Lock;
use libc::c_int;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// Files that have no length yet and may become regions, at most.
const MOST: usize = 64;

/// A file just made, empty as far as is known.
pub(super) struct Candidate {
    dev: u64,
    ino: u64,
    /// shm_open made it, and nobody but this process has had it since.
    pub named: bool,
}

static CANDIDATES: Lock<Vec<Candidate>> = Lock::new(Vec::new());
/// How many there are.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Notes a file that the program has just made.
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

/// What is known of a file that gets its length now, and is not empty from now on.
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

/// The program has mapped `fd` before it has its length: it is the kernel's.
#[cold]
pub fn mapped(fd: c_int) {
    if let Some(c) = take(fd) {
        keep_out(fd, &c);
    }
}

/// Is there anything to be noted of a mapping?
pub fn is_any_expected() -> bool {
    COUNT.load(Relaxed) > 0
}

/// A file that stays the kernel's is as the program has made it.
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

/// Another process may get a descriptor.
pub fn descriptors_leave() {
    forget_named();
}

/// Around a fork; see [`Lock::before_fork`].
pub fn before_fork() {
    forget_named();
    CANDIDATES.before_fork();
}

/// Around a fork, in parent and child.
pub fn after_fork() {
    CANDIDATES.after_fork();
}
