//! Fork: the child gets the parent's managed memory as it was at that moment, and a record of its
//! own.
//!
//! *Before.* `pthread_atfork` handlers, and a wrapper of `_Fork`, bring the engine to rest through
//! the gate. Under `hugeswap run` ours are the first handlers of the process: what other libraries
//! lock before a fork they lock while the engine still serves the threads that hold it. Every unit
//! in memory becomes read-only and *shared* (COW), the arena is marked so that the child does not
//! inherit it, and a record of the pool is reserved for the child. Base-mapped units are written
//! out (holes in their slots are filled with zeros) and not inherited, since a registration with a
//! userfaultfd is not: the child finds them in swap, the parent keeps them in memory. In message
//! mode memory that is in swap is not inherited either, so that a touch in the child, before its
//! engine has settled, cannot read zeros. Of mapped files parent and child both read what the file
//! has (see `file::sync`).
//!
//! *Between.* The handlers of other libraries run between ours and the fork itself, and may touch
//! managed memory. The forking thread passes the gate, and takes frames beyond the budget if it
//! must, because no thread can make room for it then. What it touches comes in whole.
//!
//! *In the child.* The child empties its arena, continues in signal mode whatever the parent's mode
//! was, opens a userfaultfd of its own for base pages, marks what it shares as not charged to it,
//! and starts threads of its own.
//!
//! *Swap.* Both read units in swap from the parent's slots, which stay as they are until no child
//! is left that may read them ([`crate::store`], `kept`): freed slots are kept back, and changed
//! units go to new slots, to which the unchanged pages of a base-mapped unit are copied. The
//! parent's record outlives the parent for that (a zombie record).
//!
//! *Limits.* A child that gets no record (there are 256), or that has lost the one reserved for it,
//! has nothing that keeps slots for it. What was in its parent's swap is lost to it: SIGBUS, and a
//! line. A child without a record works in a record of nobody's, which is counted nowhere, and has
//! no swap.
//!
//! Handlers of other libraries that were registered before ours (none under `hugeswap run`) run in
//! the child before ours. If they touch managed memory that is not in memory, or that was
//! base-mapped, they end in SIGBUS with a line: always in signal mode, and in message mode where
//! memory is in swap.
//!
//! A child made without the C library (a raw `fork` system call) finds a page that the kernel wiped
//! ([`crate::forked`]) and refuses to touch managed memory. A child of vfork shares everything, and
//! its faults are taken in the parent's engine. exec starts afresh: the new image joins the pool
//! under a record of its own.

use crate::engine::{Engine, UNIT};
use crate::forked::{InheritanceLoss, note_inheritance_loss, set_fork_mark};
use crate::outcome::Fault;
use crate::pool::layout::NOBODY;
use crate::pool::{PoolError, Reservation};
use crate::track::Held;
use crate::{doubts, gate, handler, stack};
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::unit::step::Event;
use hugeswap_policy::unit::{COW, Kind, WATCHED, WRITABLE, Word};
use hugeswap_sys::signal::Blocked;
use hugeswap_sys::{fs, futex, mm, process, thread};
use std::sync::Once;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

static REGISTER: Once = Once::new();

/// Has fork call us, once a process; later calls do nothing. The first engine's start does it. It
/// allocates as the C library does, so where an engine is started inside the program's allocator,
/// [`is_registered`] is called before. Of handlers that are registered before it, what prepares for
/// a fork runs after ours, when the engine serves nobody, and what runs in the child runs before
/// ours.
pub(crate) fn register() {
    REGISTER.call_once(|| {
        // SAFETY: the three functions live as long as the process.
        unsafe { libc::pthread_atfork(Some(prepare_c), Some(parent_c), Some(child_c)) };
    });
}

/// Makes [`register`] do nothing, in a process that has [`fork_prepare`], [`fork_parent`] and
/// [`fork_child`] called at each fork by handlers of its own.
pub fn is_registered() {
    REGISTER.call_once(|| {});
}

extern "C" fn prepare_c() {
    fork_prepare();
}
extern "C" fn parent_c() {
    fork_parent();
}
extern "C" fn child_c() {
    fork_child();
}

/// To be called before a fork that does not run the handlers of pthread_atfork (`_Fork`).
pub fn fork_prepare() {
    let _blocked = Blocked::all_but_faults();
    handler::engines().for_each(Engine::before_fork);
    handler::before_fork();
}

/// As [`fork_prepare`], in the parent after the fork, also if it failed.
pub fn fork_parent() {
    let _blocked = Blocked::all_but_faults();
    handler::after_fork();
    handler::engines().for_each(Engine::after_fork_in_parent);
}

