//! Swap areas that come and go while the pool is in use.

use crate::util::*;
use hugeswap::{FaultMode, Pool, Region, SwapArea, SwapOffError, SwapSpec};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

tests! {
    swaps_take_turns_by_priority,
    #[long]
    swap_off_moves_everything => in_mode(FaultMode::Signal, swap_off_moves_everything),
    #[long]
    swap_off_moves_everything_by_messages => in_mode(FaultMode::Message, swap_off_moves_everything),
    #[long]
    swap_off_in_pieces => with_pieces(swap_off_moves_everything),
    swap_off_during_a_storm,
    #[long]
    swap_off_with_forked_children => in_mode(FaultMode::Signal, swap_off_with_forked_children),
    #[long]
    swap_off_with_forked_children_by_messages => in_mode(FaultMode::Message, swap_off_with_forked_children),
    #[long]
    swap_off_after_the_parent,
    swap_off_goes_to_memory,
    swap_off_without_room_is_refused,
    swap_off_can_be_interrupted,
    swap_off_of_what_cannot_be_read_ends_nothing,
    #[long]
    swaps_come_and_go_many_times,
}

fn area(mib: usize, priority: i32) -> SwapSpec {
    let mut spec = SwapSpec::new("/var/tmp");
    spec.size = Some((mib * MIB) as u64);
    spec.priority = priority;
    spec
}

fn find(pool: &Pool, index: usize) -> Option<SwapArea> {
    pool.swap_areas().into_iter().find(|a| a.index == index)
}

fn used(pool: &Pool, index: usize) -> u64 {
    find(pool, index).expect("the area").used_bytes
}

fn off(pool: &Pool, index: usize) {
    pool.swap_off(index, |_| true).unwrap();
    assert_eq!(find(pool, index), None);
}

fn swaps_take_turns_by_priority() {
    let pool = Pool::builder()
        .memory(32 << 20)
        .swap_area(area(64, 1))
        .swap_area(area(512, 0))
        .swap_area(area(512, 0))
        .build()
        .unwrap();
    let r = pool.region(320 * MIB).unwrap();
    fill(&r, 1);
    check(&r, 1);
    let [first, second, third] = [0, 1, 2].map(|i| used(&pool, i));
    assert!(
        first >= 60 << 20,
        "the highest priority is filled first: {first}"
    );
    let apart = second.abs_diff(third);
    assert!(
        apart <= 16 << 20 && second > 80 << 20,
        "{second} and {third}"
    );
    // A higher one yet takes what finds its first place from now on.
    let new = pool.swap_on(&area(512, 9)).unwrap();
    let s = pool.region(128 * MIB).unwrap();
    fill(&s, 2);
    assert!(used(&pool, new) > 90 << 20, "{:?}", pool.swap_areas());
    check(&r, 1);
    check(&s, 2);
    assert_eq!(pool.audit(), Ok(()));
}

/// A pool with one area, in each way that units can be swapped.
fn in_all_ways(test: impl Fn(&Pool)) {
    in_ways(
        &[
            "thp.swapin=auto",
            "thp.swapin=always",
            "thp.swapin=never",
            "thp.enabled=never",
        ],
        test,
    );
}

fn in_ways(ways: &[&str], test: impl Fn(&Pool)) {
    both_modes(|mode| {
        for ways in ways {
            let pool = builder(32).fault_mode(mode).set(*ways).build().unwrap();
            test(&pool);
            assert_eq!(pool.audit(), Ok(()));
        }
    });
}

/// One word in each of a few pages all over the region.
fn touch_here_and_there(r: &Region, g: u64) {
    let bytes = r.len();
    for i in (0..bytes / 4096).step_by(37) {
        write(r, i * 4096, g);
    }
}

fn write(r: &Region, at: usize, g: u64) {
    // SAFETY: within the region, and aligned.
    unsafe { (r.as_ptr().add(at) as *mut u64).write_volatile(word(at, g)) };
}

