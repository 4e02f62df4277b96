//! An area in a directory: a file without a name (O_TMPFILE), mode 0600, gone with the last process
//! that holds it.

use super::{Found, Kind, RESERVE, Refusal, SwapSpec, open_area, open_direct};
use crate::pool::PoolError;
use hugeswap_policy::UNIT_BYTES;
use hugeswap_sys::{Errno, fs, process};
use std::path::PathBuf;

pub(super) fn open(spec: &SwapSpec, refusal: &Refusal) -> Result<Found, PoolError> {
    let flags = libc::O_RDWR | libc::O_TMPFILE;
    let opened = open_direct(&spec.path, flags, 0o600);
    let (file, direct) = opened.map_err(|e| open_error(e, refusal))?;
    let info = fs::file_system(file.0)
        .map_err(|e| refusal.because(e.to_string(), "name another directory"))?;
    if is_memory(info.magic) && !spec.allow_tmpfs {
        return Err(refusal.because(
            "is in memory (tmpfs), so swapping there frees nothing",
            "name a directory on a disk, or add ,tmpfs=allow if you mean it",
        ));
    }
    let limit = process::limit(libc::RLIMIT_FSIZE);
    let bytes = match spec.size {
        Some(s) if s > info.free_bytes => {
            return Err(refusal.because(
                format!(
                    "has {} MiB free, less than the size asked for",
                    info.free_bytes >> 20
                ),
                "give a smaller size= or another directory",
            ));
        }
        size if size.unwrap_or(UNIT_BYTES) > limit => {
            return Err(refusal.because(
                format!(
                    "would have a file longer than this process may write: {} KiB (ulimit -f)",
                    limit >> 10
                ),
                "raise that limit, or give a smaller size=",
            ));
        }
        Some(s) => s,
        None => info
            .free_bytes
            .saturating_sub(RESERVE)
            .min(super::MAX_BYTES)
            .min(limit),
    };
    if bytes < UNIT_BYTES {
        return Err(full(refusal));
    }
    Ok(Found {
        fd: file.keep(),
        kind: Kind::Nameless,
        direct,
        bytes,
    })
}

fn full(refusal: &Refusal) -> PoolError {
    refusal.because("is full", "free some space there or name another directory")
}

fn open_error(e: Errno, refusal: &Refusal) -> PoolError {
    let say = |what: &str, hint: &str| refusal.because(what, hint);
    match e {
        Errno::EACCES | Errno::EPERM => say(
            "is not writable for this user",
            "name a directory you may write to",
        ),
        Errno::EROFS => say(
            "is on a read-only file system",
            "name a directory you may write to",
        ),
        Errno::EOPNOTSUPP | Errno::EISDIR | Errno::EINVAL => say(
            "is on a file system without nameless files (O_TMPFILE)",
            "name a directory on ext4, xfs or btrfs",
        ),
        Errno::ENOSPC | Errno::EDQUOT => full(refusal),
        e => say(&e.to_string(), "name another directory"),
    }
}

/// Is a file system kept in memory?
pub fn is_memory(magic: u64) -> bool {
    const RAMFS_MAGIC: u64 = 0x8584_58f6;
    magic == libc::TMPFS_MAGIC as u64 || magic == RAMFS_MAGIC
}

/// The directory used when none is named: the first of `/var/tmp`, the user's cache, home and
/// working directories that is on a disk and takes a nameless file.
pub fn default_area() -> Result<SwapSpec, PoolError> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let candidates = [
        Some(PathBuf::from("/var/tmp")),
        home.as_ref().map(|h| h.join(".cache")),
        home,
        std::env::current_dir().ok(),
    ];
    for path in candidates.into_iter().flatten().filter(|p| p.is_dir()) {
        let spec = SwapSpec::new(path);
        if let Ok(area) = open_area(&spec) {
            fs::close(area.fd);
            return Ok(spec);
        }
    }
    Err(PoolError::NoSwapDirectory)
}