/// As [`fork_prepare`], in the child.
pub fn fork_child() {
    let _blocked = Blocked::all_but_faults();
    gate::inside_in_child(handler::engines().count() as u32);
    handler::after_fork();
    // SAFETY: a forked child's only thread; every engine forgets its threads below.
    unsafe { thread::reset_in_child() };
    // Before there are threads of ours that take one.
    stack::reset_in_child();
    // (A thread that forks may have a few KiB left. Only faults of our own interrupt this one.)
    stack::call(|| handler::engines().for_each(Engine::after_fork_in_child));
}

/// Tries what a process, or its child, cannot go on without until it succeeds, within reason: the
/// kernel may be out of memory for a moment. Did it?
fn insist(mut attempt: impl FnMut() -> bool) -> bool {
    const TRIES: u32 = 64;
    (0..TRIES).any(|_| attempt())
}

/// A forked child has no place for its memory.
#[cold]
fn end_for_want_of_mappings() {
    fs::complain(&[
        b"hugeswap: the kernel gives a forked child no mappings for its memory; ending it\n",
    ]);
    process::kill_self();
}

impl Engine {
    fn before_fork(&'static self) {
        self.await_budget();
        self.come_to_rest();
        // A child has none of the parent's arena.
        while let Some(place) = self.rests.take() {
            self.arena.put_free(place);
        }
        self.pool.record().forking.store(1, Release);
        let reserve = || self.pool.reserve(self.pool.me() as u32 + 1).ok();
        let reserved = reserve().or_else(|| {
            self.pool.reap();
            reserve()
        });
        *self.reserved.lock() = reserved;
        if let Some(Reservation { record, .. }) = reserved {
            // Now, for this process may unmap before the child looks.
            let managed = self.pool.record().managed.load(Relaxed);
            self.pool.records()[record].managed.store(managed, Relaxed);
            self.sharing.share_with_child(record);
        }
        // Before there is a child that the slots must stay as they are for, if it is the first.
        self.write_all_files();
        self.clean_all_pages();
        let fork = self.store.kept.begin_fork();
        if let Some(Reservation { record, .. }) = reserved {
            self.pool.records()[record].fork.store(fork, Relaxed);
        }
        self.share_all();
        self.arena.inherit(false);
        self.hide_absent(true);
    }

    /// Gets all threads but the caller out of the engine, with nothing left half done, until the
    /// gate is opened.
    pub(crate) fn come_to_rest(&'static self) {
        /// How often it looks before it sleeps in between, for those it waits for may need its
        /// processor.
        const LOOKS: u32 = 100;
        const SLEEP_NS: u64 = 100_000;
        let mut looks = 0;
        self.gate.close();
        loop {
            // What is queued must be done: a queued read holds its unit's lock.
            while !self.reads.is_empty()
                || !self.writes.is_empty()
                || self.inflight_writes.load(Acquire) > 0
            {
                self.wake_workers(u32::MAX >> 1);
                self.pool.kick();
                looks += 1;
                match looks < LOOKS {
                    true => process::yield_now(),
                    // (No thread is woken that waits for this word: it is the time that counts.)
                    false => {
                        let under_way = self.inflight_writes.load(Acquire);
                        futex::wait(&self.inflight_writes, under_way, Some(SLEEP_NS), false);
                    }
                }
            }
            self.gate.close_daemons();
            if self.reads.is_empty()
                && self.writes.is_empty()
                && self.inflight_writes.load(Acquire) == 0
            {
                break;
            }
            self.gate.open_daemons();
        }
    }

    /// Waits until this process has given back what it owes, as long as it gives anything back. No
    /// frame is given back between the gate's closing and the end of the fork. Where the budget
    /// follows a limit that is reached, the kernel would find no memory for the child, and end the
    /// program.
    fn await_budget(&self) {
        /// Looks without progress: longer than a device takes for what is under way.
        const LOOKS: u32 = 200;
        const SLEEP_NS: u64 = 1_000_000;
        let (mut least, mut looks) = (u64::MAX, 0);
        while looks < LOOKS {
            match self.frames_owed() {
                0 => return,
                owed if owed < least => (least, looks) = (owed, 0),
                _ => looks += 1,
            }
            self.pool.kick();
            // (No thread is woken that waits for this word: it is the time that counts.)
            let under_way = self.inflight_writes.load(Acquire);
            futex::wait(&self.inflight_writes, under_way, Some(SLEEP_NS), false);
        }
    }

    /// Message mode: the child's mappings are not registered, so that what is in swap would read as
    /// zeros there until our own part has run, and other libraries' parts may run before. It finds
    /// nothing mapped instead. `hide` false: takes that back. (Base-mapped units of signal mode are
    /// never inherited.)
    fn hide_absent(&self, hide: bool) {
        if !self.backend.can().absent_has_access {
            return;
        }
        let inherit = |from: u32, to: u32, yes| {
            let (at, len) = (self.table.addr(from), (to - from) as usize * UNIT);
            self.backend.let_inherit(at, len, yes)
        };
        let end = self.high_unit.load(Relaxed);
        if !hide {
            // What stayed hidden would be missing in the next child.
            return self.own_runs(0..end.max(1), |from, to| {
                insist(|| inherit(from, to, true).is_ok());
            });
        }
        // (A child that inherits them maps them anew.)
        self.absent_runs(|from, to| {
            let _ = inherit(from, to, false);
        });
    }

