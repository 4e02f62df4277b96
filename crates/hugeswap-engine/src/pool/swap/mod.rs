//! Swap areas: what they can be, and how they are opened.
//!
//! | what is named | the area | refused |
//! | --- | --- | --- |
//! | a directory | a file without a name in it ([`nameless`]), gone with the last process that holds it | where such files cannot be, and in memory |
//! | a regular file | that file, as far as it goes ([`named`]); never truncated or removed | what is not ours alone, or in use |
//! | a block device | all of it ([`device`]), only if that was allowed | what is in use, or holds something |
//! | `mem` | numbers for what is compressed in memory ([`memory`]); nothing is behind them | |
//!
//! Direct I/O wherever there is direct I/O. A named file or a device is locked (flock) by the
//! description that made the pool opened, and by each that a joining process opens ([`hold`]), so
//! it is one pool's until the last of its processes has gone.

mod device;
mod memory;
mod named;
mod nameless;
mod signature;
mod span;
mod spec;

pub use nameless::{default_area, is_memory};
pub use spec::{MAX_BYTES, PRIORITIES, SwapSpec, SwapSpecError};

use super::PoolError;
use hugeswap_policy::UNIT_BYTES;
use hugeswap_sys::{Errno, Result as SysResult, fs};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The kind of an area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// A file without a name.
    Nameless = 0,
    /// A named file that was made for it.
    Named = 1,
    /// A block device.
    Device = 2,
    /// None: what is there is in compressed memory, or not at all.
    Memory = 3,
}

/// An opened area, before it has a place in a pool.
#[derive(Debug)]
pub struct OpenArea {
    /// Its file or device.
    pub fd: i32,
    /// What it is.
    pub kind: Kind,
    /// Opened for direct I/O?
    pub direct: bool,
    /// Clusters of 2 MiB it may use.
    pub clusters: u64,
    /// See [`SwapSpec::priority`].
    pub priority: i32,
    /// The path it was found by.
    pub path: PathBuf,
}

/// Bytes of free space left to others when no size is given.
pub const RESERVE: u64 = 256 << 20;

/// Why a path is not to be had, for people.
struct Refusal<'a> {
    noun: &'static str,
    path: &'a Path,
}

impl Refusal<'_> {
    fn because(&self, what: impl Into<String>, hint: impl Into<String>) -> PoolError {
        PoolError::Swap {
            noun: self.noun,
            path: self.path.display().to_string(),
            what: what.into(),
            hint: hint.into(),
        }
    }
}

/// Opens an area; nothing is left behind on failure.
pub fn open_area(spec: &SwapSpec) -> Result<OpenArea, PoolError> {
    let refusal = |noun| Refusal {
        noun,
        path: &spec.path,
    };
    let unknown = refusal("area");
    spec.check()
        .map_err(|e| unknown.because("cannot be had", e.to_string()))?;
    if spec.is_memory() {
        return memory::open(spec, &unknown).map(|f| opened(f, spec));
    }
    let meta = std::fs::metadata(&spec.path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => unknown.because(
            "does not exist",
            "name a directory on a disk with free space, or a swap file",
        ),
        std::io::ErrorKind::PermissionDenied => {
            unknown.because("may not be looked at", "name a directory you may write to")
        }
        _ => unknown.because(e.to_string(), "name a directory on a disk with free space"),
    })?;
    let kind = meta.file_type();
    let found = if kind.is_dir() {
        nameless::open(spec, &refusal("directory"))
    } else if kind.is_file() {
        named::open(spec, &refusal("file"))
    } else if kind.is_block_device() {
        device::open(spec, &refusal("device"), meta.rdev())
    } else {
        Err(unknown.because(
            "is neither a directory nor a file nor a block device",
            "name a directory on a disk",
        ))
    };
    found.map(|f| opened(f, spec))
}

fn opened(found: Found, spec: &SwapSpec) -> OpenArea {
    OpenArea {
        fd: found.fd,
        kind: found.kind,
        direct: found.direct,
        clusters: found.bytes / UNIT_BYTES,
        priority: spec.priority,
        path: spec.path.clone(),
    }
}

/// What was opened, and the bytes of it that may be used: at least one cluster's.
struct Found {
    fd: i32,
    kind: Kind,
    direct: bool,
    bytes: u64,
}

/// Closes a descriptor unless it is kept.
struct Guard(i32);

impl Guard {
    fn keep(self) -> i32 {
        let fd = self.0;
        std::mem::forget(self);
        fd
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        fs::close(self.0);
    }
}

