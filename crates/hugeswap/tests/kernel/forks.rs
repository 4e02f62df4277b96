//! Forks at bad moments: swap that fails or is gone, memory that is pinned or belongs to the
//! kernel.

use crate::util::*;
use hugeswap::{Advice, Categories, FaultMode, Pool, Region};
use hugeswap_policy::knobs::{Knob, swapin};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

tests! {
    a_child_forks_at_once,
    failing_writes_at_a_fork_lose_nothing,
    a_fork_writes_to_no_file_but_swap,
    a_fork_right_after_the_start,
    #[long]
    a_child_that_lives_on_does_not_make_swap_grow,
    #[long]
    a_child_that_lives_on_does_not_make_swap_grow_by_pages,
    a_fork_gives_blocks_to_no_file_but_swap,
    a_fork_leaves_what_is_held_writable,
    a_touch_in_a_fork_without_swap_is_sigbus,
    the_kernels_units_are_not_charged_to_children,
    a_child_begins_with_what_was_mapped_at_the_fork,
    parts_discarded_between_forks_stay_in_older_children,
    zeros_shared_with_a_relative_can_leave,
    parts_of_the_kernels_units_are_discarded,
    units_once_shared_can_leave,
    a_unit_under_write_back_is_not_replaced,
}

/// A child that ends when this is dropped.
struct LivingChild(i32, Option<std::io::PipeWriter>);

impl LivingChild {
    fn new() -> LivingChild {
        let (mut from, to) = std::io::pipe().unwrap();
        // SAFETY: the child reads from a pipe and ends.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: our own descriptor; ends the child at once.
            unsafe { libc::close(to.as_raw_fd()) };
            let _ = std::io::Read::read(&mut from, &mut [0]);
            // SAFETY: as above.
            unsafe { libc::_exit(0) };
        }
        LivingChild(pid, Some(to))
    }
}

impl Drop for LivingChild {
    fn drop(&mut self) {
        self.1 = None;
        // SAFETY: our own child.
        unsafe { libc::waitpid(self.0, std::ptr::null_mut(), 0) };
    }
}

/// Message mode: a write to a shared unit takes the old frame away and then puts the new one in its
/// place. If the unit was just being written to swap, the engine's thread could touch it in
/// between. The thread that resolves that fault waits at the gate for a fork to end, and the fork
/// waits for the write: everything hung.
fn a_unit_under_write_back_is_not_replaced() {
    both_modes(|mode| {
        let slow = [
            "debug.fault_seed=5",
            "debug.fault_hang=1000000",
            "debug.fault_hang_ms=250",
            "thp.defrag=always",
        ];
        let pool = slow.iter().fold(builder(64), |b, s| b.set(*s));
        let pool = pool.fault_mode(mode).build().unwrap();
        let mut seen = 0;
        for round in 0..4 {
            let r = pool.region(UNIT).unwrap();
            fill(&r, round);
            let child = LivingChild::new();
            let written = counter(&pool, "pswpout");
            // kswapd brings it out.
            pool.set("debug.storm=1000").unwrap();
            let is = |c| r.pagemap().next().unwrap().categories.has(c);
            while !is(Categories::WRITEBACK) && !is(Categories::SWAPPED) {
                std::thread::yield_now();
            }
            let sure = is(Categories::WRITEBACK);
            words(&r)[0].store(value(0, 99), Relaxed);
            let since = counter(&pool, "pswpout") - written;
            pool.set("debug.storm=0").unwrap();
            if mode == FaultMode::Message {
                assert!(since >= 512, "it was replaced while it was written");
            }
            seen += u32::from(sure);
            drop(child);
            page_out(&r);
            words(&r)[0].store(value(0, round), Relaxed);
            check(&r, round);
        }
        assert!(seen > 0, "nothing was seen being written");
    });
}

