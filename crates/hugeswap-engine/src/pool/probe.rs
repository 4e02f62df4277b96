//! What transfers of a swap area cost, measured when it is turned on, so that the first faults need
//! not go by a guess.
//!
//! A unit of noise is written to the area's first cluster, which is not in use yet (blocks that are
//! reserved and never written would read as zeros without asking the device). Parts of it are read
//! back: a few transfers of each size, medians, within a time limit. From then on the costs follow
//! the transfers that faults make.

use super::layout::AreaCosts;
use crate::UNIT;
use hugeswap_policy::swapin::granularity::PerSize;
use hugeswap_policy::{PAGE_BYTES, UNIT_BYTES};
use hugeswap_sys::{Errno, Result, fs, mm, now_ns};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// No transfer is begun after that, but for one of each of the small sizes.
const LIMIT_NS: u64 = 15_000_000;
const SIZES: [u64; 3] = [PAGE_BYTES, 16 * PAGE_BYTES, UNIT_BYTES];
/// Transfers of each size, if there is time for so many.
const READS: [usize; 3] = [5, 3, 2];
const WRITES: [usize; 3] = [1, 1, 1];
const MOST: usize = 5;

/// Nanoseconds of a transfer of each size in, and out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// From swap to memory.
    pub r#in: PerSize,
    /// From memory to swap.
    pub out: PerSize,
}

/// Measures the area behind `fd`, the first 2 MiB of which are not in use yet. `None` if it fails.
pub fn measure(fd: i32) -> Option<Measured> {
    let buffer = mm::map_own(UNIT, mm::PROT_RW).ok()?;
    // SAFETY: just mapped, and long enough.
    let words = unsafe { std::slice::from_raw_parts_mut(buffer as *mut u64, UNIT / 8) };
    let mut x = 0x9e37_79b9_7f4a_7c15u64;
    for w in words {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        *w = x;
    }
    let measured = measure_with(fd, buffer);
    // SAFETY: mapped above, used by this thread only.
    let _ = unsafe { mm::unmap(buffer, UNIT) };
    measured
}

fn measure_with(fd: i32, buffer: usize) -> Option<Measured> {
    let start = now_ns();
    match fs::allocate(fd, 0, UNIT_BYTES) {
        Ok(()) | Err(Errno::EOPNOTSUPP) => {}
        Err(_) => return None,
    }
    let write = |len: usize, at: u64| -> Result<()> {
        // SAFETY: within the buffer.
        unsafe { fs::write_all_at(fd, buffer, len, at) }
    };
    let read = |len: usize, at: u64| -> Result<()> {
        // SAFETY: as above.
        unsafe { fs::read_exact_at(fd, buffer, len, at) }
    };
    // The first transfer also turns blocks that were only reserved into written ones. Where there
    // is no time for more of its size, it says roughly what they take.
    let before = now_ns();
    write(UNIT, 0).ok()?;
    let first = now_ns() - before;
    let r#in = medians(start, first, READS, read)?;
    let out = medians(start, first, WRITES, write)?;
    Some(Measured { r#in, out })
}

/// `first`: what a transfer of 2 MiB took already. `None` if one fails.
fn medians(
    start: u64,
    first: u64,
    times: [usize; 3],
    transfer: impl Fn(usize, u64) -> Result<()>,
) -> Option<PerSize> {
    let mut medians = [0u32; 3];
    for ((median, bytes), times) in medians.iter_mut().zip(SIZES).zip(times) {
        let mut took = [first; MOST];
        let mut n = 0;
        let small = bytes < UNIT_BYTES;
        while n < times && (small && n == 0 || now_ns() - start < LIMIT_NS) {
            // Apart from each other, so that none is ahead of the next.
            let at = (n as u64 * 7 + 3) * SIZES[1] * 5 % UNIT_BYTES;
            let at = if bytes == UNIT_BYTES { 0 } else { at };
            let before = now_ns();
            transfer(bytes as usize, at).ok()?;
            took[n] = now_ns() - before;
            n += 1;
        }
        took[..n].sort_unstable();
        *median = u32::try_from(took[n / 2]).ok()?.max(1);
    }
    let [page, piece, whole] = medians;
    Some(PerSize { page, piece, whole })
}

impl AreaCosts {
    /// Says what was measured, for every process of the pool.
    pub fn store(&self, m: Measured) {
        let ways = self.ns.iter().zip([m.r#in, m.out]);
        for (cells, PerSize { page, piece, whole }) in ways {
            for (cell, ns) in cells.iter().zip([page, piece, whole]) {
                cell.store(ns, Relaxed);
            }
        }
        self.measured.store(1, Release);
    }

    /// What was measured, if anything was.
    pub fn load(&self) -> Option<Measured> {
        let [r#in, out] = self.ns.each_ref().map(|way| {
            let [page, piece, whole] = way.each_ref().map(|c| c.load(Relaxed));
            PerSize { page, piece, whole }
        });
        (self.measured.load(Acquire) == 1).then_some(Measured { r#in, out })
    }
}

/// One device's worth of several: the mean of each figure.
pub fn mean(all: &[Measured]) -> Option<Measured> {
    let n = all.len() as u64;
    let of = |figure: &dyn Fn(&Measured) -> u32| {
        let sum: u64 = all.iter().map(|m| u64::from(figure(m))).sum();
        sum.checked_div(n).map(|mean| mean as u32)
    };
    let way = |way: fn(&Measured) -> PerSize| {
        Some(PerSize {
            page: of(&|m| way(m).page)?,
            piece: of(&|m| way(m).piece)?,
            whole: of(&|m| way(m).whole)?,
        })
    };
    Some(Measured {
        r#in: way(|m| m.r#in)?,
        out: way(|m| m.out)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::swap::{SwapSpec, open_area};

    #[test]
    fn an_area_is_measured() {
        let mut spec = SwapSpec::new("/var/tmp");
        spec.size = Some(4 << 20);
        let area = open_area(&spec).unwrap();
        // A disk may be too slow on a busy machine: then nothing is said.
        if let Some(Measured { r#in, out }) = measure(area.fd) {
            for way in [r#in, out] {
                assert!(way.page > 0 && way.piece > 0 && way.whole > 0, "{way:?}");
            }
        }
        fs::close(area.fd);
        assert_eq!(measure(-1), None);
    }

    #[test]
    fn several_areas_are_their_mean() {
        let way = |page, piece, whole| PerSize { page, piece, whole };
        let a = Measured {
            r#in: way(10, 20, u32::MAX),
            out: way(1, 2, 3),
        };
        let b = Measured {
            r#in: way(30, 40, u32::MAX),
            out: way(3, 4, 6),
        };
        assert_eq!(mean(&[]), None);
        assert_eq!(mean(&[a]), Some(a));
        let both = mean(&[a, b]).unwrap();
        assert_eq!(both.r#in, way(20, 30, u32::MAX));
        assert_eq!(both.out, way(2, 3, 4));
    }
}
