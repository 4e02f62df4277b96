//! Memory files of programs. A file that memfd_create or shm_open makes can become a shared region
//! of the pool; the file then only stands for the region.
//!
//! When the program gives such a file its length, and the length is large enough, a region of that
//! length is made. The file becomes a *stand-in*, which has no bytes at all:
//! * A file of memfd_create is sealed while it is empty, so that no descriptor of it anywhere can
//!   write to it, make it longer, or map it writable.
//! * A file of shm_open is replaced in /dev/shm by a symbolic link that leads nowhere. A program
//!   that opens the name other than by our shm_open gets an error.
//! * The program's descriptor is replaced by one of the stand-in (O_PATH). Any use of it that is
//!   not served here fails with EBADF, in every process and program that comes to have it, with
//!   hugeswap or without.
//!
//! So no program ever reads zeros for bytes that are in swap. Mappings ([`crate::views`]), the
//! length (fstat, statx, ftruncate to the same length), and shm_open of the name are served. The
//! device, inode and time of a stand-in tell any process that has it which region it stands for.
//!
//! A file stays the kernel's for good if it is made longer in another way, if it is small, or if a
//! file of shm_open may have another user before it has its length.

mod made;
mod told;

pub use made::{after_fork, before_fork, descriptors_leave, is_any_expected, mapped};

use crate::real::{self, set_errno};
use crate::{shared, state, views};
use hugeswap_engine::Engine;
use hugeswap_engine::pool::shared::{FileKey, LINKS};
use hugeswap_engine::shared::SharedError;
use hugeswap_policy::knobs::Knob;
use hugeswap_sys::raw::{self, syscall6};
use hugeswap_sys::{Result, fs, process};
use libc::{c_char, c_int, c_uint, c_void, off_t};
use made::{Candidate, keep_out, note, take};
use std::ffi::{CStr, CString};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};

const PAGE: usize = 4096;
const SHM: &[u8] = b"/dev/shm/";
const SEALS: c_int =
    libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE;

static SERIAL: AtomicU32 = AtomicU32::new(0);
/// Was a refused use reported already? Only the first one is.
static SAID: AtomicBool = AtomicBool::new(false);

fn failed(e: c_int) -> c_int {
    set_errno(e);
    -1
}

fn stat(fd: c_int) -> Option<libc::stat> {
    // SAFETY: all zeros is a valid stat to be overwritten.
    let mut st: libc::stat = unsafe { std::mem::zeroed() };
    let a = [fd as usize, &mut st as *mut _ as usize, 0, 0, 0, 0];
    // SAFETY: `st` is a writable stat.
    let r = unsafe { syscall6(libc::SYS_fstat as usize, a) };
    (r == 0).then_some(st)
}

fn fcntl(fd: c_int, command: c_int, arg: c_int) -> Result<usize> {
    let a = [fd as usize, command as usize, arg as usize, 0, 0, 0];
    // SAFETY: commands that take numbers.
    unsafe { raw::call(libc::SYS_fcntl, a) }
}

fn key_of(st: &libc::stat) -> FileKey {
    FileKey {
        dev: st.st_dev,
        ino: st.st_ino,
        mtime: (st.st_mtime as u64, st.st_mtime_nsec as u64),
    }
}

/// The path of descriptor `fd` in /proc.
fn path_of(fd: c_int) -> CString {
    CString::new(format!("/proc/thread-self/fd/{fd}")).unwrap_or_default()
}

/// The target of the symbolic link at `path`, seen from `dir`; with an empty path, of the link that
/// `dir` itself is.
fn link_at(dir: c_int, path: &CStr) -> Option<Vec<u8>> {
    let mut room = vec![0u8; 512];
    let a = [
        dir as usize,
        path.as_ptr() as usize,
        room.as_mut_ptr() as usize,
        room.len(),
        0,
        0,
    ];
    // SAFETY: a path that ends with NUL, and room of the given length.
    let n = unsafe { raw::call(libc::SYS_readlinkat, a) }.ok()?;
    room.truncate(n);
    Some(room)
}

