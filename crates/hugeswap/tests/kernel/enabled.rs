//! Which memory may be huge: `thp.enabled`, `thp.swapin`, and advice for ranges.

use crate::util::*;
use hugeswap::{Advice, Pool, Region};
use hugeswap_support::random::permutation;
use std::sync::atomic::Ordering::Relaxed;

tests! {
    #[long]
    enabled_never_is_pages_only,
    enabled_never_costs_what_is_touched,
    #[long]
    enabled_never_brings_what_is_used_nearby,
    enabled_madvise_is_what_was_advised,
    enabled_always_but_where_advised_not,
    enabled_changes_in_use,
    enabled_of_a_region,
    enabled_forgets_what_is_unmapped,
    enabled_with_forks,
    enabled_discards,
    swapin_madvise_is_what_was_advised,
    swapin_hints,
    enabled_falls_back,
}

const PAGE: usize = 4096;

fn pool(memory: usize, settings: &[&str]) -> Pool {
    need_base_pages();
    let with = |b: hugeswap::Builder, s: &&str| b.set(*s);
    settings.iter().fold(builder(memory), with).build().unwrap()
}

fn no_huge(pool: &Pool) {
    for name in [
        "thp_fault_alloc",
        "thp_swpin",
        "thp_swpout",
        "thp_collapse_alloc",
        "thp_split_pmd",
    ] {
        assert_eq!(counter(pool, name), 0, "{name}");
    }
}

/// The number of pages of the unit that are in memory.
fn present(r: &Region, unit: usize) -> usize {
    let at = unit * UNIT;
    (at..at + UNIT)
        .step_by(PAGE)
        .filter(|&p| r.is_resident(p))
        .count()
}

pub fn read(r: &Region, at: usize) -> u64 {
    words(r)[at / 8].load(Relaxed)
}

pub fn write(r: &Region, at: usize, value: u64) {
    words(r)[at / 8].store(value, Relaxed)
}

fn enabled_never_is_pages_only() {
    // Whatever is said about swap.
    for swapin in ["auto", "always", "madvise", "never"] {
        let pool = pool(16, &["thp.enabled=never", &format!("thp.swapin={swapin}")]);
        let r = pool.region(24 * MIB + 3 * PAGE).unwrap();
        assert!(
            (0..r.len() / 8)
                .step_by(512)
                .all(|i| words(&r)[i].load(Relaxed) == 0)
        );
        fill(&r, 1);
        check(&r, 1);
        fill(&r, 2);
        r.advise(0, 24 * MIB, Advice::PageOut).unwrap();
        // From the end, and here and there.
        for i in (0..r.len() / 8).rev().step_by(509) {
            assert_eq!(words(&r)[i].load(Relaxed), value(i, 2));
        }
        check(&r, 2);
        no_huge(&pool);
        assert!(pool.stats().pswpin > 0 && pool.stats().pswpout > 0);
        assert!(pool.stats().peak_resident_bytes <= 16 * MIB as u64);
    }
}

fn enabled_never_costs_what_is_touched() {
    let pool = pool(64, &["thp.enabled=never"]);
    let r = pool.region(256 * MIB).unwrap();
    for u in 0..128 {
        assert_eq!(read(&r, u * UNIT + 5 * PAGE), 0);
        write(&r, u * UNIT + 300 * PAGE, 7);
        assert_eq!(present(&r, u), 2);
        // A write to what was only read.
        write(&r, u * UNIT + 5 * PAGE + 8, 9);
        assert_eq!(read(&r, u * UNIT + 5 * PAGE), 0);
    }
    // 256 pages; as whole units it would have been four times the budget.
    assert!(pool.stats().resident_bytes <= 4 * MIB as u64);
    // In sequence some more come in, no more than twice what is touched.
    let r = pool.region(UNIT).unwrap();
    for p in 0..100 {
        write(&r, p * PAGE, 1);
        let n = present(&r, 0);
        assert!((p + 1..=2 * (p + 1)).contains(&n), "{n} pages after {p}");
    }
    assert!((0..512).all(|p| read(&r, p * PAGE) == u64::from(p < 100)));
    no_huge(&pool);
    assert_eq!(pool.stats().pswpout, 0);
}

