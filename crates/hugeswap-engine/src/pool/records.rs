//! The records of processes, from joining to the cleaning up after their death, whoever does it.
//!
//! A record is FREE, JOINING (reserved), LIVE, ZOMBIE (gone, but a forked child may read its slots) or
//! REAPING. Whoever wants to take it out of a state that others can see it in does so by one
//! compare-and-swap, so of several that try one succeeds; only the one that made it REAPING ends that.

use super::layout::{Events, MAX_PROCESSES, state};
use super::{Pool, PoolError};
use hugeswap_policy::slots;
use hugeswap_sys::{now_ns, process};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

impl Pool {
    /// Joins as this process: finds a record, first cleaning up one a former image of
    /// this very process left (exec).
    pub fn join(&self) -> Result<usize, PoolError> {
        self.reap();
        let i = self.reserve(0)?;
        self.fill(i);
        Ok(i)
    }

    /// Reserves a record for a child that record `parent` (index + 1; 0: none) is about to
    /// fork. From now until the child is gone or runs another image, the parent's slots
    /// stay as they are.
    pub fn reserve(&self, parent: u32) -> Result<usize, PoolError> {
        for (i, r) in self.records().iter().enumerate() {
            if r.state
                .compare_exchange(state::FREE, state::JOINING, AcqRel, Relaxed)
                .is_ok()
            {
                r.pid.store(0, Relaxed);
                r.charged.store(0, Relaxed);
                r.managed.store(0, Relaxed);
                r.give_back.store(0, Relaxed);
                r.responsive.store(0, Relaxed);
                r.transferring.store(0, Relaxed);
                r.generation.fetch_add(1, AcqRel);
                r.in_hand.iter().for_each(|h| h.store(0, Relaxed));
                r.freezing.store(0, Relaxed);
                r.parent.store(parent, Relaxed);
                r.scrub.begin(self.header().scrubs.load(Acquire));
                r.look.answered.store(r.look.asked.load(Relaxed), Relaxed);
                r.emptied.iter().for_each(|e| e.store(0, Relaxed));
                r.unreadable.iter().for_each(|u| u.store(0, Relaxed));
                // Until it is filled in, the time of the reservation.
                r.start_time.store(now_ns() / 1_000_000_000, Relaxed);
                self.header().records_high.fetch_max(i as u32 + 1, AcqRel);
                return Ok(i);
            }
        }
        Err(PoolError::TooManyProcesses)
    }

    /// Makes reserved record `i` this process's. False if the reservation was given up meanwhile.
    pub fn fill(&self, i: usize) -> bool {
        let r = &self.records()[i];
        let pid = process::pid();
        let status = status_of(pid);
        r.start_time
            .store(status.as_ref().map_or(0, |s| s.start_time), Relaxed);
        r.image
            .store(status.and_then(|s| s.image).unwrap_or(0), Relaxed);
        r.pid.store(pid, Relaxed);
        self.header().joined.fetch_add(1, Relaxed);
        r.state
            .compare_exchange(state::JOINING, state::LIVE, AcqRel, Relaxed)
            .is_ok()
    }

    /// Gives a reservation up (the fork failed).
    pub fn unreserve(&self, i: usize) {
        let r = &self.records()[i];
        if r.pid.load(Relaxed) == 0 {
            let _ = r
                .state
                .compare_exchange(state::JOINING, state::FREE, AcqRel, Relaxed);
        }
    }

    /// May a process forked from record `i` still read its slots?
    pub fn has_children(&self, i: usize) -> bool {
        let high = (self.header().records_high.load(Acquire) as usize).min(MAX_PROCESSES);
        self.records()[..high]
            .iter()
            .any(|r| r.parent.load(Relaxed) == i as u32 + 1 && r.state.load(Acquire) != state::FREE)
    }

