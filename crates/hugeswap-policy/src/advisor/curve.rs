//! The curve of a [`Tally`]: how many pages would come back from swap with other budgets.
//!
//! **Base pages** that are used independently of each other. How long pages are away tells how
//! often they are used: the distances are decomposed into rates ([`Rates`]). Each turn through
//! memory takes the pages of a unit, used or not, except those that came back so soon that they are
//! spared for some turns ([`crate::workingset::lives`]). So with rate `r`, if turns take `T`, a
//! page comes back once every `T / (1 - exp(-r T))`, and later by `T` for each turn that it is
//! spared; it is in memory for all of that time except `1 / r`. Each `T` is one point of the curve,
//! below the present budget and above; the present budget has the `T` at which memory holds what it
//! does. (Such models of caches are Fagin's, "Asymptotic miss ratios over independent references",
//! 1977, and Che's, "Hierarchical web caching systems", 2002.)
//!
//! **Whole units** that come back tell how long they were away. Memory larger by `m` pages keeps a
//! unit for as long as `m` pages take to leave, without those that come back meanwhile (Hu, Wang,
//! Zhou, Luo, Ding, Jiang and Wang, "Kinetic modeling of data eviction in cache", USENIX ATC 2016).
//! Beyond that time the active list keeps its units, however long ago they were used
//! ([`crate::workingset::lruvec`]), as long as no unit that comes back soon takes their place.
//! Touches of whole units in memory are not seen, so nothing can be said of smaller budgets. The
//! same holds for base pages that all come back after about the same time, in a loop.
//!
//! All of it assumes that programs go on in the same way.

use super::{BUCKETS, LEFT_PAGED, LEFT_WHOLE, PAGED, Tally, WHOLE, begins};
use crate::UNIT_PAGES;
use crate::workingset::MOST_LIVES;
use crate::workingset::vmscan;

/// Pages that must have come back one by one for an estimate.
const ENOUGH_PAGED: f64 = 1000.0;
/// Pages that must have come back with whole units for an estimate.
const ENOUGH_WHOLE: f64 = 24.0 * UNIT_PAGES as f64;
/// Largest share of the returned pages that may have come in a way of which too little is known.
const UNKNOWN: f64 = 0.05;
/// Largest share of pages that left with whole units for which smaller budgets are estimated.
const WHOLE_OUT_MAX: f64 = 0.25;
/// The distances of a loop: the ninth tenth is no further than this from the first. (Of independent
/// uses of one rate it is 22 times as far.)
const LOOP: f64 = 4.0;

/// Pages that would come back, as shares of those that did.
#[derive(Clone, Debug)]
pub struct Curve {
    paged: Option<Model>,
    whole: Option<Model>,
    /// Share of the returned pages that came by base pages.
    share: f64,
    below: bool,
}

#[derive(Clone, Debug)]
enum Model {
    Rates(Rates),
    Distances(Distances),
}

impl Model {
    fn at(&self, budget: f64) -> f64 {
        match self {
            Model::Rates(m) => m.at(budget),
            Model::Distances(m) if budget > 1.0 => m.at(budget),
            Model::Distances(_) => 1.0,
        }
    }
}

impl Curve {
    /// The curve of a tally. `pages_in` were read from swap in all, with a budget of `memory`
    /// pages. `None` if too few came back to tell. tell.
    pub fn new(tally: &Tally<'_>, pages_in: u64, memory: u64) -> Option<Curve> {
        let paged = Distances::new(tally, PAGED, LEFT_PAGED, memory);
        let whole = Distances::new(tally, WHOLE, LEFT_WHOLE, memory);
        let paged_in = (pages_in as f64 - whole.all).max(0.0);
        let share = paged_in / (paged_in + whole.all).max(1.0);
        let (out, whole_out) = (paged.out, whole.out);
        let paged = (paged.all >= ENOUGH_PAGED).then(|| match paged.is_loop() {
            true => Model::Distances(paged),
            false => Model::Rates(Rates::new(&paged.back)),
        });
        let whole = (whole.all >= ENOUGH_WHOLE).then_some(Model::Distances(whole));
        if share > UNKNOWN && paged.is_none() || 1.0 - share > UNKNOWN && whole.is_none() {
            return None;
        }
        let below = matches!(paged, Some(Model::Rates(_)));
        Some(Curve {
            below: below && whole_out <= WHOLE_OUT_MAX * (whole_out + out),
            paged,
            whole,
            share,
        })
    }

