//! What all walkers of a checker share: the slots, the plan, the counters.

use super::memory;
use super::operation::Op;
use super::random::mix;
use super::ranges;
use super::slot::{Kind, LINE, Slot};
use super::walker::Failure;
use crate::board::{self, Word};
use anyhow::Result;
use std::fs::File;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicI32, AtomicU64};
use std::time::Instant;

/// Children that may change shared slots at the same time.
const TICKETS: usize = 4;

/// See the file's head.
pub struct World {
    pub seed: u64,
    pub threads: usize,
    pub slots: Vec<Slot>,
    pub ops: Vec<Op>,
    pub tickets: Tickets,
    /// Steps that the first walkers leave out: thread, first, end.
    pub skipped: Vec<(u64, u64, u64)>,
    pub until: Option<Instant>,
    pub trace: bool,
    board: *const [AtomicU64; board::WORDS],
}

// SAFETY: the board is an array of atomics that stays mapped for good.
unsafe impl Sync for World {}

/// Who may change the lines of which class in shared slots: processes, by their ids.
pub struct Tickets(*const [AtomicI32; TICKETS]);

impl Tickets {
    fn new() -> Result<Tickets> {
        Ok(Tickets(memory::map(super::slot::PAGE, true)?.cast()))
    }

    fn all(&self) -> &[AtomicI32; TICKETS] {
        // SAFETY: shared memory of the checker's own that stays mapped for good.
        unsafe { &*self.0 }
    }

    /// One that nobody has, or somebody who is gone.
    pub fn take(&self) -> Option<usize> {
        let me = std::process::id() as i32;
        // SAFETY: asks only whether there is such a process.
        let gone = |pid: i32| pid == 0 || unsafe { libc::kill(pid, 0) } != 0;
        self.all().iter().position(|t| {
            let pid = t.load(Acquire);
            gone(pid) && t.compare_exchange(pid, me, Acquire, Relaxed).is_ok()
        })
    }

    /// In the child that has it.
    pub fn now_of_this_process(&self, ticket: Option<usize>) {
        if let Some(t) = ticket {
            self.all()[t].store(std::process::id() as i32, Relaxed);
        }
    }

    /// The child has ended.
    pub fn give_back(&self, ticket: Option<usize>) {
        if let Some(t) = ticket {
            self.all()[t].store(0, Relaxed);
        }
    }
}

impl World {
    /// Slots full of memory, with `bytes` in all, of which `shared` are shared.
    pub fn new(args: &super::Args, board: Option<&File>) -> Result<World> {
        let board = match board {
            Some(file) => memory::map_file(file, board::BYTES, true)?,
            None => memory::map(board::BYTES, true)?,
        };
        let cap = (args.bytes / args.slots).next_multiple_of(super::slot::CHUNK);
        let slots = (0..args.slots)
            .map(|i| {
                let kind = match i % 4 {
                    _ if i < args.shared => Kind::Shared,
                    3 => Kind::Malloc,
                    _ => Kind::Map,
                };
                Slot::new(i, kind, cap.max(4 * ranges::LEAST), args.seed)
            })
            .collect::<Result<Vec<_>>>()?;
        let ops = Op::ALL.iter().copied();
        Ok(World {
            seed: args.seed,
            threads: args.threads,
            slots,
            ops: ops
                .filter(|op| args.ops.is_empty() || args.ops.contains(op))
                .filter(|op| !args.without.contains(op))
                .collect(),
            tickets: Tickets::new()?,
            skipped: args.skip.clone(),
            until: args
                .seconds
                .map(|s| Instant::now() + std::time::Duration::from_secs(s)),
            trace: args.trace,
            board: board.cast(),
        })
    }

    fn word(&self, word: Word) -> &AtomicU64 {
        // SAFETY: mapped in `new` for good; a word is within the array.
        unsafe { &(*self.board)[word as usize] }
    }

    /// Adds to a counter of the board.
    pub fn count(&self, word: Word, n: u64) {
        self.word(word).fetch_add(n, Relaxed);
    }

    /// A counter of the board.
    pub fn counted(&self, word: Word) -> u64 {
        self.word(word).load(Relaxed)
    }

    /// Is the time over, or has the sweep, or a failure, ended it?
    pub fn is_over(&self) -> bool {
        self.until.is_some_and(|end| Instant::now() >= end)
            || self.counted(Word::Stop) != 0
            || self.counted(Word::Wrong) != 0
    }

    /// Is this step one that is left out?
    pub fn skips(&self, depth: u32, stream: u64, step: u64) -> bool {
        depth == 0
            && self
                .skipped
                .iter()
                .any(|&(thread, first, end)| thread == stream && (first..end).contains(&step))
    }

    /// Says which step begins, if that was asked for.
    pub fn note_step(&self, stream: u64, step: u64) {
        if self.trace {
            eprintln!("{} {stream:x} {step}", std::process::id());
        }
    }

    /// Classes of lines in shared slots.
    pub fn shared_classes(&self) -> usize {
        self.threads + TICKETS
    }

    /// Compares every line of the slots that no other process changes. No other thread is at work.
    pub fn check_private(&self) -> Result<(), Failure> {
        let private = self.slots.iter().filter(|s| s.kind != Kind::Shared);
        private.into_iter().try_for_each(|s| self.check_slot(s))
    }

    /// Compares every line of a slot.
    pub fn check_slot(&self, slot: &Slot) -> Result<(), Failure> {
        for line in 0..slot.lines() {
            slot.check(line).map_err(Failure::Line)?;
            if line % 4096 == 0 {
                // A sign of life: this may take long.
                self.count(Word::Steps, 1);
            }
        }
        self.count(Word::Accesses, (slot.lines() * (LINE / 8)) as u64);
        Ok(())
    }

    /// The stream of a thread of the first process.
    pub fn stream(thread: usize) -> u64 {
        thread as u64
    }

    /// Gives freed blocks back, too, and waits until the sweep lets the checker end, or must be gone.
    pub fn wait_for_release(&self) {
        // SAFETY: touches free memory of malloc's only.
        unsafe { libc::malloc_trim(0) };
        let parent = std::os::unix::process::parent_id();
        self.count(Word::Drained, 1);
        // (A sweep that was killed leaves `hugeswap run`, the parent, behind.)
        let last = std::time::Instant::now() + std::time::Duration::from_secs(120);
        while self.counted(Word::Release) == 0
            && std::time::Instant::now() < last
            && self.counted(Word::Stop) < 2
            && std::os::unix::process::parent_id() == parent
        {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// A seed for what is not a walker's.
    pub fn other_seed(&self) -> u64 {
        mix(self.seed ^ 0x5eed)
    }
}
