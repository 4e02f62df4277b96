//! Answers to programs that ask where their memory is, by reading /proc/self/pagemap or by mincore.
//!
//! The kernel answers first, so offsets, short reads and errors are the kernel's. Then the entries
//! of managed pages are replaced by what the engine knows. For memory that was handed back to the
//! kernel, the kernel's answer stays.
//!
//! Descriptors are not tracked. Once the program has opened a file whose name ends with pagemap
//! ([`opened`]), each read of whole entries checks what its descriptor refers to, so closed,
//! duplicated and inherited descriptors need no bookkeeping. Before that, a read costs one extra
//! load. Nothing that reads does allocates, takes a lock or leaves state behind, because reads are
//! also made in signal handlers.

use crate::mmap::{TASK_END, kernel, pages};
use crate::owners::keep;
use crate::real;
use crate::wrap::{plain_pread, plain_read};
use crate::{extent, issue, maps, shared, state, stdio};
use hugeswap_engine::Engine;
use hugeswap_policy::markers::pagemap::Categories;
use hugeswap_sys::{fs, process, raw};
use libc::{FILE, c_char, c_int, c_uchar, c_uint, c_void, off_t, size_t, ssize_t};
use std::ffi::CStr;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

const PAGE: usize = 4096;
const ENTRY: usize = size_of::<u64>();
/// Pages handled at a time: their entries are on the stack, perhaps that of a signal handler.
const PIECE: usize = 128;

const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const SOFT_DIRTY: u64 = 1 << 55;
/// Not an entry: the kernel's entry stays.
const KEEP: u64 = u64::MAX;
const FRAME: u64 = (1 << 55) - 1;

/// Whether the program has opened a file whose name ends with pagemap. Never cleared.
static SOME: AtomicBool = AtomicBool::new(false);

/// Returns `fd`, the result of opening `path`. Sets `SOME` if the file may be a pagemap; a list of
/// this process's mappings is replaced by ours.
///
/// # Safety
/// `path` must be a string, unless opening it failed.
unsafe fn opened(path: *const c_char, fd: c_int) -> c_int {
    if fd >= 0 && state::armed() {
        // SAFETY: by contract; the kernel has just read it.
        let name = unsafe { CStr::from_ptr(path) }.to_bytes();
        if name.ends_with(b"pagemap") {
            SOME.store(true, Relaxed);
        } else if name.ends_with(b"/maps")
            && let Some(engine) = state::engine()
            && is_own(fd, b"maps", 0o444)
        {
            maps::replace(engine, fd);
        }
    }
    fd
}

/// The engine, if a read of `n` bytes from `fd` returns entries of this process's pagemap.
#[inline]
pub fn own(fd: c_int, n: usize) -> Option<&'static Engine> {
    // (The kernel refuses reads of anything but whole entries.)
    if !SOME.load(Relaxed) || n == 0 || !n.is_multiple_of(ENTRY) {
        return None;
    }
    state::engine().filter(|_| is_own(fd, b"pagemap", 0o400))
}

/// True if the kernel says that `fd` is /proc/PID/NAME, or a thread's /proc/PID/task/TID/NAME, of
/// this process; such files have this mode.
#[cold]
fn is_own(fd: c_int, name: &[u8], mode: u32) -> bool {
    if fd < 0 || !fs::identity(fd).is_ok_and(|id| id.mode == libc::S_IFREG | mode) {
        return false;
    }
    let mut link = [0; 64];
    let Some(path) = target(fd, &mut link) else {
        return false;
    };
    let Some(rest) = path.strip_prefix(b"/proc/") else {
        return false;
    };
    let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
    let (number, rest) = rest.split_at(digits);
    let number = std::str::from_utf8(number).map(str::parse::<i32>);
    let Ok(Ok(number)) = number else {
        return false;
    };
    let rest = { rest.strip_suffix(name) }.and_then(|r| r.strip_suffix(b"/"));
    let of_thread = |rest: &[u8]| {
        rest.strip_prefix(b"/task/")
            .is_some_and(|tid| tid.iter().all(u8::is_ascii_digit))
    };
    // A process may also be named by the id of any of its threads.
    rest.is_some_and(|rest| rest.is_empty() || of_thread(rest))
        && process::signal_thread(number, 0).is_ok()
}

