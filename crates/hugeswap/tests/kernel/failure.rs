//! Failures: errors, full swap, lost descriptors, too many mappings. No test ever reads wrong
//! bytes.

use crate::files::Temp;
use crate::util::*;
use hugeswap::{Error, FaultMode, FileMode, Pool, SwapSpec};
use std::os::fd::{FromRawFd, IntoRawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

tests! {
    corrupt_swap_is_sigbus,
    #[long]
    every_descriptor_closed,
    every_descriptor_closed_at_once,
    #[long]
    limit_on_mappings,
    mappings_are_freed_though_memory_is_free,
    a_file_takes_no_unit_that_could_not_be_freed,
    more_than_swap_holds_is_refused,
    failing_writes_lose_nothing,
    failing_reads_are_tried_again,
    changed_bits_are_noticed,
    a_full_area_gives_way_to_another,
    no_room_is_no_error,
    no_room_anywhere_is_sigbus,
    discarded_without_memory_is_said_or_zero,
    a_copy_that_finds_its_place_marked_is_kept,
    #[long]
    handler_allocates_nothing,
}

pub fn corrupt_swap_is_sigbus() {
    // In a child, whose end we look at.
    // SAFETY: no threads yet.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let pool = builder(32).build().unwrap();
        let r = pool.region(128 * MIB).unwrap();
        fill(&r, 1);
        let fds = swap_fds();
        assert_eq!(fds.len(), 1);
        // SAFETY: the descriptor is open; it is given up again below.
        let f = unsafe { std::fs::File::from_raw_fd(fds[0]) };
        // Direct I/O wants an aligned buffer.
        let junk = vec![0xabu8; UNIT + 4096];
        let from = junk.as_ptr().align_offset(4096);
        for u in 0..64 {
            f.write_all_at(&junk[from..from + UNIT], u * UNIT as u64)
                .unwrap();
        }
        let _ = f.into_raw_fd();
        check(&r, 1);
        println!("read bytes that were never written");
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    let status = std::process::ExitStatus::from_raw(status);
    assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
}

fn every_descriptor_closed() {
    both_modes(|mode| {
        let pool = builder(64).fault_mode(mode).build().unwrap();
        let r = pool.region(192 * MIB).unwrap();
        fill(&r, 1);
        // What a daemon does; then numbers are used again for other files.
        // SAFETY: close_range is what is tested; only standard descriptors are needed below.
        unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
        let others: Vec<_> = (0..1000)
            .map_while(|_| std::fs::File::open("/dev/zero").ok())
            .collect();
        for g in 1..3 {
            check(&r, g);
            fill(&r, g + 1);
        }
        drop(others);
        check(&r, 3);
        // Dropping the pool would close numbers that are others' by now.
        std::mem::forget((r, pool));
    });
}

/// The same of a child, before it does anything else; and of a program that has just begun.
fn every_descriptor_closed_at_once() {
    both_modes(|mode| {
        for huge in ["thp.enabled=always", "thp.enabled=never"] {
            let pool = builder(32).fault_mode(mode).set(huge).build().unwrap();
            let close_all = || {
                // SAFETY: as above.
                unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
            };
            let r = pool.region(96 * MIB).unwrap();
            fill(&r, 1);
            for _ in 0..3 {
                ended_well(child(|| {
                    close_all();
                    check(&r, 1);
                    fill(&r, 2);
                    check(&r, 2);
                }));
            }
            check(&r, 1);
        }
        ended_well(child(|| {
            let pool = builder(32).fault_mode(mode).set("thp.enabled=never");
            let pool = pool.build().unwrap();
            let r = pool.region(96 * MIB).unwrap();
            // SAFETY: as above.
            unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
            fill(&r, 1);
            check(&r, 1);
            std::mem::forget((r, pool));
        }));
    });
}

/// How many mappings a process may have. Skips the test if they are too many to use up.
fn most_mappings() -> usize {
    let most = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
    let most = most.trim().parse().unwrap();
    if most > 200_000 {
        skip("vm.max_map_count is too large to use up");
    }
    most
}

pub fn limit_on_mappings() {
    let max = most_mappings();
    let pool = builder(128).build().unwrap();
    let r = pool.region(512 * MIB).unwrap();
    // Use up all but a few mappings with pages of alternating protection.
    let pages = (max - 200) / 2 * 2;
    // SAFETY: a mapping of our own.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            pages * 4096,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    assert_ne!(base, libc::MAP_FAILED);
    for i in (0..pages).step_by(2) {
        // SAFETY: within the mapping above.
        let r = unsafe {
            libc::mprotect(
                base.cast::<u8>().add(i * 4096).cast(),
                4096,
                libc::PROT_READ,
            )
        };
        if r != 0 {
            break;
        }
    }
    for g in 0..2 {
        fill(&r, g);
        check(&r, g);
    }
    // In an order that leaves no neighbours together.
    let w = words(&r);
    for k in 0..512 {
        let i = (k * 97 % 256) * (UNIT / 8) + k;
        assert_eq!(w[i].load(Relaxed), value(i, 1));
    }
    check(&r, 1);
    // SAFETY: our own mapping.
    unsafe { libc::munmap(base, pages * 4096) };
    println!(
        "limit met {:?} times",
        pool.stats()
            .counters
            .iter()
            .find(|c| c.0 == "map_limit")
            .unwrap()
            .1
    );
}

/// Makes all the mappings that the kernel lets a process have.
struct UsedUp(Vec<*mut libc::c_void>);

impl UsedUp {
    fn new(most: usize) -> UsedUp {
        let mut pages = Vec::with_capacity(most + 8);
        // (Two kinds, so that neighbours stay two mappings.)
        for prot in [libc::PROT_READ, libc::PROT_NONE].into_iter().cycle() {
            // SAFETY: a new mapping.
            let at = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    4096,
                    prot,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                    -1,
                    0,
                )
            };
            if at == libc::MAP_FAILED || pages.len() > most {
                break;
            }
            pages.push(at);
        }
        UsedUp(pages)
    }

    /// Unmaps `n` of them.
    fn give_back(&mut self, n: usize) {
        for at in self.0.drain(self.0.len() - n..) {
            // SAFETY: a mapping of our own.
            unsafe { libc::munmap(at, 4096) };
        }
    }
}

