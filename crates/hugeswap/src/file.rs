//! Regions whose units come from a file.

use crate::range::{Backing, PAGE};
use crate::{Error, FileError, Pool, Region};
use hugeswap_engine::{FileMode, MapFileError};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::ptr::NonNull;

impl Pool {
    /// Maps `len` bytes of the file at `path` from `offset` on, a multiple of 4096. Nothing is read
    /// before it is touched, and a unit that was not changed is dropped without a write when its
    /// memory is wanted. So the file may be larger than budget and swap: it takes no swap and, until
    /// touched, no memory.
    ///
    /// * [`FileMode::ReadOnly`]: a write is SIGSEGV.
    /// * [`FileMode::WriteBack`]: what is written to the region goes to the file: in the background
    ///   when its memory is wanted, on [`Region::sync`], and when the region is dropped. Only `sync`
    ///   reports errors, so call it before dropping. A process that ends without dropping the region
    ///   (`std::process::exit`, a signal) leaves in the file what was written back until then.
    ///
    /// The range may reach to the end of the file's last page. Bytes beyond the end of the file read
    /// as zeros and are not written: the length of the file never changes. If the file is made
    /// shorter while it is mapped, reading what is beyond its end is SIGBUS, as with mmap.
    ///
    /// What is in memory is this process's own copy. What other processes write to the file is seen
    /// when it is read the next time ([`Region::discard`] causes that). A file that others write to
    /// must not be looked at through [`Region::as_slice`], since a slice never changes, but through
    /// [`ManagedRange::as_ptr`](crate::ManagedRange::as_ptr). A forked child finds what the file has,
    /// which includes what the parent had written before the fork, and may not write (SIGSEGV).
    ///
    /// ```no_run
    /// use hugeswap::{FileMode, Pool};
    /// let pool = Pool::builder().memory(64 << 20).build()?;
    /// let len = 4 << 30;
    /// let mut table = pool.map_file("table.bin", 0, len, FileMode::WriteBack)?;
    /// table.as_mut_slice()[12345] = 1;
    /// table.sync()?;
    /// # Ok::<(), hugeswap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::File`] with the cause ([`FileError`]).
    pub fn map_file(
        &self,
        path: impl AsRef<Path>,
        offset: u64,
        len: usize,
        mode: FileMode,
    ) -> Result<Region, Error> {
        let path = path.as_ref();
        let fail = |cause| Error::File {
            path: path.to_owned(),
            cause,
        };
        if !offset.is_multiple_of(PAGE as u64) {
            return Err(fail(FileError::Unaligned { offset }));
        }
        if len == 0 {
            return Err(fail(FileError::Empty));
        }
        let file = open(path, mode).map_err(&fail)?;
        let meta = file.metadata().map_err(|e| fail(FileError::Open(e)))?;
        let size = meta.len();
        let end = offset.checked_add(len as u64);
        if end.is_none_or(|end| end > size.next_multiple_of(PAGE as u64)) {
            return Err(fail(FileError::Outside { offset, len, size }));
        }
        let engine = self.inner.engine;
        let addr = engine.map_file(file.as_raw_fd(), offset, len, mode);
        let addr = addr.map_err(|cause| fail(cause.into()))?;
        let addr = NonNull::new(addr as *mut u8);
        let addr = addr.ok_or_else(|| fail(MapFileError::NoAddresses.into()))?;
        Ok(Region::of_file(self.clone(), addr, len, mode))
    }
}

/// Opens a regular file, and nothing else: to open a device or a fifo may have effects.
fn open(path: &Path, mode: FileMode) -> Result<File, FileError> {
    let meta = std::fs::metadata(path).map_err(FileError::Open)?;
    let kind = meta.file_type();
    let kind = match () {
        () if kind.is_file() => None,
        () if kind.is_dir() => Some("a directory"),
        () if kind.is_fifo() => Some("a fifo"),
        () if kind.is_socket() => Some("a socket"),
        () => Some("a device"),
    };
    if let Some(kind) = kind {
        return Err(FileError::NotRegular { kind });
    }
    let mut options = OpenOptions::new();
    options.read(true).write(mode == FileMode::WriteBack);
    let file = options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    file.open(path).map_err(|e| match e.raw_os_error() {
        Some(libc::EACCES | libc::EPERM | libc::EROFS) if mode == FileMode::WriteBack => {
            FileError::NotWritable(e)
        }
        _ => FileError::Open(e),
    })
}

impl Region {
    /// False for the region of a file that is mapped [`FileMode::ReadOnly`], true for every other.
    pub fn is_writable(&self) -> bool {
        self.backing != Backing::File(FileMode::ReadOnly)
    }

    /// Writes what was changed of a file's region to the file, and waits until it is on the device.
    /// Other threads may write meanwhile; what they write may be in it or not. Does nothing for a
    /// region without a file, or one that may only be read.
    ///
    /// # Errors
    /// [`Error::Sync`]. What could not be written is still in memory and is written by the next call.
    /// (If the device failed after it had taken the bytes, which the kernel reports once and not for
    /// which bytes, they are written again only if they are changed again.)
    pub fn sync(&self) -> Result<(), Error> {
        if self.backing != Backing::File(FileMode::WriteBack) {
            return Ok(());
        }
        let at = self.as_ptr() as usize;
        let result = self.pool.inner.engine.sync_file(at, self.len());
        result.map_err(|e| Error::Sync(e.into()))
    }
}