fn open_path(path: &CStr) -> Result<i32> {
    let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    fs::open(path, flags, 0)
}

// ---- How a file becomes a stand-in.

/// Makes a region for a file that gets its length, and makes the file its stand-in. False if the
/// file stays the kernel's.
fn convert(fd: c_int, len: u64, c: &Candidate) -> bool {
    let Some(engine) = state::engine_for(usize::MAX >> 1, Knob::MmapMin) else {
        return false;
    };
    let pool = engine.pool();
    if state::in_vfork_child()
        || pool.knob(Knob::SharedFiles) == 0
        || len < pool.knob(Knob::SharedFilesMin)
        || !shared::can_be()
    {
        return false;
    }
    if c.named {
        convert_named(engine, fd, len)
    } else {
        convert_memfd(engine, fd, len)
    }
    .is_some()
}

/// Makes descriptor `fd` refer to the file of descriptor `by`.
fn replace(fd: c_int, by: c_int) -> Option<()> {
    let flags = match fcntl(fd, libc::F_GETFD, 0) {
        Ok(f) if f as c_int & libc::FD_CLOEXEC != 0 => libc::O_CLOEXEC,
        _ => 0,
    };
    let a = [by as usize, fd as usize, flags as usize, 0, 0, 0];
    // SAFETY: the program's descriptor, which the program asked to be of a file that we serve.
    unsafe { raw::call(libc::SYS_dup3, a) }.ok().map(drop)
}

fn is_sealed(fd: c_int) -> bool {
    let sealed = |s: usize| s as c_int & SEALS == SEALS;
    fcntl(fd, libc::F_GET_SEALS, 0).is_ok_and(sealed)
}

fn convert_memfd(engine: &Engine, fd: c_int, len: u64) -> Option<()> {
    let st = stat(fd).filter(|st| st.st_size == 0)?;
    let stand_in = fs::open(&path_of(fd), libc::O_PATH | libc::O_CLOEXEC, 0).ok()?;
    let done = match views::make(engine, key_of(&st), len) {
        Ok(at) => {
            let watch = views::watch(engine, stand_in);
            // All seals in one call. If the program has mapped the file already, the call fails and
            // the file stays what it is.
            let sealed = watch >= 0 && fcntl(fd, libc::F_ADD_SEALS, SEALS).is_ok();
            let empty = stat(fd).is_some_and(|st| st.st_size == 0);
            if sealed && empty {
                // (If this fails, `fd` stays a descriptor of an empty file, which is served as
                // well.)
                let _ = replace(fd, stand_in);
                views::ready(at, watch);
            } else {
                views::give_up(engine, at);
            }
            (sealed && empty).then_some(())
        }
        // Another thread or process is converting the file.
        Err(SharedError::Exists) => {
            while !is_sealed(fd) && engine.file_len(&key_of(&st)).is_ok() {
                process::yield_now();
            }
            None
        }
        Err(_) => None,
    };
    fs::close(stand_in);
    done
}

/// Is `fd` the only descriptor of its file, as far as can be known?
fn is_sole(fd: c_int, st: &libc::stat) -> bool {
    // (A child may have a descriptor that exec does not close.)
    let closed = fcntl(fd, libc::F_GETFD, 0).is_ok_and(|f| f as c_int & libc::FD_CLOEXEC != 0);
    // The kernel gives this lease only if the file has not been opened another time.
    let lease = fcntl(fd, libc::F_SETLEASE, libc::F_WRLCK).is_ok();
    let _ = fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK);
    if !closed || !lease {
        return false;
    }
    let Ok(fds) = process::descriptors() else {
        return false;
    };
    let same = |o: &libc::stat| (o.st_dev, o.st_ino) == (st.st_dev, st.st_ino);
    let found = fds.into_iter().filter_map(stat).filter(same);
    found.count() == 1
}

