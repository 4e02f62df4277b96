//! Units mapped by base pages.

use crate::util::*;
use hugeswap::{Advice, Builder, FaultMode, Pool, Region, SwapSpec};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

tests! {
    pages_come_one_by_one,
    pages_read_are_not_written,
    #[long]
    pages_survive_random_work,
    pages_become_whole_when_held,
    pages_discarded_read_zero,
    #[long]
    pages_are_right_after_forks,
    pages_are_no_zeros_in_a_raw_fork,
    pages_zero_cost_no_io,
    pages_of_bad_swap_are_sigbus,
    pages_give_way_to_whole_units,
    pages_are_written_together,
    pages_are_polled_for,
    pages_are_gathered,
    pages_apart_come_together_and_go_to_one_place,
    holes_are_read_by_few_reads,
}

pub fn pool(memory: usize, mode: FaultMode) -> Pool {
    builder(memory)
        .fault_mode(mode)
        .set("thp.swapin=never")
        .build()
        .unwrap()
}

/// Runs `test` where units can be base-mapped: in signal mode, with userfaultfd unless 64 KiB
/// pieces replace it.
fn in_pages(test: impl Fn(FaultMode)) {
    need_pages();
    test(FaultMode::Signal);
}

/// A region with known content of which everything is in swap.
pub fn swapped(pool: &Pool, len: usize) -> Region {
    let r = pool.region(len).unwrap();
    fill(&r, 1);
    r.advise(0, len, Advice::PageOut).unwrap();
    assert!((0..len / UNIT).all(|u| !r.is_resident(u * UNIT)));
    r
}

fn pages_come_one_by_one() {
    in_pages(|mode| {
        let pool = pool(64, mode);
        let r = swapped(&pool, 32 * MIB);
        let before = pool.stats();
        let at = 5 * UNIT + 7 * 4096;
        assert_eq!(words(&r)[at / 8].load(Relaxed), value(at / 8, 1));
        assert!(r.is_resident(at) && !r.is_resident(at + 4096) && !r.is_resident(at - 4096));
        let s = pool.stats();
        assert_eq!(s.pswpin - before.pswpin, 1);
        assert_eq!(s.thp_swpin, before.thp_swpin);
        check(&r, 1);
        // A write to a page that was only read, and one to a page that is away.
        words(&r)[at / 8].store(7, Relaxed);
        assert_eq!(words(&r)[at / 8].load(Relaxed), 7);
    });
}

pub fn pages_read_are_not_written() {
    in_pages(|mode| {
        let pool = pool(16, mode);
        let r = swapped(&pool, 64 * MIB);
        let before = pool.stats().pswpout;
        check(&r, 1);
        check(&r, 1);
        assert_eq!(
            pool.stats().pswpout,
            before,
            "what was only read was written"
        );
    });
}

pub fn pages_survive_random_work() {
    in_pages(|mode| {
        for setting in ["thp.swapin=never", "thp.swapin=auto"] {
            let pool = pool(24, mode);
            pool.set(setting).unwrap();
            // Much of it is in memory at first, as whole units: those that are touched here and
            // there while they are watched go over to pages where they stand.
            let r = pool.region(96 * MIB).unwrap();
            fill(&r, 1);
            let w = words(&r);
            let mut model: Vec<u64> = (0..w.len()).map(|i| value(i, 1)).collect();
            let mut x = 1u64;
            // A piece takes its time to read from a busy disk.
            for _ in 0..if in_pieces() { 20_000 } else { 60_000 } {
                x = x
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                let i = (x >> 20) as usize % w.len();
                assert_eq!(w[i].load(Relaxed), model[i], "word {i}");
                if x >> 62 == 0 {
                    w[i].store(x, Relaxed);
                    model[i] = x;
                }
            }
            for (i, m) in model.iter().enumerate() {
                assert_eq!(w[i].load(Relaxed), *m, "word {i}");
            }
            let s = pool.stats();
            assert!(s.peak_resident_bytes <= 24 * MIB as u64, "{s:?}");
            assert!(counter(&s, "thp_split_pmd") > 0, "{s:?}");
        }
    });
}

pub fn counter(s: &hugeswap::Stats, name: &str) -> u64 {
    let of = |(n, v): &(&str, u64)| (*n == name).then_some(*v);
    s.counters.iter().find_map(of).unwrap()
}

