//! khugepaged: base-mapped units become whole in the background.

use crate::defrag::present;
use crate::enabled::{read, write};
use crate::storm::count_up_for;
use crate::util::*;
use hugeswap::{Advice, Builder, Pool, Region};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

tests! {
    khugepaged_collapses_what_is_resident,
    khugepaged_keeps_limits,
    khugepaged_collapses_what_was_asked_for,
    khugepaged_spares_what_is_not_to_be_huge,
    khugepaged_leaves_what_is_sparse,
    khugepaged_waits_if_it_may,
    khugepaged_sees_to_what_fell_back,
    khugepaged_changes_pace_in_use,
    #[long]
    khugepaged_in_a_storm,
    #[long]
    khugepaged_with_forks,
}

const PAGE: usize = 4096;

fn collapsed(pool: &Pool) -> u64 {
    counter(pool, "khugepaged_pages_collapsed")
}

/// Waits until every unit has been scanned once more.
fn scanned(pool: &Pool) {
    let scans = || counter(pool, "khugepaged_full_scans");
    let before = scans();
    until("two scans", || scans() >= before + 2);
}

fn quick(b: Builder) -> Builder {
    need_base_pages();
    b.set("khugepaged.scan_sleep_ms=1")
        .set("khugepaged.pages_to_scan=1000000")
}

/// A region of `units` units of base pages; `pages` says which pages are in memory.
fn based(pool: &Pool, units: usize, pages: impl Fn(usize) -> bool) -> Region {
    let r = pool.region(units * UNIT).unwrap();
    r.set("thp.enabled=never").unwrap();
    for u in 0..units {
        for p in (0..512).filter(|&p| pages(p)) {
            let i = (u * UNIT + p * PAGE) / 8;
            words(&r)[i].store(value(i, 1), Relaxed);
        }
    }
    scanned(pool);
    assert_eq!(collapsed(pool), 0);
    r
}

fn right(r: &Region, pages: impl Fn(usize) -> bool) {
    for at in (0..r.len()).step_by(PAGE) {
        let want = if pages(at / PAGE % 512) {
            value(at / 8, 1)
        } else {
            0
        };
        assert_eq!(read(r, at), want, "page {}", at / PAGE);
    }
}

fn khugepaged_collapses_what_is_resident() {
    need_huge_pages();
    let pool = quick(builder(64)).build().unwrap();
    // First touches come by up to sixteen pages.
    let r = based(&pool, 8, |_| true);
    let resident = pool.stats().resident_bytes;
    r.unset("thp.enabled").unwrap();
    until("all collapsed", || collapsed(&pool) == 8);
    right(&r, |_| true);
    // What was base pages' is free, and no more is used than before.
    assert!(pool.stats().resident_bytes <= resident + UNIT as u64);
    assert_eq!(counter(&pool, "thp_collapse_alloc"), 0);
    assert_eq!(pool.stats().stalls, 0);
    // Dirty: it is written, as huge pages.
    page_out(&r);
    assert_eq!(counter(&pool, "thp_swpout"), 8);
    right(&r, |_| true);
}

fn khugepaged_keeps_limits() {
    // (Advised, so that nothing but the limits speaks against it.)
    let pool = quick(builder(64)).set("thp.swapin=never").build().unwrap();
    let half = |p: usize| p.is_multiple_of(2);
    let r = based(&pool, 4, half);
    assert_eq!(present(&r, 0), 256);
    let set = |s: &str| pool.set(s).unwrap();
    // Of each unit 56 pages are there, 200 in swap and 256 hold nothing.
    page_out(&r);
    (0..4).for_each(|u| {
        (0..56).for_each(|p| {
            read(&r, u * UNIT + 2 * p * PAGE);
        });
        assert_eq!(present(&r, u), 56);
    });
    set("khugepaged.max_ptes_none=255");
    set("khugepaged.max_ptes_swap=200");
    r.unset("thp.enabled").unwrap();
    r.advise(0, 4 * UNIT, Advice::HugePage).unwrap();
    set("thp.swapin=auto");
    scanned(&pool);
    assert_eq!(collapsed(&pool), 0);
    set("khugepaged.max_ptes_swap=199");
    set("khugepaged.max_ptes_none=256");
    scanned(&pool);
    assert_eq!(collapsed(&pool), 0);
    let read_before = pool.stats().pswpin;
    set("khugepaged.max_ptes_swap=200");
    until("all collapsed", || collapsed(&pool) == 4);
    assert_eq!(pool.stats().pswpin - read_before, 4 * 200);
    right(&r, half);
    // A unit of which nothing is in memory is left alone.
    set("thp.swapin=never");
    page_out(&r);
    set("thp.swapin=auto");
    set("khugepaged.max_ptes_swap=511");
    scanned(&pool);
    assert_eq!(collapsed(&pool), 4);
}

