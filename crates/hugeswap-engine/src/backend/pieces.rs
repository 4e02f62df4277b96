//! Pieces: 64 KiB of memory that mremap moves into units and out of them, where userfaultfd is
//! refused.
//!
//! A *stage* is 64 KiB of an address range of our own. It is full of memory that is not in use,
//! which was used before (touching new pages costs more than all else here), or it is empty. In:
//! the stage is filled, made read-only unless the fault is a write, and moved over its piece of the
//! unit, which was without access until then; so other threads see the piece whole or fault. Out:
//! the unit is without access already when a piece moves to an empty stage.
//!
//! Each piece in memory takes up to two mappings, of which the kernel allows a process only so
//! many. They are counted against a budget, half of what is free, so that the program has the rest.
//!
//! Concurrency: two stacks of stage numbers under one engine lock, held for a few instructions.
//! Memory kept in full stages is charged: there are never more of its pages than free ones (see
//! [`Pieces::shed`]).

use super::seam::{advise, map_without_access, protect};
use crate::bits::Bits;
use crate::call::{Call, CallError, Done};
use crate::lock::Lock;
use crate::{PAGE, UNIT};
use hugeswap_policy::swapin::granularity::PIECE_PAGES;
use hugeswap_sys::{Errno, Result, mm, process};
use std::sync::atomic::AtomicI64;
use std::sync::atomic::Ordering::Relaxed;

/// Pages of a piece.
pub(super) const PAGES: usize = PIECE_PAGES as usize;
/// Bytes of a piece.
pub(super) const PIECE: usize = PAGES * PAGE;
/// Pieces of a unit.
const PER_UNIT: usize = UNIT / PIECE;
/// Most mappings that one unit's pieces can take beyond what an absent unit does.
const MOST_OF_A_UNIT: i64 = PER_UNIT as i64 + 1;
/// Most stages kept full: what kswapd makes available at one time.
const KEEP: usize = 64 * PER_UNIT;
/// All stages: some more, which are being filled or emptied.
pub(super) const STAGES: usize = KEEP + 256;
/// How often a thread leaves the processor to others while all stages are in use.
const PATIENCE: u32 = 100_000;
/// Mappings that the kernel allows a process unless told otherwise.
const DEFAULT_LIMIT: i64 = 65_530;
/// Mappings left to the stages and the program whatever happens.
const SPARE: i64 = 2 * STAGES as i64;

struct Stack {
    stages: Box<[u16]>,
    len: usize,
}

impl Stack {
    fn new() -> Stack {
        Stack {
            stages: vec![0; STAGES].into_boxed_slice(),
            len: 0,
        }
    }

    fn push(&mut self, stage: u16) {
        // Each stage is in one stack at most, so there is always room.
        self.stages[self.len] = stage;
        self.len += 1;
    }

    fn pop(&mut self) -> Option<u16> {
        self.len = self.len.checked_sub(1)?;
        Some(self.stages[self.len])
    }
}

struct Stacks {
    /// Stages that are readable and writable, with old bytes.
    full: Stack,
    /// Stages without memory; with whatever access.
    empty: Stack,
}

/// The stages of a process, and the mappings that its pieces take.
pub(crate) struct Pieces {
    base: usize,
    stacks: Lock<Stacks>,
    /// Mappings that the pieces in units take, at most.
    mappings: AtomicI64,
    budget: i64,
}

/// A stage to be filled: readable and writable. Given back when dropped.
pub(crate) struct Stage<'a> {
    pieces: &'a Pieces,
    number: u16,
}

