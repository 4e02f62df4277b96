//! Injected faults of all kinds, from a seed: a transient fault costs only time, damage is noticed,
//! and every fault is accounted for.

use crate::util::*;
use hugeswap::{Advice, Error, FaultMode, Pool, Region, SwapSpec};

tests! {
    #[long]
    transient_faults_lose_nothing,
    #[long]
    transient_faults_lose_nothing_of_children => in_mode(FaultMode::Signal, transient_faults_lose_nothing_of_children),
    #[long]
    transient_faults_lose_nothing_of_children_by_messages => in_mode( FaultMode::Message, transient_faults_lose_nothing_of_children, ),
    #[long]
    children_never_read_wrong_bytes,
    spoilt_writes_are_noticed,
    bad_pages_are_told,
    without_checksums_bits_change,
    a_device_goes_away,
    lost_memory_becomes_zeros,
    parts_of_lost_memory_can_be_given_up,
}

const PAGE: usize = 4096;
const WORDS: usize = PAGE / 8;

/// A rate: so many times in a million.
fn set(pool: &Pool, kinds: &[&str], rate: u32) {
    for kind in kinds {
        pool.set(&format!("debug.fault_{kind}={rate}")).unwrap();
    }
}

fn seeded(memory: usize, mode: FaultMode) -> Pool {
    builder(memory)
        .fault_mode(mode)
        .set("debug.fault_seed=11")
        .set("debug.fault_hang_ms=20")
        .build()
        .unwrap()
}

/// Checks the fault counters: no fault went unnoticed, and nothing failed without a fault.
fn all_is_explained(pool: &Pool) {
    for none in ["fault_undetected", "fault_unexplained"] {
        assert_eq!(counter(pool, none), 0, "{none}");
    }
    assert_eq!(
        counter(pool, "fault_detected"),
        counter(pool, "swap_sum_error")
    );
}

/// True if the page is lost. Panics if it has wrong bytes.
pub fn is_lost(r: &Region, page: usize, g: u64) -> bool {
    let mut bytes = [0; PAGE];
    match r.read_at(page * PAGE, &mut bytes) {
        Ok(()) => {
            for (i, w) in bytes.chunks_exact(8).enumerate() {
                let w = u64::from_ne_bytes(w.try_into().unwrap());
                assert_eq!(w, value(page * WORDS + i, g), "page {page}");
            }
            false
        }
        Err(Error::Lost { .. }) => true,
        Err(e) => panic!("{e}"),
    }
}

/// The number of lost pages among every `one_in`th page. (Each lost page takes some milliseconds.)
fn lost_pages(r: &Region, g: u64, one_in: usize) -> usize {
    let pages = (0..r.len() / PAGE).step_by(one_in);
    pages.filter(|&p| is_lost(r, p, g)).count()
}

const TRANSIENT: &[&str] = &[
    "eio", "short", "nospace", "flip", "misread", "delay", "hang",
];

fn transient_faults_lose_nothing() {
    // (Whole units are far fewer transfers.)
    for (way, rate) in [("always", 40_000), ("never", 2_000)] {
        both_modes(|mode| {
            let pool = seeded(32, mode);
            pool.set(&format!("thp.swapin={way}")).unwrap();
            let rate = if mode == FaultMode::Message {
                40_000
            } else {
                rate
            };
            set(&pool, TRANSIENT, rate);
            three_rounds(&pool, 64 * MIB);
            let injected: u64 = TRANSIENT
                .iter()
                .map(|kind| counter(&pool, &format!("fault_injected_{kind}")))
                .sum();
            assert!(injected > 0);
            all_is_explained(&pool);
            for none in ["hwpoison", "swap_read_error"] {
                assert_eq!(counter(&pool, none), 0, "{none}");
            }
        });
    }
}

fn transient_faults_lose_nothing_of_children() {
    for (way, rate) in [("always", 30_000), ("never", 1_500)] {
        both_modes(|mode| {
            let pool = seeded(32, mode);
            pool.set(&format!("thp.swapin={way}")).unwrap();
            set(&pool, TRANSIENT, rate);
            let r = pool.region(48 * MIB).unwrap();
            for g in 0..3 {
                fill(&r, g);
                let kid = child(|| {
                    assert_eq!(lost_pages(&r, g, 16), 0);
                    fill(&r, g + 100);
                    check(&r, g + 100);
                });
                check(&r, g);
                fill(&r, g + 50);
                ended_well(kid);
                check(&r, g + 50);
            }
            all_is_explained(&pool);
            for none in ["hwpoison", "swap_read_error"] {
                assert_eq!(counter(&pool, none), 0, "{none}");
            }
        });
    }
}

