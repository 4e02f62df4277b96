//! The page states that the library reports are true.

use crate::util::*;
use hugeswap::{Advice, Categories, FaultMode, Filter, ManagedRange, PageState, Pool, Region};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};

tests! {
    pagemap_follows_a_page,
    pagemap_follows_a_page_of_4k,
    pagemap_is_right_in_a_child,
    pagemap_says_where_in_swap,
    pagemap_tells_what_is_lost,
    pagemap_agrees_with_itself,
    pagemap_of_pages_that_move_in_swap,
}

const PAGE: usize = 4096;

/// The state of a page, once no thread is changing it.
pub fn at(r: &ManagedRange, page: usize) -> PageState {
    let mut state = r.pagemap().nth(page).unwrap();
    until("it is not in transit", || {
        state = r.pagemap().nth(page).unwrap();
        !state.categories.has(Categories::IN_TRANSIT)
    });
    state
}

/// Checks that a page is `what`, and that its entry says so.
pub fn is(r: &ManagedRange, page: usize, what: Categories, when: &str) {
    let state = at(r, page);
    let three = Categories::PRESENT | Categories::SWAPPED | Categories::ZERO;
    assert_eq!(state.categories & three, what, "{when}: {state:?}");
    assert_eq!(state.swap.is_some(), what == Categories::SWAPPED, "{when}");
    let mut entry = [0];
    assert_eq!(r.pagemap_entries(page, &mut entry).unwrap(), 1);
    assert_eq!(entry[0], state.entry(), "{when}");
    let bit = |n: u32| entry[0] >> n & 1 == 1;
    assert_eq!(bit(63), what == Categories::PRESENT, "{when}");
    assert_eq!(bit(62), what == Categories::SWAPPED, "{when}");
    assert_eq!(bit(61), r.is_shared() && what != Categories::ZERO, "{when}");
}

/// Pages out until the page has left memory.
fn out(r: &mut Region, page: usize) {
    let unit = page * PAGE / UNIT * UNIT;
    until("it has left", || {
        r.advise(unit, UNIT, Advice::PageOut).unwrap();
        !r.is_resident(page * PAGE)
    });
}

/// The functional sequence of the markers' series: pages that are present, pages in swap, and pages
/// that were removed and are neither.
fn six_steps(pool: &Pool) {
    let mut r = pool.region(8 * MIB).unwrap();
    let page = 777;
    let touch = |r: &Region| words(r)[page * PAGE / 8].store(5, Relaxed);
    is(&r, page, Categories::ZERO, "untouched");
    touch(&r);
    is(&r, page, Categories::PRESENT, "touched");
    out(&mut r, page);
    is(&r, page, Categories::SWAPPED, "paged out");
    assert_eq!(words(&r)[page * PAGE / 8].load(Relaxed), 5);
    is(&r, page, Categories::PRESENT, "touched again");
    r.discard(0, 8 * MIB).unwrap();
    is(&r, page, Categories::ZERO, "removed");
    r.advise(0, 8 * MIB, Advice::PageOut).unwrap();
    is(&r, page, Categories::ZERO, "removed, and paged out");
    touch(&r);
    out(&mut r, page);
    r.discard(page * PAGE, PAGE).unwrap();
    // (Without single pages all of the unit comes in, and the page of zeros is there.)
    if pool.fault_mode() == FaultMode::Signal {
        is(&r, page, Categories::ZERO, "paged out, and removed");
    }
}

fn pagemap_follows_a_page() {
    both_modes(|mode| six_steps(&builder(32).fault_mode(mode).build().unwrap()));
}

fn pagemap_follows_a_page_of_4k() {
    need_pages();
    let pool = builder(32).set("thp.swapin=never").build().unwrap();
    six_steps(&pool);
    pool.set("thp.enabled=never").unwrap();
    six_steps(&pool);
}

