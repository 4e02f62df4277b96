//! Memory of the checker's own, which hugeswap leaves to the kernel: mappings of a file without a
//! name. What is private here a forked child gets a copy of; what is shared it shares.

use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::os::fd::AsRawFd;

/// Maps `len` bytes of zeros that stay mapped for good.
pub fn map(len: usize, shared: bool) -> Result<*mut u8> {
    let file = tempfile::tempfile_in("/var/tmp").context("cannot make a file in /var/tmp")?;
    file.set_len(len as u64)?;
    map_file(&file, len, shared)
}

/// Maps the beginning of `file`.
pub fn map_file(file: &File, len: usize, shared: bool) -> Result<*mut u8> {
    let kind = if shared {
        libc::MAP_SHARED
    } else {
        libc::MAP_PRIVATE
    };
    // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            kind,
            file.as_raw_fd(),
            0,
        )
    };
    ensure!(
        at != libc::MAP_FAILED,
        "cannot map {len} bytes of a file: {}",
        std::io::Error::last_os_error()
    );
    Ok(at.cast())
}
