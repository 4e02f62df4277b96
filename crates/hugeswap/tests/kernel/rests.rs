//! A watched unit that is touched goes over to base pages, and the rest of it stays in memory for a
//! while: what else is in use of it is not read from swap, and what is given up of it is gone.

use crate::util::*;
use hugeswap::{Pool, Region};
use std::sync::atomic::Ordering::Relaxed;

tests! {
    what_is_touched_of_a_watched_unit_is_not_read,
    what_is_given_up_or_changed_of_a_rest_stays_so,
    a_child_reads_what_was_aside_in_its_parent,
}

const PAGE: usize = 4096;
const PAGES: usize = UNIT / PAGE;

/// More than memory, all of it written, of which some units are watched.
fn filled() -> (Pool, Region) {
    need_base_pages();
    need_huge_pages();
    let pool = builder(64).set("thp.swapin=never").build().unwrap();
    let r = pool.region(96 * MIB).unwrap();
    fill(&r, 1);
    (pool, r)
}

fn word(r: &Region, page: usize) -> u64 {
    words(r)[page * 512].load(Relaxed)
}

fn is_right(r: &Region, page: usize) -> bool {
    word(r, page) == value(page * 512, 1)
}

/// Units that are whole in memory, of which reading `page` gave one up: a watched one, of which the rest
/// is aside.
fn watched<'a>(pool: &'a Pool, r: &'a Region, page: usize) -> impl Iterator<Item = usize> + 'a {
    (0..r.len() / UNIT).filter(move |&unit| {
        let first = unit * PAGES;
        let before = counter(pool, "thp_split_pmd");
        (0..PAGES).all(|p| r.is_resident((first + p) * PAGE))
            && is_right(r, first + page)
            && counter(pool, "thp_split_pmd") > before
    })
}

fn what_is_touched_of_a_watched_unit_is_not_read() {
    let (mut units, mut read) = (0, 0);
    for _ in 0..20 {
        let (pool, r) = filled();
        for unit in watched(&pool, &r, 1) {
            units += 1;
            let before = pool.stats().pswpin;
            // A quarter of it, here and there.
            assert!(
                (0..PAGES)
                    .step_by(4)
                    .all(|p| is_right(&r, unit * PAGES + p))
            );
            read += pool.stats().pswpin - before;
        }
        if units >= 8 {
            break;
        }
    }
    // (Where memory is short a rest goes before it is used.)
    let touched = units * PAGES as u64 / 4;
    println!("{units} units were watched, {read} of {touched} pages read");
    assert!(units > 0 && read < touched / 2);
}

fn what_is_given_up_or_changed_of_a_rest_stays_so() {
    let (pool, mut r) = filled();
    let found: Vec<usize> = watched(&pool, &r, 7).collect();
    if found.is_empty() {
        skip("no unit was watched at that moment");
    }
    for &unit in &found {
        let at = unit * UNIT;
        r.discard(at + 100 * PAGE, 50 * PAGE).unwrap();
        for p in 300..320 {
            words(&r)[(unit * PAGES + p) * 512].store(3, Relaxed);
        }
        for p in 400..410 {
            assert!(is_right(&r, unit * PAGES + p));
        }
        r.discard(at + 400 * PAGE, 5 * PAGE).unwrap();
    }
    for round in 0..3 {
        for &unit in &found {
            for p in 0..PAGES {
                let want = match p {
                    100..150 | 400..405 => 0,
                    300..320 => 3,
                    _ => value((unit * PAGES + p) * 512, 1),
                };
                assert_eq!(word(&r, unit * PAGES + p), want, "page {p}, round {round}");
            }
        }
        page_out(&r);
    }
}

fn a_child_reads_what_was_aside_in_its_parent() {
    let (pool, r) = filled();
    let n = watched(&pool, &r, 9).count();
    println!("{n} units were watched");
    assert!(in_child(|| check(&r, 1)).success());
    check(&r, 1);
}
