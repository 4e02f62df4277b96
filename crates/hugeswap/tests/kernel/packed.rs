//! Whole units that are compressed on the device: what they hold comes back, whole and by the page,
//! also after pages of them have changed, over forks, deaths, damage and a swap area that is full or
//! taken off.

use crate::util::*;
use crate::zswap::{PAGE, put, verify, verify_either, write_by_threads};
use hugeswap::{Builder, Region, SwapSpec};
use std::sync::atomic::Ordering::Relaxed;

tests! {
    what_is_packed_comes_back,
    every_compressor_packs,
    the_budget_holds_what_packs,
    the_budget_holds_what_encrypts => with_encryption(the_budget_holds_what_packs),
    noise_is_not_packed,
    pages_that_change_go_elsewhere,
    packed_pages_under_encryption => with_encryption(pages_that_change_go_elsewhere),
    clean_pages_are_never_written_back_over_it,
    a_child_reads_what_its_parent_packed,
    the_dead_leave_no_packed_cluster,
    it_can_be_turned_off_and_on_again,
    an_area_with_packed_clusters_is_taken_off,
    swap_that_is_full_is_written_anew,
    reads_that_are_spoilt_are_tried_again,
    damage_is_told,
    packed_units_under_a_storm,
    parts_that_are_discarded_are_zeros,
}

/// A pool of `memory` MiB that packs all that it can.
fn pool(memory: usize) -> Builder {
    builder(memory)
        .set("swap.compress=always")
        .set("zswap.enabled=never")
}

/// Pages that were packed, and the blocks that they took.
fn packed(pool: &hugeswap::Pool) -> (u64, u64) {
    let count = |name| counter(pool, name);
    (
        count("swap_write_compressed"),
        count("swap_write_compressed_blocks"),
    )
}

fn what_is_packed_comes_back() {
    need_huge_pages();
    for setting in ["thp.swapin=always", "thp.swapin=never"] {
        let pool = pool(32).set(setting).build().unwrap();
        let r = pool.region(56 * MIB).unwrap();
        for g in 0..2 {
            put(&r, g);
            verify(&r, g);
        }
        let (pages, blocks) = packed(&pool);
        assert!(pages > 4000, "{setting}: {pages}");
        assert!(blocks * 2 < pages, "{setting}: {pages} took {blocks}");
        assert!(counter(&pool, "swap_read_compressed") > 4000, "{setting}");
        no_harm(&pool);
    }
}

fn every_compressor_packs() {
    need_huge_pages();
    let pool = pool(32).build().unwrap();
    let r = pool.region(64 * MIB).unwrap();
    put(&r, 0);
    for (g, by) in (1..).zip(["zstd-fast", "lz4", "zstd", "auto"]) {
        let before = packed(&pool).0;
        pool.set(format!("zswap.compressor={by}").as_str()).unwrap();
        verify(&r, g - 1);
        put(&r, g);
        verify(&r, g);
        assert!(packed(&pool).0 > before + 1000, "{by}");
    }
    no_harm(&pool);
}

/// The buffers that units are packed in are charged: a control group that is a little larger than the
/// budget is not outgrown.
fn the_budget_holds_what_packs() {
    need_huge_pages();
    let budget = 64u64;
    let pool = pool(budget as usize).build().unwrap();
    let r = pool.region(192 * MIB).unwrap();
    let grown = most_memory_beside(|| {
        for g in 0..2 {
            put(&r, g);
        }
        verify(&r, 1);
    });
    assert!(packed(&pool).0 > 0);
    // (The buffers of 64 KiB are beside the budget.)
    let small = if encrypted() { 2048 } else { 0 };
    let allowed = budget * 1024 * 102 / 100 + 4096 + small;
    assert!(grown <= allowed, "{grown} KiB, {allowed} allowed");
    no_harm(&pool);
}

fn noise_is_not_packed() {
    let pool = pool(32).build().unwrap();
    let r = pool.region(64 * MIB).unwrap();
    for g in 0..3 {
        fill(&r, g);
        check(&r, g);
    }
    // (But for units that left before they were filled.)
    let (pages, out) = (packed(&pool).0, counter(&pool, "pswpout"));
    assert!(pages * 4 < out, "{pages} of {out}");
    assert!(counter(&pool, "swap_compress_poor") > 0);
    no_harm(&pool);
}

/// Puts a region in swap, packed. (What came by pages, or has no buffer while memory is short, is
/// written as it is.)
fn all_packed(pool: &hugeswap::Pool, r: &Region, g: u64) {
    let before = packed(pool).0;
    until("a unit was packed", || {
        put(r, g);
        page_out(r);
        packed(pool).0 > before
    });
}

/// Changes a word in every `step`th page of a region, from page `first` on; its pages are then as
/// [`changed`] has them.
fn change(r: &Region, g: u64, first: usize, step: usize) {
    let pages = (first..r.len() / PAGE).step_by(step);
    pages.for_each(|page| words(r)[page * 512 + 7].store(value(page, g), Relaxed));
}

