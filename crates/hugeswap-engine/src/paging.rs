//! What happens to a unit, the second of the engine's layers: faults ([`fault`](crate::fault)),
//! base pages ([`base`](crate::base)), bytes read ([`read`](crate::read)) and written out
//! ([`work`](crate::work), [`park`](crate::park), [`zero`](crate::zero)), mapped files
//! ([`file`](crate::file)), which memory was written ([`track`](crate::track)), markers
//! ([`markers`](crate::markers)).
//!
//! A method here works on one unit, under its lock.

use crate::file::table::Files;
use crate::memory::Memory;
use crate::shared::Sharing;
use crate::writer_count::Writers;
use crossbeam_queue::ArrayQueue;
use hugeswap_sys::{fs, futex, process};
use std::ops::Deref;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// A job for the I/O threads.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Job {
    /// Read a unit that is locked and queued, unless another thread took it over.
    Read(u32),
    /// Bring in a unit of a shared region, if it is in swap still.
    Shared(u32),
    /// Read a unit whose lock and frame go with the job.
    Handed(u32),
    /// Make a base-mapped unit whole; its lock goes with the job.
    Whole(u32),
    /// Write what is dirty of a unit of a mapped file, and drop it; its lock goes with the job.
    Settle { unit: u32, drop: bool },
    /// Bring pages `from..to` of a base-mapped unit in; its lock goes with the job.
    Bring { unit: u32, from: u16, to: u16 },
    /// Write such pages, if they are dirty, and drop them; the same.
    Drop { unit: u32, from: u16, to: u16 },
    /// Have the file of a unit on its device.
    Flush(u32),
    /// Write a unit under write-back to swap.
    Write(u32),
}

/// What happens to a unit, the second of the engine's layers, with the queues of the I/O threads.
pub struct Paging {
    memory: Memory,
    pub(crate) files: Files,
    pub(crate) sharing: Sharing,
    pub(crate) reads: ArrayQueue<Job>,
    pub(crate) writes: ArrayQueue<Job>,
    pub(crate) writers: Writers,
    /// A page that a forked child finds zeroed.
    pub(crate) fork_mark: usize,
    /// Descriptors of the engine's are above this one.
    pub(crate) low_fd: i32,
    /// Message mode: some unmapped unit was made inaccessible.
    pub(crate) fenced: AtomicBool,
    /// Some unit was handed to the kernel.
    pub(crate) has_foreign: AtomicBool,
}

impl Paging {
    /// With queues that are empty.
    pub(crate) fn new(
        memory: Memory,
        files: Files,
        sharing: Sharing,
        fork_mark: usize,
        low_fd: i32,
    ) -> Paging {
        Paging {
            memory,
            files,
            sharing,
            reads: ArrayQueue::new(256),
            writes: ArrayQueue::new(1024),
            writers: Writers::default(),
            fork_mark,
            low_fd,
            fenced: AtomicBool::new(false),
            has_foreign: AtomicBool::new(false),
        }
    }

    /// Puts a job that cannot be given up into the queue of the I/O threads, which the caller wakes
    /// then. While the queue is full, this thread leaves the processor to them, then sleeps in
    /// between: none of them waits for a thread that is here. If the queue stays full for as long
    /// as only a device that does not answer explains, that is said once, and the thread waits on.
    pub(crate) fn queue_read(&self, job: Job) {
        const YIELDS: u32 = 1000;
        const SLEEP_NS: u64 = 1_000_000;
        const LONG: u32 = YIELDS + 30_000;
        let mut waits: u32 = 0;
        while self.reads.push(job).is_err() {
            waits = waits.saturating_add(1);
            if waits < YIELDS {
                process::yield_now();
                continue;
            }
            if waits == LONG {
                fs::complain(&[
                    b"hugeswap: the I/O threads have taken no job for 30 s; still waiting\n",
                ]);
            }
            let seq = self.work_seq.load(Relaxed);
            futex::wait(&self.work_seq, seq, Some(SLEEP_NS), false);
        }
    }

    /// What shared regions ask for what they need.
    pub(crate) fn host(&self) -> &Paging {
        self
    }

    /// The same without those of shared regions.
    pub(crate) fn unshared_fds(&self) -> impl Iterator<Item = i32> {
        std::iter::once(self.pool.fd())
            .chain(self.backend.fds())
            .chain(self.pool.areas().map(|(_, a)| a.fd))
            .chain(self.files.fds())
            .filter(|&fd| fd >= 0)
    }
}

impl Deref for Paging {
    type Target = Memory;

    fn deref(&self) -> &Memory {
        &self.memory
    }
}