pub fn pages_become_whole_when_held() {
    in_pages(|mode| {
        let pool = pool(64, mode);
        let r = swapped(&pool, 32 * MIB);
        // Some pages of each unit, some of them changed.
        for u in 0..16 {
            let i = (u * UNIT + u * 8192) / 8;
            assert_eq!(words(&r)[i].load(Relaxed), value(i, 1));
            words(&r)[i + 512].store(value(i + 512, 2), Relaxed);
        }
        let pin = r.pin(3 * UNIT + 4096, UNIT, false).unwrap();
        assert!(r.is_resident(3 * UNIT) && r.is_resident(4 * UNIT + 8192));
        drop(pin);
        r.advise(8 * UNIT, 8 * UNIT, Advice::WillNeed).unwrap();
        until("willneed has brought all in", || {
            (8 * 512..16 * 512).all(|p| r.is_resident(p * 4096))
        });
        for u in 0..16 {
            let i = (u * UNIT + u * 8192) / 8 + 512;
            assert_eq!(words(&r)[i].load(Relaxed), value(i, 2));
            words(&r)[i].store(value(i, 1), Relaxed);
        }
        check(&r, 1);
        assert!(counter(&pool.stats(), "thp_collapse_alloc") >= 10);
        // And out again, and in by pages.
        r.advise(0, 32 * MIB, Advice::PageOut).unwrap();
        check(&r, 1);
    });
}

pub fn pages_discarded_read_zero() {
    in_pages(|mode| {
        let pool = pool(32, mode);
        let mut r = swapped(&pool, 64 * MIB);
        // Have pages of every unit in memory, every second one changed.
        for p in (0..64 * MIB / 4096).step_by(3) {
            let i = p * 512;
            assert_eq!(words(&r)[i].load(Relaxed), value(i, 1));
            if p % 2 == 0 {
                words(&r)[i].store(value(i, 1), Relaxed);
            }
        }
        let (from, len) = (UNIT / 2 + 100, 40 * MIB + 5000);
        r.discard(from, len).unwrap();
        let small = 50 * MIB + 3 * 4096;
        r.discard(small, 2 * 4096).unwrap();
        let r8 = |b: usize| b / 8;
        for round in 0..2 {
            for (i, w) in words(&r).iter().enumerate() {
                let gone = (i * 8 >= from && i * 8 + 8 <= from + len)
                    || (r8(small)..r8(small + 2 * 4096)).contains(&i);
                let ragged = i * 8 / 8 == from / 8 || i * 8 / 8 == (from + len) / 8;
                if !ragged {
                    let want = if gone { 0 } else { value(i, 1) };
                    assert_eq!(w.load(Relaxed), want, "word {i} in round {round}");
                }
            }
        }
        fill(&r, 8);
        check(&r, 8);
    });
}

pub fn pages_are_right_after_forks() {
    in_pages(|mode| {
        let pool = pool(16, mode);
        let r = swapped(&pool, 24 * MIB);
        for g in 2..5 {
            // Some of it changed, some in memory unchanged, most away.
            for u in 0..12 {
                for p in (0..512).step_by(40) {
                    let i = (u * UNIT + p * 4096) / 8;
                    words(&r)[i].store(value(i, g), Relaxed);
                    assert_eq!(words(&r)[i + 513].load(Relaxed), value(i + 513, 1));
                }
            }
            let right = |g: u64| {
                words(&r).iter().enumerate().all(|(i, w)| {
                    let p = i / 512 % 512;
                    let changed = p % 40 == 0 && i % 512 == 0;
                    w.load(Relaxed) == value(i, if changed { g } else { 1 })
                })
            };
            // SAFETY: the child only touches managed memory and exits.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                let ok = right(g);
                fill(&r, 99);
                let ok = ok && !panics(|| check(&r, 99));
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(i32::from(!ok)) };
            }
            assert!(right(g), "the parent of generation {g}");
            for u in 0..12 {
                for p in (0..512).step_by(40) {
                    let i = (u * UNIT + p * 4096) / 8;
                    words(&r)[i].store(value(i, g + 50), Relaxed);
                }
            }
            assert!(right(g + 50), "the parent of generation {g}, changed");
            let mut status = 0;
            // SAFETY: waits for our own child.
            unsafe { libc::waitpid(pid, &mut status, 0) };
            assert_eq!(status, 0, "the child of generation {g} saw wrong bytes");
        }
    });
}

