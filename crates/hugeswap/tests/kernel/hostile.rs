//! A process of the pool that breaks the rules of shared regions. It may spoil shared memory, which
//! it could write to anyway, and nothing else; and no other process waits for it forever.

use crate::util::*;
use hugeswap::{Error, ManagedRange, Pool, SharedError, SharedRegion};
use hugeswap_engine::pool;
use hugeswap_engine::pool::layout::Shared;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

tests! {
    #[long]
    hostile_words_spoil_nothing_private,
    hostile_holders_cost_an_error_at_most,
    hostile_truncation_is_refused,
    hostile_to_its_own_descriptors,
    hostile_to_its_own_descriptors_at_once,
}

const IN: u64 = 1 << 3;
const OUT: u64 = 2 << 3;
const PUNCH: u64 = 3 << 3;

/// A pool in which no process waits for another for longer than 100 ms.
fn pool() -> Pool {
    need_base_pages();
    let pool = builder(48).set("debug.shared_patience_ms=100");
    pool.build().unwrap()
}

/// The pool's segment, as any process sees it that can open it.
fn segment(ticket: &str) -> pool::Pool {
    let (pid, fd) = ticket.split_once(':').unwrap();
    let high = hugeswap_engine::high_descriptor();
    pool::Pool::attach(pid.parse().unwrap(), fd.parse().unwrap(), high).unwrap()
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 7
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// A number that is small, large, or anything.
    fn number(&mut self) -> u64 {
        match self.below(4) {
            0 => self.below(20),
            1 => u64::MAX - self.below(20),
            2 => 1 << self.below(64),
            _ => self.next() << 7,
        }
    }

    /// A word that a unit could have, with an owner that exists or not.
    fn word(&mut self) -> u64 {
        if self.below(4) == 0 {
            return self.number();
        }
        let slot = if self.below(2) == 0 {
            0
        } else {
            1 + self.below(60)
        };
        let owner = self.below(5) << 8 | self.below(4) << 16;
        self.below(4) | self.below(6) << 3 | owner | slot << 32
    }
}

/// Writes nonsense to the segment's records of shared memory.
fn scribble(segment: &pool::Pool, random: &mut Random, pids: &[i32], private: usize) {
    let header = segment.header();
    let s: &Shared = &header.shared[random.below(4) as usize];
    let pid = pids[random.below(pids.len() as u64) as usize];
    match random.below(16) {
        0..6 => segment.shared_words()[random.below(40) as usize].store(random.word(), SeqCst),
        6 => s.first.store(random.number() as u32, SeqCst),
        7 => s.units.store(random.number() as u32, SeqCst),
        8 => s.state.store(random.below(4) as u32, SeqCst),
        9 => s.changes.store(random.number() as u32, SeqCst),
        10 => s.len.store(random.number(), SeqCst),
        11 => s.name_len.store(random.number() as u32, SeqCst),
        12 => header.shared_high.store(random.number() as u32, SeqCst),
        13 => {
            let hand = &segment.records()[random.below(5) as usize].in_hand;
            hand[random.below(2) as usize].store(random.below(60), SeqCst);
        }
        14 => header.shared_lock.store(random.number(), SeqCst),
        _ => {
            let c = &s.clients[random.below(4) as usize];
            match random.below(5) {
                0 => c
                    .owner
                    .store(random.below(3) << 32 | random.below(6), SeqCst),
                1 => c.pid.store(pid, SeqCst),
                2 => c.memory.store(random.below(60) as i32, SeqCst),
                3 => c.uffd.store(random.number() as i32, SeqCst),
                _ => c.addr.store(private as u64, SeqCst),
            }
        }
    }
}

