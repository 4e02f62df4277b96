//! stdio on managed buffers where no filter catches the C library's own calls.
//!
//! For large blocks, fread and fwrite pass the program's buffer to the kernel, in calls that no
//! wrapper sees. The filter handles these calls where it is on. Elsewhere such blocks go through a
//! buffer of ours, piece by piece.

use crate::pagemap::from_stream;
use crate::{extent, filter, real, state};
use libc::{FILE, c_void, size_t};

/// Bytes in a piece.
const PIECE: usize = 64 << 10;

/// True if a buffer at `p` must not be passed to the kernel.
#[inline]
fn careful(p: usize) -> bool {
    extent::managed(p) && state::careful().is_some() && !filter::on()
}

pub type Read = unsafe extern "C" fn(*mut c_void, size_t, size_t, *mut FILE) -> size_t;
type Write = unsafe extern "C" fn(*const c_void, size_t, size_t, *mut FILE) -> size_t;

/// Reads like fread, by `next`; a buffer that the kernel must not get is filled piece by piece.
///
/// # Safety
/// As for fread.
pub unsafe fn read(
    next: Read,
    p: *mut c_void,
    size: size_t,
    count: size_t,
    file: *mut FILE,
) -> size_t {
    let total = size.saturating_mul(count);
    if total == 0 || !careful(p as usize) {
        // SAFETY: passed on.
        return unsafe { next(p, size, count, file) };
    }
    let mut buffer = vec![0u8; total.min(PIECE)];
    let mut done = 0;
    while done < total {
        let want = (total - done).min(PIECE);
        // SAFETY: `buffer` has room for `want`, the program's buffer for `total`.
        let got = unsafe {
            let got = next(buffer.as_mut_ptr().cast(), 1, want, file);
            std::ptr::copy_nonoverlapping(buffer.as_ptr(), p.cast::<u8>().add(done), got);
            got
        };
        done += got;
        if got < want {
            break;
        }
    }
    done / size
}

/// Writes like fwrite, by `next`; a buffer that the kernel must not get is copied piece by piece.
///
/// # Safety
/// As for fwrite.
unsafe fn write(
    next: Write,
    p: *const c_void,
    size: size_t,
    count: size_t,
    file: *mut FILE,
) -> size_t {
    let total = size.saturating_mul(count);
    if total == 0 || !careful(p as usize) {
        // SAFETY: passed on.
        return unsafe { next(p, size, count, file) };
    }
    let mut buffer = vec![0u8; total.min(PIECE)];
    let mut done = 0;
    while done < total {
        let want = (total - done).min(PIECE);
        // SAFETY: as in `read`, the other way.
        let got = unsafe {
            std::ptr::copy_nonoverlapping(p.cast::<u8>().add(done), buffer.as_mut_ptr(), want);
            next(buffer.as_ptr().cast(), 1, want, file)
        };
        done += got;
        if got < want {
            break;
        }
    }
    done / size
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fread(p: *mut c_void, size: size_t, count: size_t, file: *mut FILE) -> size_t {
    // SAFETY: passed on.
    unsafe { from_stream(real::fread(), p, size, count, file) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fread_unlocked(
    p: *mut c_void,
    size: size_t,
    count: size_t,
    file: *mut FILE,
) -> size_t {
    // SAFETY: passed on.
    unsafe { from_stream(real::fread_unlocked(), p, size, count, file) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fwrite(
    p: *const c_void,
    size: size_t,
    count: size_t,
    file: *mut FILE,
) -> size_t {
    // SAFETY: passed on.
    unsafe { write(real::fwrite(), p, size, count, file) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fwrite_unlocked(
    p: *const c_void,
    size: size_t,
    count: size_t,
    file: *mut FILE,
) -> size_t {
    // SAFETY: passed on.
    unsafe { write(real::fwrite_unlocked(), p, size, count, file) }
}

/// The fortified variants check that the buffer has room, then do what the plain functions do.
macro_rules! fortified {
    ($($name:ident => $plain:ident;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(p: *mut c_void, room: size_t, size: size_t, count: size_t, file: *mut FILE) -> size_t {
            unsafe extern "C" {
                fn __chk_fail() -> !;
            }
            if size.checked_mul(count).is_none_or(|n| n > room) {
                // SAFETY: glibc's end for programs that overflow a buffer.
                unsafe { __chk_fail() };
            }
            // SAFETY: passed on.
            unsafe { $plain(p, size, count, file) }
        }
    )*};
}

fortified! {
    __fread_chk => fread;
    __fread_unlocked_chk => fread_unlocked;
}
