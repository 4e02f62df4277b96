//! Markers of pages that are not in memory hold, whatever happens to their units.

use crate::pagemap::at;
use crate::util::*;
use hugeswap::{Advice, Categories, Epoch, Error, FaultMode, Granularity, Pool, Region};
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::Ordering::Relaxed;

tests! {
    markers_go_with_their_pages,
    guards_keep_what_is_beside_them,
    guards_of_memory_that_is_pinned,
    guards_are_sigsegv_to_a_handler,
    markers_are_refused,
}

const PAGE: usize = 4096;
/// The index of the marked page.
const MARKED: usize = 700;

/// A marker of a page.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Marker {
    PagedOut,
    WriteProtected,
    SoftDirty,
    Guard,
    Poison,
}

/// An event that changes the state of the marked page's unit.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Transition {
    SwapOut,
    SwapIn,
    Split,
    Collapse,
    Fork,
    Discard,
}

use Transition::*;

/// A region whose writes are tracked, with a marker.
fn marked(pool: &Pool, marker: Marker) -> (Region, Epoch) {
    let mut r = pool.region(8 * MIB).unwrap();
    fill(&r, 1);
    page_out(&r);
    check(&r, 1);
    let epoch = r.track_writes(Granularity::Units).unwrap();
    match marker {
        Marker::PagedOut => page_out(&r),
        Marker::WriteProtected => {}
        Marker::SoftDirty => words(&r)[MARKED * 512].store(value(MARKED * 512, 1), Relaxed),
        Marker::Guard => r.install_guard(MARKED * PAGE, PAGE).unwrap(),
        Marker::Poison => r.poison(MARKED * PAGE, PAGE).unwrap(),
    }
    (r, epoch)
}

/// Touches every page but the marked one, and checks that they are as they were filled.
fn rest_is_there(r: &Region) {
    for page in (0..r.len() / PAGE).filter(|p| *p != MARKED) {
        let i = page * 512 + 3;
        assert_eq!(words(r)[i].load(Relaxed), value(i, 1), "page {page}");
    }
}

fn go(pool: &Pool, r: &mut Region, marker: Marker, transition: Transition) {
    let touchable = !matches!(marker, Marker::Guard | Marker::Poison);
    let touch = |r: &Region| {
        rest_is_there(r);
        if touchable {
            words(r)[MARKED * 512].load(Relaxed);
        }
    };
    match transition {
        SwapOut => page_out(r),
        SwapIn => {
            page_out(r);
            touch(r);
        }
        Split => {
            page_out(r);
            pool.set("thp.swapin=never").unwrap();
            touch(r);
            pool.set("thp.swapin=auto").unwrap();
            let state = at(r, MARKED + 1).categories;
            assert!(!state.has(Categories::HUGE), "{state:?}");
        }
        Collapse => {
            go(pool, r, marker, Split);
            pool.set("thp.swapin=always").unwrap();
            page_out(r);
            touch(r);
            pool.set("thp.swapin=auto").unwrap();
            let state = at(r, MARKED + 1).categories;
            assert_eq!(state.has(Categories::HUGE), touchable, "{state:?}");
        }
        Fork => {}
        Discard => r.discard(MARKED * PAGE, PAGE).unwrap(),
    }
}

/// The signal that ends a child that reads a byte of the marked page, if any.
fn end_of_a_touch(r: &Region) -> Option<i32> {
    in_child(|| {
        words(r)[MARKED * 512].load(Relaxed);
    })
    .signal()
}

fn holds(r: &Region, epoch: &Epoch, marker: Marker, after: Transition, is_child: bool) {
    let c = at(r, MARKED).categories;
    let place = at(r, MARKED).swap;
    let changed = r.changed_since(epoch).unwrap();
    let told = changed.iter().any(|c| c.contains(&(MARKED * PAGE)));
    let gone = after == Discard;
    let what = format!("{marker:?} after {after:?}: {c:?}");
    assert!(c.has(Categories::TRACKED), "{what}");
    assert_eq!(told, c.has(Categories::WRITTEN), "{what}");
    match marker {
        Marker::PagedOut => {
            assert_eq!(place.is_some(), c.has(Categories::SWAPPED), "{what}");
            // (A child finds base pages in swap, zeros as well.)
            if !is_child {
                let away = matches!(after, SwapOut | Fork);
                assert_eq!(c.has(Categories::SWAPPED), away, "{what}");
                assert_eq!(c.has(Categories::ZERO), gone, "{what}");
            }
            assert_eq!(told, gone, "{what}");
        }
        Marker::WriteProtected => assert_eq!(told, gone, "{what}"),
        Marker::SoftDirty => assert!(told, "{what}"),
        Marker::Guard => {
            assert!(c.has(Categories::GUARD), "{what}");
            assert_eq!(end_of_a_touch(r), Some(libc::SIGSEGV), "{what}");
        }
        Marker::Poison => {
            assert_eq!(c.has(Categories::POISONED), !gone, "{what}");
            let end = if gone { None } else { Some(libc::SIGBUS) };
            assert_eq!(end_of_a_touch(r), end, "{what}");
        }
    }
    // Nothing but the one page has a marker.
    let none = Categories::GUARD | Categories::POISONED;
    assert!(!at(r, MARKED - 1).categories.meets(none), "{what}");
    assert!(!at(r, MARKED + 1).categories.meets(none), "{what}");
}

