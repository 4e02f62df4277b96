//! Stands in for the parts of the C library that make threads: timers and message queues that call
//! a function in a thread, asynchronous input and output, and asynchronous look-ups of names.
//!
//! The C library's own threads for these have every signal blocked and little stack. A thread that
//! has blocked SIGSEGV, SIGBUS or SIGSYS is ended by its first touch of managed memory that is in
//! swap, and such a thread touches the program's requests and, through `malloc`, the memory of an
//! allocator that the program brings. So these interfaces are made here, on threads that are
//! started as the program's own ([`crate::thread`]), with all of the program's signals blocked.
//!
//! * `timers`, `queues`: a thread that waits for the kernel's notices
//! * `aio`, `names`: requests, which up to a limit of threads carry out (`work`); which one is next
//!   and how one ends (`requests`); those that were made together (`group`)
//! * `notice`: how the program is told that something happened
//!
//! Each part has one lock. Its holder does not touch the program's memory, which may be managed. A
//! forked child has no threads of these: what was pending is its parent's.

mod aio;
mod group;
mod names;
mod notice;
mod queues;
mod requests;
mod timers;
mod work;

use crate::mask::OURS;
use crate::thread;
use hugeswap_sys::futex;
use hugeswap_sys::raw::syscall6;
use hugeswap_sys::signal::{self, Mask, bit};
use libc::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

/// Takes the locks of this module for the time of a fork; see [`crate::lock::Lock::before_fork`].
#[unsafe(link_section = "hugeswap_start")]
pub fn before_fork() {
    timers::before_fork();
    queues::before_fork();
    work::before_fork();
}

/// Releases the locks after a fork, in parent and child.
#[unsafe(link_section = "hugeswap_start")]
pub fn after_fork() {
    work::after_fork();
    queues::after_fork();
    timers::after_fork();
}

/// Forgets the threads and requests of the parent, in a forked child.
#[unsafe(link_section = "hugeswap_start")]
pub fn forget() {
    timers::forget();
    queues::forget();
    work::forget();
}

/// The signals that the C library sends to threads: for cancellation, and to change their user.
const OF_THE_LIBRARY: Mask = bit(32) | bit(33);

/// The signals that are blocked in a thread that the program does not know of.
const BLOCKED: Mask = signal::ALL & !OF_THE_LIBRARY;

type Routine = extern "C" fn(*mut c_void) -> *mut c_void;

/// Starts a detached thread with the program's signals blocked. Returns 0 or an errno.
fn start_thread(routine: Routine) -> c_int {
    let mut attributes = MaybeUninit::uninit();
    let mut id = 0;
    let former = signal::set_mask(BLOCKED & !OURS);
    // SAFETY: the attributes are initialised before they are used, and destroyed at the end.
    let result = unsafe {
        libc::pthread_attr_init(attributes.as_mut_ptr());
        libc::pthread_attr_setdetachstate(attributes.as_mut_ptr(), libc::PTHREAD_CREATE_DETACHED);
        let result = thread::pthread_create(&mut id, attributes.as_ptr(), routine, null_mut());
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        result
    };
    signal::set_mask(former);
    result
}

/// A thread that waits for notices of the kernel's, and that the first request for one starts.
struct Waiter {
    /// What the requests give the kernel so that its notices reach the thread; or one of the two
    /// values below.
    address: AtomicU32,
}

impl Waiter {
    const NONE: u32 = u32::MAX;
    const STARTING: u32 = u32::MAX - 1;

    const fn new() -> Waiter {
        Waiter {
            address: AtomicU32::new(Waiter::NONE),
        }
    }

    /// The thread's address, after starting it if there is none. It runs `routine`, which calls
    /// [`Waiter::set`]. Fails with an errno.
    fn find(&self, routine: Routine) -> Result<u32, c_int> {
        loop {
            match self.address.load(Acquire) {
                Waiter::NONE => {
                    let claim = self.address.compare_exchange(
                        Waiter::NONE,
                        Waiter::STARTING,
                        AcqRel,
                        Acquire,
                    );
                    if claim.is_err() {
                        continue;
                    }
                    let error = start_thread(routine);
                    if error != 0 {
                        self.set(Waiter::NONE);
                        return Err(error);
                    }
                }
                Waiter::STARTING => futex::wait(&self.address, Waiter::STARTING, None, false),
                address => return Ok(address),
            }
        }
    }

    /// Was no thread started yet?
    fn is_none(&self) -> bool {
        self.address.load(Acquire) == Waiter::NONE
    }

    /// The thread says what its address is, or, when it ends, [`Waiter::NONE`].
    fn set(&self, address: u32) {
        self.address.store(address, Release);
        futex::wake(&self.address, u32::MAX >> 1, false);
    }
}

/// Sleeps while `*word == seen`, up to the `deadline` of the monotonic clock. Returns 0, or the
/// errno EINTR or ETIMEDOUT. The calling thread may be cancelled meanwhile.
fn wait_interruptibly(word: &AtomicU32, seen: u32, deadline: Option<&libc::timespec>) -> c_int {
    const ASYNCHRONOUS: c_int = 1;
    unsafe extern "C" {
        fn pthread_setcanceltype(new: c_int, old: *mut c_int) -> c_int;
    }
    let deadline = deadline.map_or(0, |d| d as *const _ as usize);
    // (This operation takes a point in time.)
    let operation = libc::FUTEX_WAIT_BITSET | libc::FUTEX_PRIVATE_FLAG;
    let a = [
        word as *const _ as usize,
        operation as usize,
        seen as usize,
        deadline,
        0,
        u32::MAX as usize,
    ];
    let mut former = 0;
    // SAFETY: the word and the deadline, on the caller's stack, outlive the call. A thread that is
    // cancelled holds nothing of ours.
    let result = unsafe {
        pthread_setcanceltype(ASYNCHRONOUS, &mut former);
        let result = syscall6(libc::SYS_futex as usize, a);
        pthread_setcanceltype(former, &mut former);
        result
    };
    match -result as c_int {
        error @ (libc::EINTR | libc::ETIMEDOUT) => error,
        _ => 0,
    }
}

/// The point in time of the monotonic clock that is `timeout` from now.
fn deadline(timeout: &libc::timespec) -> libc::timespec {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    let nanoseconds = now.tv_nsec + timeout.tv_nsec;
    libc::timespec {
        tv_sec: now.tv_sec + timeout.tv_sec + nanoseconds / 1_000_000_000,
        tv_nsec: nanoseconds % 1_000_000_000,
    }
}

/// The program's list of requests, some perhaps null. An empty list may be anywhere.
///
/// # Safety
/// `list` is null, or has `n` entries that stay for `'a`.
unsafe fn listed<'a, R>(list: *const *mut R, n: c_int) -> &'a [*mut R] {
    if list.is_null() || n <= 0 {
        return &[];
    }
    // SAFETY: by contract.
    unsafe { std::slice::from_raw_parts(list, n as usize) }
}