/// Whatever the device does, parent and child each have their bytes or get an error that they are
/// lost.
fn children_never_read_wrong_bytes() {
    const WORSE: &[&str] = &["lost", "torn", "miswrite", "eio", "flip"];
    for way in ["always", "never"] {
        both_modes(|mode| {
            let pool = seeded(32, mode);
            pool.set(&format!("thp.swapin={way}")).unwrap();
            let mut r = pool.region(48 * MIB).unwrap();
            let pages = r.len() / PAGE;
            // Every page is one generation's, and each may be lost at any time.
            let put = |r: &mut Region, page: usize, g: u64| {
                let mut bytes = [0; PAGE];
                for (i, w) in bytes.chunks_exact_mut(8).enumerate() {
                    w.copy_from_slice(&value(page * WORDS + i, g).to_ne_bytes());
                }
                if r.write_at(page * PAGE, &bytes).is_err() {
                    let unit = page / 512 * UNIT;
                    r.discard(unit, UNIT).unwrap();
                    return None;
                }
                Some(g)
            };
            for round in 0..3 {
                set(&pool, WORSE, 0);
                r.discard(0, r.len()).unwrap();
                fill(&r, round);
                set(&pool, WORSE, 20_000);
                page_out(&r);
                let work = |r: &mut Region, g: u64| {
                    for page in (0..pages).step_by(97) {
                        is_lost(r, page, round);
                    }
                    for page in (5..pages).step_by(97) {
                        if put(r, page, g).is_some() {
                            is_lost(r, page, g);
                        }
                    }
                };
                let kid = child(|| work(&mut r, round + 100));
                work(&mut r, round + 50);
                ended_well(kid);
            }
            all_is_explained(&pool);
        });
    }
}

/// A region of which everything has gone to swap while some faults happened.
fn swapped_with(pool: &Pool, kinds: &[&str], rate: u32, len: usize) -> Region {
    let r = pool.region(len).unwrap();
    fill(&r, 1);
    set(pool, kinds, rate);
    page_out(&r);
    set(pool, kinds, 0);
    r
}

fn spoilt_writes_are_noticed() {
    // Which writes there are, and whether what was spoilt is read before it is written again, is a
    // matter of time.
    let noticed = |mode, way: &str, kind: &str, seed: u64| {
        let pool = seeded(32, mode);
        pool.set(&format!("debug.fault_seed={seed}")).unwrap();
        pool.set(&format!("thp.swapin={way}")).unwrap();
        let r = swapped_with(&pool, &[kind], 300_000, 64 * MIB);
        let injected = counter(&pool, &format!("fault_injected_{kind}"));
        let lost = lost_pages(&r, 1, 64);
        println!("{mode:?} {way} {kind}: {injected} writes, {lost} pages lost");
        assert!(lost == 0 || injected > 0 && counter(&pool, "fault_detected") > 0);
        all_is_explained(&pool);
        lost > 0
    };
    for way in ["always", "never"] {
        for kind in ["lost", "torn", "miswrite"] {
            both_modes(|mode| {
                let mut seeds = 11..31;
                assert!(seeds.any(|seed| noticed(mode, way, kind, seed)));
            });
        }
    }
}

fn bad_pages_are_told() {
    let pool = seeded(32, FaultMode::Signal);
    pool.set("thp.swapin=never").unwrap();
    set(&pool, &["bad"], 400);
    let r = pool.region(48 * MIB).unwrap();
    fill(&r, 1);
    for _ in 0..3 {
        r.advise(0, r.len(), Advice::PageOut).unwrap();
    }
    let lost = lost_pages(&r, 1, 1);
    println!("{lost} pages lost");
    assert!(counter(&pool, "fault_injected_bad") > 0 && lost > 0);
    all_is_explained(&pool);
    // What is beside them is not.
    assert!(lost < r.len() / PAGE / 50, "{lost}");
}

