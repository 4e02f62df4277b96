//! What the words of a worker's memory hold, and how a wrong word is found.
//!
//! The word at index `i` holds `seed(task, round) + i * K`: a function of its address, of the task
//! and of the round in which it was written. It does not compress. Where memory is to compress N
//! times, the last of each [`RUN`] words, all but one of N, are as the one before them.

use hugeswap_support::random::{STEP as K, next};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// Bytes of a huge page.
pub const UNIT: usize = hugeswap_policy::UNIT_BYTES as usize;
/// Bytes of a base page.
pub const PAGE: usize = hugeswap_policy::PAGE_BYTES as usize;

/// Memory does not hold what was written.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Corrupt(pub String);

/// What the words of a task start from in a round; never 0, so that a page of zeros is always
/// wrong.
pub fn seed(task: u32, round: u32) -> u64 {
    let mut state = (u64::from(task) << 32 | u64::from(round)).wrapping_add(1);
    next(&mut state) | 1
}

/// Words of a run.
const RUN: usize = 64;
/// The words of each run, from its first on, that differ. Of the process: a task's memory is of one
/// kind.
static DIFFERENT: AtomicUsize = AtomicUsize::new(RUN);

/// From now on memory compresses so many times, about.
pub fn compress(times: u32) {
    DIFFERENT.store((RUN / times.max(1) as usize).max(1), Relaxed);
}

/// The word at byte `at`.
pub fn first_value(seed: u64, at: usize) -> u64 {
    value(seed, at / 8, DIFFERENT.load(Relaxed))
}

fn value(seed: u64, i: usize, different: usize) -> u64 {
    let in_run = (i % RUN).min(different - 1);
    seed.wrapping_add(((i - i % RUN + in_run) as u64).wrapping_mul(K))
}

/// Writes consecutive words, the first of which is `first` and begins a run, or all is in one.
pub fn fill(bytes: &mut [u8], first: u64) {
    fill_with(bytes, first, DIFFERENT.load(Relaxed));
}

fn fill_with(bytes: &mut [u8], first: u64, different: usize) {
    let mut begin = first;
    for run in bytes.as_chunks_mut::<8>().0.chunks_mut(RUN) {
        let mut value = begin;
        for (i, word) in (1..).zip(run) {
            *word = value.to_ne_bytes();
            if i < different {
                value = value.wrapping_add(K);
            }
        }
        begin = begin.wrapping_add(K.wrapping_mul(RUN as u64));
    }
}

/// Index of the first word that is not what [`fill`] wrote.
pub fn differs(bytes: &[u8], first: u64) -> Option<usize> {
    differs_from(bytes, first, DIFFERENT.load(Relaxed))
}

fn differs_from(bytes: &[u8], first: u64, different: usize) -> Option<usize> {
    let words = bytes.as_chunks::<8>().0;
    let mut begin = first;
    let mut difference = 0;
    for run in words.chunks(RUN) {
        let mut value = begin;
        for (i, word) in (1..).zip(run) {
            difference |= u64::from_ne_bytes(*word) ^ value;
            if i < different {
                value = value.wrapping_add(K);
            }
        }
        begin = begin.wrapping_add(K.wrapping_mul(RUN as u64));
    }
    if difference == 0 {
        return None;
    }
    let right = |i: usize| value(first, i, different).to_ne_bytes();
    // A word that was wrong a moment ago and is right now counts as wrong all the same.
    Some(
        (0..words.len())
            .find(|&i| words[i] != right(i))
            .unwrap_or(0),
    )
}

/// Runs `check` for each of `threads` threads, thread 0 being this one. Returns the byte of a wrong
/// word if one of them found one.
pub fn search(threads: usize, check: impl Fn(usize) -> Option<usize> + Sync) -> Option<usize> {
    std::thread::scope(|s| {
        let check = &check;
        let others: Vec<_> = (1..threads).map(|n| s.spawn(move || check(n))).collect();
        let mine = check(0);
        let others = others.into_iter();
        others.fold(mine, |found, t| found.or(t.join().unwrap_or(Some(0))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ways_to_write_a_word_agree() {
        for different in [1, 21, RUN] {
            let mut bytes = vec![0; PAGE];
            let first = value(7, 3 * PAGE / 8, different);
            fill_with(&mut bytes, first, different);
            for (i, word) in bytes.as_chunks::<8>().0.iter().enumerate() {
                let right = value(7, 3 * PAGE / 8 + i, different);
                assert_eq!(u64::from_ne_bytes(*word), right, "{i} of {different}");
            }
            assert_eq!(differs_from(&bytes, first, different), None);
            bytes[PAGE - 1] ^= 1;
            let last = Some(PAGE / 8 - 1);
            assert_eq!(differs_from(&bytes, first, different), last);
        }
    }
}
