//! Phases on plain memory.

use super::*;
use crate::generate::pattern::Pattern;
use crate::generate::plan::{Group, NewMap, Part};
use crate::generate::steps::{Program, Sizes};
use crate::generate::words::{PAGE, UNIT, fill, first_value, seed};

const PAGES: usize = 4 * UNIT / PAGE;

fn memory(task: u32) -> (memmap2::MmapMut, Versions) {
    let mut map = memmap2::MmapMut::map_anon(PAGES * PAGE).unwrap();
    fill(&mut map, seed(task, 1));
    (map, Versions::new(task, 1, PAGES))
}

fn phase(seconds: Option<f64>, groups: Vec<Group>) -> Phase {
    Phase {
        every_s: 0.02,
        ..Phase::new("p", seconds, groups)
    }
}

fn random(write: bool, accesses: Option<u64>) -> Doing {
    Doing::Random {
        pattern: Pattern::Uniform,
        write,
        accesses,
    }
}

#[test]
fn writes_by_many_threads_are_all_accounted_for() {
    let (mut map, versions) = memory(3);
    let p = phase(
        None,
        vec![Group::new(random(true, Some(4000)), 4, Part::All)],
    );
    let played = play(&versions, &mut map, &p, 1).unwrap().unwrap();
    assert_eq!((played.groups[0].done, played.groups[0].threads), (4000, 4));
    assert_eq!(versions.verify(&mut map, 3, 1).unwrap(), None);
    let changes: u64 = (0..PAGES).map(|p| versions.state(p).1).sum();
    assert_eq!(changes, 4000);
    // One change lost.
    let page = (0..PAGES).find(|p| versions.state(*p).1 == 1).unwrap();
    fill(
        &mut map[page * PAGE..(page + 1) * PAGE],
        first_value(seed(3, 1), page * PAGE),
    );
    assert_eq!(versions.verify(&mut map, 2, 1).unwrap(), Some(page * PAGE));
}

#[test]
fn streams_and_random_accesses_go_on_together() {
    let (mut map, versions) = memory(0);
    let p = phase(
        Some(0.1),
        vec![
            Group::new(Doing::Stream { write: true }, 2, Part::FirstHalf),
            Group::new(random(false, None), 2, Part::SecondHalf),
        ],
    );
    let played = play(&versions, &mut map, &p, 1).unwrap().unwrap();
    assert!(played.groups.iter().all(|g| g.done > 0 && g.threads == 2));
    let last = played.samples.last().unwrap();
    assert_eq!(last.done, [played.groups[0].done, played.groups[1].done]);
    assert!(played.samples.is_sorted_by(|a, b| a.at_s <= b.at_s));
    assert_eq!(versions.verify(&mut map, 2, 1).unwrap(), None);
    // What was streamed is read at random and streamed again.
    for doing in [random(true, None), Doing::Stream { write: false }] {
        let p = phase(Some(0.05), vec![Group::new(doing, 2, Part::All)]);
        play(&versions, &mut map, &p, 1).unwrap().unwrap();
    }
    assert_eq!(versions.verify(&mut map, 1, 1).unwrap(), None);
}

#[test]
fn a_wrong_word_ends_a_phase() {
    for doing in [
        random(false, None),
        random(true, None),
        Doing::Stream { write: false },
    ] {
        let (mut map, versions) = memory(0);
        map[UNIT..UNIT + PAGE].fill(0);
        let p = phase(Some(60.0), vec![Group::new(doing, 2, Part::All)]);
        let at = play(&versions, &mut map, &p, 1).unwrap().unwrap_err();
        assert_eq!(at / PAGE, UNIT / PAGE);
    }
}

#[test]
fn a_program_writes_what_it_reads() {
    let mut map = memmap2::MmapMut::map_anon(PAGES * PAGE).unwrap();
    let versions = Versions::new(0, 0, PAGES);
    let sizes = Sizes {
        cold: PAGES / 2,
        hot: PAGES / 4,
        reads: 100,
        write: true,
    };
    let parts = [Program::Cold(sizes), Program::Thrash(sizes, 3)];
    for part in parts {
        let p = phase(None, vec![Group::new(Doing::Program(part), 1, Part::All)]);
        let played = play(&versions, &mut map, &p, 1).unwrap().unwrap();
        let pages: usize = part.steps().iter().map(|s| s.pages.len()).sum();
        assert_eq!(played.groups[0].done, pages as u64);
    }
    assert_eq!(versions.verify(&mut map, 2, 1).unwrap(), None);
    // A page that came back as zeros.
    map[..PAGE].fill(0);
    let p = phase(
        None,
        vec![Group::new(Doing::Program(parts[1]), 1, Part::All)],
    );
    assert_eq!(play(&versions, &mut map, &p, 1).unwrap().unwrap_err(), 0);
}

