//! Pages compressed, and back.
//!
//! A block is decoded with its bounds checked, so a damaged one gives an error or wrong bytes, which
//! their sum tells. Its first byte says by what it was compressed.
//!
//! A page that is the same 8 bytes again and again is those 8 bytes: no other block is so short.
//! One that is as long as a page is the page itself.
//!
//! * [`lz4`], [`zstd`]: the libraries

mod lz4;
mod zstd;

use super::PAGE;
use hugeswap_policy::zswap::codec::Codec;
use hugeswap_sys::Result;
use std::alloc::Layout;

/// Bytes of a block of a page that repeats one word.
const SAME: usize = 8;
/// A block that is longer is not worth its room where there is a device.
pub(super) const SHORT: usize = PAGE * 5 / 8;
/// A block that is longer is not worth decoding.
pub(super) const LONGEST: usize = PAGE * 7 / 8;
/// First bytes of blocks.
const LZ4: u8 = 1;
const ZSTD: u8 = 2;

/// What a thread compresses with: a page, its block, and the compressors' memory.
#[repr(C, align(64))]
pub(super) struct Scratch {
    pub page: [u8; PAGE],
    pub block: [u8; LONGEST],
    lz4: lz4::State,
    zstd: zstd::State,
}

impl Scratch {
    /// Never on a stack, not even on its way: the caller's may be a program's, and small.
    pub fn new() -> Box<Scratch> {
        lz4::check();
        zstd::check();
        let layout = Layout::new::<Scratch>();
        // SAFETY: of a size that is not zero; all of it are numbers and a pointer that may be null,
        // for which zeros are valid.
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

    /// Compresses `page` to `block`. The length of the block; `None`: it does not become as short
    /// as `most` bytes, of at most [`LONGEST`].
    pub fn compress(&mut self, by: Codec, most: usize) -> Option<usize> {
        if let Some(word) = repeated(&self.page) {
            self.block[..SAME].copy_from_slice(&word.to_ne_bytes());
            return Some(SAME);
        }
        let (first, rest) = self.block[..most].split_first_mut()?;
        *first = match by {
            Codec::Lz4 => LZ4,
            Codec::ZstdFast | Codec::Zstd => ZSTD,
        };
        let len = match by {
            Codec::Lz4 => self.lz4.compress(&self.page, rest),
            Codec::ZstdFast => self.zstd.compress(-1, &self.page, rest),
            Codec::Zstd => self.zstd.compress(1, &self.page, rest),
        };
        match len? + 1 {
            ..=SAME if by != Codec::Lz4 => self.compress(Codec::Lz4, most),
            len => (len > SAME).then_some(len),
        }
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

/// What blocks are decoded with. Shared by all threads.
pub(super) struct Decoders(zstd::Decoders);

impl Decoders {
    pub fn new() -> Result<Decoders> {
        zstd::Decoders::new().map(Decoders)
    }

    /// Decodes a block to a page at `to`. False: it is none.
    ///
    /// # Safety
    /// `to` is a page that the caller may write.
    pub unsafe fn decompress(&self, block: &[u8], to: usize) -> bool {
        if let Ok(word) = <[u8; SAME]>::try_from(block) {
            // SAFETY: the caller's page.
            let to = unsafe { std::slice::from_raw_parts_mut(to as *mut u8, PAGE) };
            to.chunks_exact_mut(SAME)
                .for_each(|w| w.copy_from_slice(&word));
            return true;
        }
        if block.len() == PAGE {
            // SAFETY: the caller's page, which is no part of a block.
            unsafe { std::ptr::copy_nonoverlapping(block.as_ptr(), to as *mut u8, PAGE) };
            return true;
        }
        match block.split_first() {
            // SAFETY: the caller's page.
            Some((&LZ4, block)) => unsafe { lz4::decompress(block, to) },
            // SAFETY: the same.
            Some((&ZSTD, block)) => unsafe { self.0.decompress(block, to) },
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn back(block: &[u8]) -> Option<[u8; PAGE]> {
        let mut page = [0xaa; PAGE];
        let decoders = Decoders::new().unwrap();
        // SAFETY: a page of ours.
        unsafe { decoders.decompress(block, page.as_mut_ptr() as usize) }.then_some(page)
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
            for by in Codec::ALL {
                if let Some(n) = s.compress(by, LONGEST) {
                    prop_assert_eq!(back(&s.block[..n]), Some(s.page));
                }
            }
        }

        #[test]
        fn damaged_blocks_are_decoded_within_their_page(
            mut block in proptest::collection::vec(any::<u8>(), 1..LONGEST),
            cut in 0usize..LONGEST, flip in any::<(u16, u8)>(),
        ) {
            let decoders = Decoders::new().unwrap();
            // Bytes between guards: what is written beyond the page would show.
            let decode = |block: &[u8]| {
                let mut memory = vec![0x5a_u8; 3 * PAGE];
                // SAFETY: the page in the middle.
                unsafe { decoders.decompress(block, memory.as_mut_ptr() as usize + PAGE) };
                memory[..PAGE].iter().chain(&memory[2 * PAGE..]).all(|&b| b == 0x5a)
            };
            for first in [block[0], LZ4, ZSTD] {
                block[0] = first;
                prop_assert!(decode(&block));
            }
            let mut s = Scratch::new();
            for (i, b) in s.page.iter_mut().enumerate() {
                *b = block[i % block.len().min(64)];
            }
            for by in Codec::ALL {
                let Some(n) = s.compress(by, LONGEST) else { continue };
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
        for by in Codec::ALL {
            s.page
                .chunks_exact_mut(8)
                .for_each(|w| w.copy_from_slice(b"hugeswap"));
            assert_eq!(s.compress(by, LONGEST), Some(8));
            assert_eq!(back(b"hugeswap"), Some(s.page));
            fill(&mut s.page, |x| (x >> 56) as u8);
            assert_eq!(s.compress(by, LONGEST), None);
        }
    }

    /// Puts bytes that `of` makes of random numbers in a page.
    fn fill(page: &mut [u8; PAGE], of: impl Fn(u64) -> u8) {
        let mut x = 1u64;
        for b in page {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *b = of(x);
        }
    }

    #[test]
    fn text_of_random_digits_is_halved_by_entropy_coding_only() {
        let mut s = Scratch::new();
        fill(&mut s.page, |x| b"0123456789abcdef"[(x >> 60) as usize]);
        assert_eq!(
            (
                s.compress(Codec::Lz4, LONGEST),
                s.compress(Codec::ZstdFast, LONGEST)
            ),
            (None, None)
        );
        let n = s.compress(Codec::Zstd, SHORT).expect("4 bits of 8");
        assert!((PAGE / 2..PAGE / 2 + 200).contains(&n), "{n}");
        assert_eq!(back(&s.block[..n]), Some(s.page));
    }

    #[test]
    fn how_short_is_short_enough_is_the_callers() {
        let mut s = Scratch::new();
        // (Three quarters of it is noise.)
        fill(&mut s.page, |x| (x >> 56) as u8);
        s.page[PAGE / 4 * 3..].fill(0);
        for by in Codec::ALL {
            assert_eq!(s.compress(by, SHORT), None);
            let n = s.compress(by, LONGEST).expect("seven eighths");
            assert_eq!(back(&s.block[..n]), Some(s.page));
        }
        // What is as long as a page is the page.
        assert_eq!(back(&s.page.clone()), Some(s.page));
    }

    #[test]
    fn a_page_of_any_short_period_comes_back() {
        let mut s = Scratch::new();
        for period in 1..300 {
            for (i, b) in s.page.iter_mut().enumerate() {
                *b = (i % period * 7) as u8;
            }
            for by in Codec::ALL {
                let n = s.compress(by, LONGEST).expect("short");
                assert_eq!(back(&s.block[..n]), Some(s.page), "{period} {by:?}");
            }
        }
    }

    #[test]
    fn threads_decode_at_the_same_time() {
        let mut s = Scratch::new();
        let decoders = Decoders::new().unwrap();
        fill(&mut s.page, |x| (x >> 61) as u8);
        let n = s.compress(Codec::Zstd, SHORT).expect("3 bits of 8");
        std::thread::scope(|scope| {
            for _ in 0..24 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let mut page = [0; PAGE];
                        let to = page.as_mut_ptr() as usize;
                        // SAFETY: a page of ours.
                        assert!(unsafe { decoders.decompress(&s.block[..n], to) });
                        assert_eq!(page, s.page);
                    }
                });
            }
        });
    }
}