/// A process writes wild words while others use memory of their own, whose bytes must be right, and
/// shared memory.
fn hostile_words_spoil_nothing_private() {
    const LONG: Duration = Duration::from_millis(2500);
    let pool = pool();
    let own = pool.region(24 * UNIT).unwrap();
    fill(&own, 1);
    let mut shared = pool.shared(4 * UNIT, "other").unwrap();
    let ticket = pool.ticket();
    let victim = child(|| {
        let start = Instant::now();
        let mut random = Random(77);
        let mine = pool.region(20 * UNIT).unwrap();
        let mut g = 5;
        fill(&mine, g);
        while start.elapsed() < LONG {
            use_shared(&pool, &mut shared, &mut random);
            // What it had before it was forked, and what is its own.
            let u = random.below(20) as usize;
            check_part(&own, u, 1);
            check(&mine, g);
            g += 1;
            fill(&mine, g);
        }
        check(&own, 1);
        check(&mine, g);
    });
    let hostile = child(|| {
        // SAFETY: a plain system call.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        let segment = segment(&ticket);
        let pids = [victim, std::process::id() as i32, 1, -1, i32::MAX];
        let mut random = Random(88172645463325252);
        loop {
            scribble(&segment, &mut random, &pids, own.as_ptr() as usize);
            if random.below(8) == 0 {
                std::thread::sleep(Duration::from_micros(random.below(500)));
            }
        }
    });
    let start = Instant::now();
    let mut random = Random(99);
    while start.elapsed() < LONG {
        use_shared(&pool, &mut shared, &mut random);
        check_part(&own, random.below(24) as usize, 1);
    }
    ended_well(victim);
    // SAFETY: our own child.
    unsafe { libc::kill(hostile, libc::SIGKILL) };
    let _ = ended(hostile);
    check(&own, 1);
    fill(&own, 2);
    check(&own, 2);
    no_harm_but_shared(&pool);
    // The books of shared memory are nonsense by now.
    std::process::exit(0);
}

fn no_harm_but_shared(pool: &Pool) {
    assert_eq!(counter(pool, "swap_write_error"), 0);
}

fn check_part(r: &ManagedRange, unit: usize, g: u64) {
    let all = words(r);
    for i in (unit * UNIT / 8..(unit + 1) * UNIT / 8).step_by(64) {
        assert_eq!(all[i].load(Relaxed), value(i, g), "word {i}");
    }
}

/// Uses shared memory; any result is accepted.
fn use_shared(pool: &Pool, r: &mut SharedRegion, random: &mut Random) {
    let at = random.below(4) as usize * UNIT + random.below(512) as usize * 4096;
    let mut bytes = [7; 64];
    let _ = match random.below(3) {
        0 => r.write_at(at, &bytes),
        _ => r.read_at(at, &mut bytes),
    };
    let _ = r.is_resident(at);
    assert!(r.pagemap().count() <= 4 * 512);
    if random.below(8) == 0 {
        drop(pool.attach_shared("other"));
        let name = format!("{}", random.below(3));
        drop(
            pool.shared(UNIT, &name)
                .or_else(|_| pool.attach_shared(&name)),
        );
    }
}

/// A process that is alive and does nothing holds a word or the table: an access gets an error.
/// After the release everything is as before.
fn hostile_holders_cost_an_error_at_most() {
    let pool = pool();
    let mut r = pool.shared(4 * UNIT, "held").unwrap();
    fill(&r, 1);
    page_out(&r);
    let segment = segment(&pool.ticket());
    let me = segment.owner(0);
    let owner = u64::from(me.record) << 8 | u64::from(me.generation) << 16;
    let word = |u: usize| -> &AtomicU64 { &segment.shared_words()[u] };
    let mut bytes = [0; 64];
    let mut is_held = |r: &mut SharedRegion, op: u64, write: bool| {
        let was = word(1).load(SeqCst);
        word(1).store(was | op | owner, SeqCst);
        assert!(r.read_at(UNIT, &mut bytes).is_err() || op == OUT);
        assert!(!write || r.write_at(UNIT, &bytes).is_err());
        let gone = r.remove(UNIT, UNIT);
        assert!(
            matches!(gone, Err(Error::Stuck { .. })) || op == OUT,
            "{gone:?}"
        );
        let gone = r.remove(UNIT + 5, 100);
        assert!(
            matches!(gone, Err(Error::Stuck { .. })) || op == OUT,
            "{gone:?}"
        );
        word(1).store(was, SeqCst);
    };
    for op in [IN, PUNCH, 4 << 3, 5 << 3] {
        is_held(&mut r, op, true);
    }
    fill_is(&r);
    // (What is said to be on its way out may be taken; then it is what the word says, which is a
    // lie.)
    is_held(&mut r, OUT, false);
    for u in [0, 2, 3] {
        check_whole(&r, u);
    }
    // Who comes meanwhile.
    let was = word(2).load(SeqCst);
    word(2).store(was | PUNCH | owner, SeqCst);
    ended_well(child(|| {
        // (It has not got the region: a line tells why.)
        let late = pool.attach_shared("held");
        assert!(matches!(late, Err(Error::Shared(SharedError::Stuck))));
    }));
    word(2).store(was, SeqCst);
    check_whole(&r, 2);
    // The table is held by a process that lives: the first one, as anybody can claim.
    let lock = &segment.header().shared_lock;
    lock.store(hugeswap_engine::pool::holder::of(1).unwrap(), SeqCst);
    let refused = pool.shared(UNIT, "more").map(drop);
    assert!(matches!(refused, Err(Error::Shared(SharedError::Stuck))));
    let refused = pool.attach_shared("held").map(drop);
    assert!(matches!(refused, Err(Error::Shared(SharedError::Stuck))));
    // (Who waited for it for ever would meet the limit of every test.)
    ended_well(child(|| ()));
    drop(r);
    lock.store(0, SeqCst);
    drop(pool.shared(UNIT, "held").unwrap());
}