    /// Calls `f` with each run of `units` that are not the kernel's.
    fn own_runs(&self, units: std::ops::Range<u32>, mut f: impl FnMut(u32, u32)) {
        let mut from = units.start;
        for unit in units.clone() {
            if self.table.load(unit).kind() == Kind::Foreign {
                if from < unit {
                    f(from, unit);
                }
                from = unit + 1;
            }
        }
        if from < units.end {
            f(from, units.end);
        }
    }

    /// In the child of a process in message mode: the kernel dropped the registration, so that
    /// holes would read as zeros. What is not the kernel's is without access from now on.
    fn close_window(&self) {
        let close = |from: u32, to: u32| {
            let (at, len) = (self.table.addr(from), (to - from) as usize * UNIT);
            // SAFETY: this thread is the only one; faults are ours from the next call on.
            if !insist(|| unsafe { mm::protect(at, len, mm::PROT_NONE) }.is_ok()) {
                end_for_want_of_mappings();
            }
            // SAFETY: advice that discards nothing.
            let _ = unsafe { mm::advise(at, len, libc::MADV_HUGEPAGE) };
        };
        let end = self.high_unit.load(Relaxed);
        self.own_runs(0..end, close);
        close(end, self.table.units());
    }

    /// Calls `f` with each run of units that a child must not inherit as they are mapped.
    fn absent_runs(&self, mut f: impl FnMut(u32, u32)) {
        let end = self.high_unit.load(Relaxed);
        let hidden = self.backend.can().absent_has_access;
        let absent = |unit| match self.table.load(unit).kind() {
            _ if self.files.of(unit).is_some() => true,
            Kind::Base => true,
            // (What is in the arena is not inherited either.)
            Kind::Swapped | Kind::Cached => hidden,
            _ => false,
        };
        let mut unit = 0;
        while unit < end {
            let from = unit;
            while unit < end && absent(unit) {
                unit += 1;
            }
            if unit > from {
                f(from, unit);
            }
            unit += 1;
        }
    }

    /// Marks every unit in memory as shared; no other thread is in the engine. In signal mode all
    /// but those that are held for writing: a system call of another thread's that is just writing
    /// there would end with EFAULT. What is written there until the next fork is copied by the
    /// kernel, which is right, only not counted by us.
    fn share_all(&self) {
        let end = self.high_unit.load(Relaxed);
        let held =
            |w: Word| w.has(WRITABLE) && w.pins() > 0 && !self.backend.can().faults_are_messages;
        let writable = |u: u32| {
            let w = self.table.load(u);
            (w.has(WRITABLE) || w.kind() == Kind::Present && self.track.is_open(u))
                && !held(w)
                && w.allows(false)
                && self.files.of(u).is_none()
        };
        let mut unit = 0;
        while unit < end {
            let mut run = 0;
            while unit + run < end && writable(unit + run) {
                run += 1;
            }
            // If this fails (limit on mappings), the kernel copies what is written: right, only not
            // counted by us.
            let protected = run == 0
                || self
                    .backend
                    .set_read_only(self.table.addr(unit), run as usize * UNIT)
                    .is_ok();
            for u in unit..unit + run.max(1) {
                let w = self.table.load(u);
                if w.kind() != Kind::Present || held(w) || self.files.of(u).is_some() {
                    continue;
                }
                if w.has(WATCHED) && w.allows(false) {
                    // Should it fail, the next touch gives access.
                    let _ = self.backend.set_readable(self.table.addr(u));
                }
                if protected {
                    self.note_left(u, Held::At(self.table.addr(u)));
                }
                let forked = Event::Forked {
                    read_only: protected,
                };
                let effects = self.table.reset_by(u, forked);
                self.tell(u, effects.lists);
            }
            unit += run.max(1);
        }
    }

    fn after_fork_in_parent(&'static self) {
        // What the forking thread itself brought in meanwhile is shared too.
        self.share_all();
        self.arena.inherit(true);
        self.hide_absent(false);
        self.store.kept.end_fork();
        self.pool.record().forking.store(0, Release);
        self.gate.open();
        self.pool.kick();
    }