    /// Ends record `i`: its counters join the retired ones, its frames are free, and so are its slots
    /// unless a forked child may still read them.
    pub fn retire(&self, i: usize) {
        let r = &self.records()[i];
        let taken = r
            .state
            .compare_exchange(state::LIVE, state::REAPING, AcqRel, Relaxed)
            .is_ok()
            || r.state
                .compare_exchange(state::ZOMBIE, state::REAPING, AcqRel, Relaxed)
                .is_ok();
        if !taken {
            return;
        }
        self.leave_shared(i);
        move_events(&r.events, &self.header().retired);
        r.charged.store(0, Relaxed);
        r.managed.store(0, Relaxed);
        r.responsive.store(0, Relaxed);
        if self.has_children(i) {
            r.state.store(state::ZOMBIE, Release);
        } else {
            self.quarantine_all_of(i);
            slots::release_owner(self.slot_words(), i as u16 + 1);
            r.pid.store(0, Relaxed);
            r.parent.store(0, Relaxed);
            r.state.store(state::FREE, Release);
        }
        self.note_release();
    }

    /// Cleans up after processes that are gone (or run another image now); returns how many there were.
    pub fn reap(&self) -> usize {
        let dead: Vec<usize> = self
            .live()
            .filter(|(_, r)| {
                let s = status_of(r.pid.load(Relaxed));
                s.is_none_or(|s| {
                    s.gone
                        || s.start_time != r.start_time.load(Relaxed)
                        || s.image.is_some_and(|i| i != r.image.load(Relaxed))
                })
            })
            .map(|(i, _)| i)
            .collect();
        dead.iter().for_each(|&i| self.retire(i));
        // A reservation that nobody filled in: the fork failed, or the child died at once.
        for (i, r) in self.records().iter().enumerate() {
            if r.state.load(Acquire) == state::JOINING
                && r.pid.load(Relaxed) == 0
                && now_ns() / 1_000_000_000 > r.start_time.load(Relaxed) + 10
            {
                let taken =
                    r.state
                        .compare_exchange(state::JOINING, state::REAPING, AcqRel, Relaxed);
                if taken.is_ok() {
                    self.leave_shared(i);
                    r.state.store(state::FREE, Release);
                }
            }
        }
        // A zombie whose last child has gone can go too; children stand above nothing
        // in particular, so look until nothing changes.
        loop {
            let high = (self.header().records_high.load(Acquire) as usize).min(MAX_PROCESSES);
            let Some(z) = (0..high).find(|&i| {
                self.records()[i].state.load(Acquire) == state::ZOMBIE && !self.has_children(i)
            }) else {
                break;
            };
            self.retire(z);
        }
        dead.len()
    }
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

pub(super) struct Status {
    pub start_time: u64,
    /// `None`: it is not to be seen, for it is ending, or has other rights than this one.
    image: Option<u64>,
    pub gone: bool,
}

/// What `/proc/PID/stat` says; `None` if there is no such process.
pub(super) fn status_of(pid: i32) -> Option<Status> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let rest = &text[text.rfind(')')? + 2..];
    let f: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |i: usize| f.get(i).and_then(|v| v.parse::<u64>().ok());
    // Fields as proc(5) numbers them, less 3: num_threads 20, starttime 22, startcode 26, startstack 28,
    // start_data 45, start_brk 47, arg_start 48, env_end 51. The addresses are drawn anew at exec
    // and inherited at fork.
    let image = [23, 25, 42, 44, 45, 48].iter().fold(0u64, |h, &i| {
        (h ^ number(i).unwrap_or(0))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(23)
    });
    // A zombie leader may still have living threads.
    let gone = matches!(*f.first()?, "Z" | "X") && number(17)? <= 1;
    // An exiting process loses its address space before it becomes a zombie.
    let exiting = number(25) == Some(0) && number(23) == Some(0) && number(17)? <= 1;
    // (1 stands for what this process may not see.)
    let seen = number(23).is_some_and(|start| start > 1);
    Some(Status {
        start_time: number(19)?,
        image: seen.then_some(image),
        gone: gone || exiting,
    })
}
