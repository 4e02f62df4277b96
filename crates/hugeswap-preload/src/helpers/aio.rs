//! POSIX asynchronous input and output.
//!
//! Requests for one descriptor are carried out one after the other: by their priorities, and those
//! of equal priority in the order in which they were made. A request to synchronise comes after all
//! that were made before it, and before all that are made later. Results are left in the request
//! where the C library's `aio_error` and `aio_return` find them.

use super::deadline;
use super::group::{self, Group, List};
use super::notice::{Event, Notice};
use super::requests::{Canceled, Selection, Terms};
use super::work::{self, Work};
use crate::real::{self, set_errno};
use crate::{pagemap, state, wrap};
use libc::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::AtomicI32;
use std::sync::atomic::Ordering::{Acquire, Release};

/// `struct aiocb` of glibc.
#[repr(C)]
pub struct Request {
    descriptor: c_int,
    operation: c_int,
    priority: c_int,
    buffer: usize,
    length: usize,
    event: Event,
    _next: usize,
    _absolute_priority: c_int,
    _policy: c_int,
    error: AtomicI32,
    result: isize,
    offset: i64,
    _reserved: [u8; 32],
}

const _: () = assert!(size_of::<Request>() == size_of::<libc::aiocb>());

/// `SI_ASYNCIO`.
const CODE: c_int = -4;
/// Largest difference that a request may have to the program's priority.
const PRIORITY_MAX: c_int = 20;

#[derive(Clone, Copy)]
enum Operation {
    Read,
    Write,
    Sync,
    SyncData,
}

impl Operation {
    /// Must it come after what was requested before it, and before what is requested later?
    fn is_barrier(self) -> bool {
        matches!(self, Operation::Sync | Operation::SyncData)
    }
}

/// A request, and what of it is needed to carry it out.
pub struct Transfer {
    /// Address of the program's [`Request`].
    request: usize,
    descriptor: c_int,
    /// The priority of the thread that requested it, less what the request says.
    priority: c_int,
    operation: Operation,
    buffer: usize,
    length: usize,
    offset: i64,
    notice: Notice,
    /// What it was requested with.
    group: Arc<Group>,
}

impl Transfer {
    pub fn terms(&self) -> Terms {
        Terms {
            address: self.request,
            order: Some(self.descriptor),
            priority: self.priority,
            is_barrier: self.operation.is_barrier(),
        }
    }

    /// Returns the result and the error.
    pub fn carry_out(&self) -> (isize, c_int) {
        let (fd, at, n) = (self.descriptor, self.buffer as *mut c_void, self.length);
        // SAFETY: the program's buffer, which it leaves alone while the request is under way.
        let once = || unsafe {
            match self.operation {
                Operation::Read => match pagemap::pread(fd, at, n, self.offset) {
                    -1 if real::errno() == libc::ESPIPE => pagemap::read(fd, at, n),
                    result => result,
                },
                Operation::Write => match wrap::pwrite(fd, at, n, self.offset) {
                    -1 if real::errno() == libc::ESPIPE => wrap::write(fd, at, n),
                    result => result,
                },
                Operation::Sync => libc::fsync(fd) as isize,
                Operation::SyncData => libc::fdatasync(fd) as isize,
            }
        };
        let mut result = once();
        while result == -1 && real::errno() == libc::EINTR {
            result = once();
        }
        let error = if result == -1 { real::errno() } else { 0 };
        (result, error)
    }

    pub fn store(&self, result: isize, error: c_int) {
        // SAFETY: the request is the program's, which leaves it alone until it is over.
        unsafe { set(self.request as *mut Request, result, error) };
    }

    /// Tells the program that the request is over.
    pub fn tell(self) {
        self.notice.give(CODE);
        self.group.finish_one();
    }
}

/// Stores a result. From the moment the error is known the request may be the program's again.
///
/// # Safety
/// `request` is writable.
unsafe fn set(request: *mut Request, result: isize, error: c_int) {
    // SAFETY: by contract.
    unsafe {
        (&raw mut (*request).result).write(result);
        (*request).error.store(error, Release);
    }
}

