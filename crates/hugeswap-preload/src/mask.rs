//! Signal masks. The signals that a fault or a trapped system call raises must reach hugeswap.
//!
//! SIGSEGV, SIGBUS and SIGSYS are left out of every mask that a program sets, because a thread that
//! blocks them is killed by its first touch of absent memory. Which of them the program asked to
//! block is remembered for each thread, and reported when the thread asks for its mask.

use crate::local::{self, Word};
use crate::real;
use crate::state;
use hugeswap_sys::signal::{self, Mask};
use libc::{c_int, size_t};
use std::ptr::null;

/// The signals that are never blocked.
pub const OURS: Mask = signal::TOLD;

/// The signals of [`OURS`] that the calling thread believes blocked; a new thread starts with its
/// creator's.
pub fn believed() -> Mask {
    local::get(Word::Mask) as Mask
}

/// Sets the signals of [`OURS`] that the calling thread believes blocked.
pub fn believe(mask: Mask) {
    local::set(Word::Mask, (mask & OURS) as usize);
}

/// The first 64 signals of a set, as the kernel sees it.
///
/// # Safety
/// `set` must be readable.
pub unsafe fn bits(set: *const libc::sigset_t) -> Mask {
    // SAFETY: a sigset_t is at least 8 bytes long.
    unsafe { set.cast::<Mask>().read_unaligned() }
}

/// Changes the first 64 signals of a set.
///
/// # Safety
/// `set` must be writable.
pub unsafe fn set_bits(set: *mut libc::sigset_t, mask: Mask) {
    // SAFETY: a sigset_t is at least 8 bytes long.
    unsafe { set.cast::<Mask>().write_unaligned(mask) };
}

/// A copy of a set without [`OURS`].
struct Stripped {
    copy: libc::sigset_t,
    given: bool,
}

impl Stripped {
    /// A copy of `set`, or of no set if `set` is null.
    ///
    /// # Safety
    /// `set` must be null or readable.
    unsafe fn of(set: *const libc::sigset_t) -> Stripped {
        // SAFETY: all zeros is the empty set.
        let mut copy = unsafe { std::mem::zeroed::<libc::sigset_t>() };
        let given = !set.is_null();
        if given {
            // SAFETY: the caller's readable set, copied and changed.
            unsafe {
                copy = *set;
                set_bits(&mut copy, bits(set) & !OURS);
            }
        }
        Stripped { copy, given }
    }

    fn as_ptr(&self) -> *const libc::sigset_t {
        if self.given { &self.copy } else { null() }
    }
}

type Change = unsafe extern "C" fn(c_int, *const libc::sigset_t, *mut libc::sigset_t) -> c_int;

/// Changes the mask by `next`, without [`OURS`], and what the calling thread believes.
///
/// # Safety
/// As for sigprocmask.
unsafe fn change(
    next: Change,
    how: c_int,
    set: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    if !state::armed() {
        // SAFETY: passed on.
        return unsafe { next(how, set, old) };
    }
    // SAFETY: the caller's set, if any.
    let (stripped, asked) = unsafe {
        (
            Stripped::of(set),
            if set.is_null() { 0 } else { bits(set) & OURS },
        )
    };
    // SAFETY: all zeros is the empty set.
    let mut former = unsafe { std::mem::zeroed::<libc::sigset_t>() };
    // SAFETY: both sets are ours.
    let result = unsafe { next(how, stripped.as_ptr(), &mut former) };
    if result != 0 {
        return result;
    }
    let was = believed();
    if !old.is_null() {
        // SAFETY: the caller's set to write to; it may be the same as `set`, which is not used
        // again.
        unsafe {
            *old = former;
            set_bits(old, bits(&former) | was);
        }
    }
    if !set.is_null() {
        believe(match how {
            libc::SIG_BLOCK => was | asked,
            libc::SIG_UNBLOCK => was & !asked,
            _ => asked,
        });
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sigprocmask(
    how: c_int,
    set: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    // SAFETY: passed on.
    unsafe { change(real::sigprocmask(), how, set, old) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_sigmask(
    how: c_int,
    set: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    // SAFETY: passed on.
    unsafe { change(real::pthread_sigmask(), how, set, old) }
}

/// Makes the call with a copy of the program's set that is without `OURS`.
macro_rules! with_stripped {
    ($set:ident, $call:expr) => {{
        if !state::armed() {
            // SAFETY: passed on.
            return unsafe { $call };
        }
        // SAFETY: the caller's set, if any.
        let stripped = unsafe { Stripped::of($set) };
        let $set = stripped.as_ptr();
        // SAFETY: passed on, with a set of ours that lives until the call ends.
        unsafe { $call }
    }};
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sigsuspend(set: *const libc::sigset_t) -> c_int {
    with_stripped!(set, real::sigsuspend()(set))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn signalfd(fd: c_int, set: *const libc::sigset_t, flags: c_int) -> c_int {
    with_stripped!(set, real::signalfd()(fd, set, flags))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ppoll(
    fds: *mut libc::pollfd,
    n: libc::nfds_t,
    timeout: *const libc::timespec,
    set: *const libc::sigset_t,
) -> c_int {
    with_stripped!(set, real::ppoll()(fds, n, timeout, set))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __ppoll_chk(
    fds: *mut libc::pollfd,
    n: libc::nfds_t,
    timeout: *const libc::timespec,
    set: *const libc::sigset_t,
    room: size_t,
) -> c_int {
    with_stripped!(set, real::__ppoll_chk()(fds, n, timeout, set, room))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pselect(
    n: c_int,
    read: *mut libc::fd_set,
    write: *mut libc::fd_set,
    except: *mut libc::fd_set,
    timeout: *const libc::timespec,
    set: *const libc::sigset_t,
) -> c_int {
    with_stripped!(set, real::pselect()(n, read, write, except, timeout, set))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_pwait(
    epoll: c_int,
    events: *mut libc::epoll_event,
    n: c_int,
    timeout: c_int,
    set: *const libc::sigset_t,
) -> c_int {
    with_stripped!(set, real::epoll_pwait()(epoll, events, n, timeout, set))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_pwait2(
    epoll: c_int,
    events: *mut libc::epoll_event,
    n: c_int,
    timeout: *const libc::timespec,
    set: *const libc::sigset_t,
) -> c_int {
    with_stripped!(set, real::epoll_pwait2()(epoll, events, n, timeout, set))
}