fn exchange(a: &CStr, b: &CStr) -> Result<()> {
    const EXCHANGE: usize = 2;
    let cwd = libc::AT_FDCWD as usize;
    let args = [
        cwd,
        a.as_ptr() as usize,
        cwd,
        b.as_ptr() as usize,
        EXCHANGE,
        0,
    ];
    // SAFETY: both paths end with NUL.
    unsafe { raw::call(libc::SYS_renameat2, args) }.map(drop)
}

fn unlink(path: &CStr) {
    let a = [libc::AT_FDCWD as usize, path.as_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: the path ends with NUL.
    let _ = unsafe { raw::call(libc::SYS_unlinkat, a) };
}

fn convert_named(engine: &Engine, fd: c_int, len: u64) -> Option<()> {
    let st = stat(fd).filter(|st| st.st_size == 0 && st.st_nlink == 1)?;
    let path = link_at(libc::AT_FDCWD, &path_of(fd)).filter(|p| p.starts_with(SHM))?;
    let path = CString::new(path).ok()?;
    let target = format!("{}{:o}", engine.pool().links()?, st.st_mode & 0o7777);
    let target = CString::new(target).ok()?;
    let serial = SERIAL.fetch_add(1, Relaxed);
    let other = format!("/dev/shm/.hugeswap-{}-{serial}", process::pid());
    let other = CString::new(other).ok()?;
    let cwd = libc::AT_FDCWD as usize;
    let a = [
        target.as_ptr() as usize,
        cwd,
        other.as_ptr() as usize,
        0,
        0,
        0,
    ];
    // SAFETY: both paths end with NUL.
    unsafe { raw::call(libc::SYS_symlinkat, a) }.ok()?;
    let done = (|| {
        let stand_in = open_path(&other).ok()?;
        let made = (|| {
            let key = key_of(&stat(stand_in)?);
            let at = views::make(engine, key, len).ok()?;
            let watch = views::watch(engine, stand_in);
            // After the exchange no process finds the file itself by its name. A process that has
            // found it before is detected now.
            let ours = watch >= 0 && exchange(&other, &path).is_ok() && {
                let there = open_path(&other).ok();
                let same = |s: libc::stat| (s.st_dev, s.st_ino) == (st.st_dev, st.st_ino);
                let is_it = there.and_then(stat).is_some_and(same);
                there.inspect(|&fd| fs::close(fd));
                let empty = || stat(fd).is_some_and(|st| st.st_size == 0);
                let ok = is_it && is_sole(fd, &st) && empty();
                if !ok {
                    let _ = exchange(&other, &path);
                }
                ok
            };
            if !ours || replace(fd, stand_in).is_none() {
                views::give_up(engine, at);
                return None;
            }
            views::ready(at, watch);
            Some(())
        })();
        fs::close(stand_in);
        made
    })();
    unlink(&other);
    done
}

// ---- How stand-ins are served.

/// A stand-in, as far as can be determined without asking the pool.
struct StandIn {
    key: FileKey,
    /// Permissions of the file that it stands for.
    mode: u32,
}

/// The stand-in that `fd` is, if it may be one.
fn stand_in(fd: c_int) -> Option<StandIn> {
    if !state::armed() {
        return None;
    }
    let st = stat(fd)?;
    let mode = match st.st_mode & libc::S_IFMT {
        libc::S_IFLNK => mode_of_link(&link_at(fd, c"")?)?,
        libc::S_IFREG if st.st_size == 0 && st.st_nlink == 0 => {
            (is_sealed(fd) || is_path(fd)).then_some(st.st_mode & 0o7777)?
        }
        _ => return None,
    };
    Some(StandIn {
        key: key_of(&st),
        mode,
    })
}

/// The permissions that the target of a stand-in's link tells; `None` if it is no such link.
fn mode_of_link(target: &[u8]) -> Option<u32> {
    let rest = target.strip_prefix(LINKS.as_bytes())?;
    let digits = rest.rsplit(|&b| b == b'/').next()?;
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()
}

/// The engine, the stand-in that `fd` is, and the length of its file in bytes; `None` if `fd` is no
/// stand-in, or if no process has its region any more.
fn served(fd: c_int) -> Option<(&'static Engine, StandIn, u64)> {
    let errno = real::errno();
    let found = stand_in(fd).and_then(|s| {
        if state::engine().is_none() && !state::is_set(Knob::SharedFiles) {
            return None;
        }
        let engine = state::engine_for(usize::MAX >> 1, Knob::MmapMin)?;
        let len = engine.file_len(&s.key).ok()?;
        Some((engine, s, len))
    });
    set_errno(errno);
    found
}

/// Reports that a use of a stand-in is refused, the first time.
fn refused(what: &str) {
    if !SAID.swap(true, Relaxed) {
        fs::complain(&[
            b"hugeswap: ",
            what.as_bytes(),
            b" of a managed memory file is refused: run the program with --set shared.files=off\n",
        ]);
    }
}

/// Maps a stand-in, after the kernel has refused the mapping and set errno. MAP_FAILED with errno
/// if `fd` is no stand-in, or cannot be mapped like this.
pub fn map(len: usize, prot: c_int, flags: c_int, fd: c_int, offset: usize) -> *mut c_void {
    let none = libc::MAP_FAILED;
    if !matches!(real::errno(), libc::EBADF | libc::EPERM | libc::EACCES) || fd < 0 {
        return none;
    }
    let Some((engine, s, bytes)) = served(fd) else {
        return none;
    };
    let errno = |e: c_int| {
        set_errno(e);
        none
    };
    const RW: c_int = libc::PROT_READ | libc::PROT_WRITE;
    const UNFIT: c_int = libc::MAP_FIXED
        | libc::MAP_FIXED_NOREPLACE
        | libc::MAP_32BIT
        | libc::MAP_GROWSDOWN
        | libc::MAP_HUGETLB
        | libc::MAP_LOCKED;
    let shared = matches!(
        flags & libc::MAP_TYPE,
        libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE
    );
    if len == 0 || !offset.is_multiple_of(PAGE) {
        return errno(libc::EINVAL);
    }
    let whole = (bytes as usize).next_multiple_of(PAGE);
    let end = len
        .checked_next_multiple_of(PAGE)
        .and_then(|len| offset.checked_add(len));
    let Some(end) = end.filter(|&end| {
        shared
            && flags & UNFIT == 0
            && matches!(prot, libc::PROT_READ | RW | libc::PROT_WRITE)
            && end <= whole
    }) else {
        refused("such a mapping");
        return errno(libc::ENODEV);
    };
    let before = real::errno();
    match views::map(engine, s.key, bytes, fd, (offset, end - offset), prot) {
        Ok(at) => {
            set_errno(before);
            at as *mut c_void
        }
        Err(e) => errno(e.0),
    }
}

/// Is `fd` an O_PATH descriptor, as those of stand-ins are?
fn is_path(fd: c_int) -> bool {
    fcntl(fd, libc::F_GETFL, 0).is_ok_and(|f| f as c_int & libc::O_PATH != 0)
}

/// Is there a region that may end when this descriptor is closed?
pub fn may_end_by(fd: c_int) -> bool {
    views::is_any_idle() && is_path(fd)
}

/// Ends regions whose files are gone, after a descriptor or a name has gone that may have been the
/// last.
pub fn maybe_gone() {
    if views::is_any_idle()
        && !state::in_vfork_child()
        && let Some(engine) = state::engine()
    {
        let errno = real::errno();
        views::sweep(engine);
        set_errno(errno);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memfd_create(name: *const c_char, flags: c_uint) -> c_int {
    const SEALING: c_uint = libc::MFD_ALLOW_SEALING;
    // A file that the program means to seal stays the kernel's.
    let plain = flags & !(libc::MFD_CLOEXEC | libc::MFD_EXEC) == 0;
    let ours = plain && state::is_set(Knob::SharedFiles);
    let flags = if ours { flags | SEALING } else { flags };
    // SAFETY: passed on.
    let fd = unsafe { real::memfd_create()(name, flags) };
    if ours && fd >= 0 {
        note(fd, false);
    }
    fd
}

#[unsafe(no_mangle)]
unsafe extern "C" fn shm_open(name: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    let errno = real::errno();
    // SAFETY: passed on.
    let fd = unsafe { real::shm_open()(name, flags, mode) };
    let creates = flags & libc::O_CREAT != 0;
    if fd >= 0 {
        if creates && flags & libc::O_ACCMODE == libc::O_RDWR && state::is_set(Knob::SharedFiles) {
            note(fd, true);
        }
        return fd;
    }
    if real::errno() != libc::ELOOP || !state::armed() {
        return fd;
    }
    // SAFETY: the program's string; the C library has just read it.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    let bare = name.iter().position(|&b| b != b'/').unwrap_or(name.len());
    let path = CString::new([SHM, &name[bare..]].concat()).unwrap_or_default();
    let Ok(link) = open_path(&path) else {
        return failed(libc::ELOOP);
    };
    if stand_in(link).is_none() {
        fs::close(link);
        return failed(libc::ELOOP);
    }
    let refusal = if flags & libc::O_TRUNC != 0 {
        refused("shm_open with O_TRUNC");
        Some(libc::EPERM)
    } else if served(link).is_none() {
        fs::complain(&[
            b"hugeswap: nobody has the memory of ",
            path.to_bytes(),
            b" any more: remove it\n",
        ]);
        Some(libc::EIO)
    } else {
        None
    };
    if let Some(e) = refusal {
        fs::close(link);
        return failed(e);
    }
    set_errno(errno);
    link
}

#[unsafe(no_mangle)]
unsafe extern "C" fn shm_unlink(name: *const c_char) -> c_int {
    // SAFETY: passed on.
    let r = unsafe { real::shm_unlink()(name) };
    maybe_gone();
    r
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ftruncate(fd: c_int, len: off_t) -> c_int {
    let errno = real::errno();
    if len > 0
        && let Some(c) = take(fd)
    {
        let done = len as usize >= state::LEAST && convert(fd, len as u64, &c);
        set_errno(errno);
        if done {
            return 0;
        }
        keep_out(fd, &c);
        set_errno(errno);
    }
    // SAFETY: passed on.
    let r = unsafe { real::ftruncate()(fd, len) };
    if r == 0 || !matches!(real::errno(), libc::EBADF | libc::EPERM) {
        return r;
    }
    match served(fd) {
        Some((_, _, now)) if now == len as u64 => {
            set_errno(errno);
            0
        }
        Some(_) => {
            refused("another length");
            failed(libc::EPERM)
        }
        None => r,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ftruncate64(fd: c_int, len: off_t) -> c_int {
    // SAFETY: passed on; both are one function on x86-64.
    unsafe { ftruncate(fd, len) }
}

/// Succeeds for a range within a stand-in's length: the room was promised, so it cannot run out.
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_fallocate(fd: c_int, at: off_t, len: off_t) -> c_int {
    // SAFETY: passed on.
    let r = unsafe { real::posix_fallocate()(fd, at, len) };
    if !matches!(r, libc::EBADF | libc::EPERM) || at < 0 || len <= 0 {
        return r;
    }
    match served(fd) {
        Some((_, _, now)) if at as u64 + len as u64 <= now => 0,
        _ => r,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_fallocate64(fd: c_int, at: off_t, len: off_t) -> c_int {
    // SAFETY: passed on; both are one function on x86-64.
    unsafe { posix_fallocate(fd, at, len) }
}
