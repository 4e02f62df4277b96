//! Files: opening, whole reads and writes at an offset, properties of file systems.

use crate::mm::{SPANS_MAX, Span};
use crate::raw::call;
use crate::{Errno, Result};
use std::ffi::CStr;

/// A part of a file, and the memory that it goes to or comes from.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Descriptor of the file.
    pub fd: i32,
    /// Address of the memory.
    pub memory: usize,
    /// Length in bytes.
    pub len: usize,
    /// Offset in the file.
    pub offset: u64,
}

impl Extent {
    /// Nothing of no file.
    pub const NONE: Extent = Extent {
        fd: -1,
        memory: 0,
        len: 0,
        offset: 0,
    };
}

/// Opens `path`. `flags` are those of open(2), with O_CLOEXEC added; `mode` is for a file that is
/// created.
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

/// Reads up to `len` bytes at `offset` by one call, which may be short. Returns how many were read;
/// 0 at the end of the file.
///
/// # Safety
/// `[buf, buf+len)` must be memory the caller may overwrite.
#[inline(never)]
pub unsafe fn read_at(fd: i32, buf: usize, len: usize, offset: u64) -> Result<usize> {
    let args = [fd as usize, buf, len, offset as usize, 0, 0];
    // SAFETY: passed on to the caller.
    unsafe { call(libc::SYS_pread64, args) }
}

/// Writes up to `len` bytes at `offset` by one call, which may be short. Returns how many were
/// written.
///
/// # Safety
/// `[buf, buf+len)` must be readable memory.
#[inline(never)]
pub unsafe fn write_at(fd: i32, buf: usize, len: usize, offset: u64) -> Result<usize> {
    let args = [fd as usize, buf, len, offset as usize, 0, 0];
    // SAFETY: passed on to the caller.
    unsafe { call(libc::SYS_pwrite64, args) }
}

/// Writes ranges of memory, at most [`SPANS_MAX`], one behind the other at `offset` by one call,
/// which may be short. Returns how many bytes were written.
///
/// # Safety
/// They must be readable memory.
#[inline(never)]
pub unsafe fn write_spans_at(fd: i32, spans: &[Span], offset: u64) -> Result<usize> {
    let (at, n) = (spans.as_ptr() as usize, spans.len().min(SPANS_MAX));
    let args = [fd as usize, at, n, offset as usize, 0, 0];
    // SAFETY: passed on to the caller; a span is laid out as an iovec, and the list is read only.
    unsafe { call(libc::SYS_pwritev, args) }
}

/// Reads exactly `len` bytes at `offset`. EIO if the file ends before: what swap holds was written
/// whole.
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

/// Reads up to `len` bytes at `offset`, until at least `enough` are read or the file ends. Returns
/// how many were read.
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

/// Calls `step`, with the number of bytes done so far, until at least `enough` bytes are
/// transferred or it does no more. Returns how many were.
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

/// Writes a message to descriptor 2 of the process by one call, and ignores failure: the last
/// message before the process ends. Works also in a thread with a descriptor table of its own that
/// has no 2.
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

/// Formats `value` in base 10 or 16 into `buf`, without allocation, and returns the digits.
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

/// Allocates blocks for `[offset, offset+len)`, and extends the file if need be.
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

/// Makes `[offset, offset+len)` of a file a hole, which leaves its length as it is. Of a memory
/// file, this frees the memory.
pub fn punch(fd: i32, offset: u64, len: u64) -> Result<()> {
    let mode = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as usize;
    let args = [fd as usize, mode, offset as usize, len as usize, 0, 0];
    // SAFETY: touches no memory of ours.
    unsafe { call(libc::SYS_fallocate, args) }.map(drop)
}

/// Like [`punch`], for a memory file, repeated while the failure is a temporary one. Fails for
/// instance if the descriptor is another file.
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

/// Operations that a seal forbids on a memory file for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seals(usize);

impl Seals {
    /// Changing its length.
    pub const LENGTH: Seals = Seals((libc::F_SEAL_SHRINK | libc::F_SEAL_GROW) as usize);
}

/// Seals a memory file.
pub fn seal(fd: i32, seals: Seals) -> Result<()> {
    let args = [fd as usize, libc::F_ADD_SEALS as usize, seals.0, 0, 0, 0];
    // SAFETY: touches no memory of ours.
    unsafe { call(libc::SYS_fcntl, args) }.map(drop)
}

