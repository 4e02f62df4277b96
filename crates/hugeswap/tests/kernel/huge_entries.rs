//! A unit in swap is one entry that stands for 2 MiB. Each test covers one operation that can meet
//! such an entry.

use crate::util::*;
use hugeswap::{Advice, FaultMode, Pool, Region};
use hugeswap_policy::knobs::{Knob, swapin};
use std::sync::Barrier;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

tests! {
    entry_has_one_reference_whole_or_split,
    entry_is_split_by_touches_and_partial_discards,
    entry_is_split_by_a_partial_unmap,
    entry_keeps_its_bytes_when_protected,
    entry_protected_is_freed_in_part,
    entry_is_split_while_a_child_has_it_whole,
    entry_without_a_huge_frame_falls_back,
    entry_freed_whole_is_dropped,
    entry_freed_in_part_stays,
    entry_is_one_in_a_fork,
    entry_kept_for_a_child_goes_with_it,
    entry_zapped_frees_512,
    entry_wanted_is_read_in_one_piece,
    entry_residency_is_that_of_all_512,
    entry_accounts_move_by_512,
    entry_faulted_by_many_at_once,
}

const UNITS: usize = 8;
const UNIT_U64: u64 = UNIT as u64;

fn pool(mode: FaultMode, swapin: &str) -> Pool {
    let b = builder(64).fault_mode(mode).set("readahead.max=0");
    b.set(&format!("thp.swapin={swapin}")).build().unwrap()
}

/// A region of which everything is in swap.
fn swapped(pool: &Pool) -> Region {
    let r = pool.region(UNITS * UNIT).unwrap();
    fill(&r, 1);
    r.advise(0, UNITS * UNIT, Advice::PageOut).unwrap();
    assert!((0..UNITS * 512).all(|p| !r.is_resident(p * 4096)));
    assert_eq!(pool.stats().swap_used_bytes, UNITS as u64 * UNIT_U64);
    r
}

fn slots(pool: &Pool) -> u64 {
    pool.stats().swap_used_bytes / UNIT_U64
}

fn fallbacks(pool: &Pool) -> u64 {
    let s = pool.stats();
    let fallback = |c: &&(&str, u64)| c.0.ends_with("_fallback");
    s.counters.iter().filter(fallback).map(|c| c.1).sum()
}

fn touch(r: &Region, page: usize) {
    let i = page * 512;
    assert_eq!(words(r)[i].load(Relaxed), value(i, 1), "page {page}");
}

/// The reference count of a cluster: one for its unit, whether that is whole or mapped by base
/// pages (`audit` looks).
fn entry_has_one_reference_whole_or_split() {
    both_modes(|mode| {
        for swapin in ["always", "never"] {
            let pool = pool(mode, swapin);
            let r = swapped(&pool);
            pool.audit().unwrap();
            (0..UNITS * 512).step_by(100).for_each(|p| touch(&r, p));
            pool.audit().unwrap();
            assert_eq!(slots(&pool), UNITS as u64);
            check(&r, 1);
        }
    });
}

fn entry_is_split_by_touches_and_partial_discards() {
    need_pages();
    let pool = pool(FaultMode::Signal, "never");
    let mut r = swapped(&pool);
    let before = pool.stats();
    touch(&r, 7);
    r.discard(512, 4096 * 3).unwrap();
    r.discard(UNIT - 8192, 3 * 4096).unwrap();
    let s = pool.stats();
    assert_eq!(s.thp_swpin, before.thp_swpin, "a whole unit was read");
    for (i, w) in words(&r).iter().enumerate() {
        let at = i * 8;
        let zero = (512..512 + 4096 * 3).contains(&at) || (UNIT - 8192..UNIT + 4096).contains(&at);
        let want = if zero { 0 } else { value(i, 1) };
        assert_eq!(w.load(Relaxed), want, "byte {at:#x}");
    }
    pool.audit().unwrap();
}

