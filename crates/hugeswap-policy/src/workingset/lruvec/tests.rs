use super::*;
use crate::workingset::vmscan;
use proptest::prelude::*;
use std::collections::{HashSet, VecDeque};

pub(super) fn lists(units: u32) -> Lruvecs {
    Lruvecs::new(units, (0..units).map(|_| AtomicU16::new(0)).collect())
}

/// Memory of `frames` units over the lists: touches units, evicting when full; counts misses. As in
/// the engine, a touch of a resident unit goes unseen, but for the oldest `window` that were
/// isolated: those are watched.
struct Memory {
    lists: Lruvecs,
    resident: HashSet<u32>,
    watched: VecDeque<u32>,
    frames: usize,
    window: usize,
    misses: usize,
    evicted: u64,
}

impl Memory {
    fn new(frames: usize) -> Memory {
        Memory {
            lists: lists(10_000),
            resident: Default::default(),
            watched: Default::default(),
            frames,
            window: 1,
            misses: 0,
            evicted: 0,
        }
    }

    fn touch(&mut self, unit: u32) {
        if let Some(at) = self.watched.iter().position(|&u| u == unit) {
            self.watched.remove(at);
            return self.lists.reference(unit);
        }
        if self.resident.contains(&unit) {
            return;
        }
        self.misses += 1;
        if self.resident.len() == self.frames {
            while self.watched.len() < self.window {
                let mut out = [0];
                assert_eq!(self.lists.isolate(1, &mut out), 1);
                self.watched.push_back(out[0]);
            }
            let oldest = self.watched.pop_front().unwrap();
            assert!(self.resident.remove(&oldest));
            self.evicted += 1;
        }
        self.resident.insert(unit);
        self.lists.insert(unit);
        assert_eq!(self.lists.len() + self.watched.len(), self.resident.len());
    }

    /// Has so many units referenced that they are active.
    fn hot(&mut self, units: std::ops::Range<u32>) {
        for u in units {
            self.touch(u);
            self.lists.reference(u);
        }
    }

    fn active(&self, unit: u32) -> bool {
        self.lists.rings.ring_of(unit) == Some(ring(0, true))
    }
}

/// The first worked example of the series: 100 pages, 50 hot on the active list, 100 used once pass
/// through.
#[test]
fn protection() {
    let mut m = Memory::new(100);
    m.hot(0..50);
    (1000..1100).for_each(|u| m.touch(u));
    assert!((0..50).all(|u| m.resident.contains(&u)));
    // And however long it goes on.
    (1100..6000).for_each(|u| m.touch(u));
    assert!((0..50).all(|u| m.resident.contains(&u)));
}

/// The second: 50 hot and active; in a loop 50 that will be hot, and 50 used once. Without
/// detection those never stay.
#[test]
fn detection() {
    let run = |on: bool| {
        let mut m = Memory::new(100);
        m.lists.set_detection(on);
        m.hot(0..50);
        for turn in 0..10 {
            m.misses = 0;
            (500..550).for_each(|u| m.touch(u));
            (1000 + 50 * turn..1050 + 50 * turn).for_each(|u| m.touch(u));
        }
        m
    };
    let (with, without) = (run(true), run(false));
    assert!((500..550).all(|u| with.active(u)), "they are promoted");
    assert_eq!(with.misses, 50, "what is used once, and no more");
    assert!(without.misses > 75, "{}", without.misses);
    let counted = |m: &Memory, e: Event| m.lists.events(0, PageKind::Anon)[e as usize];
    assert!(counted(&with, Event::Activate) > 30 * UNIT_PAGES);
    assert_eq!(counted(&without, Event::Activate), 0);
}

#[test]
fn what_was_hot_goes_when_something_else_is() {
    let mut m = Memory::new(100);
    m.hot(0..50);
    for _ in 0..10 {
        m.misses = 0;
        (500..580).for_each(|u| m.touch(u));
    }
    assert_eq!(m.misses, 0, "a set that fits still misses after ten rounds");
}

#[test]
fn a_sweep_over_twice_memory_finds_what_is_active() {
    for frames in [100, 400, 1000] {
        let mut m = Memory::new(frames);
        let sweep = 0..2 * frames as u32;
        sweep.clone().for_each(|u| m.touch(u));
        for _ in 0..5 {
            m.misses = 0;
            sweep.clone().for_each(|u| m.touch(u));
            let kept = frames - vmscan::inactive_target(frames as u64 * UNIT_PAGES) as usize / 512;
            let want = 2 * frames - kept;
            assert!(m.misses.abs_diff(want) <= 2, "{} of {want}", m.misses);
        }
    }
}

