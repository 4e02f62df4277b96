//! The frames of compressed memory of one process, filled one after the other. So the oldest frame
//! has what left memory first, neighbours lie side by side, and room is lost only to what was
//! removed since, until a frame is moved together.
//!
//! Before each block stands its slot, by which a frame can be gone through. `Entry::offset` is
//! where the block itself begins.

use crate::UNIT;
use crate::pool::Member;
use crate::zeroed::Zeroed;
use hugeswap_policy::zswap::entry::{ALIGN, Entry};
use hugeswap_sys::Result;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

/// Bytes before a block: its slot, and its length.
const HEAD: usize = 16;
const NONE: u32 = u32::MAX;

/// Bytes that a block of `len` takes.
pub(super) fn room(len: usize) -> usize {
    HEAD + len.next_multiple_of(ALIGN)
}

/// The frames of a process. All but the bytes in use is this process's alone.
pub(super) struct Log {
    /// The one that is being filled.
    open: Option<u32>,
    /// Full ones, oldest first, and empty ones: lists by `next`.
    oldest: u32,
    newest: u32,
    spare: u32,
    spares: u64,
    /// The next frame on a list, by frame.
    next: Zeroed<AtomicU32>,
    /// Bytes of a frame that are filled.
    fill: Zeroed<AtomicU32>,
}

impl Log {
    /// Without frames, of which there are `capacity`.
    pub fn new(capacity: usize) -> Result<Log> {
        Ok(Log {
            open: None,
            oldest: NONE,
            newest: NONE,
            spare: NONE,
            spares: 0,
            next: Zeroed::new(capacity)?,
            fill: Zeroed::new(capacity)?,
        })
    }

    /// The frames are another process's.
    pub fn reset(&mut self) {
        (self.open, self.oldest, self.newest) = (None, NONE, NONE);
        (self.spare, self.spares) = (NONE, 0);
    }

    /// Empty frames.
    pub fn spare(&self) -> u64 {
        self.spares
    }

    /// An empty frame.
    pub fn put_spare(&mut self, frame: u32) {
        self.fill[frame as usize].store(0, Relaxed);
        self.next[frame as usize].store(self.spare, Relaxed);
        self.spare = frame;
        self.spares += 1;
    }

    /// Takes an empty frame.
    pub fn take_spare(&mut self) -> Option<u32> {
        let frame = (self.spare != NONE).then_some(self.spare)?;
        self.spare = self.next[frame as usize].load(Relaxed);
        self.spares -= 1;
        Some(frame)
    }

    /// Bytes that can be appended.
    pub fn room(&self) -> usize {
        let open = self.open.map_or(0, |f| UNIT - self.filled(f));
        self.spares as usize * UNIT + open
    }

    /// Bytes of a frame that are filled.
    pub fn filled(&self, frame: u32) -> usize {
        self.fill[frame as usize].load(Relaxed) as usize
    }

    /// Puts a block at the end. `None`: there is no room.
    pub fn append(&mut self, pool: &Member, slot: u64, block: &[u8]) -> Option<Entry> {
        let room = room(block.len());
        let frame = match self.open {
            Some(f) if self.filled(f) + room <= UNIT => f,
            _ => {
                let spare = self.take_spare()?;
                self.close();
                self.open = Some(spare);
                spare
            }
        };
        let at = self.filled(frame);
        self.fill[frame as usize].store((at + room) as u32, Relaxed);
        pool.zswap_used()[frame as usize].fetch_add(room as u32, AcqRel);
        let to = pool.zswap_addr(frame) + at;
        // SAFETY: within a frame of this process's, where nothing else is.
        unsafe {
            (to as *mut u64).write(slot);
            (to as *mut u64).add(1).write(block.len() as u64);
            std::ptr::copy_nonoverlapping(block.as_ptr(), (to + HEAD) as *mut u8, block.len());
        }
        Some(Entry {
            frame,
            offset: at + HEAD,
            len: block.len(),
        })
    }

    /// The frame that is being filled is full.
    pub fn close(&mut self) {
        if let Some(frame) = self.open.take() {
            self.put_newest(frame);
        }
    }

    /// A full frame is the newest.
    pub fn put_newest(&mut self, frame: u32) {
        self.next[frame as usize].store(NONE, Relaxed);
        match self.newest {
            NONE => self.oldest = frame,
            n => self.next[n as usize].store(frame, Relaxed),
        }
        self.newest = frame;
    }

