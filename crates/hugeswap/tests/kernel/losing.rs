//! Swap areas that are taken off although some of their pages cannot be read.

use crate::faulty::is_lost;
use crate::integrity::{Swap, spoil_half_of_it};
use crate::util::*;
use hugeswap::{Advice, FaultMode, Pool, Region, SwapOffError, SwapSpec};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

tests! {
    #[disk]
    unreadable_pages_keep_an_area_on => keep_an_area_on(),
    unreadable_pages_are_given_up_if_asked => given_up_if_asked(),
    encrypted_unreadable_pages_are_given_up => with_encryption(given_up_if_asked),
    unreadable_pages_in_pieces_are_given_up => with_pieces(given_up_if_asked),
    #[disk]
    unreadable_pages_in_memory_are_saved => in_memory_are_saved(),
    unreadable_base_pages => base_pages(),
    unreadable_pieces => with_pieces(base_pages),
    unreadable_scattered_pages => scattered_pages(),
    #[disk]
    what_is_lost_is_not_somebody_elses,
}

const PAGE: usize = 4096;
/// The pages of each unit that are spoilt.
const BAD: [usize; 2] = [3, 400];

fn area(mib: usize, priority: i32) -> SwapSpec {
    let mut spec = SwapSpec::new("/var/tmp");
    spec.size = Some((mib * MIB) as u64);
    spec.priority = priority;
    spec
}

/// Takes an area off until no page has moved for a while, and repeats this with a longer wait until
/// the result is the expected one. Returns the last result.
fn try_off(
    pool: &Pool,
    index: usize,
    expected: impl Fn(&Result<(), SwapOffError>) -> bool,
) -> Result<(), SwapOffError> {
    let mut patience = Duration::from_millis(500);
    loop {
        let mut last = (u64::MAX, Instant::now());
        let came = pool.swap_off(index, |left| {
            if left < last.0 {
                last = (left, Instant::now());
            }
            last.1.elapsed() < patience
        });
        patience *= 2;
        if expected(&came) || came.is_ok() || patience > Duration::from_secs(40) {
            return came;
        }
    }
}

/// True if the area stays on with so many pages that cannot be read.
fn keeps(n: u64) -> impl Fn(&Result<(), SwapOffError>) -> bool {
    move |came| matches!(came, Err(SwapOffError::Unreadable { pages, .. }) if *pages == n)
}

fn is_on(pool: &Pool, index: usize) -> bool {
    pool.swap_areas().iter().any(|a| a.index == index)
}

/// A region of whole units in swap, with a few spoilt pages in each.
fn spoilt(pool: &Pool, units: usize) -> (Region, Swap, Vec<u64>) {
    let r = pool.region(units * UNIT).unwrap();
    fill(&r, 1);
    page_out(&r);
    let swap = Swap::of_the_pool();
    let clusters = swap.clusters();
    let bad = clusters.iter().flat_map(|c| BAD.map(|p| c + p as u64));
    let bad: Vec<u64> = bad.collect();
    bad.iter().for_each(|&b| swap.flip(b));
    (r, swap, bad)
}

/// Checks that a region whose units have lost the pages [`BAD`] has the rest, and that the lost
/// pages are zeros once they are discarded.
fn the_rest_is_there(r: &mut Region) {
    let units = r.len() / UNIT;
    for page in 0..units * 512 {
        let bad = BAD.contains(&(page % 512));
        // Without userfaultfd what is beside it comes with it.
        if bad || !in_pieces() {
            assert_eq!(is_lost(r, page, 1), bad, "page {page}");
        }
        if bad {
            r.discard(page * PAGE, PAGE).unwrap();
        }
    }
    for (i, w) in words(r).iter().enumerate() {
        let bad = BAD.contains(&(i / 512 % 512));
        let want = if bad { 0 } else { value(i, 1) };
        assert_eq!(w.load(Relaxed), want, "word {i}");
    }
}