/// Verifies what [`change`] has made of pages of a region, and puts them back to what [`put`] did.
fn change_back(r: &Region, g: u64, first: usize, step: usize) {
    for page in (first..r.len() / PAGE).step_by(step) {
        let word = &words(r)[page * 512 + 7];
        assert_eq!(word.load(Relaxed), value(page, g), "page {page}");
        word.store(0, Relaxed);
    }
}

fn pages_that_change_go_elsewhere() {
    need_pages();
    need_huge_pages();
    let pool = pool(32).set("thp.swapin=never").build().unwrap();
    let r = pool.region(40 * MIB).unwrap();
    for (g, step) in [(1, 37), (2, 3)] {
        pool.set("thp.swapin=always").unwrap();
        all_packed(&pool, &r, g);
        pool.set("thp.swapin=never").unwrap();
        for first in [0, 1] {
            change(&r, g, first, step);
            page_out(&r);
        }
        for first in [0, 1] {
            change_back(&r, g, first, step);
        }
        verify(&r, g);
    }
    no_harm(&pool);
}

/// Pages of a packed cluster that compressed memory has besides are dropped from there, and not
/// written to where the device would have them if the cluster were not packed.
fn clean_pages_are_never_written_back_over_it() {
    need_pages();
    need_huge_pages();
    let pool = pool(32).set("zswap.max_pool_percent=20").build().unwrap();
    let r = pool.region(72 * MIB).unwrap();
    all_packed(&pool, &r, 1);
    pool.set("thp.swapin=never").unwrap();
    pool.set("zswap.enabled=always").unwrap();
    // What fits into memory and compressed memory is read again and again, so that most of it was read
    // while it was compressed; then the rest, for which that has to make room.
    let read = |pages: std::ops::Range<usize>| {
        for page in pages {
            assert!(words(&r)[page * 512].load(Relaxed) > 0);
        }
    };
    let (some, all) = (38 * MIB / PAGE, r.len() / PAGE);
    until("clean pages were stored, and room made", || {
        (0..3).for_each(|_| read(0..some));
        read(some..all);
        counter(&pool, "zswap_stored_clean") > 20_000
    });
    pool.set("zswap.enabled=never").unwrap();
    verify(&r, 1);
    no_harm(&pool);
}

fn a_child_reads_what_its_parent_packed() {
    need_huge_pages();
    let pool = pool(32).build().unwrap();
    let r = pool.region(48 * MIB).unwrap();
    for setting in ["thp.swapin=always", "thp.swapin=never"] {
        all_packed(&pool, &r, 1);
        pool.set(setting).unwrap();
        let pid = child(|| {
            verify(&r, 1);
            put(&r, 11);
            verify(&r, 11);
        });
        change(&r, 1, 3, 11);
        page_out(&r);
        change_back(&r, 1, 3, 11);
        verify(&r, 1);
        put(&r, 2);
        verify(&r, 2);
        ended_well(pid);
        verify(&r, 2);
        pool.set("thp.swapin=always").unwrap();
    }
    no_harm(&pool);
}

