//! What one thread of a phase does.

use super::pattern::Pages;
use super::plan::{Doing, Group, NewMap};
use super::played::{Times, note};
use super::steps::{Step, What};
use super::versions::{Versions, WORDS};
use super::words::{PAGE, UNIT, fill, first_value, seed};
use hugeswap_support::random::next;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const MIB: f64 = (1u64 << 20) as f64;

/// What one thread works with.
pub struct Job<'a> {
    pub versions: &'a Versions,
    pub words: &'a [AtomicU64],
    /// `/proc/self/pagemap`, if some group counts the memory that is present.
    pub pagemap: Option<&'a File>,
    pub stop: &'a AtomicBool,
    pub progress: &'a AtomicU64,
}

impl Job<'_> {
    /// Does the share of thread `n` of its group, and notes the times of accesses that are timed.
    /// Returns the byte of a wrong word.
    pub fn run(
        &self,
        group: &Group,
        n: u32,
        pages: Option<&Pages>,
        tasks: u32,
        times: &mut Times,
    ) -> Option<usize> {
        let part = self.versions.range(group.part);
        match (group.doing, pages) {
            (
                Doing::Random {
                    write, accesses, ..
                },
                Some(pages),
            ) => {
                let at_once = u64::from(group.threads) * u64::from(tasks);
                let limit = accesses.map_or(u64::MAX, |a| a / at_once);
                let mut random = seed(self.versions.task ^ 0x5eed_0000, n);
                self.random(part.start, pages, write, limit, &mut random)
            }
            (Doing::Timed { .. }, Some(pages)) => {
                let mut random = seed(self.versions.task ^ 0x5eed_0000, n);
                let mut began = Instant::now();
                loop {
                    let wrong = self.random(part.start, pages, false, 1, &mut random);
                    let now = Instant::now();
                    note(&mut times.all, now.duration_since(began));
                    began = now;
                    if wrong.is_some() || self.stop.load(Relaxed) {
                        return wrong;
                    }
                }
            }
            (Doing::Fresh, _) => {
                let len = part.len() / group.threads as usize * PAGE;
                self.fresh(len, seed(self.versions.task, n))
            }
            (Doing::Stream { write }, _) => {
                let (n, of) = (n as usize, group.threads as usize);
                let piece =
                    part.start + part.len() * n / of..part.start + part.len() * (n + 1) / of;
                self.stream(&piece, write)
            }
            (Doing::Fill, _) => {
                self.fill(&units_of(&part, n, group.threads));
                None
            }
            (Doing::Touch, _) => {
                self.touch(&units_of(&part, n, group.threads), &mut *times);
                None
            }
            (Doing::Map(map), _) => self.map(map, seed(self.versions.task, n), &mut times.all),
            (Doing::Rest, _) => {
                while !self.stop.load(Relaxed) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                None
            }
            (Doing::Program(program), _) => self.steps(&program.steps()),
            (Doing::Random { .. } | Doing::Timed { .. }, None) => None,
        }
    }

    fn count_one(&self) {
        let done = self.progress.load(Relaxed);
        self.progress.store(done + 1, Relaxed);
    }

    fn steps(&self, steps: &[Step]) -> Option<usize> {
        let mut done = 0;
        for step in steps {
            for page in step.pages.clone() {
                if self.stop.load(Relaxed) {
                    return None;
                }
                // Any word will do, but not always the same one.
                let word = page * 7 % WORDS;
                match step.what {
                    What::Fill => self.versions.write(self.words, page),
                    What::Read | What::Write => {
                        let write = step.what == What::Write;
                        if !self.versions.access(self.words, page, word, write) {
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
            // At least one access: a busy machine may not run this thread before the time is over.
            if done > 1 && self.stop.load(Relaxed) {
                return None;
            }
            let page = first + pages.next(random) as usize;
            let word = next(random) as usize % WORDS;
            if !self.versions.access(self.words, page, word, write) {
                return Some(page * PAGE + word * 8);
            }
            self.count_one();
        }
        None
    }

    /// Maps `len` bytes, writes them from start to end and unmaps them, again and again.
    fn fresh(&self, len: usize, seed: u64) -> Option<usize> {
        while !self.stop.load(Relaxed) {
            // Where no memory can be mapped there is nothing to write.
            let mut map = memmap2::MmapMut::map_anon(len).ok()?;
            for (n, page) in map.chunks_exact_mut(PAGE).enumerate() {
                if self.stop.load(Relaxed) {
                    return None;
                }
                fill(page, first_value(seed, n * PAGE));
                self.count_one();
            }
        }
        None
    }

    fn stream(&self, piece: &Range<usize>, write: bool) -> Option<usize> {
        for (done, page) in (1..).zip(piece.clone().cycle()) {
            // At least one access: a busy machine may not run this thread before the time is over.
            if done > 1 && self.stop.load(Relaxed) {
                return None;
            }
            if write {
                self.versions.write(self.words, page);
            } else if let Some(at) = self.versions.check(self.words, page) {
                return Some(at);
            }
            self.progress.store(done, Relaxed);
        }
        None
    }

    /// Writes pages from start to end, once.
    fn fill(&self, pages: &Range<usize>) {
        for page in pages.clone() {
            if self.stop.load(Relaxed) {
                return;
            }
            self.versions.write(self.words, page);
            self.count_one();
        }
    }

    /// Writes memory that was never touched, and times the touch of each absent page.
    fn touch(&self, pages: &Range<usize>, times: &mut Times) {
        for first in pages.clone().step_by(UNIT / PAGE) {
            let unit = first..pages.end.min(first + UNIT / PAGE);
            let took = self.timed_write(first);
            note(&mut times.all, took);
            // A huge page brings the last page of the unit, too.
            let huge = self.is_present(unit.end - 1);
            let kind = if huge {
                &mut times.huge
            } else {
                &mut times.base
            };
            note(kind, took);
            for page in unit.skip(1) {
                if self.stop.load(Relaxed) {
                    return;
                }
                // No thread waits for a page that came with an earlier touch.
                let there = huge || self.is_present(page);
                let took = self.timed_write(page);
                if !there {
                    note(&mut times.base, took);
                }
            }
        }
    }

    /// Writes a page whole. Returns the time that its first word took.
    fn timed_write(&self, page: usize) -> Duration {
        let began = Instant::now();
        self.words[page * WORDS].store(1, Relaxed);
        let took = began.elapsed();
        self.versions.write(self.words, page);
        self.count_one();
        took
    }

    fn is_present(&self, page: usize) -> bool {
        const PRESENT: u64 = 1 << 63;
        let at = self.words[page * WORDS..].as_ptr() as usize / PAGE * 8;
        let mut entry = [0; 8];
        let read = |f: &File| f.read_exact_at(&mut entry, at as u64).is_ok();
        self.pagemap.is_some_and(read) && u64::from_ne_bytes(entry) & PRESENT != 0
    }

    /// Maps memory, touches and verifies every page of it and unmaps it, again and again, with a pause
    /// after each. Notes the time for a MiB.
    fn map(&self, map: NewMap, seed: u64, times: &mut Vec<u64>) -> Option<usize> {
        for done in 1.. {
            // At least one: a busy machine may not run this thread before the time is over.
            if done > 1 && self.stop.load(Relaxed) {
                break;
            }
            let began = Instant::now();
            // Where no memory can be mapped there is nothing to touch; the count shows that.
            let mut memory = memmap2::MmapMut::map_anon(map.bytes).ok()?;
            if map.advise {
                memory.advise(memmap2::Advice::HugePage).ok()?;
            }
            let value = |n: usize| first_value(seed, n * PAGE).to_ne_bytes();
            let pages = memory.chunks_exact_mut(PAGE).enumerate();
            pages.for_each(|(n, page)| page[..8].copy_from_slice(&value(n)));
            let took = began.elapsed();
            note(times, took.mul_f64(MIB / map.bytes as f64));
            let mut pages = memory.chunks_exact(PAGE).enumerate();
            let wrong =
                pages.find(|(n, page)| page[..8] != value(*n) || page[8..].iter().any(|b| *b != 0));
            if let Some((n, _)) = wrong {
                return Some(n * PAGE);
            }
            drop(memory);
            self.count_one();
            std::thread::sleep(Duration::from_micros(map.pause_us));
        }
        None
    }
}

/// The pages of thread `n` of `of`: whole units.
fn units_of(part: &Range<usize>, n: u32, of: u32) -> Range<usize> {
    const EACH: usize = UNIT / PAGE;
    let (units, n, of) = (part.len() / EACH, n as usize, of as usize);
    part.start + units * n / of * EACH..part.start + units * (n + 1) / of * EACH
}