/// Message mode: memory that a child shared until it ended is the parent's again, but the kernel
/// moves only pages that were written since. If the kernel splits the huge page at the first write,
/// only one page was written, and the unit could never leave.
fn units_once_shared_can_leave() {
    both_modes(|mode| {
        let pool = builder(64).fault_mode(mode).build().unwrap();
        let r = pool.region(2 * UNIT).unwrap();
        let mut kept = false;
        for round in 0..20 {
            fill(&r, round);
            assert!(in_child(|| check(&r, round)).success());
            // That there is no child any more is noticed a few times a second.
            std::thread::sleep(std::time::Duration::from_millis(300));
            let before = counter(&pool, "pgcow");
            // A page that somebody has hold of makes the kernel split what it is asked to keep.
            let held = hold(&r.as_slice()[5 * 4096..6 * 4096]);
            words(&r)[0].store(value(0, round), Relaxed);
            kept |= counter(&pool, "pgcow") == before;
            drop(held);
            page_out(&r);
            check(&r, round);
            if kept {
                return;
            }
        }
        panic!("units were copied, not kept");
    });
}

/// Makes the kernel hold a page of memory until this is dropped.
fn hold(page: &[u8]) -> (std::io::PipeReader, std::io::PipeWriter) {
    let (from, to) = std::io::pipe().unwrap();
    let what = libc::iovec {
        iov_base: page.as_ptr().cast_mut().cast(),
        iov_len: page.len(),
    };
    // SAFETY: one page of memory, which outlives the pipe.
    let held = unsafe { libc::vmsplice(to.as_raw_fd(), &raw const what, 1, 0) };
    assert_eq!(held, page.len() as isize);
    (from, to)
}

/// A unit of zeros is never written to swap. A unit that is shared with a relative was not released
/// either, and a thread that waited for memory waited forever.
fn zeros_shared_with_a_relative_can_leave() {
    fn leave(r: &mut Region) {
        assert!(r.is_resident(0));
        r.advise(0, 16 * MIB, Advice::PageOut).unwrap();
        assert!((0..8).all(|u| !r.is_resident(u * UNIT)));
        assert!(words(r).iter().all(|w| w.load(Relaxed) == 0));
    }
    let pool = builder(64).build().unwrap();
    let mut r = pool.region(16 * MIB).unwrap();
    words(&r).iter().for_each(|w| w.store(0, Relaxed));
    assert!(in_child(|| leave(&mut r)).success());
    words(&r).iter().for_each(|w| w.store(0, Relaxed));
    // In the parent too, while a child lives.
    let mut ends = [0; 2];
    // SAFETY: two descriptors; the child only reads.
    let pid = unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        libc::fork()
    };
    if pid == 0 {
        let mut byte = [0u8; 1];
        // SAFETY: our own descriptors and memory; ends the child at once.
        unsafe {
            libc::close(ends[1]);
            libc::read(ends[0], byte.as_mut_ptr().cast(), 1);
            libc::_exit(0);
        }
    }
    leave(&mut r);
    // SAFETY: our own descriptor and child.
    unsafe {
        libc::close(ends[1]);
        assert_eq!(libc::waitpid(pid, std::ptr::null_mut(), 0), pid);
    }
}

/// A pool and a region of base-mapped units, some pages of each changed.
fn changed_pages(memory: usize) -> (Pool, Region) {
    let pool = builder(memory).set("thp.swapin=never").build().unwrap();
    let r = pool.region(16 * MIB).unwrap();
    fill(&r, 1);
    r.advise(0, 16 * MIB, Advice::PageOut).unwrap();
    for (i, w) in words(&r).iter().enumerate().step_by(512 * 3) {
        w.store(value(i, 2), Relaxed);
    }
    (pool, r)
}

fn are_right(r: &Region) {
    for (i, w) in words(r).iter().enumerate() {
        let g = if i % (512 * 3) == 0 { 2 } else { 1 };
        assert_eq!(w.load(Relaxed), value(i, g), "word {i}");
    }
}

pub fn failing_writes_at_a_fork_lose_nothing() {
    need_pages();
    // With room to spare, and with none.
    for memory in [64, 16] {
        let (pool, r) = changed_pages(memory);
        let other = pool.region(64 * MIB).unwrap();
        if memory < 64 {
            words(&other)
                .iter()
                .step_by(512)
                .for_each(|w| w.store(1, Relaxed));
            words(&r)
                .iter()
                .step_by(512 * 3)
                .enumerate()
                .for_each(|(k, w)| {
                    w.store(value(k * 512 * 3, 2), Relaxed);
                });
        }
        pool.set("debug.swap_write_fail=1").unwrap();
        let status = in_child(|| {
            pool.set("debug.swap_write_fail=0").unwrap();
            are_right(&r);
        });
        assert!(status.success(), "{status}");
        pool.set("debug.swap_write_fail=0").unwrap();
        are_right(&r);
    }
}

