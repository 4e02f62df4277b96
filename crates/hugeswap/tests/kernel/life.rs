//! Start, end, and coexistence with the program's own handlers.

use crate::util::*;
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

tests! {
    #[long]
    fork_handlers_may_touch_managed_memory,
    #[long]
    drop_gives_everything_back,
    own_handler_gets_own_faults,
    a_small_alternate_stack_is_enough,
    wild_access_is_still_sigsegv,
    several_pools,
    #[long]
    forked_children_share_the_budget,
}

fn footprint() -> (usize, usize, usize) {
    let count = |p: &str| std::fs::read_dir(p).unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps")
        .unwrap()
        .lines()
        .count();
    (count("/proc/self/fd"), count("/proc/self/task"), maps)
}

fn drop_gives_everything_back() {
    both_modes(|mode| {
        let cycle = || {
            let pool = builder(32).fault_mode(mode).build().unwrap();
            let r = pool.region(128 * MIB).unwrap();
            fill(&r, 1);
            check(&r, 1);
        };
        // The first time leaves the handler and what libc keeps.
        cycle();
        cycle();
        let before = footprint();
        for _ in 0..5 {
            cycle();
        }
        let after = footprint();
        assert_eq!(
            (before.0, before.1),
            (after.0, after.1),
            "descriptors or threads were left"
        );
        assert!(
            after.2 <= before.2 + 4,
            "mappings were left: {} then {}",
            before.2,
            after.2
        );
    });
}

fn a_small_alternate_stack_is_enough() {
    let pool = builder(32).build().unwrap();
    let r = pool.region(128 * MIB).unwrap();
    fill(&r, 1);
    std::thread::scope(|s| {
        s.spawn(|| {
            const MINSIGSTKSZ: u64 = 51;
            // SAFETY: reads the auxiliary vector.
            let least = unsafe { libc::getauxval(MINSIGSTKSZ) } as usize;
            // What the kernel's own frame takes, and 1 KiB.
            let size = least.max(libc::MINSIGSTKSZ) + 1024;
            // SAFETY: a mapping of our own with a page below the stack that nobody may touch.
            unsafe {
                let len = size.next_multiple_of(4096) + 4096;
                let at = libc::mmap(
                    std::ptr::null_mut(),
                    len,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                    -1,
                    0,
                );
                assert_ne!(at, libc::MAP_FAILED);
                libc::mprotect(at, 4096, libc::PROT_NONE);
                let stack = libc::stack_t {
                    ss_sp: at.byte_add(4096),
                    ss_flags: 0,
                    ss_size: size,
                };
                assert_eq!(libc::sigaltstack(&stack, std::ptr::null_mut()), 0);
            }
            check(&r, 1);
        });
    });
}

static SEEN: AtomicUsize = AtomicUsize::new(0);

extern "C" fn on_segv(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel's siginfo; then the page is made accessible, so that the access can be
    // tried again.
    unsafe {
        let at = (*info).si_addr() as usize & !4095;
        SEEN.store(at, Relaxed);
        libc::mprotect(at as *mut _, 4096, libc::PROT_READ | libc::PROT_WRITE);
    }
}

fn own_handler_gets_own_faults() {
    // SAFETY: an ordinary handler, installed before the pool is.
    unsafe {
        let mut sa: libc::sigaction = std::mem::zeroed();
        sa.sa_sigaction = on_segv as *const () as usize;
        sa.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGSEGV, &sa, std::ptr::null_mut()), 0);
    }
    let pool = builder(32).build().unwrap();
    let r = pool.region(64 * MIB).unwrap();
    fill(&r, 1);
    // SAFETY: a mapping of our own without access.
    let page = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    // SAFETY: the handler makes the page accessible.
    unsafe { page.cast::<u8>().write_volatile(1) };
    assert_eq!(SEEN.load(Relaxed), page as usize);
    check(&r, 1);
}

fn wild_access_is_still_sigsegv() {
    // SAFETY: no threads yet.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let pool = builder(32).build().unwrap();
        let r = pool.region(4 * MIB).unwrap();
        fill(&r, 1);
        // SAFETY: deliberately wrong: past the end of the region.
        unsafe { r.as_ptr().add(64 * MIB).write_volatile(1) };
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    let status = std::process::ExitStatus::from_raw(status);
    assert_eq!(status.signal(), Some(libc::SIGSEGV), "{status}");
}

fn several_pools() {
    let pools: Vec<_> = (0..3).map(|_| builder(32).build().unwrap()).collect();
    let regions: Vec<_> = pools.iter().map(|p| p.region(96 * MIB).unwrap()).collect();
    for (g, r) in regions.iter().enumerate() {
        fill(r, g as u64);
    }
    for (g, r) in regions.iter().enumerate() {
        check(r, g as u64);
    }
}

fn forked_children_share_the_budget() {
    let pool = builder(96).build().unwrap();
    let mine = pool.region(48 * MIB).unwrap();
    fill(&mine, 9);
    let pids: Vec<i32> = (0..3)
        .map(|c| {
            // SAFETY: the child uses managed memory and exits.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                let wrong = panics(|| {
                    let r = pool.region(96 * MIB).unwrap();
                    for g in 0..3 {
                        fill(&r, c * 10 + g);
                        check(&r, c * 10 + g);
                    }
                    check(&mine, 9);
                });
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(i32::from(wrong)) };
            }
            pid
        })
        .collect();
    for pid in pids {
        let mut status = 0;
        // SAFETY: waits for our own child.
        unsafe { libc::waitpid(pid, &mut status, 0) };
        assert_eq!(status, 0, "a child failed");
    }
    check(&mine, 9);
    let s = pool.stats();
    assert!(s.peak_resident_bytes <= 96 * MIB as u64, "{s:?}");
}

static TOUCHED: AtomicUsize = AtomicUsize::new(0);

/// Touches all of the region at TOUCHED, as other libraries' fork handlers might.
extern "C" fn touch_all() {
    let at = TOUCHED.load(Relaxed);
    if at != 0 {
        for unit in 0..32 {
            // SAFETY: the test's region of 64 MiB.
            unsafe {
                let p = (at as *mut u64).byte_add(unit * UNIT);
                p.write_volatile(p.read_volatile() + 1);
            }
        }
    }
}

fn fork_handlers_may_touch_managed_memory() {
    // Registered before the pools' own, so that they run between their parts. (In the child they
    // would run before the engine is fit for use there: see the engine's `fork`.)
    // SAFETY: the functions live as long as the process.
    unsafe { libc::pthread_atfork(Some(touch_all), Some(touch_all), None) };
    both_modes(|mode| {
        let pool = builder(32).fault_mode(mode).build().unwrap();
        let r = pool.region(64 * MIB).unwrap();
        fill(&r, 1);
        let first = |u: usize| words(&r)[u * UNIT / 8].load(Relaxed);
        TOUCHED.store(r.as_ptr() as usize, Relaxed);
        for round in 1..20u64 {
            // SAFETY: the child only reads managed memory and exits.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                // The child saw the touch before this fork, and both of each earlier one.
                let right = (0..32).all(|u| first(u) == value(u * UNIT / 8, 1) + 2 * round - 1);
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(i32::from(!right)) };
            }
            let mut status = 0;
            // SAFETY: waits for our own child.
            unsafe { libc::waitpid(pid, &mut status, 0) };
            assert_eq!(status, 0, "the child of round {round} saw wrong bytes");
            for u in 0..32 {
                let want = value(u * UNIT / 8, 1) + 2 * round;
                assert_eq!(first(u), want, "unit {u} in round {round}");
            }
        }
        TOUCHED.store(0, Relaxed);
    });
}
