//! The records of processes, from joining to the cleaning up after their death.
//!
//! A record is FREE, JOINING (reserved), FILLING, LIVE, ZOMBIE (its process is gone, but a forked
//! child may read its slots) or REAPING. A process takes a record out of a state that others can
//! see by one compare-and-swap, so of several that try one succeeds. Only the process that made a
//! record REAPING ends that, unless it is gone itself: then another takes over what is left to do,
//! all of which may be done twice.
//!
//! *Death.* A process is dead if it is gone or a zombie, if the process of its id has another start
//! time, or if it runs another program image (exec). The supervisor looks ten times a second;
//! processes that wait for memory look, too. The process that finds a dead one moves its counters
//! to the header, frees its record and releases the slots that name it. The state of a record names
//! the process that fills it in or cleans it up ([`super::holder`]), so that another carries on if
//! that one ends in the middle.
//!
//! *Reservations.* A record is reserved for a child before its fork. A reservation that is not
//! filled in within 10 seconds is taken back, unless the parent is still forking, or there is a
//! process without a record that may be the child (it runs the parent's image and was started
//! since). A child that comes after all sees by the word that it would have to replace that its
//! reservation is gone, and joins anew.

use super::holder::{Look, is_gone, look_at, myself, processes};
use super::layout::{Events, MAX_PROCESSES, Record, state};
use super::{Pool, PoolError};
use hugeswap_policy::thp_swap::clusters;
use hugeswap_sys::{Errno, now_ns, process, since_boot_ns};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// How long a child may take to fill in what was reserved for it until others look whether there is
/// such a child.
const RESERVED_US: u64 = 10_000_000;
/// The unit in which the kernel tells when a process was started.
const TICK_US: u64 = 10_000;

/// A record that is reserved.
#[derive(Clone, Copy, Debug)]
pub struct Reservation {
    /// Its number.
    pub record: usize,
    word: u64,
}

impl Pool {
    /// Joins as this process: finds a record, first cleaning up one a former image of
    /// this very process left (exec).
    pub fn join(&self) -> Result<usize, PoolError> {
        self.reap();
        loop {
            let reserved = self.reserve(0)?;
            // In vain only if it took seconds to get here.
            if self.fill(reserved) {
                return Ok(reserved.record);
            }
        }
    }

    /// Reserves a record for a child that record `parent` (index + 1; 0: none) is about to
    /// fork. From now until the child is gone or runs another image, the parent's slots
    /// stay as they are.
    pub fn reserve(&self, parent: u32) -> Result<Reservation, PoolError> {
        for (i, r) in self.records()[..MAX_PROCESSES].iter().enumerate() {
            let word = now_us() << 8 | state::JOINING;
            if r.state
                .compare_exchange(state::FREE, word, AcqRel, Relaxed)
                .is_ok()
            {
                r.charged.store(0, Relaxed);
                r.foreign.store(0, Relaxed);
                r.zswap.store(0, Relaxed);
                r.zswap_pages.store(0, Relaxed);
                r.buffers.store(0, Relaxed);
                r.managed.store(0, Relaxed);
                r.touched.store(0, Relaxed);
                r.untouched_pages.store(0, Relaxed);
                r.faulted.store(now_ns(), Relaxed);
                r.give_back.store(0, Relaxed);
                r.responsive.store(0, Relaxed);
                r.transferring.store(0, Relaxed);
                r.generation.fetch_add(1, AcqRel);
                r.in_hand.iter().for_each(|h| h.store(0, Relaxed));
                r.freezing.store(0, Relaxed);
                r.forking.store(0, Relaxed);
                r.parent.store(parent, Relaxed);
                r.scrub.begin(self.header().scrubs.load(Acquire));
                r.look.answered.store(r.look.asked.load(Relaxed), Relaxed);
                r.emptied.iter().for_each(|e| e.store(0, Relaxed));
                r.unreadable.iter().for_each(|u| u.store(0, Relaxed));
                self.header().records_high.fetch_max(i as u32 + 1, AcqRel);
                return Ok(Reservation { record: i, word });
            }
        }
        Err(PoolError::TooManyProcesses)
    }

