//! Numbers that follow from a seed: the same step of the same thread always does the same.

/// A generator (xorshift64*), cheap enough for every access.
#[derive(Clone, Debug)]
pub struct Random(u64);

/// Spreads the bits of `x` (the finaliser of splitmix64).
pub fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Random {
    /// A generator for a seed and what it is for.
    pub fn new(seed: u64, stream: u64, step: u64) -> Random {
        let x = mix(seed ^ mix(stream ^ mix(step.wrapping_add(0x9e37_79b9_7f4a_7c15))));
        Random(x | 1)
    }

    /// 64 random bits.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_step_draws_the_same_and_others_do_not() {
        let draw = |step| Random::new(7, 3, step).next();
        assert_eq!(draw(5), draw(5));
        assert_ne!(draw(5), draw(6));
        let mut r = Random::new(1, 0, 0);
        let mut seen = [0; 10];
        (0..10_000).for_each(|_| seen[r.below(10)] += 1);
        assert!(seen.iter().all(|&n| (800..1200).contains(&n)), "{seen:?}");
    }
}
