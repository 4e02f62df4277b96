//! Phases of a worker: groups of threads stream through a part of the memory or go to its pages at random, at the
//! same time, for so long or for so many accesses.
//!
//! Every page has a *version*: the round in which it was last written whole, and how often one of its words was then
//! changed, by adding 1 to it. So what the words of a page may hold is known at any time, and their sum exactly once nobody
//! writes. Threads share memory as atomic words; a version is changed before the word.

use super::memory::{UNIT, first_value, next_random, search, seed};
use super::pattern::{Pages, Pattern};
use super::workingset::program::{Program, Step, What};
use anyhow::{Result, anyhow};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
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
    /// How long; else until every group has done its accesses.
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
    /// Goes through the steps of a program once, on all of the memory; by one thread.
    Program(Program),
}

/// Which part of a task's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    All,
    FirstHalf,
    SecondHalf,
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
            a.threads += b.threads;
            a.done += b.done;
            a.thread_s += b.thread_s;
        }
        self.samples.truncate(other.samples.len());
        for (a, b) in self.samples.iter_mut().zip(&other.samples) {
            a.at_s = a.at_s.max(b.at_s);
            a.done.iter_mut().zip(&b.done).for_each(|(a, b)| *a += b);
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
        let stop = AtomicBool::new(false);
        let progress: Vec<Vec<Progress>> = phase
            .groups
            .iter()
            .map(|g| (0..g.threads).map(|_| Progress::default()).collect())
            .collect();
        let patterns: Vec<Option<Pages>> = phase
            .groups
            .iter()
            .map(|g| match g.doing {
                Doing::Stream { .. } | Doing::Program(_) => None,
                Doing::Random { pattern, .. } => {
                    Some(Pages::new(pattern, self.range(g.part).len() as u64))
                }
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
                        stop: &stop,
                        progress: &progress.0,
                    };
                    let running = running.clone();
                    threads.push(s.spawn(move || {
                        let started = Instant::now();
                        let wrong = job.run(group, n as u32, pages.as_ref(), tasks);
                        if wrong.is_some() {
                            job.stop.store(true, Relaxed);
                        }
                        drop(running);
                        (started.elapsed().as_secs_f64(), wrong)
                    }));
                }
            }
            drop(running);
            let samples = watch(&ended, phase, &progress, started, deadline, &stop);
            let seconds = started.elapsed().as_secs_f64();
            let mut ended = threads
                .into_iter()
                .map(|t| t.join().unwrap_or((0.0, Some(0))));
            let mut groups = Vec::new();
            for (group, progress) in phase.groups.iter().zip(&progress) {
                let mut tally = Tally {
                    threads: group.threads,
                    done: sum(progress),
                    thread_s: 0.0,
                };
                for (thread_s, wrong) in ended.by_ref().take(progress.len()) {
                    if let Some(at) = wrong {
                        return Ok(Err(at));
                    }
                    tally.thread_s += thread_s;
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
        let half = self.pages * PAGE / UNIT / 2 * (UNIT / PAGE);
        match part {
            Part::All => 0..self.pages,
            Part::FirstHalf => 0..half,
            Part::SecondHalf => half..self.pages,
        }
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

/// What one thread works with.
struct Job<'a> {
    phases: &'a Phases,
    words: &'a [AtomicU64],
    stop: &'a AtomicBool,
    progress: &'a AtomicU64,
}

impl Job<'_> {
    /// Does its share, as thread `n` of its group; the byte of a wrong word.
    fn run(&self, group: &Group, n: u32, pages: Option<&Pages>, tasks: u32) -> Option<usize> {
        let part = self.phases.range(group.part);
        match (group.doing, pages) {
            (
                Doing::Random {
                    write, accesses, ..
                },
                Some(pages),
            ) => {
                let at_once = u64::from(group.threads) * u64::from(tasks);
                let limit = accesses.map_or(u64::MAX, |a| a / at_once);
                let mut random = seed(self.phases.task ^ 0x5eed_0000, n);
                self.random(part.start, pages, write, limit, &mut random)
            }
            (Doing::Stream { write }, _) => {
                let (n, of) = (n as usize, group.threads as usize);
                let piece =
                    part.start + part.len() * n / of..part.start + part.len() * (n + 1) / of;
                self.stream(&piece, write)
            }
            (Doing::Program(program), _) => self.steps(&program.steps()),
            (Doing::Random { .. }, None) => None,
        }
    }

    fn steps(&self, steps: &[Step]) -> Option<usize> {
        let mut done = 0;
        for step in steps {
            for page in step.pages.clone() {
                if self.stop.load(Relaxed) {
                    return None;
                }
                // Any word does, and not always the same.
                let word = page * 7 % WORDS;
                match step.what {
                    What::Fill => self.phases.write(self.words, page),
                    What::Read | What::Write => {
                        let write = step.what == What::Write;
                        if !self.phases.access(self.words, page, word, write) {
                            return Some(page * PAGE + word * 8);
                        }
                    }
                }
                done += 1;
                self.progress.store(done, Relaxed);
            }
        }
        None
    }

    fn random(
        &self,
        first: usize,
        pages: &Pages,
        write: bool,
        limit: u64,
        random: &mut u64,
    ) -> Option<usize> {
        for done in 1..=limit {
            // One access at least: a machine may be too busy for a turn in the time there is.
            if done > 1 && self.stop.load(Relaxed) {
                return None;
            }
            let page = first + pages.next(random) as usize;
            let word = next_random(random) as usize % WORDS;
            if !self.phases.access(self.words, page, word, write) {
                return Some(page * PAGE + word * 8);
            }
            self.progress.store(done, Relaxed);
        }
        None
    }

    fn stream(&self, piece: &Range<usize>, write: bool) -> Option<usize> {
        for (done, page) in (1..).zip(piece.clone().cycle()) {
            // One access at least: a machine may be too busy for a turn in the time there is.
            if done > 1 && self.stop.load(Relaxed) {
                return None;
            }
            if write {
                self.phases.write(self.words, page);
            } else if let Some(at) = self.phases.check(self.words, page) {
                return Some(at);
            }
            self.progress.store(done, Relaxed);
        }
        None
    }
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
mod tests {
    use super::*;
    use crate::bench::memory::fill;

    const PAGES: usize = 4 * UNIT / PAGE;

    fn memory(task: u32) -> (memmap2::MmapMut, Phases) {
        let mut map = memmap2::MmapMut::map_anon(PAGES * PAGE).unwrap();
        fill(&mut map, seed(task, 1));
        (map, Phases::new(task, 1, PAGES))
    }

    fn group(doing: Doing, threads: u32, part: Part) -> Group {
        Group {
            doing,
            threads,
            part,
        }
    }

    fn phase(seconds: Option<f64>, groups: Vec<Group>) -> Phase {
        Phase {
            name: "p".into(),
            seconds,
            every_s: 0.02,
            groups,
        }
    }

    fn random(write: bool, accesses: Option<u64>) -> Doing {
        Doing::Random {
            pattern: Pattern::Uniform,
            write,
            accesses,
        }
    }

    #[test]
    fn writes_by_many_threads_are_all_accounted_for() {
        let (mut map, phases) = memory(3);
        let p = phase(None, vec![group(random(true, Some(4000)), 4, Part::All)]);
        let played = phases.play(&mut map, &p, 1).unwrap().unwrap();
        assert_eq!((played.groups[0].done, played.groups[0].threads), (4000, 4));
        assert_eq!(phases.verify(&mut map, 3, 1).unwrap(), None);
        let changes: u64 = (0..PAGES).map(|p| phases.state(p).1).sum();
        assert_eq!(changes, 4000);
        // One change lost.
        let page = (0..PAGES).find(|p| phases.state(*p).1 == 1).unwrap();
        fill(
            &mut map[page * PAGE..(page + 1) * PAGE],
            first_value(seed(3, 1), page * PAGE),
        );
        assert_eq!(phases.verify(&mut map, 2, 1).unwrap(), Some(page * PAGE));
    }

    #[test]
    fn streams_and_random_accesses_go_on_together() {
        let (mut map, phases) = memory(0);
        let p = phase(
            Some(0.1),
            vec![
                group(Doing::Stream { write: true }, 2, Part::FirstHalf),
                group(random(false, None), 2, Part::SecondHalf),
            ],
        );
        let played = phases.play(&mut map, &p, 1).unwrap().unwrap();
        assert!(played.groups.iter().all(|g| g.done > 0 && g.threads == 2));
        let last = played.samples.last().unwrap();
        assert_eq!(last.done, [played.groups[0].done, played.groups[1].done]);
        assert!(played.samples.is_sorted_by(|a, b| a.at_s <= b.at_s));
        assert_eq!(phases.verify(&mut map, 2, 1).unwrap(), None);
        // What was streamed is read at random and streamed again.
        for doing in [random(true, None), Doing::Stream { write: false }] {
            let p = phase(Some(0.05), vec![group(doing, 2, Part::All)]);
            phases.play(&mut map, &p, 1).unwrap().unwrap();
        }
        assert_eq!(phases.verify(&mut map, 1, 1).unwrap(), None);
    }

    #[test]
    fn a_wrong_word_ends_a_phase() {
        for doing in [
            random(false, None),
            random(true, None),
            Doing::Stream { write: false },
        ] {
            let (mut map, phases) = memory(0);
            map[UNIT..UNIT + PAGE].fill(0);
            let p = phase(Some(60.0), vec![group(doing, 2, Part::All)]);
            let at = phases.play(&mut map, &p, 1).unwrap().unwrap_err();
            assert_eq!(at / PAGE, UNIT / PAGE);
        }
    }

    #[test]
    fn a_program_writes_what_it_reads() {
        let mut map = memmap2::MmapMut::map_anon(PAGES * PAGE).unwrap();
        let phases = Phases::new(0, 0, PAGES);
        let (cold, hot, reads) = (PAGES / 2, PAGES / 4, 100);
        let write = true;
        let parts = [
            Program::Cold {
                cold,
                hot,
                reads,
                write,
            },
            Program::Thrash {
                cold,
                hot,
                reads,
                repeats: 3,
                write,
            },
        ];
        for part in parts {
            let p = phase(None, vec![group(Doing::Program(part), 1, Part::All)]);
            let played = phases.play(&mut map, &p, 1).unwrap().unwrap();
            let pages: usize = part.steps().iter().map(|s| s.pages.len()).sum();
            assert_eq!(played.groups[0].done, pages as u64);
        }
        assert_eq!(phases.verify(&mut map, 2, 1).unwrap(), None);
        // A page that came back as zeros.
        map[..PAGE].fill(0);
        let p = phase(None, vec![group(Doing::Program(parts[1]), 1, Part::All)]);
        assert_eq!(phases.play(&mut map, &p, 1).unwrap().unwrap_err(), 0);
    }

    #[test]
    fn accesses_are_shared_among_tasks() {
        let (mut map, phases) = memory(0);
        let p = phase(None, vec![group(random(false, Some(1000)), 2, Part::All)]);
        let mut all = phases.play(&mut map, &p, 2).unwrap().unwrap();
        assert_eq!(all.groups[0].done, 500);
        all.add(&phases.play(&mut map, &p, 2).unwrap().unwrap());
        assert_eq!((all.groups[0].done, all.groups[0].threads), (1000, 4));
    }
}
