//! What forked children may still read of this process's places in swap: it is neither overwritten
//! nor given back while such a child is left.
//!
//! Forks are counted. The count is odd from before a fork until after it. A child goes by the odd
//! count of its fork, which is in its record; a cluster goes by the count at which it was claimed.
//! So a child may read a place if the cluster was claimed no later than its fork began, and the
//! place was not given up before that. What came to swap after the fork is the parent's alone, and
//! is not kept back: otherwise a process with one child that lives long would take a new place for
//! each write, without end.
//!
//! Single slots go by their cluster. They may be kept longer than necessary, but never more of them
//! than their clusters have.
//!
//! Concurrency: forks begin and end, and children are looked for, while no other thread is in the
//! engine, or by kswapd, which is stopped at a fork. Any thread may call the rest.

use crate::lock::Lock;
use crate::zeroed::Zeroed;
use hugeswap_sys::Result;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// What was given up while a forked child may still read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Given {
    Cluster(u64),
    /// Slots of a cluster.
    Singles(u64, u16, u16),
}

impl Given {
    pub fn cluster(self) -> u64 {
        match self {
            Given::Cluster(c) | Given::Singles(c, ..) => c,
        }
    }
}

/// One place that is kept.
#[derive(Clone, Copy)]
struct Entry {
    what: Given,
    /// Forks when its cluster was claimed.
    claimed: u64,
    /// Forks when it was given up.
    given: u64,
}

impl Entry {
    /// May one of the children with these forks, in ascending order, read it?
    fn may_be_read(&self, forks: &[u64]) -> bool {
        let first = forks.partition_point(|&f| f < self.claimed);
        forks.get(first).is_some_and(|&f| f <= self.given)
    }
}

/// What is kept, and for whom.
pub(crate) struct Kept {
    forks: AtomicU64,
    /// The last fork whose child may live; 0: there is none.
    youngest: AtomicU64,
    /// By cluster.
    claimed: Zeroed<AtomicU64>,
    list: Lock<List>,
}

#[derive(Default)]
struct List {
    entries: Vec<Entry>,
    /// The children when they were looked for last, and those of later forks.
    children: Vec<u64>,
}

impl Kept {
    /// For so many clusters.
    pub fn new(clusters: usize) -> Result<Kept> {
        Ok(Kept {
            forks: AtomicU64::new(0),
            youngest: AtomicU64::new(0),
            claimed: Zeroed::new(clusters)?,
            list: Lock::new(List::default()),
        })
    }

    /// A fork is about to be; what its child goes by.
    pub fn begin_fork(&self) -> u64 {
        let fork = self.forks.load(Relaxed) + 1;
        debug_assert!(fork % 2 == 1);
        self.forks.store(fork, Relaxed);
        self.list.lock().children.push(fork);
        self.youngest.store(fork, Release);
        fork
    }

    /// In the parent, whether there is a child or not.
    pub fn end_fork(&self) {
        self.forks.fetch_add(1, Relaxed);
    }

    /// In a forked child, which owns nothing and has no children yet.
    pub fn begin(&self) {
        self.forks.store(0, Relaxed);
        self.youngest.store(0, Relaxed);
        *self.list.lock() = List::default();
    }

    /// Is there a forked child, or was there one lately?
    pub fn has_children(&self) -> bool {
        self.youngest.load(Acquire) != 0
    }

    /// A cluster is this process's from now on.
    pub fn claim(&self, cluster: usize) {
        if let Some(c) = self.claimed.get(cluster) {
            c.store(self.forks.load(Relaxed), Relaxed);
        }
    }

    fn claimed(&self, cluster: u64) -> u64 {
        let count = self.claimed.get(cluster as usize);
        count.map_or(0, |c| c.load(Relaxed))
    }

    /// May a child read what is in a cluster of this process's?
    pub fn may_be_read(&self, cluster: u64) -> bool {
        let youngest = self.youngest.load(Acquire);
        youngest != 0 && self.claimed(cluster) <= youngest
    }

    /// Keeps what is given up. False: no child reads it, and it may be released.
    pub fn keep(&self, what: Given) -> bool {
        if !self.may_be_read(what.cluster()) {
            return false;
        }
        let mut list = self.list.lock();
        // Under the lock, so that nothing is put aside after all was given back.
        let kept = self.may_be_read(what.cluster());
        if kept {
            list.entries.push(Entry {
                what,
                claimed: self.claimed(what.cluster()),
                given: self.forks.load(Relaxed),
            });
        }
        kept
    }

