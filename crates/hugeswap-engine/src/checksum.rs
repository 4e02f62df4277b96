//! The checksums of swapped pages: HighwayHash-64 of each base page, under a key drawn for the
//! pool.
//!
//! By page, so that a page can be read and verified by itself, whatever size it was written in.
//! Keyed, so that one pass serves both as proof that what came back from swap is what went there
//! and as proof that memory has not changed since (an unkeyed sum could be made to collide by data
//! an attacker supplies). Algorithm: J. Alakuijala, B. Cox, J. Wassenberg, "Fast keyed
//! hash/pseudo-random function using SIMD multiply and permute", 2016.
//!
//! One stream of HighwayHash waits for its own multiplications most of the time, so several pages
//! are hashed at once. The streams are written out here for AVX2, so that the compiler interleaves
//! them, and so that they need little of a signal handler's small stack; without AVX2 the crate
//! hashes the pages one by one. The sums are the same.

use crate::PAGE;
use highway::{HighwayHash, HighwayHasher, Key};
use hugeswap_policy::UNIT_PAGES;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// The key of a pool.
#[derive(Clone, Copy)]
pub struct SumKey(pub [u64; 4]);

/// In place of a sum: what belongs there is lost.
const LOST: u64 = u64::MAX;

/// The sums of a cluster's pages; zero stands for "no sum": nothing is known of what the slot
/// holds.
pub type Sums = [AtomicU64; UNIT_PAGES as usize];
/// The sums of a unit's pages.
pub type UnitSums = [u64; UNIT_PAGES as usize];

/// Pages that are hashed at the same time: as many as have their state in the 16 vector registers
/// of AVX2.
const STREAMS: usize = 3;
/// Bytes of a packet, what HighwayHash takes in one step.
const PACKET: usize = 32;

/// A sum that stands for nothing else.
fn plain(sum: u64) -> u64 {
    sum.clamp(1, LOST - 1)
}

/// The sums of the pages of `data`, in order, to `each` (with the page's number) until it says
/// false. Sums are [`plain`].
pub fn sums(key: &SumKey, data: &[u8], mut each: impl FnMut(usize, u64) -> bool) -> bool {
    let (groups, rest) = data.split_at(data.len() - data.len() % (STREAMS * PAGE));
    let mut page = 0;
    for group in groups.chunks_exact(STREAMS * PAGE) {
        for sum in several(key, group) {
            if !each(page, plain(sum)) {
                return false;
            }
            page += 1;
        }
    }
    rest.chunks(PAGE).all(|p| {
        page += 1;
        each(page - 1, plain(one(key, p)))
    })
}

/// The sums of [`STREAMS`] pages, made at once. Not inlined: hashers are large for the small stack
/// of a handler, and should not add up on it.
#[inline(never)]
fn several(key: &SumKey, pages: &[u8]) -> [u64; STREAMS] {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { avx2::pages::<STREAMS>(key, pages) };
    }
    let mut sums = [0; STREAMS];
    for (sum, page) in sums.iter_mut().zip(pages.chunks_exact(PAGE)) {
        *sum = HighwayHasher::new(Key(key.0)).hash64(page);
    }
    sums
}

#[inline(never)]
fn one(key: &SumKey, page: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        let [sum] = unsafe { avx2::pages::<1>(key, page) };
        return sum;
    }
    HighwayHasher::new(Key(key.0)).hash64(page)
}

/// The sums of the pages of `data`.
pub fn fill(key: &SumKey, data: &[u8], out: &mut [u64]) {
    sums(key, data, |page, sum| match out.get_mut(page) {
        Some(o) => {
            *o = sum;
            true
        }
        None => false,
    });
}

/// One sum for all pages of a unit: that of their sums.
#[inline(never)]
pub fn whole(key: &SumKey, data: &[u8]) -> u64 {
    let mut pages: UnitSums = [0; UNIT_PAGES as usize];
    fill(key, data, &mut pages);
    // SAFETY: numbers are bytes, and as many as a page has.
    let bytes = unsafe { std::slice::from_raw_parts(pages.as_ptr().cast::<u8>(), PAGE) };
    plain(one(key, bytes))
}

