//! userfaultfd: registration, moving, write protection, events.
//!
//! Numbers are computed as in `linux/userfaultfd.h`; a test compares them with known values.

use crate::raw::call;
use crate::{Errno, Result};

const fn iowr(nr: usize, size: usize) -> usize {
    (3 << 30) | (size << 16) | (0xAA << 8) | nr
}
const fn ior(nr: usize, size: usize) -> usize {
    (2 << 30) | (size << 16) | (0xAA << 8) | nr
}

const UFFDIO_API: usize = iowr(0x3f, 24);
const UFFDIO_REGISTER: usize = iowr(0x00, 32);
const UFFDIO_UNREGISTER: usize = ior(0x01, 16);
const UFFDIO_WAKE: usize = ior(0x02, 16);
const UFFDIO_COPY: usize = iowr(0x03, 40);
const UFFDIO_ZEROPAGE: usize = iowr(0x04, 32);
const UFFDIO_MOVE: usize = iowr(0x05, 40);
const UFFDIO_WRITEPROTECT: usize = iowr(0x06, 24);
const UFFDIO_POISON: usize = iowr(0x08, 32);

/// Only faults of user mode, as an unprivileged user may ask for.
pub const USER_MODE_ONLY: usize = 1;
/// Feature bits of UFFDIO_API.
pub mod feature {
    /// Write-protect faults are reported.
    pub const PAGEFAULT_FLAG_WP: u64 = 1 << 0;
    /// A fault raises SIGBUS in the thread instead of being reported.
    pub const SIGBUS: u64 = 1 << 7;
    /// The exact address of a fault is reported.
    pub const EXACT_ADDRESS: u64 = 1 << 11;
    /// The faulting thread is reported.
    pub const THREAD_ID: u64 = 1 << 8;
    /// Pages of memory files can be write-protected.
    pub const WP_SHMEM: u64 = 1 << 12;
    /// UFFDIO_MOVE is available.
    pub const MOVE: u64 = 1 << 16;
}
/// Registration modes.
pub mod mode {
    /// Faults on missing pages.
    pub const MISSING: u64 = 1;
    /// Faults on write-protected pages.
    pub const WP: u64 = 2;
}

/// Kind of an event: a page fault.
pub const EVENT_PAGEFAULT: u8 = 0x12;
/// The access was a write.
pub const FLAG_WRITE: u64 = 1;
/// The access met a write protection.
pub const FLAG_WP: u64 = 2;

/// One message, as read from the descriptor.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Message {
    /// Kind of the event.
    pub event: u8,
    _r1: u8,
    _r2: u16,
    _r3: u32,
    /// For a page fault: [`FLAG_WRITE`], [`FLAG_WP`].
    pub flags: u64,
    /// For a page fault: the address.
    pub address: u64,
    thread: u64,
}

impl Message {
    /// For a page fault with [`feature::THREAD_ID`]: the thread that waits.
    pub fn thread(&self) -> i32 {
        self.thread as i32
    }
}

/// Opens a userfaultfd and agrees on the API. `flags` is 0 (faults of kernel mode too; privileged)
/// or [`USER_MODE_ONLY`]. Returns the descriptor and the kernel's features.
pub fn open(flags: usize, features: u64) -> Result<(i32, u64)> {
    // SAFETY: no memory involved.
    let fd = unsafe {
        call(
            libc::SYS_userfaultfd,
            [libc::O_CLOEXEC as usize | flags, 0, 0, 0, 0, 0],
        )
    }? as i32;
    let mut api = [0xAAu64, features, 0];
    // SAFETY: `api` is a uffdio_api.
    match unsafe { ioctl(fd, UFFDIO_API, api.as_mut_ptr() as usize) } {
        Ok(_) => Ok((fd, api[1])),
        Err(e) => {
            crate::fs::close(fd);
            Err(e)
        }
    }
}

unsafe fn ioctl(fd: i32, request: usize, arg: usize) -> Result<usize> {
    // SAFETY: passed on to the caller.
    unsafe { call(libc::SYS_ioctl, [fd as usize, request, arg, 0, 0, 0]) }
}

/// Registers a range.
pub fn register(fd: i32, start: usize, len: usize, mode: u64) -> Result<()> {
    let mut r = [start as u64, len as u64, mode, 0];
    // SAFETY: `r` is a uffdio_register.
    unsafe { ioctl(fd, UFFDIO_REGISTER, r.as_mut_ptr() as usize) }.map(drop)
}

/// Unregisters a range.
pub fn unregister(fd: i32, start: usize, len: usize) -> Result<()> {
    let mut r = [start as u64, len as u64];
    // SAFETY: `r` is a uffdio_range.
    unsafe { ioctl(fd, UFFDIO_UNREGISTER, r.as_mut_ptr() as usize) }.map(drop)
}

/// Lets the threads that wait in a range try again.
pub fn wake(fd: i32, start: usize, len: usize) -> Result<()> {
    let mut r = [start as u64, len as u64];
    // SAFETY: `r` is a uffdio_range.
    unsafe { ioctl(fd, UFFDIO_WAKE, r.as_mut_ptr() as usize) }.map(drop)
}

/// The result of a MOVE.
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    /// The kernel's `move` field: bytes moved, or a negative error number.
    pub moved: i64,
    /// The error of the call, if any. On EEXIST the pages must be checked: Linux 6.18 can report it
    /// after it moved everything.
    pub error: Option<Errno>,
}