pub fn pages_are_no_zeros_in_a_raw_fork() {
    in_pages(|mode| {
        let pool = pool(32, mode);
        let r = swapped(&pool, 16 * MIB);
        assert_eq!(words(&r)[0].load(Relaxed), value(0, 1));
        for i in [0, 5 * 512, 600 * 512] {
            // A fork that no handler hears of.
            // SAFETY: the child only touches managed memory and exits.
            let pid = unsafe { libc::syscall(libc::SYS_fork) } as i32;
            if pid == 0 {
                // SAFETY: the default action is always fit.
                unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
                let v = words(&r)[i].load(Relaxed);
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(if v == value(i, 1) { 3 } else { 4 }) };
            }
            let mut status = 0;
            // SAFETY: waits for our own child.
            unsafe { libc::waitpid(pid, &mut status, 0) };
            assert!(
                libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGBUS,
                "word {i}: {status:#x}"
            );
        }
        check(&r, 1);
    });
}

pub fn pages_zero_cost_no_io() {
    in_pages(|mode| {
        let pool = pool(32, mode);
        let mut r = swapped(&pool, 32 * MIB);
        r.discard(4096, 16 * UNIT - 8192).unwrap();
        let before = pool.stats().pswpin;
        assert!(words(&r)[512..1024].iter().all(|w| w.load(Relaxed) == 0));
        assert_eq!(pool.stats().pswpin, before);
    });
}

pub fn pages_of_bad_swap_are_sigbus() {
    in_pages(|mode| {
        let pool = builder(32)
            .fault_mode(mode)
            .set("thp.swapin=never")
            .build()
            .unwrap();
        let r = swapped(&pool, 16 * MIB);
        assert_eq!(words(&r)[0].load(Relaxed), value(0, 1));
        pool.set("debug.swap_read_flip=1").unwrap();
        // SAFETY: the child only touches managed memory and exits.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // Without the report: the signal is what is expected.
            // SAFETY: the default action is always fit.
            unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
            let v = words(&r)[5 * 512].load(Relaxed);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(if v == value(5 * 512, 1) { 3 } else { 4 }) };
        }
        let mut status = 0;
        // SAFETY: waits for our own child.
        unsafe { libc::waitpid(pid, &mut status, 0) };
        assert!(
            libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGBUS,
            "{status}"
        );
        pool.set("debug.swap_read_flip=0").unwrap();
        check(&r, 1);
    });
}

pub fn pages_give_way_to_whole_units() {
    in_pages(|mode| {
        let pool = pool(32, mode);
        let a = swapped(&pool, 48 * MIB);
        check(&a, 1);
        // New memory is huge; then the pages come back.
        for g in 2..5 {
            let b = pool.region(48 * MIB).unwrap();
            fill(&b, g);
            check(&a, 1);
            check(&b, g);
        }
        assert!(pool.stats().peak_resident_bytes <= 32 * MIB as u64);
    });
}

/// One page in three is changed. These are runs of one page each, and several of them are written
/// at once if io_uring is available and turned on.
fn pages_are_written_together() {
    need_pages();
    let ring = hugeswap_sys::probe::io_uring();
    if let Err(e) = ring {
        println!("no io_uring ({e}): one after the other only");
    }
    for on in ["on", "off"] {
        let pool = pool(16, FaultMode::Signal);
        pool.set(&format!("swap.io_uring={on}")).unwrap();
        let r = swapped(&pool, 64 * MIB);
        let changed = |i: usize| i.is_multiple_of(512) && (i / 512).is_multiple_of(3);
        for (i, word) in words(&r).iter().enumerate().filter(|(i, _)| changed(*i)) {
            word.store(value(i, 2), Relaxed);
        }
        page_out(&r);
        for (i, word) in words(&r).iter().enumerate() {
            let generation = if changed(i) { 2 } else { 1 };
            assert_eq!(word.load(Relaxed), value(i, generation), "word {i}");
        }
        let batched = counter(&pool.stats(), "swap_write_batched");
        if on == "off" || in_pieces() {
            assert!(on == "on" || batched == 0, "{batched}");
        } else if ring.is_ok() {
            // (A disk that is as fast as memory would need none.)
            assert!(batched > 1000, "{batched}");
        }
    }
}

/// A pool of 32 MiB with swap on a disk.
fn on_disk(swap_mib: u64, settings: &[&str]) -> Pool {
    let mut disk = SwapSpec::new("/var/tmp");
    disk.size = Some(swap_mib << 20);
    let pool = Pool::builder().memory(32 << 20).swap_area(disk);
    let set = |pool: Builder, setting: &&str| pool.set(*setting);
    settings.iter().fold(pool, set).build().unwrap()
}

