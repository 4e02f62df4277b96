//! Whole units are tried where several threads wait for faults at a time, and only there.

use crate::util::*;
use hugeswap::{Pool, Region};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

tests! {
    whole_units_are_tried_for_two_threads_that_wait,
    whole_units_are_not_tried_for_one,
}

const PAGE: usize = 4096;
const WORDS: usize = PAGE / 8;

/// Threads that read pages at random, each of a region twice as large as memory, and wait two
/// milliseconds for each. Ends when `enough` is true, or after `most`. What they read must be right.
fn read_at_random(threads: u64, enough: impl Fn(&Pool) -> bool, most: Duration) -> u64 {
    let slow = [
        "debug.fault_seed=5",
        "debug.fault_hang=1000000",
        "debug.fault_hang_ms=2",
    ];
    let pool = slow.iter().fold(builder(32), |b, s| b.set(*s));
    let pool = pool.build().unwrap();
    let regions: Vec<Region> = (0..threads)
        .map(|_| pool.region(64 * MIB).unwrap())
        .collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        for (r, seed) in regions.iter().zip(1u64..) {
            fill(r, seed);
            let stop = &stop;
            s.spawn(move || {
                let mut x = seed;
                while !stop.load(Relaxed) {
                    x ^= x << 13;
                    x ^= x >> 7;
                    x ^= x << 17;
                    let at = x as usize % (r.len() / PAGE) * WORDS;
                    assert_eq!(words(r)[at].load(Relaxed), value(at, seed));
                }
            });
        }
        let end = Instant::now() + most;
        while !enough(&pool) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(50));
        }
        stop.store(true, Relaxed);
    });
    counter(&pool, "thp_swpin_trial")
}

fn whole_units_are_tried_for_two_threads_that_wait() {
    need_base_pages();
    let tried = |pool: &Pool| counter(pool, "thp_swpin_trial") > 0;
    let trials = read_at_random(2, tried, Duration::from_secs(90));
    assert!(trials > 0, "none in 90 seconds");
}

fn whole_units_are_not_tried_for_one() {
    need_base_pages();
    let trials = read_at_random(1, |_| false, Duration::from_secs(6));
    assert_eq!(trials, 0);
}
