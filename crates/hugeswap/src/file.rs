//! Regions whose units come from a file.

use crate::{Error, Pool, Region};
use hugeswap_engine::FileMode;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::ptr::NonNull;

const PAGE: u64 = 4096;

impl Pool {
    /// A region of `len` bytes that holds what the file at `path` has from `offset` (a multiple of 4096) on. Nothing is read before it is touched, and a unit
    /// that has not been changed is dropped without a write when its memory is wanted, so a file may be as large as it likes: it takes
    /// neither swap nor, until touched, memory.
    ///
    /// * [`FileMode::ReadOnly`]: a write is SIGSEGV.
    /// * [`FileMode::WriteBack`]: what is written to the region goes to the file, in the background when its memory is wanted, on
    ///   [`Region::sync`], and when the region is dropped. What goes wrong is told by `sync` alone, so call it first. A process that ends without
    ///   dropping the region (`std::process::exit`, a signal) leaves in the file what was written back until then.
    ///
    /// The region may reach to the end of the file's last page. Bytes beyond the end of the file read as zeros, and are not
    /// written: the length of the file never changes. Where the file is made shorter while it is mapped, reading
    /// what is beyond its end is SIGBUS, as with mmap.
    ///
    /// What is in memory is this process's own copy. What others write to the file is seen when it comes in the next time
    /// ([`Advice::DontNeed`](crate::Advice::DontNeed) sees to that); a file that others write to must not be looked at through
    /// [`Region::as_slice`], for such a slice never changes, but through [`Region::as_ptr`]. A forked child finds what the file has, which
    /// includes what the parent had written before the fork, and may not write to it (SIGSEGV).
    ///
    /// Errors say what to do about it: `offset` is not a multiple of 4096, the range is empty or not within the file, it is not a regular file, or it
    /// cannot be opened as `mode` needs.
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
    pub fn map_file(
        &self,
        path: impl AsRef<Path>,
        offset: u64,
        len: usize,
        mode: FileMode,
    ) -> Result<Region, Error> {
        let path = path.as_ref();
        let fail = |what: String| Error::File {
            path: path.to_owned(),
            what,
        };
        if !offset.is_multiple_of(PAGE) {
            return Err(fail(format!(
                "offset {offset} is not a multiple of {PAGE}: begin at {}",
                offset - offset % PAGE
            )));
        }
        if len == 0 {
            return Err(fail("0 bytes cannot be mapped: give a length".into()));
        }
        let file = open(path, mode).map_err(&fail)?;
        let size = file.metadata().map_err(|e| fail(e.to_string()))?.len();
        let end = offset.checked_add(len as u64);
        if end.is_none_or(|end| end > size.next_multiple_of(PAGE)) {
            return Err(fail(format!(
                "{offset}..+{len} is not within the file of {size} bytes: map less, or make the file longer first"
            )));
        }
        let engine = self.inner.engine;
        let addr = engine
            .map_file(file.as_raw_fd(), offset, len, mode)
            .map_err(|e| match e.0 {
                libc::ENOMEM => fail("no addresses are left: see Builder::address_space".into()),
                libc::ENFILE => {
                    fail("too many files are mapped: drop some of their regions".into())
                }
                _ => fail(std::io::Error::from(e).to_string()),
            })?;
        let addr = NonNull::new(addr as *mut u8).ok_or(Error::TooLarge(len))?;
        Ok(Region::of_file(self.clone(), addr, len, mode))
    }
}

/// Opens a regular file, and nothing else: to open a device or a fifo may do something.
fn open(path: &Path, mode: FileMode) -> Result<File, String> {
    let meta = std::fs::metadata(path).map_err(|e| e.to_string())?;
    let kind = meta.file_type();
    let what = match () {
        () if kind.is_file() => None,
        () if kind.is_dir() => Some("a directory"),
        () if kind.is_fifo() => Some("a fifo"),
        () if kind.is_socket() => Some("a socket"),
        () => Some("a device"),
    };
    if let Some(what) = what {
        return Err(format!("it is {what}: only regular files can be mapped"));
    }
    let mut options = OpenOptions::new();
    options.read(true).write(mode == FileMode::WriteBack);
    let file = options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    file.open(path).map_err(|e| match e.raw_os_error() {
        Some(libc::EACCES | libc::EPERM | libc::EROFS) if mode == FileMode::WriteBack => {
            format!("{e}: it may not be written, map it FileMode::ReadOnly")
        }
        _ => e.to_string(),
    })
}

impl Region {
    /// May the region be written? Only one of a file that is mapped [`FileMode::ReadOnly`] may not.
    pub fn is_writable(&self) -> bool {
        self.file != Some(FileMode::ReadOnly)
    }

    /// Writes what was changed of a region of a file to the file, and waits until it is on the device. On an error it may be called again:
    /// what could not be written is still in memory, and still to be written. (If the device failed only after it had taken the bytes, which the kernel
    /// tells once and not of which bytes, they are written again only if they are changed again.) What other
    /// threads write meanwhile may be in it or not.
    ///
    /// Does nothing for a region without a file, or one that may only be read.
    pub fn sync(&self) -> Result<(), Error> {
        if self.file != Some(FileMode::WriteBack) {
            return Ok(());
        }
        let at = self.as_ptr() as usize;
        let result = self.pool.inner.engine.sync_file(at, self.len());
        result.map_err(|e| Error::Sync(e.into()))
    }
}