impl Drop for UsedUp {
    fn drop(&mut self) {
        self.give_back(self.0.len());
    }
}

/// At the limit on mappings, units in memory leave for one that is touched, also where most of the
/// memory is free and none of them is clean: kswapd has no other reason to write them.
fn mappings_are_freed_though_memory_is_free() {
    let most = most_mappings();
    let pool = builder(128).fault_mode(FaultMode::Signal).build().unwrap();
    let r = pool.region(64 * UNIT).unwrap();
    let w = words(&r);
    let word = |unit: usize| &w[unit * UNIT / 8];
    let touched = || (0..64).step_by(4);
    // (What is mostly zero would leave by single pages.)
    for unit in touched() {
        let words = &w[unit * UNIT / 8..(unit + 1) * UNIT / 8];
        let pages = words.iter().step_by(512);
        pages.for_each(|word| word.store(unit as u64 + 1, Relaxed));
    }
    let mut used_up = UsedUp::new(most);
    // The kernel moves no mapping where fewer than four are left, but maps and protects.
    used_up.give_back(4);
    for unit in (2..64).step_by(16) {
        word(unit).store(unit as u64 + 1, Relaxed);
    }
    drop(used_up);
    assert!(counter(&pool, "map_limit") > 0, "the limit was not met");
    assert!(counter(&pool, "thp_swpout") > 0, "nothing was written");
    for unit in touched().chain((2..64).step_by(16)) {
        assert_eq!(word(unit).load(Relaxed), unit as u64 + 1);
    }
}

/// At the limit on mappings, memory of a region that is given up stays where it is mapped. A file
/// is mapped there once the memory is gone, and not before.
fn a_file_takes_no_unit_that_could_not_be_freed() {
    let most = most_mappings();
    let len = 4 * UNIT;
    let file = Temp::new(len, 7);
    let pool = builder(64).fault_mode(FaultMode::Signal).build().unwrap();
    let r = pool.region(len).unwrap();
    fill(&r, 1);
    let used_up = UsedUp::new(most);
    drop(r);
    let refused = pool.map_file(&file.0, 0, len, FileMode::ReadOnly);
    drop(used_up);
    assert!(refused.is_err(), "the region's units were free");
    let mapped = pool.map_file(&file.0, 0, len, FileMode::ReadOnly).unwrap();
    check(&mapped, 7);
}

fn more_than_swap_holds_is_refused() {
    let mut spec = SwapSpec::new("/var/tmp");
    spec.size = Some(64 << 20);
    let pool = Pool::builder()
        .memory(32 << 20)
        .swap_area(spec)
        .build()
        .unwrap();
    let fits = pool.region(80 * MIB).unwrap();
    assert!(
        pool.region(20 * MIB).is_err(),
        "more was promised than there is"
    );
    fill(&fits, 1);
    check(&fits, 1);
    drop(fits);
    let again = pool.region(90 * MIB).unwrap();
    fill(&again, 2);
    check(&again, 2);
}