fn markers_go_with_their_pages() {
    need_pages();
    let pool = builder(32).build().unwrap();
    for marker in [
        Marker::PagedOut,
        Marker::WriteProtected,
        Marker::SoftDirty,
        Marker::Guard,
        Marker::Poison,
    ] {
        for after in [SwapOut, SwapIn, Split, Collapse, Fork, Discard] {
            let (mut r, epoch) = marked(&pool, marker);
            go(&pool, &mut r, marker, after);
            // (Before a fork has zeros in base pages written.)
            holds(&r, &epoch, marker, after, false);
            ended_well(child(|| {
                holds(&r, &epoch, marker, after, true);
                rest_is_there(&r);
            }));
            rest_is_there(&r);
        }
    }
    no_harm(&pool);
}

/// Random guards on memory that comes and goes, checked against a list of them.
fn guards_keep_what_is_beside_them() {
    need_pages();
    let pool = builder(16).build().unwrap();
    let mut r = pool.region(32 * MIB).unwrap();
    fill(&r, 1);
    let pages = r.len() / PAGE;
    let (mut guard, mut zero) = (vec![false; pages], vec![false; pages]);
    let mut x = 0x9e37_79b9_7f4a_7c15u64;
    for step in 0..300 {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        let first = (x >> 8) as usize % pages;
        let n = (1 << (x >> 40 & 7)).min(pages - first);
        let (from, len) = (first * PAGE, n * PAGE);
        match x % 5 {
            0 | 1 => {
                r.install_guard(from, len).unwrap();
                guard[first..first + n].fill(true);
                zero[first..first + n].fill(true);
            }
            2 => {
                r.remove_guard(from, len).unwrap();
                guard[first..first + n].fill(false);
            }
            3 => {
                r.discard(from, len).unwrap();
                zero[first..first + n].fill(true);
            }
            _ => r.advise(from & !(UNIT - 1), UNIT, Advice::PageOut).unwrap(),
        }
        for page in (step % 37..pages).step_by(37) {
            let i = page * 512 + 5;
            if !guard[page] {
                let want = if zero[page] { 0 } else { value(i, 1) };
                assert_eq!(words(&r)[i].load(Relaxed), want, "page {page}, step {step}");
            }
        }
    }
    for (page, state) in r.pagemap().enumerate() {
        assert_eq!(
            state.categories.has(Categories::GUARD),
            guard[page],
            "{page}"
        );
    }
    let (Some(g), Some(open)) = (
        guard.iter().position(|g| *g),
        guard.iter().position(|g| !*g),
    ) else {
        panic!("all or none are guards");
    };
    let mut byte = [1];
    assert!(matches!(
        r.read_at(g * PAGE, &mut byte),
        Err(Error::Guard { .. })
    ));
    assert!(matches!(
        r.write_at(g * PAGE, &byte),
        Err(Error::Guard { .. })
    ));
    r.read_at(open * PAGE, &mut byte).unwrap();
    r.remove_guard(0, r.len()).unwrap();
    for (page, zero) in zero.into_iter().enumerate() {
        let i = page * 512 + 5;
        let want = if zero { 0 } else { value(i, 1) };
        assert_eq!(words(&r)[i].load(Relaxed), want, "page {page}, in the end");
    }
    no_harm(&pool);
}