    /// Makes a reserved record this process's. False if the reservation was given up meanwhile.
    pub fn fill(&self, reserved: Reservation) -> bool {
        let r = &self.records()[reserved.record];
        let filling = state::FILLING | myself();
        let change = |from, to| r.state.compare_exchange(from, to, AcqRel, Relaxed).is_ok();
        if !change(reserved.word, filling) {
            return false;
        }
        let pid = process::pid();
        let status = look_at(pid).seen();
        r.start_time
            .store(status.as_ref().map_or(0, |s| s.start_time), Relaxed);
        r.image
            .store(status.and_then(|s| s.image).unwrap_or(0), Relaxed);
        r.pid.store(pid, Relaxed);
        self.header().joined.fetch_add(1, Relaxed);
        change(filling, state::LIVE)
    }

    /// May a process forked from record `i` still read its slots?
    pub fn has_children(&self, i: usize) -> bool {
        self.used().any(|(_, r)| is_child_of(r, i))
    }

    /// The forks that the children come from which may still read slots of record `i`.
    pub fn forks_of_children(&self, i: usize) -> Vec<u64> {
        let children = self.used().filter(|(_, r)| is_child_of(r, i));
        children.map(|(_, r)| r.fork.load(Relaxed)).collect()
    }

    /// Ends record `i`: its counters join the retired ones, its frames are free, and so are its
    /// slots unless a forked child may still read them.
    pub fn retire(&self, i: usize) {
        if self.take(i, state::LIVE) || self.take(i, state::ZOMBIE) {
            self.clean_up(i);
        }
    }

    /// Makes record `i` this process's to clean up, if its state is `from`.
    fn take(&self, i: usize, from: u64) -> bool {
        self.records()[i]
            .state
            .compare_exchange(from, state::REAPING | myself(), AcqRel, Relaxed)
            .is_ok()
    }

    fn clean_up(&self, i: usize) {
        let r = &self.records()[i];
        self.note_touched();
        r.touched.store(0, Relaxed);
        self.leave_shared(i);
        move_events(&r.events, &self.header().retired);
        r.charged.store(0, Relaxed);
        r.foreign.store(0, Relaxed);
        r.managed.store(0, Relaxed);
        r.responsive.store(0, Relaxed);
        if self.has_children(i) {
            r.state.store(state::ZOMBIE, Release);
        } else {
            self.release_zswap_of(i);
            self.quarantine_all_of(i);
            clusters::release_owner(self.cluster_words(), i as u16 + 1);
            r.pid.store(0, Relaxed);
            r.parent.store(0, Relaxed);
            r.state.store(state::FREE, Release);
        }
        self.note_release();
    }

    /// May a child still come for what was reserved at `since`? While its parent is at it (what has
    /// to be written out before a fork takes as long as the device takes), and while there is a
    /// process that may be the child: it may be stopped, or the machine may be.
    fn is_awaited(&self, r: &Record, since: u64) -> bool {
        let Some(parent) = (r.parent.load(Relaxed) as usize).checked_sub(1) else {
            return false;
        };
        let parent = &self.records()[parent];
        let forks = parent.forking.load(Acquire) != 0 && parent.state() == state::LIVE;
        if forks && !left_by_its_process(parent) {
            return true;
        }
        let (image, pid) = (parent.image.load(Relaxed), parent.pid.load(Relaxed));
        let may_be_it = |p: i32| {
            let status = match look_at(p) {
                Look::Seen(status) => status,
                Look::Absent | Look::Unseen(Errno::EACCES | Errno::EPERM | Errno::ENOENT) => {
                    return false;
                }
                // (For want of descriptors, say.)
                Look::Unseen(_) => return true,
            };
            let related = match status.image {
                Some(i) if image != 0 => i == image,
                _ => status.parent == pid,
            };
            related && !status.gone && (status.start_time + 2) * TICK_US > since
        };
        let has_record = |p: i32| self.used().any(|(_, r)| r.pid.load(Relaxed) == p);
        processes().map_or(true, |all| {
            all.into_iter().any(|p| !has_record(p) && may_be_it(p))
        })
    }

