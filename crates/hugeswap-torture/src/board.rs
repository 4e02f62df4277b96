//! The counters that `check` and `sweep` share: a small file, mapped by the checker and all of its
//! forked children, read and written by the sweep. All fields are little-endian words at fixed
//! places, and each is changed by one atomic instruction.

use anyhow::{Context, Result};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// A word of the board, by its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Word {
    /// Steps that have ended, of all threads and processes.
    Steps,
    /// Words of memory that were read and compared, or written.
    Accesses,
    /// Operations on ranges.
    RangeOps,
    /// Forks.
    Forks,
    /// Children that ended as they should.
    Children,
    /// Operations that were refused for want of memory or of mappings.
    Refused,
    /// Failures.
    Wrong,
    /// The sweep asks the checker to end.
    Stop,
    /// The checker has given all its memory back.
    Drained,
    /// The sweep lets a drained checker end.
    Release,
}

/// Words of the board.
pub const WORDS: usize = 16;
/// Bytes of the file.
pub const BYTES: usize = 4096;
const _: () = assert!(WORDS * 8 <= BYTES && (Word::Release as usize) < WORDS);

/// The sweep's view of a board.
pub struct View<'a>(pub &'a File);

impl View<'_> {
    /// The value of a word.
    pub fn get(&self, word: Word) -> Result<u64> {
        let mut bytes = [0; 8];
        self.0
            .read_exact_at(&mut bytes, word as u64 * 8)
            .context("cannot read the board")?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Sets a word that only the sweep sets.
    pub fn set(&self, word: Word, value: u64) -> Result<()> {
        self.0
            .write_all_at(&value.to_le_bytes(), word as u64 * 8)
            .context("cannot write the board")
    }
}
