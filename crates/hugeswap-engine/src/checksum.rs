//! The checksum of a unit: 128 bits under a key drawn for the pool, made of HighwayHash.
//!
//! Keyed, so that one pass serves both as proof that what came back from swap is what went
//! there and as proof that memory has not changed since (an unkeyed sum could be made to collide by
//! data an attacker supplies). Algorithm: J. Alakuijala, B. Cox, J. Wassenberg, "Fast keyed hash/pseudo-random
//! function using SIMD multiply and permute", 2016.
//!
//! One stream of HighwayHash waits for its own multiplications most of the time. So the data is dealt out to
//! [`STREAMS`] of them, packet by packet, and the sum is the HighwayHash-128 of theirs: equal sums of
//! different data need a collision in one of these. The streams are written out here for AVX2, so that the
//! compiler interleaves them, and so that they need little of a signal handler's small stack; without AVX2
//! the crate hashes them. The sums are the same.

use highway::{HighwayHash, HighwayHasher, Key};

/// The key of a pool.
#[derive(Clone, Copy)]
pub struct SumKey(pub [u64; 4]);

/// Streams that are hashed at the same time: as many as have their state in the 16 vector registers of AVX2.
const STREAMS: usize = 3;
/// Bytes of a packet, what HighwayHash takes in one step.
const PACKET: usize = 32;

/// Of `data`; never zero in both halves, which stands for "no sum".
pub fn sum(key: &SumKey, data: &[u8]) -> [u64; 2] {
    let (dealt, rest) = data.split_at(data.len() - data.len() % (STREAMS * PACKET));
    let s = combine(key, deal(key, dealt), rest);
    if s == [0, 0] { [1, 0] } else { s }
}

/// The sum of the streams' sums and of what was too short to be dealt out. Not inlined, like what makes the
/// streams' sums: so their frames do not add up on the small stack of a handler.
#[inline(never)]
fn combine(key: &SumKey, sums: [[u64; 2]; STREAMS], rest: &[u8]) -> [u64; 2] {
    let mut all = HighwayHasher::new(Key(key.0));
    for half in sums.as_flattened() {
        all.append(&half.to_le_bytes());
    }
    all.append(rest);
    all.finalize128()
}

/// Gives the packets of `data` to the streams in turn; their sums.
fn deal(key: &SumKey, data: &[u8]) -> [[u64; 2]; STREAMS] {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { avx2::deal(key, data) };
    }
    deal_portably(key, data)
}

/// One stream after the other: several hashers are large for the stack of a handler.
#[inline(never)]
fn deal_portably(key: &SumKey, data: &[u8]) -> [[u64; 2]; STREAMS] {
    std::array::from_fn(|i| {
        let mut stream = HighwayHasher::new(Key(key.0));
        for packet in data.chunks_exact(PACKET).skip(i).step_by(STREAMS) {
            stream.append(packet);
        }
        stream.finalize128()
    })
}

/// HighwayHash-128 of whole packets, several at a time. The names are those of the paper and its reference code.
#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{PACKET, STREAMS, SumKey};
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
        fn finalize128(mut self) -> [u64; 2] {
            let permuted = _mm256_setr_epi32(5, 4, 7, 6, 1, 0, 3, 2);
            for _ in 0..6 {
                self.update(_mm256_permutevar8x32_epi32(self.v0, permuted));
            }
            let low = _mm256_castsi256_si128(_mm256_add_epi64(self.v0, self.mul0));
            let high = _mm256_extracti128_si256::<1>(_mm256_add_epi64(self.v1, self.mul1));
            let sum = _mm_add_epi64(low, high);
            [_mm_cvtsi128_si64(sum), _mm_extract_epi64::<1>(sum)].map(i64::cast_unsigned)
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn zipper_merge(v: __m256i) -> __m256i {
        let (high, low) = (0x0708_0609_0d0a_040b, 0x000f_010e_0502_0c03);
        _mm256_shuffle_epi8(v, _mm256_set_epi64x(high, low, high, low))
    }

    /// See [`super::deal`].
    #[target_feature(enable = "avx2")]
    pub(super) fn deal(key: &SumKey, data: &[u8]) -> [[u64; 2]; STREAMS] {
        let mut streams = [Stream::new(key); STREAMS];
        for packets in data.chunks_exact(STREAMS * PACKET) {
            for (stream, packet) in streams.iter_mut().zip(packets.chunks_exact(PACKET)) {
                // SAFETY: a packet is as long as a vector.
                stream.update(unsafe { _mm256_loadu_si256(packet.as_ptr().cast()) });
            }
        }
        let mut sums = [[0; 2]; STREAMS];
        for (sum, stream) in sums.iter_mut().zip(streams) {
            *sum = stream.finalize128();
        }
        sums
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

    #[test]
    fn sums_differ_by_key_and_by_bit() {
        let mut v = vec![7u8; 4096];
        let (a, b) = (SumKey([1, 2, 3, 4]), SumKey([1, 2, 3, 5]));
        assert_ne!(sum(&a, &v), sum(&b, &v));
        let s = sum(&a, &v);
        v[100] ^= 1;
        assert_ne!(sum(&a, &v), s);
    }

    #[test]
    fn sums_differ_by_order_and_length() {
        let key = SumKey([1, 2, 3, 4]);
        let v: Vec<u8> = (0..4096u32).map(|i| (i / 32) as u8).collect();
        let s = sum(&key, &v);
        for (a, b) in [(0, 1), (0, STREAMS), (1, 127)] {
            let mut swapped = v.clone();
            for i in 0..PACKET {
                swapped.swap(a * PACKET + i, b * PACKET + i);
            }
            assert_ne!(sum(&key, &swapped), s, "{a} {b}");
        }
        for len in [0, 1, 31, 32, 95, 96, 4095] {
            assert_ne!(sum(&key, &v[..len]), s, "{len}");
        }
    }

    #[test]
    fn streams_are_highwayhash_with_and_without_vectors() {
        let key = SumKey([5, 6, 7, u64::MAX - 8]);
        let v: Vec<u8> = (0..(STREAMS * PACKET * 100) as u32)
            .map(|i| (i.wrapping_mul(0x9e37_79b1) >> 24) as u8)
            .collect();
        let want: [[u64; 2]; STREAMS] = std::array::from_fn(|i| {
            let own: Vec<u8> = v
                .chunks(PACKET)
                .skip(i)
                .step_by(STREAMS)
                .flatten()
                .copied()
                .collect();
            HighwayHasher::new(Key(key.0)).hash128(&own)
        });
        assert_eq!(deal(&key, &v), want);
        assert_eq!(deal_portably(&key, &v), want);
    }
}