pub fn failing_writes_lose_nothing() {
    both_modes(|mode| {
        let pool = builder(32)
            .fault_mode(mode)
            .set("debug.swap_write_fail=3")
            .build()
            .unwrap();
        three_rounds(&pool, 128 * MIB);
        assert!(counter(&pool, "swap_retry") > 10);
        assert_eq!(counter(&pool, "hwpoison"), 0);
    });
}

fn failing_reads_are_tried_again() {
    both_modes(|mode| {
        let pool = builder(32)
            .fault_mode(mode)
            .set("debug.swap_read_fail=5")
            .build()
            .unwrap();
        three_rounds(&pool, 128 * MIB);
        assert_eq!(counter(&pool, "hwpoison"), 0);
    });
}

pub fn changed_bits_are_noticed() {
    both_modes(|mode| {
        let pool = builder(32)
            .fault_mode(mode)
            .set("debug.swap_read_flip=7")
            .build()
            .unwrap();
        three_rounds(&pool, 128 * MIB);
        assert_eq!(counter(&pool, "hwpoison"), 0);
    });
}

fn a_full_area_gives_way_to_another() {
    // Each of three areas takes a third of what is needed, one after the other.
    let area = |priority| {
        let mut spec = SwapSpec::new("/var/tmp");
        spec.size = Some(256 << 20);
        spec.priority = priority;
        spec
    };
    let pool = Pool::builder()
        .memory(32 << 20)
        .swap_area(area(2))
        .swap_area(area(1))
        .swap_area(area(-1))
        .set("debug.swap_space=48M")
        .build()
        .unwrap();
    three_rounds(&pool, 140 * MIB);
    no_harm(&pool);
}

/// kswapd tries to write more than there is room for, in whole units and in base pages.
fn no_room_is_no_error() {
    need_pages();
    for way in ["always", "never"] {
        let pool = builder(64)
            .set(&format!("thp.enabled={way}"))
            .set("debug.swap_space=4M")
            .build()
            .unwrap();
        // It is all in memory, of which some is to be kept free.
        let r = pool.region(62 * MIB).unwrap();
        let mut g = 0;
        until("it tries", || {
            fill(&r, g);
            check(&r, g);
            g += 1;
            g >= 2 && pool.stats().swap_used_bytes > 0
        });
        no_harm(&pool);
    }
}

fn no_room_anywhere_is_sigbus() {
    // SAFETY: no threads yet.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let pool = builder(32).set("debug.swap_space=32M").build().unwrap();
        let r = pool.region(256 * MIB).unwrap();
        fill(&r, 1);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    let status = std::process::ExitStatus::from_raw(status);
    assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
}

/// Aborts if anything is allocated on the alternate stack, which only the fault handler runs on.
struct NotInHandler;

static ALT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
const ALT_LEN: usize = 64 << 10;

impl NotInHandler {
    fn check() {
        let here = std::ptr::from_ref(&0u8) as usize;
        let alt = ALT.load(Relaxed);
        if alt != 0 && (alt..alt + ALT_LEN).contains(&here) {
            hugeswap_sys::fs::complain(&[b"the fault handler allocated\n"]);
            std::process::abort();
        }
    }
}

// SAFETY: every call goes to the system allocator unchanged.
unsafe impl std::alloc::GlobalAlloc for NotInHandler {
    unsafe fn alloc(&self, l: std::alloc::Layout) -> *mut u8 {
        Self::check();
        // SAFETY: passed on.
        unsafe { std::alloc::System.alloc(l) }
    }
    unsafe fn alloc_zeroed(&self, l: std::alloc::Layout) -> *mut u8 {
        Self::check();
        // SAFETY: passed on.
        unsafe { std::alloc::System.alloc_zeroed(l) }
    }
    unsafe fn dealloc(&self, p: *mut u8, l: std::alloc::Layout) {
        Self::check();
        // SAFETY: passed on.
        unsafe { std::alloc::System.dealloc(p, l) }
    }
}

#[global_allocator]
static ALLOCATOR: NotInHandler = NotInHandler;