fn entry_is_split_by_a_partial_unmap() {
    for swapin in [swapin::ALWAYS, swapin::NEVER] {
        let engine = engine(32, FaultMode::Signal, &[(Knob::ThpSwapin, swapin)]);
        let at = engine.map(2 * UNIT, UNIT, true).unwrap();
        // SAFETY: just mapped.
        unsafe { std::ptr::write_bytes(at as *mut u8, 0x5a, 2 * UNIT) };
        engine.pageout(at, 2 * UNIT);
        let read = engine.pool().report().counters[0];
        engine.unmap(at + 4096, UNIT - 8192);
        assert_eq!(
            engine.pool().report().counters[0],
            read,
            "it was read for that"
        );
        // What is left, and what is mapped there next.
        for (from, len) in [(at, 4096), (at + UNIT - 4096, 4096 + UNIT)] {
            // SAFETY: still mapped.
            let left = unsafe { std::slice::from_raw_parts(from as *const u8, len) };
            assert!(left.iter().all(|&b| b == 0x5a));
        }
        let again = engine.map(4096, 1, true).unwrap();
        assert_eq!(again, at + 4096);
        // SAFETY: just mapped.
        let fresh = unsafe { std::slice::from_raw_parts(again as *const u8, 4096) };
        assert!(fresh.iter().all(|&b| b == 0));
        engine.audit().unwrap();
        engine.unmap(at, 2 * UNIT);
        // SAFETY: nothing of the engine's is used any more.
        unsafe { engine.stop() };
    }
}

/// Whole units are protected where they are, also in swap. (Parts are handed to the kernel first:
/// see the tests of programs.)
fn entry_keeps_its_bytes_when_protected() {
    use hugeswap_engine::Prot;
    for swapin in [swapin::ALWAYS, swapin::NEVER] {
        let engine = engine(32, FaultMode::Signal, &[(Knob::ThpSwapin, swapin)]);
        let at = engine.map(2 * UNIT, UNIT, true).unwrap();
        // SAFETY: just mapped.
        unsafe { std::ptr::write_bytes(at as *mut u8, 0x5a, 2 * UNIT) };
        engine.pageout(at, 2 * UNIT);
        let read = engine.pool().report().counters[0];
        engine.protect(at, UNIT, Prot::None).unwrap();
        assert_eq!(
            engine.pool().report().counters[0],
            read,
            "it was read for that"
        );
        assert!(engine.protect(at + 4096, 4096, Prot::Read).is_err());
        engine.protect(at, UNIT, Prot::Read).unwrap();
        // SAFETY: readable.
        let bytes = unsafe { std::slice::from_raw_parts(at as *const u8, 2 * UNIT) };
        assert!(bytes.iter().all(|&b| b == 0x5a));
        engine.audit().unwrap();
        // SAFETY: nothing of the engine's is used any more.
        unsafe { engine.stop() };
    }
}

/// Memory that may not be written can be discarded.
fn entry_protected_is_freed_in_part() {
    use hugeswap_engine::Prot;
    for swapin in [swapin::ALWAYS, swapin::NEVER] {
        for (out, prot) in [(true, Prot::Read), (false, Prot::Read), (true, Prot::None)] {
            let engine = engine(32, FaultMode::Signal, &[(Knob::ThpSwapin, swapin)]);
            let at = engine.map(2 * UNIT, UNIT, true).unwrap();
            // SAFETY: just mapped.
            unsafe { std::ptr::write_bytes(at as *mut u8, 0x5a, 2 * UNIT) };
            engine.protect(at, 2 * UNIT, prot).unwrap();
            if out {
                engine.pageout(at, 2 * UNIT);
            }
            engine.discard(at + 8192, 16384).unwrap();
            engine.protect(at, 2 * UNIT, Prot::Read).unwrap();
            // SAFETY: readable.
            let bytes = unsafe { std::slice::from_raw_parts(at as *const u8, 2 * UNIT) };
            for (i, &b) in bytes.iter().enumerate() {
                assert_eq!(b == 0, (8192..24576).contains(&i), "byte {i:#x}");
            }
            engine.audit().unwrap();
            // SAFETY: nothing of the engine's is used any more.
            unsafe { engine.stop() };
        }
    }
}

