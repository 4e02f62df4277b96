//! Zipf's law exactly, for any skew, without a table: rejection-inversion (Hörmann and Derflinger,
//! "Rejection-inversion to generate variates from monotone discrete distributions", ACM TOMACS 6(3),
//! 1996), in the form of Apache Commons RNG.

use hugeswap_support::random::next;

/// The law for one skew and one number of ranks.
pub struct Zipf {
    count: f64,
    theta: f64,
    /// Integrals of the hat function at the two ends.
    first: f64,
    last: f64,
    /// How far below a rank's middle a draw is accepted without a closer look.
    safe: f64,
}

impl Zipf {
    /// Ranks from 1 to `count`.
    pub fn new(count: u64, theta: f64) -> Zipf {
        let (count, zero) = (count as f64, 0.0);
        let mut zipf = Zipf {
            count,
            theta,
            first: zero,
            last: zero,
            safe: zero,
        };
        zipf.first = zipf.integral(1.5) - 1.0;
        zipf.last = zipf.integral(zipf.count + 0.5);
        zipf.safe = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.weight(2.0));
        zipf
    }

    /// The next rank, from 1 to `count`.
    pub fn next(&self, random: &mut u64) -> u64 {
        loop {
            let unit = (next(random) >> 11) as f64 / (1u64 << 53) as f64;
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

    /// The integral of `weight` from 1 to x: (x^(1-theta) - 1) / (1 - theta), ln x where theta is 1.
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
