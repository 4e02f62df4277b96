//! Which page comes next: uniform, or by Zipf's law with a given skew, hot pages side by side or spread.
//!
//! Pure: numbers in, numbers out; the random numbers are the caller's.

use super::memory::next_random;
use serde::{Deserialize, Serialize};

/// How pages are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// Each as likely as any other.
    Uniform,
    /// Page number k (from 1) in order of heat, in proportion to 1/k^theta.
    Zipf {
        theta: f64,
        /// The order of heat is that of addresses; else a fixed permutation of it.
        clustered: bool,
    },
}

/// A pattern over a number of pages.
pub struct Pages {
    count: u64,
    zipf: Option<Zipf>,
    scramble: Option<Permutation>,
}

impl Pages {
    /// Over `count` pages (at least 1).
    pub fn new(pattern: Pattern, count: u64) -> Pages {
        let count = count.max(1);
        let (zipf, clustered) = match pattern {
            Pattern::Uniform => (None, true),
            Pattern::Zipf { theta, clustered } => (Some(Zipf::new(count, theta)), clustered),
        };
        Pages {
            count,
            zipf,
            scramble: (!clustered).then(|| Permutation::new(count)),
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

/// A number below `n`; the bias is below n/2^64.
pub fn below(n: u64, random: &mut u64) -> u64 {
    ((u128::from(next_random(random)) * u128::from(n)) >> 64) as u64
}

/// Zipf's law exactly, for any skew, without a table: rejection-inversion (Hörmann and Derflinger, "Rejection-inversion
/// to generate variates from monotone discrete distributions", ACM TOMACS 6(3), 1996), in the form of Apache Commons RNG.
struct Zipf {
    count: f64,
    theta: f64,
    /// Integrals of the hat at the two ends.
    first: f64,
    last: f64,
    /// How far below a number's middle it is accepted without looking closer.
    safe: f64,
}

impl Zipf {
    fn new(count: u64, theta: f64) -> Zipf {
        let mut zipf = Zipf {
            count: count as f64,
            theta,
            first: 0.0,
            last: 0.0,
            safe: 0.0,
        };
        zipf.first = zipf.integral(1.5) - 1.0;
        zipf.last = zipf.integral(zipf.count + 0.5);
        zipf.safe = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.weight(2.0));
        zipf
    }

    /// From 1 to `count`.
    fn next(&self, random: &mut u64) -> u64 {
        loop {
            let unit = (next_random(random) >> 11) as f64 / (1u64 << 53) as f64;
            let u = self.last + unit * (self.first - self.last);
            let x = self.inverse(u);
            let k = (x + 0.5).floor().clamp(1.0, self.count);
            if k - x <= self.safe || u >= self.integral(k + 0.5) - self.weight(k) {
                return k as u64;
            }
        }
    }

    fn weight(&self, x: f64) -> f64 {
        (-self.theta * x.ln()).exp()
    }

    /// Of `weight`, from 1 to x: (x^(1-theta) - 1) / (1 - theta), ln x where theta is 1.
    fn integral(&self, x: f64) -> f64 {
        let log = x.ln();
        let t = (1.0 - self.theta) * log;
        // exp_m1(t) / t, also near 0.
        let ratio = if t.abs() > 1e-8 {
            t.exp_m1() / t
        } else {
            1.0 + t / 2.0
        };
        ratio * log
    }

    fn inverse(&self, y: f64) -> f64 {
        // Rounding must not take the logarithm below its domain.
        let t = (y * (1.0 - self.theta)).max(-1.0);
        let ratio = if t.abs() > 1e-8 {
            t.ln_1p() / t
        } else {
            1.0 - t / 2.0
        };
        (ratio * y).exp()
    }
}

/// A fixed permutation of 0..count that looks random: a Feistel network of four rounds over the next power of four,
/// applied again while the result is not below `count` (cycle walking: Black and Rogaway, 2002).
struct Permutation {
    count: u64,
    half_bits: u32,
}

impl Permutation {
    fn new(count: u64) -> Permutation {
        let bits = 64 - count.saturating_sub(1).leading_zeros();
        Permutation {
            count,
            half_bits: bits.div_ceil(2).max(1),
        }
    }

    fn of(&self, mut n: u64) -> u64 {
        // A cycle leads back to n itself, which is below `count`.
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
            (left, right) = (right, left ^ (next_random(&mut state) & mask));
        }
        (left << self.half_bits) | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
                let pages = Pages::new(
                    Pattern::Zipf {
                        theta,
                        clustered: true,
                    },
                    count,
                );
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
        let pages = Pages::new(
            Pattern::Zipf {
                theta: 1.0,
                clustered: true,
            },
            count,
        );
        let mut random = 3;
        let near = (0..1000).filter(|_| pages.next(&mut random) < hot).count();
        assert!(near > 500, "{near}");
    }

    #[test]
    fn the_same_seed_gives_the_same_pages() {
        let pages = Pages::new(
            Pattern::Zipf {
                theta: 0.9,
                clustered: false,
            },
            12_345,
        );
        let draw =
            |mut random: u64| -> Vec<u64> { (0..100).map(|_| pages.next(&mut random)).collect() };
        assert_eq!(draw(5), draw(5));
        assert_ne!(draw(5), draw(6));
        assert!(draw(5).iter().all(|p| *p < 12_345));
    }
}
