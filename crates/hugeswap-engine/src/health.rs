//! The state of the swap areas: how long their transfers take, which of them fail, and where
//! nothing is to be written for now.
//!
//! All of it is in the segment, because every process of the pool uses the same devices. The rules
//! of the fault path hold.

use crate::pool::Pool;
use crate::pool::layout::{Area, Latencies, Record};
use hugeswap_policy::device::breaker::{Breaker, State};
use hugeswap_policy::histogram;
use hugeswap_policy::thp_swap::area;
use hugeswap_sys::{Errno, now_ns};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// An area without a device that had no room is passed over for so long. Room comes by the frame.
const MEMORY_NS: u64 = 20_000_000;

/// How long transfers of one way, or faults of a class, took.
#[derive(Clone, Debug)]
pub struct LatencyReport {
    /// How many there were.
    pub count: u64,
    /// Median, nanoseconds (within 12.5%).
    pub p50_ns: u64,
    /// 99th percentile, nanoseconds (within 12.5%).
    pub p99_ns: u64,
    /// The longest, nanoseconds.
    pub max_ns: u64,
    /// How many by the longest that a bucket takes, nanoseconds; empty ones left out.
    pub buckets: Vec<(u64, u64)>,
}

/// How one swap area is.
#[derive(Clone, Debug)]
pub struct AreaReport {
    /// Its number.
    pub index: usize,
    /// Whether it is written to.
    pub state: State,
    /// Reads that failed or whose sum did not match, each attempt.
    pub read_errors: u64,
    /// Writes that failed, each attempt.
    pub write_errors: u64,
    /// Durations of reads.
    pub reads: LatencyReport,
    /// Durations of writes.
    pub writes: LatencyReport,
    /// Bytes that were read from it.
    pub read_bytes: u64,
    /// Bytes that were written to it.
    pub written_bytes: u64,
}

impl LatencyReport {
    /// From how many there were by [`histogram::bucket`], and the longest.
    pub(crate) fn of(counts: &[u64], max_ns: u64) -> LatencyReport {
        let some = counts.iter().enumerate().filter(|(_, n)| **n > 0);
        LatencyReport {
            count: counts.iter().sum(),
            p50_ns: histogram::percentile_ns(counts, 0.5).min(max_ns),
            p99_ns: histogram::percentile_ns(counts, 0.99).min(max_ns),
            max_ns,
            buckets: some
                .map(|(i, &n)| (histogram::upper_bound_ns(i), n))
                .collect(),
        }
    }
}

impl Latencies {
    fn record(&self, ns: u64) {
        self.counts[histogram::bucket(ns)].fetch_add(1, Relaxed);
        if self.max_ns.load(Relaxed) < ns {
            self.max_ns.fetch_max(ns, Relaxed);
        }
    }

    /// How many there were.
    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().map(|c| c.load(Relaxed)).sum()
    }

    fn report(&self) -> LatencyReport {
        let counts: Vec<u64> = self.counts.iter().map(|c| c.load(Relaxed)).collect();
        LatencyReport::of(&counts, self.max_ns.load(Relaxed))
    }

    fn forget(&self) {
        self.counts.iter().for_each(|c| c.store(0, Relaxed));
        self.max_ns.store(0, Relaxed);
    }
}

impl Area {
    /// The area is another one now.
    pub(crate) fn forget_past(&self) {
        self.read_errors.store(0, Relaxed);
        self.health.store(0, Relaxed);
        self.reads.forget();
        self.writes.forget();
        self.moved.iter().for_each(|m| m.store(0, Relaxed));
        self.forget_waits();
    }

    fn breaker(&self) -> Breaker {
        Breaker::from_word(self.health.load(Relaxed))
    }

    /// A transfer of `bytes` took `ns`, and came to this.
    pub(crate) fn note_transfer(&self, write: bool, bytes: usize, ns: u64, failed: Option<Errno>) {
        let (latencies, errors) = match write {
            true => (&self.writes, &self.errors),
            false => (&self.reads, &self.read_errors),
        };
        latencies.record(ns);
        match failed {
            None => self.moved[usize::from(write)].fetch_add(bytes as u64, Relaxed),
            Some(_) => errors.fetch_add(1, Relaxed),
        };
        if let Some(Errno::ENODEV | Errno::ENXIO) = failed {
            update(&self.health, Breaker::gone);
        }
    }

    /// Notes the outcome of a write, after all attempts.
    pub(crate) fn note_write(&self, failed: Option<Errno>) {
        let now = now_ns();
        update(&self.health, |b| match failed {
            None => b.succeeded(),
            // A full device is none that fails.
            Some(Errno::EIO) => b.failed(now),
            Some(_) => b,
        });
    }
}