fn the_dead_leave_no_packed_cluster() {
    need_huge_pages();
    let pool = pool(32).build().unwrap();
    let pid = child(|| {
        let r = pool.region(96 * MIB).unwrap();
        all_packed(&pool, &r, 1);
        // SAFETY: this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    });
    ended(pid);
    // What had packed clusters is claimed for single pages, and for noise.
    pool.set("thp.swapin=never").unwrap();
    let r = pool.region(96 * MIB).unwrap();
    for g in 0..2 {
        fill(&r, g);
        check(&r, g);
    }
    no_harm(&pool);
}

fn it_can_be_turned_off_and_on_again() {
    need_huge_pages();
    let pool = pool(32).build().unwrap();
    let r = pool.region(64 * MIB).unwrap();
    for g in 0..4 {
        let on = if g % 2 == 0 { "always" } else { "never" };
        pool.set(format!("swap.compress={on}").as_str()).unwrap();
        let before = packed(&pool).0;
        put(&r, g);
        verify(&r, g);
        // (Some may have been on their way when it was turned off.)
        let more = packed(&pool).0 - before;
        assert_eq!(more > 4096, g % 2 == 0, "{on}: {more}");
    }
    no_harm(&pool);
}

fn an_area_with_packed_clusters_is_taken_off() {
    need_huge_pages();
    let spec = SwapSpec {
        size: Some(512 << 20),
        ..SwapSpec::new("/var/tmp")
    };
    let pool = pool(32).build().unwrap();
    let r = pool.region(64 * MIB).unwrap();
    all_packed(&pool, &r, 1);
    if !in_pieces() {
        // Some of them by the page.
        pool.set("thp.swapin=never").unwrap();
        change(&r, 1, 0, 700);
        page_out(&r);
    }
    let area = pool.swap_on(&spec).unwrap();
    let all = pool.swap_areas();
    let first = all.iter().map(|a| a.index).find(|&i| i != area).unwrap();
    pool.swap_off(first, |_| true).unwrap();
    if !in_pieces() {
        change_back(&r, 1, 0, 700);
    }
    verify(&r, 1);
    no_harm(&pool);
}

/// Swap has room for the region and little more: packed clusters of which pages have gone elsewhere
/// are written anew, so that their slots can be had.
fn swap_that_is_full_is_written_anew() {
    need_pages();
    need_huge_pages();
    let spec = SwapSpec {
        size: Some(84 << 20),
        ..SwapSpec::new("/var/tmp")
    };
    let pool = hugeswap::Pool::builder()
        .memory(32 << 20)
        .swap_area(spec)
        .fault_mode(hugeswap::FaultMode::Signal)
        .set("swap.compress=always")
        .set("zswap.enabled=never")
        .build()
        .unwrap();
    let r = pool.region(38 * MIB).unwrap();
    all_packed(&pool, &r, 1);
    // Noise fills the rest.
    let noise = pool.region(36 * MIB).unwrap();
    fill(&noise, 1);
    page_out(&noise);
    pool.set("thp.swapin=never").unwrap();
    for first in 0..3 {
        change(&r, 1, first, 3);
        page_out(&r);
        check(&noise, 1);
    }
    (0..3).for_each(|first| change_back(&r, 1, first, 3));
    verify(&r, 1);
    check(&noise, 1);
    no_harm(&pool);
}

fn reads_that_are_spoilt_are_tried_again() {
    need_huge_pages();
    for encrypted in [false, true] {
        let pool = pool(32)
            .encrypt(encrypted)
            .set("debug.swap_read_flip=5")
            .build()
            .unwrap();
        let r = pool.region(40 * MIB).unwrap();
        for (g, setting) in [(0, "always"), (1, "never"), (2, "always")] {
            put(&r, g);
            pool.set(format!("thp.swapin={setting}").as_str()).unwrap();
            verify(&r, g);
        }
        assert!(packed(&pool).0 > 1000);
        assert!(counter(&pool, "swap_sum_error") > 0);
        no_harm(&pool);
    }
}

/// Bytes of a packed cluster that change on the device are told, and only what they were part of is
/// lost.
fn damage_is_told() {
    need_pages();
    need_huge_pages();
    let pool = pool(32).build().unwrap();
    let r = pool.region(40 * MIB).unwrap();
    all_packed(&pool, &r, 1);
    let fds = swap_fds();
    let [fd] = fds[..] else {
        panic!("{fds:?}");
    };
    // All blocks of the first cluster of the file but the first, in which the first pages are.
    // (Direct I/O wants an aligned buffer.)
    let junk = vec![0xab_u8; UNIT + 4096];
    let from = junk[junk.as_ptr().align_offset(4096)..].as_ptr();
    // SAFETY: bytes of a vector, to a file that is open.
    let n = unsafe { libc::pwrite(fd, from.cast(), UNIT - 4096, 4096) };
    assert_eq!(n, UNIT as isize - 4096);
    let lost = child(|| verify(&r, 1));
    let status = ended(lost);
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
    // Other units are there.
    let whole = (0..r.len() / UNIT).filter(|unit| {
        let first = unit * UNIT / 8;
        let pid = child(|| {
            for i in (first..first + UNIT / 8).step_by(512) {
                assert!(words(&r)[i].load(Relaxed) > 0);
            }
        });
        ended(pid).success()
    });
    assert_eq!(whole.count(), r.len() / UNIT - 1);
}

fn packed_units_under_a_storm() {
    need_huge_pages();
    let pool = pool(64).set("debug.storm=50").build().unwrap();
    let r = pool.region(96 * MIB).unwrap();
    put(&r, 0);
    write_by_threads(&r);
    verify_either(&r);
    assert!(packed(&pool).0 > 0);
    no_harm(&pool);
}

fn parts_that_are_discarded_are_zeros() {
    need_pages();
    need_huge_pages();
    let pool = pool(32).build().unwrap();
    let mut r = pool.region(40 * MIB).unwrap();
    all_packed(&pool, &r, 1);
    pool.set("thp.swapin=never").unwrap();
    // All but the first 40 pages of each unit, in which few are left then; and every third of these.
    for unit in 0..r.len() / UNIT {
        r.discard(unit * UNIT + 40 * PAGE, UNIT - 40 * PAGE)
            .unwrap();
        for page in (0..40).step_by(3) {
            r.discard(unit * UNIT + page * PAGE, PAGE).unwrap();
        }
    }
    let other = pool.region(40 * MIB).unwrap();
    fill(&other, 2);
    page_out(&other);
    let whole = pool.region(8 * MIB).unwrap();
    put(&whole, 1);
    for page in 0..r.len() / PAGE {
        let there = page % 512 < 40 && page % 512 % 3 != 0;
        let i = page * 512 + 4;
        let word = words(&r)[i].load(Relaxed);
        assert_eq!(
            word,
            if there { value(i, 1) >> 40 } else { 0 },
            "page {page}"
        );
    }
    check(&other, 2);
    no_harm(&pool);
}