/// Opens for direct I/O, or without it where there is none.
fn open_direct(path: &Path, flags: i32, mode: u32) -> SysResult<(Guard, bool)> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)?;
    match fs::open(&path, flags | libc::O_DIRECT, mode) {
        Ok(fd) => Ok((Guard(fd), true)),
        // File systems without direct I/O say EINVAL.
        Err(Errno::EINVAL) => fs::open(&path, flags, mode).map(|fd| (Guard(fd), false)),
        Err(e) => Err(e),
    }
}

/// The size asked for, of what there is.
fn sized(spec: &SwapSpec, has: u64, refusal: &Refusal) -> Result<u64, PoolError> {
    let few = |n: u64| format!("has only {} KiB", n >> 10);
    match spec.size {
        _ if has < UNIT_BYTES => Err(refusal.because(
            few(has),
            "a swap area has at least 2 MiB: name a larger one",
        )),
        Some(n) if n > has => Err(refusal.because(
            format!("{}, less than the size asked for", few(has)),
            "give a smaller size= or none",
        )),
        size => Ok(size.unwrap_or(has).min(MAX_BYTES)),
    }
}

/// Tries again for a while as long as that is `busy`: the threads of a pool that was just dropped
/// have let go of its descriptors only a moment after they have ended, as far as can be seen.
fn patiently<T>(busy: Errno, attempt: impl Fn() -> SysResult<T>) -> SysResult<T> {
    for _ in 0..50 {
        match attempt() {
            Err(e) if e == busy => std::thread::sleep(std::time::Duration::from_millis(10)),
            result => return result,
        }
    }
    attempt()
}

/// Makes a file or device this pool's: no other pool has it, and none can get it as long as this
/// description, or one that [`hold`] was called for, is open.
fn take(fd: i32, refusal: &Refusal) -> Result<(), PoolError> {
    // Alone for a moment, then with those that join. A process that gets in between makes the
    // second step fail, not itself.
    match patiently(Errno::EAGAIN, || {
        fs::lock(fd, true).and_then(|()| fs::lock(fd, false))
    }) {
        Ok(()) => Ok(()),
        Err(Errno::EAGAIN) => Err(refusal.because(
            "is in use by another pool, or locked by another program",
            "name one that is free, or wait until that has ended",
        )),
        Err(e) => Err(refusal.because(format!("cannot be locked: {e}"), "name another")),
    }
}

/// A process that joins a pool holds the pool's area too.
pub(super) fn hold(fd: i32, kind: u32) -> SysResult<()> {
    if kind == Kind::Nameless as u32 || kind == Kind::Memory as u32 {
        Ok(())
    } else {
        fs::lock(fd, false)
    }
}

/// Refuses what holds something that is known.
fn must_be_blank(fd: i32, bytes: u64, kind: Kind, refusal: &Refusal) -> Result<(), PoolError> {
    // A header for the kernel's swap says what a file is for.
    match signature::find(fd, bytes, kind == Kind::Device) {
        Ok(None) => Ok(()),
        Ok(Some(what)) => Err(refusal.because(
            format!("holds {what}"),
            format!(
                "name another, or if nobody needs that any more wipe it first (wipefs --all {})",
                refusal.path.display()
            ),
        )),
        Err(e) => Err(refusal.because(format!("cannot be read: {e}"), "name another")),
    }
}

/// What `/proc/swaps` lists: is this file, or this device, among it?
fn is_kernel_swap(is_it: impl Fn(&std::fs::Metadata) -> bool) -> bool {
    let list = std::fs::read("/proc/swaps").unwrap_or_default();
    let lines = list.split(|&b| b == b'\n').skip(1);
    let mut paths = lines.filter_map(|l| l.split(|&b| b == b' ' || b == b'\t').next());
    paths.any(|p| {
        let p = PathBuf::from(std::ffi::OsString::from(unescaped(p)));
        std::fs::metadata(p).is_ok_and(|m| is_it(&m))
    })
}

/// Text of /proc, in which a blank, tab, newline or backslash is a backslash and three octal
/// digits.
fn unescaped(text: &[u8]) -> String {
    let mut out = Vec::new();
    let mut rest = text;
    while let [first, after @ ..] = rest {
        let code = after.get(..3).and_then(|d| std::str::from_utf8(d).ok());
        let code = code.and_then(|d| u8::from_str_radix(d, 8).ok());
        (rest, _) = match (first, code) {
            (b'\\', Some(c)) => (&after[3..], out.push(c)),
            _ => (after, out.push(*first)),
        };
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests;
