//! Swap areas as files: where they may lie, how they are made, how they grow.
//!
//! An area is a file without a name (O_TMPFILE), mode 0600, gone with the last process
//! that holds it. Direct I/O wherever the file system has it.

use super::PoolError;
use hugeswap_policy::UNIT_BYTES;
use hugeswap_sys::{Errno, fs};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A swap area as the user asked for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwapSpec {
    /// A directory on the file system to use.
    pub path: PathBuf,
    /// Most bytes to use; `None`: what is free there, less a reserve.
    pub size: Option<u64>,
    /// The user said that memory-backed (tmpfs) is what they want.
    pub allow_tmpfs: bool,
    /// Areas of a higher priority are filled first, those of the same in turn.
    pub priority: i32,
}

impl SwapSpec {
    /// A directory, with the default size.
    pub fn new(path: impl Into<PathBuf>) -> SwapSpec {
        SwapSpec {
            path: path.into(),
            size: None,
            allow_tmpfs: false,
            priority: 0,
        }
    }

    /// Parses `PATH[,size=SIZE][,tmpfs=allow]`; the error is one line.
    pub fn parse(text: &str) -> Result<SwapSpec, String> {
        let mut parts = text.split(',');
        let path = parts.next().unwrap_or_default();
        if path.is_empty() {
            return Err("a swap area needs a directory: --swap /var/tmp,size=20G".into());
        }
        let mut spec = SwapSpec::new(path);
        for option in parts {
            match option.split_once('=') {
                Some(("size", v)) => {
                    let size = hugeswap_policy::knobs::parse_size(v)?;
                    if size < UNIT_BYTES {
                        return Err(format!("swap size {v} is too small: at least 2M"));
                    }
                    spec.size = Some(size);
                }
                Some(("tmpfs", "allow")) => spec.allow_tmpfs = true,
                _ => {
                    return Err(format!(
                        "'{option}' is not a swap option: there are size=SIZE and tmpfs=allow"
                    ));
                }
            }
        }
        Ok(spec)
    }
}

/// An opened area, before it has a place in a pool.
#[derive(Debug)]
pub struct OpenArea {
    /// Its file.
    pub fd: i32,
    /// Opened for direct I/O?
    pub direct: bool,
    /// Slots of 2 MiB it may use.
    pub slots: u64,
    /// The directory it is in.
    pub path: PathBuf,
    /// See [`SwapSpec::priority`].
    pub priority: i32,
    /// Its file has no name, and is nobody's but the pool's.
    pub nameless: bool,
}

/// Bytes of free space left to others when no size is given.
const RESERVE: u64 = 256 << 20;

/// Makes an area; nothing is left behind on failure.
pub fn open_area(spec: &SwapSpec) -> Result<OpenArea, PoolError> {
    let shown = spec.path.display().to_string();
    let fail = |what: &str, hint: &str| PoolError::Swap {
        path: shown.clone(),
        what: what.into(),
        hint: hint.into(),
    };
    let meta = std::fs::metadata(&spec.path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => fail(
            "does not exist",
            "name a directory on a disk with free space",
        ),
        std::io::ErrorKind::PermissionDenied => {
            fail("may not be looked at", "name a directory you may write to")
        }
        _ => fail(&e.to_string(), "name a directory on a disk with free space"),
    })?;
    if !meta.is_dir() {
        return Err(fail(
            "is not a directory",
            "name a directory; the swap file in it has no name and goes away by itself",
        ));
    }
    let c = c_path(&spec.path).ok_or_else(|| fail("has a NUL in it", "name another directory"))?;
    let base = libc::O_RDWR | libc::O_TMPFILE;
    let (fd, direct) = match fs::open(&c, base | libc::O_DIRECT, 0o600) {
        Ok(fd) => (fd, true),
        // File systems without direct I/O say EINVAL.
        Err(Errno::EINVAL) => match fs::open(&c, base, 0o600) {
            Ok(fd) => (fd, false),
            Err(e) => return Err(open_error(e, &fail)),
        },
        Err(e) => return Err(open_error(e, &fail)),
    };
    let close_and = |e: PoolError| {
        fs::close(fd);
        Err(e)
    };
    let info = match fs::file_system(fd) {
        Ok(i) => i,
        Err(e) => return close_and(fail(&e.to_string(), "name another directory")),
    };
    if is_memory(info.magic) && !spec.allow_tmpfs {
        return close_and(fail(
            "is in memory (tmpfs), so swapping there frees nothing",
            "name a directory on a disk, or add ,tmpfs=allow if you mean it",
        ));
    }
    let room = info.free_bytes.saturating_sub(RESERVE);
    let size = match spec.size {
        Some(s) if s > info.free_bytes => {
            return close_and(fail(
                &format!(
                    "has {} MiB free, less than the size asked for",
                    info.free_bytes >> 20
                ),
                "give a smaller size= or another directory",
            ));
        }
        Some(s) => s,
        None => room,
    };
    let slots = size / UNIT_BYTES;
    if slots == 0 {
        return close_and(fail(
            "is full",
            "free some space there or name another directory",
        ));
    }
    Ok(OpenArea {
        fd,
        direct,
        slots,
        path: spec.path.clone(),
        priority: spec.priority,
        nameless: true,
    })
}

fn open_error(e: Errno, fail: &dyn Fn(&str, &str) -> PoolError) -> PoolError {
    match e {
        Errno::EACCES | Errno::EPERM => fail(
            "is not writable for this user",
            "name a directory you may write to",
        ),
        Errno::EROFS => fail(
            "is on a read-only file system",
            "name a directory you may write to",
        ),
        Errno::EOPNOTSUPP | Errno::EISDIR | Errno::EINVAL => fail(
            "is on a file system without nameless files (O_TMPFILE)",
            "name a directory on ext4, xfs or btrfs",
        ),
        Errno::ENOSPC | Errno::EDQUOT => {
            fail("is full", "free some space there or name another directory")
        }
        e => fail(&e.to_string(), "name another directory"),
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
    for path in candidates.into_iter().flatten() {
        let spec = SwapSpec::new(path);
        if let Ok(area) = open_area(&spec) {
            fs::close(area.fd);
            return Ok(spec);
        }
    }
    Err(PoolError::NoSwapDirectory)
}

fn c_path(path: &Path) -> Option<CString> {
    CString::new(path.as_os_str().as_bytes()).ok()
}