/// Do the pages of `data` have these sums?
pub fn matches(key: &SumKey, data: &[u8], want: &[AtomicU64]) -> bool {
    sums(key, data, |page, sum| {
        want.get(page).is_some_and(|w| w.load(Acquire) == sum)
    })
}

/// Are these the sums of a unit?
pub fn equal(sums: &Sums, of: &UnitSums) -> bool {
    sums.iter().zip(of).all(|(a, b)| a.load(Acquire) == *b)
}

/// Notes what pages hold.
pub fn store(sums: &[AtomicU64], of: &[u64]) {
    sums.iter().zip(of).for_each(|(a, b)| a.store(*b, Release));
}

/// Notes that nothing is known of pages.
pub fn forget(sums: &[AtomicU64]) {
    sums.iter().for_each(|a| a.store(0, Release));
}

/// Is something known of each of the pages, so that they can be read?
pub fn known(sums: &[AtomicU64]) -> bool {
    let known = |sum: &AtomicU64| !matches!(sum.load(Acquire), 0 | LOST);
    sums.iter().all(known)
}

/// Notes that what belongs in a slot, of which nothing is known, is lost.
pub fn lose(sum: &AtomicU64) {
    let _ = sum.compare_exchange(0, LOST, AcqRel, Relaxed);
}

/// Is any of the pages lost?
pub fn any_lost(sums: &[AtomicU64]) -> bool {
    sums.iter().any(|sum| sum.load(Acquire) == LOST)
}

