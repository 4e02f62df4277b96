//! Stacks of our own for the fault path. A program's thread may have an alternate stack of a few
//! KiB, of which the kernel's signal frame takes most.
//!
//! There is a fixed number, shared by all threads of the process. A fault never waits for one: if
//! all are taken, which takes as many faults at the same instant, it stays where it is.

use hugeswap_sys::{Result, mm, stack};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, AtomicUsize};

/// As many as there are bits in a word.
const STACKS: usize = 64;
/// Of one: many times what the fault path uses. So one guard, below all of them, will do: one each
/// would take mappings, of which a process has a limited number.
const SIZE: usize = 64 << 10;
const GUARD: usize = 4096;
const LEN: usize = GUARD + STACKS * SIZE;

/// First address of the stacks; 0 before [`prepare`].
static BASE: AtomicUsize = AtomicUsize::new(0);
/// A bit for each stack in use.
static USED: AtomicU64 = AtomicU64::new(0);

/// Maps the stacks, once a process; they stay.
pub(crate) fn prepare() -> Result<()> {
    if BASE.load(Acquire) != 0 {
        return Ok(());
    }
    let base = mm::map_own(LEN, mm::PROT_RW)?;
    // SAFETY: within the mapping just made. Without a guard an overflow would only be harder to
    // find.
    let _ = unsafe { mm::protect(base, GUARD, mm::PROT_NONE) };
    if BASE.compare_exchange(0, base, AcqRel, Relaxed).is_err() {
        // SAFETY: another thread was first; this one is not used.
        let _ = unsafe { mm::unmap(base, LEN) };
    }
    Ok(())
}

/// In a forked child, before there are other threads: those that used stacks are not here.
pub(crate) fn reset_in_child() {
    USED.store(0, Release);
}

fn take() -> Option<usize> {
    let mut used = USED.load(Relaxed);
    while BASE.load(Acquire) != 0 && used != u64::MAX {
        let free = used.trailing_ones() as usize;
        match USED.compare_exchange_weak(used, used | 1 << free, AcqRel, Relaxed) {
            Ok(_) => return Some(free),
            Err(now) => used = now,
        }
    }
    None
}

/// Does `work` on a stack of ours, in a thread that no signal interrupts (a handler that blocks all
/// of them).
pub(crate) fn call(mut work: impl FnMut()) {
    let Some(n) = take() else {
        return stack::call_here(&mut work);
    };
    let top = BASE.load(Acquire) + GUARD + (n + 1) * SIZE;
    // SAFETY: `top` is the end of a mapped stack that is this thread's until the bit is cleared, and
    // that [`SIZE`] makes large enough; no handler begins.
    unsafe { stack::call(top, &mut work) };
    let used = USED.fetch_and(!(1 << n), Release);
    debug_assert!(used & 1 << n != 0, "it was somebody else's as well");
}

const _: () = assert!((SIZE + GUARD).is_multiple_of(16));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_run_elsewhere_and_come_back() {
        prepare().unwrap();
        let base = BASE.load(Acquire);
        let threads: Vec<_> = (0..8u64)
            .map(|t| {
                std::thread::spawn(move || {
                    for i in 0..1000 {
                        let (mut at, mut sum) = (0, 0);
                        call(|| {
                            let local = std::hint::black_box([i + t; 64]);
                            (at, sum) = (local.as_ptr().addr(), local.iter().sum());
                        });
                        assert_eq!(sum, (i + t) * 64);
                        let end = base + LEN;
                        assert!((base..end).contains(&at));
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(USED.load(Acquire), 0);
    }
}