    /// Cleans up after processes that are gone (or run another image now); returns how many there
    /// were.
    pub fn reap(&self) -> usize {
        let mut dead = 0;
        for (i, r) in self.used() {
            let word = r.state.load(Acquire);
            let gone = match state::of(word) {
                state::LIVE => left_by_its_process(r),
                // A reservation that was not filled in: the fork failed, or the child died at once.
                state::JOINING => {
                    let since = word >> 8;
                    now_us() > since + RESERVED_US && !self.is_awaited(r, since)
                }
                state::REAPING | state::FILLING => is_gone(word),
                _ => false,
            };
            if gone && self.take(i, word) {
                self.clean_up(i);
                dead += usize::from(word == state::LIVE);
            }
        }
        // A zombie whose last child has gone can go too; children stand above nothing
        // in particular, so look until nothing changes.
        let childless =
            |&(i, r): &(usize, &Record)| r.state() == state::ZOMBIE && !self.has_children(i);
        while let Some((zombie, _)) = self.used().find(childless) {
            self.retire(zombie);
        }
        dead
    }
}

fn now_us() -> u64 {
    since_boot_ns() / 1000
}

fn is_child_of(r: &Record, parent: usize) -> bool {
    r.parent.load(Relaxed) == parent as u32 + 1 && r.state() != state::FREE
}

/// Is the process of a record gone, or runs another image?
fn left_by_its_process(r: &Record) -> bool {
    let status = match look_at(r.pid.load(Relaxed)) {
        Look::Absent => return true,
        Look::Unseen(_) => return false,
        Look::Seen(status) => status,
    };
    // (0: it could not look at itself.)
    let differs = |of_record: &AtomicU64, now: u64| {
        let then = of_record.load(Relaxed);
        then != 0 && then != now
    };
    status.gone
        || differs(&r.start_time, status.start_time)
        || status.image.is_some_and(|now| differs(&r.image, now))
}

fn move_events(from: &Events, to: &Events) {
    let add = |a: &AtomicU64, b: &AtomicU64| {
        b.fetch_add(a.swap(0, AcqRel), Relaxed);
    };
    from.counters
        .iter()
        .zip(&to.counters)
        .for_each(|(a, b)| add(a, b));
    add(&from.fault_ns, &to.fault_ns);
    add(&from.stalled_ns, &to.stalled_ns);
    add(&from.sampled_present, &to.sampled_present);
    add(&from.sampled_huge, &to.sampled_huge);
    for (a, b) in from.fault_max_ns.iter().zip(&to.fault_max_ns) {
        b.fetch_max(a.swap(0, AcqRel), Relaxed);
    }
    from.advisor
        .iter()
        .zip(&to.advisor)
        .for_each(|(a, b)| add(a, b));
    for (x, y) in from.faults.iter().zip(&to.faults) {
        x.iter().zip(y).for_each(|(a, b)| add(a, b));
    }
}

#[cfg(test)]
mod tests {
    use super::super::holder::and_ends;
    use super::*;
    use crate::pool::{FaultMode, PoolConfig, SwapSpec};

    fn pool() -> Pool {
        let mut spec = SwapSpec::new("/var/tmp");
        spec.size = Some(8 << 20);
        Pool::create(&PoolConfig {
            memory: 16 << 20,
            swap: vec![spec],
            fault_mode: FaultMode::Auto,
            settings: Vec::new(),
        })
        .unwrap()
    }

    #[test]
    fn the_dead_are_cleaned_up_after_whoever_began_it() {
        let pool = pool();
        let state = |i: usize| pool.records()[i].state();
        let me = pool.join().unwrap();
        let child = pool.reserve(me as u32 + 1).unwrap();
        let other = child.record;
        and_ends(|| pool.fill(child));
        let claimed = clusters::claim(pool.cluster_words(), other as u16 + 1, 0).unwrap();
        // The process that found it dead ends in the middle of it, and so does the next.
        for _ in 0..2 {
            let word = pool.records()[other].state.load(Acquire);
            and_ends(|| pool.take(other, word));
            assert_eq!(state(other), state::REAPING);
        }
        assert!(pool.has_children(me) && pool.swap_usage().free == 3);
        pool.reap();
        assert!(state(other) == state::FREE && !pool.has_children(me));
        assert_eq!(pool.cluster_words()[claimed].load(Relaxed), 0);
        // A live process that is doing it is left to it.
        let child = pool.reserve(me as u32 + 1).unwrap();
        and_ends(|| pool.fill(child));
        assert!(pool.take(child.record, state::LIVE));
        assert_eq!((pool.reap(), state(child.record)), (0, state::REAPING));
        pool.clean_up(child.record);
        assert_eq!(state(child.record), state::FREE);
        pool.retire(me);
        assert_eq!(pool.live().count(), 0);
    }