fn word(at: usize, g: u64) -> u64 {
    (at as u64 ^ g).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn swap_off_moves_everything() {
    in_all_ways(|pool| {
        let r = pool.region(64 * MIB).unwrap();
        fill(&r, 1);
        check(&r, 1);
        // Some of it scattered, some base-mapped and dirty.
        let s = pool.region(48 * MIB).unwrap();
        touch_here_and_there(&s, 5);
        check(&r, 1);
        let before = counter(pool, "swap_moved");
        let second = pool.swap_on(&area(1024, 3)).unwrap();
        let held = used(pool, 0);
        assert!(held > 0);
        off(pool, 0);
        assert!(counter(pool, "swap_moved") > before);
        assert!(used(pool, second) > 0);
        assert_eq!(pool.audit(), Ok(()));
        check(&r, 1);
        for i in (0..s.len() / 4096).step_by(37) {
            // SAFETY: within the region, and aligned.
            let got = unsafe { (s.as_ptr().add(i * 4096) as *const u64).read_volatile() };
            assert_eq!(got, word(i * 4096, 5));
        }
        fill(&r, 2);
        check(&r, 2);
        assert_eq!(counter(pool, "hwpoison"), 0);
    });
}

fn swap_off_during_a_storm() {
    both_modes(|mode| {
        let pool = builder(32)
            .fault_mode(mode)
            .set("debug.storm=50")
            .build()
            .unwrap();
        let r = pool.region(96 * MIB).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for t in 0..3 {
                let (r, stop) = (&r, &stop);
                scope.spawn(move || {
                    let part = r.len() / 3;
                    let mut g = 1;
                    while !stop.load(Relaxed) {
                        for at in (t * part..(t + 1) * part).step_by(4096 * 5) {
                            write(r, at, g);
                        }
                        for at in (t * part..(t + 1) * part).step_by(4096 * 5) {
                            // SAFETY: within the region, and aligned.
                            let got = unsafe { (r.as_ptr().add(at) as *const u64).read_volatile() };
                            assert_eq!(got, word(at, g), "at {at:#x}");
                        }
                        g += 1;
                    }
                });
            }
            let mut now = 0;
            for _ in 0..3 {
                let next = pool.swap_on(&area(256, 0)).unwrap();
                off(&pool, now);
                now = next;
            }
            stop.store(true, Relaxed);
        });
        assert_eq!(pool.audit(), Ok(()));
        no_harm(&pool);
    });
}

/// Checks a region until the area is off. For a child, which must not outlive a parent that is
/// stopped.
fn check_until_it_is_off(pool: &Pool, r: &Region, g: u64) {
    let start = Instant::now();
    while find(pool, 0).is_some() {
        check(r, g);
        assert!(start.elapsed() < Duration::from_secs(380), "it is still on");
    }
    check(r, g);
}

/// A child reads the memory that the parent has in swap, and memory that it wrote itself, from an
/// area that goes away.
fn swap_off_with_forked_children() {
    in_ways(&["thp.swapin=auto", "thp.swapin=never"], |pool| {
        let r = pool.region(32 * MIB).unwrap();
        let s = pool.region(32 * MIB).unwrap();
        fill(&r, 1);
        fill(&s, 1);
        let kids = [0, 1].map(|k| {
            child(|| {
                if k == 1 {
                    fill(&s, 7);
                }
                check_until_it_is_off(pool, &r, 1);
                check(&s, if k == 1 { 7 } else { 1 });
                fill(&r, 9);
                check(&r, 9);
            })
        });
        fill(&s, 3);
        pool.swap_on(&area(1024, 0)).unwrap();
        off(pool, 0);
        kids.into_iter().for_each(ended_well);
        check(&r, 1);
        check(&s, 3);
    });
}

