//! Readahead against known patterns, and its promises against any.

use super::*;
use proptest::prelude::*;
use std::collections::{HashSet, VecDeque};

/// A program whose faults all need swap data and whose readahead always arrives in time.
struct Program {
    streams: Streams,
    cached: HashSet<u64>,
    /// The same, oldest first, for reclaim.
    order: VecDeque<u64>,
    max: u64,
    asked: u64,
    hits: u64,
}

impl Program {
    fn new(max: u32) -> Program {
        Program {
            streams: Streams::new(max),
            cached: HashSet::new(),
            order: VecDeque::new(),
            max: u64::from(max),
            asked: 0,
            hits: 0,
        }
    }

    /// Touches a unit; true if it had been read ahead.
    fn touch(&mut self, unit: u64, limit: u64) -> bool {
        let hit = self.cached.remove(&unit);
        let w = self.streams.on_fault(unit, limit, hit);
        for u in w.start..w.end() {
            assert!(u < limit, "{w:?} passes {limit}");
            let reach = self.max.max(MAX_STRIDE);
            assert!(
                u != unit && u.abs_diff(unit) <= reach,
                "{w:?} is far from {unit}"
            );
            self.cached.insert(u);
            self.order.push_back(u);
        }
        assert!(u64::from(w.count) <= self.max);
        self.asked += u64::from(w.count);
        self.hits += u64::from(hit);
        hit
    }
}

impl Program {
    /// Reclaim leaves the newest `keep` of what was read ahead.
    fn reclaim(&mut self, keep: usize) {
        while self.cached.len() > keep {
            let u = self.order.pop_front().unwrap();
            if self.cached.remove(&u) {
                self.streams.on_waste(u);
            }
        }
    }
}

#[test]
fn windows_ramp_and_are_renewed_at_half() {
    let mut s = Streams::new(8);
    let got: Vec<(u64, u32)> = (100..120)
        .map(|u| s.on_fault(u, 1000, u > 101))
        .map(|w| (w.start, w.count))
        .filter(|&(_, n)| n > 0)
        .collect();
    let want = [
        (102, 1),
        (103, 2),
        (105, 4),
        (109, 6),
        (115, 4),
        (119, 4),
        (123, 4),
    ];
    assert_eq!(got, want);
}

#[test]
fn off_means_off() {
    let mut s = Streams::new(0);
    assert!((0..100).all(|u| s.on_fault(u, 1000, false).is_empty()));
}

proptest! {
    #[test]
    fn a_stream_misses_only_its_first_two(start in 0u64..5000, len in 3u64..200, max in 1u32..=64, down: bool) {
        let mut p = Program::new(max);
        let limit = start + len;
        let mut seen = HashSet::new();
        for i in 0..len {
            let unit = if down { limit - 1 - i } else { start + i };
            let hit = p.touch(unit, limit);
            prop_assert_eq!(hit, i >= 2, "touch {} of unit {}", i, unit);
            for u in &p.cached { prop_assert!(!seen.contains(u), "{} was asked for twice", u); }
            seen.insert(unit);
            prop_assert!(p.cached.len() as u32 <= max, "outstanding");
            // Never pausing: once up to speed, something is always on its way.
            let left = if down { unit } else { limit - 1 - unit };
            prop_assert!(i == 0 || left == 0 || !p.cached.is_empty());
        }
        if !down { prop_assert!(p.cached.is_empty(), "read past the limit"); }
    }

    #[test]
    fn strides_are_followed(start in 100u64..5000, stride in 2u64..=MAX_STRIDE, max in 1u32..=64, down: bool) {
        let mut p = Program::new(max);
        for i in 0..12 {
            let unit = if down { start - i * stride } else { start + i * stride };
            let hit = p.touch(unit, 1 << 20);
            prop_assert_eq!(hit, i >= 3, "touch {}", i);
            prop_assert!(p.cached.len() <= 1);
        }
    }

    #[test]
    fn eight_interleaved_streams_are_all_found(gaps in prop::collection::vec(120u64..5000, 8), downs in prop::collection::vec(any::<bool>(), 8), max in 1u32..=32) {
        let mut p = Program::new(max);
        for i in 0..60 {
            let mut base = 1000;
            for (gap, down) in gaps.iter().zip(&downs) {
                base += gap;
                let unit = if *down { base - i } else { base + i };
                // Until there is a stream, a neighbour of another one can be taken for it.
                let hit = p.touch(unit, 1 << 40);
                prop_assert_eq!(hit, i >= 2);
            }
        }
    }

    #[test]
    fn random_faults_read_nothing(units in prop::collection::hash_set(0u64..(1 << 40), 1..300)) {
        let mut p = Program::new(8);
        let far: Vec<u64> = units.into_iter().map(|u| u * 16).collect();
        for u in far { p.touch(u, 1 << 45); }
        prop_assert_eq!(p.asked, 0);
    }

    #[test]
    fn any_faults_keep_the_promises(
        ops in prop::collection::vec((0u64..200, any::<bool>(), 0u64..220, 0u8..8), 0..400),
        max in 0u32..=64,
    ) {
        // `touch` asserts them.
        let mut p = Program::new(max);
        for (unit, arrives, limit, what) in ops {
            match what {
                0 => { p.streams.on_waste(unit); p.cached.remove(&unit); }
                1 => { let n = p.streams.on_first_touch(unit, limit); prop_assert!(n >= 1 && (unit + u64::from(n) <= limit || n == 1)); }
                _ => { if !arrives { p.cached.remove(&unit); } p.touch(unit, limit); }
            }
        }
    }
}