#[test]
fn a_hot_set_that_came_late_is_found_by_its_references() {
    // Junk first, which gets the active list; then what is touched again and again beside a stream.
    let mut m = Memory::new(100);
    m.window = 8;
    (0..100).for_each(|u| m.touch(u));
    let mut stream = 1000;
    for _ in 0..40 {
        (200..240).for_each(|u| m.touch(u));
        (0..4).for_each(|i| m.touch(stream + i));
        stream += 4;
    }
    m.misses = 0;
    for _ in 0..40 {
        (200..240).for_each(|u| m.touch(u));
        (0..4).for_each(|i| m.touch(stream + i));
        stream += 4;
    }
    assert_eq!(m.misses, 160, "the stream and nothing else");
}

#[test]
fn units_of_a_few_pages_stay_beside_a_stream() {
    // Room for 100 units, or for 39 and 200 with 100 pages each.
    let mut lists = lists(10_000);
    let weights = lists.weights();
    let mut out = [0; 8];
    for u in 1000..3000 {
        Reclaim::insert(&mut lists, u);
        if u % 8 == 0 {
            let n = lists.isolate(8, &mut out);
            assert!(n > 0);
            for u in (0..200).filter(|&u| !lists.contains(u)).collect::<Vec<_>>() {
                weights.set(u, 100);
                lists.pages_came(u);
            }
        }
    }
    let there = (0..200).filter(|&u| lists.contains(u)).count();
    assert_eq!(there, 200);
}

#[test]
fn a_shadow_goes_with_what_it_stands_for() {
    let mut m = Memory::new(4);
    (0..8).for_each(|u| m.touch(u));
    let gone: Vec<u32> = (0..8).filter(|u| !m.resident.contains(u)).collect();
    m.lists.forget(gone[0]);
    m.touch(gone[0]);
    assert_eq!(
        m.lists.events(0, PageKind::Anon)[Event::Refault as usize],
        0
    );
    m.touch(gone[1]);
    assert_eq!(
        m.lists.events(0, PageKind::Anon)[Event::Refault as usize],
        UNIT_PAGES
    );
}

#[test]
fn files_go_before_anonymous_memory_as_swappiness_says() {
    for (swappiness, anon_goes) in [(0, false), (200, true)] {
        let mut l = lists(200);
        l.set_swappiness(swappiness);
        (100..200).for_each(|u| l.assign(u, 0, PageKind::File));
        (0..200).for_each(|u| Reclaim::insert(&mut l, u));
        let mut out = [0; 8];
        for _ in 0..6 {
            let n = l.isolate(8, &mut out);
            assert!(
                n > 0 && out[..n].iter().all(|&u| (u < 100) == anon_goes),
                "{out:?}"
            );
        }
    }
}

#[test]
fn the_kind_that_comes_back_is_spared() {
    // A file that is read once beside anonymous memory in a loop that fits: the file pays.
    let mut l = lists(1000);
    l.set_swappiness(100);
    (500..1000).for_each(|u| l.assign(u, 0, PageKind::File));
    let mut resident: HashSet<u32> = HashSet::new();
    let mut missed = [0, 0];
    for i in 0..4000u32 {
        for u in [i % 80, 500 + i % 500] {
            if resident.contains(&u) {
                continue;
            }
            missed[usize::from(u >= 500)] += u32::from(i >= 2000);
            if resident.len() == 120 {
                let mut out = [0];
                assert_eq!(l.isolate(1, &mut out), 1);
                resident.remove(&out[0]);
            }
            resident.insert(u);
            Reclaim::insert(&mut l, u);
        }
    }
    assert!(missed[0] < 40, "{missed:?}");
}

#[test]
fn groups_keep_what_they_are_promised() {
    let mut l = lists(400);
    for u in 0..400 {
        l.assign(u, u as usize / 100, PageKind::Anon);
    }
    l.set_limits(
        1,
        Limits {
            min: 50 * UNIT_PAGES,
            ..Limits::default()
        },
    );
    l.set_limits(
        2,
        Limits {
            high: 20 * UNIT_PAGES,
            ..Limits::default()
        },
    );
    (0..400).for_each(|u| Reclaim::insert(&mut l, u));
    let weights = l.weights();
    let used = |g| weights.used(g, PageKind::Anon) / UNIT_PAGES;
    let mut out = [0; 8];
    while used(2) > 20 {
        let most = (used(2) - 20).min(8) as usize;
        assert!(l.isolate(most, &mut out) > 0);
    }
    assert_eq!(
        [used(0), used(1), used(2), used(3)],
        [100, 100, 20, 100],
        "what is above high goes first"
    );
    while used(0) + used(3) > 20 {
        assert!(l.isolate(4, &mut out) > 0);
    }
    assert!(
        used(1) >= 50,
        "{} units of the protected group are left",
        used(1)
    );
    assert!(used(0).abs_diff(used(3)) < 10, "others take turns");
    // Nothing but what is protected: then it has to be that.
    while used(0) + used(2) + used(3) > 0 {
        assert!(l.isolate(1, &mut out) > 0);
    }
    assert!(used(1) >= 45);
    assert!(l.isolate(8, &mut out) > 0);
}

