//! brk(2) of a program that has a C library of its own.
//!
//! The break may grow by 1 MiB; then the program's allocator maps memory instead, which is managed.
//! (A static glibc takes its first thread-locals from the break.)
//!
//! Of a program that was running the memory below the break may be managed, too. What it gives up by
//! a smaller break is discarded, but stays mapped: the kernel's break is the highest that there was,
//! until [`end`].

use crate::addresses;
use hugeswap_sys::attach::BREAK_GROWTH;
use hugeswap_sys::maps::Text;
use hugeswap_sys::raw::syscall6;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

const PAGE: usize = 4096;

/// Where it may grow to. 0: as far as the kernel lets it.
static LIMIT: AtomicUsize = AtomicUsize::new(0);
/// The program's break, where the kernel's may be higher; 0: it is the kernel's.
static NOW: AtomicUsize = AtomicUsize::new(0);
/// It does not get smaller than this.
static LEAST: AtomicUsize = AtomicUsize::new(0);

/// From here on it is limited.
pub fn limit() {
    LIMIT.store(kernels(0) + BREAK_GROWTH, Relaxed);
}

/// Is it?
pub fn is_limited() -> bool {
    LIMIT.load(Relaxed) != 0
}

/// From here on it is limited, and the memory below it may be managed. Allocates.
pub fn begin() -> Result<(), String> {
    let text = Text::read().map_err(|e| format!("cannot read the mappings: {e}"))?;
    let now = kernels(0);
    let mut least = now.next_multiple_of(PAGE);
    let below: Vec<_> = text.mappings(0, least).filter(|m| m.is_anonymous).collect();
    for m in below.iter().rev() {
        if m.end == least {
            least = m.start;
        }
    }
    LEAST.store(least, Relaxed);
    NOW.store(now, Relaxed);
    limit();
    Ok(())
}

/// What is mapped above the program's break, which is the kernel's and holds nothing, is given back.
pub fn end() {
    let now = NOW.swap(0, Relaxed);
    if now != 0 {
        kernels(now);
    }
}

/// The program's own call: the break as it is then.
pub fn set(to: usize) -> usize {
    let now = NOW.load(Relaxed);
    let limit = LIMIT.load(Relaxed);
    if now == 0 {
        let allowed = limit == 0 || to <= limit;
        return kernels(if allowed { to } else { 0 });
    }
    if to < LEAST.load(Relaxed) || to > limit {
        return now;
    }
    let [kept, given] = [to, now].map(|at| at.next_multiple_of(PAGE));
    let done = if kept < given {
        let a = [kept, given - kept, libc::MADV_DONTNEED as usize, 0, 0, 0];
        // SAFETY: the program gives that memory up.
        unsafe { addresses::call(libc::SYS_madvise, a) == 0 }
    } else {
        to <= kernels(0) || kernels(to) == to
    };
    if !done {
        return now;
    }
    NOW.store(to, Relaxed);
    to
}

fn kernels(to: usize) -> usize {
    // SAFETY: the program's break.
    unsafe { syscall6(libc::SYS_brk as usize, [to, 0, 0, 0, 0, 0]) as usize }
}
