//! Phases on plain memory.

use super::super::memory::fill;
use super::*;

const PAGES: usize = 4 * UNIT / PAGE;

fn memory(task: u32) -> (memmap2::MmapMut, Phases) {
    let mut map = memmap2::MmapMut::map_anon(PAGES * PAGE).unwrap();
    fill(&mut map, seed(task, 1));
    (map, Phases::new(task, 1, PAGES))
}

fn group(doing: Doing, threads: u32, part: Part) -> Group {
    Group {
        doing,
        threads,
        part,
    }
}

fn phase(seconds: Option<f64>, groups: Vec<Group>) -> Phase {
    Phase {
        name: "p".into(),
        seconds,
        every_s: 0.02,
        groups,
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
    let (mut map, phases) = memory(3);
    let p = phase(None, vec![group(random(true, Some(4000)), 4, Part::All)]);
    let played = phases.play(&mut map, &p, 1).unwrap().unwrap();
    assert_eq!((played.groups[0].done, played.groups[0].threads), (4000, 4));
    assert_eq!(phases.verify(&mut map, 3, 1).unwrap(), None);
    let changes: u64 = (0..PAGES).map(|p| phases.state(p).1).sum();
    assert_eq!(changes, 4000);
    // One change lost.
    let page = (0..PAGES).find(|p| phases.state(*p).1 == 1).unwrap();
    fill(
        &mut map[page * PAGE..(page + 1) * PAGE],
        first_value(seed(3, 1), page * PAGE),
    );
    assert_eq!(phases.verify(&mut map, 2, 1).unwrap(), Some(page * PAGE));
}

#[test]
fn streams_and_random_accesses_go_on_together() {
    let (mut map, phases) = memory(0);
    let p = phase(
        Some(0.1),
        vec![
            group(Doing::Stream { write: true }, 2, Part::FirstHalf),
            group(random(false, None), 2, Part::SecondHalf),
        ],
    );
    let played = phases.play(&mut map, &p, 1).unwrap().unwrap();
    assert!(played.groups.iter().all(|g| g.done > 0 && g.threads == 2));
    let last = played.samples.last().unwrap();
    assert_eq!(last.done, [played.groups[0].done, played.groups[1].done]);
    assert!(played.samples.is_sorted_by(|a, b| a.at_s <= b.at_s));
    assert_eq!(phases.verify(&mut map, 2, 1).unwrap(), None);
    // What was streamed is read at random and streamed again.
    for doing in [random(true, None), Doing::Stream { write: false }] {
        let p = phase(Some(0.05), vec![group(doing, 2, Part::All)]);
        phases.play(&mut map, &p, 1).unwrap().unwrap();
    }
    assert_eq!(phases.verify(&mut map, 1, 1).unwrap(), None);
}

#[test]
fn a_wrong_word_ends_a_phase() {
    for doing in [
        random(false, None),
        random(true, None),
        Doing::Stream { write: false },
    ] {
        let (mut map, phases) = memory(0);
        map[UNIT..UNIT + PAGE].fill(0);
        let p = phase(Some(60.0), vec![group(doing, 2, Part::All)]);
        let at = phases.play(&mut map, &p, 1).unwrap().unwrap_err();
        assert_eq!(at / PAGE, UNIT / PAGE);
    }
}

#[test]
fn a_program_writes_what_it_reads() {
    let mut map = memmap2::MmapMut::map_anon(PAGES * PAGE).unwrap();
    let phases = Phases::new(0, 0, PAGES);
    let (cold, hot, reads) = (PAGES / 2, PAGES / 4, 100);
    let write = true;
    let parts = [
        Program::Cold {
            cold,
            hot,
            reads,
            write,
        },
        Program::Thrash {
            cold,
            hot,
            reads,
            repeats: 3,
            write,
        },
    ];
    for part in parts {
        let p = phase(None, vec![group(Doing::Program(part), 1, Part::All)]);
        let played = phases.play(&mut map, &p, 1).unwrap().unwrap();
        let pages: usize = part.steps().iter().map(|s| s.pages.len()).sum();
        assert_eq!(played.groups[0].done, pages as u64);
    }
    assert_eq!(phases.verify(&mut map, 2, 1).unwrap(), None);
    // A page that came back as zeros.
    map[..PAGE].fill(0);
    let p = phase(None, vec![group(Doing::Program(parts[1]), 1, Part::All)]);
    assert_eq!(phases.play(&mut map, &p, 1).unwrap().unwrap_err(), 0);
}

#[test]
fn accesses_are_shared_among_tasks() {
    let (mut map, phases) = memory(0);
    let p = phase(None, vec![group(random(false, Some(1000)), 2, Part::All)]);
    let mut all = phases.play(&mut map, &p, 2).unwrap().unwrap();
    assert_eq!(all.groups[0].done, 500);
    all.add(&phases.play(&mut map, &p, 2).unwrap().unwrap());
    assert_eq!((all.groups[0].done, all.groups[0].threads), (1000, 4));
}

#[test]
fn reads_are_timed_beside_writes_of_new_memory() {
    let (mut map, phases) = memory(0);
    let pattern = Pattern::Uniform;
    let groups = vec![
        group(Doing::Fresh, 1, Part::FirstHalf),
        group(Doing::Timed { pattern }, 2, Part::All),
    ];
    let p = phase(Some(0.1), groups);
    let mut played = phases.play(&mut map, &p, 1).unwrap().unwrap();
    let [fresh, timed] = &played.groups[..] else {
        panic!("{played:?}");
    };
    assert!(fresh.done > 0 && fresh.times.all.is_empty());
    assert_eq!(timed.times.all.iter().sum::<u64>(), timed.done);
    // Nobody wrote where they read.
    assert_eq!(phases.verify(&mut map, 2, 1).unwrap(), None);
    let once = played.clone();
    played.add(&once);
    let times = &played.groups[1].times.all;
    assert_eq!(times.iter().sum::<u64>(), 2 * once.groups[1].done);
}

#[test]
fn a_phase_ends_with_what_has_an_end() {
    let mut map = memmap2::MmapMut::map_anon(PAGES * PAGE).unwrap();
    let phases = Phases::new(0, 0, PAGES);
    let (first, rest) = (Part::First(1), Part::AllBut(1));
    let mut play = |groups: Vec<Group>| {
        let played = phases.play(&mut map, &phase(None, groups), 1);
        played.unwrap().unwrap().groups
    };
    let filled = play(vec![group(Doing::Fill, 1, first)]);
    assert_eq!(filled[0].done, (UNIT / PAGE) as u64);
    let both = play(vec![
        group(Doing::Touch, 2, rest),
        group(Doing::Stream { write: false }, 1, first),
        group(Doing::Rest, 1, Part::All),
    ]);
    let (touched, streamed) = (&both[0], &both[1]);
    assert_eq!(touched.done, (PAGES - UNIT / PAGE) as u64);
    assert!(streamed.done > 0);
    let count = |times: &[u64]| times.iter().sum::<u64>();
    let Times { all, base, huge } = &touched.times;
    assert_eq!(count(all), 3);
    assert!(count(base) + count(huge) >= 3);
    // Everything is in memory; the kernel may be too old to tell.
    for held in [touched.held, both[2].held].into_iter().flatten() {
        assert!(
            held.huge <= held.present && held.present >= (3 * UNIT) as u64,
            "{held:?}"
        );
    }
    assert_eq!(phases.verify(&mut map, 2, 1).unwrap(), None);
}

#[test]
fn pages_that_came_before_their_touch_are_not_timed() {
    let mut map = memmap2::MmapMut::map_anon(PAGES * PAGE).unwrap();
    // No huge pages, wherever this runs; all but the first page of the second unit are there.
    map.advise(memmap2::Advice::NoHugePage).unwrap();
    map[UNIT + PAGE..2 * UNIT].fill(1);
    let phases = Phases::new(0, 0, PAGES);
    let p = phase(None, vec![group(Doing::Touch, 1, Part::First(2))]);
    let played = phases.play(&mut map, &p, 1).unwrap().unwrap();
    let Times { all, base, huge } = &played.groups[0].times;
    let count = |times: &[u64]| times.iter().sum::<u64>();
    // Its last page was there after the first touch: as if it had come whole.
    assert_eq!((count(all), count(huge)), (2, 1));
    assert_eq!(count(base), (UNIT / PAGE) as u64);
}

#[test]
fn what_is_mapped_again_and_again_is_timed() {
    let (mut map, phases) = memory(0);
    let again = Doing::Map(Map {
        bytes: 8 * PAGE,
        pause_us: 10,
        advise: true,
    });
    let p = phase(Some(0.05), vec![group(again, 2, Part::All)]);
    let played = phases.play(&mut map, &p, 1).unwrap().unwrap();
    let group = &played.groups[0];
    assert!(group.done >= 2 && group.held.is_none());
    assert_eq!(group.times.all.iter().sum::<u64>(), group.done);
}
