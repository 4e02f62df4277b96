//! Memory that several processes share: every process sees the same bytes and the same states.

use crate::pagemap::is;
use crate::util::*;
use hugeswap::volatile::{Bytes, VolatileMemory};
use hugeswap::{Advice, Categories, Error, Pool, SharedError, SharedRegion};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

tests! {
    shared_follows_a_page_for_everybody,
    #[long]
    shared_writers_see_each_other,
    shared_loses_no_write,
    shared_refuses_nonsense,
    shared_leaves_an_area,
    shared_and_private_share_a_budget,
    shared_is_discarded_in_part,
    #[long]
    shared_is_encrypted_too,
    shared_is_seen_through_views,
}

const PAGE: usize = 4096;

pub fn shared(pool: &Pool, len: usize, name: &str) -> SharedRegion {
    match pool.shared(len, name) {
        Err(Error::Shared(SharedError::NoUserfaultfd(e))) => skip(&format!("no userfaultfd: {e}")),
        made => made.unwrap(),
    }
}

/// A board for messages between the processes of a test, in shared memory of the kernel.
pub struct Board(*const AtomicU64);

impl Board {
    pub fn new() -> Board {
        // SAFETY: a new mapping, never unmapped.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        Board(at as *const AtomicU64)
    }

    pub fn of(&self, i: usize) -> &AtomicU64 {
        assert!(i < PAGE / 8);
        // SAFETY: within the page mapped by `new`.
        unsafe { &*self.0.add(i) }
    }

    pub fn say(&self, i: usize, n: u64) {
        self.of(i).store(n, SeqCst);
    }

    pub fn await_(&self, i: usize, n: u64) {
        until(&format!("somebody says {n}"), || {
            self.of(i).load(SeqCst) >= n
        });
    }
}

/// The functional sequence of the markers' series, as seen by the process that does it, by a
/// process that never touched the page, and by a child that is forked in between.
fn shared_follows_a_page_for_everybody() {
    let pool = builder(32).build().unwrap();
    let (board, ticket) = (Board::new(), pool.ticket());
    // Forked before there is a region: it joins as a stranger would, and looks, and never touches.
    let page = 777;
    let watch = |r: &SharedRegion, board: &Board, me: usize| {
        for step in 1.. {
            board.await_(0, step);
            let what = [
                Categories::ZERO,
                Categories::PRESENT,
                Categories::SWAPPED,
                Categories::PRESENT,
                Categories::ZERO,
                Categories::ZERO,
                Categories::ZERO,
            ];
            let Some(what) = what.get(step as usize - 1) else {
                break;
            };
            is(r, page, *what, &format!("watcher {me}, step {step}"));
            board.say(me, step);
        }
    };
    let stranger = child(|| {
        let theirs = pool.attach_shared("six");
        assert!(matches!(theirs, Err(Error::Shared(SharedError::Unknown))));
        board.say(7, 1);
        board.await_(9, 1);
        let other = Pool::join(&ticket).unwrap();
        let r = other.attach_shared("six").unwrap();
        board.say(8, 1);
        watch(&r, &board, 1);
    });
    board.await_(7, 1);
    let mut r = shared(&pool, 8 * MIB, "six");
    board.say(9, 1);
    board.await_(8, 1);
    let kin = child(|| watch(&r, &board, 2));
    let mut step = 0;
    let mut all_see = |r: &SharedRegion, what, when: &str| {
        is(r, page, what, when);
        step += 1;
        board.say(0, step);
        board.await_(1, step);
        board.await_(2, step);
    };
    let touch = |r: &SharedRegion| words(r)[page * PAGE / 8].store(5, Relaxed);
    all_see(&r, Categories::ZERO, "untouched");
    touch(&r);
    all_see(&r, Categories::PRESENT, "touched");
    page_out(&r);
    all_see(&r, Categories::SWAPPED, "paged out");
    assert_eq!(words(&r)[page * PAGE / 8].load(Relaxed), 5);
    all_see(&r, Categories::PRESENT, "touched again");
    r.remove(0, 8 * MIB).unwrap();
    all_see(&r, Categories::ZERO, "removed");
    r.advise(0, 8 * MIB, Advice::PageOut).unwrap();
    all_see(&r, Categories::ZERO, "removed, and paged out");
    r.remove(0, 8 * MIB).unwrap();
    all_see(&r, Categories::ZERO, "removed again");
    board.say(0, 8);
    ended_well(stranger);
    ended_well(kin);
    assert_eq!(words(&r)[page * PAGE / 8].load(Relaxed), 0);
}