/// Touches pages; how many were absent.
fn absent(r: &Region, pages: impl Iterator<Item = usize>) -> u64 {
    let touch = |page: usize| {
        let absent = !r.is_resident(page * PAGE);
        let at = page * 512;
        assert_eq!(words(r)[at].load(Relaxed), value(at, 1), "page {page}");
        u64::from(absent)
    };
    pages.map(touch).sum()
}

/// Pages of 64 KiB that are used together come together, though no run goes through them, and
/// random ones alone. (Swap is in memory: beside a disk on which other tests wait for half a
/// millisecond, 64 KiB cost what a page does, and are worth it for any page of them.)
fn enabled_never_brings_what_is_used_nearby() {
    // (All must come from swap in the same way.)
    let settings = ["thp.enabled=never", "zswap.enabled=never"];
    let all = 160 * MIB / PAGE;
    let brought = |pages: &dyn Fn(usize) -> Vec<usize>| {
        let pool = pool(64, &settings);
        let r = pool.region(160 * MIB).unwrap();
        fill(&r, 1);
        r.advise(0, 160 * MIB, Advice::PageOut).unwrap();
        let learnt: u64 = (0..2).map(|n| absent(&r, pages(n).into_iter())).sum();
        assert!(learnt > 0);
        let before = pool.stats().pswpin;
        let faults = absent(&r, pages(2).into_iter());
        no_huge(&pool);
        (pool.stats().pswpin - before, faults)
    };
    // Eight pieces at a time, each in an order of its own.
    let (pages, faults) = brought(&|round| {
        let mut state = round as u64 + 1;
        let pieces = permutation(all / 16, &mut state);
        let eight = pieces.chunks(8).flat_map(|eight| {
            (0..16).flat_map(|n| eight.iter().map(move |p| p * 16 + (n * 7 + p / 3) % 16))
        });
        eight.collect()
    });
    assert!(faults * 4 < pages, "{faults} faults for {pages} pages");
    let (pages, faults) = brought(&|round| permutation(all, &mut (round as u64 + 1)));
    assert!(pages * 4 < faults * 5, "{faults} faults for {pages} pages");
}

fn enabled_madvise_is_what_was_advised() {
    need_huge_pages();
    let pool = pool(64, &["thp.enabled=madvise", "thp.swapin=always"]);
    let r = pool.region(32 * MIB).unwrap();
    // Units 4 to 7 whole, and parts of 3 and 8, which do not count.
    r.advise(3 * UNIT + PAGE, 5 * UNIT + PAGE, Advice::HugePage)
        .unwrap();
    (0..16).for_each(|u| write(&r, u * UNIT + u * PAGE, 5));
    assert_eq!(counter(&pool, "thp_fault_alloc"), 4);
    for u in 0..16 {
        let huge = (4..8).contains(&u);
        assert_eq!(present(&r, u), if huge { 512 } else { 1 }, "unit {u}");
    }
    fill(&r, 1);
    page_out(&r);
    check(&r, 1);
    // What may not be huge did not become so.
    assert!(counter(&pool, "thp_swpout") <= 4);
    let whole = counter(&pool, "thp_collapse_alloc") + counter(&pool, "thp_swpin");
    assert_eq!(whole, 4);
}

