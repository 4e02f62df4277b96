//! Calls that close or replace descriptors. A program may close any descriptor but the pool's.
//!
//! The pool's descriptors have numbers near the top of the descriptor limit. `close` and `fstat` of
//! one fail with EBADF, as for a number that was never opened; closing a range skips them and
//! reports success.

use crate::real::{self, answer, set_errno};
use crate::{files, state};
use hugeswap_sys::raw::syscall6;
use libc::{c_int, c_uint};

/// Sets EBADF and returns -1, as for a number that is no open descriptor.
pub fn bad() -> c_int {
    set_errno(libc::EBADF);
    -1
}

#[unsafe(no_mangle)]
unsafe extern "C" fn close(fd: c_int) -> c_int {
    if state::is_our_fd(fd) {
        return bad();
    }
    // (hugeswap's own code calls this function too, but never to close a stand-in.)
    let stands_in = files::may_end_by(fd);
    // SAFETY: passed on.
    let r = unsafe { real::close()(fd) };
    if stands_in {
        files::maybe_gone();
    }
    r
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
    if state::is_our_fd(to) {
        return bad();
    }
    // SAFETY: passed on.
    unsafe { real::dup2()(from, to) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    if state::is_our_fd(to) {
        return bad();
    }
    // SAFETY: passed on.
    unsafe { real::dup3()(from, to, flags) }
}

fn kernel_close_range(first: c_uint, last: c_uint, flags: c_int) -> isize {
    // SAFETY: closes the numbers that the program named, without ours.
    unsafe {
        syscall6(
            libc::SYS_close_range as usize,
            [first as usize, last as usize, flags as usize, 0, 0, 0],
        )
    }
}

/// Closes the descriptors of `first..=last` except the pool's, and returns the kernel's raw answer.
pub fn close_range_raw(first: c_uint, last: c_uint, flags: c_int) -> isize {
    let mut ours = [0u32; 64];
    let mut n = 0;
    if let Some(engine) = state::engine() {
        for fd in state::our_fds(engine) {
            if n < ours.len() && (first..=last).contains(&(fd as u32)) {
                ours[n] = fd as u32;
                n += 1;
            }
        }
    }
    if n == 0 {
        return kernel_close_range(first, last, flags);
    }
    ours[..n].sort_unstable();
    let mut from = first;
    for &fd in &ours[..n] {
        if from < fd {
            let r = kernel_close_range(from, fd - 1, flags);
            if r != 0 {
                return r;
            }
        }
        from = fd + 1;
    }
    if from <= last {
        kernel_close_range(from, last, flags)
    } else {
        0
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    answer(close_range_raw(first, last, flags)) as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn closefrom(first: c_int) {
    let first = first.max(0) as u32;
    if close_range_raw(first, u32::MAX, 0) != 0 {
        // Kernels before 5.9 have no close_range.
        let limit = hugeswap_sys::process::descriptor_limit().min(1 << 20) as i32;
        for fd in first as i32..limit {
            if !state::is_our_fd(fd) {
                hugeswap_sys::fs::close(fd);
            }
        }
    }
}
