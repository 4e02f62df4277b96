//! Memory that the process had before its engine started becomes managed where it stands.

use crate::util::*;
use hugeswap::FaultMode;
use hugeswap_engine::{Contents, Engine, Prot};
use hugeswap_policy::counters::Counter;
use hugeswap_sys::{Errno, mm};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

tests! {
    memory_that_was_there_is_managed_and_keeps_its_contents,
    it_is_adopted_while_threads_write_to_it,
    what_was_never_touched_takes_no_memory,
    what_is_not_whole_stays_the_kernels,
    what_was_adopted_is_unmapped_and_mapped_again,
    what_is_given_back_is_the_kernels_and_stays,
    what_was_handed_over_is_taken_back,
    units_with_markers_are_not_all_handed_over,
    what_is_mapped_beside_pages_with_less_access_is_managed,
    a_unit_that_is_claimed_is_not_taken_away,
    it_is_handed_over_and_taken_back_while_threads_write_to_it,
    memory_far_away_is_managed_as_that_of_the_main_range,
}

const PAGE: usize = 4096;
const WORDS: usize = UNIT / 8;

/// Addresses for a window, of which nothing is mapped.
fn addresses(len: usize) -> Range<usize> {
    let raw = mm::map_own(len + UNIT, mm::PROT_NONE).expect("addresses");
    // SAFETY: mapped a moment ago, and not used.
    unsafe { mm::unmap(raw, len + UNIT) }.expect("unmapped");
    let base = raw.next_multiple_of(UNIT);
    base..base + len
}

/// Maps memory at such addresses.
fn map(at: usize, len: usize) -> &'static [AtomicU64] {
    // SAFETY: not replacing.
    let got = unsafe { mm::map_anon(at, len, mm::PROT_RW, false) };
    assert_eq!(got, Ok(at));
    // SAFETY: mapped above, zeros, and never given back.
    unsafe { std::slice::from_raw_parts(at as *const AtomicU64, len / 8) }
}

fn fill(words: &[AtomicU64]) {
    for (i, w) in words.iter().enumerate() {
        w.store(value(i, 7), Relaxed);
    }
}

fn check(words: &[AtomicU64]) {
    for (i, w) in words.iter().enumerate() {
        assert_eq!(w.load(Relaxed), value(i, 7), "word {i}");
    }
}

fn adopt(engine: &Engine, range: Range<usize>) -> usize {
    // SAFETY: private anonymous memory, used by this process's threads alone.
    unsafe { engine.adopt(range.start, range.len()) }.expect("adopted")
}

fn memory_that_was_there_is_managed_and_keeps_its_contents() {
    let window = addresses(256 * MIB);
    let (a, b) = (window.start + 6 * MIB, window.start + 128 * MIB);
    let (first, second) = (map(a, 60 * MIB), map(b, 40 * MIB));
    fill(first);
    fill(second);
    let e = engine_over(32, window.clone(), &[]);
    assert_eq!(e.pool().used_frames(), 0);
    assert_eq!(adopt(e, window.clone()), 100 * MIB);
    assert_eq!(adopt(e, window), 0, "once");
    assert!(e.pool().used_frames() <= 16, "{}", e.pool().used_frames());
    assert!(e.pool().report().counters[Counter::PswpOut as usize] > 0);
    for _ in 0..2 {
        check(first);
        check(second);
    }
    // A child has it, too.
    let status = in_child(|| {
        check(first);
        second[5].store(0, Relaxed);
    });
    assert!(status.success(), "{status}");
    check(second);
    // SAFETY: nothing uses it any more.
    unsafe { e.stop() };
}

