//! The threads that carry out requests.
//!
//! A thread takes the first request that may be carried out ([`Requests::take`]). A thread that
//! finds nothing to do for a second ends. A thread holds no lock while it carries out a request or
//! stores its result.

use super::requests::{self, Canceled, Monitor, Requests, Selection, Terms, Ticket};
use super::{BLOCKED, aio, names, start_thread};
use crate::lock::Lock;
use crate::mask::OURS;
use hugeswap_sys::{futex, signal};
use libc::c_void;
use std::ptr::null_mut;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

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
    fn terms(&self) -> Terms {
        match self {
            Work::Transfer(t) => t.terms(),
            Work::LookUp(l) => l.terms(),
        }
    }

    fn carry_out(self, ticket: Ticket) {
        match self {
            Work::Transfer(t) => {
                let (result, error) = t.carry_out();
                requests::finish(&REQUESTS, ticket, || t.store(result, error));
                t.tell();
            }
            Work::LookUp(l) => {
                let status = l.carry_out();
                requests::finish(&REQUESTS, ticket, || l.store(status));
                l.tell();
            }
        }
    }

    fn store_canceled(&self) {
        match self {
            Work::Transfer(t) => t.store(-1, libc::ECANCELED),
            Work::LookUp(l) => l.store(names::EAI_CANCELED),
        }
    }

    /// Tells the program that the request is over.
    fn tell(self) {
        match self {
            Work::Transfer(t) => t.tell(),
            Work::LookUp(l) => l.tell(),
        }
    }
}

struct Queue {
    requests: Requests<Work>,
    threads: u32,
    idle: u32,
}

impl Queue {
    const fn new() -> Queue {
        Queue {
            requests: Requests::new(),
            threads: 0,
            idle: 0,
        }
    }
}

hot! {
    static QUEUE: Lock<Queue> = Lock::new(Queue::new());
}
/// Changes with each request that is made.
static MADE: AtomicU32 = AtomicU32::new(0);
/// Changes with each request that is removed after its result was stored.
static REMOVED: AtomicU32 = AtomicU32::new(0);

/// The requests in [`QUEUE`].
struct InQueue;
static REQUESTS: InQueue = InQueue;

impl Monitor<Requests<Work>> for InQueue {
    fn with<R>(&self, f: impl FnOnce(&mut Requests<Work>) -> R) -> R {
        f(&mut QUEUE.lock().requests)
    }

    fn wait_until<R>(&self, mut f: impl FnMut(&mut Requests<Work>) -> Option<R>) -> R {
        loop {
            let seen = REMOVED.load(Acquire);
            if let Some(result) = self.with(&mut f) {
                return result;
            }
            futex::wait(&REMOVED, seen, None, false);
        }
    }

    fn notify(&self) {
        REMOVED.fetch_add(1, Release);
        futex::wake(&REMOVED, u32::MAX >> 1, false);
    }
}

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
    let terms = work.terms();
    let mut queue = QUEUE.lock();
    let must_wait = queue.requests.add(terms, work);
    let is_short = queue.idle < queue.requests.waiting() as u32 && !must_wait;
    let starts = queue.threads == 0 || (is_short && queue.threads < THREADS);
    queue.threads += u32::from(starts);
    MADE.fetch_add(1, Release);
    drop(queue);
    futex::wake(&MADE, 1, false);
    if starts && start_thread(run) != 0 {
        let mut queue = QUEUE.lock();
        queue.threads -= 1;
        if queue.threads == 0
            && let Some(work) = queue.requests.take_back(terms.address)
        {
            return Err(work);
        }
    }
    Ok(())
}

/// Cancels the requests of a selection that are not being carried out, and tells the program. It
/// finds their results, and those of the requests of the selection that were over before.
pub fn cancel(selection: Selection) -> Canceled {
    // A handler of the program's that cancels, too, must not wait for the thread that it
    // interrupted.
    let former = signal::set_mask(BLOCKED & !OURS);
    let (outcome, canceled) = requests::cancel(&REQUESTS, selection, Work::store_canceled);
    signal::set_mask(former);
    canceled.into_iter().for_each(Work::tell);
    outcome
}

extern "C" fn run(_: *mut c_void) -> *mut c_void {
    let mut queue = QUEUE.lock();
    loop {
        if let Some((ticket, work)) = queue.requests.take() {
            drop(queue);
            work.carry_out(ticket);
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
