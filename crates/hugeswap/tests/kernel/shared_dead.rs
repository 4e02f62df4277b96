//! Shared memory stays right for the other processes if one dies, is stopped, or writes nonsense.

use crate::shared::{Board, check_unit, nothing_is_left, shared, write_unit};
use crate::util::*;
use hugeswap::Advice;
use hugeswap_policy::shared::{Holder, Kind, Op, Owner, Word};
use hugeswap_policy::unit::lock::StateWord;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

tests! {
    #[long]
    shared_survives_kills,
    shared_needs_no_help_of_the_stopped,
    shared_outlives_who_made_it,
    shared_takes_wild_words,
    shared_is_carried_on_for_the_dead_whatever_they_did,
}

/// Other processes die at any moment, in the middle of any operation. Memory that they did not
/// write is unchanged, no process waits for them forever, and nothing of theirs stays in use.
fn shared_survives_kills() {
    const UNITS: usize = 24;
    let pool = builder(24).build().unwrap();
    let r = shared(&pool, UNITS * UNIT, "deadly");
    (0..UNITS).for_each(|u| write_unit(&r, u, 1));
    let mut random = 88172645463325252u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for g in 2..22u64 {
        // Writes its own third over and over, and reads all.
        let theirs = child(|| {
            loop {
                for u in 0..UNITS {
                    match u % 3 {
                        0 => write_unit(&r, u, 1),
                        _ => drop(words(&r)[u * UNIT / 8 + 5].load(Relaxed)),
                    }
                }
            }
        });
        let until = Instant::now() + Duration::from_micros(next() % 150_000);
        let mut u = 0;
        let mut last = 1;
        while Instant::now() < until {
            let mine = u % UNITS / 3 * 3 + 1;
            write_unit(&r, mine, g);
            check_unit(&r, mine, g);
            u += 1;
            last = g;
        }
        // SAFETY: our own child.
        unsafe { libc::kill(theirs, libc::SIGKILL) };
        let _ = ended(theirs);
        let _ = last;
        (0..UNITS)
            .filter(|u| u % 3 == 1)
            .for_each(|u| write_unit(&r, u, g));
        (0..UNITS)
            .filter(|u| u % 3 == 1)
            .for_each(|u| check_unit(&r, u, g));
        // What nobody writes, and what is always written alike.
        (0..UNITS)
            .filter(|u| u % 3 != 1)
            .for_each(|u| check_unit(&r, u, 1));
    }
    drop(r);
    nothing_is_left(&pool);
}

/// A stopped process has memory that other processes evict and then read, with the bytes that it
/// wrote.
fn shared_needs_no_help_of_the_stopped() {
    const UNITS: usize = 40;
    let pool = builder(32).build().unwrap();
    let r = shared(&pool, UNITS * UNIT, "still");
    let board = Board::new();
    let other = child(|| {
        (0..8).for_each(|u| write_unit(&r, u, 1));
        board.say(0, 1);
        board.await_(1, 1);
        (0..8).for_each(|u| check_unit(&r, u, 1));
        (8..UNITS).for_each(|u| check_unit(&r, u, 2));
        (0..UNITS).for_each(|u| write_unit(&r, u, 3));
    });
    board.await_(0, 1);
    // SAFETY: our own child.
    unsafe { libc::kill(other, libc::SIGSTOP) };
    let mut status = 0;
    // SAFETY: waits for our own child to have stopped.
    unsafe { libc::waitpid(other, &mut status, libc::WUNTRACED) };
    assert!(libc::WIFSTOPPED(status));
    (8..UNITS).for_each(|u| write_unit(&r, u, 2));
    // More than the budget since: what it had in memory went, under its feet.
    let gone = (0..8).filter(|u| !r.is_resident(u * UNIT)).count();
    assert!(gone > 0, "nothing of it was taken out");
    (0..8).for_each(|u| check_unit(&r, u, 1));
    board.say(1, 1);
    // SAFETY: our own child.
    unsafe { libc::kill(other, libc::SIGCONT) };
    ended_well(other);
    (0..UNITS).for_each(|u| check_unit(&r, u, 3));
}

/// No process owns a region: it ends with the last process that has it, here a child's child.
fn shared_outlives_who_made_it() {
    const UNITS: usize = 12;
    let pool = builder(32).build().unwrap();
    let board = Board::new();
    let maker = child(|| {
        let r = shared(&pool, UNITS * UNIT, "late");
        (0..UNITS).for_each(|u| write_unit(&r, u, 9));
        r.advise(0, UNITS / 2 * UNIT, Advice::PageOut).unwrap();
        let _heir = child(|| {
            board.await_(0, 1);
            (0..UNITS).for_each(|u| check_unit(&r, u, 9));
            board.say(1, 1);
            board.await_(2, 1);
        });
    });
    ended_well(maker);
    board.say(0, 1);
    board.await_(1, 1);
    assert!(pool.shared(UNIT, "late").is_err(), "it is still there");
    let r = pool.attach_shared("late").unwrap();
    board.say(2, 1);
    (0..UNITS).for_each(|u| check_unit(&r, u, 9));
    drop(r);
    nothing_is_left(&pool);
    drop(shared(&pool, UNIT, "late"));
}

