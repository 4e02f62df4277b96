//! How a fault gets a huge page when none is free: `thp.defrag`.

use crate::enabled::{read, write};
use crate::storm::count_up_for;
use crate::util::*;
use hugeswap::{Advice, FaultMode, Pin, Pool, Region};
use std::time::Duration;

tests! {
    defrag_of_first_touches,
    defrag_of_swap_ins,
    defrag_of_a_region,
    defrag_waits_for_a_huge_page,
    defrag_waits_for_anything_at_all,
    defrag_leaves_the_reserve,
    defrag_without_base_pages_waits,
    #[long]
    defrag_under_pressure,
    watermarks_as_they_are_set,
    who_takes_much_pauses,
    free_memory_stays_in_huge_pages,
}

const PAGE: usize = 4096;
const POLICIES: [&str; 5] = ["always", "defer", "defer+madvise", "madvise", "never"];

fn waits(policy: &str, advised: bool) -> bool {
    match policy {
        "always" => true,
        "defer+madvise" | "madvise" => advised,
        _ => false,
    }
}

/// The number of pages of the unit that are in memory.
pub fn present(r: &Region, unit: usize) -> usize {
    let at = unit * UNIT;
    (at..at + UNIT)
        .step_by(PAGE)
        .filter(|&p| r.is_resident(p))
        .count()
}

/// The counters for a huge page that was not free: waits by cause, and how those ended.
fn stalls(pool: &Pool) -> [u64; 4] {
    [
        "allocstall",
        "compact_stall",
        "compact_success",
        "compact_fail",
    ]
    .map(|n| counter(pool, n))
}

fn more([a, b, c, d]: [u64; 4], [e, f, g, h]: [u64; 4]) -> [u64; 4] {
    [a + e, b + f, c + g, d + h]
}

/// A pool of eight frames: one is used for single pages of `few`, most of which are free; the
/// others are pinned, or cannot be written to swap.
struct Full<'a> {
    pool: &'a Pool,
    _pins: Vec<Pin<'a>>,
}

fn full<'a>(pool: &'a Pool, r: &'a mut Region, few: &Region) -> Full<'a> {
    few.set("thp.enabled=never").unwrap();
    fill(r, 1);
    page_out(r);
    // Nothing that is written leaves from here on.
    pool.set("debug.swap_write_fail=1").unwrap();
    (0..10).for_each(|p| write(few, p * 7 * PAGE, 1));
    let r: &'a Region = r;
    let pins = (0..7).map(|u| r.pin(u * UNIT, PAGE, true).unwrap());
    Full {
        pool,
        _pins: pins.collect(),
    }
}

impl Full<'_> {
    /// Makes a first access, `access`, to a unit that should be whole: checks whether it waits, and
    /// that it gets a base page.
    fn falls_back(&self, waits: bool, counted: &str, access: impl FnOnce()) {
        let before = (stalls(self.pool), counter(self.pool, counted));
        access();
        let n = u64::from(waits);
        assert_eq!(stalls(self.pool), more(before.0, [n, n, 0, n]));
        assert_eq!(counter(self.pool, counted), before.1 + 1, "{counted}");
    }
}

fn small_pool() -> Pool {
    need_base_pages();
    builder(16)
        .set("thp.swapin=always")
        .set("readahead.max=0")
        .build()
        .unwrap()
}

fn defrag_of_first_touches() {
    let pool = small_pool();
    let (mut r, few) = (pool.region(32 * MIB).unwrap(), pool.region(UNIT).unwrap());
    let fresh = pool.region(20 * UNIT).unwrap();
    // Every other one.
    (0..20).step_by(2).for_each(|u| {
        fresh.advise(u * UNIT, UNIT, Advice::HugePage).unwrap();
    });
    let full = full(&pool, &mut r, &few);
    let woken = || counter(&pool, "compact_daemon_wake");
    // The setting changes in use.
    for (i, policy) in POLICIES.into_iter().enumerate() {
        pool.set(&format!("thp.defrag={policy}")).unwrap();
        let before = woken();
        for unit in [2 * i, 2 * i + 1] {
            let waits = waits(policy, unit % 2 == 0);
            full.falls_back(waits, "thp_fault_fallback", || {
                write(&fresh, unit * UNIT + 8, unit as u64)
            });
            assert_eq!(present(&fresh, unit), 1, "{policy}");
        }
        match policy {
            "defer" => assert!(before == 0 && woken() > 0),
            // (It backs off.)
            "defer+madvise" => assert!(woken() <= before + 1),
            _ => assert_eq!(woken(), before, "{policy} wakes nobody"),
        }
    }
    (0..10).for_each(|u| {
        assert_eq!(read(&fresh, u * UNIT + 8), u as u64);
        assert_eq!(read(&fresh, u * UNIT + 16), 0);
    });
}