fn it_is_adopted_while_threads_write_to_it() {
    const THREADS: usize = 2;
    let window = addresses(64 * MIB);
    let words = map(window.start, 64 * MIB);
    words.iter().step_by(512).for_each(|w| w.store(1, Relaxed));
    let over = AtomicBool::new(false);
    let counts = std::thread::scope(|s| {
        let threads: Vec<_> = (0..THREADS)
            .map(|t| {
                let over = &over;
                s.spawn(move || {
                    let (mut x, mut n) = (t as u64 + 1, 0);
                    while !over.load(Relaxed) {
                        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        words[(x >> 33) as usize % words.len() / 512 * 512].fetch_add(1, Relaxed);
                        n += 1;
                    }
                    n
                })
            })
            .collect();
        let e = engine_over(48, window.clone(), &[]);
        assert_eq!(adopt(e, window), 64 * MIB);
        std::thread::sleep(std::time::Duration::from_millis(300));
        over.store(true, Relaxed);
        threads.into_iter().map(|t| t.join().unwrap()).sum::<u64>()
    });
    let there: u64 = words.iter().step_by(512).map(|w| w.load(Relaxed)).sum();
    assert_eq!(there, counts + words.len() as u64 / 512);
}

fn what_was_never_touched_takes_no_memory() {
    let window = addresses(64 * MIB);
    let words = map(window.start, 64 * MIB);
    words[3 * WORDS].store(1, Relaxed);
    let e = engine_over(16, window.clone(), &[]);
    assert_eq!(adopt(e, window), 64 * MIB);
    let free = e.free_bytes().0;
    assert_eq!(free, 14 * MIB as u64, "all but one unit");
    let sum: u64 = words.iter().map(|w| w.load(Relaxed)).sum();
    assert_eq!(sum, 1);
    // SAFETY: nothing uses it any more.
    unsafe { e.stop() };
}

fn what_is_not_whole_stays_the_kernels() {
    const PAGE: usize = 4096;
    let window = addresses(64 * MIB);
    let words = map(window.start + PAGE, 12 * MIB);
    fill(words);
    let e = engine_over(16, window.clone(), &[]);
    // (Its first and its last unit have pages of nobody's.)
    assert_eq!(adopt(e, window.clone()), 10 * MIB);
    assert!(e.is_foreign(window.start, UNIT) && e.is_foreign(window.start + 12 * MIB, UNIT));
    check(words);
    // Nor is anything managed outside the window, or of what is free in it.
    assert_eq!(adopt(e, window.start - UNIT..window.start + UNIT), 0);
    assert_eq!(adopt(e, window.start + 32 * MIB..window.end + UNIT), 0);
    // SAFETY: nothing uses it any more.
    unsafe { e.stop() };
}

fn what_is_given_back_is_the_kernels_and_stays() {
    let window = addresses(128 * MIB);
    let words = map(window.start, 96 * MIB);
    let touched = 24 * MIB / 8;
    fill(&words[..touched]);
    let e = engine_over(48, window.clone(), &[]);
    assert_eq!(adopt(e, window.clone()), 96 * MIB);
    let new = e.map(10 * MIB, 4096, true).expect("mapped");
    // SAFETY: mapped above, zeros.
    let new = unsafe { std::slice::from_raw_parts(new as *const AtomicU64, 10 * MIB / 8) };
    new[7].store(7, Relaxed);
    check(&words[..touched]);
    // More than the budget, but for what was never touched.
    e.give_back(window.start, window.len()).expect("room");
    assert!(e.is_unmanaged(window.start, window.len()));
    assert!(
        e.pool().foreign_frames() <= 14,
        "{}",
        e.pool().foreign_frames()
    );
    e.audit().expect("consistent");
    check(&words[..touched]);
    // It is unmapped as the kernel's.
    e.try_unmap(window.start + 40 * MIB, 3 * MIB + 4096)
        .expect("unmapped");
    // SAFETY: nothing is managed.
    unsafe { e.retire(|| {}) };
    check(&words[..touched]);
    assert!(
        words[touched..36 * MIB / 8]
            .iter()
            .all(|w| w.load(Relaxed) == 0)
    );
    words[90 * MIB / 8].store(1, Relaxed);
    assert_eq!(new[7].load(Relaxed), 7);
    let free = window.start + 110 * MIB;
    // SAFETY: not replacing: what was free is free for others.
    let got = unsafe { mm::map_anon(free, UNIT, mm::PROT_RW, false) };
    assert_eq!(got, Ok(free));
}