pub fn a_fork_writes_to_no_file_but_swap() {
    need_pages();
    // In a child, for it loses its swap.
    let status = in_child(|| {
        let (_pool, r) = changed_pages(64);
        // All of a unit, so that there is nothing to be read for it first.
        words(&r)[..UNIT / 8]
            .iter()
            .for_each(|w| w.store(3, Relaxed));
        let path = format!("/var/tmp/hugeswap-test-{}", std::process::id());
        let file = std::fs::File::create_new(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        for fd in swap_fds() {
            // SAFETY: what a program that closes everything does; the number becomes the file's.
            assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), fd) }, fd);
        }
        assert!(in_child(|| ()).success());
        assert_eq!(file.metadata().unwrap().len(), 0, "the file was written to");
    });
    assert!(status.success(), "{status}");
}

/// A fork at any moment while the engine's threads are being started: the child has none of them.
fn a_fork_right_after_the_start() {
    for i in 0..80 {
        let pool = builder(16).build().unwrap();
        let later = std::time::Instant::now() + std::time::Duration::from_micros(i * 10);
        while std::time::Instant::now() < later {}
        ended_well(child(|| ()));
        drop(pool);
    }
}

/// If a file of the program has the descriptor number of a swap file, it must not get the blocks
/// and the length that a new place in swap needs.
fn a_fork_gives_blocks_to_no_file_but_swap() {
    need_pages();
    // In a child, for it loses its swap.
    let status = in_child(|| {
        let pool = builder(64).set("thp.enabled=never").build().unwrap();
        let r = pool.region(8 * MIB).unwrap();
        fill(&r, 1);
        let path = format!("/var/tmp/hugeswap-test-{}", std::process::id());
        let file = std::fs::File::create_new(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        for fd in swap_fds() {
            // SAFETY: what a program that closes everything does; the number becomes the file's.
            assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), fd) }, fd);
        }
        assert!(in_child(|| check(&r, 1)).success());
        let status = file.metadata().unwrap();
        let blocks = std::os::unix::fs::MetadataExt::blocks(&status);
        assert_eq!((status.len(), blocks), (0, 0), "the file was made longer");
        check(&r, 1);
    });
    assert!(status.success(), "{status}");
}

fn a_fork_leaves_what_is_held_writable() {
    both_modes(|mode| {
        let pool = builder(32).fault_mode(mode).build().unwrap();
        let r = pool.region(64 * MIB).unwrap();
        fill(&r, 1);
        // SAFETY: a new descriptor, owned by the file from here on.
        let file: std::fs::File = unsafe {
            std::os::fd::FromRawFd::from_raw_fd(libc::memfd_create(c"bytes".as_ptr(), 0))
        };
        file.write_all_at(&vec![7; UNIT / 2], 0).unwrap();
        let pin = r.pin(8 * UNIT, UNIT / 2, true).unwrap();
        let mut status = None;
        for _ in 0..3 {
            status = Some(in_child(|| check(&r, 1)));
            let held = pin.as_ptr();
            // SAFETY: held for writing; nobody else uses the region.
            let bytes = unsafe { std::slice::from_raw_parts_mut(held, pin.len()) };
            file.read_exact_at(bytes, 0).unwrap();
            assert!(bytes.iter().all(|&b| b == 7));
            words(&r)[8 * UNIT / 8..][..UNIT / 16]
                .iter()
                .zip(8 * UNIT / 8..)
                .for_each(|(w, i)| w.store(value(i, 1), Relaxed));
        }
        assert!(status.unwrap().success());
        drop(pin);
        check(&r, 1);
    });
}

static TOUCHED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn touch() {
    let at = TOUCHED.load(Relaxed);
    if at != 0 {
        // SAFETY: of the test's region.
        unsafe { (at as *const u64).read_volatile() };
    }
}

