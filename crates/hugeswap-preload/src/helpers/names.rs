//! Asynchronous look-ups of names (`getaddrinfo_a`).

use super::deadline;
use super::notice::{Event, Notice};
use super::work::{self, Group, Work};
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

const GAI_WAIT: c_int = 0;
const GAI_NOWAIT: c_int = 1;

const EAI_INPROGRESS: c_int = -100;
const EAI_CANCELED: c_int = -101;
const EAI_NOTCANCELED: c_int = -102;
const EAI_ALLDONE: c_int = -103;
const EAI_INTR: c_int = -104;

/// `SI_ASYNCNL`.
const CODE: c_int = -60;

/// A request of a look-up.
pub struct LookUp {
    /// Address of the program's [`Request`].
    pub request: usize,
    /// What it was requested with.
    group: Arc<Group>,
}

impl LookUp {
    pub fn carry_out(self) {
        let request = self.request as *mut Request;
        // SAFETY: the program's request, which it leaves alone until it is over.
        let status = unsafe {
            let r = &*request;
            let to = &raw mut (*request).result;
            libc::getaddrinfo(r.name, r.service, r.hints, to)
        };
        self.finish(status);
    }

    pub fn cancel(self) {
        self.finish(EAI_CANCELED);
    }

    fn finish(self, status: c_int) {
        // SAFETY: as above.
        unsafe {
            (*(self.request as *mut Request))
                .status
                .store(status, Release)
        };
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
    if ![GAI_WAIT, GAI_NOWAIT].contains(&mode) || n < 0 {
        set_errno(libc::EINVAL);
        return libc::EAI_SYSTEM;
    }
    let waits = mode == GAI_WAIT;
    // SAFETY: the program's list of requests, some perhaps null, and its event, if any.
    let (requests, notice) = unsafe {
        let list = super::listed(list, n);
        let requests: Vec<_> = list.iter().filter(|r| !r.is_null()).copied().collect();
        let event = event.as_ref().filter(|_| !waits);
        (requests, event.map_or(Notice::Nothing, |e| Notice::of(e)))
    };
    // One more, so that the notice is not given before all were requested.
    let group = Group::new(requests.len() + 1, notice, CODE);
    let mut result = 0;
    for &request in &requests {
        let look_up = LookUp {
            request: request as usize,
            group: group.clone(),
        };
        // SAFETY: the program's request.
        unsafe { (*request).status.store(EAI_INPROGRESS, Release) };
        if work::submit(Work::LookUp(look_up)).is_err() {
            // SAFETY: as above.
            unsafe { (*request).status.store(libc::EAI_SYSTEM, Release) };
            set_errno(libc::EAGAIN);
            result = libc::EAI_SYSTEM;
            group.finish_one();
        }
    }
    group.finish_one();
    if waits && group.wait() != 0 {
        return EAI_INTR;
    }
    result
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
    match work::wait_until(end.as_ref(), is_over) {
        0 => 0,
        libc::ETIMEDOUT => libc::EAI_AGAIN,
        _ => EAI_INTR,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn gai_cancel(request: *mut Request) -> c_int {
    if !state::was_armed() {
        // SAFETY: passed on.
        return unsafe { real::gai_cancel()(request.cast()) };
    }
    let address = request as usize;
    let is_meant = |work: &Work| matches!(work, Work::LookUp(l) if l.request == address);
    let taken = work::withdraw(is_meant);
    if !taken.is_empty() {
        taken.into_iter().for_each(Work::cancel);
        return EAI_CANCELED;
    }
    // SAFETY: the program's request.
    if unsafe { is_under_way(request) } {
        EAI_NOTCANCELED
    } else {
        EAI_ALLDONE
    }
}