/// Nothing is left of shared regions: neither memory nor swap.
pub fn nothing_is_left(pool: &Pool) {
    let start = Instant::now();
    loop {
        // Who died is noticed by who looks.
        let s = pool.stats();
        let engine_keeps = 64 * UNIT as u64;
        if s.swap_used_bytes == 0 && s.resident_bytes <= engine_keeps {
            return;
        }
        assert!(start.elapsed().as_secs() < 30, "left: {s:?}");
        let _ = pool.scrub();
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Writes unit `u` of a region in generation `g`.
pub fn write_unit(r: &SharedRegion, u: usize, g: u64) {
    let all = words(r);
    (u * UNIT / 8..(u + 1) * UNIT / 8).for_each(|i| all[i].store(value(i, g), Relaxed));
}

pub fn check_unit(r: &SharedRegion, u: usize, g: u64) {
    let all = words(r);
    for (i, word) in all
        .iter()
        .enumerate()
        .take((u + 1) * UNIT / 8)
        .skip(u * UNIT / 8)
    {
        assert_eq!(
            word.load(Relaxed),
            value(i, g),
            "word {i} of generation {g}"
        );
    }
}

/// Two processes use more than the budget. Each writes its half of every unit, and finds in the
/// other half what the other process wrote; no page is ever half new.
fn shared_writers_see_each_other() {
    const UNITS: usize = 40;
    let pool = builder(32).build().unwrap();
    let r = shared(&pool, UNITS * UNIT, "both");
    let board = Board::new();
    let round = |r: &SharedRegion, board: &Board, me: usize| {
        for g in 1..=4u64 {
            (0..UNITS)
                .filter(|u| u % 2 == me)
                .for_each(|u| write_unit(r, u, g));
            board.say(me, g);
            board.await_(1 - me, g);
            (0..UNITS).for_each(|u| check_unit(r, u, g));
            board.say(2 + me, g);
            board.await_(3 - me, g);
        }
    };
    let other = child(|| round(&r, &board, 1));
    round(&r, &board, 0);
    ended_well(other);
    let s = pool.stats();
    assert!(s.pswpout > 0 && s.pswpin > 0, "{s:?}");
    assert!(s.peak_resident_bytes <= 32 * MIB as u64, "{s:?}");
    page_out(&r);
    check_unit(&r, 7, 4);
    drop(r);
    nothing_is_left(&pool);
}

fn shared_is_encrypted_too() {
    with_encryption(shared_writers_see_each_other);
}

/// A write is not lost if another process evicts the memory at the same time: a counter never goes
/// back.
fn shared_loses_no_write() {
    const UNITS: usize = 2;
    let pool = builder(32).build().unwrap();
    let r = shared(&pool, UNITS * UNIT, "counters");
    let board = Board::new();
    let counts = |r: &SharedRegion, board: &Board| {
        let all = words(r);
        let mut n = 0;
        while board.of(0).load(SeqCst) == 0 {
            for u in 0..UNITS {
                let word = &all[u * UNIT / 8 + 99];
                assert_eq!(word.load(Relaxed), n, "a write is lost");
                word.store(n + 1, Relaxed);
            }
            n += 1;
        }
    };
    let other = child(|| counts(&r, &board));
    let before = pool.stats().pswpout;
    for _ in 0..40 {
        // (It may be written to all the while, and stay.)
        r.advise(0, UNITS * UNIT, Advice::PageOut).unwrap();
        std::thread::sleep(Duration::from_millis(2));
        if pool.stats().pswpout > before + 40_000 {
            break;
        }
    }
    board.say(0, 1);
    ended_well(other);
}

fn shared_refuses_nonsense() {
    let pool = builder(32).build().unwrap();
    let r = shared(&pool, 3 * MIB, "one");
    let refused = |made: Result<SharedRegion, Error>| match made {
        Err(Error::Shared(e)) => e,
        Err(e) => panic!("{e}"),
        Ok(_) => panic!("made"),
    };
    assert!(matches!(
        refused(pool.shared(MIB, "one")),
        SharedError::Exists
    ));
    assert!(matches!(
        refused(pool.attach_shared("one")),
        SharedError::Here
    ));
    assert!(matches!(
        refused(pool.attach_shared("two")),
        SharedError::Unknown
    ));
    for name in ["", &"x".repeat(65)] {
        assert!(matches!(
            refused(pool.shared(MIB, name)),
            SharedError::BadName
        ));
        assert!(matches!(
            refused(pool.attach_shared(name)),
            SharedError::BadName
        ));
    }
    for len in [0, usize::MAX, usize::MAX / 2, (512 << 30) + 1] {
        assert!(matches!(
            refused(pool.shared(len, "long")),
            SharedError::BadLength
        ));
    }
    assert!(matches!(
        refused(pool.shared(100 << 30, "long")),
        SharedError::NoRoom
    ));
    let many: Vec<_> = (0..15)
        .map(|i| pool.shared(MIB, &format!("n{i}")).unwrap())
        .collect();
    assert!(matches!(
        refused(pool.shared(MIB, "n15")),
        SharedError::TableFull
    ));
    drop(many);
    drop(shared(&pool, MIB, &"x".repeat(64)));
    assert!(r.is_shared() && r.len() == 3 * MIB);
    let advice = r.advise(0, UNIT, Advice::HugePage);
    assert!(matches!(advice, Err(Error::SharedAdvice(_))));
    assert!(matches!(
        r.advise(0, 4 * MIB, Advice::PageOut),
        Err(Error::Range { .. })
    ));
    assert!(Pool::join("nonsense").is_err() && Pool::join("1:x").is_err());
    // It works all the same, to its end.
    r.write_at(3 * MIB - 5, b"hello").unwrap();
    page_out(&r);
    let mut back = [0; 5];
    r.read_at(3 * MIB - 5, &mut back).unwrap();
    assert_eq!(&back, b"hello");
    assert_eq!(r.pagemap().count(), 3 * MIB / PAGE);
}

/// Volatile views and atomics see what another process writes, wherever the bytes are, and end
/// where the region does.
fn shared_is_seen_through_views() {
    let pool = builder(32).build().unwrap();
    let r = shared(&pool, 3 * MIB, "views");
    let view = r.get_slice(UNIT - 4, 8).unwrap();
    let counter: &AtomicU64 = r.get_atomic_ref(MIB).unwrap();
    ended_well(child(|| {
        view.write_obj(0x0102_0304_0506_0708_u64, 0).unwrap();
        counter.fetch_add(5, SeqCst);
    }));
    page_out(&r);
    assert_eq!(view.read_obj::<u64>(0).unwrap(), 0x0102_0304_0506_0708);
    assert_eq!(counter.fetch_add(1, SeqCst), 5);
    let mut bytes = [0; 8];
    r.read_at(UNIT - 4, &mut bytes).unwrap();
    assert_eq!(bytes, 0x0102_0304_0506_0708_u64.to_ne_bytes());
    assert!(r.get_slice(3 * MIB - 4, 4).is_ok());
    for (offset, count) in [(3 * MIB - 4, 5), (3 * MIB, 1), (usize::MAX, 2)] {
        assert!(r.get_slice(offset, count).is_err(), "{offset}..+{count}");
    }
    assert!(r.get_atomic_ref::<AtomicU64>(MIB + 1).is_err());
}

fn shared_leaves_an_area() {
    const UNITS: usize = 24;
    let pool = builder(24).build().unwrap();
    let r = shared(&pool, UNITS * UNIT, "moving");
    (0..UNITS).for_each(|u| write_unit(&r, u, 1));
    let before = pool.stats().swap_used_bytes;
    assert!(before > 0);
    let first = pool.swap_areas()[0].index;
    pool.swap_on(&hugeswap::SwapSpec::new("/var/tmp")).unwrap();
    let start = Instant::now();
    pool.swap_off(first, |_| start.elapsed().as_secs() < 60)
        .unwrap();
    (0..UNITS).for_each(|u| check_unit(&r, u, 1));
    (0..UNITS).for_each(|u| write_unit(&r, u, 2));
    (0..UNITS).for_each(|u| check_unit(&r, u, 2));
}

/// Private memory and shared memory make room for each other.
fn shared_and_private_share_a_budget() {
    let pool = builder(32).build().unwrap();
    let r = shared(&pool, 20 * UNIT, "half");
    let own = pool.region(20 * UNIT).unwrap();
    for g in 1..4 {
        (0..20).for_each(|u| write_unit(&r, u, g));
        fill(&own, g);
        (0..20).for_each(|u| check_unit(&r, u, g));
        check(&own, g);
    }
    let s = pool.stats();
    assert!(s.peak_resident_bytes <= 32 * MIB as u64, "{s:?}");
    pool.audit().unwrap();
}

fn shared_is_discarded_in_part() {
    let pool = builder(32).build().unwrap();
    let mut r = shared(&pool, 4 * UNIT, "part");
    fill(&r, 1);
    page_out(&r);
    let (from, to) = (UNIT - 3 * PAGE, 2 * UNIT + 5 * PAGE);
    r.remove(from, to - from).unwrap();
    is(&r, 600, Categories::ZERO, "the unit between");
    for (i, w) in words(&r).iter().enumerate() {
        let want = if (from..to).contains(&(i * 8)) {
            0
        } else {
            value(i, 1)
        };
        assert_eq!(w.load(Relaxed), want, "word {i}");
    }
}