/// Nothing is written where nothing changes: all processes look at it.
fn update(word: &AtomicU64, next: impl Fn(Breaker) -> Breaker) {
    let mut now = word.load(Relaxed);
    loop {
        let new = next(Breaker::from_word(now)).word();
        if new == now {
            return;
        }
        match word.compare_exchange_weak(now, new, Relaxed, Relaxed) {
            Ok(_) => return,
            Err(other) => now = other,
        }
    }
}

impl Pool {
    /// Transfers of its swap areas so far; `None`: some are going on.
    pub(crate) fn transfers(&self) -> Option<u64> {
        let going_on = |r: &Record| r.transferring.load(Relaxed) > 0;
        if self.live().any(|(_, r)| going_on(r)) {
            return None;
        }
        let of = |l: &Latencies| l.counts.iter().map(|c| c.load(Relaxed)).sum::<u64>();
        let area = |(i, _)| {
            let area: Option<&Area> = self.header().areas.get(i);
            area.map_or(0, |a| of(&a.reads).wrapping_add(of(&a.writes)))
        };
        Some(self.areas().map(area).fold(0, u64::wrapping_add))
    }

    /// How each swap area in use is.
    pub fn area_health(&self) -> Vec<AreaReport> {
        let now = now_ns();
        // (Also for a process that has not joined them, and only looks.)
        let areas = self.header().areas.iter().enumerate();
        areas
            .filter(|(_, a)| a.state.load(Acquire) != area::FREE)
            .map(|(index, a)| AreaReport {
                index,
                state: a.breaker().state(now),
                read_errors: a.read_errors.load(Relaxed),
                write_errors: a.errors.load(Relaxed),
                reads: a.reads.report(),
                writes: a.writes.report(),
                read_bytes: a.moved[0].load(Relaxed),
                written_bytes: a.moved[1].load(Relaxed),
            })
            .collect()
    }
}

impl Pool {
    /// The areas that nothing is to be written to now, and of those the ones that never will be, as
    /// bits. Where it is time to try one again, the caller tries.
    pub(crate) fn troubled(&self) -> (u32, u32) {
        let (mut avoid, mut gone) = (0, 0);
        for (i, a) in self.header().areas.iter().enumerate() {
            if self.is_full_of_memory(i) {
                avoid |= 1 << i;
            }
            let word = a.health.load(Relaxed);
            if word == 0 {
                continue;
            }
            let now = now_ns();
            let breaker = Breaker::from_word(word);
            match breaker.state(now) {
                State::Closed => {}
                State::Open => avoid |= 1 << i,
                State::Gone => (avoid, gone) = (avoid | 1 << i, gone | 1 << i),
                State::HalfOpen => {
                    let trial = breaker.on_trial(now).word();
                    let mine = a.health.compare_exchange(word, trial, Relaxed, Relaxed);
                    if mine.is_err() {
                        avoid |= 1 << i;
                    }
                }
            }
        }
        (avoid, gone)
    }

    /// Is nothing to be written to the area of this cluster now?
    pub(crate) fn avoids(&self, cluster: u64) -> bool {
        let Some((index, _)) = self.locate(cluster) else {
            return false;
        };
        let failing = |a: &Area| {
            let word = a.health.load(Relaxed);
            let state = || Breaker::from_word(word).state(now_ns());
            word != 0 && matches!(state(), State::Open | State::Gone)
        };
        self.header().areas.get(index).is_some_and(failing) || self.is_full_of_memory(index)
    }

    /// An area without a device has not taken a page of this cluster for want of memory.
    pub(crate) fn note_no_memory(&self, cluster: u64) {
        if let Some((index, _)) = self.locate(cluster)
            && self.has_device_area()
        {
            self.note_room(index, false);
        }
    }

    /// Is it an area without a device that lately had no room, where others have one?
    fn is_full_of_memory(&self, index: usize) -> bool {
        let since = |a: &Area| now_ns().saturating_sub(a.no_room.load(Relaxed));
        let lately = self.header().areas.get(index).map(since);
        self.is_memory_area(index)
            && lately.is_some_and(|ns| ns < MEMORY_NS)
            && self.has_device_area()
    }

    /// Is the area of this index not there any more?
    pub(crate) fn is_gone(&self, area: usize) -> bool {
        let area = self.header().areas.get(area);
        area.is_some_and(|a| {
            let word = a.health.load(Relaxed);
            word != 0 && Breaker::from_word(word).state(0) == State::Gone
        })
    }
}
