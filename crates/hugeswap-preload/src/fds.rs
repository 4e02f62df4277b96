//! Descriptors: the program may close what it likes, but not the pool's.
//!
//! Our numbers stand near the top of the descriptor limit. `close` and `fstat` of one answer EBADF, as for a number
//! never opened; closing ranges skips them and reports success.

use crate::real::{self, answer, set_errno};
use crate::{files, state};
use hugeswap_sys::raw::syscall6;
use libc::{c_int, c_uint};

/// As of a number that stands for nothing.
pub fn bad() -> c_int {
    set_errno(libc::EBADF);
    -1
}

#[unsafe(no_mangle)]
unsafe extern "C" fn close(fd: c_int) -> c_int {
    if state::is_our_fd(fd) {
        return bad();
    }
    // (Code of ours comes here too, and closes no such descriptor in this way.)
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
    // SAFETY: closes the numbers the program named, without ours.
    unsafe {
        syscall6(
            libc::SYS_close_range as usize,
            [first as usize, last as usize, flags as usize, 0, 0, 0],
        )
    }
}

/// Closes all of `first..=last` that is not ours; the kernel's raw answer.
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
        // Kernels before 5.9.
        let limit = hugeswap_sys::process::descriptor_limit().min(1 << 20) as i32;
        for fd in first as i32..limit {
            if !state::is_our_fd(fd) {
                hugeswap_sys::fs::close(fd);
            }
        }
    }
}
