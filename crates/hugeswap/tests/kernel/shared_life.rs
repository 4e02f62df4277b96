//! How processes get a shared region, and how it ends.

use crate::shared::{Board, check_unit, shared, write_unit};
use crate::util::*;
use hugeswap::{Error, FaultMode, SharedError, SharedRegion};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

tests! {
    shared_ends_with_the_dead,
    shared_memory_is_free_once_given_up,
    shared_is_had_from_a_child_on_its_way,
    shared_is_had_by_its_memory,
    shared_is_not_kept_by_children_without_it,
    shared_as_the_pool_begins_is_free_in_the_end,
}

/// A region ends with the last process that has it, and its name becomes free, even if no process
/// has noticed the death yet.
fn shared_ends_with_the_dead() {
    let pool = builder(32).build().unwrap();
    drop(shared(&pool, UNIT, "probe"));
    for _ in 0..5 {
        let board = Board::new();
        let maker = child(|| {
            let r = shared(&pool, 2 * UNIT, "name");
            write_unit(&r, 1, 3);
            board.say(0, 1);
            board.await_(1, 1);
        });
        board.await_(0, 1);
        // SAFETY: our own child.
        unsafe { libc::kill(maker, libc::SIGKILL) };
        let _ = ended(maker);
        let theirs = pool.attach_shared("name");
        assert!(matches!(theirs, Err(Error::Shared(SharedError::Unknown))));
        let r = pool.shared(UNIT, "name").unwrap();
        assert!(words(&r).iter().all(|w| w.load(Relaxed) == 0));
    }
}

/// A process that gives a region up has nothing of it open any more, in any thread, nor has a
/// forked child: an open file would keep the memory.
fn shared_memory_is_free_once_given_up() {
    let closes = |r: SharedRegion| {
        drop(r);
        let open = || memory_files_of(std::process::id());
        until("its memory is nobody's", || open().iter().all(|n| *n == 0));
    };
    let pool = builder(32).build().unwrap();
    let r = shared(&pool, 4 * UNIT, "given up");
    write_unit(&r, 2, 1);
    ended_well(child(|| {
        check_unit(&r, 2, 1);
        // SAFETY: read out of the parent's memory, which is a copy here, and not dropped there.
        closes(unsafe { std::ptr::read(&r) });
    }));
    closes(r);
}

static SLOW: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// The parent of a forked child is gone, and the child has not mapped the region yet: a process
/// that attaches waits for the child.
fn shared_is_had_from_a_child_on_its_way() {
    extern "C" fn dawdle() {
        if SLOW.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(300));
        }
    }
    // Before the pool: in children it runs first.
    // SAFETY: a function that lives as long as the process.
    unsafe { libc::pthread_atfork(None, None, Some(dawdle)) };
    let pool = builder(32).build().unwrap();
    let board = Board::new();
    let maker = child(|| {
        let r = shared(&pool, 2 * UNIT, "late");
        write_unit(&r, 0, 4);
        SLOW.store(true, Relaxed);
        let _heir = child(|| board.await_(0, 1));
    });
    ended_well(maker);
    let r = pool.attach_shared("late").unwrap();
    check_unit(&r, 0, 4);
    board.say(0, 1);
}

/// A process that is given a descriptor of a region's memory needs no name. A descriptor of
/// anything else is refused.
fn shared_is_had_by_its_memory() {
    let pool = builder(32).build().unwrap();
    let refused = |fd: &dyn AsFd| {
        let got = pool.attach_shared_memory(fd.as_fd());
        assert!(matches!(got, Err(Error::Shared(SharedError::NotMemory))));
    };
    let board = Board::new();
    let maker = child(|| {
        let r = shared(&pool, 40 * UNIT, "without its name");
        (0..40).for_each(|u| write_unit(&r, u, 3 + u as u64));
        let memory = r.memory().unwrap();
        board.say(0, memory.as_raw_fd() as u64);
        board.await_(1, 1);
    });
    board.await_(0, 1);
    // As it would come over a socket.
    let memory =
        hugeswap_sys::process::descriptor_of(maker, board.of(0).load(Relaxed) as i32).unwrap();
    // SAFETY: new, and nobody else's.
    let memory = unsafe { OwnedFd::from_raw_fd(memory) };
    let r = pool.attach_shared_memory(memory.as_fd()).unwrap();
    (0..40).for_each(|u| check_unit(&r, u, 3 + u as u64));
    let again = pool.attach_shared_memory(memory.as_fd());
    assert!(matches!(again, Err(Error::Shared(SharedError::Here))));
    refused(&std::fs::File::open("/dev/null").unwrap());
    board.say(1, 1);
    ended_well(maker);
    drop(r);
    // (Its memory is there as long as the descriptor; the region is not.)
    refused(&memory);
}

/// A forked child that cannot have a region has nothing of it open.
fn shared_is_not_kept_by_children_without_it() {
    let engine = engine(32, FaultMode::Signal, &[]);
    let addr = match engine.share("not for children", 2 * UNIT) {
        Ok(addr) => addr,
        Err(e) => skip(&e.to_string()),
    };
    // As if it were another region by now.
    let serial = &engine.pool().header().shared[0].serial;
    serial.fetch_add(1, Relaxed);
    ended_well(child(|| {
        let open = memory_files_of(std::process::id());
        assert_eq!(open.iter().sum::<usize>(), 0);
    }));
    serial.fetch_sub(1, Relaxed);
    engine.unmap_shared(addr);
    // SAFETY: nothing of it is used any more.
    unsafe { engine.stop() };
}

/// A region is made while the engine's threads are starting: none of them keeps it open.
fn shared_as_the_pool_begins_is_free_in_the_end() {
    for _ in 0..20 {
        let pool = builder(32).build().unwrap();
        let r = shared(&pool, 2 * UNIT, "early");
        // (They are started by kswapd, once it has a descriptor table of its own.)
        until("all threads are there", || {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
            let comms = tasks.filter_map(|t| std::fs::read_to_string(t.path().join("comm")).ok());
            comms.filter(|c| c.starts_with("hs-io/")).count() == 2
        });
        drop(r);
        until("its memory is nobody's", || {
            memory_files_of(std::process::id()).iter().all(|n| *n == 0)
        });
    }
}
