//! The engine's own threads: threads of the C library, or threads that the C library does not know.
//!
//! | thread | what it does |
//! | --- | --- |
//! | `hs-kswapd` | [`crate::reclaim`] |
//! | `hs-io/0`, `hs-io/1` | [`crate::work`] |
//! | `hs-khugepaged` | [`crate::khugepaged`] |
//! | `hs-zswap` | `memory::zswapd`, once pages are to be compressed |
//! | `hs-fault`, four of them in message mode | [`crate::message`] |
//!
//! *In the library* they are threads of the C library, like any of the program's. The global
//! allocator may be any, and an allocator may ask the C library which thread calls it, or leave out
//! locks while the C library counts one thread. Every signal is blocked but the one by which the C
//! library has each thread change its user.
//!
//! *Under `hugeswap run`* they are made by a clone of our own ([`hugeswap_sys::thread`]), and the C
//! library does not know them. It does not count them, so the process ends with the last thread of
//! the program; kswapd notices a program that has ended by the bare system call. It does not repeat
//! setuid on them either. They have a thread control block with a copy of the static thread-locals,
//! and may use nothing that the C library keeps for each thread, or leaves unlocked while the
//! program has one thread. Every signal is blocked but SIGSYS, by which each of them takes over
//! what the user, groups and capabilities of the program have become, before the call that changed
//! them returns.
//!
//! *Descriptors.* kswapd and the threads that it starts, and the fault threads, have a descriptor
//! table of their own (`unshare(CLONE_FILES)`; [`Reclaim::take_private_descriptors`]) with only
//! hugeswap's descriptors in it: the segment, the swap areas, mapped files, the userfaultfd and
//! `/proc/self/pagemap`. The program may close any number. A thread of the program checks device
//! and inode of a descriptor before it reads swap through it (for base pages with a checksum only
//! if the read fails or the checksum does not match). If the descriptor is not ours any more, it
//! hands the fault to an I/O thread, with the unit's lock.

use crate::error::EngineError;
use crate::reclaim::Reclaim;
use hugeswap_sys::signal::{self, Blocked, Mask};
use hugeswap_sys::{Errno, process, thread};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI32, AtomicU64};
use std::thread::{Builder, JoinHandle};

/// Stack of a thread of the engine, bytes.
const STACK: usize = 256 << 10;
/// Threads at one time of which the processor time is known. (There are ten at most.)
const MOST: usize = 16;

/// Whose threads the engine's own are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threads(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Pthread,
    Raw { unblocked: Mask },
}

impl Threads {
    /// The C library's. No signal reaches them but the one by which the C library has every thread
    /// change its user.
    pub const PTHREAD: Threads = Threads(Kind::Pthread);

    /// Threads that the C library does not know. The signals of `unblocked` reach them, no other.
    ///
    /// # Safety
    /// The global allocator does not use the C library. Handlers of `unblocked` keep to what
    /// [`thread`] says. [`thread::prepare`] was called. The program cannot close the engine's
    /// descriptors.
    pub const unsafe fn raw(unblocked: Mask) -> Threads {
        Threads(Kind::Raw { unblocked })
    }

    /// May the program close the engine's descriptors? (Who runs such threads as [`Threads::raw`]
    /// sees to it that it cannot.)
    pub(crate) fn leaves_descriptors_to_program(self) -> bool {
        self.0 == Kind::Pthread
    }
}

/// A thread to be waited for.
pub(crate) enum Handle {
    Pthread(JoinHandle<()>),
    Raw(thread::Thread),
}

impl Handle {
    fn is_over(&self) -> bool {
        match self {
            Handle::Pthread(t) => t.is_finished(),
            Handle::Raw(t) => t.is_over(),
        }
    }

    pub(crate) fn join(self) {
        match self {
            // (A panic has been told of.)
            Handle::Pthread(t) => drop(t.join()),
            Handle::Raw(t) => t.join(),
        }
    }
}

/// The processor time that the engine's own threads take, which is no time of the program's.
#[derive(Default)]
pub(crate) struct Times {
    /// Ids of the threads; 0: none.
    threads: [AtomicI32; MOST],
    /// User time of those that have ended, nanoseconds.
    ended: AtomicU64,
}

impl Times {
    /// Counts this thread while it does what it is there for.
    fn count(&self, body: impl FnOnce()) {
        let tid = process::tid();
        let free = |cell: &&AtomicI32| cell.compare_exchange(0, tid, Relaxed, Relaxed).is_ok();
        let cell = self.threads.iter().find(free);
        body();
        if let Some(cell) = cell {
            let took = process::user_ns(Some(tid)).unwrap_or(0);
            self.ended.fetch_add(took, Relaxed);
            cell.store(0, Relaxed);
        }
    }

    fn sum(&self) -> u64 {
        let tids = self.threads.iter().map(|t| t.load(Relaxed));
        let now = tids
            .filter(|&tid| tid != 0)
            .filter_map(|tid| process::user_ns(Some(tid)));
        now.sum::<u64>() + self.ended.load(Relaxed)
    }

    /// In a forked child, which has no threads yet, and has taken no time.
    pub(crate) fn reset_in_child(&self) {
        self.threads.iter().for_each(|t| t.store(0, Relaxed));
        self.ended.store(0, Relaxed);
    }
}

impl Reclaim {
    /// For how long the program's own code has run outside the kernel, in nanoseconds.
    pub(crate) fn program_user_ns(&self) -> u64 {
        let all = process::user_ns(None).unwrap_or(0);
        all.saturating_sub(self.times.sum())
    }

    /// kswapd, now and then: threads of our own do not keep a process whose program has ended.
    pub(crate) fn end_with_program(&self) {
        if self.thread_kind != Threads::PTHREAD
            && let Some(status) = thread::program_is_over()
        {
            process::end(status);
        }
    }

    /// Starts a thread.
    pub(crate) fn spawn(
        &'static self,
        name: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> Result<(), EngineError> {
        let body = move || self.times.count(body);
        let made = match self.thread_kind.0 {
            Kind::Pthread => spawn_pthread(name, body),
            // SAFETY: what the engine's threads do keeps to the rules, given an allocator that
            // does, for which the caller of `Threads::raw` answers; a panic does not unwind out of
            // the thread's first function.
            Kind::Raw { unblocked } => unsafe {
                thread::spawn(name, signal::ALL & !unblocked, body).map(Handle::Raw)
            },
        };
        let handle = made.map_err(|e| EngineError::System("cannot start a thread", e))?;
        let mut threads = self.threads.lock();
        // Those that have ended by themselves.
        while let Some(i) = threads.iter().position(Handle::is_over) {
            threads.swap_remove(i).join();
        }
        threads.push(handle);
        Ok(())
    }
}

fn spawn_pthread(name: &str, body: impl FnOnce() + Send + 'static) -> Result<Handle, Errno> {
    // (In the caller too: a thread that changes the user has a lock that making a thread needs,
    // until every thread has answered.)
    let _blocked = Blocked::all_but_user();
    Builder::new()
        .name(name.into())
        .stack_size(STACK)
        .spawn(body)
        .map(Handle::Pthread)
        .map_err(|e| Errno(e.raw_os_error().unwrap_or(libc::EAGAIN)))
}
