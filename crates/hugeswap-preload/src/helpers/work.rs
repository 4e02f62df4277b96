//! Requests that wait to be carried out, and the threads that do it.
//!
//! A thread takes the first request that may be carried out. Requests with the same
//! [`Work::order`] are carried out one after the other, as they were made. A thread that finds
//! nothing to do for a second ends. A thread holds no lock while it carries out a request.

use super::notice::Notice;
use super::{aio, names, start_thread, wait_interruptibly};
use crate::lock::Lock;
use hugeswap_sys::futex;
use libc::{c_int, c_void};
use std::collections::VecDeque;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Most threads at a time, as in the C library.
const THREADS: u32 = 20;
/// Nanoseconds that a thread without work waits before it ends.
const IDLE_NS: u64 = 1_000_000_000;

/// A request.
pub enum Work {
    Transfer(aio::Transfer),
    LookUp(names::LookUp),
}

impl Work {
    /// Requests for which this is the same, and not `None`, are carried out in order.
    fn order(&self) -> Option<c_int> {
        match self {
            Work::Transfer(t) => Some(t.descriptor),
            Work::LookUp(_) => None,
        }
    }

    /// Address of the program's request.
    fn address(&self) -> usize {
        match self {
            Work::Transfer(t) => t.request,
            Work::LookUp(l) => l.request,
        }
    }

    fn carry_out(self) {
        match self {
            Work::Transfer(t) => t.carry_out(),
            Work::LookUp(l) => l.carry_out(),
        }
    }

    /// Ends the request without carrying it out.
    pub fn cancel(self) {
        match self {
            Work::Transfer(t) => t.cancel(),
            Work::LookUp(l) => l.cancel(),
        }
    }
}

struct Active {
    /// [`Work::order`].
    order: c_int,
    /// It was carried out, and its result is being stored.
    is_done: bool,
}

struct Queue {
    waiting: VecDeque<Work>,
    /// The ordered requests that are being carried out.
    active: Vec<Active>,
    threads: u32,
    idle: u32,
}

impl Queue {
    const fn new() -> Queue {
        Queue {
            waiting: VecDeque::new(),
            active: Vec::new(),
            threads: 0,
            idle: 0,
        }
    }

    /// Must `work`, which comes last, wait for another request?
    fn must_wait(&self, work: &Work) -> bool {
        let order = work.order();
        let before = self.waiting.iter().map(Work::order);
        let mut all = before.chain(self.active.iter().map(|a| Some(a.order)));
        order.is_some() && all.any(|o| o == order)
    }

    /// The next request that may be carried out.
    fn take(&mut self) -> Option<Work> {
        let is_free = |work: &Work| work.order().is_none_or(|o| self.active(o).is_none());
        let at = self.waiting.iter().position(is_free)?;
        let work = self.waiting.remove(at)?;
        let order = work.order();
        self.active.extend(order.map(|order| Active {
            order,
            is_done: false,
        }));
        Some(work)
    }

    /// Where the request with this order is that is being carried out.
    fn active(&self, order: c_int) -> Option<usize> {
        self.active.iter().position(|a| a.order == order)
    }
}

hot! {
    static QUEUE: Lock<Queue> = Lock::new(Queue::new());
}
/// Changes with each request that is made.
static MADE: AtomicU32 = AtomicU32::new(0);
/// Changes with each request that is over.
static OVER: AtomicU32 = AtomicU32::new(0);

pub fn before_fork() {
    QUEUE.before_fork();
}

pub fn after_fork() {
    QUEUE.after_fork();
}

/// What was requested is the parent's.
pub fn forget() {
    if MADE.load(Relaxed) != 0 {
        std::mem::forget(std::mem::replace(&mut *QUEUE.lock(), Queue::new()));
    }
}

/// Has `work` carried out. If there is no thread for it, and none can be started, it is given back.
pub fn submit(work: Work) -> Result<(), Work> {
    let address = work.address();
    let mut queue = QUEUE.lock();
    let must_wait = queue.must_wait(&work);
    queue.waiting.push_back(work);
    let is_short = queue.idle < queue.waiting.len() as u32 && !must_wait;
    let starts = queue.threads == 0 || (is_short && queue.threads < THREADS);
    queue.threads += u32::from(starts);
    MADE.fetch_add(1, Release);
    drop(queue);
    futex::wake(&MADE, 1, false);
    if starts && start_thread(run) != 0 {
        let mut queue = QUEUE.lock();
        queue.threads -= 1;
        let is_left = queue.waiting.iter().rposition(|w| w.address() == address);
        if queue.threads == 0
            && let Some(work) = is_left.and_then(|at| queue.waiting.remove(at))
        {
            return Err(work);
        }
    }
    Ok(())
}

/// Takes away the requests that wait and that `is_meant` is true of. It must not touch the
/// program's memory.
pub fn withdraw(is_meant: impl Fn(&Work) -> bool) -> Vec<Work> {
    let mut taken = Vec::new();
    let mut queue = QUEUE.lock();
    let mut at = 0;
    while at < queue.waiting.len() {
        if is_meant(&queue.waiting[at]) {
            taken.extend(queue.waiting.remove(at));
        } else {
            at += 1;
        }
    }
    taken
}

/// Is a request with this [`Work::order`] being carried out? One whose result is just being stored is
/// waited for.
pub fn is_active(order: c_int) -> bool {
    loop {
        let queue = QUEUE.lock();
        match queue.active(order) {
            None => return false,
            Some(at) if !queue.active[at].is_done => return true,
            Some(_) => drop(queue),
        }
        std::thread::yield_now();
    }
}

/// The request with this [`Work::order`] was carried out: its result is stored by `store`, and the
/// next one may be carried out. A program that knows the result does not find the request active.
pub fn end(order: c_int, store: impl FnOnce()) {
    let mut queue = QUEUE.lock();
    if let Some(at) = queue.active(order) {
        queue.active[at].is_done = true;
    }
    drop(queue);
    store();
    let mut queue = QUEUE.lock();
    if let Some(at) = queue.active(order) {
        queue.active.swap_remove(at);
    }
}

extern "C" fn run(_: *mut c_void) -> *mut c_void {
    let mut queue = QUEUE.lock();
    loop {
        if let Some(work) = queue.take() {
            drop(queue);
            work.carry_out();
            queue = QUEUE.lock();
            continue;
        }
        let seen = MADE.load(Acquire);
        queue.idle += 1;
        drop(queue);
        futex::wait(&MADE, seen, Some(IDLE_NS), false);
        queue = QUEUE.lock();
        queue.idle -= 1;
        if MADE.load(Acquire) == seen {
            queue.threads -= 1;
            return null_mut();
        }
    }
}

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

    /// Waits until all are over. Returns 0 or EINTR.
    pub fn wait(&self) -> c_int {
        wait_until(None, || self.left.load(Acquire) == 0)
    }
}

/// Waits until `is_over`, which is asked again whenever a request is over, up to a point in time.
/// Returns 0, EINTR or ETIMEDOUT.
pub fn wait_until(deadline: Option<&libc::timespec>, is_over: impl Fn() -> bool) -> c_int {
    loop {
        let seen = OVER.load(Acquire);
        if is_over() {
            return 0;
        }
        match wait_interruptibly(&OVER, seen, deadline) {
            0 => {}
            error => return error,
        }
    }
}
