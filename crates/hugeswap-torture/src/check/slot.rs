//! A slot: a piece of memory as a program has it, and the model that says what each of its bytes is.
//!
//! The model counts, for each line of 64 bytes, how often it was written. The bytes of a line
//! follow from the slot, the line and that count; a line that was never written is zero. So two
//! bytes of model stand for 64 bytes of memory, and a wrong line tells whether it is an old one.
//!
//! Locks, outermost first: `structure` (where the slot is, and how long), then `chunks` of 64 KiB
//! in ascending order. A thread that holds a chunk for reading changes only lines of its own
//! class; one that holds it for writing may change any. The locks are of one process; the lines
//! of shared slots have a class for each process that may change them.

use super::lock::Lock;
use super::memory;
use super::random::mix;
use anyhow::Result;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU16, AtomicUsize};

/// Bytes of a line.
pub const LINE: usize = 64;
/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Bytes that one lock guards.
pub const CHUNK: usize = 64 << 10;
/// In the model: the line is being changed, by a process that may be killed meanwhile.
const IN_TRANSIT: u16 = 1 << 15;

/// Where a slot's memory comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A private anonymous mapping.
    Map,
    /// A block of malloc and its kin.
    Malloc,
    /// A shared anonymous mapping, which children share.
    Shared,
}

/// See the file's head.
pub struct Slot {
    pub kind: Kind,
    /// Most bytes it may have.
    pub cap: usize,
    /// Held for writing by whoever moves the slot or changes its length.
    pub structure: Lock,
    chunks: Vec<Lock>,
    /// What malloc or mmap gave; 0 without memory.
    raw: AtomicUsize,
    /// First byte in use: `raw`, rounded up to a line.
    base: AtomicUsize,
    len: AtomicUsize,
    model: *const AtomicU16,
    salt: u64,
}

// SAFETY: the model is an array of atomics that stays mapped for good.
unsafe impl Sync for Slot {}

/// A line that is not as the model says.
#[derive(Debug)]
pub struct WrongLine {
    pub address: usize,
    pub offset: usize,
    pub found: [u64; LINE / 8],
    pub expected: [u64; LINE / 8],
    pub written: u16,
    /// The line's content that it had after so many writes, if that is what was found.
    pub older: Option<u16>,
}

impl Slot {
    /// A slot without memory.
    pub fn new(index: usize, kind: Kind, cap: usize, seed: u64) -> Result<Slot> {
        let model = memory::map(cap / LINE * 2, kind == Kind::Shared)?;
        Ok(Slot {
            kind,
            cap,
            structure: Lock::default(),
            chunks: (0..cap.div_ceil(CHUNK)).map(|_| Lock::default()).collect(),
            raw: AtomicUsize::new(0),
            base: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            model: model.cast(),
            salt: mix(seed ^ (index as u64 + 1) << 56),
        })
    }

    /// Bytes, a multiple of the line's.
    pub fn len(&self) -> usize {
        self.len.load(Relaxed)
    }

    /// First byte.
    pub fn base(&self) -> usize {
        self.base.load(Relaxed)
    }

    /// What malloc or mmap gave.
    pub fn raw(&self) -> usize {
        self.raw.load(Relaxed)
    }

    /// Lines.
    pub fn lines(&self) -> usize {
        self.len() / LINE
    }

    /// The slot is at `raw` now, with `len` bytes behind the first line's boundary. Held for writing.
    pub fn place(&self, raw: usize, len: usize) {
        self.raw.store(raw, Relaxed);
        self.base.store(raw.next_multiple_of(LINE), Relaxed);
        self.len.store(len & !(LINE - 1), Relaxed);
    }

    fn written(&self, line: usize) -> &AtomicU16 {
        debug_assert!(line < self.cap / LINE);
        // SAFETY: the model has a count for each line of the slot at its longest.
        unsafe { &*self.model.add(line) }
    }

    /// The lines `from..to` are zero now.
    pub fn note_zero(&self, from: usize, to: usize) {
        (from..to).for_each(|line| self.written(line).store(0, Relaxed));
    }

    /// What line `line` is after `written` writes.
    pub fn content(&self, line: usize, written: u16) -> [u64; LINE / 8] {
        if written == 0 {
            return [0; LINE / 8];
        }
        let first = mix(self.salt ^ (line as u64) << 16 ^ u64::from(written));
        std::array::from_fn(|i| first.rotate_left(i as u32 * 8) ^ i as u64)
    }

    /// What the line is to be.
    pub fn expected(&self, line: usize) -> [u64; LINE / 8] {
        self.content(line, self.written(line).load(Acquire))
    }

    fn address(&self, line: usize) -> *mut [u64; LINE / 8] {
        (self.base() + line * LINE) as *mut [u64; LINE / 8]
    }

    /// Reads a line.
    pub fn read_line(&self, line: usize) -> [u64; LINE / 8] {
        debug_assert!(line < self.lines());
        // SAFETY: the slot is mapped and readable while its structure lock is held.
        unsafe { self.address(line).read_volatile() }
    }

    /// Compares a line with the model.
    pub fn check(&self, line: usize) -> Result<(), Box<WrongLine>> {
        let written = self.written(line).load(Acquire);
        if written & IN_TRANSIT != 0 {
            return Ok(());
        }
        let (found, expected) = (self.read_line(line), self.content(line, written));
        if found == expected {
            return Ok(());
        }
        Err(Box::new(WrongLine {
            address: self.address(line) as usize,
            offset: line * LINE,
            found,
            expected,
            written,
            older: (0..written).rev().find(|&w| self.content(line, w) == found),
        }))
    }

    /// Counts one more write of a line and returns its new content, which somebody puts there.
    pub fn note_write(&self, line: usize) -> [u64; LINE / 8] {
        let next = self.written(line).load(Relaxed) & !IN_TRANSIT;
        let next = if next + 1 == IN_TRANSIT { 1 } else { next + 1 };
        self.written(line).store(next, Release);
        self.content(line, next)
    }

    /// Writes a line. The slot's memory is writable, and the line the caller's.
    pub fn write(&self, line: usize) {
        let word = self.written(line);
        let now = word.load(Relaxed) & !IN_TRANSIT;
        let next = if now + 1 == IN_TRANSIT { 1 } else { now + 1 };
        if self.kind == Kind::Shared {
            word.store(next | IN_TRANSIT, Release);
        }
        // SAFETY: as for reading; the line is this thread's by its class or by the chunk's lock.
        unsafe { self.address(line).write_volatile(self.content(line, next)) };
        word.store(next, Release);
    }

    fn chunks(&self, from: usize, to: usize) -> &[Lock] {
        &self.chunks[from / CHUNK..to.div_ceil(CHUNK)]
    }

    /// Has bytes `from..to` for the caller alone.
    pub fn lock_range(&self, from: usize, to: usize) {
        self.chunks(from, to).iter().for_each(Lock::write);
    }

    /// Gives up what [`Slot::lock_range`] took.
    pub fn unlock_range(&self, from: usize, to: usize) {
        self.chunks(from, to).iter().for_each(Lock::unlock_write);
    }

    /// The lock of the chunk of byte `at`.
    pub fn chunk(&self, at: usize) -> &Lock {
        &self.chunks[at / CHUNK]
    }

    /// In a forked child: every lock is free.
    pub fn reset_locks(&self) {
        self.structure.reset();
        self.chunks.iter().for_each(Lock::reset);
    }
}
