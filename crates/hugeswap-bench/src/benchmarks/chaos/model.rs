//! The memory of one thread, and what each page of it must hold.

use super::task::Pages;
use crate::generate::words::PAGE;
use anyhow::{Result, bail};
use hugeswap::{Advice, Error, Pool, Region};
use hugeswap_support::random::{STEP, index, next};
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

const UNIT_PAGES: usize = hugeswap_policy::UNIT_PAGES as usize;
/// The largest number of lost pages of a unit that are read: each takes some time.
const LOOKS: usize = 4;

/// Memory and its model.
pub struct Model<'a> {
    region: Region,
    thread: u64,
    /// For each page 0 if it must be zeros, otherwise the turn in which it was written.
    held: Vec<u32>,
    random: u64,
    turn: u32,
    /// What became of pages since [`Model::take_pages`].
    pages: Pages,
    /// Counts what this thread does, for the thread that watches it.
    alive: &'a AtomicU64,
    /// The first page with wrong bytes, until it is taken.
    wrong: Option<String>,
}

/// The bytes of a page.
fn content(thread: u64, page: usize, turn: u32, to: &mut [u8; PAGE]) {
    if turn == 0 {
        return to.fill(0);
    }
    let mut seed = thread << 56 ^ (page as u64) << 32 ^ u64::from(turn);
    let first = next(&mut seed);
    for (i, word) in to.chunks_exact_mut(8).enumerate() {
        let value = first.wrapping_add((i as u64).wrapping_mul(STEP));
        word.copy_from_slice(&value.to_ne_bytes());
    }
}

impl<'a> Model<'a> {
    /// The memory of a thread, in a region of its own.
    pub fn new(
        pool: &Pool,
        bytes: usize,
        (thread, seed): (u64, u64),
        alive: &'a AtomicU64,
    ) -> Result<Model<'a>> {
        Ok(Model {
            region: pool.region(bytes)?,
            thread,
            held: vec![0; bytes / PAGE],
            random: seed ^ (thread + 1) << 32,
            turn: 0,
            pages: Pages::default(),
            alive,
            wrong: None,
        })
    }

    /// A random number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        index(n, &mut self.random)
    }

    /// From here on writes differ from those of all other processes.
    pub fn begin_as_child(&mut self) {
        self.turn |= 1 << 31;
        (self.pages, self.wrong) = (Pages::default(), None);
    }

    /// The first page with wrong bytes; returned once.
    pub fn take_wrong(&mut self) -> Option<String> {
        self.wrong.take()
    }

    /// What became of pages since the last call.
    pub fn take_pages(&mut self) -> Pages {
        std::mem::take(&mut self.pages)
    }

    /// Verifies a page.
    pub fn verify_any(&mut self) -> Result<()> {
        let page = self.below(self.held.len());
        self.verify(page)
    }

    /// Does an operation of a random kind.
    pub fn act(&mut self) -> Result<()> {
        let page = self.below(self.held.len());
        match self.below(100) {
            0..40 => self.verify(page)?,
            40..70 => self.write(page)?,
            70..76 => {
                // A run of pages, so that units come whole.
                self.run(page, 256).try_for_each(|p| self.verify(p))?;
            }
            76..82 => {
                self.run(page, 256).try_for_each(|p| self.write(p))?;
            }
            82..88 => self.write_part(page)?,
            88..92 => self.discard(page)?,
            92..95 => {
                let pages = self.run(page, 2 * UNIT_PAGES);
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
        let (start, len) = (pages.start * PAGE, pages.len() * PAGE);
        Ok(self.region.discard(start, len)?)
    }

    fn advise(&mut self, pages: Range<usize>, advice: Advice) -> Result<()> {
        let (start, len) = (pages.start * PAGE, pages.len() * PAGE);
        Ok(self.region.advise(start, len, advice)?)
    }

    fn discard(&mut self, page: usize) -> Result<()> {
        let pages = match self.below(4) {
            0 => self.unit_of(page),
            _ => self.run(page, 32),
        };
        self.held[pages.clone()].fill(0);
        for _ in 0..3 {
            match self.discard_pages(pages.clone()) {
                Err(e) if matches!(e.downcast_ref(), Some(Error::NotDiscarded { .. })) => {
                    self.wait_a_moment();
                }
                done => return done,
            }
        }
        // A page of a unit that is lost whole cannot be discarded alone; whole units can, without memory.
        let whole = self.unit_of(pages.start).start..self.unit_of(pages.end - 1).end;
        self.pages.refused += 1;
        self.held[whole.clone()].fill(0);
        self.discard_pages(whole)
    }

    /// Reads a page and compares it. False: it is lost.
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
            if self.pages.wrong == 0 {
                self.wrong = Some(message);
            }
            self.pages.wrong += 1;
        }
        self.pages.verified += 1;
        Ok(true)
    }

    /// Verifies a page; if it is lost, its unit is given up.
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

    /// Writes some bytes of a page again.
    fn write_part(&mut self, page: usize) -> Result<()> {
        let mut bytes = [0; PAGE];
        content(self.thread, page, self.held[page], &mut bytes);
        let from = self.below(PAGE - 64);
        self.put(page, from, &bytes[from..from + 64])?;
        Ok(())
    }

    /// Writes bytes of a page. False: the page was lost, and is zeros now.
    fn put(&mut self, page: usize, at: usize, bytes: &[u8]) -> Result<bool> {
        for again in [false, true, true] {
            self.alive.fetch_add(1, Relaxed);
            match self.region.write_at(page * PAGE + at, bytes) {
                Ok(()) => {
                    self.pages.refused += u64::from(again);
                    return Ok(true);
                }
                // A part may be written, so that the page holds neither the old nor the new bytes.
                Err(Error::Lost { .. }) => self.wait_a_moment(),
                Err(e) => bail!(e),
            }
        }
        self.give_up_unit(page)?;
        Ok(false)
    }

    /// A page could not be read. If it still cannot after a while, its unit is given up.
    fn give_up(&mut self, page: usize) -> Result<()> {
        self.wait_a_moment();
        if self.look(page)? {
            self.pages.refused += 1;
            return Ok(());
        }
        self.give_up_unit(page)
    }

    /// Memory may have been short.
    fn wait_a_moment(&self) {
        std::thread::sleep(Duration::from_millis(50));
    }

    /// Gives up the unit of a lost page, after counting what else of it is lost.
    fn give_up_unit(&mut self, page: usize) -> Result<()> {
        let unit = self.unit_of(page);
        let mut lost = 1;
        for p in unit.clone().step_by(8).filter(|&p| p != page) {
            lost += usize::from(!self.look(p)?);
            if lost == LOOKS {
                break;
            }
        }
        self.pages.lost += lost as u64;
        self.held[unit.clone()].fill(0);
        self.discard_pages(unit)
    }

    /// Verifies all pages.
    pub fn verify_all(&mut self) -> Result<()> {
        (0..self.held.len()).try_for_each(|p| self.verify(p))
    }
}