    fn after_fork_in_child(&'static self) {
        let reserved = self.reserved.lock().take();
        let filled = reserved.filter(|&r| self.pool.fill(r));
        // Without the record that was reserved, no process kept the parent's slots for this one.
        let disowned = filled.is_none();
        if disowned {
            note_inheritance_loss(InheritanceLoss::NoRecord);
        }
        let joined = filled.map(|r| r.record).or_else(|| self.pool.join().ok());
        self.table.count_nowhere();
        self.pool.become_record(joined.unwrap_or(NOBODY));
        let was_message = self.backend.can().faults_are_messages;
        self.absent_runs(|from, to| {
            let (at, len) = (self.table.addr(from), (to - from) as usize * UNIT);
            // (Where none is mapped the window could not be closed.)
            // SAFETY: not inherited (`hide_absent`), so there is nothing to replace.
            insist(|| unsafe { mm::map_anon(at, len, mm::PROT_NONE, true) }.is_ok());
            // SAFETY: advice that discards nothing.
            let _ = unsafe { mm::advise(at, len, libc::MADV_HUGEPAGE) };
        });
        if was_message {
            self.close_window();
        }
        self.backend
            .reset_in_child(self.pool.knob(Knob::Userfaultfd) != 0);
        if was_message {
            self.note_mode();
        }
        if !insist(|| self.arena.reset_in_child().is_ok()) {
            end_for_want_of_mappings();
        }
        // SAFETY: this thread is the only one, and forks outside the pool.
        unsafe { self.pool.free_locks_in_child() };
        self.pool.leave_secret();
        self.store.reset_in_child();
        self.base.reset_in_child();
        self.files_in_child();
        self.sharing.in_child(self.host(), disowned);
        self.looked.forget_in_child();
        let end = self.high_unit.load(Relaxed);
        for unit in 0..end {
            let w = self.table.load(unit);
            let at = self.table.addr(unit);
            let event = match w.kind() {
                Kind::Present => {
                    // Where access cannot be given, the next touch does it, also if it is the
                    // kernel's.
                    let watched =
                        was_message && w.allows(false) && self.backend.set_readable(at).is_err();
                    // Brought in by the forking thread itself, after everything was shared.
                    let changed = !w.has(COW)
                        && w.allows(false)
                        && self.backend.set_read_only(at, UNIT).is_err();
                    self.note_left(unit, Held::At(at));
                    Event::Inherited { watched, changed }
                }
                Kind::Base => self.pages_in_child(unit, w),
                _ => Event::Inherited {
                    watched: false,
                    changed: false,
                },
            };
            // (Nothing is counted, and places are the parent's.)
            let _ = self.table.reset_by(unit, event);
            let w = self.table.load(unit);
            if disowned && w.kind() == Kind::Swapped {
                // Its place in swap may be another unit's by now.
                self.store.lose_place(unit, w.place());
                let _ = self.table.reset_by(unit, Event::Lost);
            }
        }
        // From what the parent has on.
        self.count_touched();
        self.emptying.store(false, Relaxed);
        self.stalled.store(0, Relaxed);
        self.pacing.reset_in_child();
        self.store.begin_in_child();
        // The parent's threads are not here; one of them may have been adding another.
        // SAFETY: this thread is the only one, and forks outside the engine.
        unsafe { self.threads.reset_in_child(Vec::new()) };
        self.times.reset_in_child();
        self.sizes.reset_in_child();
        set_fork_mark(self.fork_mark);
        self.gate.reset_in_child();
        if joined.is_none() {
            let e = PoolError::TooManyProcesses.to_string();
            fs::complain(&[
                b"hugeswap: ",
                e.as_bytes(),
                b"; this one has no swap, and lost what was in its parent's\n",
            ]);
        }
        match self.start_threads() {
            Ok(()) => self.sharing.await_all_met(self.host()),
            Err(e) => {
                let text = e.to_string();
                fs::complain(&[b"hugeswap: ", text.as_bytes(), b"\n"]);
            }
        }
        doubts::forget_all();
    }

    /// Before a fork: what the child will read of base-mapped units is in their slots, and the
    /// units themselves are not inherited. Nobody else is in the engine.
    pub(crate) fn clean_all_pages(&self) {
        for unit in 0..self.high_unit.load(Relaxed) {
            if self.table.load(unit).kind() != Kind::Base || self.files.of(unit).is_some() {
                continue;
            }
            let record = self.base.records.of(unit);
            let mut w = self.table.lock(unit);
            let clean = self.clean_pages(&mut w)
                && (!record.stored.any() || self.complete_place(&mut w, record));
            w.settle();
            // Swap would not take it. The child inherits it in memory, whatever the budget says;
            // should that fail too, it finds the unit lost. (The first time there may have been no
            // frame yet.)
            let tries = if clean { 0 } else { 3 };
            for _ in 0..tries {
                let w = self.table.lock(unit);
                let fault = Fault::by_engine(w.addr(), false);
                if self.make_whole(w, fault).is_some() {
                    break;
                }
            }
        }
    }
}
