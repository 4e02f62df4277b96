//! The version of each page of a worker's memory, and accesses that check it.
//!
//! Every page has a *version*: the round in which it was last written whole, and how often one of
//! its words was changed since, each time by adding 1 to it. So the values that a word may have are
//! known at any time, and the sum of a page's words is known exactly once no thread writes it.
//! Threads share memory as atomic words; a thread changes the version before the word.

use super::plan::Part;
use super::words::{PAGE, UNIT, first_value, search, seed};
use anyhow::{Result, anyhow};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use zerocopy::FromBytes;

/// Words of a page.
pub const WORDS: usize = PAGE / 8;
/// Versions are kept in pieces of 32 KiB, which is less than hugeswap manages.
const PIECE: usize = 4096;

/// The versions of a task's pages.
pub struct Versions {
    /// The task whose memory it is.
    pub task: u32,
    versions: Vec<Box<[AtomicU64]>>,
    pages: usize,
}

impl Versions {
    /// Versions of memory that was written whole in `round`.
    pub fn new(task: u32, round: u32, pages: usize) -> Versions {
        let piece = || {
            let version = || AtomicU64::new(u64::from(round) << 32);
            std::iter::repeat_with(version).take(PIECE).collect()
        };
        Versions {
            task,
            versions: std::iter::repeat_with(piece)
                .take(pages.div_ceil(PIECE))
                .collect(),
            pages,
        }
    }

    /// Verifies one unit in `one_in`. Returns the byte of a wrong word.
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

    /// The pages of a part; parts are whole units.
    pub fn range(&self, part: Part) -> Range<usize> {
        if part == Part::All {
            return 0..self.pages;
        }
        let units = part.units(self.pages * PAGE / UNIT);
        units.start * (UNIT / PAGE)..units.end * (UNIT / PAGE)
    }

    /// The words of a part.
    pub fn words_of(&self, part: Part) -> Range<usize> {
        let pages = self.range(part);
        pages.start * WORDS..pages.end * WORDS
    }

    fn version(&self, page: usize) -> &AtomicU64 {
        &self.versions[page / PIECE][page % PIECE]
    }

    /// The seed that a page was written from, and how often a word was changed since.
    pub fn state(&self, page: usize) -> (u64, u64) {
        let version = self.version(page).load(Relaxed);
        let seed = seed(self.task, (version >> 32) as u32);
        (seed, version & u64::from(u32::MAX))
    }

    /// Verifies a page that no thread writes. Returns the byte of a wrong word.
    pub fn check(&self, words: &[AtomicU64], page: usize) -> Option<usize> {
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

    /// Writes a page whole; no other thread may use it meanwhile.
    pub fn write(&self, words: &[AtomicU64], page: usize) {
        let round = (self.version(page).load(Relaxed) >> 32) + 1;
        self.version(page).store(round << 32, Relaxed);
        let (seed, _) = self.state(page);
        let first = page * WORDS;
        for (i, word) in words[first..first + WORDS].iter().enumerate() {
            word.store(first_value(seed, (first + i) * 8), Relaxed);
        }
    }

    /// Reads or changes one word. Returns whether it had a value that it may have.
    pub fn access(&self, words: &[AtomicU64], page: usize, word: usize, write: bool) -> bool {
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
pub fn words(memory: &mut [u8]) -> Result<&[AtomicU64]> {
    let words = <[AtomicU64]>::mut_from_bytes(memory);
    words
        .map(|w| &*w)
        .map_err(|_| anyhow!("memory is not made of aligned words"))
}