/// Moves the pages of `[src, src+len)` to `dst` (registered with `fd`). Threads that wait there go
/// on waiting until [`wake`].
///
/// # Safety
/// Both ranges must be private anonymous memory of the caller's to give.
pub unsafe fn move_pages(fd: i32, dst: usize, src: usize, len: usize) -> Moved {
    const DONTWAKE: u64 = 1;
    let mut m = [dst as u64, src as u64, len as u64, DONTWAKE, 0];
    // SAFETY: `m` is a uffdio_move; ranges are the caller's.
    let error = unsafe { ioctl(fd, UFFDIO_MOVE, m.as_mut_ptr() as usize) }.err();
    Moved {
        moved: m[4] as i64,
        error,
    }
}

/// Counts calls in a row that returned EAGAIN and did nothing.
#[derive(Default)]
struct Again(u32);

impl Again {
    /// Number of such calls after which the caller gets EAGAIN. The kernel returns it while another
    /// thread changes the address space.
    const MOST: u32 = 1_000_000;
    /// Number of such calls after which the processor is yielded between two calls.
    const SPINS: u32 = 100;

    /// Counts a call that returned EAGAIN after `bytes`, which are added to `done`.
    fn after(&mut self, bytes: usize, done: &mut usize) -> Result<()> {
        *done += bytes;
        self.0 = if bytes > 0 { 0 } else { self.0 + 1 };
        if self.0 == Self::MOST {
            return Err(Errno::EAGAIN);
        }
        if self.0 > Self::SPINS {
            crate::process::yield_now();
        }
        Ok(())
    }
}

/// Fills absent pages from `src`, write-protected if `protect`. Threads that wait there go on
/// waiting until [`wake`]. EEXIST if there is a page already.
pub fn copy(fd: i32, dst: usize, src: usize, len: usize, protect: bool) -> Result<()> {
    const DONTWAKE: u64 = 1;
    const PROTECT: u64 = 2;
    let mode = if protect {
        DONTWAKE | PROTECT
    } else {
        DONTWAKE
    };
    let (mut done, mut again) = (0, Again::default());
    while done < len {
        let (at, from, left) = (
            (dst + done) as u64,
            (src + done) as u64,
            (len - done) as u64,
        );
        let mut c = [at, from, left, mode, 0];
        // SAFETY: `c` is a uffdio_copy; only absent pages are filled.
        match unsafe { ioctl(fd, UFFDIO_COPY, c.as_mut_ptr() as usize) } {
            Ok(_) => return Ok(()),
            Err(Errno::EAGAIN) => again.after((c[4] as i64).max(0) as usize, &mut done)?,
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Fills absent pages with zeros. Threads that wait there go on waiting until [`wake`]. EEXIST if
/// there is a page already; those before it are filled.
pub fn zero(fd: i32, dst: usize, len: usize) -> Result<()> {
    const DONTWAKE: u64 = 1;
    let (mut done, mut again) = (0, Again::default());
    while done < len {
        let mut z = [(dst + done) as u64, (len - done) as u64, DONTWAKE, 0];
        // SAFETY: `z` is a uffdio_zeropage; only absent pages are filled.
        match unsafe { ioctl(fd, UFFDIO_ZEROPAGE, z.as_mut_ptr() as usize) } {
            Ok(_) => return Ok(()),
            Err(Errno::EAGAIN) => again.after((z[3] as i64).max(0) as usize, &mut done)?,
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Write-protects a range, or makes it writable again. Threads that wait there go on waiting until
/// [`wake`].
pub fn write_protect(fd: i32, start: usize, len: usize, protect: bool) -> Result<()> {
    const PROTECT: u64 = 1;
    const DONTWAKE: u64 = 2;
    let mut again = Again::default();
    loop {
        let mode = if protect { PROTECT } else { DONTWAKE };
        let mut w = [start as u64, len as u64, mode];
        // SAFETY: `w` is a uffdio_writeprotect.
        match unsafe { ioctl(fd, UFFDIO_WRITEPROTECT, w.as_mut_ptr() as usize) } {
            Ok(_) => return Ok(()),
            Err(Errno::EAGAIN) => again.after(0, &mut 0)?,
            Err(e) => return Err(e),
        }
    }
}

/// Poisons a range: touching its absent pages raises SIGBUS.
pub fn poison(fd: i32, start: usize, len: usize) -> Result<()> {
    let mut p = [start as u64, len as u64, 0, 0];
    // SAFETY: `p` is a uffdio_poison.
    unsafe { ioctl(fd, UFFDIO_POISON, p.as_mut_ptr() as usize) }.map(drop)
}

/// Reads events, and returns how many. Blocks until there is one, unless the descriptor does not.
pub fn read(fd: i32, out: &mut [Message]) -> Result<usize> {
    // SAFETY: the kernel writes whole messages into `out`.
    let n = unsafe {
        call(
            libc::SYS_read,
            [
                fd as usize,
                out.as_mut_ptr() as usize,
                std::mem::size_of_val(out),
                0,
                0,
                0,
            ],
        )
    }?;
    Ok(n / size_of::<Message>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_match_the_headers() {
        assert_eq!(UFFDIO_API, 0xc018_aa3f);
        assert_eq!(UFFDIO_REGISTER, 0xc020_aa00);
        assert_eq!(UFFDIO_UNREGISTER, 0x8010_aa01);
        assert_eq!(UFFDIO_WAKE, 0x8010_aa02);
        assert_eq!(UFFDIO_ZEROPAGE, 0xc020_aa04);
        assert_eq!(UFFDIO_MOVE, 0xc028_aa05);
        assert_eq!(UFFDIO_WRITEPROTECT, 0xc018_aa06);
        assert_eq!(size_of::<Message>(), 32);
    }
}
