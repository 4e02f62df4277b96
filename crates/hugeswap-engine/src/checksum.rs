//! The checksum of a unit: HighwayHash-128 under a key drawn for the pool.
//!
//! Keyed, so that one pass serves both as proof that what came back from swap is what went
//! there and as proof that memory has not changed since (an unkeyed sum could be made to collide by
//! data an attacker supplies). Algorithm: J. Alakuijala, B. Cox, J. Wassenberg, "Fast keyed hash/pseudo-random
//! function using SIMD multiply and permute", 2016.

use highway::{HighwayHash, HighwayHasher, Key};

/// The key of a pool.
#[derive(Clone, Copy)]
pub struct SumKey(pub [u64; 4]);

/// Of `data`; never zero in both halves, which stands for "no sum".
pub fn sum(key: &SumKey, data: &[u8]) -> [u64; 2] {
    let s = HighwayHasher::new(Key(key.0)).hash128(data);
    if s == [0, 0] { [1, 0] } else { s }
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
}
