//! Phases of a worker: groups of threads stream through a part of the memory or go to its pages at random, at the
//! same time, for so long or for so many accesses.
//!
//! Every page has a *version*: the round in which it was last written whole, and how often one of its words was then
//! changed, by adding 1 to it. So what the words of a page may hold is known at any time, and their sum exactly once nobody
//! writes. Threads share memory as atomic words; a version is changed before the word.

mod job;

use super::memory::{UNIT, first_value, search, seed};
use super::pattern::{Pages, Pattern};
use super::workingset::program::Program;
use anyhow::{Context, Result, anyhow};
use hugeswap_sys::mm;
use job::Job;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};
use zerocopy::FromBytes;

const PAGE: usize = hugeswap_policy::PAGE_BYTES as usize;
const WORDS: usize = PAGE / 8;
/// Versions lie in pieces of 32 KiB: nobody's managed memory.
const PIECE: usize = 4096;

/// What groups of threads do at the same time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Phase {
    pub name: String,
    /// How long at most. A phase ends as soon as every group that has an end ([`Doing::ends`]) has come to it.
    pub seconds: Option<f64>,
    /// Seconds between points of the time series.
    pub every_s: f64,
    pub groups: Vec<Group>,
}

/// Threads that do the same.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Group {
    pub doing: Doing,
    /// Threads in each task.
    pub threads: u32,
    pub part: Part,
}

/// What a thread does, again and again.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Doing {
    /// Goes through its piece from start to end, all words of it.
    Stream { write: bool },
    /// Goes to one word of a page, anywhere in its group's part.
    Random {
        pattern: Pattern,
        write: bool,
        /// All tasks and threads together; without end if there is none.
        accesses: Option<u64>,
    },
    /// Reads one word of a page, anywhere in its group's part, and notes how long each took.
    Timed { pattern: Pattern },
    /// Maps memory of the size of its piece, writes all words of it, and gives it up: writes to swap and no reads.
    Fresh,
    /// Goes through the steps of a program once, on all of the memory; by one thread.
    Program(Program),
    /// Writes its piece once, from start to end.
    Fill,
    /// The same of memory that was not touched before; notes how long each touch took of what was not there yet.
    Touch,
    /// Maps memory of its own, touches every page, and gives it up, again and again; notes how long a MiB took each time.
    Map(Map),
    /// Nothing.
    Rest,
}

impl Doing {
    /// Does it come to an end by itself?
    pub fn ends(self) -> bool {
        match self {
            Doing::Random { accesses, .. } => accesses.is_some(),
            Doing::Program(_) | Doing::Fill | Doing::Touch => true,
            Doing::Stream { .. }
            | Doing::Timed { .. }
            | Doing::Fresh
            | Doing::Map(_)
            | Doing::Rest => false,
        }
    }

    /// Is it looked at in the end what of its part is in memory?
    fn is_looked_at(self) -> bool {
        matches!(self, Doing::Fill | Doing::Touch | Doing::Rest)
    }
}

/// What is mapped again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Map {
    pub bytes: usize,
    /// Between one and the next.
    pub pause_us: u64,
    /// With MADV_HUGEPAGE.
    pub advise: bool,
}

/// Which part of a task's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    #[default]
    All,
    FirstHalf,
    SecondHalf,
    /// So many units of 2 MiB from the start.
    First(usize),
    /// All but those.
    AllBut(usize),
}

impl Part {
    /// Which of so many units.
    pub fn units(self, all: usize) -> Range<usize> {
        match self {
            Part::All => 0..all,
            Part::FirstHalf => 0..all / 2,
            Part::SecondHalf => all / 2..all,
            Part::First(n) => 0..n.min(all),
            Part::AllBut(n) => n.min(all)..all,
        }
    }
}

/// What a phase came to: of one task, or of all.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Played {
    /// Until the last thread had ended.
    pub seconds: f64,
    pub groups: Vec<Tally>,
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
    #[serde(default)]
    pub times: Times,
    /// What its part held in the end, where that was looked at.
    #[serde(default)]
    pub held: Option<Held>,
}

/// How many accesses took how long, by [`hugeswap_policy::histogram::bucket`]; empty where none was timed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Times {
    /// Of [`Doing::Touch`]: the first touches of 2 MiB.
    pub all: Vec<u64>,
    /// Of [`Doing::Touch`]: touches that brought base pages.
    pub base: Vec<u64>,
    /// Of [`Doing::Touch`]: touches that brought all of 2 MiB.
    pub huge: Vec<u64>,
}

/// Bytes of a part that are in memory.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Held {
    pub present: u64,
    /// Mapped by huge pages.
    pub huge: u64,
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
        self.held = match (self.held, other.held) {
            (Some(a), Some(b)) => Some(Held {
                present: a.present + b.present,
                huge: a.huge + b.huge,
            }),
            (a, b) => a.or(b),
        };
    }
}

