//! fstat and similar calls. For a stand-in they report what its file would be.

use super::{PAGE, served};
use crate::{fds, real, state};
use libc::{c_char, c_int, c_uint, off_t};

/// May a descriptor of which stat gives these answers be a stand-in?
fn is_worth_a_look(mode: u32, size: u64, links: u64) -> bool {
    match mode & libc::S_IFMT {
        libc::S_IFLNK => true,
        libc::S_IFREG => size == 0 && links == 0,
        _ => false,
    }
}

/// Writes to `st` what the file of `fd` would be, if `fd` is a stand-in.
///
/// # Safety
/// `st` must be what a successful call has filled in.
unsafe fn tell(fd: c_int, st: *mut libc::stat) {
    // SAFETY: by contract.
    let st = unsafe { &mut *st };
    if !is_worth_a_look(st.st_mode, st.st_size as u64, st.st_nlink) {
        return;
    }
    if let Some((_, s, len)) = served(fd) {
        st.st_mode = libc::S_IFREG | s.mode;
        st.st_size = len as off_t;
        st.st_blocks = len.div_ceil(PAGE as u64) as i64 * 8;
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fstat(fd: c_int, st: *mut libc::stat) -> c_int {
    if state::is_our_fd(fd) {
        return fds::bad();
    }
    // SAFETY: passed on; `st` is filled in if the call succeeds.
    unsafe {
        let r = real::fstat()(fd, st);
        if r == 0 {
            tell(fd, st);
        }
        r
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fstat64(fd: c_int, st: *mut libc::stat) -> c_int {
    // SAFETY: passed on; both are one function on x86-64.
    unsafe { fstat(fd, st) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __fxstat(version: c_int, fd: c_int, st: *mut libc::stat) -> c_int {
    if state::is_our_fd(fd) {
        return fds::bad();
    }
    // SAFETY: passed on; `st` is filled in if the call succeeds.
    unsafe {
        let r = real::__fxstat()(version, fd, st);
        if r == 0 {
            tell(fd, st);
        }
        r
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __fxstat64(version: c_int, fd: c_int, st: *mut libc::stat) -> c_int {
    // SAFETY: passed on; both are one function on x86-64.
    unsafe { __fxstat(version, fd, st) }
}

/// Do these arguments, by an empty path, ask about the descriptor itself?
///
/// # Safety
/// `path` must be a string.
unsafe fn is_empty(path: *const c_char, flags: c_int) -> bool {
    // SAFETY: by contract; the kernel has just read it.
    flags & libc::AT_EMPTY_PATH != 0 && (path.is_null() || unsafe { *path } == 0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fstatat(
    fd: c_int,
    path: *const c_char,
    st: *mut libc::stat,
    flags: c_int,
) -> c_int {
    // SAFETY: passed on; `st` is filled in if the call succeeds.
    unsafe {
        let r = real::fstatat()(fd, path, st, flags);
        if r == 0 && is_empty(path, flags) {
            tell(fd, st);
        }
        r
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fstatat64(
    fd: c_int,
    path: *const c_char,
    st: *mut libc::stat,
    flags: c_int,
) -> c_int {
    // SAFETY: passed on; both are one function on x86-64.
    unsafe { fstatat(fd, path, st, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn statx(
    fd: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    st: *mut libc::statx,
) -> c_int {
    // SAFETY: passed on; `st` is filled in if the call succeeds.
    unsafe {
        let r = real::statx()(fd, path, flags, mask, st);
        if r == 0 && is_empty(path, flags) {
            let st = &mut *st;
            let worth = is_worth_a_look(st.stx_mode.into(), st.stx_size, st.stx_nlink.into());
            if worth && let Some((_, s, len)) = served(fd) {
                st.stx_mode = (libc::S_IFREG | s.mode) as u16;
                st.stx_size = len;
                st.stx_blocks = len.div_ceil(PAGE as u64) * 8;
            }
        }
        r
    }
}
