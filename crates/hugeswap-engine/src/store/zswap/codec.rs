//! Pages compressed by LZ4, and back.
//!
//! The library works in memory that it is given and allocates none. A block is decoded with its
//! bounds checked, so a damaged one gives an error or wrong bytes, which their sum tells.
//!
//! A page that is the same 8 bytes again and again is those 8 bytes: no block of LZ4 for a page is
//! so short.

use super::PAGE;
use lz4_sys as _;
use std::alloc::Layout;

/// Bytes of a block of a page that repeats one word.
const SAME: usize = 8;
/// A block that is longer is not worth its room.
pub(super) const LONGEST: usize = PAGE * 5 / 8;
/// Memory that the compressor works in, bytes: `LZ4_sizeofState` is at most that.
const STATE: usize = 16448;

// SAFETY: the functions of the library that `lz4_sys` links, as lz4.h declares them.
unsafe extern "C" {
    fn LZ4_sizeofState() -> i32;
    fn LZ4_compress_fast_extState(
        state: *mut u64,
        from: *const u8,
        to: *mut u8,
        len: i32,
        room: i32,
        acceleration: i32,
    ) -> i32;
    fn LZ4_decompress_safe(from: *const u8, to: *mut u8, len: i32, room: i32) -> i32;
}

/// What a thread compresses with: a page, its block, and the compressor's memory.
#[repr(C, align(64))]
pub(super) struct Scratch {
    pub page: [u8; PAGE],
    pub block: [u8; LONGEST],
    state: [u64; STATE / 8],
}

impl Scratch {
    /// Never on a stack, not even on its way: the caller's may be a program's, and small.
    pub fn new() -> Box<Scratch> {
        // SAFETY: no arguments, no effects.
        assert!(unsafe { LZ4_sizeofState() } as usize <= STATE);
        let layout = Layout::new::<Scratch>();
        // SAFETY: of a size that is not zero; all of it are numbers, for which zeros are valid.
        let made = unsafe { std::alloc::alloc_zeroed(layout) }.cast::<Scratch>();
        if made.is_null() {
            std::alloc::handle_alloc_error(layout);
        }
        // SAFETY: allocated with this layout just now, and nobody else's.
        unsafe { Box::from_raw(made) }
    }

    /// Copies a page to [`Scratch::page`], so that it is one thing for the compressor, whatever else
    /// writes there.
    ///
    /// # Safety
    /// `from` is a page that can be read.
    pub unsafe fn copy_page(&mut self, from: usize) {
        // SAFETY: passed on to the caller.
        unsafe {
            std::ptr::copy_nonoverlapping(from as *const u8, self.page.as_mut_ptr(), PAGE);
        }
    }

    /// Compresses `page` to `block`. The length of the block; `None`: it does not become short
    /// enough.
    pub fn compress(&mut self) -> Option<usize> {
        if let Some(word) = repeated(&self.page) {
            self.block[..SAME].copy_from_slice(&word.to_ne_bytes());
            return Some(SAME);
        }
        // SAFETY: the three are as long as is said, and the state as long as is needed (`new`).
        let n = unsafe {
            LZ4_compress_fast_extState(
                self.state.as_mut_ptr(),
                self.page.as_ptr(),
                self.block.as_mut_ptr(),
                PAGE as i32,
                LONGEST as i32,
                1,
            )
        };
        (n > SAME as i32).then_some(n as usize)
    }
}

/// The word that a page repeats.
fn repeated(page: &[u8; PAGE]) -> Option<u64> {
    let word = |i: usize| u64::from_ne_bytes(page[i * 8..i * 8 + 8].try_into().expect("8 bytes"));
    let first = word(0);
    // The last first: mostly it tells.
    let same = word(PAGE / 8 - 1) == first && (1..PAGE / 8 - 1).all(|i| word(i) == first);
    same.then_some(first)
}

/// Decodes a block to a page at `to`. False: it is none.
///
/// # Safety
/// `to` is a page that the caller may write.
pub(super) unsafe fn decompress(block: &[u8], to: usize) -> bool {
    if let Ok(word) = <[u8; SAME]>::try_from(block) {
        // SAFETY: the caller's page.
        let to = unsafe { std::slice::from_raw_parts_mut(to as *mut u8, PAGE) };
        to.chunks_exact_mut(SAME)
            .for_each(|w| w.copy_from_slice(&word));
        return true;
    }
    // SAFETY: a block, and the caller's page, of these lengths.
    let n = unsafe {
        LZ4_decompress_safe(
            block.as_ptr(),
            to as *mut u8,
            block.len() as i32,
            PAGE as i32,
        )
    };
    n == PAGE as i32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn back(block: &[u8]) -> Option<[u8; PAGE]> {
        let mut page = [0xaa; PAGE];
        // SAFETY: a page of ours.
        unsafe { decompress(block, page.as_mut_ptr() as usize) }.then_some(page)
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out(seed in any::<u64>(), period in 1usize..600, noise in 0usize..200) {
            let mut s = Scratch::new();
            let mut x = seed | 1;
            let mut next = || { x ^= x << 13; x ^= x >> 7; x ^= x << 17; x };
            for i in 0..PAGE {
                s.page[i] = if i < period { next() as u8 } else { s.page[i - period] };
            }
            for _ in 0..noise {
                let at = next() as usize % PAGE;
                s.page[at] = next() as u8;
            }
            if let Some(n) = s.compress() {
                prop_assert_eq!(back(&s.block[..n]), Some(s.page));
            }
        }

        #[test]
        fn damaged_blocks_are_decoded_within_their_page(
            block in proptest::collection::vec(any::<u8>(), 1..LONGEST),
            cut in 0usize..LONGEST, flip in any::<(u16, u8)>(),
        ) {
            // Bytes between guards: what is written beyond the page would show.
            let decode = |block: &[u8]| {
                let mut memory = vec![0x5a_u8; 3 * PAGE];
                // SAFETY: the page in the middle.
                unsafe { decompress(block, memory.as_mut_ptr() as usize + PAGE) };
                memory[..PAGE].iter().chain(&memory[2 * PAGE..]).all(|&b| b == 0x5a)
            };
            prop_assert!(decode(&block));
            let mut s = Scratch::new();
            for (i, b) in s.page.iter_mut().enumerate() {
                *b = block[i % block.len().min(64)];
            }
            if let Some(n) = s.compress() {
                let mut damaged = s.block[..n].to_vec();
                damaged[flip.0 as usize % n] ^= flip.1;
                prop_assert!(decode(&damaged));
                damaged.truncate(cut.clamp(1, n));
                prop_assert!(decode(&damaged));
            }
        }
    }

    #[test]
    fn a_repeated_word_is_eight_bytes_and_noise_is_refused() {
        let mut s = Scratch::new();
        s.page
            .chunks_exact_mut(8)
            .for_each(|w| w.copy_from_slice(b"hugeswap"));
        assert_eq!(s.compress(), Some(8));
        assert_eq!(back(b"hugeswap"), Some(s.page));
        let mut x = 1u64;
        for b in &mut s.page {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *b = (x >> 56) as u8;
        }
        assert_eq!(s.compress(), None);
    }
}
