//! Files: opening, whole reads and writes at an offset, what a file system is.

use crate::raw::call;
use crate::{Errno, Result};
use std::ffi::CStr;

/// Opens `path`; `flags` as in open(2) (O_CLOEXEC is added), `mode` for what is created.
pub fn open(path: &CStr, flags: i32, mode: u32) -> Result<i32> {
    let flags = flags | libc::O_CLOEXEC;
    // SAFETY: `path` is NUL-terminated.
    unsafe {
        call(
            libc::SYS_openat,
            [
                libc::AT_FDCWD as usize,
                path.as_ptr() as usize,
                flags as usize,
                mode as usize,
                0,
                0,
            ],
        )
    }
    .map(|fd| fd as i32)
}

/// Closes a descriptor.
pub fn close(fd: i32) {
    // SAFETY: closing a number touches no memory; the caller owns it.
    let _ = unsafe { call(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
}

/// Reads up to `len` bytes at `offset`: one call, which may be short. How many were read; 0 is the end of the file.
///
/// # Safety
/// `[buf, buf+len)` must be memory the caller may overwrite.
#[inline(never)]
pub unsafe fn read_at(fd: i32, buf: usize, len: usize, offset: u64) -> Result<usize> {
    let args = [fd as usize, buf, len, offset as usize, 0, 0];
    // SAFETY: passed on to the caller.
    unsafe { call(libc::SYS_pread64, args) }
}

/// Writes up to `len` bytes at `offset`: one call, which may be short. How many were written.
///
/// # Safety
/// `[buf, buf+len)` must be readable memory.
#[inline(never)]
pub unsafe fn write_at(fd: i32, buf: usize, len: usize, offset: u64) -> Result<usize> {
    let args = [fd as usize, buf, len, offset as usize, 0, 0];
    // SAFETY: passed on to the caller.
    unsafe { call(libc::SYS_pwrite64, args) }
}

/// Reads exactly `len` bytes at `offset`. A short file is EIO: what swap holds was written whole.
///
/// # Safety
/// `[buf, buf+len)` must be memory the caller may overwrite.
pub unsafe fn read_exact_at(fd: i32, buf: usize, len: usize, offset: u64) -> Result<()> {
    // SAFETY: passed on to the caller.
    let done = unsafe { read_until(fd, buf, len, len, offset) }?;
    if done == len { Ok(()) } else { Err(Errno::EIO) }
}

/// Writes exactly `len` bytes at `offset`.
///
/// # Safety
/// `[buf, buf+len)` must be readable memory.
pub unsafe fn write_all_at(fd: i32, buf: usize, len: usize, offset: u64) -> Result<()> {
    let done = repeat(len, |done| {
        // SAFETY: passed on to the caller, of whose buffer it is a part.
        unsafe { write_at(fd, buf + done, len - done, offset + done as u64) }
    })?;
    if done == len { Ok(()) } else { Err(Errno::EIO) }
}

/// Reads up to `len` bytes at `offset`, until at least `enough` are there or the file ends. How many were read.
///
/// # Safety
/// `[buf, buf+len)` must be memory the caller may overwrite.
pub unsafe fn read_until(
    fd: i32,
    buf: usize,
    len: usize,
    enough: usize,
    offset: u64,
) -> Result<usize> {
    repeat(enough.min(len), |done| {
        // SAFETY: passed on to the caller, of whose buffer it is a part.
        unsafe { read_at(fd, buf + done, len - done, offset + done as u64) }
    })
}

/// Has `step`, which is told how much was done so far, transfer at least `enough` bytes, however little it does at a time; fewer only
/// if it does nothing any more. How many it did.
pub fn repeat(enough: usize, mut step: impl FnMut(usize) -> Result<usize>) -> Result<usize> {
    let mut done = 0;
    while done < enough {
        match step(done) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(Errno::EINTR | Errno::EAGAIN) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// Writes a message to the process's descriptor 2 as one call, ignoring failure: the last thing said before the
/// end. Also from a thread with a descriptor table of its own that has no 2.
pub fn complain(parts: &[&[u8]]) {
    let mut line = [0u8; 512];
    let mut n = 0;
    for p in parts {
        let take = p.len().min(line.len() - n);
        line[n..n + take].copy_from_slice(&p[..take]);
        n += take;
    }
    // SAFETY: `line[..n]` is initialised memory.
    let say =
        |fd: usize| unsafe { call(libc::SYS_write, [fd, line.as_ptr() as usize, n, 0, 0, 0]) };
    if say(2) == Err(Errno::EBADF) {
        let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_NOCTTY;
        if let Ok(fd) = open(c"/proc/self/fd/2", flags, 0) {
            let _ = say(fd as usize);
            close(fd);
        }
    }
}

/// Formats `value` in base 10 or 16 into `buf`, without allocation; the digits are the returned slice.
pub fn digits(mut value: u64, base: u64, buf: &mut [u8; 20]) -> &[u8] {
    let mut i = buf.len();
    loop {
        i -= 1;
        buf[i] = b"0123456789abcdef"[(value % base) as usize];
        value /= base;
        if value == 0 {
            return &buf[i..];
        }
    }
}

/// Sets the size of a file.
pub fn truncate(fd: i32, len: u64) -> Result<()> {
    // SAFETY: touches no memory of ours.
    unsafe { call(libc::SYS_ftruncate, [fd as usize, len as usize, 0, 0, 0, 0]) }.map(drop)
}

/// Reserves blocks for `[offset, offset+len)`, extending the file.
pub fn allocate(fd: i32, offset: u64, len: u64) -> Result<()> {
    // SAFETY: touches no memory of ours.
    unsafe {
        call(
            libc::SYS_fallocate,
            [fd as usize, 0, offset as usize, len as usize, 0, 0],
        )
    }
    .map(drop)
}

/// Makes a hole of `[offset, offset+len)` of a file, which stays as long as it is; of a memory file its memory is free.
pub fn punch(fd: i32, offset: u64, len: u64) -> Result<()> {
    let mode = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as usize;
    let args = [fd as usize, mode, offset as usize, len as usize, 0, 0];
    // SAFETY: touches no memory of ours.
    unsafe { call(libc::SYS_fallocate, args) }.map(drop)
}

/// [`punch`] of a memory file, as often as it takes within reason: nothing that can be waited for keeps it from being done. Fails where
/// the descriptor is not the file, say.
pub fn punch_at_last(fd: i32, offset: u64, len: u64) -> Result<()> {
    const TRIES: u32 = 64;
    let mut tries = 0;
    loop {
        match punch(fd, offset, len) {
            Err(e) if e != Errno::EBADF && tries < TRIES => tries += 1,
            done => return done,
        }
        crate::process::yield_now();
    }
}

/// What may never be done to a memory file any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seals(usize);

impl Seals {
    /// Being made shorter or longer.
    pub const LENGTH: Seals = Seals((libc::F_SEAL_SHRINK | libc::F_SEAL_GROW) as usize);
}

/// Seals a memory file.
pub fn seal(fd: i32, seals: Seals) -> Result<()> {
    let args = [fd as usize, libc::F_ADD_SEALS as usize, seals.0, 0, 0, 0];
    // SAFETY: touches no memory of ours.
    unsafe { call(libc::SYS_fcntl, args) }.map(drop)
}

/// Is it sealed so?
pub fn is_sealed(fd: i32, seals: Seals) -> bool {
    let args = [fd as usize, libc::F_GET_SEALS as usize, 0, 0, 0, 0];
    // SAFETY: as above.
    unsafe { call(libc::SYS_fcntl, args) }.is_ok_and(|has| has & seals.0 == seals.0)
}

/// Takes `[offset, offset+len)` out of a file: what lies behind moves up, and stays where it is on the device. Whole
/// blocks only (EINVAL); few file systems can.
pub fn collapse(fd: i32, offset: u64, len: u64) -> Result<()> {
    let mode = libc::FALLOC_FL_COLLAPSE_RANGE as usize;
    let args = [fd as usize, mode, offset as usize, len as usize, 0, 0];
    // SAFETY: touches no memory of ours.
    unsafe { call(libc::SYS_fallocate, args) }.map(drop)
}

/// Device, inode and mode of a descriptor: who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Identity {
    /// Device number.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// Type and permissions.
    pub mode: u32,
}

/// Who `fd` is.
pub fn identity(fd: i32) -> Result<Identity> {
    stat(fd).map(|st| who(&st))
}

fn who(st: &libc::stat) -> Identity {
    Identity {
        dev: st.st_dev,
        ino: st.st_ino,
        mode: st.st_mode,
    }
}

fn stat(fd: i32) -> Result<libc::stat> {
    // SAFETY: an all-zero stat is a valid value to be overwritten.
    let mut st: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `st` is a writable stat.
    unsafe {
        call(
            libc::SYS_fstat,
            [fd as usize, &mut st as *mut _ as usize, 0, 0, 0, 0],
        )
    }?;
    Ok(st)
}

/// Length of the file `fd` is, bytes, and who it is.
pub fn size(fd: i32) -> Result<(u64, Identity)> {
    let st = stat(fd)?;
    Ok((st.st_size.cast_unsigned(), who(&st)))
}

/// What a file is, as far as that decides whether it may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Who it is.
    pub identity: Identity,
    /// Its owner.
    pub owner: u32,
    /// Names it has.
    pub links: u64,
    /// Its length, bytes (0 of a device).
    pub bytes: u64,
    /// Bytes of its device that it takes.
    pub allocated: u64,
    /// Which device it is, if it is one.
    pub device: u64,
}

/// What `fd` is.
pub fn status(fd: i32) -> Result<Status> {
    stat(fd).map(|st| Status {
        identity: who(&st),
        owner: st.st_uid,
        links: st.st_nlink,
        bytes: st.st_size.cast_unsigned(),
        allocated: st.st_blocks.cast_unsigned() * 512,
        device: st.st_rdev,
    })
}

/// Locks a file (flock) for this open file description, which keeps the lock until all of its descriptors, those
/// inherited by forked children too, are closed; EAGAIN if somebody else has it. A lock that is not exclusive can be
/// had by several. Changing from one kind to the other gives the lock up in between.
pub fn lock(fd: i32, exclusive: bool) -> Result<()> {
    let kind = if exclusive {
        libc::LOCK_EX
    } else {
        libc::LOCK_SH
    };
    let how = (kind | libc::LOCK_NB) as usize;
    // SAFETY: touches no memory.
    unsafe { call(libc::SYS_flock, [fd as usize, how, 0, 0, 0, 0]) }.map(drop)
}

/// Gives up what [`lock`] locked, for all descriptors of this open file description.
pub fn unlock(fd: i32) {
    // SAFETY: touches no memory.
    let _ = unsafe {
        call(
            libc::SYS_flock,
            [fd as usize, libc::LOCK_UN as usize, 0, 0, 0, 0],
        )
    };
}

/// Waits until what was written to `fd` is on its device.
pub fn sync_data(fd: i32) -> Result<()> {
    loop {
        // SAFETY: touches no memory.
        match unsafe { call(libc::SYS_fdatasync, [fd as usize, 0, 0, 0, 0, 0]) } {
            Err(Errno::EINTR) => {}
            result => return result.map(drop),
        }
    }
}

/// The kernel need not keep `[offset, offset+len)` of a file in its page cache.
pub fn forget_cached(fd: i32, offset: u64, len: u64) {
    let advice = libc::POSIX_FADV_DONTNEED as usize;
    let args = [fd as usize, offset as usize, len as usize, advice, 0, 0];
    // SAFETY: touches no memory of ours.
    let _ = unsafe { call(libc::SYS_fadvise64, args) };
}

/// Makes `to` the same as `fd`, closed on exec; what it was is closed.
///
/// # Safety
/// `to` must be the caller's number.
pub unsafe fn dup_to(fd: i32, to: i32) -> Result<()> {
    let flags = libc::O_CLOEXEC as usize;
    // SAFETY: passed on to the caller.
    unsafe { call(libc::SYS_dup3, [fd as usize, to as usize, flags, 0, 0, 0]) }.map(drop)
}

/// What the file system of `fd` is and how much of it is free.
#[derive(Clone, Copy, Debug)]
pub struct FileSystem {
    /// Magic number (`libc::TMPFS_MAGIC` ...).
    pub magic: u64,
    /// Bytes an unprivileged user may still take.
    pub free_bytes: u64,
}

/// The file system `fd` is on.
pub fn file_system(fd: i32) -> Result<FileSystem> {
    // SAFETY: an all-zero statfs is a valid value to be overwritten.
    let mut st: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `st` is a writable statfs.
    unsafe {
        call(
            libc::SYS_fstatfs,
            [fd as usize, &mut st as *mut _ as usize, 0, 0, 0, 0],
        )
    }?;
    Ok(FileSystem {
        magic: st.f_type as u64,
        free_bytes: st.f_bavail.saturating_mul(st.f_bsize as u64),
    })
}

/// Duplicates `fd` to the lowest free number at or above `min`, closed on exec.
pub fn dup_above(fd: i32, min: i32) -> Result<i32> {
    // SAFETY: touches no memory of ours.
    unsafe {
        call(
            libc::SYS_fcntl,
            [
                fd as usize,
                libc::F_DUPFD_CLOEXEC as usize,
                min as usize,
                0,
                0,
                0,
            ],
        )
    }
    .map(|fd| fd as i32)
}

/// The entries of a directory whose names are numbers.
pub fn numbers_in(path: &CStr) -> Result<Vec<i32>> {
    let dir = open(path, libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
    let mut found = Vec::new();
    let mut room = [0u64; 512];
    let end = loop {
        let args = [
            dir as usize,
            room.as_mut_ptr() as usize,
            size_of_val(&room),
            0,
            0,
            0,
        ];
        // SAFETY: writes to `room`, of that size.
        let len = match unsafe { call(libc::SYS_getdents64, args) } {
            Ok(0) => break Ok(()),
            Ok(len) => len,
            Err(e) => break Err(e),
        };
        // SAFETY: the kernel wrote that many bytes.
        let mut entries = unsafe { std::slice::from_raw_parts(room.as_ptr().cast::<u8>(), len) };
        // An entry: inode, offset (8 bytes each), its own length (2), a type (1), a name with NUL.
        while !entries.is_empty() {
            let whole = usize::from(u16::from_ne_bytes([entries[16], entries[17]]));
            let (entry, rest) = entries.split_at(whole);
            let name = entry[19..].split(|&b| b == 0).next().unwrap_or_default();
            let number = std::str::from_utf8(name).ok().and_then(|n| n.parse().ok());
            found.extend::<Option<i32>>(number);
            entries = rest;
        }
    };
    close(dir);
    end.map(|()| found)
}

/// Is `fd` readable within `timeout_ms`? Not if a signal came.
pub fn wait_readable(fd: i32, timeout_ms: u64) -> bool {
    let mut p = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let limit = libc::timespec {
        tv_sec: (timeout_ms / 1000) as i64,
        tv_nsec: (timeout_ms % 1000 * 1_000_000) as i64,
    };
    let args = [&raw mut p as usize, 1, &raw const limit as usize, 0, 8, 0];
    // SAFETY: one pollfd and a time limit, both ours.
    unsafe { call(libc::SYS_ppoll, args) }.is_ok_and(|n| n > 0)
}
