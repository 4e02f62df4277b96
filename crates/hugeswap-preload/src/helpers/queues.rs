//! Message queues that call a function in a thread (`mq_notify` with SIGEV_THREAD).
//!
//! The kernel sends a notice with the number of a request to a socket. A thread of ours reads it
//! and starts a thread for the call.

use super::Waiter;
use super::notice::{Call, Event};
use crate::lock::Lock;
use crate::{real, state};
use hugeswap_sys::raw::syscall6;
use libc::{c_int, c_void};
use std::collections::BTreeMap;
use std::ptr::null_mut;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// What the kernel sends back. Its last byte is the kernel's.
#[repr(C)]
#[derive(Clone, Copy)]
struct Cookie {
    request: u64,
    _unused: [u8; 23],
    what: u8,
}

const _: () = assert!(size_of::<Cookie>() == 32);

/// `NOTIFY_WOKENUP`: a message has come. Otherwise the request is over without.
const WOKEN: u8 = 1;

static WAITER: Waiter = Waiter::new();
static NEXT: AtomicU64 = AtomicU64::new(1);

hot! {
    static REQUESTS: Lock<BTreeMap<u64, Call>> = Lock::new(BTreeMap::new());
}

pub fn before_fork() {
    REQUESTS.before_fork();
}

pub fn after_fork() {
    REQUESTS.after_fork();
}

/// Notices go to the parent.
pub fn forget() {
    if WAITER.is_none() {
        return;
    }
    WAITER.set(Waiter::NONE);
    std::mem::forget(std::mem::take(&mut *REQUESTS.lock()));
}

extern "C" fn wait_for_messages(_: *mut c_void) -> *mut c_void {
    // SAFETY: touches no memory.
    let socket = unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        // (The kernel refuses this descriptor.)
        WAITER.set(FAILED);
        return null_mut();
    }
    WAITER.set(socket as u32);
    loop {
        let mut cookie = Cookie {
            request: 0,
            _unused: [0; 23],
            what: 0,
        };
        let length = size_of::<Cookie>();
        let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
        let at = &raw mut cookie as usize;
        let a = [socket as usize, at, length, flags as usize, 0, 0];
        // SAFETY: the cookie is that long.
        let got = unsafe { syscall6(libc::SYS_recvfrom as usize, a) };
        if got == -(libc::EBADF as isize) || got == -(libc::ENOTSOCK as isize) {
            // The program has closed the descriptor.
            WAITER.set(Waiter::NONE);
            return null_mut();
        }
        if got != length as isize {
            continue;
        }
        let call = REQUESTS.lock().remove(&cookie.request);
        if let Some(call) = call
            && cookie.what == WOKEN
        {
            call.start(0);
        }
    }
}

/// A waiter without a socket.
const FAILED: u32 = u32::MAX - 2;

#[unsafe(no_mangle)]
unsafe extern "C" fn mq_notify(queue: libc::mqd_t, event: *const Event) -> c_int {
    // SAFETY: the program's structure, if any.
    let given = unsafe { event.as_ref() }.filter(|e| e.notify == libc::SIGEV_THREAD);
    let Some(given) = given.filter(|_| state::armed()) else {
        // SAFETY: passed on.
        return unsafe { real::mq_notify()(queue, event.cast()) };
    };
    let socket = match WAITER.find(wait_for_messages) {
        Ok(socket) if socket != FAILED => socket,
        // As the C library answers when it cannot make its thread.
        failed => {
            if failed.is_ok() {
                WAITER.set(Waiter::NONE);
            }
            real::set_errno(libc::ENOSYS);
            return -1;
        }
    };
    let request = NEXT.fetch_add(1, Relaxed);
    // SAFETY: the program's event.
    let call = unsafe { Call::of(given) };
    REQUESTS.lock().insert(request, call);
    // (Not on the stack, which the program may have in managed memory.)
    let cookie = Box::new(Cookie {
        request,
        _unused: [0; 23],
        what: 0,
    });
    let ours = Box::new(Event {
        value: &raw const *cookie as usize,
        signal: socket as c_int,
        notify: libc::SIGEV_THREAD,
        function: 0,
        attributes: null_mut(),
        _rest: [0; 4],
    });
    let a = [queue as usize, &raw const *ours as usize, 0, 0, 0, 0];
    // SAFETY: structures that the kernel copies.
    let result = unsafe { syscall6(libc::SYS_mq_notify as usize, a) };
    if result != 0 {
        let unused = REQUESTS.lock().remove(&request);
        drop(unused);
    }
    real::answer(result) as c_int
}
