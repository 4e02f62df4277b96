//! Bytes are right, and cost no more than they should.

use crate::util::*;
use hugeswap::{Advice, FaultMode};
use hugeswap_engine::Engine;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

tests! {
    #[long]
    four_times_the_budget,
    read_only_pass_writes_nothing,
    zeros_cost_no_io,
    #[long]
    units_stay_huge,
    discard_reads_zero,
    pageout_and_willneed,
    sums_can_be_turned_on_again,
    readahead_goes_on_without_base_pages,
    readahead_changes_in_use,
    #[long]
    pins_hold,
    what_a_device_still_has_is_not_used_again,
    pins_end_with_what_was_pinned,
    #[long]
    budget_holds,
    many_regions_share_units,
}

fn four_times_the_budget() {
    need_huge_pages();
    both_modes(|mode| {
        // All of it whole: first touches wait for huge pages.
        let pool = builder(32)
            .fault_mode(mode)
            .set("thp.defrag=always")
            .build()
            .unwrap();
        let r = pool.region(128 * MIB).unwrap();
        for g in 0..3 {
            fill(&r, g);
            check(&r, g);
        }
        let s = pool.stats();
        assert!(s.thp_swpout >= 3 * 48, "{s:?}");
        assert!(s.peak_resident_bytes <= 32 * MIB as u64);
    });
}

fn read_only_pass_writes_nothing() {
    both_modes(|mode| {
        let pool = builder(64).fault_mode(mode).build().unwrap();
        let r = pool.region(160 * MIB).unwrap();
        fill(&r, 1);
        // Reclaim may keep some units for as long as it likes: have every one written.
        r.advise(0, r.len(), Advice::PageOut).unwrap();
        check(&r, 1);
        let before = pool.stats();
        check(&r, 1);
        check(&r, 1);
        let after = pool.stats();
        assert!(after.pswpin > before.pswpin);
        assert_eq!(
            after.pswpout, before.pswpout,
            "an unchanged unit was written"
        );
    });
}

fn zeros_cost_no_io() {
    let pool = builder(32).build().unwrap();
    let r = pool.region(256 * MIB).unwrap();
    for w in words(&r) {
        assert_eq!(w.load(Relaxed), 0);
    }
    for w in words(&r).iter().step_by(64) {
        w.store(0, Relaxed);
    }
    let s = pool.stats();
    assert_eq!((s.pswpout, s.pswpin), (0, 0), "{s:?}");
    assert!(s.zero_drops > 0);
}

fn units_stay_huge() {
    need_huge_pages();
    both_modes(|mode| {
        let share = || {
            let pool = builder(64).fault_mode(mode).build().unwrap();
            let r = pool.region(128 * MIB).unwrap();
            for g in 0..3 {
                fill(&r, g);
            }
            check(&r, 2);
            let s = pool.stats();
            s.thp_swpout as f64 / (s.pswpout as f64 / 512.0)
        };
        // (Where the processors are taken, reads of whole units take long, and pages are tried.)
        let shares: Vec<f64> = std::iter::repeat_with(share).take(3).collect();
        let most = shares.iter().copied().fold(0.0, f64::max);
        assert!(most > 0.9, "only {shares:.3?} of what went out was huge");
    });
}

fn discard_reads_zero() {
    both_modes(|mode| {
        let pool = builder(32).fault_mode(mode).build().unwrap();
        let mut r = pool.region(64 * MIB).unwrap();
        fill(&r, 7);
        // From the middle of a unit to the middle of another, over units in memory and in swap.
        let (from, len) = (UNIT / 2, 40 * MIB);
        r.discard(from, len).unwrap();
        for (i, w) in words(&r).iter().enumerate() {
            let inside = (from / 8..(from + len) / 8).contains(&i);
            assert_eq!(
                w.load(Relaxed),
                if inside { 0 } else { value(i, 7) },
                "word {i}"
            );
        }
        fill(&r, 8);
        check(&r, 8);
    });
}

