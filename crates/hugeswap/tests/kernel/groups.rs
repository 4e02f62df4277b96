//! Groups of regions: promises, soft limits and limits on swap; and which base pages stay in
//! memory.

use crate::enabled::{read, write};
use crate::util::*;
use hugeswap::{Advice, Error, Pool, Region};

tests! {
    #[long]
    groups_keep_what_they_are_promised,
    groups_above_high_go_first,
    groups_take_no_more_swap_than_they_may,
    groups_take_no_more_swap_by_pages,
    what_is_paged_out_is_in_swap,
    groups_refuse_contradictions,
    spared_are_base_pages_that_come_back_soon,
}

fn pool(memory: usize) -> Pool {
    builder(memory).set("thp.swapin=always").build().unwrap()
}

fn resident(r: &Region) -> usize {
    (0..r.len() / UNIT)
        .filter(|u| r.is_resident(u * UNIT))
        .count()
}

fn groups_keep_what_they_are_promised() {
    let pool = pool(64);
    let (kept, other) = (
        pool.region(24 * MIB).unwrap(),
        pool.region(256 * MIB).unwrap(),
    );
    let group = pool.group("kept").unwrap();
    group.set_min(24 << 20).unwrap();
    kept.set_group(&group).unwrap();
    fill(&kept, 1);
    for round in 0..3 {
        fill(&other, round);
    }
    assert_eq!(resident(&kept), 12, "nothing of it was taken for the other");
    assert_eq!(group.stats().resident_bytes, 24 << 20);
    assert_eq!(group.stats().swap_bytes, 0);
    check(&kept, 1);
    check(&other, 2);
    // Not promised any more: it goes like everything else.
    group.set_min(0).unwrap();
    for round in 3..6 {
        fill(&other, round);
    }
    assert!(resident(&kept) < 12);
    check(&kept, 1);
    // Who comes after it has its addresses, and nothing else of it.
    let at = kept.as_ptr();
    drop(kept);
    let next = pool.region(24 * MIB).unwrap();
    assert_eq!(next.as_ptr(), at);
    fill(&next, 1);
    let s = group.stats();
    assert_eq!((s.resident_bytes, s.swap_bytes), (0, 0));
}

fn groups_above_high_go_first() {
    // What is kept free is always the same: raised marks would take of the other region, too.
    let pool = builder(64).set("vm.watermark_boost_factor=0");
    let pool = pool.build().unwrap();
    let (soft, other) = (
        pool.region(40 * MIB).unwrap(),
        pool.region(48 * MIB).unwrap(),
    );
    let group = pool.group("soft").unwrap();
    group.set_high(Some(8 << 20)).unwrap();
    soft.set_group(&group).unwrap();
    fill(&other, 1);
    fill(&soft, 1);
    // The other region came first, and stays.
    fill(&soft, 2);
    let (soft_has, stats) = (group.stats(), pool.stats());
    assert!(
        resident(&other) >= 20,
        "{} of 24 are left of the other; {soft_has:?}, {stats:?}",
        resident(&other)
    );
    check(&other, 1);
    check(&soft, 2);
    assert!(pool.group("soft").unwrap().stats().pgscan > 0);
}

fn groups_take_no_more_swap_than_they_may() {
    let pool = pool(64);
    let (mut r, other) = (
        pool.region(32 * MIB).unwrap(),
        pool.region(128 * MIB).unwrap(),
    );
    let group = pool.group("little").unwrap();
    group.set_swap_max(Some(10 << 20)).unwrap();
    r.set_group(&group).unwrap();
    fill(&r, 1);
    r.advise(0, 32 * MIB, Advice::PageOut).unwrap();
    // (Two threads write: one may find that the other is at it.)
    let all_but_one = 8 << 20..=10 << 20;
    let used = group.stats().swap_bytes;
    assert!(all_but_one.contains(&used), "{used} bytes of swap");
    assert!(resident(&r) >= 16 - 5);
    fill(&other, 1);
    fill(&other, 2);
    assert!(group.stats().swap_bytes <= 10 << 20);
    check(&r, 1);
    check(&other, 2);
    // What is given up is room again.
    r.discard(0, 32 * MIB).unwrap();
    assert_eq!(group.stats().swap_bytes, 0);
    fill(&r, 3);
    r.advise(0, 32 * MIB, Advice::PageOut).unwrap();
    let used = group.stats().swap_bytes;
    assert!(all_but_one.contains(&used), "{used} bytes of swap");
    check(&r, 3);
}