    /// These are the forks of the children that may live: what no one of them reads is released.
    pub fn note_children(&self, mut children: Vec<u64>, release: impl Fn(Given)) {
        children.sort_unstable();
        let mut list = self.list.lock();
        self.youngest
            .store(children.last().copied().unwrap_or(0), Release);
        if list.children == children {
            return;
        }
        list.entries.retain(|e| {
            let stays = e.may_be_read(&children);
            if !stays {
                release(e.what);
            }
            stays
        });
        if list.entries.is_empty() {
            list.entries = Vec::new();
        }
        list.children = children;
    }

    /// No child reads what was put aside of the clusters that `gone` names.
    pub fn release(&self, gone: impl Fn(u64) -> bool, release: impl Fn(Given)) {
        self.list.lock().entries.retain(|e| {
            let stays = !gone(e.what.cluster());
            if !stays {
                release(e.what);
            }
            stays
        });
    }

    /// Everything that is kept.
    pub fn for_each(&self, mut f: impl FnMut(Given)) {
        self.list.lock().entries.iter().for_each(|e| f(e.what));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn fork(k: &Kept) -> u64 {
        let fork = k.begin_fork();
        k.end_fork();
        fork
    }

    fn released(k: &Kept, children: &[u64]) -> Vec<u64> {
        let seen = RefCell::new(Vec::new());
        k.note_children(children.to_vec(), |g| seen.borrow_mut().push(g.cluster()));
        seen.into_inner()
    }

    #[test]
    fn without_children_nothing_is_kept() {
        let k = Kept::new(8).unwrap();
        k.claim(3);
        assert!(!k.may_be_read(3) && !k.keep(Given::Cluster(3)));
    }

    #[test]
    fn what_was_claimed_after_the_fork_is_not_kept() {
        let k = Kept::new(8).unwrap();
        k.claim(1);
        let child = fork(&k);
        k.claim(2);
        assert!(k.keep(Given::Cluster(1)));
        assert!(!k.may_be_read(2) && !k.keep(Given::Singles(2, 0, 4)));
        // Claimed again, it is another.
        k.claim(1);
        assert!(!k.may_be_read(1));
        assert_eq!(released(&k, &[child]), []);
        assert_eq!(released(&k, &[]), [1]);
        assert!(!k.has_children());
    }

    #[test]
    fn what_is_claimed_or_given_up_in_the_middle_of_a_fork_is_kept() {
        let k = Kept::new(8).unwrap();
        k.claim(1);
        let child = k.begin_fork();
        k.claim(2);
        assert!(k.keep(Given::Cluster(1)) && k.keep(Given::Cluster(2)));
        k.end_fork();
        assert_eq!(released(&k, &[child]), []);
        assert_eq!(released(&k, &[]), [1, 2]);
    }

    #[test]
    fn each_child_keeps_what_it_may_read() {
        let k = Kept::new(8).unwrap();
        k.claim(1);
        let first = fork(&k);
        assert!(k.keep(Given::Cluster(1)));
        k.claim(2);
        let second = fork(&k);
        // The first child never saw this one.
        assert!(k.keep(Given::Cluster(2)));
        assert_eq!(released(&k, &[second, first]), []);
        assert_eq!(released(&k, &[first]), [2]);
        // The second child is gone, and the first is older than this cluster.
        k.claim(3);
        assert!(!k.keep(Given::Cluster(3)));
        assert_eq!(released(&k, &[]), [1]);
    }

    #[test]
    fn a_child_that_nobody_saw_keeps_nothing() {
        let k = Kept::new(8).unwrap();
        k.claim(1);
        fork(&k);
        assert!(k.keep(Given::Cluster(1)));
        assert_eq!(released(&k, &[]), [1]);
    }

    #[test]
    fn a_child_keeps_nothing_for_its_parents_children() {
        let k = Kept::new(8).unwrap();
        k.claim(1);
        k.begin_fork();
        assert!(k.keep(Given::Cluster(1)));
        k.begin();
        assert!(!k.has_children());
        k.for_each(|_| panic!("it owns nothing"));
        assert_eq!(fork(&k), 1);
    }
}