fn enabled_always_but_where_advised_not() {
    need_huge_pages();
    let pool = pool(64, &["thp.swapin=always"]);
    let r = pool.region(32 * MIB).unwrap();
    // A page of units 2 and 5 is enough.
    r.advise(3 * UNIT - PAGE, 2 * UNIT + 2 * PAGE, Advice::NoHugePage)
        .unwrap();
    (0..16).for_each(|u| write(&r, u * UNIT + u * PAGE, 5));
    assert_eq!(counter(&pool, "thp_fault_alloc"), 12);
    for u in 0..16 {
        let pages = (2..6).contains(&u);
        assert_eq!(present(&r, u), if pages { 1 } else { 512 }, "unit {u}");
    }
    fill(&r, 1);
    page_out(&r);
    check(&r, 1);
    assert_eq!(counter(&pool, "thp_swpin"), 12);
    // And back, for all but unit 2.
    r.advise(3 * UNIT, 29 * MIB - 3 * UNIT, Advice::HugePage)
        .unwrap();
    page_out(&r);
    check(&r, 1);
    assert_eq!(counter(&pool, "thp_swpin"), 12 + 12);
    assert_eq!(counter(&pool, "thp_collapse_alloc"), 3);
}

// (Down, since several units at a time are given to first touches that go up.)
fn enabled_changes_in_use() {
    need_huge_pages();
    let pool = pool(64, &["thp.swapin=always"]);
    let r = pool.region(16 * MIB).unwrap();
    (0..4).rev().for_each(|u| write(&r, u * UNIT, 1));
    assert_eq!(counter(&pool, "thp_fault_alloc"), 4);
    pool.set("thp.enabled=never").unwrap();
    (4..8).rev().for_each(|u| write(&r, u * UNIT, 1));
    assert_eq!(counter(&pool, "thp_fault_alloc"), 4);
    // What is huge stays so until it leaves.
    assert_eq!((present(&r, 0), present(&r, 4)), (512, 1));
    fill(&r, 1);
    page_out(&r);
    assert_eq!(read(&r, 8), value(1, 1));
    assert_eq!(present(&r, 0), 1);
    pool.set("thp.enabled=always").unwrap();
    // The next fault on each makes it whole.
    for u in 0..8 {
        let i = (u * UNIT + 9 * PAGE) / 8;
        assert_eq!(words(&r)[i].load(Relaxed), value(i, 1));
        assert_eq!(present(&r, u), 512, "unit {u}");
    }
    check(&r, 1);
    pool.set("thp.enabled=madvise").unwrap();
    page_out(&r);
    check(&r, 1);
    assert_eq!(counter(&pool, "thp_swpin"), 3);
}

fn enabled_of_a_region() {
    let pool = pool(64, &[]);
    let (a, b) = (pool.region(8 * MIB).unwrap(), pool.region(8 * MIB).unwrap());
    a.set("thp.enabled=never").unwrap();
    (0..2).rev().for_each(|u| write(&a, u * UNIT, 1));
    (0..2).rev().for_each(|u| write(&b, u * UNIT, 1));
    assert_eq!((present(&a, 0), present(&b, 0)), (1, 512));
    assert_eq!(counter(&pool, "thp_fault_alloc"), 2);
    pool.set("thp.enabled=never").unwrap();
    a.set("thp.enabled=always").unwrap();
    (2..4).rev().for_each(|u| write(&a, u * UNIT, 1));
    (2..4).rev().for_each(|u| write(&b, u * UNIT, 1));
    assert_eq!((present(&a, 2), present(&b, 2)), (512, 1));
    a.unset("thp.enabled").unwrap();
    b.set("thp.enabled=always").unwrap();
    b.set("thp.swapin=always").unwrap();
    let (a, b) = (a, b);
    fill(&a, 1);
    fill(&b, 2);
    page_out(&a);
    page_out(&b);
    assert_eq!((read(&a, 0), read(&b, 0)), (value(0, 1), value(0, 2)));
    assert_eq!((present(&a, 0), present(&b, 0)), (1, 512));
    check(&a, 1);
    check(&b, 2);
    for bad in [
        "readahead.max=3",
        "thp.enabled=perhaps",
        "swap.checksum=off",
    ] {
        assert!(a.set(bad).is_err(), "{bad}");
    }
    assert!(a.unset("readahead.max").is_err() && a.unset("no.such").is_err());
}

