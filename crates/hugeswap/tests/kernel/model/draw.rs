//! Numbers from a seed, and the ranges and bytes that operations work on.

use crate::util::UNIT;
use std::ops::Range;

const PAGE: usize = 4096;

/// A stream of numbers (splitmix64: Steele, Lea and Flood, "Fast splittable pseudorandom number
/// generators", 2014).
pub struct Draw(u64);

impl Draw {
    pub fn new(seed: u64) -> Draw {
        Draw(seed.wrapping_mul(0xd134_2543_de82_ef95))
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn within(&mut self, r: Range<u64>) -> u64 {
        r.start + self.below(r.end - r.start)
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn of<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }

    /// A part of `size` bytes: a byte, a few across a border, pages, parts of units, whole units,
    /// several.
    pub fn part(&mut self, size: usize) -> Range<usize> {
        let n = |d: &mut Draw, most: usize| 1 + d.below(most as u64) as usize;
        let (start, len) = match self.below(12) {
            0 | 1 => (self.byte(size), 1),
            2 => (self.byte(size), 8),
            3 => (
                self.border(size, UNIT).saturating_sub(n(self, 4)),
                n(self, 8),
            ),
            4 => (
                self.border(size, PAGE).saturating_sub(n(self, 4)),
                n(self, 8),
            ),
            5 | 6 => (self.border(size, PAGE), PAGE * n(self, 3)),
            7 => (self.border(size, 16 * PAGE), PAGE * n(self, 40)),
            8 => (self.byte(size), n(self, UNIT)),
            9 => (self.border(size, UNIT), UNIT),
            10 => (self.border(size, UNIT), UNIT * n(self, 4)),
            _ => (self.byte(size), n(self, 5 * UNIT)),
        };
        let start = start.min(size - 1);
        start..(start + len).min(size)
    }

    fn byte(&mut self, size: usize) -> usize {
        self.below(size as u64) as usize
    }

    fn border(&mut self, size: usize, of: usize) -> usize {
        self.byte(size) / of * of
    }

    /// New bytes for a model: noise, one value, zeros, or a byte in each page changed.
    pub fn fill(&mut self, to: &mut [u8]) {
        match self.below(6) {
            0 => to.fill(0),
            1 => to.fill(self.next() as u8),
            2 => {
                let b = self.next() as u8;
                to.iter_mut()
                    .step_by(PAGE)
                    .for_each(|x| *x = x.wrapping_add(b));
            }
            _ => {
                let mut x = self.next() | 1;
                for c in to.chunks_mut(8) {
                    x ^= x << 13;
                    x ^= x >> 7;
                    x ^= x << 17;
                    c.copy_from_slice(&x.to_le_bytes()[..c.len()]);
                }
            }
        }
    }
}
