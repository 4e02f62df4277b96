//! Where a page is in compressed memory, as one word for each slot of swap. 0: it is not there.
//!
//! | bits | |
//! | --- | --- |
//! | 0..13 | bytes of the block, 1 to 4096 |
//! | 13..30 | where in its frame the block begins, in units of [`ALIGN`] |
//! | 30..50 | the frame |
//! | 61 | [`CLEAN`] |
//! | 62 | [`REFERENCED`] |
//! | 63 | [`WRITEBACK`] |
//!
//! Another process may have written any word, so [`Entry::of`] checks what it reads.

/// Blocks begin at multiples of so many bytes.
pub const ALIGN: usize = 16;
/// The slot holds the page as well.
pub const CLEAN: u64 = 1 << 61;
/// The page was read since it was stored, or since it was last passed over.
pub const REFERENCED: u64 = 1 << 62;
/// The page is being written to its slot: its owner waits before it uses the slot for something
/// else.
pub const WRITEBACK: u64 = 1 << 63;
/// Most frames that a word can name.
pub const MAX_FRAMES: usize = 1 << 20;

const LEN_BITS: u32 = 13;
const OFFSET_BITS: u32 = 17;
const FRAME_BITS: u32 = 20;
const STATE: u64 = CLEAN | REFERENCED | WRITEBACK;

/// A block of compressed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The frame that it is in.
    pub frame: u32,
    /// Where in the frame it begins, bytes.
    pub offset: usize,
    /// How long it is, bytes.
    pub len: usize,
}

impl Entry {
    /// The word of a page that was just stored.
    pub fn word(self) -> u64 {
        debug_assert!(self.offset.is_multiple_of(ALIGN) && self.len > 0);
        self.len as u64
            | ((self.offset / ALIGN) as u64) << LEN_BITS
            | u64::from(self.frame) << (LEN_BITS + OFFSET_BITS)
    }

    /// The block that a word names, in one of `frames` frames of `frame_bytes` bytes, for a page of
    /// `page` bytes. `None`: none, or the word is damaged.
    pub fn of(word: u64, frames: usize, frame_bytes: usize, page: usize) -> Option<Entry> {
        let field = |from: u32, bits: u32| (word >> from & ((1 << bits) - 1)) as usize;
        let entry = Entry {
            len: field(0, LEN_BITS),
            offset: field(LEN_BITS, OFFSET_BITS) * ALIGN,
            frame: field(LEN_BITS + OFFSET_BITS, FRAME_BITS) as u32,
        };
        let fits = entry.offset + entry.len <= frame_bytes && (entry.frame as usize) < frames;
        (entry.len > 0 && entry.len <= page && fits).then_some(entry)
    }
}

/// Do two words name the same block?
pub fn same(a: u64, b: u64) -> bool {
    (a ^ b) & !STATE == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_word_names_its_block(frame in 0u32..1 << 20, at in 0usize..1 << 17, len in 1usize..=4096) {
            let (offset, bytes) = (at * ALIGN, 2 << 20);
            prop_assume!(offset + len <= bytes);
            let e = Entry { frame, offset, len };
            for state in [0, CLEAN, REFERENCED, WRITEBACK, STATE] {
                let word = e.word() | state;
                prop_assert_eq!(Entry::of(word, MAX_FRAMES, bytes, 4096), Some(e));
                prop_assert!(same(word, e.word()));
            }
            prop_assert_eq!(Entry::of(e.word(), frame as usize, bytes, 4096), None);
        }

        #[test]
        fn no_word_leads_out_of_the_frames(word in any::<u64>(), frames in 0usize..100) {
            if let Some(e) = Entry::of(word, frames, 2 << 20, 4096) {
                prop_assert!((e.frame as usize) < frames);
                prop_assert!(e.len > 0 && e.len <= 4096 && e.offset + e.len <= 2 << 20);
            }
        }
    }

    #[test]
    fn nothing_is_no_block() {
        assert_eq!(Entry::of(0, MAX_FRAMES, 2 << 20, 4096), None);
        assert_eq!(Entry::of(STATE, MAX_FRAMES, 2 << 20, 4096), None);
    }
}
