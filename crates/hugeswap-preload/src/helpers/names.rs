//! Asynchronous look-ups of names (`getaddrinfo_a`).

use super::deadline;
use super::group::{self, Group, List};
use super::notice::Event;
use super::requests::{Canceled, Selection, Terms};
use super::work::{self, Work};
use crate::real::{self, set_errno};
use crate::state;
use libc::{c_char, c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::AtomicI32;
use std::sync::atomic::Ordering::{Acquire, Release};

/// `struct gaicb` of glibc.
#[repr(C)]
pub struct Request {
    name: *const c_char,
    service: *const c_char,
    hints: *const libc::addrinfo,
    result: *mut libc::addrinfo,
    status: AtomicI32,
    _reserved: [c_int; 5],
}

const EAI_INPROGRESS: c_int = -100;
/// The status of a request that was canceled.
pub const EAI_CANCELED: c_int = -101;
const EAI_NOTCANCELED: c_int = -102;
const EAI_ALLDONE: c_int = -103;
const EAI_INTR: c_int = -104;

/// `SI_ASYNCNL`.
const CODE: c_int = -60;

/// A request of a look-up.
pub struct LookUp {
    /// Address of the program's [`Request`].
    request: usize,
    /// What it was requested with.
    group: Arc<Group>,
}

impl LookUp {
    pub fn terms(&self) -> Terms {
        Terms {
            address: self.request,
            order: None,
            priority: 0,
            is_barrier: false,
        }
    }

    /// Returns the status.
    pub fn carry_out(&self) -> c_int {
        let request = self.request as *mut Request;
        // SAFETY: the program's request, which it leaves alone until it is over.
        unsafe {
            let r = &*request;
            let to = &raw mut (*request).result;
            libc::getaddrinfo(r.name, r.service, r.hints, to)
        }
    }

    pub fn store(&self, status: c_int) {
        let request = self.request as *const Request;
        // SAFETY: as above.
        unsafe { (*request).status.store(status, Release) };
    }

    /// Tells the program that the request is over.
    pub fn tell(self) {
        self.group.finish_one();
    }
}

/// Is the request under way?
///
/// # Safety
/// `request` is readable.
unsafe fn is_under_way(request: *const Request) -> bool {
    // SAFETY: by contract.
    unsafe { (*request).status.load(Acquire) == EAI_INPROGRESS }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getaddrinfo_a(
    mode: c_int,
    list: *const *mut Request,
    n: c_int,
    event: *const Event,
) -> c_int {
    if !state::was_armed() {
        // SAFETY: passed on.
        return unsafe { real::getaddrinfo_a()(mode, list.cast(), n, event as *mut c_void) };
    }
    // SAFETY: the program's list, and its event, if any.
    let opened = unsafe { List::open((mode, list, n), event, CODE, |_| true) };
    let Some(list) = opened else {
        return libc::EAI_SYSTEM;
    };
    let mut result = 0;
    for &request in &list.requests {
        let look_up = LookUp {
            request: request as usize,
            group: list.group.clone(),
        };
        // SAFETY: the program's request.
        unsafe { (*request).status.store(EAI_INPROGRESS, Release) };
        if work::submit(Work::LookUp(look_up)).is_err() {
            // SAFETY: as above.
            unsafe { (*request).status.store(libc::EAI_SYSTEM, Release) };
            set_errno(libc::EAGAIN);
            result = libc::EAI_SYSTEM;
            list.group.finish_one();
        }
    }
    list.close().map_or(EAI_INTR, |_| result)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn gai_suspend(
    list: *const *mut Request,
    n: c_int,
    timeout: *const libc::timespec,
) -> c_int {
    if !state::was_armed() {
        // SAFETY: passed on.
        return unsafe { real::gai_suspend()(list.cast(), n, timeout) };
    }
    // SAFETY: the program's list of `n` requests, some perhaps null, and its timeout, if any.
    let (requests, end) = unsafe {
        let list = super::listed(list, n);
        let requests: Vec<_> = list.iter().filter(|r| !r.is_null()).copied().collect();
        (requests, timeout.as_ref().map(deadline))
    };
    if requests.is_empty() {
        return EAI_ALLDONE;
    }
    // SAFETY: the program's requests.
    let is_over = || requests.iter().any(|&r| unsafe { !is_under_way(r) });
    match group::wait_until(end.as_ref(), is_over) {
        Ok(()) => 0,
        Err(libc::ETIMEDOUT) => libc::EAI_AGAIN,
        Err(_) => EAI_INTR,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn gai_cancel(request: *mut Request) -> c_int {
    if !state::was_armed() {
        // SAFETY: passed on.
        return unsafe { real::gai_cancel()(request.cast()) };
    }
    match work::cancel(Selection::Address(request as usize)) {
        Canceled::All => EAI_CANCELED,
        Canceled::NotAll => EAI_NOTCANCELED,
        Canceled::Nothing => EAI_ALLDONE,
    }
}
