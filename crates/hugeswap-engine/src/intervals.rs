//! A set of addresses, kept as ranges that neither overlap nor touch.
//!
//! Every operation is O(log n) in the number of ranges, apart from the ranges it meets.
//! Not shareable: the owner locks.

use std::collections::BTreeMap;

/// Start to end of each range.
#[derive(Debug, Default)]
pub struct Intervals(BTreeMap<usize, usize>);

impl Intervals {
    /// No address.
    pub const fn new() -> Intervals {
        Intervals(BTreeMap::new())
    }

    /// Is it empty?
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds `[from, to)`; what of it is there already stays.
    pub fn insert(&mut self, from: usize, to: usize) {
        if from >= to {
            return;
        }
        let (mut start, mut end) = (from, to);
        while let Some((&s, &e)) = self.0.range(..=end).next_back() {
            if e < start {
                break;
            }
            self.0.remove(&s);
            start = start.min(s);
            end = end.max(e);
        }
        self.0.insert(start, end);
    }

    /// Takes `[from, to)` out, as far as it is there.
    pub fn remove(&mut self, from: usize, to: usize) {
        if from >= to {
            return;
        }
        while let Some((&s, &e)) = self.0.range(..to).next_back() {
            if e <= from {
                break;
            }
            self.0.remove(&s);
            if e > to {
                self.0.insert(to, e);
            }
            if s < from {
                self.0.insert(s, from);
                break;
            }
        }
    }

    /// What of `[from, to)` is in the set, as ranges (start, end), in order.
    pub fn within(&self, from: usize, to: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        let first = self
            .0
            .range(..from)
            .next_back()
            .filter(|&(_, &e)| e > from)
            .map_or(from, |(&s, _)| s);
        let met = self.0.range(first..to.max(first));
        met.map(move |(&s, &e)| (s.max(from), e.min(to)))
    }

    /// How many addresses of `[from, to)` are in the set.
    pub fn bytes_in(&self, from: usize, to: usize) -> usize {
        let met = self.0.range(..to).rev();
        met.take_while(|&(_, &e)| e > from)
            .map(|(&s, &e)| e.min(to) - s.max(from))
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a bitmap.
        #[test]
        fn agrees_with_a_bitmap(
            ops in prop::collection::vec((any::<bool>(), 0..256usize, 0..64usize), 1..100),
        ) {
            let mut set = Intervals::default();
            let mut bits = [false; 320];
            for (add, from, len) in ops {
                bits[from..from + len].fill(add);
                if add {
                    set.insert(from, from + len);
                } else {
                    set.remove(from, from + len);
                }
                for (from, to) in [(0, 320), (17, 100), (100, 101), (50, 50)] {
                    let want = bits[from..to].iter().filter(|&&b| b).count();
                    prop_assert_eq!(set.bytes_in(from, to), want);
                    let parts: Vec<_> = set.within(from, to).collect();
                    let within: usize = parts.iter().map(|(s, e)| e - s).sum();
                    prop_assert_eq!(within, want);
                    prop_assert!(parts.iter().all(|&(s, e)| from <= s && e <= to));
                    prop_assert!(parts.is_sorted());
                }
                let runs = bits.chunk_by(|a, b| a == b).filter(|r| r[0]).count();
                prop_assert_eq!(set.0.len(), runs);
            }
        }
    }
}