#[test]
fn accesses_are_shared_among_tasks() {
    let (mut map, versions) = memory(0);
    let p = phase(
        None,
        vec![Group::new(random(false, Some(1000)), 2, Part::All)],
    );
    let mut all = play(&versions, &mut map, &p, 2).unwrap().unwrap();
    assert_eq!(all.groups[0].done, 500);
    all.add(&play(&versions, &mut map, &p, 2).unwrap().unwrap());
    assert_eq!((all.groups[0].done, all.groups[0].threads), (1000, 4));
}

#[test]
fn reads_are_timed_beside_writes_of_new_memory() {
    let (mut map, versions) = memory(0);
    let pattern = Pattern::Uniform;
    let groups = vec![
        Group::new(Doing::Fresh, 1, Part::FirstHalf),
        Group::new(Doing::Timed { pattern }, 2, Part::All),
    ];
    let p = phase(Some(0.1), groups);
    let mut played = play(&versions, &mut map, &p, 1).unwrap().unwrap();
    let [fresh, timed] = &played.groups[..] else {
        panic!("{played:?}");
    };
    assert!(fresh.done > 0 && fresh.times.all.is_empty());
    assert_eq!(timed.times.all.iter().sum::<u64>(), timed.done);
    // No thread wrote where they read.
    assert_eq!(versions.verify(&mut map, 2, 1).unwrap(), None);
    let once = played.clone();
    played.add(&once);
    let times = &played.groups[1].times.all;
    assert_eq!(times.iter().sum::<u64>(), 2 * once.groups[1].done);
}

#[test]
fn a_phase_ends_with_what_has_an_end() {
    let mut map = memmap2::MmapMut::map_anon(PAGES * PAGE).unwrap();
    let versions = Versions::new(0, 0, PAGES);
    let (first, rest) = (Part::First(1), Part::AllBut(1));
    let mut played = |groups: Vec<Group>| {
        let done = play(&versions, &mut map, &phase(None, groups), 1);
        done.unwrap().unwrap().groups
    };
    let filled = played(vec![Group::new(Doing::Fill, 1, first)]);
    assert_eq!(filled[0].done, (UNIT / PAGE) as u64);
    let both = played(vec![
        Group::new(Doing::Touch, 2, rest),
        Group::new(Doing::Stream { write: false }, 1, first),
        Group::new(Doing::Rest, 1, Part::All),
    ]);
    let (touched, streamed) = (&both[0], &both[1]);
    assert_eq!(touched.done, (PAGES - UNIT / PAGE) as u64);
    assert!(streamed.done > 0);
    let count = |times: &[u64]| times.iter().sum::<u64>();
    let Times { all, base, huge } = &touched.times;
    assert_eq!(count(all), 3);
    assert!(count(base) + count(huge) >= 3);
    // Everything is in memory; an old kernel cannot report it.
    for present in [touched.present, both[2].present].into_iter().flatten() {
        assert!(
            present.huge_bytes <= present.bytes && present.bytes >= (3 * UNIT) as u64,
            "{present:?}"
        );
    }
    assert_eq!(versions.verify(&mut map, 2, 1).unwrap(), None);
}

#[test]
fn pages_that_came_before_their_touch_are_not_timed() {
    let mut map = memmap2::MmapMut::map_anon(PAGES * PAGE).unwrap();
    // No huge pages, wherever this runs; all but the first page of the second unit are there.
    map.advise(memmap2::Advice::NoHugePage).unwrap();
    map[UNIT + PAGE..2 * UNIT].fill(1);
    let versions = Versions::new(0, 0, PAGES);
    let p = phase(None, vec![Group::new(Doing::Touch, 1, Part::First(2))]);
    let played = play(&versions, &mut map, &p, 1).unwrap().unwrap();
    let Times { all, base, huge } = &played.groups[0].times;
    let count = |times: &[u64]| times.iter().sum::<u64>();
    // Its last page was there after the first touch: as if it had come whole.
    assert_eq!((count(all), count(huge)), (2, 1));
    assert_eq!(count(base), (UNIT / PAGE) as u64);
}

#[test]
fn what_is_mapped_again_and_again_is_timed() {
    let (mut map, versions) = memory(0);
    let again = Doing::Map(NewMap {
        bytes: 8 * PAGE,
        pause_us: 10,
        advise: true,
    });
    let p = phase(Some(0.05), vec![Group::new(again, 2, Part::All)]);
    let played = play(&versions, &mut map, &p, 1).unwrap().unwrap();
    let group = &played.groups[0];
    assert!(group.done >= 2 && group.present.is_none());
    assert_eq!(group.times.all.iter().sum::<u64>(), group.done);
}