fn defrag_of_swap_ins() {
    let pool = small_pool();
    let (mut r, few) = (pool.region(64 * MIB).unwrap(), pool.region(UNIT).unwrap());
    (10..30).step_by(2).for_each(|u| {
        r.advise(u * UNIT, UNIT, Advice::HugePage).unwrap();
    });
    let at = r.as_ptr() as usize;
    let full = full(&pool, &mut r, &few);
    let check = |unit: usize, page: usize| {
        let i = (unit * UNIT + page * PAGE) / 8;
        // SAFETY: an aligned word of the region, which outlives this.
        let word = unsafe { std::ptr::read_volatile((at + i * 8) as *const u64) };
        assert_eq!(word, value(i, 1), "unit {unit} page {page}");
    };
    for (i, policy) in POLICIES.into_iter().enumerate() {
        pool.set(&format!("thp.defrag={policy}")).unwrap();
        for unit in [10 + 2 * i, 11 + 2 * i] {
            let waits = waits(policy, unit % 2 == 0);
            full.falls_back(waits, "thp_swpin_fallback", || check(unit, 3));
            // And again for the rest of it.
            full.falls_back(waits, "thp_collapse_alloc_failed", || check(unit, 100));
        }
    }
}

fn defrag_of_a_region() {
    let pool = small_pool();
    let (mut r, few) = (pool.region(32 * MIB).unwrap(), pool.region(UNIT).unwrap());
    let (a, b) = (pool.region(8 * MIB).unwrap(), pool.region(8 * MIB).unwrap());
    let full = full(&pool, &mut r, &few);
    a.set("thp.defrag=always").unwrap();
    let touch = |region: &Region, unit: usize, waits| {
        full.falls_back(waits, "thp_fault_fallback", || {
            write(region, unit * UNIT, 1)
        });
    };
    touch(&a, 3, true);
    touch(&b, 3, false);
    pool.set("thp.defrag=always").unwrap();
    a.set("thp.defrag=defer").unwrap();
    touch(&a, 2, false);
    touch(&b, 2, true);
    a.unset("thp.defrag").unwrap();
    b.set("thp.defrag=never").unwrap();
    touch(&a, 1, true);
    touch(&b, 1, false);
    assert!(a.set("thp.defrag=sometimes").is_err());
}

/// A thread writes to `fresh` and has to wait; then swap takes writes again and `give_back` is
/// called, which ends the wait.
fn wait_until_there_is_some(pool: &Pool, fresh: &Region, give_back: impl FnOnce()) {
    let before = stalls(pool);
    std::thread::scope(|s| {
        s.spawn(|| write(fresh, 3 * UNIT, 5));
        while stalls(pool) == before {
            std::thread::yield_now();
        }
        pool.set("debug.swap_write_fail=0").unwrap();
        give_back();
    });
}

/// A thread that asked for huge pages waits, and gets one as soon as one is free.
fn defrag_waits_for_a_huge_page() {
    let pool = small_pool();
    let (mut r, few) = (pool.region(32 * MIB).unwrap(), pool.region(UNIT).unwrap());
    let fresh = pool.region(8 * MIB).unwrap();
    fresh.advise(0, 8 * MIB, Advice::HugePage).unwrap();
    let full = full(&pool, &mut r, &few);
    // (What fills memory may have got base pages, where the disk was slow.)
    let fell_back = || counter(&pool, "thp_fault_fallback");
    let before = (stalls(&pool), fell_back());
    wait_until_there_is_some(&pool, &fresh, || drop(full));
    assert_eq!(stalls(&pool), more(before.0, [1, 1, 1, 0]));
    assert_eq!(present(&fresh, 3), 512);
    assert_eq!(fell_back(), before.1);
}