/// Ejected memory is managed again, in either mode, and leaves as other memory does.
fn what_was_handed_over_is_taken_back() {
    both_modes(|mode| {
        let e = engine(32, mode, &[]);
        let at = e.map(16 * MIB, PAGE, true).expect("mapped");
        // SAFETY: mapped above, zeros.
        let words = unsafe { std::slice::from_raw_parts(at as *const AtomicU64, 16 * MIB / 8) };
        fill(words);
        // SAFETY: here and below, nobody has told the kernel anything of it.
        let take_back = |at, len| unsafe { e.take_back(at, len) };
        assert_eq!(take_back(at, 16 * MIB), 0, "all of it is managed");
        e.eject(at, 16 * MIB).expect("the kernel's");
        assert_eq!(e.pool().foreign_frames(), 8);
        // (A part of the second unit holds nothing.)
        // SAFETY: the program gives it up.
        unsafe { mm::advise(at + UNIT, 8 * PAGE, libc::MADV_DONTNEED) }.expect("given up");
        words[WORDS..WORDS + 8 * 512]
            .iter()
            .enumerate()
            .for_each(|(i, w)| w.store(value(WORDS + i, 7), Relaxed));
        // What is held, and what the program has mapped otherwise, stays the kernel's.
        e.pin(at + 5 * UNIT, PAGE, true).expect("pinned");
        let hole = at + 7 * UNIT;
        e.try_unmap(hole, PAGE).expect("unmapped");
        let claim = e.claim(hole, PAGE, Contents::Keep).expect("claimed");
        e.settle_claim(claim);
        assert_eq!(take_back(at, 16 * MIB), 6 * UNIT);
        assert!(e.is_foreign(at + 5 * UNIT, UNIT) && e.is_foreign(hole, UNIT));
        e.unpin(at + 5 * UNIT, PAGE);
        assert_eq!(take_back(at + 5 * UNIT, UNIT), UNIT);
        assert_eq!(e.pool().foreign_frames(), 1);
        e.pageout(at, 14 * MIB);
        let written = e.pool().report().counters[Counter::PswpOut as usize];
        assert_eq!(written, 7 * 512, "all that is managed");
        check(&words[..7 * WORDS]);
        e.audit().expect("consistent");
        // SAFETY: nothing uses it any more.
        unsafe { e.stop() };
    });
}

/// Units of which pages have less access become the kernel's as long as that leaves room for others.
fn units_with_markers_are_not_all_handed_over() {
    const FRAMES: usize = 12;
    const UNITS: usize = 20;
    need_base_pages();
    let e = engine(2 * FRAMES, FaultMode::Signal, &[]);
    let at = e.map(UNITS * UNIT, PAGE, true).expect("mapped");
    // SAFETY: mapped above, zeros.
    let words = unsafe { std::slice::from_raw_parts(at as *const AtomicU64, UNITS * WORDS) };
    fill(words);
    let closed = |unit: usize| at + unit * UNIT + 7 * PAGE;
    for unit in 0..UNITS {
        assert!(e.protect_part(closed(unit), PAGE, Prot::None));
    }
    let handed = (0..UNITS).map(|unit| e.eject(at + unit * UNIT, UNIT));
    let handed: Vec<_> = handed.collect();
    let of_kernel = handed.iter().filter(|h| h.is_ok()).count();
    assert!((1..=FRAMES - 4).contains(&of_kernel), "{of_kernel} units");
    assert!(handed[of_kernel..].iter().all(|h| *h == Err(Errno::ENOMEM)));
    assert_eq!(e.pool().foreign_frames(), of_kernel as u64);
    // The others have the room that is left.
    for unit in of_kernel..UNITS {
        assert!(e.protect_part(closed(unit), PAGE, Prot::ReadWrite));
    }
    for unit in 0..of_kernel {
        // SAFETY: a page of the kernel's.
        unsafe { mm::protect(closed(unit), PAGE, mm::PROT_RW) }.expect("opened");
    }
    check(words);
    e.audit().expect("consistent");
    // SAFETY: nothing uses it any more.
    unsafe { e.stop() };
}

