//! Base pages that are charged, a frame at a time, and not in use: one number.

use super::add;
use crate::UNIT_PAGES;
use crate::cell::Cell;

/// The number of base pages that are charged and not in use.
#[derive(Debug, Default)]
pub struct Credits<W>(W);

impl<W: Cell<u64>> Credits<W> {
    /// Starts with the pages that `word` counts.
    pub const fn new(word: W) -> Credits<W> {
        Credits(word)
    }

    /// Number of pages.
    pub fn pages(&self) -> u64 {
        self.0.get()
    }

    /// Number of whole frames that they make.
    pub fn frames(&self) -> u64 {
        self.pages() / UNIT_PAGES
    }

    /// Takes `n` pages, and returns how many are left, or `None` if there are not so many.
    pub fn take(&self, n: u64) -> Option<u64> {
        let mut have = self.0.get();
        loop {
            let left = have.checked_sub(n)?;
            match self.0.change(have, left) {
                Ok(()) => return Some(left),
                Err(now) => have = now,
            }
        }
    }

    /// Takes the pages of a frame.
    pub fn take_frame(&self) -> Option<u64> {
        self.take(UNIT_PAGES)
    }

    /// Puts `n` pages back.
    pub fn put(&self, n: u64) {
        add(&self.0, |have| have + n);
    }

    /// Sets the number to 0 in a forked child, which owns none of the pages.
    pub fn forget(&self) {
        self.0.put(0);
    }
}
