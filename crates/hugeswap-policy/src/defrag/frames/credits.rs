//! Base pages that are charged, by the frame, and not in use. One number.

use super::add;
use crate::UNIT_PAGES;
use crate::cell::Cell;

/// See the file's head.
#[derive(Debug, Default)]
pub struct Credits<W>(W);

impl<W: Cell<u64>> Credits<W> {
    /// None, if `word` is 0.
    pub const fn new(word: W) -> Credits<W> {
        Credits(word)
    }

    /// How many there are.
    pub fn pages(&self) -> u64 {
        self.0.get()
    }

    /// How many frames they make.
    pub fn frames(&self) -> u64 {
        self.pages() / UNIT_PAGES
    }

    /// Takes `n`, if there are so many: how many are left.
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

    /// Takes a frame's worth.
    pub fn take_frame(&self) -> Option<u64> {
        self.take(UNIT_PAGES)
    }

    /// Puts `n` more.
    pub fn put(&self, n: u64) {
        add(&self.0, |have| have + n);
    }

    /// In a forked child, where none of them is ours.
    pub fn forget(&self) {
        self.0.put(0);
    }
}