fn keep_an_area_on() {
    both_modes(|mode| {
        let pool = builder(32).fault_mode(mode).build().unwrap();
        let (r, swap, bad) = spoilt(&pool, 8);
        pool.swap_on(&area(512, 0)).unwrap();
        let stays = try_off(&pool, 0, keeps(16));
        let Err(SwapOffError::Unreadable { area, left, pages }) = stays else {
            panic!("{stays:?}");
        };
        assert_eq!((area, pages), (0, 16));
        assert!(left > 0 && left <= 8 * UNIT as u64, "{left}");
        let said = stays.unwrap_err().to_string();
        assert!(said.contains("16 pages cannot be read"), "{said}");
        // Nothing is given up by that: the device may give them back.
        assert_eq!(counter(&pool, "hwpoison"), 0);
        assert_eq!(pool.stats().swap_bad_bytes, 0);
        pool.audit().unwrap();
        bad.iter().for_each(|&b| swap.flip(b));
        pool.swap_off(0, |_| true).unwrap();
        check(&r, 1);
        pool.audit().unwrap();
    });
}

fn given_up_if_asked() {
    both_modes(|mode| {
        let pool = builder(32).fault_mode(mode).build().unwrap();
        let (mut r, _swap, _) = spoilt(&pool, 8);
        let second = pool.swap_on(&area(512, 0)).unwrap();
        let lost = pool.swap_off_losing(0, |_| true).unwrap();
        assert!(!is_on(&pool, 0));
        assert_eq!(pool.stats().swap_bad_bytes, 0, "they were the area's");
        pool.audit().unwrap();
        let said = counter(&pool, "hwpoison");
        if mode == FaultMode::Message {
            assert_eq!((lost, said), (8 * 512, 16 + 8));
            assert!((0..8).all(|u| is_lost(&r, u * 512 + 7, 1)));
            r.discard(0, r.len()).unwrap();
        } else {
            assert_eq!((lost, said), (16, 16));
            // There is nothing left to lose: it leaves like anything else.
            let third = pool.swap_on(&area(512, 0)).unwrap();
            assert_eq!(third, 0);
            assert_eq!(try_off(&pool, second, Result::is_ok), Ok(()));
            the_rest_is_there(&mut r);
        }
        assert_eq!(counter(&pool, "hwpoison"), said, "counted once");
        fill(&r, 2);
        page_out(&r);
        check(&r, 2);
        pool.audit().unwrap();
    });
}

/// Units that are in memory are saved: their copies in swap cannot be read, and need not be.
fn in_memory_are_saved() {
    both_modes(|mode| {
        for touched in [false, true] {
            let pool = builder(64)
                .fault_mode(mode)
                .set("thp.swapin=always")
                .build()
                .unwrap();
            let r = pool.region(6 * UNIT).unwrap();
            fill(&r, 1);
            page_out(&r);
            if touched {
                check(&r, 1);
            } else {
                // They wait in the arena.
                r.advise(0, r.len(), Advice::WillNeed).unwrap();
            }
            until("they come", || (0..6).all(|u| r.is_resident(u * UNIT)));
            let swap = Swap::of_the_pool();
            swap.used().into_iter().for_each(|b| swap.flip(b));
            pool.swap_on(&area(512, 0)).unwrap();
            assert_eq!(try_off(&pool, 0, Result::is_ok), Ok(()));
            pool.audit().unwrap();
            check(&r, 1);
            page_out(&r);
            check(&r, 1);
            assert_eq!(counter(&pool, "hwpoison"), 0);
            pool.audit().unwrap();
        }
    });
}

fn base_pages() {
    need_pages();
    let pool = builder(64).set("thp.swapin=never").build().unwrap();
    let mut r = pool.region(4 * UNIT).unwrap();
    fill(&r, 1);
    page_out(&r);
    spoil_half_of_it(&r);
    pool.swap_on(&area(512, 0)).unwrap();
    let stays = try_off(&pool, 0, keeps(4));
    assert!(keeps(4)(&stays), "{stays:?}");
    assert_eq!(counter(&pool, "hwpoison"), 0);
    pool.audit().unwrap();
    assert_eq!(pool.swap_off_losing(0, |_| true), Ok(4));
    assert_eq!(counter(&pool, "hwpoison"), 4);
    pool.audit().unwrap();
    page_out(&r);
    assert!((0..4).all(|u| is_lost(&r, u * 512 + 23, 1)));
    all_but_one_page_is_there(&mut r, 23);
    pool.audit().unwrap();
}