    /// Takes the oldest full frame.
    pub fn take_oldest(&mut self) -> Option<u32> {
        self.take_after(NONE)
    }

    /// Takes the full frame after `before`, or the oldest.
    fn take_after(&mut self, before: u32) -> Option<u32> {
        let frame = match before {
            NONE => self.oldest,
            b => self.next[b as usize].load(Relaxed),
        };
        if frame == NONE {
            return None;
        }
        let after = self.next[frame as usize].load(Relaxed);
        match before {
            NONE => self.oldest = after,
            b => self.next[b as usize].store(after, Relaxed),
        }
        if self.newest == frame {
            self.newest = before;
        }
        Some(frame)
    }

    /// Takes the full frame of which the smallest part is in use, if that is less than `most`
    /// bytes.
    pub fn take_emptiest(&mut self, used: &[AtomicU32], most: u32) -> Option<u32> {
        let (mut before, mut frame) = (NONE, self.oldest);
        let mut best = None;
        let mut least = most;
        while frame != NONE {
            let n = used[frame as usize].load(Relaxed);
            if n < least {
                (best, least) = (Some(before), n);
            }
            (before, frame) = (frame, self.next[frame as usize].load(Relaxed));
        }
        self.take_after(best?)
    }

    /// Bytes filled in full frames, and of those in use.
    pub fn full(&self, used: &[AtomicU32]) -> (u64, u64) {
        let (mut filled, mut in_use, mut frame) = (0, 0, self.oldest);
        while frame != NONE {
            filled += self.filled(frame) as u64;
            in_use += u64::from(used[frame as usize].load(Relaxed));
            frame = self.next[frame as usize].load(Relaxed);
        }
        (filled, in_use)
    }
}

/// The slot and the block whose head is at `at` in a frame that is filled to `filled`, and where
/// the next one is; `None`: the frame ends, or the head is damaged.
pub(super) fn block_at(
    pool: &Member,
    frame: u32,
    at: usize,
    filled: usize,
) -> Option<(u64, Entry, usize)> {
    if at + HEAD > filled.min(UNIT) {
        return None;
    }
    let head = (pool.zswap_addr(frame) + at) as *const u64;
    // SAFETY: within a frame of the segment.
    let (slot, len) = unsafe { (head.read(), head.add(1).read()) };
    let (offset, len) = (at + HEAD, len as usize);
    if len == 0 || len > filled.min(UNIT) - offset {
        return None;
    }
    Some((slot, Entry { frame, offset, len }, at + room(len)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn the_lists_are_as_a_queue_and_a_stack(ops in proptest::collection::vec((0u8..5, 0u32..32), 1..200)) {
            let mut log = Log::new(32).unwrap();
            let used: Vec<AtomicU32> = (0..32).map(|i| AtomicU32::new(i * 10)).collect();
            let (mut full, mut spare, mut out) = (VecDeque::new(), Vec::new(), (0..32).collect::<Vec<u32>>());
            for (op, n) in ops {
                match op {
                    0 if !out.is_empty() => {
                        let f = out.swap_remove(n as usize % out.len());
                        log.put_newest(f);
                        full.push_back(f);
                    }
                    1 if !out.is_empty() => {
                        let f = out.swap_remove(n as usize % out.len());
                        log.put_spare(f);
                        spare.push(f);
                    }
                    2 => {
                        let f = log.take_oldest();
                        prop_assert_eq!(f, full.pop_front());
                        out.extend(f);
                    }
                    3 => {
                        let f = log.take_spare();
                        prop_assert_eq!(f, spare.pop());
                        out.extend(f);
                    }
                    _ => {
                        let want = full.iter().copied().filter(|&f| f * 10 < n * 10).min();
                        let f = log.take_emptiest(&used, n * 10);
                        prop_assert_eq!(f, want);
                        full.retain(|&x| Some(x) != f);
                        out.extend(f);
                    }
                }
                prop_assert_eq!(log.spare(), spare.len() as u64);
                let in_use: u64 = full.iter().map(|&f| u64::from(f) * 10).sum();
                prop_assert_eq!(log.full(&used).1, in_use);
            }
        }
    }
}
