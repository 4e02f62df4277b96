//! Swap without a device (`--swap mem`): what leaves memory is compressed and stays in memory, all
//! of it, within the budget; what there is no room for is refused as by a full area.

use crate::util::*;
use crate::zswap::{PAGE, put, touch, usage, verify};
use hugeswap::{Builder, FaultMode, Pool, SwapSpec};
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::Ordering::Relaxed;

tests! {
    all_that_leaves_is_compressed,
    whole_units_come_back_without_single_pages,
    faults_that_are_messages => all_comes_back(alone(48).fault_mode(FaultMode::Message), 48),
    the_smallest_budget => all_comes_back(alone(16), 16),
    noise_is_kept_as_it_is_while_there_is_room,
    more_than_there_is_room_for_ends_the_process,
    room_that_comes_free_is_used_again,
    pages_that_are_in_memory_take_no_room_twice,
    scattered_pages_come_back_where_room_is_short,
    many_that_rest_leave_room_for_one_that_works,
    a_child_reads_what_its_parent_has_compressed,
    a_child_of_the_dead_reads_what_they_had,
    a_disk_takes_what_there_is_no_room_for,
    it_is_taken_off_while_a_disk_has_room,
    settings_do_not_turn_it_off,
    threads_at_random_under_a_storm,
}

/// Without a disk, and with settings that would compress nothing.
fn alone(memory: usize) -> Builder {
    Pool::builder()
        .memory((memory * MIB) as u64)
        .swap_area(SwapSpec::memory())
        .fault_mode(FaultMode::Signal)
        .set("zswap.enabled=never")
}

fn all_comes_back(builder: Builder, memory: usize) {
    let pool = builder.build().unwrap();
    let all = memory * MIB;
    let r = pool.region(2 * all).unwrap();
    for g in 0..3 {
        put(&r, g);
        verify(&r, g);
    }
    // (A unit is counted as compressed a moment before it is as one that left.)
    let counted = || (counter(&pool, "pswpout"), counter(&pool, "zswpout"));
    until("all that left was compressed", || {
        counted().0 == counted().1
    });
    assert!(counted().1 > 1000);
    // (Two frames more, for a moment, where no other could be made free.)
    let peak = pool.stats().peak_resident_bytes;
    assert!(peak as usize <= all + 4 * MIB, "{peak} bytes of {all}");
    no_harm(&pool);
}

fn all_that_leaves_is_compressed() {
    for (size, by) in [("always", "lz4"), ("never", "auto"), ("auto", "zstd")] {
        let pool = alone(64)
            .set(format!("thp.swapin={size}").as_str())
            .set(format!("zswap.compressor={by}").as_str());
        all_comes_back(pool, 64);
    }
}

/// As in a container that refuses userfaultfd.
fn whole_units_come_back_without_single_pages() {
    all_comes_back(alone(64).set("debug.userfaultfd=off"), 64);
}

fn noise_is_kept_as_it_is_while_there_is_room() {
    let pool = alone(64).build().unwrap();
    let r = pool.region(56 * MIB).unwrap();
    for g in 0..4 {
        fill(&r, g);
        check(&r, g);
    }
    no_harm(&pool);
}

fn more_than_there_is_room_for_ends_the_process() {
    let pool = alone(32).build().unwrap();
    let status = in_child(|| {
        let r = pool.region(128 * MIB).unwrap();
        fill(&r, 1);
        check(&r, 1);
    });
    assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
    // And the next has all of it.
    ended_well(child(|| {
        let r = pool.region(64 * MIB).unwrap();
        put(&r, 1);
        verify(&r, 1);
    }));
    no_harm(&pool);
}

fn room_that_comes_free_is_used_again() {
    let pool = alone(64).build().unwrap();
    for g in 0..6 {
        let r = pool.region(144 * MIB).unwrap();
        put(&r, g);
        verify(&r, g);
    }
    until("all is free", || usage(&pool).1 == 0);
    no_harm(&pool);
}

/// What comes back to memory leaves compressed memory, whether there is room there or not, and is
/// compressed again when it leaves. Nothing is gathered: without a device that would gain nothing,
/// and pages of the units that it scatters keep their blocks.
fn pages_that_are_in_memory_take_no_room_twice() {
    const DATA: u64 = 96 * MIB as u64;
    for most in ["40", "80"] {
        let pool = alone(64)
            .set("thp.swapin=never")
            .set("swap.gather=always")
            .set("zswap.compressor=lz4")
            .set(&format!("zswap.max_pool_percent={most}"));
        let pool = pool.build().unwrap();
        let r = pool.region(DATA as usize).unwrap();
        put(&r, 1);
        for seed in 1..6 {
            touch(&r, 20_000, seed);
        }
        assert!(counter(&pool, "zswpin") > 10_000);
        let (takes, holds) = usage(&pool);
        let stats = pool.stats();
        let uncompressed = stats.resident_bytes - takes - stats.free_bytes;
        assert!(
            uncompressed + holds < DATA + DATA / 16,
            "{uncompressed} and {holds} of {DATA}, in {takes}: {stats:?}"
        );
        no_harm(&pool);
    }
}