/// A unit that has less access as a whole stays managed when more of it is mapped.
fn what_is_mapped_beside_pages_with_less_access_is_managed() {
    need_base_pages();
    for less in [Prot::Read, Prot::None] {
        for leaves in [false, true] {
            let e = engine(16, FaultMode::Signal, &[]);
            let at = e.reserve(UNIT, UNIT).expect("reserved");
            e.commit(at, 100 * PAGE).expect("committed");
            // SAFETY: committed above, zeros.
            let words = unsafe { std::slice::from_raw_parts(at as *const AtomicU64, WORDS) };
            fill(&words[..100 * 512]);
            e.protect(at, UNIT, less).expect("protected");
            if leaves {
                e.pageout(at, UNIT);
            }
            e.commit(at + 200 * PAGE, 100 * PAGE).expect("committed");
            assert!(!e.is_any_foreign(at, UNIT), "{less:?}, leaves: {leaves}");
            assert_eq!(e.access(at, 100 * PAGE), Some(less));
            assert_eq!(e.access(at + 200 * PAGE, 100 * PAGE), Some(Prot::ReadWrite));
            let new = &words[200 * 512..300 * 512];
            assert!(new.iter().all(|w| w.swap(1, Relaxed) == 0));
            assert!(e.protect_part(at, 100 * PAGE, Prot::ReadWrite));
            check(&words[..100 * 512]);
            e.audit().expect("consistent");
            // SAFETY: nothing uses it any more.
            unsafe { e.stop() };
        }
    }
}

/// One thread has the kernel map something in reserved pages of a unit, while another unmaps all that is
/// not reserved of it.
fn a_unit_that_is_claimed_is_not_taken_away() {
    both_modes(|mode| {
        let e = engine(16, mode, &[]);
        let at = e.reserve(2 * UNIT, PAGE).expect("reserved");
        e.commit(at, 8 * PAGE).expect("committed");
        let part = at + 64 * PAGE;
        let claim = e.claim(part, 4 * PAGE, Contents::Keep).expect("claimed");
        e.try_unmap(at, 8 * PAGE).expect("unmapped");
        assert!(e.is_foreign(part, PAGE), "nobody has the unit");
        e.settle_claim(claim);
        e.commit(at + 16 * PAGE, 8 * PAGE).expect("committed");
        assert!(e.is_foreign(part, PAGE) && e.kernel_bytes(part, 4 * PAGE) == 4 * PAGE);
        e.try_unmap(at, 2 * UNIT).expect("unmapped");
        assert_eq!(e.pool().foreign_frames(), 0);
        e.audit().expect("consistent");
        // SAFETY: nothing uses it any more.
        unsafe { e.stop() };
    });
}

fn it_is_handed_over_and_taken_back_while_threads_write_to_it() {
    let e = engine(24, FaultMode::Signal, &[]);
    let at = e.map(32 * MIB, PAGE, true).expect("mapped");
    // SAFETY: mapped above, zeros.
    let words = unsafe { std::slice::from_raw_parts(at as *const AtomicU64, 32 * MIB / 8) };
    let over = AtomicBool::new(false);
    let count = std::thread::scope(|s| {
        let writer = s.spawn(|| {
            let (mut x, mut n) = (1_u64, 0);
            while !over.load(Relaxed) {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                words[(x >> 33) as usize % words.len() / 512 * 512].fetch_add(1, Relaxed);
                n += 1;
            }
            n
        });
        for turn in 0..200 {
            let unit = at + turn * 7 % 16 * UNIT;
            e.eject(unit, UNIT).expect("the kernel's");
            // SAFETY: nobody has told the kernel anything of it.
            assert_eq!(unsafe { e.take_back(unit, UNIT) }, UNIT);
        }
        over.store(true, Relaxed);
        writer.join().expect("it ends")
    });
    assert_eq!(e.pool().foreign_frames(), 0);
    let there: u64 = words.iter().step_by(512).map(|w| w.load(Relaxed)).sum();
    assert_eq!(there, count);
    e.audit().expect("consistent");
    // SAFETY: nothing uses it any more.
    unsafe { e.stop() };
}