/// A process takes an area off although a grandchild uses it, after the process between them has
/// gone.
fn swap_off_after_the_parent() {
    let pool = builder(32).build().unwrap();
    let r = pool.region(96 * MIB).unwrap();
    fill(&r, 1);
    let mut pipe = [0; 2];
    // SAFETY: room for two descriptors.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    let between = child(|| {
        fill(&r, 4);
        child(|| {
            // SAFETY: ours to close.
            unsafe { libc::close(pipe[0]) };
            check_until_it_is_off(&pool, &r, 4);
            // SAFETY: one byte that lives.
            assert_eq!(unsafe { libc::write(pipe[1], [1u8].as_ptr().cast(), 1) }, 1);
        });
    });
    ended_well(between);
    // SAFETY: ours to close.
    unsafe { libc::close(pipe[1]) };
    pool.swap_on(&area(1024, 0)).unwrap();
    off(&pool, 0);
    check(&r, 1);
    let mut byte = [0u8];
    // SAFETY: one byte to be written to.
    let got = unsafe { libc::read(pipe[0], byte.as_mut_ptr().cast(), 1) };
    assert_eq!((got, byte), (1, [1]), "the grandchild's memory was right");
}

fn swap_off_goes_to_memory() {
    // The second area has room for a part only; the budget has room for the rest.
    let pool = builder(160).build().unwrap();
    let r = pool.region(96 * MIB).unwrap();
    fill(&r, 1);
    r.advise(0, r.len(), hugeswap::Advice::PageOut).unwrap();
    assert!(used(&pool, 0) > 64 << 20);
    pool.swap_on(&area(32, 0)).unwrap();
    off(&pool, 0);
    check(&r, 1);
    assert_eq!(pool.audit(), Ok(()));
}

fn swap_off_without_room_is_refused() {
    let pool = builder(32).build().unwrap();
    let r = pool.region(256 * MIB).unwrap();
    fill(&r, 1);
    pool.swap_on(&area(32, 0)).unwrap();
    let refused = pool.swap_off(0, |_| true).unwrap_err();
    assert!(
        matches!(refused, SwapOffError::NoRoom { area: 0, room } if room.missing() > 100 << 20)
    );
    assert!(
        refused.to_string().contains("too few; add an area first"),
        "{refused}"
    );
    assert_eq!(pool.swap_off(5, |_| true), Err(SwapOffError::NoArea(5)));
    check(&r, 1);
    assert!(!find(&pool, 0).unwrap().draining);
}

fn swap_off_can_be_interrupted() {
    let pool = builder(32).build().unwrap();
    let r = pool.region(256 * MIB).unwrap();
    fill(&r, 1);
    let second = pool.swap_on(&area(512, 0)).unwrap();
    let stopped = pool.swap_off(0, |_| false);
    assert!(
        matches!(stopped, Err(SwapOffError::Interrupted { area: 0, .. })),
        "{stopped:?}"
    );
    assert!(!find(&pool, 0).unwrap().draining);
    check(&r, 1);
    fill(&r, 2);
    off(&pool, second);
    check(&r, 2);
    assert_eq!(pool.audit(), Ok(()));
}

fn swap_off_of_what_cannot_be_read_ends_nothing() {
    let pool = builder(32).set("thp.swapin=always").build().unwrap();
    let r = pool.region(96 * MIB).unwrap();
    fill(&r, 1);
    pool.swap_on(&area(512, 0)).unwrap();
    pool.set("debug.swap_read_fail=1").unwrap();
    let mut looks = 0;
    let stopped = pool.swap_off(0, |_| {
        looks += 1;
        looks < 300
    });
    assert!(
        matches!(stopped, Err(SwapOffError::Unreadable { left, pages, .. }) if left > 0 && pages > 0),
        "{stopped:?}"
    );
    pool.set("debug.swap_read_fail=0").unwrap();
    check(&r, 1);
    off(&pool, 0);
    check(&r, 1);
}

fn swaps_come_and_go_many_times() {
    let pool = builder(32).build().unwrap();
    let r = pool.region(64 * MIB).unwrap();
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let mut now = 0;
    let mut descriptors = 0;
    for g in 0..16 {
        fill(&r, g);
        let next = pool.swap_on(&area(128, 0)).unwrap();
        assert!(next < 2, "numbers are used again");
        off(&pool, now);
        check(&r, g);
        now = next;
        if g == 4 {
            descriptors = open();
        }
    }
    assert_eq!(open(), descriptors);
    assert_eq!(pool.swap_areas().len(), 1);
    no_harm(&pool);
    assert_eq!(pool.audit(), Ok(()));
}
