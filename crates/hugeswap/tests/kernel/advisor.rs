//! The advisor's answers for real programs.

use crate::util::{
    MIB, UNIT, builder, counter, fill, need_base_pages, need_huge_pages, until, words,
};
use hugeswap::{Pool, Region};
use std::sync::atomic::Ordering::Relaxed;

tests! {
    advisor_a_loop_gets_what_it_takes => a_loop_gets_what_it_takes(),
    #[long]
    advisor_random_pages_have_a_curve => random_pages_have_a_curve(),
    advisor_what_fits_gets_none => what_fits_gets_none(),
}

fn lap(r: &Region) {
    for at in (0..r.len()).step_by(UNIT) {
        words(r)[at / 8].load(Relaxed);
    }
}

fn pages_in(pool: &Pool) -> u64 {
    pool.stats().pswpin
}

/// A loop over half as much again as the budget, by whole units: less memory than that does not
/// help, and exactly that much is advised.
fn a_loop_gets_what_it_takes() {
    need_huge_pages();
    // Where no whole unit is free who wants one waits, if perhaps not for ever.
    let pool = builder(128)
        .set("thp.swapin=always")
        .set("thp.defrag=always")
        .build()
        .unwrap();
    let r = pool.region(192 * MIB).unwrap();
    fill(&r, 1);
    // Until nearly all that came back was whole: of what is read for the rest of a unit no distance
    // is known.
    let mut laps = 0;
    until("it comes whole", || {
        lap(&r);
        laps += 1;
        laps >= 12 && counter(&pool, "thp_swpin_fallback") * 50 <= counter(&pool, "thp_swpin")
    });
    let advice = pool.advice().expect("enough came back");
    let (point, saved) = advice.suggestion().expect("more memory helps");
    let share = point.memory_bytes as f64 / (128 * MIB) as f64;
    assert!((1.25..=1.75).contains(&share), "{advice:?}");
    assert!(saved > 0.7, "{advice:?}");
    let first = advice.points[0];
    assert!(!first.estimated && first.memory_bytes == 128 << 20);
    assert!(first.pages_in <= pages_in(&pool) && first.pages_in > 0);
    assert_eq!(advice.thrash_below, None, "nobody saw what is in memory");
}

/// Single pages are read at random: less memory brings more pages back, more memory fewer, and
/// memory for all of the region none.
fn random_pages_have_a_curve() {
    need_base_pages();
    let pool = builder(32).set("thp.swapin=never").build().unwrap();
    let r = pool.region(64 * MIB).unwrap();
    fill(&r, 1);
    let mut state = 1u64;
    for _ in 0..120_000 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let word = (state >> 33) as usize % (r.len() / 8);
        words(&r)[word].load(Relaxed);
    }
    let advice = pool.advice().expect("enough came back");
    let at = |share: f64| {
        let bytes = (share * (32 * MIB) as f64) as u64;
        let found = advice.points.iter().find(|p| p.memory_bytes == bytes);
        found
            .unwrap_or_else(|| panic!("no {share} in {advice:?}"))
            .pages_in
    };
    let falling = advice
        .points
        .windows(2)
        .all(|w| w[0].pages_in >= w[1].pages_in);
    assert!(falling, "{advice:?}");
    // Uniform accesses miss what is not in memory. (The fill is in the figures, which is no such
    // access.)
    let half = at(0.5) as f64 / at(1.0) as f64;
    assert!((1.2..2.0).contains(&half), "{half}: {advice:?}");
    assert!(at(1.5) * 4 < at(1.0) * 3, "{advice:?}");
}

fn what_fits_gets_none() {
    let pool = builder(64).build().unwrap();
    let r = pool.region(32 * MIB).unwrap();
    fill(&r, 1);
    lap(&r);
    assert_eq!(pool.advice(), None);
}