fn what_was_adopted_is_unmapped_and_mapped_again() {
    let window = addresses(64 * MIB);
    let words = map(window.start, 32 * MIB);
    fill(words);
    let e = engine_over(16, window.clone(), &[]);
    assert_eq!(adopt(e, window.clone()), 32 * MIB);
    let (at, len) = (window.start + 9 * MIB, 10 * MIB);
    e.try_unmap(at, len).expect("unmapped");
    assert!(!e.is_any_mapped(at, len));
    e.map_at(at, len, false).expect("mapped");
    let (from, to) = (9 * MIB / 8, 19 * MIB / 8);
    assert!(words[from..to].iter().all(|w| w.load(Relaxed) == 0));
    for (i, w) in words
        .iter()
        .enumerate()
        .filter(|(i, _)| !(from..to).contains(i))
    {
        assert_eq!(w.load(Relaxed), value(i, 7), "word {i}");
    }
    // What is mapped anew is at addresses that were free.
    let new = e.map(8 * MIB, 4096, true).expect("mapped");
    assert!(window.contains(&new) && new >= window.start + 32 * MIB);
    // SAFETY: nothing uses it any more.
    unsafe { e.stop() };
}

fn memory_far_away_is_managed_as_that_of_the_main_range() {
    let all = addresses(512 * MIB);
    let at = |from: usize, len: usize| all.start + from * MIB..all.start + (from + len) * MIB;
    let (below, main, above) = (at(0, 24), at(100, 200), at(400, 40));
    let parts = [below.clone(), at(120, 30), above.clone()];
    let words: Vec<_> = parts.iter().map(|p| map(p.start, p.len())).collect();
    words.iter().for_each(|w| fill(w));
    let e = engine_over(32, main.clone(), &[above.clone(), below.clone()]);
    assert_eq!(e.window_at(below.start - PAGE, 2 * PAGE), below);
    assert_eq!(e.window_at(below.end, 4 * MIB), main, "none");
    for part in &parts {
        assert_eq!(adopt(e, part.clone()), part.len());
    }
    assert!(e.pool().used_frames() <= 16, "{}", e.pool().used_frames());
    for _ in 0..2 {
        words.iter().for_each(|w| check(w));
    }
    let status = in_child(|| {
        words.iter().for_each(|w| check(w));
        words[0][5].store(0, Relaxed);
        words[2][words[2].len() - 1].store(0, Relaxed);
    });
    assert!(status.success(), "{status}");
    words.iter().for_each(|w| check(w));
    // What the program unmaps there is free, and reads as zero when it is mapped again.
    let hole = below.start + 4 * MIB;
    e.unmap(hole, 4 * MIB);
    assert!(!e.is_mapped(hole, PAGE) && e.is_mapped(hole - PAGE, PAGE));
    e.map_at(hole, 2 * MIB, false).expect("mapped");
    let again = &words[0][4 * MIB / 8..6 * MIB / 8];
    assert!(again.iter().all(|w| w.load(Relaxed) == 0));
    fill(again);
    let before = &words[0][..4 * MIB / 8];
    check(before);
    check(again);
    // Of new mappings none begins in one part and ends in another.
    let got: Vec<_> = (0..40)
        .map(|_| e.map(2 * MIB, 0, true).expect("room"))
        .collect();
    for &a in &got {
        let part = e.window_at(a, 2 * MIB);
        assert!(
            part.start <= a && a + 2 * MIB <= part.end,
            "{a:x} {part:x?}"
        );
    }
    // And back, as much as fits.
    for &a in &got {
        e.unmap(a, 2 * MIB);
    }
    e.unmap(below.start + 8 * MIB, 16 * MIB);
    e.unmap(parts[1].start, parts[1].len());
    e.unmap(above.start + 4 * MIB, 36 * MIB);
    for part in [below, above, main] {
        for at in part.clone().step_by(UNIT) {
            let (used, foreign) = (e.pool().used_frames(), e.pool().foreign_frames());
            assert_eq!(
                e.give_back(at, UNIT),
                Ok(()),
                "{at:x} of {part:x?}; {used} {foreign}"
            );
        }
        assert!(e.is_unmanaged(part.start, part.len()), "{part:x?}");
    }
    e.audit().expect("consistent");
    // SAFETY: it manages nothing.
    unsafe { e.retire(|| {}) };
    check(before);
    check(again);
    check(&words[2][..4 * MIB / 8]);
}