/// Of units of which few pages were ever touched: their slots lie here and there.
fn scattered_pages_come_back_where_room_is_short() {
    const USED: usize = 60;
    const UNITS: usize = 400;
    let settings = [
        "thp.enabled=never",
        "zswap.compressor=lz4",
        "zswap.max_pool_percent=40",
    ];
    let pool = settings.iter().fold(alone(64), |b, s| b.set(*s));
    let pool = pool.build().unwrap();
    let r = pool.region(UNITS * UNIT).unwrap();
    let words = words(&r);
    // Page `n` of those that are used.
    let page = |n: usize| (n / USED * UNIT + n % USED * PAGE) / 8;
    let mut model = vec![0u64; UNITS * USED];
    let mut x = 9u64;
    for round in 0..30_000 + model.len() {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        let n = match round.checked_sub(model.len()) {
            None => round,
            Some(_) => x as usize % model.len(),
        };
        let at = page(n);
        assert_eq!(words[at].load(Relaxed), model[n], "page {n}, round {round}");
        if model[n] == 0 || x >> 40 & 1 == 0 {
            model[n] = x | 1;
            // (A fifth of it is noise.)
            for i in 0..96 {
                words[at + i].store(model[n].wrapping_mul(i as u64 * 2 + 1), Relaxed);
            }
        }
    }
    let (takes, _) = usage(&pool);
    assert!(takes > 11 * MIB as u64, "there is room enough: {takes}");
    assert!(counter(&pool, "zswpin") > 10_000);
    no_harm(&pool);
}

/// Each process has compressed memory of its own; those that rest hold no empty frames.
fn many_that_rest_leave_room_for_one_that_works() {
    const MANY: usize = 12;
    let pool = alone(112).build().unwrap();
    let (mut from, mut to) = std::io::pipe().unwrap();
    let resting: Vec<_> = (0..MANY)
        .map(|_| {
            child(|| {
                let r = pool.region(6 * MIB).unwrap();
                put(&r, 7);
                std::io::Read::read_exact(&mut from, &mut [0]).unwrap();
                verify(&r, 7);
            })
        })
        .collect();
    until_all(&pool, MANY);
    let r = pool.region(128 * MIB).unwrap();
    for g in 0..2 {
        put(&r, g);
        verify(&r, g);
    }
    drop(r);
    // (What one has compressed takes a frame, or a little more.)
    until("those that rest hold no empty frames", || {
        usage(&pool).0 <= (MANY * UNIT * 3 / 2) as u64
    });
    std::io::Write::write_all(&mut to, &[1; MANY]).unwrap();
    resting.into_iter().for_each(ended_well);
    no_harm(&pool);
}

/// Until so many processes have come to the pool, and have had time to reserve what they would.
fn until_all(pool: &Pool, many: usize) {
    until("all are there", || {
        pool.stats().resident_bytes >= (many * 2 * UNIT) as u64
    });
}

fn a_child_reads_what_its_parent_has_compressed() {
    let pool = alone(64).build().unwrap();
    let r = pool.region(72 * MIB).unwrap();
    put(&r, 1);
    let pid = child(|| {
        verify(&r, 1);
        put(&r, 11);
        verify(&r, 11);
    });
    put(&r, 2);
    verify(&r, 2);
    ended_well(pid);
    verify(&r, 2);
    no_harm(&pool);
}

fn a_child_of_the_dead_reads_what_they_had() {
    let pool = alone(64).build().unwrap();
    let (mut from, to) = std::io::pipe().unwrap();
    let parent = child(|| {
        let r = pool.region(96 * MIB).unwrap();
        put(&r, 1);
        child(|| {
            std::thread::sleep(std::time::Duration::from_millis(300));
            verify(&r, 1);
            std::io::Write::write_all(&mut &to, b"1").unwrap();
        });
        // SAFETY: ends this process at once, with nothing given back.
        unsafe { libc::_exit(0) };
    });
    ended_well(parent);
    drop(to);
    let mut said = [0; 1];
    std::io::Read::read_exact(&mut from, &mut said).expect("the grandchild's word");
}

fn with_disk() -> Pool {
    let mut disk = SwapSpec::new("/var/tmp");
    disk.size = Some(512 << 20);
    let memory = SwapSpec {
        priority: 10,
        ..SwapSpec::memory()
    };
    Pool::builder()
        .memory(48 << 20)
        .swap_area(memory)
        .swap_area(disk)
        .fault_mode(FaultMode::Signal)
        .build()
        .unwrap()
}

fn a_disk_takes_what_there_is_no_room_for() {
    let pool = with_disk();
    let r = pool.region(160 * MIB).unwrap();
    for g in 0..2 {
        fill(&r, g);
        check(&r, g);
    }
    let (out, kept) = (counter(&pool, "pswpout"), counter(&pool, "zswpout"));
    assert!(kept > 0 && out > kept, "{out} left, {kept} were compressed");
    no_harm(&pool);
}

fn it_is_taken_off_while_a_disk_has_room() {
    let pool = with_disk();
    let r = pool.region(112 * MIB).unwrap();
    put(&r, 1);
    let all = pool.swap_areas();
    let memory = all.iter().max_by_key(|a| a.priority).unwrap().index;
    pool.swap_off(memory, |_| true).unwrap();
    verify(&r, 1);
    put(&r, 2);
    verify(&r, 2);
    assert_eq!(pool.swap_areas().len(), 1);
    no_harm(&pool);
}

fn settings_do_not_turn_it_off() {
    let pool = alone(48).build().unwrap();
    let r = pool.region(96 * MIB).unwrap();
    for (g, setting) in (0..).zip(["always", "auto", "never", "auto", "always"]) {
        put(&r, g);
        pool.set(format!("zswap.enabled={setting}").as_str())
            .unwrap();
        verify(&r, g);
    }
    no_harm(&pool);
}

fn threads_at_random_under_a_storm() {
    let pool = alone(48).set("debug.storm=50").build().unwrap();
    let r = pool.region(80 * MIB).unwrap();
    put(&r, 3);
    std::thread::scope(|s| {
        for t in 0..4 {
            let r = &r;
            s.spawn(move || touch(r, 20_000, t * 77 + 5));
        }
    });
    assert!(counter(&pool, "zswpin") > 0);
    no_harm(&pool);
}