/// A full-period generator, so that the test is the same every time.
fn scatter(n: u64, of: u64) -> impl Iterator<Item = u64> {
    let mut x = 88_172_645_463_325_252u64;
    (0..n).map(move |_| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x % of
    })
}

#[test]
fn chance_neighbours_cost_little() {
    for span in [300, 1000, 10_000] {
        let mut p = Program::new(8);
        for u in scatter(20_000, span) {
            p.touch(u, span);
            p.reclaim(32);
        }
        assert!(
            p.asked <= 400,
            "{} units read ahead among {span} at random",
            p.asked
        );
    }
}

#[test]
fn a_stream_is_found_among_doubts_and_survives_noise() {
    let mut p = Program::new(8);
    for u in scatter(20_000, 1000) {
        p.touch(u, 1000);
        p.reclaim(32);
    }
    let mut noise = scatter(1 << 20, 1 << 40);
    let mut misses = 0;
    for u in 6000..6200 {
        misses += u64::from(!p.touch(u, 1 << 41));
        // A lone fault is forgotten after so many others, a stream is not.
        if u >= 6004 {
            for _ in 0..2 * STREAMS {
                p.touch((1 << 20) + noise.next().unwrap(), 1 << 41);
            }
        }
    }
    assert!(misses <= 4, "{misses}");
}

#[test]
fn waste_halves_the_window_and_use_restores_it() {
    let mut s = Streams::new(16);
    let mut cached: HashSet<u64> = HashSet::new();
    let run = |s: &mut Streams, cached: &mut HashSet<u64>, from: u64, to: u64| {
        let mut most = 0;
        for u in from..to {
            let w = s.on_fault(u, 1 << 40, cached.remove(&u));
            cached.extend(w.start..w.end());
            most = most.max(cached.len());
        }
        most
    };
    assert_eq!(run(&mut s, &mut cached, 0, 100), 16);
    // Reclaim takes everything that was read ahead.
    for u in cached.drain() {
        s.on_waste(u);
    }
    let shrunk = run(&mut s, &mut cached, 100, 104);
    assert!((1..=10).contains(&shrunk), "{shrunk}");
    assert_eq!(run(&mut s, &mut cached, 104, 300), 16);
}

#[test]
fn units_in_memory_do_not_end_a_stream() {
    let mut p = Program::new(8);
    for u in 0..40 {
        p.touch(u, 1000);
    }
    // 40..48 are in memory: the next fault is further on, and not read ahead.
    p.cached.clear();
    assert!(!p.touch(48, 1000));
    assert!(p.touch(49, 1000) && p.touch(50, 1000));
    assert!(p.cached.len() >= 4);
}

#[test]
fn readahead_that_is_not_carried_out_is_asked_for_again() {
    let mut s = Streams::new(8);
    let mut asked = 0;
    for u in 0..100 {
        asked += u64::from(s.on_fault(u, 1000, false).count);
    }
    // Nobody reads anything: the window stays small but the stream is not given up.
    assert!((20..=200).contains(&asked), "{asked}");
    assert!(s.on_fault(100, 1000, false).count + s.on_fault(101, 1000, false).count > 0);
}

#[test]
fn what_was_cut_short_is_asked_for_again() {
    for down in [false, true] {
        let at = |i: u64| if down { 1000 - i } else { 1000 + i };
        let mut s = Streams::new(8);
        for i in 0..20 {
            s.on_fault(at(i), 2000, i > 1);
        }
        // Up to 26 or so is asked for; memory ends before 22.
        s.on_cut_short(at(22));
        let w = s.on_fault(at(20), 2000, true);
        let units: Vec<u64> = w.units(at(20)).collect();
        assert!(units.len() >= 4, "{w:?}");
        assert!(
            units.iter().copied().eq((22..).map(at).take(units.len())),
            "{units:?}"
        );
    }
}

#[test]
fn first_touches_in_sequence_are_grouped() {
    let mut s = Streams::new(8);
    let (mut unit, mut sizes) = (10, vec![]);
    while unit < 150 {
        let n = s.on_first_touch(unit, 150);
        sizes.push(n);
        unit += u64::from(n);
    }
    assert_eq!(unit, 150);
    assert_eq!(sizes, [1, 2, 4, 8, 16, 32, 32, 32, 13]);
    // One that maps fewer than it might keeps its pace.
    for unit in [200, 201, 203, 207, 210] {
        s.on_first_touch(unit, 1000);
    }
    assert_eq!(s.on_first_touch(212, 1000), 8);
    assert_eq!(s.on_first_touch(500, 1000), 1);
    assert_eq!(s.on_first_touch(700, 1000), 1);
    assert_eq!(s.on_first_touch(501, 502), 1);
    let mut none = Streams::new(0);
    assert!((0..50).all(|u| none.on_first_touch(u, 1000) == 1));
}

#[test]
fn a_stream_goes_on_after_units_in_memory() {
    let mut s = Streams::new(8);
    (100..120).for_each(|u| {
        s.on_fault(u, 10_000, u > 102);
    });
    // What was asked for up to 128 is used, then 128..200 are in memory already.
    (120..128).for_each(|u| {
        s.on_fault(u, 10_000, true);
    });
    let far = 300;
    s.on_resident(121, far);
    let w = s.on_fault(far, 10_000, false);
    assert!(w.start > far && w.count > 1, "{w:?}");
}