/// A touch in a forked child whose swap is gone raises SIGBUS. It hung, because the threads that
/// could have read were at rest.
fn a_touch_in_a_fork_without_swap_is_sigbus() {
    // Before the pool's own, so that it runs between their parts.
    // SAFETY: the function lives as long as the process.
    unsafe { libc::pthread_atfork(Some(touch), None, None) };
    for setting in ["thp.swapin=always", "thp.swapin=never"] {
        let status = in_child(|| {
            // SAFETY: the default action is always fit.
            unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
            let pool = builder(32).set(setting).build().unwrap();
            let r = pool.region(16 * MIB).unwrap();
            fill(&r, 1);
            r.advise(0, 16 * MIB, Advice::PageOut).unwrap();
            // Some of its pages are in memory, if it can be so.
            assert_eq!(words(&r)[0].load(Relaxed), value(0, 1));
            r.advise(0, UNIT, Advice::PageOut).unwrap();
            // SAFETY: what a daemon does.
            unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
            TOUCHED.store(r.as_ptr() as usize, Relaxed);
            in_child(|| ());
        });
        assert_eq!(status.signal(), Some(libc::SIGBUS), "{setting}: {status}");
    }
}

fn the_kernels_units_are_not_charged_to_children() {
    both_modes(|mode| {
        let engine = engine(32, mode, &[]);
        let at = engine.map(8 * UNIT, UNIT, true).unwrap();
        // SAFETY: just mapped.
        unsafe { std::ptr::write_bytes(at as *mut u8, 0x5a, 8 * UNIT) };
        engine.eject(at + UNIT, UNIT).unwrap();
        let status = in_child(|| {
            engine.audit().unwrap();
            // SAFETY: mapped above.
            let bytes = unsafe { std::slice::from_raw_parts_mut(at as *mut u8, 8 * UNIT) };
            assert!(bytes.iter().all(|&b| b == 0x5a));
            bytes.fill(1);
            engine.audit().unwrap();
            engine.unmap(at, 8 * UNIT);
            engine.audit().unwrap();
        });
        assert!(status.success(), "{status}");
        engine.unmap(at, 8 * UNIT);
        // SAFETY: nothing of the engine's is used any more.
        unsafe { engine.stop() };
    });
}

/// A fork makes slots complete, but not slots that an older child or the parent reads.
pub fn parts_discarded_between_forks_stay_in_older_children() {
    need_pages();
    let (pool, mut r) = changed_pages(64);
    let mut go = [0; 2];
    // SAFETY: two descriptors to be overwritten.
    assert_eq!(unsafe { libc::pipe(go.as_mut_ptr()) }, 0);
    // SAFETY: the child uses managed memory and exits.
    let older = unsafe { libc::fork() };
    if older == 0 {
        // SAFETY: waits until all that the test is about is done.
        unsafe {
            libc::close(go[1]);
            libc::read(go[0], go.as_mut_ptr().cast(), 1);
        }
        let wrong = panics(|| are_right(&r));
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(wrong)) };
    }
    let parts = (0..8).map(|u| u * UNIT + 3 * 4096);
    // The same in a child, with the parent's slots.
    let status = in_child(|| {
        for at in parts.clone() {
            // Base-mapped here first.
            words(&r)[at / 8 + 8192].load(Relaxed);
            r.discard(at, 40960).unwrap();
        }
        assert!(in_child(|| ()).success());
    });
    assert!(status.success(), "{status}");
    are_right(&r);
    for at in parts.clone() {
        r.discard(at, 40960).unwrap();
    }
    assert!(in_child(|| ()).success());
    // SAFETY: the older child goes on; then waits for it.
    unsafe {
        libc::close(go[1]);
        let mut status = 0;
        libc::waitpid(older, &mut status, 0);
        assert_eq!(status, 0, "the older child saw what was discarded later");
    }
    for at in parts {
        assert!(
            words(&r)[at / 8..][..5120]
                .iter()
                .all(|w| w.load(Relaxed) == 0)
        );
    }
    pool.audit().unwrap();
}

