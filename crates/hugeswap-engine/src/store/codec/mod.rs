//! Pages compressed, and back.
//!
//! A block is decoded with its bounds checked, so a damaged one gives an error or wrong bytes, which
//! their sum tells. Its first byte says by what it was compressed.
//!
//! A page that is the same 8 bytes again and again is those 8 bytes: no other block is so short.
//! One that is as long as a page is the page itself.
//!
//! # Words
//!
//! Heaps of pointers and numbers become shorter where the bytes of words are put together first
//! ([`words`]), text becomes longer. One page of [`SAMPLE`] is compressed both ways, and the way
//! that was shorter lately comes first for the others; the other one is tried where that leaves
//! more than half of a page.
//!
//! * [`lz4`], [`zstd`]: the libraries
//!
//! [`super::zswap`] keeps blocks in memory, [`super::pack`] writes those of a unit to a device, and
//! [`crate::Compressor`] measures.

mod lz4;
mod words;
mod zstd;

use super::PAGE;
use crate::lock::{Held, Lock};
use hugeswap_policy::zswap::codec::{CODECS, Codec};
use hugeswap_sys::Result;
use std::alloc::Layout;
use std::mem::MaybeUninit;
use words::HALF;

/// Bytes of a block of a page that repeats one word.
const SAME: usize = 8;
/// A block that is longer is not worth its room where there is a device.
pub(crate) const SHORT: usize = PAGE * 5 / 8;
/// A block that is longer is not worth decoding.
pub(crate) const LONGEST: usize = PAGE * 7 / 8;
/// First bytes of blocks.
const LZ4: u8 = 1;
const ZSTD: u8 = 2;
/// And that the page is split to planes.
const WORDS: u8 = 4;
/// One page of so many is compressed both ways.
const SAMPLE: u32 = 16;
/// How much more often one way was better than the other, at most.
const SURE: i8 = 8;

/// Threads that can compress at one time.
const SCRATCHES: usize = 4;

/// What the threads of a process compress with, and decode.
pub(super) struct Codecs {
    scratches: [Lock<Option<Box<Scratch>>>; SCRATCHES],
    pub decoders: Decoders,
}

impl Codecs {
    pub fn new() -> Result<Codecs> {
        Ok(Codecs {
            scratches: std::array::from_fn(|_| Lock::new(None)),
            decoders: Decoders::new()?,
        })
    }

    /// What one thread compresses with, once one is free; made when it is used first.
    pub fn scratch(&self) -> Held<'_, Option<Box<Scratch>>> {
        self.try_scratch()
            .unwrap_or_else(|| self.scratches[0].lock())
    }

    /// The same, if one is free.
    pub fn try_scratch(&self) -> Option<Held<'_, Option<Box<Scratch>>>> {
        self.scratches.iter().find_map(Lock::try_lock)
    }
}

/// What a thread compresses with: a page, its block, and the compressors' memory.
#[repr(C, align(64))]
pub(crate) struct Scratch {
    pub page: [u8; PAGE],
    pub block: [u8; LONGEST],
    ways: Ways,
    /// What is decoded to see how long that takes: no stack has room for it everywhere.
    sample: Room,
    lz4: lz4::State,
    zstd: zstd::State,
}