/// The path that the link of descriptor `fd` leads to. `None`: there is none, or it does not fit in
/// `room`.
fn target(fd: c_int, room: &mut [u8; 64]) -> Option<&[u8]> {
    // (A thread may have a descriptor table of its own.)
    const DIR: &[u8] = b"/proc/thread-self/fd/";
    let mut path = [0u8; DIR.len() + 21];
    let mut digits = [0; 20];
    let digits = fs::digits(fd as u64, 10, &mut digits);
    path[..DIR.len()].copy_from_slice(DIR);
    path[DIR.len()..][..digits.len()].copy_from_slice(digits);
    let a = [
        libc::AT_FDCWD as usize,
        path.as_ptr() as usize,
        room.as_mut_ptr() as usize,
        room.len(),
        0,
        0,
    ];
    // SAFETY: the path ends with NUL, and `room` is as long as the call is told.
    let n = unsafe { raw::call(libc::SYS_readlinkat, a) }.ok()?;
    (n < room.len()).then(|| &room[..n])
}

/// Replaces the kernel's entries of managed pages in the `n` bytes at `buf`, which were read from
/// offset `at`.
///
/// # Safety
/// The bytes must be readable and writable.
unsafe fn tell(engine: &Engine, at: u64, buf: usize, n: usize) {
    let first = (at as usize / ENTRY).saturating_mul(PAGE);
    let end = first.saturating_add(n / ENTRY * PAGE);
    for part in engine.window_parts() {
        let private = first.max(part.start)..end.min(part.end);
        // SAFETY: passed on, here and below; all ranges are within the bytes that were read.
        unsafe { tell_range(engine, private, first, buf, false) };
    }
    let shared = extent::shared_range();
    let mut rest = first.max(shared.start)..end.min(shared.end);
    while let Some(part) = shared::first_mapped(&rest) {
        rest.start = part.end;
        // SAFETY: see above.
        unsafe { tell_range(engine, part, first, buf, true) };
    }
}

/// Does the work of [`tell`] for one range of pages. The entry of the page at `first` is at `buf`.
///
/// # Safety
/// The entries of the range must be readable and writable.
unsafe fn tell_range(
    engine: &Engine,
    range: Range<usize>,
    first: usize,
    buf: usize,
    is_shared: bool,
) {
    for piece in range.clone().step_by(PIECE * PAGE) {
        let len = (range.end - piece).min(PIECE * PAGE);
        // The program's buffer may be managed, so it is not touched while the engine reports.
        let mut told = [KEEP; PIECE];
        engine.page_states(piece, len, |pages, state| {
            if state.categories.has(Categories::FOREIGN) {
                return;
            }
            let run = &mut told[(pages.start - piece) / PAGE..(pages.end - piece) / PAGE];
            for (k, to) in run.iter_mut().enumerate() {
                *to = state.nth(k as u64).entry();
            }
        });
        for (k, &entry) in told[..len / PAGE].iter().enumerate() {
            if entry != KEEP {
                let to = (buf + ((piece - first) / PAGE + k) * ENTRY) as *mut u64;
                // SAFETY: within the bytes, by contract. A page outside them is outside the range.
                unsafe { to.write_unaligned(merged(entry, to.read_unaligned(), is_shared)) };
            }
        }
    }
}