/// More threads than can poll at a time read single pages from a disk, and children that are forked
/// meanwhile do.
fn pages_are_polled_for() {
    need_base_pages();
    for on in ["on", "off"] {
        let pool = on_disk(256, &["thp.swapin=never", &format!("swap.poll={on}")]);
        let r = swapped(&pool, 64 * MIB);
        let (words, pages) = (words(&r), 64 * MIB / 4096);
        let read = |seed: usize, n: usize| {
            // (All pages, in an order that no stream is found in.)
            for i in (0..n).map(|i| (i * 4099 + seed * 1031) % pages * 512 + seed) {
                assert_eq!(words[i].load(Relaxed), value(i, 1), "word {i}");
            }
        };
        let start = Instant::now();
        read(0, 200);
        let a_read = start.elapsed() / 200;
        std::thread::scope(|s| {
            for t in 1..7 {
                s.spawn(move || read(t, 1500));
            }
            for t in 7..10 {
                ended_well(child(|| read(t, 300)));
            }
        });
        let polled = counter(&pool.stats(), "swap_read_polled");
        let short = Duration::from_micros(30)..Duration::from_micros(200);
        if on == "off" {
            assert_eq!(polled, 0);
        } else if let Err(e) = hugeswap_sys::aio::Aio::new() {
            println!("no AIO ({e}): no read is polled for");
        } else if !short.contains(&a_read) {
            println!("a read takes {a_read:?}: it may be that none is polled for");
        } else {
            assert!(polled > 0, "of {a_read:?} each");
        }
        no_harm(&pool);
    }
}

/// Units whose pages were gathered are brought in whole by a few calls each, and lie in one place
/// once they have left again.
fn pages_apart_come_together_and_go_to_one_place() {
    need_base_pages();
    let pool = on_disk(1024, &["swap.gather=always", "thp.swapin=never"]);
    let r = swapped(&pool, 64 * MIB);
    let (words, pages) = (words(&r), 64 * MIB / 4096);
    let start = Instant::now();
    for page in (0..200).map(|i| i * 1031 % pages) {
        assert_eq!(words[page * 512].load(Relaxed), value(page * 512, 1));
    }
    let a_read = start.elapsed() / 200;
    let gathered = || counter(&pool.stats(), "swap_write_gathered");
    let changed = |i: usize| i.is_multiple_of(512) && (i / 512).is_multiple_of(3);
    // Once there is half of swap to see that it is free.
    for round in 0..100 {
        for (i, word) in words.iter().enumerate().filter(|(i, _)| changed(*i)) {
            word.store(value(i, round), Relaxed);
        }
        page_out(&r);
        if gathered() > 1000 {
            break;
        }
    }
    for (i, word) in words.iter().enumerate().filter(|(i, _)| changed(*i)) {
        word.store(value(i, 2), Relaxed);
    }
    page_out(&r);
    let together = || counter(&pool.stats(), "swap_read_batched");
    let right = |i: usize| value(i, if changed(i) { 2 } else { 1 });
    let bring = || {
        let before = together();
        for unit in 0..32 {
            let pin = r.pin(unit * UNIT, UNIT, false).unwrap();
            let here = words.iter().enumerate().skip(unit * UNIT / 8);
            for (i, word) in here.take(UNIT / 8) {
                assert_eq!(word.load(Relaxed), right(i), "word {i}");
            }
            drop(pin);
        }
        page_out(&r);
        together() - before
    };
    let (first, second) = (bring(), bring());
    if a_read < Duration::from_micros(30) {
        println!("a read takes {a_read:?}: it may be that nothing is gathered");
    } else if let Err(e) = hugeswap_sys::aio::Aio::new() {
        println!("no AIO ({e}): all are read one by one");
    } else {
        assert!(first > 3000, "{first} of {} gathered", gathered());
        assert_eq!(second, 0, "{first} before");
    }
    for (i, word) in words.iter().enumerate() {
        assert_eq!(word.load(Relaxed), right(i), "word {i}");
    }
    pool.audit().unwrap();
    no_harm(&pool);
}

