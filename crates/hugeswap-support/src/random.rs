//! Random numbers, and random orders, from a state that the caller keeps. Benchmarks call these
//! functions in their inner loops, so they can be inlined into other crates.

/// Added to the state for each number; odd, so that the state takes every value.
pub const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The next number: splitmix64 (Steele, Lea and Flood, 2014).
#[inline]
pub fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(STEP);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A number below `n`; the bias is below n/2^64.
#[inline]
pub fn below(n: u64, state: &mut u64) -> u64 {
    ((u128::from(next(state)) * u128::from(n)) >> 64) as u64
}

/// [`below`] for an index.
#[inline]
pub fn index(n: usize, state: &mut u64) -> usize {
    below(n as u64, state) as usize
}

/// The numbers below `n` in random order (Fisher and Yates).
pub fn permutation(n: usize, state: &mut u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    for i in (1..n).rev() {
        order.swap(i, index(i + 1, state));
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permutation_has_each_number_once() {
        let mut state = 7;
        let mut p = permutation(1000, &mut state);
        assert_ne!(p, (0..1000).collect::<Vec<_>>());
        p.sort_unstable();
        assert_eq!(p, (0..1000).collect::<Vec<_>>());
    }
}