/// If no base page is left either, a thread can only wait, whatever the setting.
fn defrag_waits_for_anything_at_all() {
    let pool = small_pool();
    pool.set("thp.defrag=never").unwrap();
    let (mut r, few) = (pool.region(32 * MIB).unwrap(), pool.region(UNIT).unwrap());
    let fresh = pool.region(8 * MIB).unwrap();
    let full = full(&pool, &mut r, &few);
    (0..512).for_each(|p| write(&few, p * PAGE, 1));
    let before = stalls(&pool);
    wait_until_there_is_some(&pool, &fresh, || drop(full));
    assert_eq!(stalls(&pool), more(before, [1, 0, 0, 0]));
    assert_eq!(read(&fresh, 3 * UNIT), 5);
}

/// The last frames are for base pages: a fault that can use base pages gets them before frames run
/// out.
fn defrag_leaves_the_reserve() {
    need_base_pages();
    let pool = builder(128).build().unwrap();
    pool.set("debug.swap_write_fail=1").unwrap();
    let r = pool.region(70 * UNIT).unwrap();
    (0..70).rev().for_each(|u| write(&r, u * UNIT + 8, 1));
    let whole = (0..70).filter(|&u| present(&r, u) == 512).count();
    assert_eq!(whole, 63);
    assert_eq!((63..70).map(|i| present(&r, 69 - i)).sum::<usize>(), 7);
    assert_eq!(counter(&pool, "thp_fault_alloc"), 63);
    assert_eq!(counter(&pool, "thp_fault_fallback"), 7);
    assert_eq!(stalls(&pool), [0; 4]);
    assert!(pool.stats().resident_bytes <= 128 * MIB as u64);
}

/// Where a unit comes whole or not at all, a fault may use every frame, and waits whatever the
/// setting.
fn defrag_without_base_pages_waits() {
    let pool = match builder(128).fault_mode(FaultMode::Message).build() {
        Ok(pool) => pool,
        Err(e) => skip(&format!("no message mode: {e}")),
    };
    pool.set("thp.defrag=never").unwrap();
    let r = pool.region(256 * MIB).unwrap();
    fill(&r, 1);
    check(&r, 1);
    assert_eq!(counter(&pool, "thp_fault_fallback"), 0);
    assert_eq!(counter(&pool, "compact_fail"), 0);
    assert_eq!(
        counter(&pool, "compact_stall"),
        counter(&pool, "compact_success")
    );
}

/// No write is lost, whatever the setting, while more is written than fits in memory, and units
/// leave and come back.
fn defrag_under_pressure() {
    need_base_pages();
    let pool = builder(32).set("debug.storm=500").build().unwrap();
    for policy in POLICIES {
        pool.set(&format!("thp.defrag={policy}")).unwrap();
        for swapin in ["auto", "always"] {
            pool.set(&format!("thp.swapin={swapin}")).unwrap();
            count_up_for(&pool, 48 * MIB, Duration::from_millis(300));
        }
    }
    pool.set("debug.storm=0").unwrap();
    let r = pool.region(64 * MIB).unwrap();
    for g in 0..2 {
        fill(&r, g);
        check(&r, g);
    }
    assert_eq!(counter(&pool, "hwpoison"), 0);
    assert!(pool.stats().peak_resident_bytes <= 32 * MIB as u64);
}

/// Thirty-two frames, with watermarks of 4 (`min`), 8 (`low`) and 12 (`high`); nothing leaves
/// memory.
fn marked_pool() -> Pool {
    need_base_pages();
    let pool = builder(64)
        .set("vm.min_free_kbytes=8192")
        .set("vm.watermark_scale_factor=1250")
        .set("thp.defrag=never")
        .set("thp.swapin=always")
        .set("readahead.max=0")
        .build()
        .unwrap();
    pool.set("debug.swap_write_fail=1").unwrap();
    pool
}