/// The two ways to compress a page.
struct Ways {
    /// The page, split to planes.
    planes: [u8; PAGE],
    /// The block of the second way that is tried.
    other: [u8; LONGEST],
    /// By codec, up to [`SURE`]: how much more often planes were better lately; below 0: less.
    lean: [i8; CODECS],
    /// Pages so far.
    pages: u32,
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
        let lean = self.ways.lean[by as usize];
        let words = lean > 0;
        let len = self.compress_one_way(by, words, most, false);
        self.ways.pages = self.ways.pages.wrapping_add(1);
        let long = len.is_none_or(|n| n > PAGE / 2);
        let both = self.ways.pages.is_multiple_of(SAMPLE) || long && lean.abs() < SURE;
        if !both {
            return len;
        }
        let other = self.compress_one_way(by, !words, most, true);
        let (as_is, by_words) = if words { (other, len) } else { (len, other) };
        // (To split and join takes time, too.)
        let better = match (as_is, by_words) {
            (None, None) => return None,
            (Some(n), Some(by_words)) => by_words * 5 < n * 4,
            (as_is, _) => as_is.is_none(),
        };
        let lean = if better { lean + 1 } else { lean - 1 };
        self.ways.lean[by as usize] = lean.clamp(-SURE, SURE);
        if better == words {
            return len;
        }
        let n = other?;
        self.block[..n].copy_from_slice(&self.ways.other[..n]);
        Some(n)
    }

    /// Decodes the block of `len` bytes to `page` again.
    pub fn decompress(&mut self, decoders: &Decoders, len: usize) -> bool {
        let to = self.page.as_mut_ptr() as usize;
        let mut sample = Block::new(&mut self.sample);
        // SAFETY: `block`, and a page.
        unsafe { sample.copy(self.block.as_ptr(), len, to) && decoders.decompress(&mut sample, to) }
    }

    /// [`Scratch::compress`], the page split to planes if `words` says so; to `ways.other` if it is
    /// the `second` attempt.
    fn compress_one_way(
        &mut self,
        by: Codec,
        words: bool,
        most: usize,
        second: bool,
    ) -> Option<usize> {
        let ways = &mut self.ways;
        let page = match words {
            true => {
                words::split(&self.page, &mut ways.planes);
                &ways.planes
            }
            false => &self.page,
        };
        let block = if second {
            &mut ways.other
        } else {
            &mut self.block
        };
        let (first, rest) = block[..most].split_first_mut()?;
        *first = if words { WORDS } else { 0 };
        *first |= match by {
            Codec::Lz4 => LZ4,
            Codec::ZstdFast | Codec::Zstd => ZSTD,
        };
        let len = match by {
            Codec::Lz4 => self.lz4.compress(page, rest),
            Codec::ZstdFast => self.zstd.compress(-1, page, rest),
            Codec::Zstd => self.zstd.compress(1, page, rest),
        };
        match len? + 1 {
            ..=SAME if by != Codec::Lz4 => self.compress_one_way(Codec::Lz4, words, most, second),
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

/// Memory for the copy of a block.
pub(super) type Room = [MaybeUninit<u8>; LONGEST];

/// On a thread's own stack.
pub(super) const fn room() -> Room {
    [const { MaybeUninit::uninit() }; LONGEST]
}

/// A copy of a block, which is decoded from here.
pub(super) struct Block<'r> {
    bytes: &'r mut Room,
    /// So many of them are the block.
    len: usize,
}

impl Block<'_> {
    /// None yet.
    pub fn new(bytes: &mut Room) -> Block<'_> {
        Block { bytes, len: 0 }
    }

    /// Copies a block, or a page that is its own block to `to`. False: it is longer than any.
    ///
    /// # Safety
    /// `from` are `len` bytes that can be read, `to` is a page that can be written.
    pub unsafe fn copy(&mut self, from: *const u8, len: usize, to: usize) -> bool {
        let into = match len {
            PAGE => to as *mut u8,
            ..=LONGEST => self.bytes.as_mut_ptr().cast(),
            _ => return false,
        };
        self.len = len;
        // SAFETY: the caller's bytes, to memory that is as long. (A page that is its own block may
        // lie over where it goes.)
        unsafe { std::ptr::copy(from, into, len) };
        true
    }

    /// The bytes; `None`: it is a page of its own.
    fn bytes(&self) -> Option<&[u8]> {
        let bytes = self.bytes.get(..self.len)?;
        // SAFETY: so many were copied there.
        Some(unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len()) })
    }
}

/// What blocks are decoded with. Shared by all threads.
pub(crate) struct Decoders(zstd::Decoders);

impl Decoders {
    pub fn new() -> Result<Decoders> {
        zstd::Decoders::new().map(Decoders)
    }