    /// Pages in with `budget` times the present budget, for each page in now, or `None` if that is
    /// unknown.
    pub fn at(&self, budget: f64) -> Option<f64> {
        if !(budget > 0.0 && budget.is_finite()) || budget < 1.0 && !self.below {
            return None;
        }
        let of = |m: &Option<Model>| m.as_ref().map_or(1.0, |m| m.at(budget));
        Some(of(&self.paged) * self.share + of(&self.whole) * (1.0 - self.share))
    }
}

/// Pages by how often they are used; see the module. Times and rates are in pages that leave;
/// memory is 1.
#[derive(Clone, Debug)]
struct Rates {
    /// Rates, and how many pages have each.
    pages: Vec<(f64, f64)>,
    /// Length of a turn with the present budget.
    turn: f64,
}

impl Rates {
    /// Number of rates: two for each doubling, from one use in 256 times memory on.
    const CLASSES: i32 = 36;
    const SLOWEST: f64 = 1.0 / 256.0;
    /// Number of steps that improve the shares.
    const ROUNDS: usize = 200;
    /// Number of steps that make returned and spared pages agree.
    const REPEATS: usize = 6;

    /// The rates that explain the distances of returned pages best, by expectation maximisation
    /// (Dempster, Laird and Rubin, 1977).
    fn new(back: &[f64]) -> Rates {
        let rates: Vec<f64> = (0..Self::CLASSES)
            .map(|i| Self::SLOWEST * 2f64.powf(f64::from(i) / 2.0))
            .collect();
        let all: f64 = back.iter().sum();
        let mut shares = vec![1.0 / rates.len() as f64; rates.len()];
        // For each distance that occurs, its likelihood with each rate.
        let likely: Vec<(f64, Vec<f64>)> = (0..BUCKETS)
            .filter(|b| back[*b] > 0.0)
            .map(|b| {
                let beyond = |rate: f64, b: usize| match b {
                    BUCKETS => 0.0,
                    b => (-rate * begins(b)).exp(),
                };
                let each = rates.iter().map(|r| beyond(*r, b) - beyond(*r, b + 1));
                (back[b] / all, each.collect())
            })
            .collect();
        for _ in 0..Self::ROUNDS {
            let mut next = vec![0.0; shares.len()];
            for (seen, each) in &likely {
                let sum: f64 = each.iter().zip(&shares).map(|(p, s)| p * s).sum();
                for ((to, p), s) in next.iter_mut().zip(each).zip(&shares) {
                    *to += seen * p * s / sum.max(1e-300);
                }
            }
            shares = next;
        }
        // The turn at which the returned pages fill memory.
        let taken = |turn: f64| -> f64 {
            let each = rates.iter().zip(&shares);
            each.map(|(r, s)| s * (cycle(*r, turn, 1.0) - 1.0 / r))
                .sum()
        };
        let turn = solve(1.0, taken);
        let pages = rates.iter().zip(&shares);
        Rates {
            pages: pages.map(|(r, s)| (*r, s * cycle(*r, turn, 1.0))).collect(),
            turn,
        }
    }

    /// Memory in use, and pages that come back in a unit of time, with turns of this length and a
    /// budget of `memory`.
    fn with(&self, turn: f64, memory: f64) -> (f64, f64) {
        // What counts as soon depends on what comes back, and that on what is spared.
        let mut back = self.back(turn, memory);
        for _ in 0..Self::REPEATS {
            back = self.back(turn, memory / back.max(1e-9));
        }
        let window = memory / back.max(1e-9);
        let of = |(r, n): &(f64, f64)| n * (1.0 - 1.0 / (r * cycle(*r, turn, window)));
        (self.pages.iter().map(of).sum(), back)
    }