fn pagemap_is_right_in_a_child() {
    both_modes(|mode| {
        let pool = builder(32).fault_mode(mode).build().unwrap();
        let mut r = pool.region(16 * MIB).unwrap();
        for page in [10, 1000, 2000] {
            words(&r)[page * 512].store(page as u64, Relaxed);
        }
        out(&mut r, 1000);
        r.discard(2000 * PAGE / UNIT * UNIT, UNIT).unwrap();
        let child = || {
            is(&r, 10, Categories::PRESENT, "of the parent, in memory");
            assert!(at(&r, 10).categories.has(Categories::SHARED));
            is(&r, 1000, Categories::SWAPPED, "of the parent, in swap");
            is(&r, 2000, Categories::ZERO, "removed by the parent");
            assert_eq!(words(&r)[1000 * 512].load(Relaxed), 1000);
            is(&r, 1000, Categories::PRESENT, "touched by the child");
            words(&r)[10 * 512].store(11, Relaxed);
            assert!(!at(&r, 10).categories.has(Categories::SHARED));
        };
        assert!(in_child(child).success());
        is(&r, 1000, Categories::SWAPPED, "touched by the child alone");
    });
}

fn pagemap_says_where_in_swap() {
    let pool = builder(32).build().unwrap();
    let r = pool.region(24 * MIB).unwrap();
    fill(&r, 1);
    page_out(&r);
    let swap = pool.swap_areas();
    let mut seen = std::collections::BTreeSet::new();
    for state in r.pagemap() {
        let place = state.swap.expect("a place in swap");
        assert_eq!(usize::from(place.area), swap[0].index);
        assert!((place.page as usize * PAGE) < swap[0].bytes as usize);
        assert!(seen.insert(place.page), "no two at one place");
    }
    assert_eq!(seen.len(), r.len() / PAGE);
    // All of it as one range, and none of it in memory.
    let all = r.scan(0, r.len(), &Filter::default()).unwrap();
    assert_eq!(all.len(), 1, "{all:?}");
    assert_eq!(all[0].range, 0..r.len());
    let present = Filter {
        all: Categories::PRESENT,
        ..Filter::default()
    };
    assert_eq!(r.scan(0, r.len(), &present).unwrap(), []);
    // What is read is in memory, and not dirty: swap has it.
    let _ = words(&r)[(4 * MIB + 8) / 8].load(Relaxed);
    let found = r.scan(0, r.len(), &present).unwrap();
    assert!(found[0].range.contains(&(4 * MIB)), "{found:?}");
    assert!(!found[0].categories.has(Categories::DIRTY));
    assert!(r.scan(0, r.len() + 1, &present).is_err());
    assert_eq!(r.pagemap_entries(r.len() / PAGE, &mut [7]).unwrap(), 0);
}

fn pagemap_tells_what_is_lost() {
    need_pages();
    let pool = builder(32).build().unwrap();
    let r = pool.region(8 * MIB).unwrap();
    fill(&r, 1);
    page_out(&r);
    pool.set("debug.swap_read_fail=1").unwrap();
    assert!(r.read_at(3 * UNIT + 5 * PAGE, &mut [0; 8]).is_err());
    pool.set("debug.swap_read_fail=0").unwrap();
    let lost = Filter {
        all: Categories::POISONED,
        ..Filter::default()
    };
    let found = r.scan(0, r.len(), &lost).unwrap();
    let around = found
        .iter()
        .find(|f| f.range.contains(&(3 * UNIT + 5 * PAGE)));
    assert!(around.is_some(), "{found:?}");
    let entry = at(&r, (3 * UNIT + 5 * PAGE) / PAGE).entry();
    assert_eq!(entry, 1 << 62 | ((1 << 50) - 1) << 5);
    check_but(
        &r,
        &found.iter().map(|f| f.range.clone()).collect::<Vec<_>>(),
    );
}

/// Checks that every page but `lost` is as it was filled.
fn check_but(r: &Region, lost: &[std::ops::Range<usize>]) {
    for (i, w) in words(r).iter().enumerate() {
        if !lost.iter().any(|l| l.contains(&(i * 8))) {
            assert_eq!(w.load(Relaxed), value(i, 1), "word {i}");
        }
    }
}

