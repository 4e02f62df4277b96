//! One thread's memory and what each page of it must hold.

use super::super::memory::next_random;
use super::super::pattern::below;
use super::children::Child;
use anyhow::{Result, bail};
use hugeswap::{Advice, Error, Pool, Region};
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

pub const PAGE: usize = hugeswap_policy::PAGE_BYTES as usize;
const UNIT_PAGES: usize = hugeswap_policy::UNIT_PAGES as usize;
/// This operation of each thread forks a child first, and then one of so many.
const FIRST_FORK: u64 = 20;
const FORK_ONE_IN: usize = 400;
/// Of a unit that is lost in part so many lost pages are looked at: each takes some time.
const LOOKS: usize = 4;

/// What all threads count.
#[derive(Default)]
pub struct Counts {
    pub operations: AtomicU64,
    pub verified: AtomicU64,
    pub wrong: AtomicU64,
    pub lost: AtomicU64,
    pub refused: AtomicU64,
    /// Children that were forked and have ended.
    pub children: AtomicU64,
    /// Children that did not end.
    pub hangs: AtomicU64,
    pub longest_ns: AtomicU64,
}

/// See the file's head.
pub struct Model<'a> {
    region: Region,
    thread: u64,
    /// By page: 0 is zeros, otherwise which time it was written.
    held: Vec<u32>,
    random: u64,
    turn: u32,
    steps: u64,
    pub(super) counts: &'a Counts,
    /// Counts what this thread has done, for who watches it.
    pub(super) alive: &'a AtomicU64,
    pub(super) child: Option<Child>,
    /// The first page with wrong bytes.
    said: Option<String>,
}

