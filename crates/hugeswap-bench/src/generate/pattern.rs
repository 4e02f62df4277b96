//! Which page comes next: each with the same probability, or by Zipf's law with a given skew, hot
//! pages side by side or spread over all of them.
//!
//! The random numbers are the caller's; nothing here has a state.

use super::zipf::Zipf;
use hugeswap_support::random::{below, next};
use serde::{Deserialize, Serialize};

/// How pages are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// Each page with the same probability.
    Uniform,
    /// The page with rank k (from 1) in order of heat, in proportion to 1/k^theta.
    Zipf {
        /// The skew.
        theta: f64,
        /// The order of heat is that of addresses; otherwise it is a fixed permutation of it.
        clustered: bool,
    },
}

impl Pattern {
    /// Zipf's law with hot pages spread over all of them.
    pub fn zipf(theta: f64) -> Pattern {
        let clustered = false;
        Pattern::Zipf { theta, clustered }
    }
}

/// A pattern over a number of pages.
pub struct Pages {
    count: u64,
    zipf: Option<Zipf>,
    scramble: Option<Permutation>,
}

impl Pages {
    /// A pattern over `count` pages (at least 1).
    pub fn new(pattern: Pattern, count: u64) -> Pages {
        let count = count.max(1);
        let (zipf, clustered) = match pattern {
            Pattern::Uniform => (None, true),
            Pattern::Zipf { theta, clustered } => (Some(Zipf::new(count, theta)), clustered),
        };
        let scramble = (!clustered).then(|| Permutation::new(count));
        Pages {
            count,
            zipf,
            scramble,
        }
    }

    /// The next page, from 0.
    pub fn next(&self, random: &mut u64) -> u64 {
        let page = match &self.zipf {
            Some(zipf) => zipf.next(random) - 1,
            None => below(self.count, random),
        };
        self.scramble.as_ref().map_or(page, |p| p.of(page))
    }
}

/// A fixed permutation of 0..count that looks random: a Feistel network of four rounds over the next
/// power of four, applied again while the result is not below `count` (cycle walking: Black and
/// Rogaway, 2002).
struct Permutation {
    count: u64,
    half_bits: u32,
}

impl Permutation {
    fn new(count: u64) -> Permutation {
        let bits = 64 - count.saturating_sub(1).leading_zeros();
        let half_bits = bits.div_ceil(2).max(1);
        Permutation { count, half_bits }
    }

    fn of(&self, mut n: u64) -> u64 {
        // Every cycle leads back to `n` itself, which is below `count`.
        loop {
            n = self.once(n);
            if n < self.count {
                return n;
            }
        }
    }

    fn once(&self, n: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (n >> self.half_bits, n & mask);
        for round in 1..=4u64 {
            let mut state = right ^ (round << 32);
            (left, right) = (right, left ^ (next(&mut state) & mask));
        }
        (left << self.half_bits) | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zipf(theta: f64, clustered: bool, count: u64) -> Pages {
        Pages::new(Pattern::Zipf { theta, clustered }, count)
    }

    /// Counts against expectations: Pearson's sum stays near its degrees of freedom.
    fn fits(counts: &[u64], weights: impl Fn(usize) -> f64) {
        let (all, weight): (u64, f64) =
            (counts.iter().sum(), (0..counts.len()).map(&weights).sum());
        let (mut sum, mut cells, mut seen, mut expected) = (0.0, 0.0, 0.0, 0.0);
        for (i, &n) in counts.iter().enumerate() {
            seen += n as f64;
            expected += weights(i) / weight * all as f64;
            // Cells with little in them go together.
            if expected >= 20.0 || i + 1 == counts.len() {
                sum += (seen - expected).powi(2) / expected.max(1.0);
                cells += 1.0;
                (seen, expected) = (0.0, 0.0);
            }
        }
        // Five standard deviations above the mean of chi-square.
        let freedom: f64 = cells - 1.0;
        assert!(
            sum <= freedom + 5.0 * (2.0 * freedom).sqrt(),
            "{sum} of {freedom}"
        );
    }

    #[test]
    fn zipf_is_exact_for_every_skew() {
        for theta in [0.1, 0.5, 0.9, 0.99, 1.0, 1.1, 1.3] {
            for count in [1, 2, 3, 1000] {
                let pages = zipf(theta, true, count);
                let mut counts = vec![0; count as usize];
                let mut random = 42;
                for _ in 0..200_000 {
                    counts[pages.next(&mut random) as usize] += 1;
                }
                fits(&counts, |i| ((i + 1) as f64).powf(-theta));
            }
        }
    }

    #[test]
    fn uniform_is_uniform() {
        let pages = Pages::new(Pattern::Uniform, 777);
        let mut counts = vec![0; 777];
        let mut random = 1;
        for _ in 0..200_000 {
            counts[pages.next(&mut random) as usize] += 1;
        }
        fits(&counts, |_| 1.0);
    }

    #[test]
    fn a_permutation_has_everything_once() {
        for count in [1, 2, 3, 4, 5, 255, 256, 257, 10_000] {
            let p = Permutation::new(count);
            let mut seen = vec![false; count as usize];
            for n in 0..count {
                seen[p.of(n) as usize] = true;
            }
            assert!(seen.iter().all(|s| *s), "{count}");
        }
    }

    #[test]
    fn hot_pages_are_spread_or_side_by_side() {
        let (count, hot) = (64 * 512, 512);
        let p = Permutation::new(count);
        let units: std::collections::BTreeSet<u64> = (0..hot).map(|n| p.of(n) / 512).collect();
        assert!(units.len() > 60, "{}", units.len());
        // Clustered, half of all accesses at theta 1 go to a few units at the start.
        let pages = zipf(1.0, true, count);
        let mut random = 3;
        let near = (0..1000).filter(|_| pages.next(&mut random) < hot).count();
        assert!(near > 500, "{near}");
    }

    #[test]
    fn the_same_seed_gives_the_same_pages() {
        let pages = zipf(0.9, false, 12_345);
        let draw =
            |mut random: u64| -> Vec<u64> { (0..100).map(|_| pages.next(&mut random)).collect() };
        assert_eq!(draw(5), draw(5));
        assert_ne!(draw(5), draw(6));
        assert!(draw(5).iter().all(|p| *p < 12_345));
    }
}