/// Is the request under way?
///
/// # Safety
/// `request` is readable.
unsafe fn is_under_way(request: *const Request) -> bool {
    // SAFETY: by contract.
    unsafe { (*request).error.load(Acquire) == libc::EINPROGRESS }
}

/// The scheduling priority of the calling thread: 0 unless its policy has priorities.
fn priority_of_thread() -> c_int {
    let (mut policy, mut of_thread) = (0, libc::sched_param { sched_priority: 0 });
    // SAFETY: both are writable.
    unsafe { libc::pthread_getschedparam(libc::pthread_self(), &mut policy, &mut of_thread) };
    of_thread.sched_priority
}

/// Makes a request; false, with errno set, if that fails.
///
/// # Safety
/// `request` is the program's, and stays until it is over.
unsafe fn request(request: *mut Request, operation: Operation, group: &Arc<Group>) -> bool {
    // SAFETY: by contract.
    let refuse = |error| unsafe {
        set(request, -1, error);
        set_errno(error);
        false
    };
    // SAFETY: by contract; the event is the program's.
    let transfer = unsafe {
        let r = &*request;
        let less = match operation.is_barrier() {
            true => 0,
            false => r.priority,
        };
        if !(0..=PRIORITY_MAX).contains(&less) {
            return refuse(libc::EINVAL);
        }
        Transfer {
            request: request as usize,
            descriptor: r.descriptor,
            priority: priority_of_thread() - less,
            operation,
            buffer: r.buffer,
            length: r.length,
            offset: r.offset,
            notice: Notice::of(&r.event),
            group: group.clone(),
        }
    };
    // SAFETY: by contract.
    unsafe { set(request, 0, libc::EINPROGRESS) };
    match work::submit(Work::Transfer(transfer)) {
        Ok(()) => true,
        Err(_) => refuse(libc::EAGAIN),
    }
}

