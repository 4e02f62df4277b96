//! Refuses POSIX asynchronous I/O on managed buffers.
//!
//! The C library makes these transfers in threads that have every signal blocked. Such a thread can
//! take neither a fault nor a trapped system call. In signal mode a request on managed memory
//! therefore fails with ENOSYS, and programs fall back to read and write.

use crate::real::{self, set_errno};
use crate::state;
use libc::{aiocb, c_int, c_void};

/// Is the request or its buffer in managed memory, while system calls on that need care?
///
/// # Safety
/// `request` must be null or readable.
unsafe fn refused(request: *const aiocb) -> bool {
    if request.is_null() || state::careful().is_none() {
        return false;
    }
    // SAFETY: readable, by contract.
    let buffer = unsafe { (*request).aio_buf };
    state::managed(request as usize) || state::managed(buffer as usize)
}

fn no() -> c_int {
    set_errno(libc::ENOSYS);
    -1
}

macro_rules! one {
    ($($name:ident / $next:ident;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(request: *mut aiocb) -> c_int {
            // SAFETY: passed on.
            unsafe { if refused(request) { no() } else { real::$next()(request) } }
        }
    )*};
}

one! {
    aio_read / aio_read;
    aio_read64 / aio_read;
    aio_write / aio_write;
    aio_write64 / aio_write;
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lio_listio(
    mode: c_int,
    list: *const *mut aiocb,
    n: c_int,
    event: *mut c_void,
) -> c_int {
    // SAFETY: the program's list of `n` requests, some perhaps null.
    unsafe {
        if state::engine().is_some() && (0..n.max(0) as usize).any(|i| refused(*list.add(i))) {
            return no();
        }
        real::lio_listio()(mode, list, n, event)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lio_listio64(
    mode: c_int,
    list: *const *mut aiocb,
    n: c_int,
    event: *mut c_void,
) -> c_int {
    // SAFETY: passed on; both are one function on x86-64.
    unsafe { lio_listio(mode, list, n, event) }
}