fn pageout_and_willneed() {
    both_modes(|mode| {
        let pool = builder(64).fault_mode(mode).build().unwrap();
        let r = pool.region(32 * MIB).unwrap();
        fill(&r, 1);
        assert!(r.is_resident(0));
        r.advise(0, 32 * MIB, Advice::PageOut).unwrap();
        let out = (0..16).filter(|u| !r.is_resident(u * UNIT)).count();
        assert!(out >= 15, "only {out} of 16 units went out");
        r.advise(0, 32 * MIB, Advice::WillNeed).unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while (0..16).any(|u| !r.is_resident(u * UNIT)) {
            assert!(
                std::time::Instant::now() < deadline,
                "willneed brought nothing in"
            );
            std::thread::yield_now();
        }
        check(&r, 1);
    });
}

fn sums_can_be_turned_on_again() {
    both_modes(|mode| {
        let pool = builder(32)
            .fault_mode(mode)
            .set("swap.checksum=off")
            .build()
            .unwrap();
        let r = pool.region(96 * MIB).unwrap();
        fill(&r, 1);
        pool.set("swap.checksum=on").unwrap();
        check(&r, 1);
    });
}

/// There are no base pages in message mode. Units that are tried for a stream must not use up the
/// trust in it.
fn readahead_goes_on_without_base_pages() {
    let pool = match builder(32).fault_mode(FaultMode::Message).build() {
        Ok(pool) => pool,
        Err(e) => skip(&format!("no message mode: {e}")),
    };
    let r = pool.region(256 * MIB).unwrap();
    fill(&r, 1);
    check(&r, 1);
    check(&r, 1);
    let ahead = counter(&pool, "swap_ra");
    assert!(
        ahead > 100,
        "{ahead} units read ahead in two passes over 128"
    );
}

fn readahead_changes_in_use() {
    let pool = builder(32).set("thp.swapin=always").build().unwrap();
    let r = pool.region(256 * MIB).unwrap();
    let ahead = || {
        let before = counter(&pool, "swap_ra");
        check(&r, 1);
        check(&r, 1);
        counter(&pool, "swap_ra") - before
    };
    fill(&r, 1);
    assert!(ahead() > 100);
    pool.set("readahead.max=0").unwrap();
    assert_eq!(ahead(), 0);
    pool.set("readahead.max=8").unwrap();
    assert!(ahead() > 100);
}

fn pins_hold() {
    both_modes(|mode| {
        let pool = builder(64).fault_mode(mode).build().unwrap();
        let r = pool.region(256 * MIB).unwrap();
        fill(&r, 1);
        let pin = r.pin(10 * UNIT + 5, UNIT, true).unwrap();
        check(&r, 1);
        assert!(r.is_resident(10 * UNIT) && r.is_resident(11 * UNIT));
        drop(pin);
        check(&r, 1);
        assert!(
            r.pin(0, 256 * MIB, false).is_err(),
            "more than the budget was pinned"
        );
        assert!(
            r.pin(255 * MIB, 2 * MIB, false).is_err(),
            "a pin beyond the region"
        );
    });
}

/// Memory that is given up while it is pinned, and pinned again: the pins of before say nothing of it.
fn pins_end_with_what_was_pinned() {
    both_modes(|mode| {
        let e = engine(32, mode, &[]);
        let at = e.map(2 * UNIT, 4096, true).expect("mapped");
        let at = at.next_multiple_of(UNIT);
        type GiveUp = fn(&Engine, usize);
        let ways: [GiveUp; 3] = [
            |e, at| e.discard(at, UNIT).expect("discarded"),
            |e, at| {
                e.unmap(at, UNIT);
                e.map_at(at, UNIT, false).expect("mapped");
            },
            |e, at| e.map_at(at, UNIT, true).expect("mapped over"),
        ];
        for give_up in ways {
            for _ in 0..2 {
                e.pin(at, UNIT, true).expect("pinned");
            }
            give_up(e, at);
            assert!(!e.is_pinned(at));
            e.pin(at, 4096, true).expect("pinned");
            for _ in 0..2 {
                e.unpin(at, UNIT);
                assert!(e.is_pinned(at), "let go of by others");
            }
            e.unpin(at, 4096);
            assert!(!e.is_pinned(at));
        }
        e.pin(at, UNIT, true).expect("pinned");
        e.discard(at, UNIT).expect("discarded");
        e.pin(at, UNIT, true).expect("pinned");
        e.unpin_all();
        assert!(!e.is_pinned(at));
        // (Nothing is left of either.)
        e.pin(at, UNIT, true).expect("pinned");
        e.unpin(at, UNIT);
        assert!(!e.is_pinned(at));
        // SAFETY: nothing of this test's uses it any more.
        unsafe { e.stop() };
    });
}

