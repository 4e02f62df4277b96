//! The bytes of words put together, those of the same weight: pointers and small numbers then are
//! runs of equal bytes, which a compressor finds better (the shuffle filter of HDF5 and Blosc).
//!
//! A half of a page is 256 words of 8 bytes, and becomes 8 planes of 256 bytes: first the lowest
//! byte of each word, then the next. It is done by halves so that a page can be put in order again
//! where it stands through a buffer that is no longer than that.
//!
//! Sixteen words are eight rows of 16 bytes. To interleave the bytes of rows 0 to 3 with those of
//! rows 4 to 7 turns the bits of a byte's number (4 of the word, 3 of the byte in it) to the left by
//! one: four times makes planes of words, and three times more words of planes.

use crate::PAGE;
use std::arch::x86_64::{
    __m128i, _mm_loadu_si128, _mm_storeu_si128, _mm_unpackhi_epi8, _mm_unpacklo_epi8,
};

/// What is turned at one time.
pub(super) const HALF: usize = PAGE / 2;
const ROW: usize = 16;
const ROWS: usize = 8;
const PLANE: usize = HALF / ROWS;

/// Splits a page to planes.
pub(super) fn split(page: &[u8; PAGE], to: &mut [u8; PAGE]) {
    for (half, to) in page.chunks_exact(HALF).zip(to.chunks_exact_mut(HALF)) {
        let planes = to.as_mut_ptr();
        for (k, words) in half.chunks_exact(ROW * ROWS).enumerate() {
            let words = words.as_ptr();
            // SAFETY: 128 bytes of the page, and row `k` of 16 of each of 8 planes, in a half.
            unsafe {
                let words = rows(words, ROW);
                store(
                    turned(turned(turned(turned(words)))),
                    planes.add(k * ROW),
                    PLANE,
                );
            }
        }
    }
}

/// Joins the planes of a half of a page to words.
///
/// # Safety
/// `planes` and `to` are [`HALF`] bytes each, which do not overlap; `to` may be written.
pub(super) unsafe fn join(planes: *const u8, to: *mut u8) {
    for k in 0..PLANE / ROW {
        // SAFETY: row `k` of 16 of each of 8 planes, and 128 bytes, in the caller's halves.
        unsafe {
            let planes = rows(planes.add(k * ROW), PLANE);
            store(turned(turned(turned(planes))), to.add(k * ROW * ROWS), ROW);
        }
    }
}

// Written out, for the object that programs are given is optimised for its size: calls within these
// loops take longer than all that they do.

/// Eight rows, `apart` bytes from one to the next.
///
/// # Safety
/// They can be read.
#[inline(always)]
unsafe fn rows(from: *const u8, apart: usize) -> [__m128i; ROWS] {
    // SAFETY: passed on to the caller.
    let row = |k: usize| unsafe { _mm_loadu_si128(from.add(k * apart).cast()) };
    [
        row(0),
        row(1),
        row(2),
        row(3),
        row(4),
        row(5),
        row(6),
        row(7),
    ]
}

/// Puts eight rows down, `apart` bytes from one to the next.
///
/// # Safety
/// They can be written.
#[inline(always)]
unsafe fn store(rows: [__m128i; ROWS], to: *mut u8, apart: usize) {
    let [a, b, c, d, e, f, g, h] = rows;
    // SAFETY: passed on to the caller.
    let put = |k: usize, row| unsafe { _mm_storeu_si128(to.add(k * apart).cast(), row) };
    put(0, a);
    put(1, b);
    put(2, c);
    put(3, d);
    put(4, e);
    put(5, f);
    put(6, g);
    put(7, h);
}

/// The bytes of the first four rows, each before one of the last four.
#[inline(always)]
fn turned(rows: [__m128i; ROWS]) -> [__m128i; ROWS] {
    let [a, b, c, d, e, f, g, h] = rows;
    // SAFETY: each x86-64 processor has SSE2.
    unsafe {
        [
            _mm_unpacklo_epi8(a, e),
            _mm_unpackhi_epi8(a, e),
            _mm_unpacklo_epi8(b, f),
            _mm_unpackhi_epi8(b, f),
            _mm_unpacklo_epi8(c, g),
            _mm_unpackhi_epi8(c, g),
            _mm_unpacklo_epi8(d, h),
            _mm_unpackhi_epi8(d, h),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn planes_are_bytes_of_the_same_weight_and_come_together_again(
            bytes in proptest::collection::vec(any::<u8>(), PAGE),
        ) {
            let page: [u8; PAGE] = bytes.try_into().expect("a page");
            let mut planes = [0; PAGE];
            split(&page, &mut planes);
            for (i, &b) in page.iter().enumerate() {
                let (half, word, byte) = (i / HALF, i % HALF / 8, i % 8);
                prop_assert_eq!(planes[half * HALF + byte * PLANE + word], b);
            }
            let mut back = [0; PAGE];
            for half in [0, HALF] {
                // SAFETY: halves of two pages.
                unsafe { join(planes[half..].as_ptr(), back[half..].as_mut_ptr()) };
            }
            prop_assert_eq!(back, page);
        }
    }
}
