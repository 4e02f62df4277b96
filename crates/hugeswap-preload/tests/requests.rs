//! Requests of asynchronous input and output: their order, and, under every schedule, their end.
//! The code is the one of the shared object, over a mutex that loom sees.
//!
//! Checked in every interleaving: a program that knows a request's result does not find it under
//! way; a request that a cancellation says is over has its result; a request has one result; two
//! requests of one order are not carried out at the same time. That the explorer would notice is
//! checked, too: each [`Bug`] breaks a rule, and the model then fails.

#[path = "../src/helpers/requests.rs"]
mod requests;

use loom::sync::atomic::Ordering::SeqCst;
use loom::sync::atomic::{AtomicBool, AtomicUsize};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use requests::{Canceled, Monitor, Requests, Selection, Terms, Ticket, cancel, finish};
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// A request that was carried out is not marked before its result is stored.
    EndsUnmarked,
    /// It is removed before its result is stored.
    EndsBeforeItsResult,
    /// It is removed when it is taken.
    EndsBeforeItBegins,
    /// A request that is canceled is removed before its result is stored.
    CanceledBeforeItsResult,
    /// A cancellation does not wait for results that are being stored.
    CancelsWithoutWaiting,
    /// Nothing wakes a cancellation that waits.
    EndsWithoutNotice,
}

const UNDER_WAY: usize = 0;
const DONE: usize = 1;
const CANCELED: usize = 2;

/// What the requests have in common: they are of one descriptor.
const ORDER: i32 = 7;

struct Program {
    requests: Mutex<Requests<usize>>,
    is_over: Condvar,
    /// Of each request.
    results: Vec<AtomicUsize>,
    /// Is the descriptor in use?
    is_busy: AtomicBool,
    bug: Bug,
}

impl Monitor<Requests<usize>> for Program {
    fn with<R>(&self, f: impl FnOnce(&mut Requests<usize>) -> R) -> R {
        f(&mut self.requests.lock().unwrap())
    }

    fn wait_until<R>(&self, mut f: impl FnMut(&mut Requests<usize>) -> Option<R>) -> R {
        let mut requests = self.requests.lock().unwrap();
        loop {
            if let Some(result) = f(&mut requests) {
                return result;
            }
            requests = self.is_over.wait(requests).unwrap();
        }
    }

    fn notify(&self) {
        if self.bug != Bug::EndsWithoutNotice {
            self.is_over.notify_all();
        }
    }
}

fn terms(request: usize) -> Terms {
    Terms {
        address: request,
        order: Some(ORDER),
        priority: 0,
        is_barrier: false,
    }
}

impl Program {
    fn new(count: usize, bug: Bug) -> Arc<Program> {
        let mut requests = Requests::new();
        for request in 0..count {
            assert_eq!(requests.add(terms(request), request), request > 0);
        }
        Arc::new(Program {
            requests: Mutex::new(requests),
            is_over: Condvar::new(),
            results: (0..count).map(|_| AtomicUsize::new(UNDER_WAY)).collect(),
            is_busy: AtomicBool::new(false),
            bug,
        })
    }

    fn store(&self, request: usize, result: usize) {
        let former = self.results[request].swap(result, SeqCst);
        assert_eq!(former, UNDER_WAY, "request {request} has two results");
    }

    fn is_known(&self, request: usize) -> bool {
        self.results[request].load(SeqCst) != UNDER_WAY
    }

    /// What a thread does that carries out requests.
    fn carry_out_one(&self) {
        let Some((ticket, request)) = self.with(Requests::take) else {
            return;
        };
        if self.bug == Bug::EndsBeforeItBegins {
            self.with(|r| r.remove(ticket));
        }
        let was_busy = self.is_busy.swap(true, SeqCst);
        assert!(!was_busy, "two requests at a time");
        self.is_busy.store(false, SeqCst);
        self.finish(ticket, request);
    }

    fn finish(&self, ticket: Ticket, request: usize) {
        let store = || self.store(request, DONE);
        match self.bug {
            Bug::EndsUnmarked => {
                store();
                self.with(|r| r.remove(ticket));
                self.notify();
            }
            Bug::EndsBeforeItsResult => {
                self.with(|r| r.remove(ticket));
                self.notify();
                store();
            }
            _ => finish(self, ticket, store),
        }
    }

    fn cancel(&self, selection: Selection) -> Canceled {
        let store = |&request: &usize| self.store(request, CANCELED);
        let withdraw = || self.with(|r| r.withdraw(selection));
        let outcome = |is_running, withdrawn| match (is_running, withdrawn) {
            (true, _) => Canceled::NotAll,
            (false, 0) => Canceled::Nothing,
            (false, _) => Canceled::All,
        };
        match self.bug {
            Bug::CanceledBeforeItsResult => {
                let taken = withdraw();
                for &(ticket, _) in &taken {
                    self.with(|r| r.remove(ticket));
                }
                self.notify();
                taken.iter().for_each(|(_, request)| store(request));
                outcome(self.wait_until(|r| r.is_running(selection)), taken.len())
            }
            Bug::CancelsWithoutWaiting => {
                let taken = withdraw();
                for (ticket, request) in &taken {
                    store(request);
                    self.with(|r| r.remove(*ticket));
                }
                let is_running = self.with(|r| r.is_running(selection));
                outcome(is_running.unwrap_or(false), taken.len())
            }
            _ => cancel(self, selection, store).0,
        }
    }