    #[test]
    fn who_ends_while_it_joins_leaves_nothing() {
        let pool = pool();
        let me = pool.join().unwrap();
        let child = pool.reserve(me as u32 + 1).unwrap();
        let record = &pool.records()[child.record];
        and_ends(|| {
            let filling = state::FILLING | myself();
            let begun = record
                .state
                .compare_exchange(child.word, filling, AcqRel, Relaxed);
            begun.is_ok()
        });
        assert_eq!(record.state(), state::FILLING);
        pool.reap();
        assert_eq!(record.state(), state::FREE);
        pool.retire(me);
    }

    #[test]
    fn a_reservation_given_up_is_not_filled_in_when_another_has_it() {
        let pool = pool();
        let late = pool.reserve(0).unwrap();
        pool.reap();
        assert_eq!(
            pool.records()[late.record].state(),
            state::JOINING,
            "it may come yet"
        );
        // As after ten seconds.
        let long_ago = 1 << 8 | state::JOINING;
        pool.records()[late.record].state.store(long_ago, Relaxed);
        pool.reap();
        let next = pool.reserve(0).unwrap();
        assert_eq!(next.record, late.record);
        assert!(!pool.fill(late) && pool.fill(next));
        assert_eq!(pool.records()[next.record].state(), state::LIVE);
        pool.retire(next.record);
    }

    /// Does a record become free? (Children that other tests have for a moment may be its process, as far
    /// as the pool knows.)
    fn is_freed(pool: &Pool, record: usize) -> bool {
        (0..1000).any(|_| {
            pool.reap();
            std::thread::sleep(std::time::Duration::from_millis(10));
            pool.records()[record].state() == state::FREE
        })
    }

    #[test]
    fn a_reservation_is_kept_while_there_may_be_a_child() {
        let pool = pool();
        let me = pool.join().unwrap();
        let parent = &pool.records()[me];
        let reserve_long_ago = || {
            let child = pool.reserve(me as u32 + 1).unwrap();
            let word = (now_us() - 2 * RESERVED_US) << 8 | state::JOINING;
            pool.records()[child.record].state.store(word, Relaxed);
            Reservation { word, ..child }
        };
        // The parent is still at it; then it is done, or has failed.
        let child = reserve_long_ago();
        parent.forking.store(1, Relaxed);
        pool.reap();
        assert_eq!(pool.records()[child.record].state(), state::JOINING);
        parent.forking.store(0, Relaxed);
        assert!(is_freed(&pool, child.record));
        // A child that is stopped before it comes to it.
        let child = reserve_long_ago();
        // SAFETY: the child waits, touches the segment and exits.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: stops this process, and ends it.
            unsafe {
                libc::raise(libc::SIGSTOP);
                libc::_exit(i32::from(!pool.fill(child)));
            }
        }
        let mut status = -1;
        // SAFETY: our own child, stopped.
        unsafe { libc::waitpid(pid, &mut status, libc::WUNTRACED) };
        pool.reap();
        assert_eq!(pool.records()[child.record].state(), state::JOINING);
        // SAFETY: as above.
        unsafe {
            libc::kill(pid, libc::SIGCONT);
            libc::waitpid(pid, &mut status, 0);
        }
        assert_eq!(status, 0, "it could not fill in its record");
        assert!(is_freed(&pool, child.record));
        pool.retire(me);
    }

    #[test]
    fn there_are_so_many_records_and_no_more() {
        let pool = pool();
        let all: Vec<_> = std::iter::from_fn(|| pool.reserve(0).ok()).collect();
        assert_eq!(all.len(), MAX_PROCESSES);
        assert!(matches!(pool.join(), Err(PoolError::TooManyProcesses)));
    }
}
