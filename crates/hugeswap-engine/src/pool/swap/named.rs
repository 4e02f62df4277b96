//! An area that is a named file, made for this purpose (`fallocate -l 8G FILE; chmod 600 FILE`).
//!
//! Only this user may have access to it: no other may read what is swapped, or change it. It is
//! never made longer than it was, truncated or removed. Holes and unwritten parts are filled as the
//! area grows into them.

use super::{
    Found, Guard, Kind, Refusal, SwapSpec, is_kernel_swap, is_memory, must_be_blank, open_direct,
    sized, take,
};
use crate::pool::PoolError;
use hugeswap_sys::fs::{self, Status};
use hugeswap_sys::{Errno, process};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

pub(super) fn open(spec: &SwapSpec, refusal: &Refusal) -> Result<Found, PoolError> {
    let io_error = |e: Errno| refusal.because(e.to_string(), "name another file or a directory");
    // Looked at before it is opened: opening what was put in its place may have effects.
    let path = CString::new(spec.path.as_os_str().as_bytes()).map_err(|_| io_error(Errno::EINVAL));
    let seen = fs::open(&path?, libc::O_PATH | libc::O_NOFOLLOW, 0)
        .map(Guard)
        .map_err(io_error)?;
    check(&fs::status(seen.0).map_err(io_error)?, refusal)?;
    let again = format!("/proc/self/fd/{}", seen.0);
    let (file, direct) =
        open_direct(Path::new(&again), libc::O_RDWR, 0).map_err(|e| open_error(e, refusal))?;
    let status = fs::status(file.0).map_err(io_error)?;
    let info = fs::file_system(file.0).map_err(io_error)?;
    if is_memory(info.magic) && !spec.allow_tmpfs {
        return Err(refusal.because(
            "is in memory (tmpfs), so swapping there frees nothing",
            "name a file on a disk, or add ,tmpfs=allow if you mean it",
        ));
    }
    let bytes = sized(spec, status.bytes, refusal)?;
    let who = status.identity;
    // The kernel refuses to allocate blocks of its own swap, wherever its path may lead from here.
    let busy = fs::allocate(file.0, 0, 4096) == Err(Errno::ETXTBSY);
    if busy || is_kernel_swap(|m| (m.dev(), m.ino()) == (who.dev, who.ino)) {
        return Err(refusal.because(
            "is in use as kernel swap",
            "turn it off first (swapoff) or name another",
        ));
    }
    take(file.0, refusal)?;
    must_be_blank(file.0, status.bytes, Kind::Named, refusal)?;
    Ok(Found {
        fd: file.keep(),
        kind: Kind::Named,
        direct,
        bytes,
    })
}

/// Is it a file, and this user's alone?
fn check(status: &Status, refusal: &Refusal) -> Result<(), PoolError> {
    let mode = status.identity.mode;
    let path = refusal.path.display();
    let (what, hint) = match mode & libc::S_IFMT {
        libc::S_IFLNK => ("is a symbolic link", "name the file itself".into()),
        libc::S_IFREG if status.owner != process::effective_user() => (
            "belongs to another user",
            "its owner may read and change it: name a file of your own".into(),
        ),
        libc::S_IFREG if mode & 0o077 != 0 => (
            "may be read or written by others",
            format!("chmod 600 {path}"),
        ),
        libc::S_IFREG if status.links != 1 => (
            "has several names, or none",
            "name a file that has no other hard links".into(),
        ),
        libc::S_IFREG => return Ok(()),
        _ => ("is no regular file any more", "name another".into()),
    };
    Err(refusal.because(what, hint))
}

fn open_error(e: Errno, refusal: &Refusal) -> PoolError {
    let say = |what: &str, hint: &str| refusal.because(what, hint);
    match e {
        Errno::EACCES => say("may not be read and written", "chmod 600 it"),
        Errno::EPERM => say(
            "is immutable or append-only",
            "take that off (chattr -i -a) or name another",
        ),
        Errno::EROFS => say("is on a read-only file system", "name another"),
        Errno::ETXTBSY => say(
            "is in use as kernel swap, or runs as a program",
            "turn it off first (swapoff) or name another",
        ),
        e => say(&e.to_string(), "name another file or a directory"),
    }
}