fn entry_is_split_while_a_child_has_it_whole() {
    need_pages();
    let pool = pool(FaultMode::Signal, "never");
    let mut r = swapped(&pool);
    let mut go = [0; 2];
    // SAFETY: two descriptors to be overwritten.
    assert_eq!(unsafe { libc::pipe(go.as_mut_ptr()) }, 0);
    // SAFETY: the child uses managed memory and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let wrong = panics(|| {
            // SAFETY: waits until the parent has split and changed its units.
            unsafe {
                libc::close(go[1]);
                libc::read(go[0], go.as_mut_ptr().cast(), 1);
            }
            pool.set("thp.swapin=always").unwrap();
            let before = pool.stats().thp_swpin + fallbacks(&pool);
            check(&r, 1);
            let read = pool.stats().thp_swpin + fallbacks(&pool) - before;
            assert!(read >= UNITS as u64, "{read} whole units read");
        });
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(wrong)) };
    }
    for u in 0..UNITS {
        touch(&r, u * 512 + 3);
        words(&r)[(u * 512 + 4) * 512].store(9, Relaxed);
        r.discard(u * UNIT + 40960, 40960).unwrap();
    }
    r.advise(0, UNITS * UNIT, Advice::PageOut).unwrap();
    let mut status = 0;
    // SAFETY: the child goes on; then waits for it.
    unsafe {
        libc::close(go[1]);
        libc::waitpid(child, &mut status, 0);
    }
    assert_eq!(status, 0, "the child saw what changed later");
    pool.set("thp.swapin=auto").unwrap();
    for (i, w) in words(&r).iter().enumerate() {
        let p = i / 512 % 512;
        let want = match p {
            4 if i % 512 == 0 => 9,
            10..20 => 0,
            _ => value(i, 1),
        };
        assert_eq!(w.load(Relaxed), want, "word {i}");
    }
}

fn entry_without_a_huge_frame_falls_back() {
    // SAFETY: takes numbers only; from now on this process gets no huge pages.
    if unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) } != 0 {
        skip("huge pages cannot be turned off for a process here");
    }
    both_modes(|mode| {
        let pool = pool(mode, "always");
        let r = swapped(&pool);
        check(&r, 1);
        let s = pool.stats();
        assert_eq!((s.thp_swpin, s.thp_swpout), (0, 0), "{s:?}");
        assert!(fallbacks(&pool) >= 2 * UNITS as u64, "{s:?}");
    });
}

fn entry_freed_whole_is_dropped() {
    both_modes(|mode| {
        let pool = pool(mode, "always");
        let mut r = swapped(&pool);
        let before = pool.stats();
        r.discard(UNIT, 3 * UNIT).unwrap();
        let s = pool.stats();
        assert_eq!(slots(&pool), UNITS as u64 - 3);
        assert_eq!((s.pswpin, s.pswpout), (before.pswpin, before.pswpout));
        assert!(
            words(&r)[UNIT / 8..UNIT / 2]
                .iter()
                .all(|w| w.load(Relaxed) == 0)
        );
    });
}

fn entry_freed_in_part_stays() {
    both_modes(|mode| {
        for swapin in ["always", "never"] {
            let pool = pool(mode, swapin);
            let mut r = swapped(&pool);
            r.discard(0, UNIT / 2).unwrap();
            assert_eq!(slots(&pool), UNITS as u64);
            for (i, w) in words(&r).iter().enumerate() {
                let want = if i < UNIT / 16 { 0 } else { value(i, 1) };
                assert_eq!(w.load(Relaxed), want, "word {i}");
            }
            pool.audit().unwrap();
        }
    });
}

fn entry_is_one_in_a_fork() {
    both_modes(|mode| {
        let pool = pool(mode, "always");
        let r = swapped(&pool);
        let before = pool.stats();
        let status = in_child(|| {
            let s = pool.stats();
            assert_eq!((s.pswpin, s.pswpout), (before.pswpin, before.pswpout));
            assert_eq!(slots(&pool), UNITS as u64);
            check(&r, 1);
            pool.audit().unwrap();
        });
        assert!(status.success(), "the child failed");
        assert_eq!(slots(&pool), UNITS as u64);
        check(&r, 1);
    });
}

fn entry_kept_for_a_child_goes_with_it() {
    both_modes(|mode| {
        let pool = pool(mode, "always");
        let r = swapped(&pool);
        let mut go = [0; 2];
        // SAFETY: two descriptors to be overwritten.
        assert_eq!(unsafe { libc::pipe(go.as_mut_ptr()) }, 0);
        // SAFETY: the child uses managed memory and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: waits until the parent has given its region up.
            unsafe {
                libc::close(go[1]);
                libc::read(go[0], go.as_mut_ptr().cast(), 1);
            }
            let wrong = panics(|| check(&r, 1));
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(wrong)) };
        }
        drop(r);
        assert_eq!(slots(&pool), UNITS as u64, "the child needs them");
        let mut status = 0;
        // SAFETY: the child goes on; then waits for it.
        unsafe {
            libc::close(go[1]);
            libc::waitpid(child, &mut status, 0);
            libc::close(go[0]);
        }
        assert_eq!(status, 0, "the child failed");
        until("what was kept for the child is given back", || {
            slots(&pool) == 0
        });
    });
}

