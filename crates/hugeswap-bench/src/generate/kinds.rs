//! Data of the kinds that programs hold, in pages: how short they become by compression is known for
//! each. The same pages in every run.

use super::words::PAGE;
use hugeswap_support::random::{below, next};

/// A page's bytes.
pub type Bytes = [u8; PAGE];

/// Name, and what writes on into a buffer from a state of random numbers.
type Kind = (&'static str, fn(&mut Vec<u8>, &mut u64));

/// All kinds, by name.
const KINDS: [Kind; 5] = [
    ("lines of a log", log_line),
    ("columns of numbers", column),
    ("heap of pointers and strings", node),
    ("random hexadecimal digits", digits),
    ("random bytes", |to, state| {
        to.extend(next(state).to_ne_bytes());
    }),
];

/// So many pages of each kind, with their names.
pub fn all(pages: usize) -> impl Iterator<Item = (&'static str, Vec<Bytes>)> {
    KINDS.iter().map(move |&(name, write)| {
        let mut state = 1;
        let mut bytes = Vec::with_capacity((pages + 1) * PAGE);
        while bytes.len() < pages * PAGE {
            write(&mut bytes, &mut state);
        }
        let (all, _) = bytes.as_chunks::<PAGE>();
        (name, all[..pages].to_vec())
    })
}

fn log_line(to: &mut Vec<u8>, state: &mut u64) {
    const LEVELS: [&str; 4] = ["DEBUG", "INFO ", "INFO ", "WARN "];
    const WORDS: [&str; 8] = [
        "accepted connection from",
        "request finished for",
        "cache miss, loading",
        "retrying after timeout:",
        "scheduled compaction of",
        "user logged in:",
        "flushed segment",
        "slow query on",
    ];
    let time = to.len() as u64 * 17 + below(1000, state);
    let line = format!(
        "2026-01-{:02}T{:02}:{:02}:{:02}.{:06}Z {} [worker-{}] {} item-{} took={}ms status={}\n",
        1 + time / 86_400_000 % 28,
        time / 3_600_000 % 24,
        time / 60_000 % 60,
        time / 1000 % 60,
        below(1_000_000, state),
        LEVELS[below(4, state) as usize],
        below(16, state),
        WORDS[below(8, state) as usize],
        below(1_000_000, state),
        below(400, state),
        [200, 200, 200, 404][below(4, state) as usize],
    );
    to.extend(line.bytes());
}

/// A part of a column: times that grow, prices in cents as doubles, or keys of 32 bits.
fn column(to: &mut Vec<u8>, state: &mut u64) {
    const LEN: usize = 64 << 10;
    match to.len() / LEN % 3 {
        0 => {
            let mut time = 1_700_000_000_000_000 + to.len() as u64;
            for _ in 0..LEN / 8 {
                time += below(2_000_000, state);
                to.extend(time.to_ne_bytes());
            }
        }
        1 => {
            let mut cents = 10_000 + below(100_000, state);
            for _ in 0..LEN / 8 {
                cents = cents.saturating_add(below(41, state)).saturating_sub(20);
                to.extend((cents as f64 / 100.0).to_ne_bytes());
            }
        }
        _ => {
            for _ in 0..LEN / 4 {
                // Small ones are frequent.
                let most = 1 + below(100_000, state);
                to.extend((below(most, state) as u32).to_ne_bytes());
            }
        }
    }
}

/// An object of a heap: its class, two others, a hash, a length and a short name.
fn node(to: &mut Vec<u8>, state: &mut u64) {
    const HEAP: u64 = 0x7f32_4000_0000;
    const CLASSES: u64 = 0x5581_2030_4000;
    let mut word = |n: u64| to.extend(n.to_ne_bytes());
    word(CLASSES + below(12, state) * 0x120);
    for _ in 0..2 {
        word(HEAP + below(1 << 26, state) * 16);
    }
    let name = format!("name{:06}", below(200_000, state));
    word(below(1 << 32, state) | (name.len() as u64) << 32);
    to.extend(name.bytes());
    to.extend([0; 16 - 10]);
}

/// A line of 32 digits.
fn digits(to: &mut Vec<u8>, state: &mut u64) {
    let line = format!("{:016x}{:016x}\n", next(state), next(state));
    to.extend(line.bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_of_the_length_asked_for_and_the_same_each_time() {
        let (one, other): (Vec<_>, Vec<_>) = (all(100).collect(), all(100).collect());
        assert_eq!(one, other);
        assert!(one.iter().all(|(_, pages)| pages.len() == 100));
        assert!(one.iter().all(|(_, pages)| pages[0] != pages[99]));
    }
}