fn enabled_forgets_what_is_unmapped() {
    let pool = pool(64, &[]);
    let r = pool.region(16 * MIB).unwrap();
    r.advise(0, 16 * MIB, Advice::NoHugePage).unwrap();
    r.set("thp.swapin=never").unwrap();
    let at = r.as_ptr();
    (0..8).for_each(|u| write(&r, u * UNIT, 1));
    drop(r);
    let r = pool.region(16 * MIB).unwrap();
    assert_eq!(r.as_ptr(), at, "the addresses were to be used again");
    (0..8).for_each(|u| assert_eq!(read(&r, u * UNIT), 0));
    assert_eq!(counter(&pool, "thp_fault_alloc"), 8);
}

fn forked(f: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child only touches managed memory and exits.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let mut ok = false;
        let failed = panics(|| ok = f());
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!ok || failed)) };
    }
    pid
}

fn succeeded(pid: i32) -> bool {
    let mut status = 0;
    // SAFETY: waits for our own child.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    status == 0
}

fn enabled_with_forks() {
    let pool = pool(24, &["thp.enabled=madvise"]);
    let r = pool.region(48 * MIB).unwrap();
    r.advise(4 * UNIT, 4 * UNIT, Advice::HugePage).unwrap();
    // Pages that were never in swap: written, read, and none.
    for u in 0..8 {
        write(&r, u * UNIT + 3 * PAGE, 10 + u as u64);
        assert_eq!(read(&r, u * UNIT + 100 * PAGE), 0);
    }
    for round in 0..3u64 {
        let right = |extra: u64| {
            (0..8).all(|u| {
                read(&r, u * UNIT + 3 * PAGE) == 10 + u as u64 + extra
                    && read(&r, u * UNIT + 100 * PAGE) == 0
                    && read(&r, u * UNIT + 17 * PAGE) == 0
            }) && read(&r, 9 * UNIT) == 0
        };
        let child = forked(|| {
            let ok = right(round);
            // What was advised holds here too.
            write(&r, 10 * UNIT, 1);
            let ok = ok && present(&r, 10) == 1 && present(&r, 0) == 3;
            fill(&r, 50);
            check(&r, 50);
            ok
        });
        assert!(right(round), "the parent in round {round}");
        (0..8).for_each(|u| write(&r, u * UNIT + 3 * PAGE, 11 + u as u64 + round));
        assert!(right(round + 1), "the parent in round {round}, changed");
        assert!(succeeded(child), "the child in round {round}");
        page_out(&r);
    }
}

fn enabled_discards() {
    let pool = pool(16, &["thp.enabled=never"]);
    let mut r = pool.region(32 * MIB).unwrap();
    for round in 1..4 {
        fill(&r, round);
        r.discard(UNIT + 3 * PAGE, 7 * PAGE).unwrap();
        r.discard(4 * UNIT, 3 * UNIT + PAGE).unwrap();
        for (i, w) in words(&r).iter().enumerate() {
            let at = i * 8;
            let gone = (UNIT + 3 * PAGE..UNIT + 10 * PAGE).contains(&at)
                || (4 * UNIT..7 * UNIT + PAGE).contains(&at);
            let want = if gone { 0 } else { value(i, round) };
            assert_eq!(w.load(Relaxed), want, "word {i} in round {round}");
        }
    }
    no_huge(&pool);
}

fn swapin_madvise_is_what_was_advised() {
    need_huge_pages();
    let pool = pool(64, &["thp.swapin=madvise"]);
    let r = pool.region(32 * MIB).unwrap();
    r.advise(8 * UNIT, 8 * UNIT, Advice::HugePage).unwrap();
    fill(&r, 1);
    assert_eq!(counter(&pool, "thp_fault_alloc"), 16);
    page_out(&r);
    for u in 0..16 {
        let i = (u * UNIT + 77 * PAGE) / 8;
        assert_eq!(words(&r)[i].load(Relaxed), value(i, 1));
        let pages = present(&r, u);
        assert_eq!(pages, if u < 8 { 1 } else { 512 }, "unit {u}");
    }
    assert_eq!(counter(&pool, "thp_swpin"), 8);
    check(&r, 1);
    assert_eq!(counter(&pool, "thp_swpin"), 8);
    assert_eq!(counter(&pool, "thp_collapse_alloc"), 0);
    assert_eq!(counter(&pool, "thp_split_pmd"), 8);
}