fn fill_is(r: &SharedRegion) {
    (0..r.len() / UNIT).for_each(|u| check_whole(r, u));
}

fn check_whole(r: &SharedRegion, unit: usize) {
    let all = words(r).iter().enumerate();
    for (i, word) in all.skip(unit * UNIT / 8).take(UNIT / 8) {
        assert_eq!(word.load(Relaxed), value(i, 1), "word {i}");
    }
}

/// The descriptors of a region's memory in the calling process.
fn memory_fds() -> Vec<i32> {
    let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let is_memory = |e: &std::fs::DirEntry| {
        let link = std::fs::read_link(e.path());
        link.is_ok_and(|l| l.to_string_lossy().starts_with("/memfd:hugeswap-shared"))
    };
    let number = |e: std::fs::DirEntry| e.file_name().to_str()?.parse().ok();
    all.filter(is_memory).filter_map(number).collect()
}

/// The length of the memory cannot be changed: if it were shortened, a touch would raise SIGBUS in
/// every process.
fn hostile_truncation_is_refused() {
    need_base_pages();
    let pool = builder(48).build().unwrap();
    let r = pool.shared(3 * UNIT, "sealed").unwrap();
    fill(&r, 1);
    ended_well(child(|| {
        let fds = memory_fds();
        assert!(!fds.is_empty());
        for fd in fds {
            for len in [0, 4096, 2 * UNIT as i64, 1 << 40] {
                // SAFETY: a length, of a descriptor.
                let done = unsafe { libc::ftruncate(fd, len) };
                assert_eq!(done, -1, "{len}");
            }
        }
    }));
    fill_is(&r);
}

/// One process closes every descriptor that it has. Others can still evict memory that it wrote,
/// and it reads the memory again.
fn hostile_to_its_own_descriptors() {
    need_base_pages();
    let pool = builder(48).build().unwrap();
    let r = pool.shared(4 * UNIT, "closed").unwrap();
    let (mut ready, mut go) = ([0; 2], [0; 2]);
    // SAFETY: room for two numbers each.
    unsafe { assert!(libc::pipe(ready.as_mut_ptr()) == 0 && libc::pipe(go.as_mut_ptr()) == 0) };
    // SAFETY: a byte, on a descriptor of ours.
    let say = |fd: i32| assert_eq!(unsafe { libc::write(fd, b"x".as_ptr().cast(), 1) }, 1);
    let hear = |fd: i32| {
        let mut byte = [0u8; 1];
        // SAFETY: room for a byte.
        assert_eq!(unsafe { libc::read(fd, byte.as_mut_ptr().cast(), 1) }, 1);
    };
    let other = child(|| {
        fill(&r, 1);
        say(ready[1]);
        hear(go[0]);
        // SAFETY: descriptors that nothing below uses. (0 and 1 take the pipes' place.)
        unsafe {
            libc::dup2(go[0], 0);
            libc::dup2(ready[1], 1);
            libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0);
        }
        fill_is(&r);
        say(1);
        hear(0);
        fill_is(&r);
        fill(&r, 1);
        say(1);
    });
    // SAFETY: the other's end: should it die, nothing more is heard.
    unsafe { libc::close(ready[1]) };
    hear(ready[0]);
    page_out(&r);
    for _ in 0..2 {
        say(go[1]);
        hear(ready[0]);
        page_out(&r);
    }
    ended_well(other);
    fill_is(&r);
}

/// A forked child closes every descriptor that it has before it does anything else, as a daemon
/// does. It can bring in memory that was paged out before.
fn hostile_to_its_own_descriptors_at_once() {
    need_base_pages();
    let pool = builder(48).set("debug.shared_patience_ms=3000");
    let pool = pool.build().unwrap();
    let r = pool.shared(4 * UNIT, "closed at once").unwrap();
    fill(&r, 1);
    for _ in 0..8 {
        page_out(&r);
        ended_well(child(|| {
            // SAFETY: descriptors that nothing below uses.
            unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
            fill_is(&r);
        }));
    }
}