    /// A thread of the program's cancels, and looks at the results.
    fn cancel_and_look(&self, selection: Selection) {
        let selected = match selection {
            Selection::Order(_) => 0..self.results.len(),
            Selection::Address(request) => request..request + 1,
        };
        let knew_all = selected.clone().all(|r| self.is_known(r));
        let outcome = self.cancel(selection);
        match outcome {
            Canceled::NotAll => assert!(!knew_all, "under way, and its result is known"),
            _ => assert!(
                selected.clone().all(|r| self.is_known(r)),
                "over, and without a result"
            ),
        }
        if let (Selection::Address(request), Canceled::All) = (selection, outcome) {
            assert_eq!(self.results[request].load(SeqCst), CANCELED);
        }
    }
}

/// Threads that carry out `count` requests, one of which this one is, and that cancel.
fn explore(count: usize, cancels: &'static [Selection], bug: Bug) {
    let mut model = loom::model::Builder::new();
    // (Without a bound three threads take minutes.)
    model.preemption_bound = Some(3);
    model.check(move || {
        let program = Program::new(count, bug);
        let mut threads = Vec::new();
        for &selection in cancels {
            let program = program.clone();
            threads.push(thread::spawn(move || program.cancel_and_look(selection)));
        }
        if count > 1 {
            let program = program.clone();
            threads.push(thread::spawn(move || program.carry_out_one()));
        }
        program.carry_out_one();
        for thread in threads {
            thread.join().unwrap();
        }
        for _ in 0..count {
            program.carry_out_one();
        }
        assert!((0..count).all(|r| program.is_known(r)), "one is lost");
    });
}

/// The numbers of requests, and who cancels what.
const MODELS: [(usize, &[Selection]); 4] = [
    (1, &[Selection::Order(ORDER)]),
    (1, &[Selection::Order(ORDER), Selection::Address(0)]),
    (2, &[Selection::Order(ORDER)]),
    (2, &[Selection::Address(1)]),
];

#[test]
fn what_is_over_has_its_result_and_what_has_a_result_is_over() {
    for (count, cancels) in MODELS {
        explore(count, cancels, Bug::None);
    }
}

#[test]
fn the_model_would_notice() {
    for bug in [
        Bug::EndsUnmarked,
        Bug::EndsBeforeItsResult,
        Bug::EndsBeforeItBegins,
        Bug::CanceledBeforeItsResult,
        Bug::CancelsWithoutWaiting,
        Bug::EndsWithoutNotice,
    ] {
        let is_found = MODELS.iter().any(|&(count, cancels)| {
            std::panic::catch_unwind(|| explore(count, cancels, bug)).is_err()
        });
        assert!(is_found, "{bug:?} went unnoticed");
    }
}

/// The order in which requests are carried out, one after the other. Each is given by its order,
/// its priority and whether it is a barrier.
fn carried_out(all: &[(Option<i32>, i32, bool)]) -> Vec<usize> {
    let mut requests = Requests::new();
    for (request, &(order, priority, is_barrier)) in all.iter().enumerate() {
        let terms = Terms {
            address: request,
            order,
            priority,
            is_barrier,
        };
        requests.add(terms, request);
    }
    let next = || {
        let (ticket, request) = requests.take()?;
        requests.begin_to_end(ticket);
        requests.remove(ticket);
        Some(request)
    };
    std::iter::from_fn(next).collect()
}

#[test]
fn priorities_order_the_requests_of_a_descriptor() {
    let one = |priority| (Some(1), priority, false);
    assert_eq!(carried_out(&[one(0), one(0), one(0)]), [0, 1, 2]);
    assert_eq!(
        carried_out(&[one(-5), one(-20), one(0), one(-5), one(0)]),
        [2, 4, 0, 3, 1]
    );
    // A request to synchronise stays where it is.
    let barrier = (Some(1), 0, true);
    assert_eq!(
        carried_out(&[one(-5), one(-3), barrier, one(-9), one(3)]),
        [1, 0, 2, 4, 3]
    );
    // Others pass it.
    let (other, free) = ((Some(2), 5, false), (None, 1, false));
    assert_eq!(
        carried_out(&[one(-5), barrier, one(9), other, free]),
        [3, 4, 0, 1, 2]
    );
}

#[test]
fn one_request_of_an_order_is_carried_out_at_a_time() {
    let mut requests = Requests::new();
    let free = Terms {
        order: None,
        ..terms(3)
    };
    assert!(!requests.add(terms(0), 0));
    assert!(requests.add(terms(1), 1));
    assert!(!requests.add(free, 3));
    let (first, request) = requests.take().unwrap();
    assert_eq!(request, 0);
    assert_eq!(requests.take().unwrap().1, 3);
    assert!(requests.take().is_none());
    requests.begin_to_end(first);
    assert!(requests.take().is_none(), "its result is being stored");
    requests.remove(first);
    assert_eq!(requests.waiting(), 1);
    assert_eq!(requests.take_back(0), None);
    assert_eq!(requests.take_back(1), Some(1));
    assert!(requests.take().is_none());
}