fn khugepaged_collapses_what_was_asked_for() {
    for (all, advised) in [
        ("thp.swapin=always", false),
        ("thp.swapin=auto", true),
        ("thp.enabled=madvise", true),
    ] {
        let pool = quick(builder(64)).build().unwrap();
        // A single page is enough, as in the kernel.
        let r = based(&pool, 4, |p| p == 77);
        pool.set(all).unwrap();
        if advised {
            r.advise(0, 4 * UNIT, Advice::HugePage).unwrap();
        }
        r.unset("thp.enabled").unwrap();
        until(all, || collapsed(&pool) == 4);
        (0..4).for_each(|u| assert_eq!(present(&r, u), 512));
        right(&r, |p| p == 77);
    }
}

fn khugepaged_spares_what_is_not_to_be_huge() {
    let pool = quick(builder(64)).build().unwrap();
    let r = based(&pool, 4, |_| true);
    let none_of = |what: &str| {
        scanned(&pool);
        assert_eq!(collapsed(&pool), 0, "{what}");
    };
    r.set("thp.enabled=madvise").unwrap();
    none_of("not advised");
    r.set("thp.swapin=never").unwrap();
    r.set("thp.enabled=always").unwrap();
    none_of("by pages");
    pool.set("khugepaged.pages_to_scan=0").unwrap();
    r.unset("thp.swapin").unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(collapsed(&pool), 0, "turned off");
    r.set("thp.swapin=never").unwrap();
    pool.set("khugepaged.pages_to_scan=4096").unwrap();
    r.advise(0, 2 * UNIT, Advice::NoHugePage).unwrap();
    r.advise(2 * UNIT, UNIT, Advice::Random).unwrap();
    r.unset("thp.swapin").unwrap();
    until("one", || collapsed(&pool) == 1);
    scanned(&pool);
    assert_eq!(collapsed(&pool), 1);
    right(&r, |_| true);
}

/// khugepaged does not undo decisions of faults: it leaves units of which little is used, and any
/// unit while memory is short.
fn khugepaged_leaves_what_is_sparse() {
    let pool = quick(builder(64)).build().unwrap();
    let r = based(&pool, 4, |p| p % 2 == 0);
    r.unset("thp.enabled").unwrap();
    scanned(&pool);
    assert_eq!(collapsed(&pool), 0);
    // One page more than half. (It comes by itself: the rest of the unit was never written.)
    let pool = quick(builder(16)).build().unwrap();
    let r = based(&pool, 2, |p| p < 300);
    pool.set("debug.swap_write_fail=1").unwrap();
    let others = pool.region(16 * MIB).unwrap();
    // As far as it goes.
    (0..6).rev().for_each(|u| write(&others, u * UNIT, 1));
    r.unset("thp.enabled").unwrap();
    scanned(&pool);
    assert_eq!(collapsed(&pool), 0, "while memory is short");
    drop(others);
    until("with memory to spare", || collapsed(&pool) == 2);
    right(&r, |p| p < 300);
}

fn khugepaged_waits_if_it_may() {
    let pool = quick(builder(16)).set("readahead.max=0").build().unwrap();
    let r = pool.region(32 * MIB).unwrap();
    r.set("thp.enabled=never").unwrap();
    fill(&r, 1);
    page_out(&r);
    let few = based(&pool, 1, |p| p < 10);
    pool.set("debug.swap_write_fail=1").unwrap();
    let pins: Vec<_> = (0..7)
        .map(|u| r.pin(u * UNIT, PAGE, true).unwrap())
        .collect();
    let stalls = pool.stats().stalls;
    let failed = || counter(&pool, "khugepaged_alloc_failed");
    assert_eq!(failed(), 0);
    pool.set("khugepaged.defrag=off").unwrap();
    few.set("thp.swapin=always").unwrap();
    few.unset("thp.enabled").unwrap();
    until("many attempts in vain", || failed() > 20);
    assert_eq!(collapsed(&pool), 0);
    pool.set("khugepaged.defrag=on").unwrap();
    drop(pins);
    drop(r);
    until("a huge page", || collapsed(&pool) == 1);
    assert_eq!(pool.stats().stalls, stalls, "khugepaged is no fault");
    right(&few, |p| p < 10);
}