impl Times {
    fn add(&mut self, other: &Times) {
        let each = [
            (&mut self.all, &other.all),
            (&mut self.base, &other.base),
            (&mut self.huge, &other.huge),
        ];
        for (a, b) in each {
            if a.is_empty() {
                a.clone_from(b);
            } else {
                a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
            }
        }
    }
}

/// What a thread has done so far; a cache line each.
#[derive(Default)]
#[repr(align(64))]
struct Progress(AtomicU64);

/// The versions of a task's pages.
pub struct Phases {
    task: u32,
    versions: Vec<Box<[AtomicU64]>>,
    pages: usize,
}

impl Phases {
    /// Of memory that was written whole in `round`.
    pub fn new(task: u32, round: u32, pages: usize) -> Phases {
        let piece = || {
            let version = || AtomicU64::new(u64::from(round) << 32);
            std::iter::repeat_with(version).take(PIECE).collect()
        };
        Phases {
            task,
            versions: std::iter::repeat_with(piece)
                .take(pages.div_ceil(PIECE))
                .collect(),
            pages,
        }
    }

    /// Plays a phase in `memory`, of as many pages as told; the inner error is the byte of a wrong word.
    pub fn play(
        &self,
        memory: &mut [u8],
        phase: &Phase,
        tasks: u32,
    ) -> Result<Result<Played, usize>> {
        let words = words(memory)?;
        let looked_at = phase.groups.iter().any(|g| g.doing.is_looked_at());
        let pagemap = looked_at.then(|| File::open("/proc/self/pagemap"));
        let pagemap = pagemap
            .transpose()
            .context("/proc/self/pagemap cannot be read")?;
        let stop = AtomicBool::new(false);
        let ending = phase.groups.iter().filter(|g| g.doing.ends());
        let to_end = AtomicUsize::new(ending.map(|g| g.threads as usize).sum());
        let progress: Vec<Vec<Progress>> = phase
            .groups
            .iter()
            .map(|g| (0..g.threads).map(|_| Progress::default()).collect())
            .collect();
        let patterns: Vec<Option<Pages>> = phase
            .groups
            .iter()
            .map(|g| match g.doing {
                Doing::Random { pattern, .. } | Doing::Timed { pattern } => {
                    Some(Pages::new(pattern, self.range(g.part).len() as u64))
                }
                _ => None,
            })
            .collect();
        let started = Instant::now();
        let deadline = phase.seconds.map(|s| started + Duration::from_secs_f64(s));
        std::thread::scope(|s| {
            let (running, ended) = mpsc::channel::<()>();
            let mut threads = Vec::new();
            for (group, (progress, pages)) in
                phase.groups.iter().zip(progress.iter().zip(&patterns))
            {
                for (n, progress) in progress.iter().enumerate() {
                    let job = Job {
                        phases: self,
                        words,
                        pagemap: pagemap.as_ref(),
                        stop: &stop,
                        progress: &progress.0,
                    };
                    let (running, to_end) = (running.clone(), &to_end);
                    threads.push(s.spawn(move || {
                        let started = Instant::now();
                        let mut times = Times::default();
                        let wrong = job.run(group, n as u32, pages.as_ref(), tasks, &mut times);
                        let was_last = || to_end.fetch_sub(1, Relaxed) == 1;
                        if wrong.is_some() || group.doing.ends() && was_last() {
                            job.stop.store(true, Relaxed);
                        }
                        drop(running);
                        (started.elapsed().as_secs_f64(), wrong, times)
                    }));
                }
            }
            drop(running);
            let samples = watch(&ended, phase, &progress, started, deadline, &stop);
            let seconds = started.elapsed().as_secs_f64();
            let mut ended = threads
                .into_iter()
                .map(|t| t.join().unwrap_or((0.0, Some(0), Times::default())));
            let mut groups = Vec::new();
            for (group, progress) in phase.groups.iter().zip(&progress) {
                let mut tally = Tally {
                    threads: group.threads,
                    done: sum(progress),
                    ..Tally::default()
                };
                for (thread_s, wrong, times) in ended.by_ref().take(progress.len()) {
                    if let Some(at) = wrong {
                        return Ok(Err(at));
                    }
                    tally.thread_s += thread_s;
                    tally.times.add(&times);
                }
                if let (Some(pagemap), true) = (&pagemap, group.doing.is_looked_at()) {
                    tally.held = held(pagemap, &words[self.words_of(group.part)]);
                }
                groups.push(tally);
            }
            Ok(Ok(Played {
                seconds,
                groups,
                samples,
            }))
        })
    }

    /// Compares one unit in `one_in`; the byte of a wrong word.
    pub fn verify(
        &self,
        memory: &mut [u8],
        threads: usize,
        one_in: usize,
    ) -> Result<Option<usize>> {
        let words = words(memory)?;
        let units = self.pages * PAGE / UNIT;
        Ok(search(threads, |n| {
            let mine = units * n / threads..units * (n + 1) / threads;
            let pages = mine
                .step_by(one_in)
                .flat_map(|u| u * UNIT / PAGE..(u + 1) * UNIT / PAGE);
            pages.into_iter().find_map(|page| self.check(words, page))
        }))
    }

