//! Block devices: properties of an open one.

use crate::raw::call;
use crate::{Errno, Result};

/// `_IOR(0x12, 114, size_t)`
const BLKGETSIZE64: usize = 0x8008_1272;
/// `_IO(0x12, 94)`
const BLKROGET: usize = 0x125e;
/// `_IO(0x12, 104)`
const BLKSSZGET: usize = 0x1268;

/// Size of block device `fd` in bytes.
pub fn size(fd: i32) -> Result<u64> {
    let mut bytes = 0u64;
    ask(fd, BLKGETSIZE64, &mut bytes)?;
    Ok(bytes)
}

/// True if the device refuses writes.
pub fn is_read_only(fd: i32) -> Result<bool> {
    let mut answer = 0i32;
    ask(fd, BLKROGET, &mut answer)?;
    Ok(answer != 0)
}

/// Size of its logical sector in bytes, to which direct I/O must be aligned.
pub fn sector_bytes(fd: i32) -> Result<u32> {
    let mut answer = 0i32;
    ask(fd, BLKSSZGET, &mut answer)?;
    u32::try_from(answer).map_err(|_| Errno::EINVAL)
}

/// Reads a property: `T` is what request `what` writes.
fn ask<T>(fd: i32, what: usize, answer: &mut T) -> Result<()> {
    let to = std::ptr::from_mut(answer) as usize;
    // SAFETY: the kernel writes one `T` to `answer`.
    unsafe { call(libc::SYS_ioctl, [fd as usize, what, to, 0, 0, 0]) }.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn what_is_no_device_says_so() {
        let file = std::fs::File::open("/proc/self/exe").expect("our own program");
        assert_eq!(size(file.as_raw_fd()), Err(Errno::ENOTTY));
        assert_eq!(is_read_only(file.as_raw_fd()), Err(Errno::ENOTTY));
        assert_eq!(sector_bytes(-1), Err(Errno::EBADF));
    }
}