impl Stage<'_> {
    pub fn addr(&self) -> usize {
        self.pieces.addr(self.number)
    }

    /// Moves the memory to the absent piece at `to`, writable or read-only. The stage is empty
    /// then.
    pub fn install(self, to: usize, write: bool) -> Done {
        let from = self.addr();
        if !write {
            // SAFETY: the stage is ours.
            unsafe { protect(from, PIECE, mm::PROT_READ) }?;
        }
        // SAFETY: the stage is ours, and the piece absent, its unit locked.
        let moved = unsafe { mm::move_pages(from, to, PIECE) };
        let moved = moved.map_err(|e| Call::Mremap.failed(e));
        if moved.is_err() {
            // Refused for want of mappings nothing has changed, and nothing is done here; otherwise
            // `to` may be unmapped by now.
            // SAFETY: the piece is absent: nothing in it is lost, and it is without access as it
            // was.
            let _ = unsafe { protect(to, PIECE, mm::PROT_NONE) }
                // SAFETY: as above.
                .or_else(|_| unsafe { map_without_access(to, PIECE) });
        }
        let (pieces, number) = (self.pieces, self.number);
        std::mem::forget(self);
        if moved.is_err() {
            pieces.discard(number);
        }
        pieces.stacks.lock().empty.push(number);
        moved
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        // SAFETY: the stage is ours. Here it is read-only only if it could not be moved.
        if unsafe { protect(self.addr(), PIECE, mm::PROT_RW) }.is_ok() {
            self.pieces.stacks.lock().full.push(self.number);
        } else {
            self.pieces.discard(self.number);
            self.pieces.stacks.lock().empty.push(self.number);
        }
    }
}

impl Pieces {
    /// `frames`: huge pages that the process may have, each of which takes mappings too. `budget`:
    /// mappings that pieces may take; 0: half of what the kernel allows beyond the frames'.
    pub fn new(frames: u32, budget: u64) -> Result<Pieces> {
        let pieces = Pieces {
            base: mm::map_own(STAGES * PIECE, mm::PROT_RW)?,
            stacks: Lock::new(Stacks {
                full: Stack::new(),
                empty: Stack::new(),
            }),
            mappings: AtomicI64::new(0),
            budget: match i64::try_from(budget) {
                Ok(n) if n > 0 => n,
                _ => (limit() - 2 * i64::from(frames) - SPARE).max(0) / 2,
            },
        };
        pieces.set_up();
        Ok(pieces)
    }

    fn set_up(&self) {
        let (at, len) = (self.base, STAGES * PIECE);
        // What moves takes its mapping's advice along: pieces are not inherited by a forked child
        // (it finds their content in swap), and no huge page is made of them.
        // SAFETY: advice that discards nothing.
        let _ = unsafe { advise(at, len, libc::MADV_DONTFORK) };
        // SAFETY: as above.
        let _ = unsafe { advise(at, len, libc::MADV_NOHUGEPAGE) };
        let mut s = self.stacks.lock();
        s.full.len = 0;
        s.empty.len = 0;
        (0..STAGES as u16).rev().for_each(|n| s.empty.push(n));
    }

    /// In a forked child, which inherits no piece: starts anew.
    pub fn reset_in_child(&self) -> Result<()> {
        // SAFETY: not inherited, so there is nothing to replace.
        unsafe { mm::map_anon(self.base, STAGES * PIECE, mm::PROT_RW, true) }?;
        self.mappings.store(0, Relaxed);
        self.set_up();
        Ok(())
    }

    fn addr(&self, stage: u16) -> usize {
        self.base + usize::from(stage) * PIECE
    }

    /// First address of the stages, which hold nothing yet.
    pub fn addresses(&self) -> usize {
        self.base
    }