/// Memory that was swapped out after a fork belongs to no child: each time it is written anew, its
/// old place becomes free.
fn a_child_that_lives_on_does_not_make_swap_grow() {
    both_modes(|mode| {
        let pool = builder(32).fault_mode(mode).build().unwrap();
        // (Filled whole: never by pages of zeros.)
        rounds_with_an_old_child(&pool, pool.region(64 * MIB).unwrap());
    });
}

fn a_child_that_lives_on_does_not_make_swap_grow_by_pages() {
    let pool = pool_of_pages();
    rounds_with_an_old_child(&pool, pool.region(16 * MIB).unwrap());
}

fn rounds_with_an_old_child(pool: &Pool, r: Region) {
    fill(&r, 1);
    page_out(&r);
    let (mut wait, go) = std::io::pipe().unwrap();
    let older = child(|| {
        // SAFETY: the child's copy, which it does not use.
        unsafe { libc::close(go.as_raw_fd()) };
        let _ = std::io::Read::read(&mut wait, &mut [0]);
        check(&r, 1);
    });
    for round in 2..10 {
        fill(&r, round);
        page_out(&r);
        if round % 2 == 0 {
            // It keeps what it may read as long as it lives.
            assert!(in_child(|| check(&r, round)).success());
        }
    }
    let used = || pool.stats().swap_used_bytes as usize;
    // The older child's, the present, and what the younger children had until that is noticed.
    until("most of swap is free", || used() <= 3 * r.len());
    check(&r, 9);
    drop(go);
    ended_well(older);
    page_out(&r);
    until("swap holds no more than the region", || {
        used() <= r.len() * 5 / 4
    });
    check(&r, 9);
    pool.audit().unwrap();
}

static SLOW: AtomicUsize = AtomicUsize::new(0);

extern "C" fn be_slow() {
    let ms = SLOW.load(Relaxed) as u64;
    std::thread::sleep(std::time::Duration::from_millis(ms));
}

/// A child begins with the parent's mappings at the fork, not with those that the parent has when
/// the child looks.
pub fn a_child_begins_with_what_was_mapped_at_the_fork() {
    // Before the engine's own.
    // SAFETY: the function lives as long as the process.
    unsafe { libc::pthread_atfork(None, None, Some(be_slow)) };
    SLOW.store(300, Relaxed);
    let engine = engine(32, FaultMode::Signal, &[]);
    let at = engine.map(16 * UNIT, UNIT, true).unwrap();
    // SAFETY: the child uses managed memory and exits.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let wrong = panics(|| {
            engine.unmap(at, 16 * UNIT);
            let all = engine.pool().live().map(|(_, r)| r.managed.load(Relaxed));
            assert!(all.into_iter().all(|bytes| bytes == 0));
            let more = engine.map(16 * UNIT, UNIT, true).unwrap();
            engine.unmap(more, 16 * UNIT);
        });
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(wrong)) };
    }
    engine.unmap(at, 16 * UNIT);
    let mut status = 0;
    // SAFETY: waits for our own child.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!(status, 0);
    // SAFETY: nothing of the engine's is used any more.
    unsafe { engine.stop() };
}

fn parts_of_the_kernels_units_are_discarded() {
    let engine = engine(32, FaultMode::Signal, &[(Knob::ThpSwapin, swapin::ALWAYS)]);
    let at = engine.map(4 * UNIT, UNIT, true).unwrap();
    // SAFETY: just mapped.
    let bytes = unsafe { std::slice::from_raw_parts_mut(at as *mut u8, 4 * UNIT) };
    bytes.fill(0x5a);
    engine.eject(at + UNIT, UNIT).unwrap();
    engine.discard(at + UNIT + 4095, 8194).unwrap();
    let zero = UNIT + 4095..UNIT + 4095 + 8194;
    for (i, &b) in bytes.iter().enumerate() {
        assert_eq!(b == 0, zero.contains(&i), "byte {i}");
    }
    // SAFETY: nothing of the engine's is used any more.
    unsafe { engine.stop() };
}

/// A child forks while its own threads are being started.
fn a_child_forks_at_once() {
    let pool = builder(32).build().unwrap();
    let r = pool.region(4 * MIB).unwrap();
    fill(&r, 1);
    for _ in 0..60 {
        ended_well(child(|| {
            let second = child(|| ended_well(child(|| check(&r, 1))));
            ended_well(second);
        }));
    }
}