fn groups_take_no_more_swap_by_pages() {
    need_pages();
    let pool = builder(64).set("thp.enabled=never").build().unwrap();
    let r = pool.region(32 * MIB).unwrap();
    let group = pool.group("little").unwrap();
    group.set_swap_max(Some(3 << 20)).unwrap();
    r.set_group(&group).unwrap();
    // Ten pages of each unit, apart.
    (0..16).for_each(|u| (0..10).for_each(|p| write(&r, u * UNIT + 3 * p * 4096, 7)));
    r.advise(0, 32 * MIB, Advice::PageOut).unwrap();
    assert_eq!(group.stats().swap_bytes, 160 * 4096);
    assert_eq!(group.stats().resident_bytes, 0);
    fill(&r, 1);
    r.advise(0, 32 * MIB, Advice::PageOut).unwrap();
    assert!(group.stats().swap_bytes <= 3 << 20);
    assert!(group.stats().resident_bytes >= 28 << 20);
    check(&r, 1);
    pool.audit().unwrap();
}

/// A unit has no page in memory a moment before its swap is accounted for: who waits for it to leave
/// waits for both.
fn what_is_paged_out_is_in_swap() {
    need_pages();
    let pool = builder(64).set("thp.enabled=never").build().unwrap();
    let r = pool.region(UNIT).unwrap();
    let group = pool.group("one").unwrap();
    r.set_group(&group).unwrap();
    for round in 0..400 {
        (0..10).for_each(|p| write(&r, 3 * p * 4096, round));
        r.advise(0, UNIT, Advice::PageOut).unwrap();
        let s = group.stats();
        assert_eq!((s.resident_bytes, s.swap_bytes), (0, 40960), "{round}");
    }
}

fn groups_refuse_contradictions() {
    let pool = pool(64);
    let group = pool.group("a").unwrap();
    group.set_high(Some(8 << 20)).unwrap();
    assert!(matches!(group.set_min(16 << 20), Err(Error::Group(_))));
    let rest = pool.group("b").unwrap();
    rest.set_min(40 << 20).unwrap();
    let e = rest.set_min(60 << 20).unwrap_err().to_string();
    assert!(e.contains("at most") && !e.contains('\n'), "{e}");
    assert!(pool.group("").is_err());
    (2..15).for_each(|i| drop(pool.group(&format!("g{i}")).unwrap()));
    assert!(matches!(pool.group("one too many"), Err(Error::Group(_))));
    assert!(pool.group("a").is_ok());
    let other = builder(32).build().unwrap();
    let r = other.region(4 * MIB).unwrap();
    assert!(r.set_group(&group).is_err());
}

/// Reads some pages of every unit again and again, and all others once in between. Tells how many
/// pages come in for the former once it is known which these are (median of the steps).
fn hot_pages_in(detection: &str) -> u64 {
    let pool = builder(16)
        .set("thp.swapin=never")
        .set(detection)
        .build()
        .unwrap();
    let r = pool.region(32 * MIB).unwrap();
    fill(&r, 1);
    r.advise(0, 32 * MIB, Advice::PageOut).unwrap();
    let pages = 32 * MIB / 4096;
    let hot = |p: usize| p.is_multiple_of(8);
    let look = |p: usize| assert_eq!(read(&r, p * 4096), value(p * 512, 1));
    let mut came = Vec::new();
    for step in 0..24 {
        let before = pool.stats().pswpin;
        (0..pages).filter(|&p| hot(p)).for_each(look);
        came.push(pool.stats().pswpin - before);
        let (round, part) = (step / 8, step % 8);
        (0..pages)
            .filter(|&p| !hot(p) && p % 8 == (part + round) % 8)
            .for_each(look);
    }
    pool.audit().unwrap();
    let learned = &mut came[12..];
    learned.sort_unstable();
    learned[learned.len() / 2]
}

fn spared_are_base_pages_that_come_back_soon() {
    need_pages();
    let (on, off) = (
        hot_pages_in("workingset.detection=on"),
        hot_pages_in("workingset.detection=off"),
    );
    println!("{on} pages in, {off} without detection");
    assert!(on * 2 < off, "{on} pages in, {off} without detection");
}