/// The entry that the program gets for a page, from the kernel's entry `kernel` and the engine's
/// entry `entry`.
fn merged(entry: u64, kernel: u64, is_shared: bool) -> u64 {
    if entry & PRESENT != 0 {
        // (In shared memory, a page that the kernel calls swapped has a marker of ours. It makes no
        // difference to the program that the page is not mapped at this moment.)
        if is_shared && kernel & PRESENT == 0 {
            return entry | SOFT_DIRTY;
        }
        // The kernel answers for a page that is in its own swap.
        return match kernel & (PRESENT | SWAPPED) {
            PRESENT => entry | kernel & FRAME | SOFT_DIRTY,
            SWAPPED => kernel,
            _ => entry | SOFT_DIRTY,
        };
    }
    // It is not known whether a page that left memory and came back was written since the program
    // last asked. Soft-dirty is the safe answer.
    match entry {
        0 => kernel & SOFT_DIRTY,
        _ => entry | SOFT_DIRTY,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pread(fd: c_int, buf: *mut c_void, n: size_t, at: off_t) -> ssize_t {
    // SAFETY: passed on; what was read is the program's, and there.
    unsafe {
        let got = plain_pread(fd, buf, n, at);
        if got > 0
            && let Some(engine) = own(fd, n)
        {
            tell(engine, at as u64, buf as usize, got as usize);
        }
        got
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pread64(fd: c_int, buf: *mut c_void, n: size_t, at: off_t) -> ssize_t {
    // SAFETY: passed on.
    unsafe { pread(fd, buf, n, at) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t {
    // SAFETY: passed on.
    unsafe {
        match own(fd, n) {
            Some(engine) => read_own(engine, fd, buf, n),
            None => plain_read(fd, buf, n),
        }
    }
}

/// Reads at the descriptor's file position. That position must be known even if other threads or
/// processes read through the same descriptor. So the read first advances the position, which the
/// kernel does for one caller at a time, and then gives back what it did not read.
///
/// # Safety
/// As for read.
unsafe fn read_own(engine: &Engine, fd: c_int, buf: *mut c_void, n: usize) -> ssize_t {
    let seek = |by: i64| {
        let a = [fd as usize, by as usize, libc::SEEK_CUR as usize, 0, 0, 0];
        // SAFETY: lseek touches no memory.
        unsafe { raw::syscall6(libc::SYS_lseek as usize, a) }
    };
    let end = seek(n as i64);
    let start = (end as i64).wrapping_sub(n as i64);
    // (No entry is at such an offset.)
    if start < 0 {
        if !(-4095..0).contains(&end) {
            seek(-(n as i64));
        }
        // SAFETY: passed on.
        return unsafe { plain_read(fd, buf, n) };
    }
    // SAFETY: passed on; what was read is the program's, and there.
    unsafe {
        let got = plain_pread(fd, buf, n, start);
        if got < n as isize {
            seek(got.max(0) as i64 - n as i64);
        }
        if got > 0 {
            tell(engine, start as u64, buf as usize, got as usize);
        }
        got
    }
}

/// Reads from a stream by `next`, and corrects the entries if the stream is this process's pagemap.
///
/// # Safety
/// As for fread.
pub unsafe fn from_stream(
    next: stdio::Read,
    p: *mut c_void,
    size: usize,
    count: usize,
    file: *mut FILE,
) -> usize {
    unsafe extern "C" {
        fn flockfile(file: *mut FILE);
        fn funlockfile(file: *mut FILE);
    }
    // SAFETY: the program's stream; the bytes that were read are the program's, and accessible.
    unsafe {
        let own = match SOME.load(Relaxed) {
            true => own(libc::fileno(file), size.saturating_mul(count)),
            false => None,
        };
        let Some(engine) = own else {
            return stdio::read(next, p, size, count, file);
        };
        // No other thread reads between the two calls.
        flockfile(file);
        let at = libc::ftello(file);
        let got = stdio::read(next, p, size, count, file);
        funlockfile(file);
        if at >= 0 && (at as usize).is_multiple_of(ENTRY) {
            tell(engine, at as u64, p as usize, got * size / ENTRY * ENTRY);
        }
        got
    }
}

macro_rules! opens {
    ($($name:ident ($($arg:ident: $ty:ty),*) $path:ident;)*) => {$(
        // (Functions that take a mode take it where an argument after the flags would be, whether
        // or not it is given.)
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $ty),*) -> c_int {
            // SAFETY: passed on.
            unsafe { opened($path, real::$name()($($arg),*)) }
        }
    )*};
}

type Path = *const c_char;

opens! {
    open(path: Path, flags: c_int, mode: c_uint) path;
    open64(path: Path, flags: c_int, mode: c_uint) path;
    openat(dir: c_int, path: Path, flags: c_int, mode: c_uint) path;
    openat64(dir: c_int, path: Path, flags: c_int, mode: c_uint) path;
    __open_2(path: Path, flags: c_int) path;
    __open64_2(path: Path, flags: c_int) path;
    __openat_2(dir: c_int, path: Path, flags: c_int) path;
    __openat64_2(dir: c_int, path: Path, flags: c_int) path;
}

macro_rules! opens_stream {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(path: *const c_char, mode: *const c_char) -> *mut FILE {
            // SAFETY: passed on.
            unsafe {
                let file = real::$name()(path, mode);
                // (Nothing is in its buffer yet.)
                opened(path, if file.is_null() { -1 } else { libc::fileno(file) });
                file
            }
        }
    )*};
}

opens_stream! { fopen fopen64 }

/// The result of a call by the C library's `syscall`, if it is a call that this module handles.
///
/// # Safety
/// As for the call.
pub unsafe fn by_number(nr: i64, a: [usize; 4]) -> Option<isize> {
    let (fd, n) = (a[0] as c_int, a[2]);
    // SAFETY: passed on.
    unsafe {
        match nr {
            libc::SYS_read => own(fd, n).map(|e| read_own(e, fd, a[1] as *mut c_void, n)),
            libc::SYS_pread64 => {
                own(fd, n).map(|_| pread(fd, a[1] as *mut c_void, n, a[3] as off_t))
            }
            libc::SYS_open => {
                let path = a[0] as *const c_char;
                Some(open(path, a[1] as c_int, a[2] as c_uint) as isize)
            }
            libc::SYS_openat => {
                let path = a[1] as *const c_char;
                Some(openat(fd, path, a[2] as c_int, a[3] as c_uint) as isize)
            }
            _ => None,
        }
    }
}

/// Answers `mincore` for whole pages that are all mapped in the window: tells which of them are in
/// memory, even if the program would still fault on them. Returns 0, or -1 with errno set: EFAULT
/// if `vec` is not writable.
///
/// # Safety
/// What is at `vec` is the program's to be overwritten, a byte for each page.
pub unsafe fn in_memory(engine: &Engine, at: usize, len: usize, vec: *mut c_uchar) -> c_int {
    let _kept = keep();
    by_pieces(at, len, |piece, bytes, there| {
        let mut done = 0;
        engine.page_states(piece, bytes, |pages, state| {
            let to = &mut there[(pages.start - piece) / PAGE..(pages.end - piece) / PAGE];
            if state.categories.has(Categories::FOREIGN) {
                if done == 0 {
                    done = kernel_mincore(pages.start, pages.len(), to.as_mut_ptr());
                }
            } else {
                let here = Categories::PRESENT | Categories::CACHED;
                to.fill(u8::from(state.categories.meets(here)));
            }
        });
        if done != 0 {
            return done;
        }
        let to = vec.wrapping_add((piece - at) / PAGE);
        // SAFETY: by contract.
        unsafe { deliver(engine, piece, &there[..bytes / PAGE], to) }
    })
}

/// Answers `mincore` for memory of the kernel's: the kernel writes to memory of ours, since `vec`
/// may be managed and absent. Returns as [`in_memory`].
///
/// # Safety
/// As for [`in_memory`].
pub unsafe fn in_kernels_memory(at: usize, len: usize, vec: *mut c_uchar) -> c_int {
    let is_managed =
        |len: &usize| at + len <= TASK_END && extent::meets_managed(vec as usize, len / PAGE);
    let (Some(engine), Some(len)) = (state::engine(), pages(at, len).filter(is_managed)) else {
        return kernel_mincore(at, len, vec);
    };
    by_pieces(at, len, |piece, bytes, there| {
        let done = kernel_mincore(piece, bytes, there.as_mut_ptr());
        if done != 0 {
            return done;
        }
        let to = vec.wrapping_add((piece - at) / PAGE);
        // SAFETY: by contract.
        unsafe { deliver(engine, piece, &there[..bytes / PAGE], to) }
    })
}

/// Calls `f` for [`PIECE`] pages after the other of `[at, at+len)`, with room for their answers,
/// until one is not 0; returns the last.
fn by_pieces(
    at: usize,
    len: usize,
    mut f: impl FnMut(usize, usize, &mut [u8; PIECE]) -> c_int,
) -> c_int {
    for piece in (at..at + len).step_by(PIECE * PAGE) {
        let bytes = (at + len - piece).min(PIECE * PAGE);
        let done = f(piece, bytes, &mut [0; PIECE]);
        if done != 0 {
            return done;
        }
    }
    0
}

fn kernel_mincore(at: usize, len: usize, vec: *mut c_uchar) -> c_int {
    kernel(libc::SYS_mincore, [at, len, vec as usize, 0, 0, 0]) as c_int
}

/// Copies answers for the pages from `at` on, which are mapped, to `vec`.
///
/// # Safety
/// As for [`in_memory`].
unsafe fn deliver(engine: &Engine, at: usize, there: &[u8], vec: *mut c_uchar) -> c_int {
    let (to, len) = (vec as usize, there.len());
    if extent::meets_managed(to, len) {
        if !issue::is_mapped(engine, to, len, true) {
            real::set_errno(libc::EFAULT);
            return -1;
        }
    } else {
        // (The kernel writes first, and says whether that is permitted.)
        let done = kernel_mincore(at, len * PAGE, vec);
        if done != 0 && real::errno() == libc::EFAULT {
            return done;
        }
    }
    // SAFETY: by contract, and writable a moment ago. (`vec` may be managed memory: no lock is
    // held.)
    unsafe { std::ptr::copy_nonoverlapping(there.as_ptr(), vec, len) };
    0
}
