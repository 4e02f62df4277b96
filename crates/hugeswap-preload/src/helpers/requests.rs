//! Requests that wait to be carried out and those under way: which one is next, and what a
//! cancellation finds.
//!
//! The result of a request is stored in the program's memory, without the lock. A program that
//! knows a result must not find the request under way, and a request that a cancellation says is
//! over must have its result. So a request ends in three steps ([`finish`], [`cancel`]):
//!
//! 1. under the lock it is marked as ending;
//! 2. its result is stored;
//! 3. under the lock it is removed.
//!
//! A cancellation waits until no request that it is about is ending.
//!
//! The protocol is generic over the lock, so that loom explores the code that ships
//! (`tests/requests.rs`).

use std::collections::VecDeque;

/// A value that a mutex guards, with a condition to wait for.
pub trait Monitor<T> {
    /// Calls `f` with the lock held.
    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R;

    /// Calls `f` with the lock held until it returns a value. Sleeps in between until
    /// [`Monitor::notify`] is called.
    fn wait_until<R>(&self, f: impl FnMut(&mut T) -> Option<R>) -> R;

    /// Wakes all threads in [`Monitor::wait_until`]. The lock is not held.
    fn notify(&self);
}

/// When a request is carried out, and how a cancellation finds it.
#[derive(Clone, Copy)]
pub struct Terms {
    /// Address of the program's request.
    pub address: usize,
    /// Requests of one order are carried out one after the other. `None`: at any time.
    pub order: Option<i32>,
    /// The larger, the sooner. Requests of equal priority stay in the order in which they were
    /// made.
    pub priority: i32,
    /// No request of the same order is moved across this one.
    pub is_barrier: bool,
}

/// The requests that a cancellation is about.
#[derive(Clone, Copy)]
pub enum Selection {
    Order(i32),
    Address(usize),
}

impl Selection {
    fn has(self, address: usize, order: Option<i32>) -> bool {
        match self {
            Selection::Order(o) => order == Some(o),
            Selection::Address(a) => address == a,
        }
    }
}

/// What became of the requests that a cancellation was about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canceled {
    /// Those that were not over were canceled.
    All,
    /// At least one is being carried out.
    NotAll,
    /// All were over.
    Nothing,
}

/// The name of a request under way.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Ticket(u64);

struct Waiting<W> {
    terms: Terms,
    work: W,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Running,
    /// It was carried out, and its result is being stored.
    CarriedOut,
    /// It was not carried out, and that is being stored.
    Canceled,
}

struct Active {
    ticket: Ticket,
    address: usize,
    order: Option<i32>,
    stage: Stage,
}

/// Requests that wait, each with what is needed to carry it out, and those under way.
pub struct Requests<W> {
    /// Those of one order in the order in which they will be carried out.
    waiting: VecDeque<Waiting<W>>,
    active: Vec<Active>,
    tickets: u64,
}

impl<W> Requests<W> {
    pub const fn new() -> Requests<W> {
        Requests {
            waiting: VecDeque::new(),
            active: Vec::new(),
            tickets: 0,
        }
    }

    /// The number of requests that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Adds a request. Returns true if it must wait until another one is over.
    pub fn add(&mut self, terms: Terms, work: W) -> bool {
        let is_of_its_order =
            |w: &&Waiting<W>| terms.order.is_some() && w.terms.order == terms.order;
        let must_wait =
            self.waiting.iter().any(|w| is_of_its_order(&w)) || self.is_busy(terms.order);
        let mut at = self.waiting.len();
        if must_wait && !terms.is_barrier {
            let others = self.waiting.iter().enumerate().rev();
            let lower = others
                .filter(|(_, w)| is_of_its_order(w))
                .take_while(|(_, w)| !w.terms.is_barrier && w.terms.priority < terms.priority);
            at = lower.last().map_or(at, |(i, _)| i);
        }
        self.waiting.insert(at, Waiting { terms, work });
        must_wait
    }

    /// Takes back the last request with this address that still waits.
    pub fn take_back(&mut self, address: usize) -> Option<W> {
        let is_meant = |w: &Waiting<W>| w.terms.address == address;
        let at = self.waiting.iter().rposition(is_meant)?;
        self.waiting.remove(at).map(|w| w.work)
    }