fn handler_allocates_nothing() {
    let stack = Box::leak(vec![0u8; ALT_LEN].into_boxed_slice());
    let ss = libc::stack_t {
        ss_sp: stack.as_mut_ptr().cast(),
        ss_flags: 0,
        ss_size: ALT_LEN,
    };
    // SAFETY: the stack lives for ever.
    assert_eq!(unsafe { libc::sigaltstack(&ss, std::ptr::null_mut()) }, 0);
    ALT.store(stack.as_ptr() as usize, Relaxed);
    let pool = builder(32).set("debug.storm=100").build().unwrap();
    let mut r = pool.region(128 * MIB).unwrap();
    for g in 0..3 {
        fill(&r, g);
        check(&r, g);
    }
    r.discard(0, 64 * MIB).unwrap();
    fill(&r, 4);
    check(&r, 4);
    let s = pool.stats();
    assert!(s.pswpin > 0 && s.stalls + s.pswpout > 0);
}

/// Discarding a part of a unit takes memory where units come whole or not at all. Without memory it
/// fails or gives zeros.
fn discarded_without_memory_is_said_or_zero() {
    both_modes(|mode| {
        let pool = builder(16)
            .fault_mode(mode)
            .set(&format!("debug.swap_space={}", 32 * MIB))
            .build()
            .unwrap();
        let mut r = pool.region(64 * MIB).unwrap();
        let mut page = [0; 4096];
        // Until memory and swap are full.
        let full = (0..r.len()).step_by(4096).find(|&at| {
            for (i, w) in page.chunks_exact_mut(8).enumerate() {
                w.copy_from_slice(&value(at / 8 + i, 1).to_ne_bytes());
            }
            r.write_at(at, &page).is_err()
        });
        let full = full.expect("less fits in") / UNIT * UNIT;
        let away = (0..full).step_by(UNIT).find(|&at| !r.is_resident(at));
        let away = away.unwrap() + 7 * 4096;
        let done = r.discard(away, 5 * 4096);
        assert!(
            matches!(done, Ok(()) | Err(Error::NotDiscarded { .. })),
            "{done:?}"
        );
        // The last ones make room.
        r.discard(full - 4 * UNIT, r.len() - full + 4 * UNIT)
            .unwrap();
        let mut bytes = [0; 5 * 4096];
        r.read_at(away, &mut bytes).unwrap();
        for (i, w) in bytes.chunks_exact(8).enumerate() {
            let (w, at) = (u64::from_ne_bytes(w.try_into().unwrap()), away / 8 + i);
            let old = done.is_err() && w == value(at, 1);
            assert!(w == 0 || old, "word {at}: {w:x}, {done:?}");
        }
    });
}

/// Message mode: a page is marked at any moment, as it is after a fault that found no memory. This
/// includes the moment when a shared frame was taken away and the copy that replaces it is not in
/// place yet.
fn a_copy_that_finds_its_place_marked_is_kept() {
    let pool = match builder(64).fault_mode(FaultMode::Message).build() {
        Ok(pool) => pool,
        Err(e) => skip(&format!("no message mode: {e}")),
    };
    let mut r = pool.region(24 * MIB).unwrap();
    let (uffd, base, end) = (userfaultfd(), r.as_ptr() as usize, r.len());
    for round in 0..20 {
        // What is marked becomes usable again.
        r.discard(0, end).unwrap();
        fill(&r, round);
        let kid = child(|| check(&r, round));
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                for page in (0..end).step_by(UNIT).cycle() {
                    if stop.load(Relaxed) {
                        break;
                    }
                    let _ = hugeswap_sys::uffd::poison(uffd, base + page, 4096);
                }
            });
            for at in (0..r.len()).step_by(UNIT) {
                let _ = r.write_at(at, &value(at / 8, round).to_ne_bytes());
            }
            stop.store(true, Relaxed);
        });
        // What is marked can be lost; nothing else may be read than was written.
        let mut bytes = [0; 4096];
        for at in (0..r.len()).step_by(4096) {
            if r.read_at(at, &mut bytes).is_ok() {
                let words = bytes.chunks_exact(8).enumerate();
                for (i, w) in words {
                    let w = u64::from_ne_bytes(w.try_into().unwrap());
                    assert_eq!(w, value(at / 8 + i, round), "round {round}");
                }
            }
        }
        ended_well(kid);
    }
}

/// The descriptor of the pool's userfaultfd.
fn userfaultfd() -> i32 {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap();
    let mut all = fds.filter_map(|e| {
        let e = e.ok()?;
        let link = std::fs::read_link(e.path()).ok()?;
        let is = link.to_str()? == "anon_inode:[userfaultfd]";
        is.then(|| e.file_name().to_str()?.parse().ok()).flatten()
    });
    all.next().expect("message mode has one")
}
