//! Forked children that get no record in the pool, or get it late.

use crate::util::*;
use hugeswap::{Advice, Region};
use std::io::{Read, Write, pipe};
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

tests! {
    more_children_than_records,
    #[long]
    a_child_that_comes_late,
}

/// True if unit 0 of `r` is in memory and as it was filled, and a touch of memory that the parent
/// had in swap raises SIGBUS.
fn has_memory_only(r: &Region) -> bool {
    let good = (0..UNIT / 8).all(|i| words(r)[i].load(Relaxed) == value(i, 1));
    let touched = in_child(|| assert_ne!(words(r)[UNIT / 8].load(Relaxed), 1));
    good && touched.signal() == Some(libc::SIGBUS)
}

/// Fills a region, and leaves units 1 and up in swap.
fn half_away(r: &mut Region) {
    fill(r, 1);
    page_out(r);
    (0..UNIT / 8).for_each(|i| assert_eq!(words(r)[i].load(Relaxed), value(i, 1)));
}

fn is_as_filled(r: &Region) {
    for (i, w) in words(r).iter().enumerate() {
        assert_eq!(w.load(Relaxed), value(i, 1), "word {i}");
    }
}

/// 256 processes can share a pool. A child beyond these has its parent's memory without the
/// parent's swap, and harms no other process.
fn more_children_than_records() {
    let pool = builder(64).set("thp.swapin=always").build().unwrap();
    let mut r = pool.region(8 * UNIT).unwrap();
    half_away(&mut r);
    let (wait, end) = pipe().unwrap();
    let mut end = Some(end);
    let children: Vec<_> = (1..256)
        .map(|_| {
            child(|| {
                drop(end.take());
                let _ = (&wait).read(&mut [0]);
            })
        })
        .collect();
    let used = pool.stats().swap_used_bytes;
    for _ in 0..2 {
        ended_well(child(|| {
            drop(end.take());
            assert!(has_memory_only(&r));
            // Its own copy; it cannot be brought out.
            (0..UNIT / 8).for_each(|i| words(&r)[i].store(7, Relaxed));
            r.advise(0, UNIT, Advice::PageOut).unwrap();
            assert!((0..UNIT / 8).all(|i| words(&r)[i].load(Relaxed) == 7));
            r.discard(0, r.len()).unwrap();
            assert_eq!(words(&r)[UNIT / 8].load(Relaxed), 0);
        }));
    }
    assert_eq!(pool.stats().swap_used_bytes, used);
    pool.audit().unwrap();
    is_as_filled(&r);
    drop(end.take());
    children.into_iter().for_each(ended_well);
    // There is room again.
    until("a record", || in_child(|| is_as_filled(&r)).success());
    drop(r);
    until("slots have leaked", || pool.stats().swap_used_bytes == 0);
    pool.audit().unwrap();
}

static SLOW: AtomicBool = AtomicBool::new(false);

extern "C" fn be_slow() {
    if SLOW.load(Relaxed) {
        std::thread::sleep(Duration::from_secs(13));
    }
}

/// A child gets its record and its share of its parent's swap, however late it comes.
fn a_child_that_comes_late() {
    // SAFETY: the function lives as long as the process. Children run it before hugeswap's.
    unsafe { libc::pthread_atfork(None, None, Some(be_slow)) };
    let pool = builder(64).set("thp.swapin=always").build().unwrap();
    let mut r = pool.region(8 * UNIT).unwrap();
    half_away(&mut r);
    SLOW.store(true, Relaxed);
    let late = child(|| {
        SLOW.store(false, Relaxed);
        is_as_filled(&r);
        fill(&r, 2);
        page_out(&r);
        assert!((0..r.len() / 8).all(|i| words(&r)[i].load(Relaxed) == value(i, 2)));
    });
    SLOW.store(false, Relaxed);
    let (mut wait, mut end) = pipe().unwrap();
    std::thread::sleep(Duration::from_secs(11));
    let next = child(|| {
        let _ = wait.read(&mut [0]);
        is_as_filled(&r);
    });
    // (What it is to read has been written anew by its parent meanwhile.)
    fill(&r, 1);
    page_out(&r);
    ended_well(late);
    is_as_filled(&r);
    end.write_all(&[1]).unwrap();
    ended_well(next);
    drop(r);
    until("slots have leaked", || pool.stats().swap_used_bytes == 0);
    pool.audit().unwrap();
}