/// True if the memory file has the seal.
pub fn is_sealed(fd: i32, seals: Seals) -> bool {
    let args = [fd as usize, libc::F_GET_SEALS as usize, 0, 0, 0, 0];
    // SAFETY: as above.
    unsafe { call(libc::SYS_fcntl, args) }.is_ok_and(|has| has & seals.0 == seals.0)
}

/// Removes `[offset, offset+len)` from a file: what follows moves up, and stays in place on the
/// device. Whole blocks only (EINVAL); few file systems can.
pub fn collapse(fd: i32, offset: u64, len: u64) -> Result<()> {
    let mode = libc::FALLOC_FL_COLLAPSE_RANGE as usize;
    let args = [fd as usize, mode, offset as usize, len as usize, 0, 0];
    // SAFETY: touches no memory of ours.
    unsafe { call(libc::SYS_fallocate, args) }.map(drop)
}

/// The identity of the file behind a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Identity {
    /// Number of its device.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// Type and permissions.
    pub mode: u32,
}

/// The identity of the file behind `fd`.
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

/// The length in bytes of the file behind `fd`, and its identity.
pub fn size(fd: i32) -> Result<(u64, Identity)> {
    let st = stat(fd)?;
    Ok((st.st_size.cast_unsigned(), who(&st)))
}

/// The properties of a file that decide whether it may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Its identity.
    pub identity: Identity,
    /// User id of its owner.
    pub owner: u32,
    /// Number of its names (hard links).
    pub links: u64,
    /// Length in bytes (0 for a device).
    pub bytes: u64,
    /// Bytes that it takes on its device.
    pub allocated: u64,
    /// The device that it is, if it is one.
    pub device: u64,
}

/// The properties of the file behind `fd`.
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

/// Locks a file (flock) for its open file description, which keeps the lock until all of its
/// descriptors are closed, those that forked children inherited included. EAGAIN if another has it.
/// Several can have a lock that is not exclusive. A change from one kind to the other gives the
/// lock up in between.
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

/// Gives up the lock of [`lock`], for all descriptors of the open file description.
pub fn unlock(fd: i32) {
    // SAFETY: touches no memory.
    let _ = unsafe {
        call(
            libc::SYS_flock,
            [fd as usize, libc::LOCK_UN as usize, 0, 0, 0, 0],
        )
    };
}

/// Waits until everything written to `fd` is on its device.
pub fn sync_data(fd: i32) -> Result<()> {
    loop {
        // SAFETY: touches no memory.
        match unsafe { call(libc::SYS_fdatasync, [fd as usize, 0, 0, 0, 0, 0]) } {
            Err(Errno::EINTR) => {}
            result => return result.map(drop),
        }
    }
}

/// Tells the kernel that it need not keep `[offset, offset+len)` of a file in its page cache.
pub fn forget_cached(fd: i32, offset: u64, len: u64) {
    let advice = libc::POSIX_FADV_DONTNEED as usize;
    let args = [fd as usize, offset as usize, len as usize, advice, 0, 0];
    // SAFETY: touches no memory of ours.
    let _ = unsafe { call(libc::SYS_fadvise64, args) };
}

/// Makes descriptor `to` a copy of `fd` that is closed on exec. Closes what `to` was before.
///
/// # Safety
/// `to` must be the caller's number.
pub unsafe fn dup_to(fd: i32, to: i32) -> Result<()> {
    let flags = libc::O_CLOEXEC as usize;
    // SAFETY: passed on to the caller.
    unsafe { call(libc::SYS_dup3, [fd as usize, to as usize, flags, 0, 0, 0]) }.map(drop)
}

/// Kind and free space of a file system.
#[derive(Clone, Copy, Debug)]
pub struct FileSystem {
    /// Magic number (`libc::TMPFS_MAGIC` ...).
    pub magic: u64,
    /// Free bytes for an unprivileged user.
    pub free_bytes: u64,
}

/// The file system that `fd` is on.
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

/// Duplicates `fd` to the lowest free number from `min` on, closed on exec.
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

/// True if `fd` is readable within `timeout_ms`. False also if a signal came.
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

/// In tests: an empty file without a name, in the directory for temporary files.
#[cfg(test)]
pub(crate) fn unnamed(test: &str) -> std::fs::File {
    let name = format!("hugeswap-{test}-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let mut options = std::fs::File::options();
    let file = options.read(true).write(true).create_new(true).open(&path);
    std::fs::remove_file(&path).expect("the file can be removed");
    file.expect("a file in the directory for temporary files")
}