#[test]
fn a_unit_changes_groups_where_it_is() {
    let mut l = lists(10);
    (0..10).for_each(|u| Reclaim::insert(&mut l, u));
    l.reference(3);
    l.assign(3, 2, PageKind::Anon);
    assert_eq!(l.weights().used(2, PageKind::Anon), UNIT_PAGES);
    assert_eq!(l.weights().sum(lruvec(2, PageKind::Anon), true), UNIT_PAGES);
    assert_eq!(l.len(), 10);
}

/// The two lists of one group and kind, by the rules as they are told, over plain deques, oldest
/// last.
#[derive(Default)]
struct Slow {
    active: VecDeque<u32>,
    inactive: VecDeque<u32>,
    shadows: std::collections::HashMap<u32, (u64, Origin)>,
    origins: std::collections::HashMap<u32, Origin>,
    /// Units that were in use; also of those that are away.
    used: HashSet<u32>,
    clock: u64,
    /// Units that left since one of which nothing is known became active.
    left: u64,
    /// What is not decided by the lists.
    duel: Duel,
    full: bool,
}

impl Slow {
    fn share(&self, isolated: usize) -> usize {
        let total = (self.active.len() + self.inactive.len() + isolated) as u64 * UNIT_PAGES;
        ((total - vmscan::inactive_target(total)) / UNIT_PAGES) as usize
    }

    fn take(&mut self, unit: u32) {
        self.active.retain(|&u| u != unit);
        self.inactive.retain(|&u| u != unit);
    }

    fn shrink(&mut self) {
        while self.active.len() > self.share(0) {
            let oldest = self.active.pop_back().unwrap();
            self.origins.insert(oldest, Origin::Deactivated);
            self.inactive.push_front(oldest);
        }
    }

    fn activate(&mut self, unit: u32) {
        self.take(unit);
        self.origins.remove(&unit);
        self.used.insert(unit);
        self.active.push_front(unit);
        self.shrink();
    }

    fn reference(&mut self, unit: u32) {
        let origin = self.origins.get(&unit).copied().unwrap_or_default();
        // (The unit weighs all its pages by now.)
        self.duel.on_left(origin, UNIT_PAGES);
        self.duel.on_back(origin, UNIT_PAGES);
        self.shadows.remove(&unit);
        self.activate(unit);
    }

    fn insert(&mut self, unit: u32) {
        if self.active.contains(&unit) || self.inactive.contains(&unit) {
            return;
        }
        if let Some((left, origin)) = self.shadows.remove(&unit)
            && self.clock - left <= self.active.len() as u64
        {
            self.duel.on_back(origin, UNIT_PAGES);
            if self.duel.grants() {
                return self.activate(unit);
            }
            self.origins.insert(unit, Origin::Refused);
        } else {
            self.used.remove(&unit);
        }
        self.inactive.push_front(unit);
    }

    fn isolate(&mut self, max: usize) -> Vec<u32> {
        let mut out = vec![];
        let target = |n: usize| vmscan::inactive_target(n as u64 * UNIT_PAGES);
        let short = target(self.active.len() + self.inactive.len()) / 2;
        if (self.inactive.len() as u64 * UNIT_PAGES) < short {
            self.shrink();
        }
        let none = self.inactive.is_empty();
        for _ in 0..if none { max } else { 0 } {
            // All are active: some have to go.
            if let Some(unit) = self.active.pop_back() {
                self.origins.insert(unit, Origin::Deactivated);
                self.inactive.push_front(unit);
            }
        }
        while out.len() < max {
            let Some(unit) = self.inactive.pop_back() else {
                break;
            };
            // What was isolated in this call still weighs.
            self.inactive.push_back(unit);
            let total = self.active.len() + self.inactive.len() + out.len();
            let share = total as u64 * UNIT_PAGES - target(total);
            self.inactive.pop_back();
            let enough = if self.full { share / 4 * 3 } else { share };
            let known = self.used.contains(&unit);
            let may = !none && (known || self.left > 0);
            if may {
                self.full = (self.active.len() as u64 + 1) * UNIT_PAGES > enough;
            }
            if !may || self.full {
                self.evict(unit, &mut out);
            } else {
                self.left = if known { self.left } else { 0 };
                self.active.push_back(unit);
            }
        }
        out
    }

