//! Shared memory that comes in before it is touched: ahead of streams, and on request.

use crate::shared::{check_unit, shared, write_unit};
use crate::util::*;
use hugeswap::{Advice, FaultMode, SharedRegion};
use hugeswap_policy::knobs::Knob;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

tests! {
    #[long]
    shared_is_read_ahead_of_streams,
    shared_is_brought_in_when_asked_for,
    #[long]
    shared_ahead_ends_with_its_region,
    shared_ahead_leaves_errors_to_the_touch,
}

const UNITS: usize = 24;

fn is_there(r: &SharedRegion, u: usize) -> bool {
    r.is_resident(u * UNIT)
}

/// Streams go upwards and downwards, and may be of any process. Memory that no stream wants is not
/// read.
fn shared_is_read_ahead_of_streams() {
    // Each in a pool that has seen no stream before.
    let touch = |most: u32, by: &dyn Fn(&SharedRegion), next: Option<Range<usize>>| {
        let pool = builder(96).build().unwrap();
        pool.set(&format!("readahead.max={most}")).unwrap();
        let r = shared(&pool, UNITS * UNIT, "stream");
        (0..UNITS).for_each(|u| write_unit(&r, u, 1));
        page_out(&r);
        by(&r);
        match next {
            Some(next) => until("more of it is there", || {
                next.clone().any(|u| is_there(&r, u))
            }),
            None => assert_eq!(counter(&pool, "swap_ra"), 0),
        }
        (0..UNITS).for_each(|u| check_unit(&r, u, 1));
        assert_eq!(counter(&pool, "swap_ra") > 0, most > 0);
        pool.audit().unwrap();
    };
    let up = |r: &SharedRegion| (2..6).for_each(|u| check_unit(r, u, 1));
    touch(8, &up, Some(6..10));
    touch(0, &up, None);
    touch(
        8,
        &|r| (11..15).rev().for_each(|u| check_unit(r, u, 1)),
        Some(7..11),
    );
    touch(
        8,
        &|r| [3, 20, 10].into_iter().for_each(|u| check_unit(r, u, 1)),
        None,
    );
    // A stream of a child's is as good, and what it brings in is there for its parent. (Its threads
    // end with it, so it waits for them.)
    let up_and_ahead = |r: &SharedRegion| {
        up(r);
        until("more of it is there, in the child", || {
            (6..10).any(|u| is_there(r, u))
        });
    };
    touch(8, &|r| ended_well(child(|| up_and_ahead(r))), Some(6..10));
}

/// Advice brings memory in, but not more than there is room for.
fn shared_is_brought_in_when_asked_for() {
    let pool = builder(32).build().unwrap();
    let r = shared(&pool, UNITS * UNIT, "asked for");
    (0..UNITS).for_each(|u| write_unit(&r, u, 1));
    page_out(&r);
    r.advise(3 * UNIT, 2 * UNIT, Advice::WillNeed).unwrap();
    until("they are there", || is_there(&r, 3) && is_there(&r, 4));
    assert!(!is_there(&r, 2) && !is_there(&r, 5));
    r.advise(0, UNITS * UNIT, Advice::WillNeed).unwrap();
    until("most of the budget is used", || {
        (0..UNITS).filter(|&u| is_there(&r, u)).count() >= 8
    });
    (0..UNITS).for_each(|u| check_unit(&r, u, 1));
    let s = pool.stats();
    assert!(s.peak_resident_bytes <= 32 * MIB as u64, "{s:?}");
    pool.audit().unwrap();
}

/// If a region is given up while memory is read for it, the bytes do not appear in the next region
/// at its place.
fn shared_ahead_ends_with_its_region() {
    let pool = builder(96).build().unwrap();
    pool.set("debug.fault_seed=3").unwrap();
    for _ in 0..20 {
        let r = shared(&pool, UNITS * UNIT, "given up");
        (0..UNITS).for_each(|u| write_unit(&r, u, 7));
        page_out(&r);
        // Every read takes up to 15 ms.
        pool.set("debug.fault_delay=1000000").unwrap();
        r.advise(0, UNITS * UNIT, Advice::WillNeed).unwrap();
        until("it has begun", || is_there(&r, 0));
        drop(r);
        pool.set("debug.fault_delay=0").unwrap();
        let next = shared(&pool, UNITS * UNIT, "the next");
        assert!(words(&next).iter().all(|w| w.load(Relaxed) == 0));
    }
    pool.audit().unwrap();
}

/// Memory that cannot be read ahead costs only the attempt, and no frame.
fn shared_ahead_leaves_errors_to_the_touch() {
    let engine = engine(96, FaultMode::Signal, &[]);
    let pool = engine.pool();
    let (addr, len) = match engine.share("errors", UNITS * UNIT) {
        Ok(addr) => (addr, UNITS * UNIT),
        Err(e) => skip(&e.to_string()),
    };
    let bytes: Vec<u8> = (0..len).map(|i| (i / 4096 + i) as u8).collect();
    // SAFETY: the region is this test's, and as long.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), addr as *mut u8, len) };
    until("all of it leaves", || {
        engine.pageout(addr, len);
        pool.shared_frames() == 0
    });
    pool.set_knob(Knob::SwapReadFail, 1);
    engine.willneed(addr, len);
    until("each was tried", || {
        pool.report().areas[0].read_errors >= UNITS as u64
    });
    pool.set_knob(Knob::SwapReadFail, 0);
    assert_eq!(pool.shared_frames(), 0);
    let mut back = vec![0; len];
    engine.copy_out(addr, &mut back).unwrap();
    assert!(back == bytes);
    engine.unmap_shared(addr);
    // SAFETY: nothing of it is used any more.
    unsafe { engine.stop() };
}