fn swapin_hints() {
    let pool = pool(64, &[]);
    let r = pool.region(32 * MIB).unwrap();
    r.advise(0, 4 * UNIT, Advice::Random).unwrap();
    r.advise(4 * UNIT, 4 * UNIT, Advice::Sequential).unwrap();
    r.advise(8 * UNIT, 8 * UNIT, Advice::Random).unwrap();
    r.advise(8 * UNIT, 8 * UNIT, Advice::Normal).unwrap();
    fill(&r, 1);
    page_out(&r);
    for u in (0..16).rev() {
        let i = (u * UNIT + (u * 77 % 512) * PAGE) / 8;
        assert_eq!(words(&r)[i].load(Relaxed), value(i, 1));
    }
    (0..4).for_each(|u| assert_eq!(present(&r, u), 1, "unit {u}"));
    (4..8).for_each(|u| assert_eq!(present(&r, u), 512, "unit {u}"));
    (0..UNIT)
        .step_by(PAGE)
        .for_each(|at| assert_eq!(read(&r, at), value(at / 8, 1)));
    assert_eq!(
        counter(&pool, "thp_collapse_alloc"),
        0,
        "random means single pages, however many"
    );
    check(&r, 1);
}

/// If every frame is held and one has a few free base pages, a fault gets one of those.
fn enabled_falls_back() {
    let pool = pool(16, &["thp.swapin=always", "readahead.max=0"]);
    let r = pool.region(32 * MIB).unwrap();
    let few = pool.region(UNIT).unwrap();
    few.set("thp.enabled=never").unwrap();
    fill(&r, 1);
    page_out(&r);
    // Nothing that is written leaves from here on.
    pool.set("debug.swap_space=1").unwrap();
    (0..10).for_each(|p| write(&few, p * 7 * PAGE, 1));
    let mut pins: Vec<_> = (0..7)
        .map(|u| r.pin(u * UNIT, PAGE, true).unwrap())
        .collect();
    // (A pin may meet a frame that is just on its way.)
    let swapin = counter(&pool, "thp_swpin_fallback");
    let stalls = pool.stats().stalls;
    // Swap-in, and again on the same unit; first touch.
    write(&r, 9 * UNIT + 3 * PAGE, 5);
    assert_eq!(counter(&pool, "thp_swpin_fallback"), swapin + 1);
    write(&r, 9 * UNIT + 5 * PAGE, 6);
    assert_eq!(counter(&pool, "thp_collapse_alloc_failed"), 1);
    assert_eq!(present(&r, 9), 2);
    let fresh = pool.region(8 * MIB).unwrap();
    write(&fresh, UNIT + 8, 7);
    assert_eq!((present(&fresh, 0), present(&fresh, 1)), (0, 1));
    assert_eq!(counter(&pool, "thp_fault_fallback"), 1);
    assert_eq!(pool.stats().stalls, stalls, "somebody waited");
    // With frames to be had they become whole.
    pool.set("debug.swap_space=0").unwrap();
    pins.clear();
    for (region, unit) in [(&r, 9), (&fresh, 1)] {
        let mut page = 100;
        while present(region, unit) < 512 {
            read(region, unit * UNIT + page % 512 * PAGE);
            page += 1;
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
    assert!(counter(&pool, "thp_collapse_alloc") > 0);
    assert_eq!(read(&fresh, UNIT), 0);
    assert_eq!(read(&r, 9 * UNIT + 3 * PAGE), 5);
    assert_eq!(read(&r, 9 * UNIT + 5 * PAGE), 6);
    assert_eq!(read(&fresh, UNIT + 8), 7);
    for p in [3, 5] {
        let at = 9 * UNIT + p * PAGE;
        write(&r, at, value(at / 8, 1));
    }
    check(&r, 1);
}