fn scattered_pages() {
    need_pages();
    let pool = pool_of_pages();
    let mut r = pool.region(16 * UNIT).unwrap();
    let pages: Vec<usize> = (0..16)
        .flat_map(|u| [5, 6, 7, 99].map(|p| u * 512 + p))
        .collect();
    for &p in &pages {
        for i in p * 512..(p + 1) * 512 {
            words(&r)[i].store(value(i, 1), Relaxed);
        }
    }
    page_out(&r);
    let swap = Swap::of_the_pool();
    // One page in so many; which of them are whose is the engine's business.
    let used = swap.used();
    let spoilt: Vec<u64> = used.iter().copied().step_by(5).collect();
    spoilt.iter().for_each(|&b| swap.flip(b));
    pool.swap_on(&area(512, 0)).unwrap();
    // The others leave.
    let stays = try_off(
        &pool,
        0,
        |came| matches!(came, Err(SwapOffError::Unreadable { left, pages, .. }) if *left == pages * PAGE as u64),
    );
    let Err(SwapOffError::Unreadable { left, pages: n, .. }) = stays else {
        panic!("{stays:?}");
    };
    // What the device was measured with is nobody's.
    assert!(n > 8 && n as usize <= spoilt.len(), "{n}");
    assert_eq!(left, n * PAGE as u64, "the others have left");
    assert_eq!(counter(&pool, "hwpoison"), 0);
    pool.audit().unwrap();
    assert_eq!(pool.swap_off_losing(0, |_| true), Ok(n));
    assert_eq!(counter(&pool, "hwpoison"), n);
    pool.audit().unwrap();
    let lost: Vec<usize> = pages.into_iter().filter(|&p| is_lost(&r, p, 1)).collect();
    assert_eq!(lost.len() as u64, n);
    for p in lost {
        r.discard(p * PAGE, PAGE).unwrap();
        assert_eq!(words(&r)[p * 512].load(Relaxed), 0);
    }
    drop(r);
    pool.audit().unwrap();
    assert_eq!(pool.stats().swap_used_bytes, 0);
}

/// A lost page may have a slot that another process used before. The page of that process was found
/// there, and taken for the lost page.
fn what_is_lost_is_not_somebody_elses() {
    need_pages();
    for scattered in [false, true] {
        let mut pool = builder(64).set("thp.swapin=never");
        if scattered {
            pool = pool.set("thp.enabled=never");
        }
        let pool = pool.build().unwrap();
        let r = pool.region(8 * UNIT).unwrap();
        let put = |r: &Region, g: u64| {
            let step = if scattered { 512 * 16 } else { 1 };
            let all = words(r).iter().enumerate().step_by(step);
            all.for_each(|(i, w)| w.store(value(i, g), Relaxed));
        };
        put(&r, 1);
        page_out(&r);
        let swap = Swap::of_the_pool();
        let used = swap.used();
        // All that the area has a child had before, and did not give back itself.
        let second = pool.swap_on(&area(64, 9)).unwrap();
        let status = in_child(|| {
            let all = pool.region(40 * MIB).unwrap();
            fill(&all, 7);
            page_out(&all);
            std::mem::forget(all);
        });
        assert!(status.success(), "{status}");
        used.iter().step_by(5).for_each(|&b| swap.flip(b));
        until("what the child had is free", || {
            pool.swap_areas()[second].used_bytes == 0
        });
        let lost = pool.swap_off_losing(0, |_| true).unwrap();
        assert!(lost > 0);
        let mut bytes = [0; PAGE];
        let pages = (0..r.len() / PAGE).step_by(if scattered { 16 } else { 1 });
        for page in pages {
            if r.read_at(page * PAGE, &mut bytes).is_ok() {
                let word = u64::from_ne_bytes(bytes[..8].try_into().unwrap());
                assert_eq!(word, value(page * 512, 1), "page {page}");
            }
        }
        pool.audit().unwrap();
    }
}