    fn back(&self, turn: f64, window: f64) -> f64 {
        let of = |(r, n): &(f64, f64)| n / cycle(*r, turn, window);
        self.pages.iter().map(of).sum()
    }

    fn at(&self, budget: f64) -> f64 {
        let all: f64 = self.pages.iter().map(|p| p.1).sum();
        if budget >= all {
            return 0.0;
        }
        let turn = solve(budget, |turn| self.with(turn, budget).0);
        self.with(turn, budget).1 / self.with(self.turn, 1.0).1
    }
}

/// How often a page with this rate comes back. `window` is the time in which returned pages fill
/// memory.
fn cycle(rate: f64, turn: f64, window: f64) -> f64 {
    let within = |time: f64| -(-rate * time).exp_m1();
    // As `workingset::lives`: one for a return within the window, another within half of it, and so
    // on; at most one turn later.
    let lives = (1..=MOST_LIVES).map(|n| within((window / f64::from(n)).min(turn)));
    turn * (1.0 / within(turn) + lives.sum::<f64>())
}

/// The point at which a growing function reaches a value.
fn solve(value: f64, f: impl Fn(f64) -> f64) -> f64 {
    let (mut low, mut high) = (1e-4f64, 1e5f64);
    for _ in 0..40 {
        let middle = (low * high).sqrt();
        if f(middle) < value {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

/// Returned whole units by how long they were away; see the module.
#[derive(Clone, Debug)]
struct Distances {
    /// Pages by bucket, and their sum.
    back: Vec<f64>,
    all: f64,
    /// Pages that left.
    out: f64,
    /// The present budget in pages.
    memory: f64,
}

impl Distances {
    fn new(tally: &Tally<'_>, back: usize, out: usize, memory: u64) -> Distances {
        let back: Vec<f64> = tally.distances(back).collect();
        let all = back.iter().sum();
        Distances {
            back,
            all,
            out: tally.pages(out).max(all),
            memory: memory as f64,
        }
    }

    fn is_loop(&self) -> bool {
        let at = |share: f64| {
            let mut sum = 0.0;
            let reached = self.back.iter().position(|n| {
                sum += n;
                sum >= share * self.all
            });
            begins(reached.unwrap_or(0))
        };
        at(0.1) > 0.0 && at(0.9) <= LOOP * at(0.1)
    }

    fn at(&self, budget: f64) -> f64 {
        let more = budget - 1.0;
        let (mut away, mut filled, mut left) = (self.out, 0.0, 0.0);
        let mut full = false;
        for (b, n) in self.back.iter().enumerate() {
            let (from, end) = (begins(b), begins(b + 1));
            let room = (end - from) * away / self.out;
            full |= filled + room > more;
            if full {
                left += n * self.kept_longer(f64::midpoint(from, end), budget);
            } else {
                filled += room;
                away -= n;
            }
        }
        left / self.all
    }

    /// The share of a budget that the active list gets.
    fn active(&self, budget: f64) -> f64 {
        let pages = (self.memory * budget).max(1.0);
        1.0 - vmscan::inactive_target(pages as u64) as f64 / pages
    }

    /// The returns of units that are away for `distance`, with a budget that does not hold them,
    /// for each return now. Units that are not made active, since they came too late or with the
    /// claim of a loop ([`crate::workingset::Duel`]), leave the active list alone, and it keeps as
    /// many of them as it has grown by.
    fn kept_longer(&self, distance: f64, budget: f64) -> f64 {
        if distance <= self.active(budget) * budget && !self.is_loop() {
            return 1.0;
        }
        let all = distance + 1.0;
        (all - self.kept(all, budget)) / (all - self.kept(all, 1.0))
    }

    /// The share of a loop over more than memory that is found in `memory`: the active units, and
    /// of the inactive list the more the nearer memory is to holding all, since then some granted
    /// claims pay off. (The square is what the lists do; it is not derived.)
    fn kept(&self, all: f64, memory: f64) -> f64 {
        let active = self.active(memory) * memory;
        let inactive = memory - active;
        let near = (1.0 - (all - memory) / inactive).clamp(0.0, 1.0);
        active + inactive * near * near
    }
}
