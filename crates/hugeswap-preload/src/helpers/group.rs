//! Requests that were made together: what the program is told when all are over, and waiting for
//! them.

use super::notice::{Event, Notice};
use super::{listed, wait_interruptibly};
use crate::real::set_errno;
use hugeswap_sys::futex;
use libc::c_int;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

/// Changes with each request that is over.
static OVER: AtomicU32 = AtomicU32::new(0);

/// Several requests that were made together, or a single one.
pub struct Group {
    left: AtomicU32,
    notice: Notice,
    /// The `si_code` of a signal that says that all are over.
    code: c_int,
}

impl Group {
    /// Of `count` requests, after which the program gets `notice`.
    pub fn new(count: usize, notice: Notice, code: c_int) -> Arc<Group> {
        Arc::new(Group {
            left: AtomicU32::new(count as u32),
            notice,
            code,
        })
    }

    /// One of the requests is over, and its result is where the program finds it.
    pub fn finish_one(&self) {
        let was_last = self.left.fetch_sub(1, AcqRel) == 1;
        OVER.fetch_add(1, Release);
        futex::wake(&OVER, u32::MAX >> 1, false);
        if was_last {
            self.notice.give(self.code);
        }
    }
}

/// The requests of a program's list, before they are made.
pub struct List<R> {
    /// Those that are meant, in the order of the list.
    pub requests: Vec<*mut R>,
    pub group: Arc<Group>,
    waits: bool,
}

impl<R> List<R> {
    /// What a call is given that makes a list of requests. `mode` says whether it waits for them;
    /// if not, `event` says how the program is told that all are over, by a signal with `code`.
    /// Those are meant that are not null and that `is_meant` is true of. Fails, with errno set, if
    /// the mode or the number is none.
    ///
    /// # Safety
    /// `list` is null or has `n` entries, each null or a request of the program's; `event` is null
    /// or initialised.
    pub unsafe fn open(
        (mode, list, n): (c_int, *const *mut R, c_int),
        event: *const Event,
        code: c_int,
        is_meant: impl Fn(&R) -> bool,
    ) -> Option<List<R>> {
        const WAIT: c_int = 0;
        const NO_WAIT: c_int = 1;
        const { assert!(libc::LIO_WAIT == WAIT && libc::LIO_NOWAIT == NO_WAIT) };
        if ![WAIT, NO_WAIT].contains(&mode) || n < 0 {
            set_errno(libc::EINVAL);
            return None;
        }
        let waits = mode == WAIT;
        // SAFETY: by contract.
        let (requests, notice) = unsafe {
            let is_meant = |&&r: &&*mut R| r.as_ref().is_some_and(&is_meant);
            let requests: Vec<_> = listed(list, n).iter().filter(is_meant).copied().collect();
            let event = event.as_ref().filter(|_| !waits);
            (requests, event.map_or(Notice::Nothing, |e| Notice::of(e)))
        };
        // One more, so that the notice is not given before all were requested.
        let group = Group::new(requests.len() + 1, notice, code);
        Some(List {
            requests,
            group,
            waits,
        })
    }

    /// All were requested. Waits for them if the program wants that: true if it did. Fails with
    /// EINTR.
    pub fn close(&self) -> Result<bool, c_int> {
        self.group.finish_one();
        let is_over = || self.group.left.load(Acquire) == 0;
        match self.waits {
            false => Ok(false),
            true => wait_until(None, is_over).map(|()| true),
        }
    }
}

/// Waits until `is_over`, which is asked again whenever a request is over, up to a point in time.
/// Fails with EINTR or ETIMEDOUT.
pub fn wait_until(
    deadline: Option<&libc::timespec>,
    is_over: impl Fn() -> bool,
) -> Result<(), c_int> {
    loop {
        let seen = OVER.load(Acquire);
        if is_over() {
            return Ok(());
        }
        match wait_interruptibly(&OVER, seen, deadline) {
            0 => {}
            error => return Err(error),
        }
    }
}
