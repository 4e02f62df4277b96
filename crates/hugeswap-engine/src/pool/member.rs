//! This process as a member of a pool: the pool as it is mapped here, and which of its records is
//! this process's.
//!
//! The parts of an engine share one member, and reach everything of the pool through it.

use super::Pool;
use super::layout::Record;
use hugeswap_policy::counters::Counter;
use hugeswap_sys::futex;
use std::ops::Deref;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The pool as this process has it, with the record of this process. Shared by all threads.
pub struct Member {
    pool: Pool,
    me: AtomicUsize,
}

impl Member {
    /// Record `me` of `pool` is this process's.
    pub(crate) fn new(pool: Pool, me: usize) -> Member {
        let me = AtomicUsize::new(me);
        Member { pool, me }
    }

    /// The number of this process's record.
    pub fn me(&self) -> usize {
        self.me.load(Relaxed)
    }

    /// Frames that this process holds, compressed memory left out.
    pub fn charged(&self) -> u64 {
        self.record().uncompressed()
    }

    /// In a forked child: another record is this process's.
    pub(crate) fn become_record(&self, me: usize) {
        self.me.store(me, Relaxed);
    }

    /// This process's record.
    pub(crate) fn record(&self) -> &Record {
        &self.pool.records()[self.me()]
    }

    /// Adds to a counter of this process.
    pub fn count(&self, c: Counter, n: u64) {
        self.pool.count(self.me(), c, n);
    }

    /// Is the cluster this process's own, whole or split, to free?
    pub(crate) fn owns_cluster(&self, cluster: u64) -> bool {
        self.pool
            .cluster_words()
            .get(cluster as usize)
            .is_some_and(|w| (w.load(Acquire) >> 16) as usize == self.me() + 1)
    }

    /// Wakes this process's kswapd.
    pub(crate) fn kick(&self) {
        let word = &self.record().kick;
        word.fetch_add(1, Release);
        futex::wake(word, 1, true);
    }
}

impl Deref for Member {
    type Target = Pool;

    fn deref(&self) -> &Pool {
        &self.pool
    }
}
