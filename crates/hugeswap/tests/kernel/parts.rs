//! Advice for parts of units: pages are treated individually where that is possible, and no byte
//! beside them changes.

use crate::util::*;
use hugeswap::{Advice, Pool, Region};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

tests! {
    parts_given_up_in_swap_cost_no_io,
    parts_are_read_in_by_pages,
    parts_are_paged_out,
    parts_freed_are_old_or_zero,
    #[long]
    parts_of_random_work,
}

const PAGE: usize = 4096;

fn pool(memory: usize, settings: &[&str]) -> Pool {
    need_base_pages();
    let with = |b: hugeswap::Builder, s: &&str| b.set(*s);
    settings.iter().fold(builder(memory), with).build().unwrap()
}

fn filled(pool: &Pool, len: usize) -> Region {
    let r = pool.region(len).unwrap();
    fill(&r, 1);
    r
}

fn word(r: &Region, page: usize) -> u64 {
    words(r)[page * 512].load(Relaxed)
}

fn right(r: &Region, page: usize) -> bool {
    (0..512).all(|i| words(r)[page * 512 + i].load(Relaxed) == value(page * 512 + i, 1))
}

fn zero(r: &Region, page: usize) -> bool {
    (0..512).all(|i| words(r)[page * 512 + i].load(Relaxed) == 0)
}

fn parts_given_up_in_swap_cost_no_io() {
    for swapin in ["always", "auto", "never"] {
        let pool = pool(64, &[&format!("thp.swapin={swapin}")]);
        let mut r = filled(&pool, 16 * MIB);
        page_out(&r);
        let before = pool.stats();
        r.discard(UNIT + 3 * PAGE, 7 * PAGE).unwrap();
        // The end of a unit and the beginning of the next, and all of one in two parts.
        r.discard(3 * UNIT - PAGE, 2 * PAGE).unwrap();
        r.discard(5 * UNIT, 100 * PAGE).unwrap();
        r.discard(5 * UNIT + 100 * PAGE, 412 * PAGE).unwrap();
        assert_eq!(pool.stats().pswpin, before.pswpin, "thp.swapin={swapin}");
        assert_eq!(pool.stats().pswpout, before.pswpout, "thp.swapin={swapin}");
        assert!((5 * 512..6 * 512).all(|p| zero(&r, p)));
        assert_eq!(pool.stats().pswpin, before.pswpin, "all of it was given up");
        let gone = |p: usize| {
            (515..522).contains(&p) || (1535..1537).contains(&p) || (5 * 512..6 * 512).contains(&p)
        };
        for round in 0..2 {
            for p in 0..r.len() / PAGE {
                let ok = if gone(p) { zero(&r, p) } else { right(&r, p) };
                assert!(ok, "page {p} in round {round}, thp.swapin={swapin}");
            }
            page_out(&r);
        }
    }
}

fn parts_are_read_in_by_pages() {
    for setting in ["thp.enabled=never", "thp.swapin=never", "thp.swapin=auto"] {
        let pool = pool(64, &[setting]);
        let r = filled(&pool, 16 * MIB);
        page_out(&r);
        let before = pool.stats().pswpin;
        // Over the border of units 2 and 3.
        r.advise(3 * UNIT - 10 * PAGE, 50 * PAGE, Advice::WillNeed)
            .unwrap();
        let wanted = 3 * 512 - 10..3 * 512 + 40;
        until(&format!("{setting}: it is read in"), || {
            wanted.clone().all(|p| r.is_resident(p * PAGE))
        });
        for p in 2 * 512..4 * 512 {
            assert_eq!(
                r.is_resident(p * PAGE),
                wanted.contains(&p),
                "{setting}: page {p}"
            );
        }
        assert_eq!(pool.stats().pswpin - before, 50);
        assert!(wanted.clone().all(|p| right(&r, p)));
        assert_eq!(pool.stats().pswpin - before, 50, "it was there");
        check(&r, 1);
    }
}

fn parts_are_paged_out() {
    let pool = pool(64, &["thp.enabled=madvise"]);
    let r = pool.region(16 * MIB).unwrap();
    r.advise(6 * UNIT, 2 * UNIT, Advice::HugePage).unwrap();
    fill(&r, 1);
    let before = pool.stats().pswpout;
    r.advise(2 * UNIT - 3 * PAGE, 13 * PAGE, Advice::PageOut)
        .unwrap();
    let gone = 2 * 512 - 3..2 * 512 + 10;
    for p in 512..3 * 512 {
        assert_eq!(r.is_resident(p * PAGE), !gone.contains(&p), "page {p}");
    }
    assert!(pool.stats().pswpout > before);
    // A huge page is in pages then, and those beside are written without a fault.
    let split = counter(&pool, "thp_split_pmd");
    let of_huge = 6 * 512 + 1..6 * 512 + 101;
    r.advise(6 * UNIT + PAGE, 100 * PAGE, Advice::PageOut)
        .unwrap();
    for p in 6 * 512..7 * 512 {
        assert_eq!(
            r.is_resident(p * PAGE),
            !of_huge.contains(&p),
            "huge page, {p}"
        );
    }
    assert_eq!(counter(&pool, "thp_split_pmd"), split + 1);
    let in_faults = pool.stats().fault_ns;
    for p in of_huge.end..7 * 512 {
        let word = &words(&r)[p * 512];
        word.store(word.load(Relaxed), Relaxed);
    }
    assert_eq!(pool.stats().fault_ns, in_faults);
    // What is clean goes without a write.
    assert!(gone.clone().all(|p| right(&r, p)));
    let before = pool.stats().pswpout;
    r.advise(2 * UNIT - 3 * PAGE, 13 * PAGE, Advice::PageOut)
        .unwrap();
    assert!(gone.clone().all(|p| !r.is_resident(p * PAGE)));
    assert_eq!(pool.stats().pswpout, before);
    check(&r, 1);
}

