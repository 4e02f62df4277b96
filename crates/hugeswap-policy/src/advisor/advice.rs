//! A recommendation for the budget of a pool: pages that would come back from swap by budget, and
//! which budget to choose.

use super::Tally;
use super::curve::Curve;
use crate::{PAGE_BYTES, UNIT_BYTES};

/// Budgets of the curve, as multiples of the present one.
const BUDGETS: [f64; 21] = [
    0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0, 1.125, 1.25, 1.375, 1.5, 1.625, 1.75, 1.875, 2.0,
    2.25, 2.5, 2.75, 3.0, 3.5, 4.0,
];
/// If no larger share of the pages would come back, more memory is of no use.
const NOTHING: f64 = 0.01;
/// A saving below this share is not worth a recommendation.
const WORTH: f64 = 0.1;
/// A budget that saves this share of what the largest one saves is enough.
const ENOUGH: f64 = 0.8;
/// A program is said to thrash when so many times as many pages come back.
const THRASH: f64 = 3.0;

/// One point of the curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// The budget in bytes; whole units.
    pub memory_bytes: u64,
    /// Base pages that would have come back from swap; for the present budget, those that did.
    pub pages_in: u64,
    /// The point is an estimate: not the present budget.
    pub estimated: bool,
}

/// The recommendation for a pool's budget. It covers the pool's whole life, as if that went on in
/// the same way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// The curve, smallest budget first, from the smallest that can be estimated.
    pub points: Vec<Point>,
    /// Index of the budget that saves most of what can be saved, if any saves much.
    pub suggested: Option<usize>,
    /// With a budget below this number of bytes, at least three times as many pages would come
    /// back. `None` if that is unknown, or true of no budget on the curve.
    pub thrash_below: Option<u64>,
}

impl Advice {
    /// The recommendation for a budget of `memory_bytes` with `pages_in` base pages read from swap,
    /// or `None` if too few came back to tell.
    pub fn new(tally: &Tally<'_>, pages_in: u64, memory_bytes: u64) -> Option<Advice> {
        let curve = Curve::new(tally, pages_in, memory_bytes / PAGE_BYTES)?;
        let mut points: Vec<Point> = Vec::with_capacity(BUDGETS.len());
        let mut thrash_below = None;
        for budget in BUDGETS {
            let whole = (memory_bytes as f64 * budget / UNIT_BYTES as f64).round() as u64;
            let bytes = whole.max(1) * UNIT_BYTES;
            let estimated = budget != 1.0;
            let Some(share) = curve.at(budget) else {
                continue;
            };
            points.push(Point {
                memory_bytes: if estimated { bytes } else { memory_bytes },
                pages_in: if estimated {
                    (pages_in as f64 * share).round() as u64
                } else {
                    pages_in
                },
                estimated,
            });
            if budget < 1.0 && share >= THRASH {
                thrash_below = Some(bytes);
            }
            if budget > 1.0 && share <= NOTHING {
                break;
            }
        }
        let suggested = suggested(&points, pages_in);
        Some(Advice {
            points,
            suggested,
            thrash_below,
        })
    }

    /// The budget that saves most of what can be saved, and the share of the pages in that it
    /// saves.
    pub fn suggestion(&self) -> Option<(Point, f64)> {
        let now = self.points.iter().find(|p| !p.estimated)?;
        let point = *self.points.get(self.suggested?)?;
        Some((point, saved(&point, now.pages_in)))
    }
}

fn saved(point: &Point, pages_in: u64) -> f64 {
    1.0 - point.pages_in as f64 / pages_in.max(1) as f64
}

/// The knee of the curve above the present budget: the point where the saving, as a share of that
/// of the last point, is furthest ahead of the cost, as a share of the last cost (Satopaa,
/// Albrecht, Irwin and Raghavan, "Finding a 'kneedle' in a haystack", 2011). On a curve without a
/// knee, the first budget that saves most.
fn suggested(points: &[Point], pages_in: u64) -> Option<usize> {
    let now = points.iter().position(|p| !p.estimated)?;
    let last = points.last()?;
    let most = saved(last, pages_in);
    if most < WORTH || points.len() == now + 1 {
        return None;
    }
    let cost = |p: &Point| {
        let more = |p: &Point| p.memory_bytes.saturating_sub(points[now].memory_bytes) as f64;
        more(p) / more(last).max(1.0)
    };
    let ahead = |p: &Point| saved(p, pages_in) / most - cost(p);
    let above = || (now + 1..points.len()).map(|i| (i, ahead(&points[i])));
    let (knee, by) = above().max_by(|a, b| a.1.total_cmp(&b.1))?;
    if by > 0.2 && saved(&points[knee], pages_in) >= WORTH {
        return Some(knee);
    }
    let enough = |i: &usize| saved(&points[*i], pages_in) >= ENOUGH * most;
    (now + 1..points.len()).find(enough)
}

#[cfg(test)]
mod tests {
    use super::super::{LEFT_WHOLE, WORDS, whole_back};
    use super::*;
    use crate::UNIT_PAGES;

    /// Units that all come back at the same distance, as a multiple of memory.
    fn looped(distance: f64) -> Option<Advice> {
        let memory = 500 * UNIT_PAGES;
        let mut words = [0; WORDS];
        let away = (memory as f64 * distance) as u64;
        words[whole_back(away, memory)] = 1000 * UNIT_PAGES;
        words[LEFT_WHOLE] = 1000 * UNIT_PAGES;
        Advice::new(&Tally::new(&words), 1000 * UNIT_PAGES, 1000 << 20)
    }

    #[test]
    fn a_loop_is_to_get_what_it_takes() {
        // Memory and the distance together, or the budget just before, where that saves nearly as
        // much.
        for (distance, mib, least) in [
            (0.1, 1126, 0.99),
            (0.45, 1500, 0.99),
            (0.9, 1876, 0.96),
            (2.6, 3500, 0.93),
        ] {
            let advice = looped(distance).unwrap();
            let (point, saved) = advice.suggestion().unwrap();
            assert_eq!(point.memory_bytes >> 20, mib, "{distance}: {advice:?}");
            assert!(saved > least, "{distance}: {saved}");
            assert_eq!(advice.points[0].memory_bytes, 1000 << 20, "nothing below");
            assert_eq!(advice.points[0].pages_in, 1000 * UNIT_PAGES);
            assert!(!advice.points[0].estimated && advice.points[1].estimated);
            assert_eq!(advice.thrash_below, None);
        }
    }

    #[test]
    fn what_never_fits_gets_no_suggestion() {
        let advice = looped(60.0).unwrap();
        assert_eq!(advice.suggested, None, "{advice:?}");
        assert_eq!(advice.points.len(), 15);
    }
}
