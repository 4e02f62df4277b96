//! Whole units are tried where several threads wait for faults at a time, and only there.

use crate::util::*;
use hugeswap::{Pool, Region};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

tests! {
    whole_units_are_tried_for_two_threads_that_wait,
    whole_units_are_not_tried_for_one,
}

const PAGE: usize = 4096;
const WORDS: usize = PAGE / 8;

/// Threads that read pages at random, each of a region twice as large as memory, and wait two
/// milliseconds for each transfer, of whatever size; until `watch` returns. What they read must be
/// right.
fn read_at_random(threads: u64, watch: impl FnOnce(&Pool)) {
    let slow = [
        "debug.fault_seed=5",
        "debug.fault_hang=1000000",
        "debug.fault_hang_ms=2",
        // Where no whole unit is free who wants one waits.
        "thp.defrag=always",
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
        // (A failure of what watches must end the threads too.)
        let watched = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| watch(&pool)));
        stop.store(true, Relaxed);
        if let Err(failure) = watched {
            std::panic::resume_unwind(failure);
        }
    });
}

fn trials(pool: &Pool) -> u64 {
    counter(pool, "thp_swpin_trial")
}

fn whole_units_are_tried_for_two_threads_that_wait() {
    need_huge_pages();
    need_base_pages();
    read_at_random(2, |pool| {
        let whole = || counter(pool, "thp_swpin");
        let (mut before, mut pages) = (0, 0);
        until("whole units are tried", || {
            let (now, begun) = (whole(), trials(pool) > 0);
            pages = pool.stats().pswpin;
            if !begun {
                before = now;
            }
            begun
        });
        // By the rules a page displaces too much to bring its unit with it. (On a busy machine it
        // may take long until the trial.)
        let alone = pages.saturating_sub(before * 512);
        assert!(
            before * 50 < alone.max(2500),
            "{before} units, {alone} pages"
        );
        until("units come whole", || whole() >= 300);
    });
}

fn whole_units_are_not_tried_for_one() {
    need_base_pages();
    read_at_random(1, |pool| {
        std::thread::sleep(Duration::from_secs(8));
        assert_eq!(trials(pool), 0);
    });
}