/// Makes a request of its own. Returns what the C function does.
///
/// # Safety
/// As for [`request`].
unsafe fn single(of: *mut Request, operation: Operation) -> c_int {
    let alone = Group::new(1, Notice::Nothing, CODE);
    // SAFETY: by contract.
    if unsafe { request(of, operation, &alone) } {
        0
    } else {
        -1
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn aio_read(request: *mut Request) -> c_int {
    if !state::was_armed() {
        // SAFETY: passed on.
        return unsafe { real::aio_read()(request.cast()) };
    }
    // SAFETY: the program's request.
    unsafe { single(request, Operation::Read) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn aio_write(request: *mut Request) -> c_int {
    if !state::was_armed() {
        // SAFETY: passed on.
        return unsafe { real::aio_write()(request.cast()) };
    }
    // SAFETY: the program's request.
    unsafe { single(request, Operation::Write) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn aio_fsync(how: c_int, request: *mut Request) -> c_int {
    if !state::was_armed() {
        // SAFETY: passed on.
        return unsafe { real::aio_fsync()(how, request.cast()) };
    }
    let operation = match how {
        libc::O_SYNC => Operation::Sync,
        libc::O_DSYNC => Operation::SyncData,
        _ => {
            set_errno(libc::EINVAL);
            return -1;
        }
    };
    // SAFETY: the program's request; touches no other memory.
    unsafe {
        let flags = libc::fcntl((*request).descriptor, libc::F_GETFL);
        if flags == -1 || flags & libc::O_ACCMODE == libc::O_RDONLY {
            set_errno(libc::EBADF);
            return -1;
        }
        single(request, operation)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn aio_suspend(
    list: *const *mut Request,
    n: c_int,
    timeout: *const libc::timespec,
) -> c_int {
    if !state::was_armed() {
        // SAFETY: passed on.
        return unsafe { real::aio_suspend()(list.cast(), n, timeout) };
    }
    if n < 0 {
        set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: the program's list of `n` requests, some perhaps null, and its timeout, if any.
    let (end, is_over) = unsafe {
        let list = super::listed(list, n);
        let is_over = move || {
            let mut requests = list.iter().filter(|r| !r.is_null()).peekable();
            requests.peek().is_none() || requests.any(|&r| !is_under_way(r))
        };
        (timeout.as_ref().map(deadline), is_over)
    };
    let error = match group::wait_until(end.as_ref(), is_over) {
        Ok(()) => return 0,
        Err(libc::ETIMEDOUT) => libc::EAGAIN,
        Err(error) => error,
    };
    set_errno(error);
    -1
}

#[unsafe(no_mangle)]
unsafe extern "C" fn aio_cancel(descriptor: c_int, request: *mut Request) -> c_int {
    const CANCELED: c_int = 0;
    const NOT_CANCELED: c_int = 1;
    const ALL_DONE: c_int = 2;
    if !state::was_armed() {
        // SAFETY: passed on.
        return unsafe { real::aio_cancel()(descriptor, request.cast()) };
    }
    // SAFETY: touches no memory.
    if unsafe { libc::fcntl(descriptor, libc::F_GETFL) } == -1 {
        set_errno(libc::EBADF);
        return -1;
    }
    // SAFETY: the program's request, if any.
    if unsafe { request.as_ref() }.is_some_and(|r| r.descriptor != descriptor) {
        set_errno(libc::EINVAL);
        return -1;
    }
    let selection = match request.is_null() {
        true => Selection::Order(descriptor),
        false => Selection::Address(request as usize),
    };
    match work::cancel(selection) {
        Canceled::All => CANCELED,
        Canceled::NotAll => NOT_CANCELED,
        Canceled::Nothing => ALL_DONE,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lio_listio(
    mode: c_int,
    list: *const *mut Request,
    n: c_int,
    event: *const Event,
) -> c_int {
    if !state::was_armed() {
        // SAFETY: passed on.
        return unsafe { real::lio_listio()(mode, list.cast(), n, event as *mut c_void) };
    }
    // SAFETY: the program's list, and its event, if any.
    let opened = unsafe {
        let is_meant = |r: &Request| r.operation != libc::LIO_NOP;
        List::open((mode, list, n), event, CODE, is_meant)
    };
    let Some(list) = opened else { return -1 };
    let mut error = 0;
    for &r in &list.requests {
        // SAFETY: the program's request.
        let made = unsafe {
            match (*r).operation {
                libc::LIO_READ => request(r, Operation::Read, &list.group),
                libc::LIO_WRITE => request(r, Operation::Write, &list.group),
                _ => {
                    set(r, -1, libc::EINVAL);
                    false
                }
            }
        };
        if !made {
            error = libc::EIO;
            list.group.finish_one();
        }
    }
    // SAFETY: the program's requests, which are over.
    let has_failed = |r: &*mut Request| unsafe { (**r).error.load(Acquire) } != 0;
    match list.close() {
        Ok(true) if list.requests.iter().any(has_failed) => error = libc::EIO,
        Ok(_) => {}
        Err(interrupted) => error = interrupted,
    }
    match error {
        0 => 0,
        error => {
            set_errno(error);
            -1
        }
    }
}

/// The same functions under the names of programs with 64-bit offsets, which all are.
macro_rules! same {
    ($($name:ident = $other:ident($($arg:ident: $type:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
            // SAFETY: passed on.
            unsafe { $other($($arg),*) }
        }
    )*};
}

same! {
    aio_read64 = aio_read(request: *mut Request);
    aio_write64 = aio_write(request: *mut Request);
    aio_fsync64 = aio_fsync(how: c_int, request: *mut Request);
    aio_suspend64 = aio_suspend(list: *const *mut Request, n: c_int, timeout: *const libc::timespec);
    aio_cancel64 = aio_cancel(descriptor: c_int, request: *mut Request);
    lio_listio64 = lio_listio(mode: c_int, list: *const *mut Request, n: c_int, event: *const Event);
}
