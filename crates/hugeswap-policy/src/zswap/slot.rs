//! What is done with the word of one slot ([`super::entry`]), by its owner and by the thread that
//! makes frames empty, while others read it without a lock. Generic over the cell, so that loom
//! explores what ships.
//!
//! The rules:
//!
//! * Only the owner's process changes a word, but for [`REFERENCED`].
//! * A word that is removed tells which block is not used any more. The frame of a block is used for
//!   something else only after that.
//! * While a page is written back its word stays, so the page can be read. The owner waits before it
//!   gives the slot to another page, for the write would come after that page's own.
//! * A reader copies the block first and then looks at the word again.

use super::entry::{self, CLEAN, REFERENCED, WRITEBACK};
use crate::cell::Cell;

/// The word of a slot.
#[derive(Clone, Copy, Debug)]
pub struct Slot<'a, C>(pub &'a C);

impl<C: Cell<u64>> Slot<'_, C> {
    /// Reads the page. `copy` copies the block that a word names; what it has read must be ordered
    /// before what is read after it (an acquire fence). It says whether the word names any. `None`:
    /// the page is not in compressed memory.
    pub fn load<T>(&self, mut copy: impl FnMut(u64) -> Option<T>) -> Option<T> {
        loop {
            let seen = self.0.get();
            let copied = copy(seen)?;
            if entry::same(self.0.get(), seen) {
                if seen & REFERENCED == 0 {
                    let _ = self.0.change(seen, seen | REFERENCED);
                }
                return Some(copied);
            }
        }
    }

    /// The owner: the page is not to be in compressed memory any more. `wait` waits until a page
    /// that is written back is. The word removed; `None`: there was none.
    pub fn forget(&self, mut wait: impl FnMut()) -> Option<u64> {
        loop {
            let seen = self.0.get();
            if seen == 0 {
                return None;
            }
            if seen & WRITEBACK != 0 {
                wait();
            } else if self.0.change(seen, 0).is_ok() {
                return Some(seen);
            }
        }
    }

    /// The page of `block` is about to be written to its slot. False: it is that no more.
    pub fn begin_write_back(&self, block: u64) -> bool {
        loop {
            let seen = self.0.get();
            if !entry::same(seen, block) {
                return false;
            }
            if self.0.change(seen, seen | WRITEBACK).is_ok() {
                return true;
            }
        }
    }

    /// It was written, or could not be. The word removed, if it was.
    pub fn end_write_back(&self, written: bool) -> Option<u64> {
        loop {
            // Only REFERENCED can have come meanwhile.
            let seen = self.0.get();
            let next = if written { 0 } else { seen & !WRITEBACK };
            if self.0.change(seen, next).is_ok() {
                return written.then_some(seen);
            }
        }
    }

    /// The block was copied to `to`. False: it is not this page's any more.
    pub fn move_block(&self, from: u64, to: u64) -> bool {
        loop {
            let seen = self.0.get();
            if !entry::same(seen, from) {
                return false;
            }
            if self.0.change(seen, to | seen & CLEAN).is_ok() {
                return true;
            }
        }
    }

    /// Removes a page that its slot holds as well, unless it was read, or then too (`read`). The
    /// word removed.
    pub fn drop_clean(&self, read: bool) -> Option<u64> {
        loop {
            let seen = self.0.get();
            let may = seen & CLEAN != 0 && (read || seen & REFERENCED == 0);
            if !may {
                return None;
            }
            if self.0.change(seen, 0).is_ok() {
                return Some(seen);
            }
        }
    }
}
