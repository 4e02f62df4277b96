//! The addresses that managed memory may be at: the window, its far parts (of a program that was
//! running before it was managed), and shared memory right behind the window.
//!
//! All of it may be asked anywhere, also in a signal handler.

use crate::mmap::TASK_END;
use crate::state;
use hugeswap_engine::{Engine, SHARED_BASE, SHARED_LEN};
use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// Start and length of the window's main range; length 0 until joined.
static WINDOW: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
/// Bytes from the window's start on that managed memory may be at: the window, and behind it shared
/// memory. 0 until joined.
static MANAGED: AtomicUsize = AtomicUsize::new(0);
/// Start and length of what holds all far parts; length 0: there are none.
static FAR: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Takes note of where an engine's memory is.
pub fn note(engine: &Engine) {
    let window = engine.window();
    let far = || engine.window_parts().filter(|p| *p != window);
    let start = far().map(|p| p.start).min().unwrap_or(0);
    let end = far().map(|p| p.end).max().unwrap_or(0);
    FAR[0].store(start, Relaxed);
    FAR[1].store(end - start, Relaxed);
    WINDOW[0].store(window.start, Relaxed);
    WINDOW[1].store(window.len(), Relaxed);
    let shared = if window.end == SHARED_BASE {
        SHARED_LEN
    } else {
        0
    };
    MANAGED.store(window.len() + shared, Relaxed);
}

/// There is no engine any more.
pub fn forget() {
    for len in [&MANAGED, &WINDOW[1], &FAR[1]] {
        len.store(0, Relaxed);
    }
}

/// Is `addr` a managed address?
#[inline]
pub fn in_window(addr: usize) -> bool {
    addr.wrapping_sub(WINDOW[0].load(Relaxed)) < WINDOW[1].load(Relaxed) || in_far_part(addr)
}

/// Is `addr` where managed memory may be, private or shared? Then a system call on it needs care.
#[inline]
pub fn managed(addr: usize) -> bool {
    addr.wrapping_sub(WINDOW[0].load(Relaxed)) < MANAGED.load(Relaxed) || in_far_part(addr)
}

/// Is `addr` in a part of the window that is not its main range?
#[inline]
pub fn in_far_part(addr: usize) -> bool {
    addr.wrapping_sub(FAR[0].load(Relaxed)) < FAR[1].load(Relaxed)
        && state::engine().is_some_and(|e| e.window_at(addr, 1).contains(&addr))
}

/// Is `addr` where shared memory may be?
#[inline]
pub fn in_shared(addr: usize) -> bool {
    managed(addr) && !in_window(addr)
}

/// The main range of the window, and what is behind it of shared memory; none until joined.
fn main_range() -> Range<usize> {
    let base = WINDOW[0].load(Relaxed);
    base..base + MANAGED.load(Relaxed)
}

/// The addresses that managed memory may be at that `[addr, addr+len)` meets first: a far part, or
/// the main range of the window with shared memory behind it. The latter, if it meets none.
pub fn managed_range(addr: usize, len: usize) -> Range<usize> {
    let main = main_range();
    if FAR[1].load(Relaxed) == 0 {
        return main;
    }
    match state::engine().map(|e| e.window_at(addr, len)) {
        Some(part) if part.start != main.start => part,
        _ => main,
    }
}

/// The addresses that shared memory may be at that is managed; none where the window does not end
/// where they begin.
pub fn shared_range() -> Range<usize> {
    let all = main_range();
    all.start + WINDOW[1].load(Relaxed)..all.end
}

/// Does `[addr, addr+len)` meet the addresses that managed memory may be at?
pub fn meets_managed(addr: usize, len: usize) -> bool {
    let all = managed_range(addr, len);
    addr < all.end && addr.saturating_add(len) > all.start && len > 0
}

/// Does `[addr, addr+len)` meet a part of the window, and addresses that are not of that part? (No, if
/// there are no such addresses: the kernel refuses all of that.)
pub fn crosses_border(addr: usize, len: usize) -> bool {
    let end = addr.saturating_add(len);
    let crosses = |part: Range<usize>| {
        addr < part.end && end > part.start && (addr < part.start || end > part.end)
    };
    end <= TASK_END && state::engine().is_some_and(|e| crosses(e.window_at(addr, len)))
}

/// `[addr, addr+len)` as ranges (address, length) of which none crosses the border of a part of the
/// window.
pub fn pieces(addr: usize, len: usize) -> impl Iterator<Item = (usize, usize)> {
    let end = addr.saturating_add(len);
    let borders = move |from: usize| {
        let engine = state::engine().into_iter();
        let parts = engine.flat_map(|e| e.window_parts());
        let borders = parts.flat_map(|p| [p.start, p.end]).chain([end]);
        borders.filter(|&b| b > from && b <= end).min()
    };
    let mut next = addr;
    std::iter::from_fn(move || {
        let (from, to) = (next, borders(next)?);
        next = to;
        Some((from, to - from))
    })
}

/// Does `[addr, addr+len)` meet more than one part of the window?
pub fn meets_several(addr: usize, len: usize) -> bool {
    FAR[1].load(Relaxed) > 0 && state::engine().is_some_and(|e| e.meets_several_parts(addr, len))
}
