//! Random work on regions of a file, against a plain vector, under storms and by several threads;
//! the file is compared at the end.

use super::{Temp, content, in_all_ways};
use crate::util::*;
use hugeswap::{Advice, FileMode, Pool};

tests! {
    #[long]
    files_agree_with_a_vector,
    files_agree_under_storms,
    #[long]
    files_written_by_several_threads,
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 24) as usize % n
    }
}

fn work(pool: &Pool, steps: usize, seed: u64) {
    let len = 20 * MIB + 777;
    let file = Temp::new(len, 1);
    let mut model = content(len, 1);
    let mut x = Random(seed);
    let mut r = pool.map_file(&file.0, 0, len, FileMode::WriteBack).unwrap();
    // Others want memory too.
    let other = pool.region(8 * MIB).unwrap();
    fill(&other, 9);
    for step in 0..steps {
        let at = x.below(len);
        let n = [1, 100, 5000, 70_000, 3 * MIB][x.below(5)].min(len - at);
        match x.below(40) {
            0..18 => assert!(
                r.as_slice()[at..at + n] == model[at..at + n],
                "step {step}: {at}..+{n}"
            ),
            18..33 => {
                let b = x.below(256) as u8;
                r.as_mut_slice()[at..at + n].fill(b);
                model[at..at + n].fill(b);
            }
            33 => r.discard(at, n).unwrap(),
            34 => r.advise(at, n, Advice::PageOut).unwrap(),
            35 => r.advise(at, n, Advice::WillNeed).unwrap(),
            36 => r.discard_lazily(at, n).unwrap(),
            37 => {
                r.sync().unwrap();
                assert!(file.bytes() == model, "step {step}");
            }
            38 => {
                let pin = r.pin(at, n.min(MIB), true).unwrap();
                // SAFETY: within the pin.
                unsafe { pin.as_ptr().write(3) };
                model[at] = 3;
            }
            _ => {
                // As a region that reads: the file has what this one was before.
                r.sync().unwrap();
                let again = pool.map_file(&file.0, 0, len, FileMode::ReadOnly).unwrap();
                assert!(again.as_slice()[at..at + n] == model[at..at + n]);
            }
        }
    }
    check(&other, 9);
    assert!(r.as_slice() == model);
    drop(r);
    assert!(file.bytes() == model);
    let s = pool.stats();
    assert!(s.peak_resident_bytes <= 16 * MIB as u64, "{s:?}");
}

pub fn files_agree_with_a_vector() {
    in_all_ways(16, |pool| work(pool, 250, 1));
}

fn files_agree_under_storms() {
    in_all_ways(16, |pool| {
        pool.set("debug.storm=500").unwrap();
        work(pool, 100, 2);
    });
}

/// Each thread has words of its own in every unit, in one page of four; one syncs the whole
/// meanwhile, and in the end it is given up.
pub fn files_written_by_several_threads() {
    in_all_ways(16, |pool| {
        let len = 20 * MIB;
        let file = Temp::new(len, 0);
        let mut r = pool.map_file(&file.0, 0, len, FileMode::WriteBack).unwrap();
        pool.set("debug.storm=1000").unwrap();
        let shared = words(&r);
        let one = |t: usize| {
            use std::sync::atomic::Ordering::Relaxed;
            let mut x = Random(t as u64);
            let mut last = vec![0u64; len / 8 / 512];
            for i in 1..1_000u64 {
                let page = x.below(last.len() / 4) * 4;
                let w = &shared[page * 512 + t];
                if last[page] != 0 {
                    assert_eq!(w.load(Relaxed), last[page], "thread {t}, page {page}");
                }
                w.store(i << 8 | t as u64, Relaxed);
                last[page] = i << 8 | t as u64;
            }
            last
        };
        let lasts: Vec<Vec<u64>> = std::thread::scope(|s| {
            let workers: Vec<_> = (0..3).map(|t| s.spawn(move || one(t))).collect();
            while workers.iter().any(|w| !w.is_finished()) {
                r.sync().unwrap();
            }
            workers.into_iter().map(|w| w.join().unwrap()).collect()
        });
        r.discard(0, len).unwrap();
        drop(r);
        let bytes = file.bytes();
        for (t, last) in lasts.iter().enumerate() {
            for (page, want) in last.iter().enumerate().filter(|(_, w)| **w != 0) {
                let at = (page * 512 + t) * 8;
                assert_eq!(
                    bytes[at..at + 8],
                    want.to_ne_bytes(),
                    "thread {t}, page {page}"
                );
            }
        }
    });
}