/// The number of pages of which all ways to look at them say the same, and the number of pages that
/// did not change meanwhile.
fn looked_at(r: &Region) -> (usize, usize) {
    // kswapd goes on by itself: what was looked at twice with the same answer counts.
    let pages: Vec<PageState> = r.pagemap().collect();
    let mut entries = vec![0; pages.len() + 5];
    let n = r.pagemap_entries(0, &mut entries).unwrap();
    assert_eq!(n, pages.len());
    let ranges = r.scan(0, r.len(), &Filter::default()).unwrap();
    let again: Vec<PageState> = r.pagemap().collect();
    let mut covered = 0;
    for f in &ranges {
        assert_eq!(f.range.start, covered, "no gaps");
        covered = f.range.end;
    }
    assert_eq!(covered, r.len());
    let (mut same, mut right) = (0, 0);
    for (page, (a, b)) in pages.iter().zip(&again).enumerate() {
        if a != b || a.categories.has(Categories::IN_TRANSIT) {
            continue;
        }
        same += 1;
        let range = ranges.iter().find(|f| f.range.contains(&(page * PAGE)));
        let told = range.map(|f| f.categories);
        right += usize::from(entries[page] == a.entry() && told == Some(a.categories));
    }
    assert!(same > 0);
    (right, same)
}

/// Compares pages, entries and ranges, while memory is used at random and nothing changes in
/// between.
fn pagemap_agrees_with_itself() {
    need_pages();
    let pool = builder(16).fault_mode(FaultMode::Signal).build().unwrap();
    let mut r = pool.region(48 * MIB).unwrap();
    let mut x = 9u64;
    for round in 0..40 {
        for _ in 0..400 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            let page = (x >> 8) as usize % (r.len() / PAGE);
            match x % 5 {
                0 | 1 => words(&r)[page * 512].store(x, Relaxed),
                2 if round % 4 == 0 => r.discard(page * PAGE, PAGE).unwrap(),
                _ => {
                    let _ = words(&r)[page * 512 + 7].load(Relaxed);
                }
            }
        }
        // (A unit may have gone and come back between the two looks; on a busy machine many have.)
        let mut looks = (0..3).map(|_| looked_at(&r));
        let agrees = |(right, same): (usize, usize)| right * 100 >= same * 95;
        assert!(looks.any(agrees), "round {round}");
    }
}

/// Pages that go to swap, and from places of their own to one cluster, are somewhere all the time.
fn pagemap_of_pages_that_move_in_swap() {
    need_pages();
    let pool = builder(16)
        .fault_mode(FaultMode::Signal)
        .set("thp.enabled=never")
        .set("swap.gather=never")
        .build()
        .unwrap();
    // A unit of which few pages were changed has places of their own, one of which more than half
    // were has a cluster.
    let (few, most) = (64, 400);
    let write = |r: &Region, pages: Range<usize>| {
        pages.for_each(|p| words(r)[p * PAGE / 8].store(p as u64 + 1, Relaxed));
    };
    for round in 0..100 {
        let r = pool.region(UNIT).unwrap();
        write(&r, 0..few);
        let (over, looks) = (AtomicBool::new(false), AtomicU32::new(0));
        let look = || {
            let mut entries = [0; 64];
            while !over.load(Relaxed) {
                assert_eq!(r.pagemap_entries(0, &mut entries).unwrap(), few);
                let there = entries.iter().filter(|&&e| e >> 62 != 0).count();
                if there != few {
                    over.store(true, Relaxed);
                    panic!("{there} pages are somewhere in round {round}");
                }
                looks.fetch_add(1, Relaxed);
            }
        };
        let out = |page: usize| {
            until("it has left", || {
                r.advise(0, UNIT, Advice::PageOut).unwrap();
                over.load(Relaxed) || !r.is_resident(page * PAGE)
            });
        };
        std::thread::scope(|s| {
            // (More than there are processors: one that stops in the middle of a look is it.)
            (0..6).for_each(|_| drop(s.spawn(look)));
            until("they look", || looks.load(Relaxed) > 0);
            out(0);
            write(&r, few..most);
            out(few);
            over.store(true, Relaxed);
        });
        (0..most).for_each(|p| assert_eq!(words(&r)[p * PAGE / 8].load(Relaxed), p as u64 + 1));
    }
    pool.audit().unwrap();
}