/// Words with impossible values cause at worst a refused access.
fn shared_takes_wild_words() {
    let engine = engine(32, hugeswap::FaultMode::Signal, &[]);
    let Ok(addr) = engine.share("wild", 8 * UNIT) else {
        skip("no userfaultfd");
    };
    let pool = engine.pool();
    let read = |u: usize| {
        let mut to = [0; 8];
        engine.copy_out(addr + u * UNIT, &mut to)
    };
    let wild = [
        // In swap: far beyond it, in a cluster that nobody has, without any.
        2 | 0xffff_ff00 << 32,
        2 | 5 << 32,
        2,
        // Kinds and ops that are none.
        7,
        6,
    ];
    for (u, word) in wild.into_iter().enumerate() {
        pool.shared_words()[u].store(word, SeqCst);
        assert!(read(u).is_err(), "{word:x}");
    }
    // The word of somebody who never was is carried on.
    for op in 1..8 {
        read(5).unwrap();
        pool.shared_words()[5].store(1 | op << 3 | 0xf0_00 | 0x77 << 16, SeqCst);
        until(&format!("op {op} is carried on"), || {
            pool.shared_words()[5].load(SeqCst) >> 3 & 7 == 0
        });
        read(5).unwrap();
    }
    engine.discard(addr, 8 * UNIT).unwrap();
    assert!((0..8).all(|u| read(u).is_ok()));
    // A table that says nonsense is refused.
    let s = &pool.header().shared[1];
    s.state.store(1, SeqCst);
    s.name_len.store(u32::MAX, SeqCst);
    s.first.store(u32::MAX, SeqCst);
    s.units.store(u32::MAX, SeqCst);
    s.len.store(u64::MAX, SeqCst);
    s.clients[3].owner.store(u64::MAX, SeqCst);
    s.clients[3].pid.store(1, SeqCst);
    assert!(engine.attach_shared(&"\0".repeat(64)).is_err());
    s.clients[3].owner.store(0, SeqCst);
    engine.unmap_shared(addr);
    assert_eq!(pool.shared_frames(), 0);
    // SAFETY: nothing of it is used any more.
    unsafe { engine.stop() };
}

/// A process dies with a unit locked, whatever it was doing with it and wherever its bytes are: the
/// unit is unlocked, and has its bytes, unless they were to be given up.
fn shared_is_carried_on_for_the_dead_whatever_they_did() {
    let engine = engine(32, hugeswap::FaultMode::Signal, &[]);
    let Ok(addr) = engine.share("orphans", 4 * UNIT) else {
        skip("no userfaultfd");
    };
    let at = addr + UNIT;
    let cell = &engine.pool().shared_words()[1];
    let word = || Word(cell.load(SeqCst));
    // No process has ever had this record.
    let owner = Owner {
        record: 0xf0,
        generation: 0x77,
    };
    let mut value = 0u8;
    for (kind, op) in [
        (Kind::Resident, Op::Out),
        (Kind::Resident, Op::Touch),
        (Kind::Resident, Op::Discard),
        (Kind::Swapped, Op::In),
        (Kind::Swapped, Op::Punch),
        (Kind::Swapped, Op::Touch),
        (Kind::Swapped, Op::Discard),
        (Kind::None, Op::In),
        (Kind::None, Op::Punch),
        (Kind::None, Op::Discard),
    ] {
        value += 1;
        let written = vec![value; UNIT];
        // SAFETY: of this test's region.
        unsafe { engine.copy_in(at, &written) }.unwrap();
        match kind {
            Kind::Swapped => engine.pageout(at, UNIT),
            Kind::None => engine.discard(at, UNIT).unwrap(),
            _ => {}
        }
        until("it is as it is to be", || {
            word().kind() == kind && !word().is_locked()
        });
        cell.store(word().locked(Holder { op, owner }).0, SeqCst);
        // (kswapd carries on; a thread that needs the unit would wake it.)
        until(&format!("{kind:?}, {op:?}: it is unlocked"), || {
            !word().is_locked()
        });
        let mut read = vec![0xff; UNIT];
        engine.copy_out(at, &mut read).unwrap();
        let gone = kind == Kind::None || op == Op::Discard;
        assert!(
            read.iter().all(|&b| b == if gone { 0 } else { value }),
            "{kind:?}, {op:?}"
        );
    }
    engine.unmap_shared(addr);
    assert_eq!(engine.pool().shared_frames(), 0);
    // SAFETY: nothing of it is used any more.
    unsafe { engine.stop() };
}
