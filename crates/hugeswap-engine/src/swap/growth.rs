//! Areas grow: slots are given blocks of their device before they are first written, a step of neighbouring ones at a time.
//!
//! Which slots have blocks, and how those lie, is noted in the segment (`pool::lies`). Several may grow the same step at once: the
//! file system gives blocks once, and the notes are the same.

use crate::engine::Engine;
use hugeswap_policy::UNIT_BYTES;
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::slots::lies::Lie;
use hugeswap_sys::{Errno, Result, fs, process};
use std::ops::Range;

/// Slots that an area grows by: 64 MiB.
const STEP: u64 = 32;

impl Engine {
    /// Sees to it that slot `slot` of area number `area` has blocks. ENOSPC: there are none left for it.
    pub(super) fn find_blocks(&self, area: usize, slot: u64) -> Result<()> {
        if self.pool.lies().of(slot as usize) != Lie::Nowhere {
            return Ok(());
        }
        self.grow_area(area, slot)
    }

    #[cold]
    #[inline(never)]
    fn grow_area(&self, area: usize, slot: u64) -> Result<()> {
        let a = self.pool.area(area).ok_or(Errno::EIO)?;
        let begin = a.first_slot + (slot - a.first_slot) / STEP * STEP;
        let step = begin..(begin + STEP).min(a.first_slot + a.slots);
        let (fd, first) = (a.fd, a.first_slot);
        let got = match self.allocate(fd, first, &step) {
            // The last there is.
            Err(Errno::ENOSPC | Errno::EDQUOT) => {
                let one = slot..slot + 1;
                self.allocate(fd, first, &one).map(|()| one)?
            }
            result => result.map(|()| step)?,
        };
        self.pool.note_grown(area, fd, got, first);
        process::yield_now();
        Ok(())
    }

    fn allocate(&self, fd: i32, first: u64, slots: &Range<u64>) -> Result<()> {
        let (at, end) = (slots.start - first, slots.end - first);
        let space = self.pool.knob(Knob::SwapSpace);
        if space != 0 && end * UNIT_BYTES > space {
            return Err(Errno::ENOSPC);
        }
        match fs::allocate(fd, at * UNIT_BYTES, (end - at) * UNIT_BYTES) {
            // Then the first write finds blocks.
            Err(Errno::EOPNOTSUPP) => Ok(()),
            result => result,
        }
    }
}
