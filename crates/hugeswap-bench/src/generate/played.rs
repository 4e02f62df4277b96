//! What a phase came to, as a task reports it.

use hugeswap_policy::histogram;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What a phase came to, in one task or in all.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Played {
    /// Until the last thread had ended.
    pub seconds: f64,
    /// The groups of the plan, in order.
    pub groups: Vec<Tally>,
    /// The time series.
    pub samples: Vec<Sample>,
}

/// What a group did.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Tally {
    pub threads: u32,
    /// Accesses, or pages streamed.
    pub done: u64,
    /// Time of its threads, added up.
    pub thread_s: f64,
    /// Times of the accesses that were timed.
    pub times: Times,
    /// Memory of its part that was present at the end, if it was counted.
    pub present: Option<Present>,
}

/// How many accesses took how long, by [`histogram::bucket`]; empty if none was timed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Times {
    /// Of [`super::plan::Doing::Touch`]: the first touch of each 2 MiB.
    pub all: Vec<u64>,
    /// Of [`super::plan::Doing::Touch`]: touches that brought base pages.
    pub base: Vec<u64>,
    /// Of [`super::plan::Doing::Touch`]: touches that brought all of 2 MiB.
    pub huge: Vec<u64>,
}

/// Memory that is present.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Present {
    pub bytes: u64,
    /// The part of it that is mapped by huge pages.
    pub huge_bytes: u64,
}

/// What each group had done at some time of a phase.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Sample {
    pub at_s: f64,
    pub done: Vec<u64>,
}

impl Played {
    /// Adds what another task did at the same time.
    pub fn add(&mut self, other: &Played) {
        self.seconds = self.seconds.max(other.seconds);
        for (a, b) in self.groups.iter_mut().zip(&other.groups) {
            a.add(b);
        }
        self.samples.truncate(other.samples.len());
        for (a, b) in self.samples.iter_mut().zip(&other.samples) {
            a.at_s = a.at_s.max(b.at_s);
            a.done.iter_mut().zip(&b.done).for_each(|(a, b)| *a += b);
        }
    }
}

impl Tally {
    fn add(&mut self, other: &Tally) {
        self.threads += other.threads;
        self.done += other.done;
        self.thread_s += other.thread_s;
        self.times.add(&other.times);
        if let Some(present) = other.present {
            let all = self.present.get_or_insert_default();
            all.bytes += present.bytes;
            all.huge_bytes += present.huge_bytes;
        }
    }
}

impl Times {
    /// Adds the times of another thread or task.
    pub fn add(&mut self, other: &Times) {
        let ours = [&mut self.all, &mut self.base, &mut self.huge];
        for (a, b) in ours.into_iter().zip([&other.all, &other.base, &other.huge]) {
            if a.is_empty() {
                a.clone_from(b);
            } else {
                a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
            }
        }
    }
}

/// Counts one access.
pub fn note(times: &mut Vec<u64>, took: Duration) {
    times.resize(histogram::BUCKETS, 0);
    times[histogram::bucket(took.as_nanos() as u64)] += 1;
}