/// HighwayHash-64 of whole pages, several at a time. The names are those of the paper and its
/// reference code.
#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{PACKET, PAGE, SumKey};
    use std::arch::x86_64::*;

    #[derive(Clone, Copy)]
    struct Stream {
        v0: __m256i,
        v1: __m256i,
        mul0: __m256i,
        mul1: __m256i,
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn vector(lanes: [u64; 4]) -> __m256i {
        let [a, b, c, d] = lanes.map(u64::cast_signed);
        _mm256_set_epi64x(d, c, b, a)
    }

    impl Stream {
        #[inline]
        #[target_feature(enable = "avx2")]
        fn new(key: &SumKey) -> Stream {
            let mul0 = vector([
                0xdbe6_d5d5_fe4c_ce2f,
                0xa409_3822_299f_31d0,
                0x1319_8a2e_0370_7344,
                0x243f_6a88_85a3_08d3,
            ]);
            let mul1 = vector([
                0x3bd3_9e10_cb0e_f593,
                0xc0ac_f169_b5f1_8a8c,
                0xbe54_66cf_34e9_0c6c,
                0x4528_21e6_38d0_1377,
            ]);
            Stream {
                v0: _mm256_xor_si256(mul0, vector(key.0)),
                v1: _mm256_xor_si256(mul1, vector(key.0.map(|k| k.rotate_left(32)))),
                mul0,
                mul1,
            }
        }

        #[inline]
        #[target_feature(enable = "avx2")]
        fn update(&mut self, packet: __m256i) {
            self.v1 = _mm256_add_epi64(self.v1, _mm256_add_epi64(packet, self.mul0));
            let product = _mm256_mul_epu32(self.v1, _mm256_srli_epi64::<32>(self.v0));
            self.mul0 = _mm256_xor_si256(self.mul0, product);
            self.v0 = _mm256_add_epi64(self.v0, self.mul1);
            let product = _mm256_mul_epu32(self.v0, _mm256_srli_epi64::<32>(self.v1));
            self.mul1 = _mm256_xor_si256(self.mul1, product);
            self.v0 = _mm256_add_epi64(self.v0, zipper_merge(self.v1));
            self.v1 = _mm256_add_epi64(self.v1, zipper_merge(self.v0));
        }

        #[inline]
        #[target_feature(enable = "avx2")]
        fn permute_and_update(&mut self) {
            let permuted = _mm256_setr_epi32(5, 4, 7, 6, 1, 0, 3, 2);
            self.update(_mm256_permutevar8x32_epi32(self.v0, permuted));
        }

        #[inline]
        #[target_feature(enable = "avx2")]
        fn sum64(self) -> u64 {
            let v = _mm256_add_epi64(self.v0, self.v1);
            let mul = _mm256_add_epi64(self.mul0, self.mul1);
            let low = _mm256_castsi256_si128(_mm256_add_epi64(v, mul));
            _mm_cvtsi128_si64(low).cast_unsigned()
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn zipper_merge(v: __m256i) -> __m256i {
        let (high, low) = (0x0708_0609_0d0a_040b, 0x000f_010e_0502_0c03);
        _mm256_shuffle_epi8(v, _mm256_set_epi64x(high, low, high, low))
    }

    /// HighwayHash-64 of `N` pages that lie one after the other.
    #[target_feature(enable = "avx2")]
    pub(super) fn pages<const N: usize>(key: &SumKey, data: &[u8]) -> [u64; N] {
        let mut streams = [Stream::new(key); N];
        for at in (0..PAGE).step_by(PACKET) {
            for (i, stream) in streams.iter_mut().enumerate() {
                let from = i * PAGE + at;
                if let Some(packet) = data.get(from..from + PACKET) {
                    // SAFETY: a packet is as long as a vector.
                    stream.update(unsafe { _mm256_loadu_si256(packet.as_ptr().cast()) });
                }
            }
        }
        for _ in 0..4 {
            streams.iter_mut().for_each(|s| s.permute_and_update());
        }
        streams.map(|s| s.sum64())
    }
}

/// Are all bytes zero? Stops at the first that is not.
pub fn is_zero(data: &[u8]) -> bool {
    // SAFETY: any bytes are valid u64s; align_to keeps within the slice.
    let (head, body, tail) = unsafe { data.align_to::<u64>() };
    head.iter().all(|&b| b == 0)
        && body
            .chunks(64)
            .all(|c| c.iter().fold(0, |a, &w| a | w) == 0)
        && tail.iter().all(|&b| b == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_zero_and_one_bit_is_not() {
        let mut v = vec![0u8; 2 << 20];
        assert!(is_zero(&v));
        for at in [0, 7, 4095, 1 << 20, (2 << 20) - 1] {
            v[at] = 1;
            assert!(!is_zero(&v), "{at}");
            v[at] = 0;
        }
    }

    /// Whatever the processor: a pool's sums are what the crate says.
    #[test]
    fn sums_are_highwayhash_64() {
        let mut x = 1u64;
        let data: Vec<u8> = (0..8 * PAGE)
            .map(|_| {
                x = x.wrapping_mul(6364136223846793005).wrapping_add(99);
                (x >> 33) as u8
            })
            .collect();
        let key = SumKey([1, 2, 3, u64::MAX]);
        let mut got = [0; 8];
        for n in 1..=8 {
            fill(&key, &data[..n * PAGE], &mut got);
            for (i, page) in data[..n * PAGE].chunks(PAGE).enumerate() {
                assert_eq!(
                    got[i],
                    HighwayHasher::new(Key(key.0)).hash64(page),
                    "{i} of {n}"
                );
            }
        }
    }

    #[test]
    fn sums_differ_by_key_and_by_bit() {
        let mut v = vec![7u8; 5 * PAGE];
        let (a, b) = (SumKey([1, 2, 3, 4]), SumKey([1, 2, 3, 5]));
        let want = [const { AtomicU64::new(0) }; 5];
        let mut got = [0; 5];
        fill(&a, &v, &mut got);
        store(&want, &got);
        assert!(matches(&a, &v, &want) && !matches(&b, &v, &want));
        for at in [100, PAGE, 4 * PAGE + 4095] {
            v[at] ^= 1;
            assert!(!matches(&a, &v, &want), "{at}");
            v[at] ^= 1;
        }
        forget(&want);
        assert!(!matches(&a, &v, &want));
    }
}