    /// Decodes a block to a page at `to`, the one that it was copied for. False: it is none.
    ///
    /// # Safety
    /// `to` is a page that the caller may write.
    pub(super) unsafe fn decompress(&self, block: &mut Block<'_>, to: usize) -> bool {
        let Some(bytes) = block.bytes() else {
            return true;
        };
        if let Ok(word) = <[u8; SAME]>::try_from(bytes) {
            // SAFETY: the caller's page.
            let to = unsafe { std::slice::from_raw_parts_mut(to as *mut u8, PAGE) };
            to.chunks_exact_mut(SAME)
                .for_each(|w| w.copy_from_slice(&word));
            return true;
        }
        let Some((&first, bytes)) = bytes.split_first() else {
            return false;
        };
        let decoded = match first & !WORDS {
            // SAFETY: the caller's page.
            LZ4 => unsafe { lz4::decompress(bytes, to) },
            // SAFETY: the same.
            ZSTD => unsafe { self.0.decompress(bytes, to) },
            _ => false,
        };
        if decoded && first & WORDS != 0 {
            // The block is of no use any more; half a page of planes takes its place.
            let planes = block.bytes.as_mut_ptr().cast::<u8>();
            for half in [to as *mut u8, (to + HALF) as *mut u8] {
                // SAFETY: halves of the caller's page, and a buffer that is longer than one.
                unsafe {
                    std::ptr::copy_nonoverlapping(half, planes, HALF);
                    words::join(planes, half);
                }
            }
        }
        decoded
    }
}

const _: () = assert!(HALF <= LONGEST);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn back(block: &[u8]) -> Option<[u8; PAGE]> {
        let mut page = [0xaa; PAGE];
        decode(&Decoders::new().unwrap(), block, &mut page).then_some(page)
    }

    fn decode(decoders: &Decoders, bytes: &[u8], page: &mut [u8; PAGE]) -> bool {
        let (mut room, to) = (room(), page.as_mut_ptr() as usize);
        let mut block = Block::new(&mut room);
        // SAFETY: a slice, and a page of ours.
        unsafe {
            block.copy(bytes.as_ptr(), bytes.len(), to) && decoders.decompress(&mut block, to)
        }
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
                let page = (&mut memory[PAGE..2 * PAGE]).try_into().unwrap();
                decode(&decoders, block, page);
                memory[..PAGE].iter().chain(&memory[2 * PAGE..]).all(|&b| b == 0x5a)
            };
            for first in [block[0], LZ4, ZSTD, LZ4 | WORDS, ZSTD | WORDS] {
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

    /// Random numbers, without their lowest bits, so many.
    fn random(without: u32) -> impl FnMut() -> u64 {
        let mut x = 1u64;
        move || {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            x >> without
        }
    }

    /// Puts bytes that `of` makes of random numbers in a page.
    fn fill(page: &mut [u8; PAGE], of: impl Fn(u64) -> u8) {
        let mut next = random(0);
        page.fill_with(|| of(next()));
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
    fn numbers_are_compressed_by_words_and_text_is_not() {
        let mut next = random(44);
        let mut numbers = Scratch::new();
        let mut texts = Scratch::new();
        for _ in 0..40 {
            for (i, word) in numbers.page.chunks_exact_mut(8).enumerate() {
                let number = 0x7f3a_0000_0000 + (next() << 4) + i as u64;
                word.copy_from_slice(&number.to_le_bytes());
            }
            let n = numbers.compress(Codec::Lz4, LONGEST).expect("short");
            assert_eq!(back(&numbers.block[..n]), Some(numbers.page));
            assert_eq!(numbers.block[0], LZ4 | WORDS);
            let text = b"the quick brown fox jumps over the lazy dog and ";
            for (i, b) in texts.page.iter_mut().enumerate() {
                *b = match next() {
                    x if x % 16 == 0 => b'a' + (x >> 4) as u8 % 26,
                    _ => text[i % 48],
                };
            }
            for by in Codec::ALL {
                let n = texts.compress(by, LONGEST).expect("short");
                assert_eq!(back(&texts.block[..n]), Some(texts.page));
                assert_eq!(texts.block[0] & WORDS, 0);
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
                        assert!(decode(&decoders, &s.block[..n], &mut page));
                        assert_eq!(page, s.page);
                    }
                });
            }
        });
    }
}