    fn evict(&mut self, unit: u32, out: &mut Vec<u32>) {
        let origin = self.origins.remove(&unit).unwrap_or_default();
        self.clock += 1;
        self.left += 1;
        self.shadows.insert(unit, (self.clock, origin));
        self.duel.on_left(origin, UNIT_PAGES);
        out.push(unit);
    }

    fn forget(&mut self, unit: u32) {
        self.take(unit);
        self.shadows.remove(&unit);
        self.origins.remove(&unit);
        self.used.remove(&unit);
    }
}

proptest! {
    #[test]
    fn as_the_slow_model_decides(ops in proptest::collection::vec((0u8..6, 0u32..60), 0..400)) {
        let mut fast = lists(60);
        let mut slow = Slow::default();
        for (op, unit) in ops {
            match op {
                0..=2 => { Reclaim::insert(&mut fast, unit); slow.insert(unit); }
                3 => { Reclaim::reference(&mut fast, unit); slow.reference(unit); }
                4 => { Reclaim::remove(&mut fast, unit); slow.forget(unit); }
                _ => {
                    let mut out = [0; 3];
                    let n = Reclaim::isolate(&mut fast, 3, &mut out);
                    prop_assert_eq!(&out[..n], &slow.isolate(3)[..]);
                }
            }
            prop_assert_eq!(Reclaim::len(&fast), slow.active.len() + slow.inactive.len());
            for u in 0..60 {
                let ring_of = fast.rings.ring_of(u);
                prop_assert_eq!(ring_of == Some(ring(0, true)), slow.active.contains(&u));
                prop_assert_eq!(ring_of == Some(ring(0, false)), slow.inactive.contains(&u));
            }
            prop_assert_eq!(fast.weights.sum(0, true), slow.active.len() as u64 * UNIT_PAGES);
            prop_assert_eq!(fast.weights.sum(0, false), slow.inactive.len() as u64 * UNIT_PAGES);
        }
    }

    /// Whatever is done: no unit is lost or twice, weights add up, and every page that came is a
    /// first touch or a refault.
    #[test]
    fn the_books_add_up(ops in proptest::collection::vec((0u8..8, 0u32..60, 0usize..3, any::<bool>()), 0..400)) {
        let mut l = lists(60);
        let mut on = HashSet::new();
        let (mut came, mut first) = (0, 0);
        let mut known = HashSet::new();
        for (op, unit, group, file) in ops {
            match op {
                0..=2 => {
                    if on.insert(unit) {
                        came += UNIT_PAGES;
                        first += if known.insert(unit) { UNIT_PAGES } else { 0 };
                    }
                    Reclaim::insert(&mut l, unit);
                }
                3 if on.contains(&unit) => Reclaim::reference(&mut l, unit),
                3 | 4 => {
                    Reclaim::remove(&mut l, unit);
                    on.remove(&unit);
                    known.remove(&unit);
                }
                5 => l.assign(unit, group, PageKind::ALL[usize::from(file)]),
                6 => l.set_limits(group, Limits { min: u64::from(unit) * 100, high: u64::from(60 - unit) * 400 }),
                _ => {
                    let mut out = [0; 5];
                    let n = Reclaim::isolate(&mut l, 5, &mut out);
                    for u in &out[..n] { prop_assert!(on.remove(u)); }
                    prop_assert!(n > 0 || on.is_empty());
                }
            }
            prop_assert_eq!(Reclaim::len(&l), on.len());
            for u in 0..60 { prop_assert_eq!(Lruvecs::contains(&l, u), on.contains(&u)); }
            let weighed: u64 = (0..GROUPS).map(|g| PageKind::ALL.map(|k| l.weights.used(g, k)).iter().sum::<u64>()).sum();
            prop_assert_eq!(weighed, on.len() as u64 * UNIT_PAGES);
            prop_assert_eq!(l.weights.full(), on.len() as u64);
            let all = |e: Event| (0..GROUPS).flat_map(|g| PageKind::ALL.map(|k| l.events(g, k)[e as usize])).sum::<u64>();
            prop_assert_eq!(all(Event::Refault) + first, came);
            prop_assert!(all(Event::Restore) <= all(Event::Activate) && all(Event::Activate) <= all(Event::Refault));
            prop_assert!(all(Event::PgDeactivate) <= all(Event::PgActivate));
        }
    }

    #[test]
    fn the_same_trace_has_the_same_decisions(trace in proptest::collection::vec(0u32..300, 0..600)) {
        let run = || {
            let mut m = Memory::new(40);
            m.window = 4;
            let seen: Vec<usize> = trace.iter().map(|&u| { m.touch(u); m.misses }).collect();
            (seen, m.lists.events(0, PageKind::Anon))
        };
        prop_assert_eq!(run(), run());
    }
}
