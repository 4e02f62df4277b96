//! What the words of a worker's memory hold, and how a wrong word is found.
//!
//! The word at index `i` holds `seed(task, round) + i * K`: a function of its address, of the task
//! and of the round in which it was written. It does not compress.

use hugeswap_support::random::{STEP as K, next};

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

/// The word at byte `at`.
pub fn first_value(seed: u64, at: usize) -> u64 {
    seed.wrapping_add((at as u64 / 8).wrapping_mul(K))
}

/// Writes consecutive words, the first of which is `first`.
pub fn fill(bytes: &mut [u8], first: u64) {
    let mut value = first;
    for word in bytes.as_chunks_mut::<8>().0 {
        *word = value.to_ne_bytes();
        value = value.wrapping_add(K);
    }
}

/// Index of the first word that is not what [`fill`] wrote.
pub fn differs(bytes: &[u8], first: u64) -> Option<usize> {
    let words = bytes.as_chunks::<8>().0;
    let mut value = first;
    let mut difference = 0;
    for word in words {
        difference |= u64::from_ne_bytes(*word) ^ value;
        value = value.wrapping_add(K);
    }
    if difference == 0 {
        return None;
    }
    let right = |i: usize| first_value(first, i * 8).to_ne_bytes();
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