fn guards_of_memory_that_is_pinned() {
    need_pages();
    let pool = builder(32).build().unwrap();
    let mut r = pool.region(8 * MIB).unwrap();
    fill(&r, 1);
    {
        let _pin = r.pin(0, PAGE, true).unwrap();
    }
    r.install_guard(MARKED * PAGE, PAGE).unwrap();
    page_out(&r);
    assert!(r.pin(MARKED * PAGE, 1, false).is_err());
    let pin = r.pin((MARKED + 1) * PAGE, PAGE, true).unwrap();
    let i = (MARKED + 1) * 512;
    assert_eq!(words(&r)[i].load(Relaxed), value(i, 1));
    // A system call finds its memory, and not the guard.
    let (_, writer) = std::io::pipe().unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&writer);
    let write = |page: usize| {
        let at = r.as_ptr() as usize + page * PAGE;
        // SAFETY: the kernel says if it cannot read there.
        unsafe { libc::write(fd, at as *const libc::c_void, 8) }
    };
    let _reader = std::thread::scope(|_| write(MARKED + 1));
    assert_eq!(write(MARKED), -1);
    drop(pin);
    for page in [MARKED - 1, MARKED + 1] {
        let state = at(&r, page).categories;
        assert!(state.has(Categories::PRESENT | Categories::FOREIGN));
    }
    assert!(at(&r, MARKED).categories.has(Categories::GUARD));
    assert_eq!(end_of_a_touch(&r), Some(libc::SIGSEGV));
    rest_is_there(&r);
    r.remove_guard(MARKED * PAGE, PAGE).unwrap();
    assert_eq!(words(&r)[MARKED * 512].load(Relaxed), 0);
    r.poison(MARKED * PAGE, PAGE).unwrap();
    assert_eq!(end_of_a_touch(&r), Some(libc::SIGBUS));
    r.discard(MARKED * PAGE, PAGE).unwrap();
    assert_eq!(words(&r)[MARKED * 512].load(Relaxed), 0);
    rest_is_there(&r);
}

/// A handler of the program: ends the process.
extern "C" fn leave_with(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel's.
    let (number, code) = unsafe { ((*info).si_signo, (*info).si_code) };
    let right = signal == libc::SIGSEGV && number == signal && code == 1;
    // SAFETY: ends the child.
    unsafe { libc::_exit(if right { 42 } else { 1 }) };
}

fn guards_are_sigsegv_to_a_handler() {
    need_pages();
    // SAFETY: a handler that only ends the process.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = leave_with as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut());
    }
    let pool = builder(32).build().unwrap();
    let mut r = pool.region(8 * MIB).unwrap();
    r.install_guard(MARKED * PAGE, PAGE).unwrap();
    let touch = || {
        in_child(|| words(&r)[MARKED * 512].store(1, Relaxed))
            .code()
            .unwrap_or(-1)
    };
    assert_eq!(touch(), 42, "a unit of zeros");
    words(&r)[(MARKED + 1) * 512].store(1, Relaxed);
    assert_eq!(touch(), 42, "base-mapped");
}

fn markers_are_refused() {
    both_modes(|mode| {
        let pool = builder(32).fault_mode(mode).build().unwrap();
        let mut r = pool.region(8 * MIB).unwrap();
        fill(&r, 1);
        type Mark = fn(&mut Region, usize, usize) -> Result<(), Error>;
        let refused = |r: &mut Region, from, len, mark: Mark| {
            let e = mark(r, from, len).unwrap_err();
            assert!(matches!(e, Error::Marker { .. }), "{e}");
        };
        refused(&mut r, 1, PAGE, Region::install_guard);
        if mode == FaultMode::Message {
            refused(&mut r, 0, PAGE, Region::install_guard);
            return check(&r, 1);
        }
        need_pages();
        pool.set("markers=off").unwrap();
        refused(&mut r, 0, PAGE, Region::install_guard);
        refused(&mut r, 0, PAGE, Region::poison);
        assert!(matches!(
            r.track_writes(Granularity::Units),
            Err(Error::Track(_))
        ));
        pool.set("markers=on").unwrap();
        let pin = r.pin(0, PAGE, true).unwrap();
        drop(pin);
        check(&r, 1);
        r.install_guard(0, PAGE).unwrap();
        refused(&mut r, 0, 2 * PAGE, Region::poison);
        r.poison(PAGE, PAGE).unwrap();
        r.remove_guard(0, UNIT).unwrap();
        assert_eq!(words(&r)[0].load(Relaxed), 0);
        assert!(at(&r, 1).categories.has(Categories::POISONED));
        // Unmapped, and mapped again.
        drop(r);
        let r = pool.region(8 * MIB).unwrap();
        fill(&r, 2);
        check(&r, 2);
    });
}