    /// Takes the next request that may be carried out: of those whose order is free the first with
    /// the largest priority.
    pub fn take(&mut self) -> Option<(Ticket, W)> {
        let mut best: Option<usize> = None;
        for (at, Waiting { terms, .. }) in self.waiting.iter().enumerate() {
            let is_better = best.is_none_or(|b| terms.priority > self.waiting[b].terms.priority);
            if is_better && self.may_begin(at) {
                best = Some(at);
            }
        }
        let Waiting { terms, work } = self.waiting.remove(best?)?;
        Some((self.activate(terms, Stage::Running), work))
    }

    /// May the request that waits at `at` be carried out?
    fn may_begin(&self, at: usize) -> bool {
        let order = self.waiting[at].terms.order;
        let mut before = self.waiting.iter().take(at);
        order.is_none() || (!self.is_busy(order) && before.all(|w| w.terms.order != order))
    }

    /// Is a request of this order being carried out, or is its result being stored?
    fn is_busy(&self, order: Option<i32>) -> bool {
        let is_its = |a: &Active| a.order == order && a.stage != Stage::Canceled;
        order.is_some() && self.active.iter().any(is_its)
    }

    fn activate(&mut self, terms: Terms, stage: Stage) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.active.push(Active {
            ticket,
            address: terms.address,
            order: terms.order,
            stage,
        });
        ticket
    }

    /// A request was carried out: it is ending.
    pub fn begin_to_end(&mut self, ticket: Ticket) {
        if let Some(a) = self.active.iter_mut().find(|a| a.ticket == ticket) {
            a.stage = Stage::CarriedOut;
        }
    }

    /// Takes the requests of a selection that wait: they are ending.
    pub fn withdraw(&mut self, selection: Selection) -> Vec<(Ticket, W)> {
        let mut taken = Vec::new();
        let mut at = 0;
        while at < self.waiting.len() {
            let terms = self.waiting[at].terms;
            if !selection.has(terms.address, terms.order) {
                at += 1;
            } else if let Some(w) = self.waiting.remove(at) {
                taken.push((self.activate(terms, Stage::Canceled), w.work));
            }
        }
        taken
    }

    /// The result of a request that was ending is stored.
    pub fn remove(&mut self, ticket: Ticket) {
        self.active.retain(|a| a.ticket != ticket);
    }

    /// Is a request of the selection being carried out? `None` if none is, but the result of one is
    /// being stored.
    pub fn is_running(&self, selection: Selection) -> Option<bool> {
        let meant = || {
            self.active
                .iter()
                .filter(|a| selection.has(a.address, a.order))
        };
        match meant().any(|a| a.stage == Stage::Running) {
            true => Some(true),
            false => meant().next().is_none().then_some(false),
        }
    }
}

/// Ends a request that was carried out. `store` stores its result. The next request of its order
/// may be taken afterwards.
pub fn finish<W>(requests: &impl Monitor<Requests<W>>, ticket: Ticket, store: impl FnOnce()) {
    requests.with(|r| r.begin_to_end(ticket));
    store();
    requests.with(|r| r.remove(ticket));
    requests.notify();
}

/// Cancels the requests of a selection that are not being carried out. `store` stores the result of
/// each. They are returned, so that the program can be told. Waits for other threads that store
/// results of the selection.
pub fn cancel<W>(
    requests: &impl Monitor<Requests<W>>,
    selection: Selection,
    store: impl Fn(&W),
) -> (Canceled, Vec<W>) {
    let taken = requests.with(|r| r.withdraw(selection));
    let mut canceled = Vec::new();
    for (ticket, work) in taken {
        store(&work);
        requests.with(|r| r.remove(ticket));
        canceled.push(work);
    }
    if !canceled.is_empty() {
        requests.notify();
    }
    let outcome = match requests.wait_until(|r| r.is_running(selection)) {
        true => Canceled::NotAll,
        false if canceled.is_empty() => Canceled::Nothing,
        false => Canceled::All,
    };
    (outcome, canceled)
}
