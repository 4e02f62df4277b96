//! Writers of swap make room for readers that wait too long, and only then.

use crate::util::*;
use hugeswap::Pool;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

tests! {
    slow_reads_slow_writers_down,
    throttling_can_be_off,
}

const PAGE: usize = 4096;
const WORDS: usize = PAGE / 8;

/// One thread writes all of a region three times as large as memory, again and again. Another reads
/// random pages of a region twice as large as memory. The device takes some tens of milliseconds
/// for everything. Ends when `enough` is true, or after `most`. The bytes that are read must be
/// right.
fn read_and_write(settings: &[&str], enough: impl Fn(&Pool) -> bool, most: Duration) -> Pool {
    let slow = [
        "debug.fault_seed=5",
        "debug.fault_hang=1000000",
        "debug.fault_hang_ms=60",
        "thp.swapin=never",
        // What is written is to be written whole.
        "thp.defrag=always",
    ];
    let settings = slow.iter().chain(settings);
    let pool = settings
        .fold(builder(32), |b, s| b.set(*s))
        .build()
        .unwrap();
    let r = pool.region(96 * MIB).unwrap();
    let read = pool.region(64 * MIB).unwrap();
    fill(&read, 1);
    let end = Instant::now() + most;
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            for g in 2.. {
                for (i, word) in words(&r).iter().enumerate() {
                    if stop.load(Relaxed) {
                        return;
                    }
                    word.store(value(i, g), Relaxed);
                }
            }
        });
        let mut x = 1u64;
        while !enough(&pool) && Instant::now() < end {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            let page = x as usize % (read.len() / PAGE);
            let got = words(&read)[page * WORDS].load(Relaxed);
            assert_eq!(got, value(page * WORDS, 1));
        }
        stop.store(true, Relaxed);
    });
    drop((r, read));
    pool
}

fn throttled(pool: &Pool) -> u64 {
    counter(pool, "swap_write_throttled")
}

fn slow_reads_slow_writers_down() {
    need_pages();
    let some = |pool: &Pool| throttled(pool) > 3;
    let pool = read_and_write(&[], some, Duration::from_secs(60));
    assert!(some(&pool), "{} after a minute", throttled(&pool));
}

fn throttling_can_be_off() {
    need_pages();
    let pool = read_and_write(&["swap.wbt_lat_usec=0"], |_| false, Duration::from_secs(3));
    assert_eq!(throttled(&pool), 0);
}