fn whole(r: &Region, units: usize) -> usize {
    (0..units).filter(|&u| present(r, u) == UNIT / PAGE).count()
}

fn watermarks_as_they_are_set() {
    let pool = marked_pool();
    let r = pool.region(32 * UNIT).unwrap();
    let touch = |page: usize| (0..32).for_each(|u| write(&r, u * UNIT + page * PAGE, 1));
    touch(0);
    assert_eq!(whole(&r, 32), 28, "min is left to base pages");
    assert_eq!(counter(&pool, "thp_fault_fallback"), 4);
    // One frame holds the single pages, one is `min`: two more can be had.
    pool.set("vm.min_free_kbytes=2048").unwrap();
    touch(1);
    assert_eq!(whole(&r, 32), 30);
    assert_eq!(stalls(&pool), [0; 4]);
}

fn who_takes_much_pauses() {
    for limit in [0, 1000] {
        let pool = marked_pool();
        pool.set(&format!("vm.throttle_max_usec={limit}")).unwrap();
        let r = pool.region(32 * UNIT).unwrap();
        let paused = || counter(&pool, "alloc_throttle");
        (0..24).for_each(|u| write(&r, u * UNIT, 1));
        assert_eq!(paused(), 0, "there is enough");
        (24..28).for_each(|u| write(&r, u * UNIT, 1));
        assert_eq!(paused() > 0, limit > 0);
        assert_eq!(counter(&pool, "alloc_throttle_usec") > 0, limit > 0);
        assert_eq!(stalls(&pool), [0; 4]);
        // What is there already is had without a pause.
        let before = paused();
        (0..28).for_each(|u| assert_eq!(read(&r, u * UNIT), 1));
        assert_eq!(paused(), before);
    }
}

/// A program runs steadily while memory of all sizes comes and goes beside it, is swapped in parts
/// and as a whole, and is used by the page. At the end the free memory is in huge pages.
fn free_memory_stays_in_huge_pages() {
    need_base_pages();
    const ROUNDS: u64 = 300;
    let pool = builder(128).set("thp.defrag=never").build().unwrap();
    let steady = pool.region(16 * UNIT).unwrap();
    fill(&steady, 1);
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut below = |n: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % n) as usize
    };
    let mut all: Vec<Region> = Vec::new();
    for round in 0..ROUNDS {
        if all.len() > 30 || round % 3 == 2 {
            all.swap_remove(below(all.len() as u64));
        }
        // From 64 KiB to 16 MiB.
        let r = pool.region((16 * PAGE) << below(9)).unwrap();
        if below(3) == 0 {
            r.set("thp.enabled=never").unwrap();
        }
        let step = PAGE << below(7);
        (0..r.len())
            .step_by(step)
            .for_each(|at| write(&r, at, at as u64));
        all.push(r);
        for _ in 0..4 {
            let i = below(all.len() as u64);
            let pages = all[i].len() / PAGE;
            let from = below(pages as u64);
            let n = 1 + below((pages - from) as u64);
            let (at, len) = (from * PAGE, n * PAGE);
            match below(3) {
                0 => all[i].discard(at, len).unwrap(),
                1 => all[i].advise(at, len, Advice::PageOut).unwrap(),
                _ => (at..at + len)
                    .step_by(7 * PAGE)
                    .for_each(|at| write(&all[i], at, 3)),
            }
        }
    }
    check(&steady, 1);
    // What is left has pages here and there; the rest is free.
    all.truncate(12);
    let s = pool.stats();
    assert!(s.free_huge_bytes <= s.free_bytes);
    assert!(s.free_bytes >= 16 << 20, "{} free", s.free_bytes);
    assert!(s.free_huge_bytes * 10 >= s.free_bytes * 8, "{s:?}");
    // And can be had, but for what is kept for base pages.
    let units = (s.free_huge_bytes as usize / UNIT).saturating_sub(2);
    let fresh = pool.region(units * UNIT).unwrap();
    (0..units).for_each(|u| write(&fresh, u * UNIT, 5));
    let had = whole(&fresh, units);
    assert!(had * 10 >= units * 8, "{had} of {units}");
}