fn entry_zapped_frees_512() {
    both_modes(|mode| {
        for swapin in ["always", "never"] {
            let pool = pool(mode, swapin);
            let r = swapped(&pool);
            touch(&r, 700);
            drop(r);
            assert_eq!(slots(&pool), 0);
            pool.audit().unwrap();
        }
    });
}

fn entry_wanted_is_read_in_one_piece() {
    both_modes(|mode| {
        let pool = pool(mode, "never");
        let r = swapped(&pool);
        let before = pool.stats();
        let whole = before.thp_swpin + fallbacks(&pool);
        r.advise(2 * UNIT, UNIT, Advice::WillNeed).unwrap();
        until("it is read", || r.is_resident(2 * UNIT));
        let s = pool.stats();
        assert_eq!(s.pswpin - before.pswpin, 512);
        assert_eq!(s.thp_swpin + fallbacks(&pool) - whole, 1);
        check(&r, 1);
    });
}

fn entry_residency_is_that_of_all_512() {
    both_modes(|mode| {
        let pool = pool(mode, "always");
        let r = swapped(&pool);
        let resident = |u: usize| {
            (0..512)
                .filter(|p| r.is_resident(u * UNIT + p * 4096))
                .count()
        };
        assert!((0..UNITS).all(|u| resident(u) == 0));
        touch(&r, 512 + 77);
        assert_eq!((resident(0), resident(1), resident(2)), (0, 512, 0));
    });
}

fn entry_accounts_move_by_512() {
    both_modes(|mode| {
        let pool = pool(mode, "always");
        let r = pool.region(UNITS * UNIT).unwrap();
        let r = r;
        for u in 0..UNITS {
            let before = pool.stats().resident_bytes;
            words(&r)[u * UNIT / 8].store(1, Relaxed);
            let more = pool.stats().resident_bytes - before;
            assert!(more.is_multiple_of(UNIT_U64), "{more} bytes more");
        }
        fill(&r, 1);
        for u in 0..UNITS {
            let (before, used) = (pool.stats(), slots(&pool));
            r.advise(u * UNIT, UNIT, Advice::PageOut).unwrap();
            let s = pool.stats();
            assert_eq!((s.pswpout - before.pswpout) % 512, 0);
            assert_eq!(slots(&pool) - used, 1);
        }
        for u in 0..UNITS {
            let before = pool.stats().pswpin;
            touch(&r, u * 512 + 9);
            assert_eq!(pool.stats().pswpin - before, 512);
        }
    });
}

/// Several threads fault, page out and advise on one unit: no thread waits forever, and none sees
/// other bytes.
fn entry_faulted_by_many_at_once() {
    both_modes(|mode| {
        for swapin in ["always", "never", "auto"] {
            let pool = pool(mode, swapin);
            let r = swapped(&pool);
            const THREADS: usize = 6;
            let (start, end) = (Barrier::new(THREADS + 1), Barrier::new(THREADS + 1));
            let done = AtomicBool::new(false);
            let base = r.as_ptr() as usize;
            std::thread::scope(|s| {
                for t in 0..THREADS {
                    let (start, end, done) = (&start, &end, &done);
                    s.spawn(move || {
                        for round in 0usize.. {
                            start.wait();
                            if done.load(Relaxed) {
                                return;
                            }
                            // Three at one page, the others elsewhere in the unit.
                            let page = if t < 3 {
                                round % 512
                            } else {
                                (round + t * 83) % 512
                            };
                            // SAFETY: of the region, which nobody writes to.
                            let found =
                                unsafe { ((base + page * 4096) as *const u64).read_volatile() };
                            assert_eq!(found, value(page * 512, 1), "page {page}");
                            end.wait();
                        }
                    });
                }
                for round in 0..60 {
                    start.wait();
                    if round % 3 == 0 {
                        r.advise(0, UNIT, Advice::WillNeed).unwrap();
                    }
                    end.wait();
                    r.advise(0, UNIT, Advice::PageOut).unwrap();
                }
                done.store(true, Relaxed);
                start.wait();
            });
            pool.audit().unwrap();
            check(&r, 1);
        }
    });
}