/// What a page holds.
fn content(thread: u64, page: usize, turn: u32, to: &mut [u8; PAGE]) {
    if turn == 0 {
        return to.fill(0);
    }
    let mut seed = thread << 56 ^ (page as u64) << 32 ^ u64::from(turn);
    let first = next_random(&mut seed);
    for (i, word) in to.chunks_exact_mut(8).enumerate() {
        let value = first.wrapping_add((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        word.copy_from_slice(&value.to_ne_bytes());
    }
}

impl<'a> Model<'a> {
    pub fn new(
        pool: &Pool,
        bytes: usize,
        thread: u64,
        seed: u64,
        counts: &'a Counts,
        alive: &'a AtomicU64,
    ) -> Result<Model<'a>> {
        Ok(Model {
            region: pool.region(bytes)?,
            thread,
            held: vec![0; bytes / PAGE],
            random: seed ^ (thread + 1) << 32,
            turn: 0,
            steps: 0,
            counts,
            alive,
            child: None,
            said: None,
        })
    }

    fn below(&mut self, n: usize) -> usize {
        below(n as u64, &mut self.random) as usize
    }

    pub fn any_page(&mut self) -> usize {
        self.below(self.held.len())
    }

    /// What is written from now on no relative writes.
    pub fn begin_as_child(&mut self) {
        self.turn |= 1 << 31;
        (self.child, self.said) = (None, None);
    }

    /// The first page with wrong bytes, once.
    pub fn take_said(&mut self) -> Option<String> {
        self.said.take()
    }

    /// Does something, and forks now and then.
    pub fn step(&mut self) -> Result<()> {
        let start = Instant::now();
        self.steps += 1;
        let now = self.steps == FIRST_FORK || self.below(FORK_ONE_IN) == 0;
        if now {
            self.fork()?;
        }
        self.look_at_child(false)?;
        self.act()?;
        let took = start.elapsed().as_nanos() as u64;
        self.counts.longest_ns.fetch_max(took, Relaxed);
        self.counts.operations.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Does something by itself.
    pub fn act(&mut self) -> Result<()> {
        let page = self.below(self.held.len());
        match self.below(100) {
            0..40 => self.verify(page)?,
            40..70 => self.write(page)?,
            70..76 => {
                // Side by side, so that units come whole.
                let pages = self.run(page, 256);
                pages.clone().try_for_each(|p| self.verify(p))?;
            }
            76..82 => {
                let pages = self.run(page, 256);
                pages.clone().try_for_each(|p| self.write(p))?;
            }
            82..88 => self.write_part(page)?,
            88..92 => self.discard(page)?,
            92..95 => {
                let most = 2 * UNIT_PAGES;
                let pages = self.run(page, most);
                self.advise(pages, Advice::PageOut)?;
            }
            95..98 => {
                let pages = self.run(page, UNIT_PAGES);
                self.advise(pages, Advice::WillNeed)?;
            }
            _ => {
                let advice = [
                    Advice::HugePage,
                    Advice::NoHugePage,
                    Advice::Random,
                    Advice::Sequential,
                    Advice::Normal,
                ];
                let advice = advice[self.below(advice.len())];
                self.advise(self.unit_of(page), advice)?;
            }
        }
        Ok(())
    }

    fn run(&mut self, page: usize, most: usize) -> Range<usize> {
        let n = 1 + self.below(most);
        page..(page + n).min(self.held.len())
    }

    fn unit_of(&self, page: usize) -> Range<usize> {
        let first = page / UNIT_PAGES * UNIT_PAGES;
        first..(first + UNIT_PAGES).min(self.held.len())
    }

    fn discard_pages(&mut self, pages: Range<usize>) -> Result<()> {
        Ok(self
            .region
            .discard(pages.start * PAGE, pages.len() * PAGE)?)
    }

    fn advise(&mut self, pages: Range<usize>, advice: Advice) -> Result<()> {
        Ok(self
            .region
            .advise(pages.start * PAGE, pages.len() * PAGE, advice)?)
    }

    fn discard(&mut self, page: usize) -> Result<()> {
        let pages = match self.below(4) {
            0 => self.unit_of(page),
            _ => {
                let most = 32;
                self.run(page, most)
            }
        };
        // A page in a unit that is lost whole does not become zeros by itself.
        for p in pages.clone() {
            self.held[p] = 0;
        }
        for _ in 0..3 {
            match self.discard_pages(pages.clone()) {
                Err(e) if matches!(e.downcast_ref(), Some(Error::NotDiscarded { .. })) => {
                    self.wait_a_moment();
                }
                done => return done,
            }
        }
        // Whole units need no memory for it.
        let whole = self.unit_of(pages.start).start..self.unit_of(pages.end - 1).end;
        self.counts.refused.fetch_add(1, Relaxed);
        self.held[whole.clone()].fill(0);
        self.discard_pages(whole)
    }

    /// Is the page there, and as it should be? False: it is lost.
    fn look(&mut self, page: usize) -> Result<bool> {
        self.alive.fetch_add(1, Relaxed);
        let mut got = [0; PAGE];
        match self.region.read_at(page * PAGE, &mut got) {
            Ok(()) => {}
            Err(Error::Lost { .. }) => return Ok(false),
            Err(e) => bail!(e),
        }
        let mut want = [0; PAGE];
        content(self.thread, page, self.held[page], &mut want);
        if got != want {
            let at = (0..PAGE).find(|&i| got[i] != want[i]).unwrap_or(0);
            let message = format!(
                "thread {} page {page} turn {}: byte {at} is {:#x} and not {:#x}",
                self.thread, self.held[page], got[at], want[at]
            );
            if self.counts.wrong.fetch_add(1, Relaxed) == 0 {
                self.said = Some(message);
            }
        }
        self.counts.verified.fetch_add(1, Relaxed);
        Ok(true)
    }

    /// Reads a page and compares it.
    pub fn verify(&mut self, page: usize) -> Result<()> {
        if self.look(page)? {
            return Ok(());
        }
        self.give_up(page)
    }

    fn write(&mut self, page: usize) -> Result<()> {
        self.turn += 1;
        let turn = self.turn;
        let mut bytes = [0; PAGE];
        content(self.thread, page, turn, &mut bytes);
        if self.put(page, 0, &bytes)? {
            self.held[page] = turn;
        }
        Ok(())
    }

    /// Some bytes of a page are written as they are.
    fn write_part(&mut self, page: usize) -> Result<()> {
        let mut bytes = [0; PAGE];
        content(self.thread, page, self.held[page], &mut bytes);
        let from = self.below(PAGE - 64);
        self.put(page, from, &bytes[from..from + 64])?;
        Ok(())
    }

    /// False: the page was lost, and is zeros now.
    fn put(&mut self, page: usize, at: usize, bytes: &[u8]) -> Result<bool> {
        for again in [false, true, true] {
            self.alive.fetch_add(1, Relaxed);
            match self.region.write_at(page * PAGE + at, bytes) {
                Ok(()) => {
                    self.counts.refused.fetch_add(u64::from(again), Relaxed);
                    return Ok(true);
                }
                // Some of it may be written, so that the page is neither what it was nor what it should be.
                Err(Error::Lost { .. }) => self.wait_a_moment(),
                Err(e) => bail!(e),
            }
        }
        self.give_up_unit(page)?;
        Ok(false)
    }

    /// A page could not be read. If it really cannot, its unit is given up.
    fn give_up(&mut self, page: usize) -> Result<()> {
        self.wait_a_moment();
        if self.look(page)? {
            self.counts.refused.fetch_add(1, Relaxed);
            return Ok(());
        }
        self.give_up_unit(page)
    }

    /// It may have been memory that was short.
    fn wait_a_moment(&self) {
        std::thread::sleep(Duration::from_millis(50));
    }

    /// The unit of a page that is lost is given up, after a look at what else is lost of it.
    fn give_up_unit(&mut self, page: usize) -> Result<()> {
        let unit = self.unit_of(page);
        let mut lost = 1;
        for p in unit.clone().step_by(8).filter(|&p| p != page) {
            lost += usize::from(!self.look(p)?);
            if lost == LOOKS {
                break;
            }
        }
        self.counts.lost.fetch_add(lost as u64, Relaxed);
        for p in unit.clone() {
            self.held[p] = 0;
        }
        self.discard_pages(unit)
    }

    /// Looks at everything.
    pub fn verify_all(&mut self) -> Result<()> {
        (0..self.held.len()).try_for_each(|p| self.verify(p))
    }
}
