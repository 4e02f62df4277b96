//! Random units are evicted every few microseconds while threads write, read, do I/O and fork.

use crate::util::*;
use hugeswap::{FaultMode, Pool};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

tests! {
    #[long]
    storm_loses_no_write,
    #[long]
    storm_under_pressure,
    #[long]
    storm_over_pages,
    #[long]
    storm_over_pages_with_forks,
    #[long]
    storm_with_forks,
    #[long]
    storm_with_direct_io,
    storm_with_discards_and_moves,
}

const TIME: Duration = Duration::from_secs(3);

fn storming(memory: usize, mode: FaultMode) -> Pool {
    builder(memory)
        .fault_mode(mode)
        .set("debug.storm=20")
        .build()
        .unwrap()
}

/// Three threads increment their own words all over a region; no increment may be lost.
fn count_up(pool: &Pool, len: usize) {
    count_up_for(pool, len, TIME);
}

pub fn count_up_for(pool: &Pool, len: usize, time: Duration) {
    let r = pool.region(len).unwrap();
    let w = words(&r);
    let stop = Instant::now() + time;
    let totals: Vec<u64> = std::thread::scope(|s| {
        let threads: Vec<_> = (0..3usize)
            .map(|t| {
                s.spawn(move || {
                    let (mut n, mut k) = (0u64, t * 7919);
                    while Instant::now() < stop {
                        for _ in 0..2000 {
                            k = k
                                .wrapping_mul(6364136223846793005)
                                .wrapping_add(1442695040888963407);
                            let i = (k >> 20) % (w.len() / 4) * 4 + t;
                            // Not atomic on purpose: the word is this thread's alone.
                            w[i].store(w[i].load(Relaxed) + 1, Relaxed);
                            n += 1;
                        }
                    }
                    n
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    for (t, total) in totals.iter().enumerate() {
        let found: u64 = w.iter().skip(t).step_by(4).map(|w| w.load(Relaxed)).sum();
        assert_eq!(found, *total, "thread {t}");
    }
}

pub fn storm_loses_no_write() {
    both_modes(|mode| {
        let pool = storming(64, mode);
        count_up(&pool, 32 * MIB);
        assert!(pool.stats().pswpout > 0);
    });
}

pub fn storm_under_pressure() {
    both_modes(|mode| {
        let pool = storming(32, mode);
        count_up(&pool, 64 * MIB);
    });
}

pub fn storm_over_pages() {
    both_modes(|mode| {
        let pool = storming(32, mode);
        pool.set("thp.swapin=never").unwrap();
        count_up(&pool, 44 * MIB);
    });
}

pub fn storm_with_forks() {
    forking("always", 24 * MIB);
}

pub fn storm_over_pages_with_forks() {
    // Pages come one by one from a disk here, and go again at once.
    forking("never", 6 * MIB);
}

fn forking(swapin: &str, len: usize) {
    both_modes(|mode| {
        let pool = storming(64, mode);
        pool.set(&format!("thp.swapin={swapin}")).unwrap();
        let r = pool.region(len).unwrap();
        let busy = pool.region(len).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                while !stop.load(Relaxed) {
                    words(&busy).iter().step_by(512).for_each(|w| {
                        w.store(w.load(Relaxed) + 1, Relaxed);
                    });
                }
            });
            let end = Instant::now() + TIME;
            let mut g = 0;
            while Instant::now() < end {
                g += 1;
                fill(&r, g);
                // SAFETY: the child only touches managed memory and exits.
                match unsafe { libc::fork() } {
                    0 => {
                        let wrong = panics(|| {
                            check(&r, g);
                            fill(&r, g + 1_000_000);
                            check(&r, g + 1_000_000);
                        });
                        // SAFETY: ends the child without running the parent's exit handlers.
                        unsafe { libc::_exit(i32::from(wrong)) }
                    }
                    -1 => panic!("fork failed"),
                    pid => {
                        // The parent goes on and changes what the child is reading.
                        fill(&r, g + 2_000_000);
                        check(&r, g + 2_000_000);
                        let mut status = 0;
                        // SAFETY: waits for our own child.
                        unsafe { libc::waitpid(pid, &mut status, 0) };
                        assert_eq!(status, 0, "the child of generation {g} saw wrong bytes");
                    }
                }
            }
            stop.store(true, Relaxed);
        });
    });
}

pub fn storm_with_direct_io() {
    both_modes(|mode| {
        let pool = storming(64, mode);
        let mut r = pool.region(32 * MIB).unwrap();
        let path = format!("/var/tmp/hugeswap-test-{}", std::process::id());
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .custom_flags(libc::O_DIRECT)
            .open(&path)
            .unwrap();
        std::fs::remove_file(&path).unwrap();
        fill(&r, 3);
        let limit = r.pin_limit().min(4 * UNIT);
        let end = Instant::now() + TIME;
        let mut at = 0;
        while Instant::now() < end {
            let len = limit.min(r.len() - at);
            {
                let pin = r.pin(at, len, false).unwrap();
                // SAFETY: held readable until `pin` is dropped.
                let b = unsafe { std::slice::from_raw_parts(pin.as_ptr(), len) };
                file.write_all_at(b, at as u64).unwrap();
            }
            r.as_mut_slice()[at..at + len].fill(0xee);
            {
                let pin = r.pin(at, len, true).unwrap();
                // SAFETY: held writable until `pin` is dropped, and nobody else uses the region.
                let b = unsafe { std::slice::from_raw_parts_mut(pin.as_ptr(), len) };
                file.read_exact_at(b, at as u64).unwrap();
            }
            at = (at + len) % r.len();
        }
        check(&r, 3);
    });
}

pub fn storm_with_discards_and_moves() {
    let pool = storming(48, FaultMode::Signal);
    let end = Instant::now() + TIME;
    std::thread::scope(|s| {
        for t in 0..2u64 {
            let pool = &pool;
            s.spawn(move || {
                let mut g = t << 32;
                while Instant::now() < end {
                    g += 1;
                    let mut r = pool.region((3 + g as usize % 9) * MIB).unwrap();
                    assert!(
                        words(&r).iter().all(|w| w.load(Relaxed) == 0),
                        "a new region was not zero"
                    );
                    fill(&r, g);
                    let half = r.len() / 2 / UNIT * UNIT;
                    r.discard(0, half).unwrap();
                    for (i, w) in words(&r).iter().enumerate() {
                        let want = if i < half / 8 { 0 } else { value(i, g) };
                        assert_eq!(w.load(Relaxed), want, "word {i}");
                    }
                }
            });
        }
    });
}