fn parts_freed_are_old_or_zero() {
    let pool = pool(32, &["thp.enabled=never"]);
    let mut r = filled(&pool, 16 * MIB);
    page_out(&r);
    let before = pool.stats().pswpin;
    r.discard_lazily(UNIT + 5 * PAGE, 2 * UNIT).unwrap();
    assert!(
        (517..1541).all(|p| zero(&r, p)),
        "it was in swap, and had no use"
    );
    assert_eq!(pool.stats().pswpin, before);
    assert!((0..517).chain(1541..2048).all(|p| right(&r, p)));
    // In memory, without and with need: what is written afterwards stays.
    for more in [0, 64 * MIB] {
        fill(&r, 1);
        let ballast = (more > 0).then(|| filled(&pool, more));
        r.discard_lazily(3 * UNIT + 9 * PAGE, UNIT).unwrap();
        let freed = 3 * 512 + 9..4 * 512 + 9;
        words(&r)[freed.start * 512].store(77, Relaxed);
        for p in freed.clone().skip(1) {
            assert!(zero(&r, p) || right(&r, p), "page {p}");
        }
        assert_eq!(word(&r, freed.start), 77);
        let beside = (0..freed.start).chain(freed.end..r.len() / PAGE);
        beside.for_each(|p| assert!(right(&r, p), "page {p}"));
        drop(ballast);
    }
}

/// One thread does random work and compares it with a model, while units leave at random.
fn parts_of_random_work() {
    let pool = pool(16, &["debug.storm=300"]);
    let mut r = pool.region(40 * MIB + 5 * PAGE).unwrap();
    let pages = r.len() / PAGE;
    // What the first word of each page is; the others are 0.
    let mut model = vec![0u64; pages];
    let mut x = 88172645463325252u64;
    let mut random = move |n: usize| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 11) as usize % n
    };
    let start = Instant::now();
    let mut step = 0u64;
    while step < 4_000 && start.elapsed().as_secs() < 15 {
        step += 1;
        let from = random(pages);
        let most = [3, 40, 700, 1500][random(4)];
        let n = 1 + random(most).min(pages - from - 1);
        let (at, len) = (from * PAGE, n * PAGE);
        match random(16) {
            0..6 => {
                for (p, m) in model.iter_mut().enumerate().skip(from).take(n.min(64)) {
                    words(&r)[p * 512].store(step, Relaxed);
                    *m = step;
                }
            }
            6..9 => {
                for (p, m) in model.iter().enumerate().skip(from).take(n) {
                    assert_eq!(word(&r, p), *m, "page {p} at step {step}");
                    assert_eq!(words(&r)[p * 512 + 511].load(Relaxed), 0);
                }
            }
            9 | 10 => {
                r.discard(at, len).unwrap();
                model[from..from + n].fill(0);
            }
            11 => {
                r.discard_lazily(at, len).unwrap();
                for (p, m) in model.iter_mut().enumerate().skip(from).take(n) {
                    let now = word(&r, p);
                    assert!(now == 0 || now == *m, "page {p} at step {step}: {now}, {m}");
                    // It is what it is from now on.
                    words(&r)[p * 512].store(now, Relaxed);
                    *m = now;
                }
            }
            12 => r.advise(at, len, Advice::PageOut).unwrap(),
            13 => r.advise(at, len, Advice::WillNeed).unwrap(),
            14 => {
                let said = [
                    Advice::HugePage,
                    Advice::NoHugePage,
                    Advice::Random,
                    Advice::Sequential,
                    Advice::Normal,
                ];
                r.advise(at, len, said[random(5)]).unwrap();
            }
            _ => {
                let settings = [
                    "thp.enabled=always",
                    "thp.enabled=madvise",
                    "thp.enabled=never",
                    "thp.swapin=auto",
                    "thp.swapin=always",
                    "thp.swapin=madvise",
                    "thp.swapin=never",
                ];
                let pin = r.pin(at, PAGE, step.is_multiple_of(2)).unwrap();
                pool.set(settings[random(7)]).unwrap();
                drop(pin);
            }
        }
    }
    for (p, m) in model.iter().enumerate() {
        assert_eq!(word(&r, p), *m, "page {p}");
    }
    assert!(pool.stats().peak_resident_bytes <= 16 * MIB as u64);
}
