//! Base pages that were changed when they were last in memory: they come in writable, and are
//! written only if they have changed again.

use crate::integrity::Swap;
use crate::util::*;
use hugeswap::{Granularity, Pool, Region};
use std::sync::atomic::Ordering::Relaxed;

tests! {
    changed_pages_come_writable,
    changed_pages_come_writable_only_to_save_a_write,
    #[disk]
    changed_pages_that_have_not_changed_leave_bad_slots,
    changed_pages_that_have_not_changed_are_told_apart,
    changed_pages_are_right_in_children,
}

const PAGE: usize = 4096;

/// Every third page, so that no two are neighbours.
fn pages(r: &Region) -> impl Iterator<Item = usize> {
    (0..r.len() / PAGE).step_by(3)
}

fn put(r: &Region, g: u64) {
    pages(r).for_each(|p| words(r)[p * 512 + p % 512].store(value(p, g), Relaxed));
}

fn holds(r: &Region, g: u64) {
    for p in pages(r) {
        let word = words(r)[p * 512 + p % 512].load(Relaxed);
        assert_eq!(word, value(p, g), "page {p} of generation {g}");
    }
}

/// A region of single pages that were changed again when they were already in swap, and are in swap
/// again.
fn changed_twice(pool: &Pool, len: usize) -> Region {
    let r = pool.region(len).unwrap();
    for g in 1..3 {
        put(&r, g);
        page_out(&r);
    }
    r
}

/// True if `of` takes faults.
fn faults(pool: &Pool, of: impl FnOnce()) -> bool {
    let before = pool.stats().fault_ns;
    of();
    pool.stats().fault_ns > before
}

fn changed_pages_come_writable() {
    need_pages();
    let pool = pool_of_pages();
    let r = changed_twice(&pool, 8 * MIB);
    let n = pages(&r).count() as u64;
    let written = || counter(&pool, "pswpout");
    let unchanged = || counter(&pool, "pgclean_drop_4k");
    assert!(faults(&pool, || holds(&r, 2)));
    assert!(!faults(&pool, || put(&r, 3)), "they had to be opened");
    let before = written();
    page_out(&r);
    assert_eq!((written() - before, unchanged()), (n, 0));
    // Read, and not changed: they are not written, and not expected to change any more.
    holds(&r, 3);
    page_out(&r);
    assert_eq!((written() - before, unchanged()), (n, n));
    holds(&r, 3);
    assert!(faults(&pool, || put(&r, 4)), "who reads again writes again");
    page_out(&r);
    assert_eq!((written() - before, unchanged()), (2 * n, n));
    holds(&r, 4);
    pool.audit().unwrap();
    drop(r);
    assert_eq!(pool.stats().swap_used_bytes, 0);
}

/// Reads all of the region and writes one page: only the write is reported.
fn only_writes_are_told(r: &Region) {
    let epoch = r.track_writes(Granularity::Pages).unwrap();
    holds(r, 2);
    assert_eq!(r.changed_since(&epoch).unwrap(), []);
    words(r)[0].store(1, Relaxed);
    let first = 0..PAGE;
    let told = r.changed_since(&epoch).unwrap();
    assert_eq!(told, std::slice::from_ref(&first));
}

fn changed_pages_come_writable_only_to_save_a_write() {
    need_pages();
    let pool = pool_of_pages();
    pool.set("swap.clean_drop=off").unwrap();
    let r = changed_twice(&pool, 8 * MIB);
    holds(&r, 2);
    assert!(faults(&pool, || put(&r, 3)), "all of them would be written");
    // Nor where it is to be known what is written.
    pool.set("swap.clean_drop=on").unwrap();
    let r = changed_twice(&pool, 8 * MIB);
    only_writes_are_told(&r);
    r.stop_tracking();
    // They came before.
    let r = changed_twice(&pool, 8 * MIB);
    holds(&r, 2);
    only_writes_are_told(&r);
    pool.audit().unwrap();
}

fn changed_pages_that_have_not_changed_leave_bad_slots() {
    need_pages();
    for fails in [false, true] {
        let pool = pool_of_pages();
        // (Few: a write that fails is tried for a while.)
        let r = changed_twice(&pool, 2 * MIB);
        holds(&r, 2);
        let n = pages(&r).count() as u64;
        let swap = Swap::of_the_pool();
        swap.used().iter().for_each(|&b| swap.flip(b));
        let found = pool.scrub();
        assert_eq!((found.bad, found.recovered, found.lost), (n, n, 0));
        if fails {
            // What is stored is what memory has, but for the slots.
            pool.set("debug.swap_write_fail=1").unwrap();
            r.advise(0, r.len(), hugeswap::Advice::PageOut).unwrap();
            pool.set("debug.swap_write_fail=0").unwrap();
        }
        page_out(&r);
        assert_eq!(counter(&pool, "pgclean_drop_4k"), 0);
        holds(&r, 2);
        drop(r);
        pool.audit().unwrap();
    }
}

/// Changed and unchanged pages lie side by side, in several orders; checks the number of writes
/// that are saved.
fn changed_pages_that_have_not_changed_are_told_apart() {
    need_pages();
    let pool = pool_of_pages();
    let r = changed_twice(&pool, 8 * MIB);
    let mut model: Vec<u64> = (0..r.len() / PAGE).map(|p| value(p, 2)).collect();
    let other = pool.region(48 * MIB).unwrap();
    let mut x = 7u64;
    for round in 0..30 {
        for p in pages(&r) {
            x = x
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let word = &words(&r)[p * 512 + p % 512];
            assert_eq!(word.load(Relaxed), model[p], "page {p}, round {round}");
            match x >> 62 {
                0 => {
                    word.store(x, Relaxed);
                    model[p] = x;
                }
                // To what it was.
                1 => {
                    word.store(!x, Relaxed);
                    word.store(model[p], Relaxed);
                }
                _ => {}
            }
        }
        match round % 3 {
            0 => page_out(&r),
            // Pushed out, some of it spared.
            _ => put(&other, round),
        }
    }
    let s = pool.stats();
    assert!(s.peak_resident_bytes <= 32 * MIB as u64);
    assert!(counter(&pool, "pgclean_drop_4k") > 0);
    pool.audit().unwrap();
}

fn changed_pages_are_right_in_children() {
    need_pages();
    let pool = pool_of_pages();
    let r = changed_twice(&pool, 8 * MIB);
    holds(&r, 2);
    let pid = child(|| {
        holds(&r, 2);
        put(&r, 5);
        holds(&r, 5);
    });
    put(&r, 3);
    page_out(&r);
    ended_well(pid);
    let pid = child(|| {
        // (Not changed here, but by its parent meanwhile.)
        for _ in 0..3 {
            holds(&r, 3);
        }
    });
    put(&r, 4);
    page_out(&r);
    put(&r, 6);
    page_out(&r);
    ended_well(pid);
    holds(&r, 6);
    pool.audit().unwrap();
}