    /// A stage to fill. ENOMEM: the limit on mappings is met, or all stages are in use for long.
    pub fn take(&self) -> std::result::Result<Stage<'_>, CallError> {
        let mut waits = 0;
        let (number, fresh) = loop {
            let mut s = self.stacks.lock();
            if let Some(n) = s.full.pop() {
                break (n, false);
            }
            if let Some(n) = s.empty.pop() {
                break (n, true);
            }
            drop(s);
            // Others bring something in; none of them waits for this thread.
            if waits == PATIENCE {
                return Err(Call::Mremap.failed(Errno::ENOMEM));
            }
            waits += 1;
            process::yield_now();
        };
        let stage = Stage {
            pieces: self,
            number,
        };
        if fresh {
            // SAFETY: the stage is ours.
            unsafe { protect(stage.addr(), PIECE, mm::PROT_RW) }?;
        }
        Ok(stage)
    }

    /// Takes the memory of the piece at `from`, which is without access, for reuse. False if there
    /// is enough, or it cannot be moved.
    pub fn recycle(&self, from: usize) -> bool {
        let number = {
            let mut s = self.stacks.lock();
            if s.full.len >= KEEP {
                return false;
            }
            let Some(n) = s.empty.pop() else {
                return false;
            };
            n
        };
        let to = self.addr(number);
        // SAFETY: the piece is the caller's to drop and no thread can reach it; the stage is ours
        // and empty.
        let moved = unsafe { mm::move_pages(from, to, PIECE) }
            // SAFETY: the stage is ours.
            .and_then(|()| unsafe { mm::protect(to, PIECE, mm::PROT_RW) });
        if moved.is_err() {
            self.discard(number);
        }
        let mut s = self.stacks.lock();
        if moved.is_ok() {
            s.full.push(number);
        } else {
            s.empty.push(number);
        }
        moved.is_ok()
    }

    /// Makes a stage of the caller's one without memory, whatever has become of it.
    fn discard(&self, stage: u16) {
        let at = self.addr(stage);
        // SAFETY: the stage is ours.
        if unsafe { advise(at, PIECE, libc::MADV_DONTNEED) }.is_err() {
            // A move that failed half way has unmapped it.
            // SAFETY: as above.
            let _ = unsafe { mm::map_anon(at, PIECE, mm::PROT_RW, true) };
        }
    }

    /// Hands memory back to the kernel until no more than `pages` are kept. Those are charged as
    /// free; a caller that uses that charge otherwise calls this.
    pub fn shed(&self, pages: i64) {
        loop {
            let mut s = self.stacks.lock();
            if (s.full.len * PAGES) as i64 <= pages.max(0) {
                return;
            }
            let stage = s.full.pop();
            drop(s);
            let Some(stage) = stage else { return };
            self.discard(stage);
            self.stacks.lock().empty.push(stage);
        }
    }

    /// Are there mappings for another piece?
    pub fn have_mappings(&self) -> bool {
        self.mappings.load(Relaxed) + MOST_OF_A_UNIT <= self.budget
    }

    /// Changes which pages of a locked unit are present, by `change`, and counts the mappings that
    /// it takes.
    pub fn counted(&self, present: &Bits, change: impl FnOnce()) {
        let before = mappings_of(present);
        change();
        self.mappings
            .fetch_add(mappings_of(present) - before, Relaxed);
    }

    /// How many mappings are counted.
    pub fn mappings(&self) -> i64 {
        self.mappings.load(Relaxed)
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and the engine that owns the stages is gone.
        let _ = unsafe { mm::unmap(self.base, STAGES * PIECE) };
    }
}

/// Mappings that the pieces of a unit take at most: one each, and one for each run of absent ones
/// between them.
pub(super) fn mappings_of(pages: &Bits) -> i64 {
    let mut present = 0u32;
    for piece in 0..PER_UNIT {
        present |= u32::from(pages.get(piece * PAGES)) << piece;
    }
    if present == 0 {
        return 0;
    }
    let ends_of_runs = !present & (present >> 1 | 1 << (PER_UNIT - 1));
    i64::from(present.count_ones() + ends_of_runs.count_ones())
}

/// vm.max_map_count.
fn limit() -> i64 {
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count");
    text.ok()
        .and_then(|t| t.trim().parse().ok())
        .unwrap_or(DEFAULT_LIMIT)
}

/// The piece that a page lies in.
pub(super) fn around(page: usize) -> std::ops::Range<usize> {
    let start = page / PAGES * PAGES;
    start..start + PAGES
}

const _: () = assert!(PER_UNIT == u32::BITS as usize);
