//! Huge pages of which most pages are zero: what leaves memory of them, and what comes back.

use crate::model::Draw;
use crate::util::*;
use hugeswap::{Advice, Pool, Region};
use std::sync::atomic::Ordering::Relaxed;

tests! {
    what_is_mostly_zero_takes_few_slots,
    what_is_written_to_again_replaces_its_slots,
    #[long]
    sparse_units_survive_random_work,
}

const PAGES: usize = UNIT / 4096;
/// One page of so many is not zero.
const APART: usize = 37;

fn pool(memory: usize) -> Pool {
    need_pages();
    let pool = builder(memory).set("zswap.enabled=never");
    pool.build().unwrap()
}

/// Every page of a region begins with what `holds` tells, and has nothing else.
fn check_pages(r: &Region, holds: impl Fn(usize) -> u64) {
    for (i, word) in words(r).iter().enumerate() {
        let right = if i % 512 == 0 { holds(i / 512) } else { 0 };
        assert_eq!(
            word.load(Relaxed),
            right,
            "word {} of page {}",
            i % 512,
            i / 512
        );
    }
}

/// What pages begin with after [`change`], where the others are zero.
fn changed(to: u64) -> impl Fn(usize) -> u64 {
    move |page| match page % APART {
        0 => page as u64 + to,
        _ => 0,
    }
}

/// Changes one page of [`APART`], which makes its unit a huge page.
fn change(r: &Region, to: u64) {
    for page in (0..r.len() / 4096).step_by(APART) {
        words(r)[page * 512].store(page as u64 + to, Relaxed);
    }
}

fn what_is_mostly_zero_takes_few_slots() {
    let pool = pool(64);
    let r = pool.region(32 * MIB).unwrap();
    let some = (32 * MIB / 4096).div_ceil(APART) as u64;
    change(&r, 1);
    page_out(&r);
    let s = pool.stats();
    assert_eq!((s.pswpout, s.pswpin), (some, 0), "{s:?}");
    // By pages: zeros are read from nowhere.
    pool.set("thp.swapin=never").unwrap();
    check_pages(&r, changed(1));
    assert_eq!(pool.stats().pswpin, some);
    page_out(&r);
    // As wholes.
    let pins: Vec<_> = (0..16)
        .map(|u| r.pin(u * UNIT, UNIT, false).unwrap())
        .collect();
    check_pages(&r, changed(1));
    assert_eq!(pool.stats().pswpin, 2 * some);
    drop(pins);
    pool.audit().unwrap();
    no_harm(&pool);
}

/// The slots of before are given up, also where the unit had a cluster, or gets one.
fn what_is_written_to_again_replaces_its_slots() {
    let pool = pool(64);
    let mut r = pool.region(16 * MIB).unwrap();
    let group = pool.group("one").unwrap();
    r.set_group(&group).unwrap();
    let swap = || group.stats().swap_bytes / 4096;
    let some = (16 * MIB / 4096).div_ceil(APART) as u64;
    let whole = |r: &Region| {
        for unit in 0..8 {
            drop(r.pin(unit * UNIT, UNIT, true).unwrap());
        }
    };
    for round in 1..5 {
        whole(&r);
        change(&r, round);
        page_out(&r);
        assert_eq!(swap(), some, "{round}");
    }
    whole(&r);
    fill(&r, 1);
    page_out(&r);
    assert_eq!(swap(), 8 * PAGES as u64);
    whole(&r);
    words(&r).iter().for_each(|w| w.store(0, Relaxed));
    change(&r, 9);
    page_out(&r);
    assert_eq!(swap(), some);
    check_pages(&r, changed(9));
    r.discard(0, 16 * MIB).unwrap();
    assert_eq!(swap(), 0);
    pool.audit().unwrap();
    no_harm(&pool);
}

fn sparse_units_survive_random_work() {
    let pool = pool(16);
    let mut r = pool.region(64 * MIB).unwrap();
    let pages = 64 * MIB / 4096;
    let mut holds = vec![0u64; pages];
    let mut draw = Draw::new(1);
    let mut random = |n: usize| draw.below(n as u64) as usize;
    for step in 0..60_000 {
        let page = random(pages);
        let word = &words(&r)[page * 512];
        assert_eq!(word.load(Relaxed), holds[page], "step {step}, page {page}");
        match random(64) {
            0 => {
                let unit = page / PAGES * UNIT;
                r.advise(unit, UNIT, Advice::PageOut).unwrap();
            }
            1 => {
                r.discard(page * 4096, 4096).unwrap();
                holds[page] = 0;
            }
            2 => drop(r.pin(page / PAGES * UNIT, UNIT, true).unwrap()),
            3..16 => {
                word.store(0, Relaxed);
                holds[page] = 0;
            }
            16..48 => {
                holds[page] = step + 1;
                word.store(step + 1, Relaxed);
            }
            _ => {}
        }
    }
    pool.audit().unwrap();
    check_pages(&r, |page| holds[page]);
    page_out(&r);
    check_pages(&r, |page| holds[page]);
    no_harm(&pool);
}