/// Checks that the account can find something.
fn without_checksums_bits_change() {
    let pool = seeded(32, FaultMode::Signal);
    pool.set("swap.checksum=off").unwrap();
    let r = swapped_with(&pool, &["lost"], 1_000_000, 32 * MIB);
    let mut wrong = 0;
    let mut bytes = [0; PAGE];
    for page in 0..r.len() / PAGE {
        r.read_at(page * PAGE, &mut bytes).unwrap();
        let word = u64::from_ne_bytes(bytes[..8].try_into().unwrap());
        wrong += usize::from(word != value(page * WORDS, 1));
    }
    assert!(wrong > 0, "lost writes gave right bytes");
    assert!(counter(&pool, "fault_undetected") > 0);
}

fn a_device_goes_away() {
    for way in ["always", "never"] {
        let mut spec = SwapSpec::new("/var/tmp");
        spec.size = Some(256 << 20);
        let pool = builder(32)
            .swap_area(spec)
            .set("debug.fault_seed=11")
            .set(&format!("thp.swapin={way}"))
            .build()
            .unwrap();
        let mut r = pool.region(64 * MIB).unwrap();
        fill(&r, 1);
        page_out(&r);
        pool.set("debug.fault_gone=1").unwrap();
        let all = r.len() / PAGE / 64;
        let lost = lost_pages(&r, 1, 64);
        println!("{way}: {lost} of {all} lost");
        assert!(lost > 0 && lost < all);
        all_is_explained(&pool);
        // From here on the other one has to do.
        r.discard(0, r.len()).unwrap();
        for g in 2..4 {
            fill(&r, g);
            page_out(&r);
            assert_eq!(lost_pages(&r, g, 1), 0);
        }
        all_is_explained(&pool);
    }
}

fn lost_memory_becomes_zeros() {
    for way in ["always", "never"] {
        both_modes(|mode| {
            let pool = seeded(32, mode);
            pool.set(&format!("thp.swapin={way}")).unwrap();
            let mut r = swapped_with(&pool, &["lost"], 1_000_000, 16 * MIB);
            assert_eq!(lost_pages(&r, 1, 64), r.len() / PAGE / 64);
            assert!(matches!(
                r.write_at(5 * PAGE + 1, &[1; 100]),
                Err(Error::Lost { .. })
            ));
            r.discard(0, r.len()).unwrap();
            let mut bytes = [1; PAGE];
            for at in (0..r.len()).step_by(PAGE) {
                r.read_at(at, &mut bytes).unwrap();
                assert_eq!(bytes, [0; PAGE]);
            }
            r.write_at(5 * PAGE + 1, &[1; 100]).unwrap();
            fill(&r, 2);
            page_out(&r);
            assert_eq!(lost_pages(&r, 2, 1), 0);
            all_is_explained(&pool);
        });
    }
}

/// A part of a unit that cannot be read can be discarded. This raised SIGBUS where units have to
/// come in whole.
fn parts_of_lost_memory_can_be_given_up() {
    both_modes(|mode| {
        let pool = builder(32).fault_mode(mode).build().unwrap();
        let mut r = pool.region(8 * MIB).unwrap();
        fill(&r, 1);
        page_out(&r);
        pool.set("debug.swap_read_fail=1").unwrap();
        r.discard(UNIT + 3 * PAGE, PAGE).unwrap();
        r.discard(3 * UNIT - PAGE, 2 * PAGE).unwrap();
        pool.set("debug.swap_read_fail=0").unwrap();
        let mut lost = 0;
        for page in 0..r.len() / PAGE {
            let mut bytes = [1; PAGE];
            match r.read_at(page * PAGE, &mut bytes) {
                Ok(()) => {
                    let w = u64::from_ne_bytes(bytes[..8].try_into().unwrap());
                    let given_up = [512 + 3, 3 * 512 - 1, 3 * 512].contains(&page);
                    let want = if given_up { 0 } else { value(page * WORDS, 1) };
                    assert_eq!(w, want, "page {page}");
                }
                Err(_) => lost += 1,
            }
        }
        // The rest of the units that met the part, at most.
        assert!(lost <= 3 * 512, "{lost}");
        r.discard(0, 8 * MIB).unwrap();
        assert!(
            words(&r)
                .iter()
                .all(|w| w.load(std::sync::atomic::Ordering::Relaxed) == 0)
        );
        pool.audit().unwrap();
    });
}