/// A pinned unit is given up while the kernel, or a device, still has its pages: they are not given to
/// others.
fn what_a_device_still_has_is_not_used_again() {
    const LEN: usize = 16 * 4096;
    both_modes(|mode| {
        let e = engine(32, mode, &[]);
        let at = e.map(2 * UNIT, 4096, true).expect("mapped");
        let at = at.next_multiple_of(UNIT);
        // SAFETY: a whole unit mapped above, of words.
        let words = unsafe { std::slice::from_raw_parts(at as *const AtomicU64, UNIT / 8) };
        for (i, w) in words.iter().enumerate() {
            w.store(value(i, 3), Relaxed);
        }
        e.pin(at, LEN, true).expect("pinned");
        let mut ends = [0; 2];
        let pages = libc::iovec {
            iov_base: at as *mut libc::c_void,
            iov_len: LEN,
        };
        // SAFETY: room for two descriptors; memory that is pinned. (The pipe has the pages, not a
        // copy.)
        unsafe {
            assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
            assert_eq!(libc::vmsplice(ends[1], &pages, 1, 0), LEN as isize);
        }
        e.discard(at, UNIT).expect("given up");
        e.unpin(at, LEN);
        let others = e.map(128 * MIB, 4096, true).expect("mapped");
        for page in (others..others + 128 * MIB).step_by(4096) {
            // SAFETY: mapped above.
            unsafe { (page as *mut u64).write(page as u64) };
        }
        let mut there = vec![0u64; LEN / 8];
        // SAFETY: room for all of it.
        let n = unsafe { libc::read(ends[0], there.as_mut_ptr().cast(), LEN) };
        assert_eq!(n, LEN as isize);
        for (i, &word) in there.iter().enumerate() {
            assert_eq!(word, value(i, 3), "word {i}");
        }
    });
}

fn budget_holds() {
    both_modes(|mode| {
        let budget = 64u64;
        let pool = builder(budget as usize).fault_mode(mode).build().unwrap();
        let r = pool.region(256 * MIB).unwrap();
        let grown = most_memory_beside(|| {
            for g in 0..3 {
                fill(&r, g);
            }
            check(&r, 2);
        });
        // 2% of the budget, and the unit table, lists and stacks of a small process.
        let allowed = budget * 1024 * 102 / 100 + 4096;
        assert!(
            grown <= allowed,
            "{grown} KiB of anonymous memory, {allowed} allowed"
        );
    });
}

fn many_regions_share_units() {
    let pool = builder(32).build().unwrap();
    let mut regions: Vec<_> = (0..40)
        .map(|i| pool.region((i + 1) * 123_456).unwrap())
        .collect();
    for (g, r) in regions.iter().enumerate() {
        fill(r, g as u64);
    }
    for (g, r) in regions.iter().enumerate() {
        check(r, g as u64);
    }
    // Memory that was used before reads as zero in a new region.
    regions.truncate(20);
    let fresh = pool.region(20 * MIB).unwrap();
    assert!(words(&fresh).iter().all(|w| w.load(Relaxed) == 0));
    for (g, r) in regions.iter().enumerate() {
        check(r, g as u64);
    }
}