/// Units of which every third page is in memory, changed or not, or given up, become whole by a few
/// reads each, which read along what is in memory, as it was.
fn holes_are_read_by_few_reads() {
    need_base_pages();
    const UNITS: usize = 8;
    const PAGES: usize = UNIT / 4096;
    let pool = on_disk(256, &["thp.swapin=never", "zswap.enabled=never"]);
    let mut r = swapped(&pool, UNITS * UNIT);
    let (read, changed, given_up) = (0, 1, 2);
    let kind = |page: usize| page.is_multiple_of(3).then_some(page / 3 % 3);
    let all = |wanted: usize| (0..UNITS * PAGES).filter(move |&page| kind(page) == Some(wanted));
    let start = Instant::now();
    for page in all(read) {
        assert_eq!(words(&r)[page * 512].load(Relaxed), value(page * 512, 1));
    }
    for page in all(changed) {
        words(&r)[page * 512].store(7, Relaxed);
    }
    let a_read = start.elapsed() / (UNITS * PAGES * 2 / 9) as u32;
    for page in all(given_up) {
        r.discard(page * 4096, 4096).unwrap();
    }
    let together = || counter(&pool.stats(), "swap_read_batched");
    let before = (together(), pool.stats().pswpin);
    let pins: Vec<_> = (0..UNITS)
        .map(|unit| r.pin(unit * UNIT, UNIT, false).unwrap())
        .collect();
    let (reads, pages) = (together() - before.0, pool.stats().pswpin - before.1);
    // What is read along does not count.
    let absent = (0..UNITS * PAGES).filter(|&page| kind(page).is_none());
    assert_eq!(pages, absent.count() as u64);
    if a_read < Duration::from_micros(30) {
        println!("a read takes {a_read:?}: holes may be read one by one");
    } else if let Err(e) = hugeswap_sys::aio::Aio::new() {
        println!("no AIO ({e}): holes are read one by one");
    } else {
        assert!((UNITS as u64..4 * UNITS as u64).contains(&reads), "{reads}");
    }
    for (i, word) in words(&r).iter().enumerate() {
        let right = match kind(i / 512) {
            Some(k) if k == changed && i % 512 == 0 => 7,
            Some(k) if k == given_up => 0,
            _ => value(i, 1),
        };
        assert_eq!(word.load(Relaxed), right, "word {i}");
    }
    drop(pins);
    pool.audit().unwrap();
    no_harm(&pool);
}

/// Threads change pages at random, many times, in a quarter of the memory that they need: what
/// leaves is gathered from here and there.
fn pages_are_gathered() {
    need_base_pages();
    const THREADS: usize = 2;
    const PAGES: usize = 64 * MIB / 4096;
    let pool = on_disk(1024, &["swap.gather=always"]);
    let r = &pool.region(THREADS * PAGES * 4096).unwrap();
    fill(r, 0);
    let start = Instant::now();
    for page in (0..200).map(|i| i * 1031 % PAGES) {
        assert_eq!(words(r)[page * 512].load(Relaxed), value(page * 512, 0));
    }
    let a_read = start.elapsed() / 200;
    const ROUNDS: usize = 50_000;
    std::thread::scope(|s| {
        for t in 0..THREADS {
            let words = &words(r)[t * PAGES * 512..][..PAGES * 512];
            s.spawn(move || {
                let at = |page: usize| page * 512 + page % 500;
                let mut holds: Vec<u64> = (0..PAGES)
                    .map(|page| value(t * PAGES * 512 + at(page), 0))
                    .collect();
                let mut x = 88172645463325252u64 + t as u64;
                let mut random = |n: usize| {
                    x ^= x << 13;
                    x ^= x >> 7;
                    x ^= x << 17;
                    x as usize % n
                };
                let change = |holds: &mut [u64], page: usize| {
                    let word = &words[at(page)];
                    assert_eq!(word.load(Relaxed), holds[page], "page {page}");
                    holds[page] = holds[page].wrapping_add(1);
                    word.store(holds[page], Relaxed);
                };
                for round in 0..ROUNDS {
                    change(&mut holds, random(PAGES));
                    if round % 5000 != 0 {
                        continue;
                    }
                    let some = random(PAGES / 512 - 4) * 512..;
                    match round / 5000 % 4 {
                        // A stream over some units.
                        0 => some.take(2048).for_each(|page| change(&mut holds, page)),
                        1 => some.take(2048).for_each(|page| {
                            assert_eq!(words[at(page)].load(Relaxed), holds[page]);
                        }),
                        2 => {
                            let from = (t * PAGES + some.start) * 4096;
                            r.advise(from, UNIT, Advice::PageOut).unwrap();
                        }
                        _ => {}
                    }
                }
            });
        }
    });
    pool.audit().unwrap();
    let (gathered, out) = (
        counter(&pool.stats(), "swap_write_gathered"),
        pool.stats().pswpout,
    );
    if a_read < Duration::from_micros(30) {
        println!("a read takes {a_read:?}: it may be that nothing is gathered");
    } else {
        assert!(gathered > 10_000, "{gathered} of {out}");
    }
    no_harm(&pool);
}