    /// Pages of a part; parts are whole units.
    fn range(&self, part: Part) -> Range<usize> {
        if part == Part::All {
            return 0..self.pages;
        }
        let units = part.units(self.pages * PAGE / UNIT);
        units.start * (UNIT / PAGE)..units.end * (UNIT / PAGE)
    }

    fn words_of(&self, part: Part) -> Range<usize> {
        let pages = self.range(part);
        pages.start * WORDS..pages.end * WORDS
    }

    fn version(&self, page: usize) -> &AtomicU64 {
        &self.versions[page / PIECE][page % PIECE]
    }

    /// What the words of a page were written from, and how often one was changed since.
    fn state(&self, page: usize) -> (u64, u64) {
        let version = self.version(page).load(Relaxed);
        let seed = seed(self.task, (version >> 32) as u32);
        (seed, version & u64::from(u32::MAX))
    }

    /// The byte of a wrong word of a page that nobody writes.
    fn check(&self, words: &[AtomicU64], page: usize) -> Option<usize> {
        let (seed, changes) = self.state(page);
        let first = page * WORDS;
        let (mut sum, mut largest) = (0u64, 0);
        for (i, word) in words[first..first + WORDS].iter().enumerate() {
            let change = word
                .load(Relaxed)
                .wrapping_sub(first_value(seed, (first + i) * 8));
            sum = sum.wrapping_add(change);
            largest = largest.max(change);
        }
        (largest > changes || sum != changes).then_some(first * 8)
    }

    /// Writes a page whole, as the only thread that uses it.
    fn write(&self, words: &[AtomicU64], page: usize) {
        let round = (self.version(page).load(Relaxed) >> 32) + 1;
        self.version(page).store(round << 32, Relaxed);
        let (seed, _) = self.state(page);
        let first = page * WORDS;
        for (i, word) in words[first..first + WORDS].iter().enumerate() {
            word.store(first_value(seed, (first + i) * 8), Relaxed);
        }
    }

    /// Reads or changes one word; is it what it may be?
    fn access(&self, words: &[AtomicU64], page: usize, word: usize, write: bool) -> bool {
        let i = page * WORDS + word;
        let held = if write {
            self.version(page).fetch_add(1, Relaxed);
            words[i].fetch_add(1, Relaxed)
        } else {
            words[i].load(Relaxed)
        };
        // Loaded after the word, so it counts every change that the word can have.
        let (seed, changes) = self.state(page);
        held.wrapping_sub(first_value(seed, i * 8)) <= changes
    }
}

/// Memory as words that threads may share.
fn words(memory: &mut [u8]) -> Result<&[AtomicU64]> {
    let words = <[AtomicU64]>::mut_from_bytes(memory);
    words
        .map(|w| &*w)
        .map_err(|_| anyhow!("memory is not made of aligned words"))
}

/// What of it is in memory; none where the kernel (before 6.7) cannot tell.
fn held(pagemap: &File, words: &[AtomicU64]) -> Option<Held> {
    let range = words.as_ptr_range();
    let (fd, start, end) = (
        pagemap.as_raw_fd(),
        range.start as usize,
        range.end as usize,
    );
    let present = mm::present_bytes(fd, start, end).ok()?;
    // Two looks at a moving thing.
    let huge = mm::huge_bytes(fd, start, end).ok()?.min(present);
    Some(Held { present, huge })
}

/// Takes samples until every thread has ended, and ends them at the deadline.
fn watch(
    ended: &mpsc::Receiver<()>,
    phase: &Phase,
    progress: &[Vec<Progress>],
    started: Instant,
    deadline: Option<Instant>,
    stop: &AtomicBool,
) -> Vec<Sample> {
    let every = Duration::from_secs_f64(phase.every_s.max(0.01));
    let mut samples = Vec::new();
    let mut next = started + every;
    let mut take = || {
        samples.push(Sample {
            at_s: started.elapsed().as_secs_f64(),
            done: progress.iter().map(|g| sum(g)).collect(),
        });
    };
    loop {
        let until = deadline.map_or(next, |d| d.min(next));
        match ended.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Err(RecvTimeoutError::Timeout) => {}
            _ => break,
        }
        let now = Instant::now();
        if deadline.is_some_and(|d| now >= d) {
            stop.store(true, Relaxed);
            // They end with the access they are at, however long it takes.
            let _ = ended.recv();
            break;
        }
        take();
        next = now.max(next) + every;
    }
    take();
    samples
}

fn sum(progress: &[Progress]) -> u64 {
    progress.iter().map(|p| p.0.load(Relaxed)).sum()
}

#[cfg(test)]
mod tests;