/// Units that got base pages because memory was short become whole once it is not, long before
/// khugepaged's next scan.
fn khugepaged_sees_to_what_fell_back() {
    need_base_pages();
    let pool = builder(16)
        .set("khugepaged.scan_sleep_ms=3600000")
        .build()
        .unwrap();
    pool.set("debug.swap_write_fail=1").unwrap();
    let r = pool.region(16 * MIB).unwrap();
    (0..7).rev().for_each(|u| write(&r, u * UNIT, 1));
    let whole = counter(&pool, "thp_fault_alloc");
    let late = pool.region(UNIT).unwrap();
    late.set("thp.enabled=never").unwrap();
    write(&late, 0, 1);
    let fell = pool.region(UNIT).unwrap();
    (0..300).for_each(|p| write(&fell, p * PAGE, p as u64 + 1));
    assert_eq!(counter(&pool, "thp_fault_alloc"), whole);
    assert!(counter(&pool, "thp_fault_fallback") >= 1);
    assert!((300..512).contains(&present(&fell, 0)));
    assert_eq!(collapsed(&pool), 0);
    drop(r);
    until("whole", || present(&fell, 0) == 512);
    assert_eq!(collapsed(&pool), 1);
    assert!((0..512).all(|p| read(&fell, p * PAGE) == if p < 300 { p as u64 + 1 } else { 0 }));
    assert_eq!(counter(&pool, "khugepaged_full_scans"), 0);
}

fn khugepaged_changes_pace_in_use() {
    let pool = quick(builder(64)).build().unwrap();
    let r = based(&pool, 4, |_| true);
    pool.set("khugepaged.scan_sleep_ms=3600000").unwrap();
    // (The change is noticed in time.)
    std::thread::sleep(Duration::from_millis(500));
    r.unset("thp.enabled").unwrap();
    let before = collapsed(&pool);
    pool.set("khugepaged.scan_sleep_ms=1").unwrap();
    until("all collapsed", || collapsed(&pool) == 4);
    assert!(before <= 4);
    right(&r, |_| true);
}

fn khugepaged_in_a_storm() {
    let pool = quick(builder(32)).set("debug.storm=20").build().unwrap();
    pool.set("khugepaged.max_ptes_swap=511").unwrap();
    for swapin in ["auto", "always"] {
        // Pages come one by one, and khugepaged makes whole what it may.
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                while !stop.load(Relaxed) {
                    for way in ["never", swapin] {
                        pool.set(&format!("thp.swapin={way}")).unwrap();
                        std::thread::sleep(Duration::from_millis(2));
                    }
                }
            });
            for len in [16, 64] {
                count_up_for(&pool, len * MIB, Duration::from_secs(2));
            }
            stop.store(true, Relaxed);
        });
    }
    assert!(collapsed(&pool) > 0);
    assert_eq!(counter(&pool, "hwpoison"), 0);
}

fn khugepaged_with_forks() {
    let pool = quick(builder(64)).build().unwrap();
    pool.set("khugepaged.max_ptes_swap=511").unwrap();
    let r = pool.region(24 * MIB).unwrap();
    for g in 0..7u64 {
        r.set("thp.enabled=never").unwrap();
        page_out(&r);
        fill(&r, g);
        r.unset("thp.enabled").unwrap();
        let pid = child(|| {
            check(&r, g);
            r.set("thp.enabled=never").unwrap();
            fill(&r, g + 100);
            r.unset("thp.enabled").unwrap();
            check(&r, g + 100);
        });
        check(&r, g);
        fill(&r, g + 200);
        check(&r, g + 200);
        ended_well(pid);
    }
    assert!(collapsed(&pool) > 0);
}
