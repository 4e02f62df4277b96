//! Buffers that pages are encrypted, or compressed, in on their way to swap, since a program's memory
//! is left as it is; and that compressed ones are read to and decoded in.
//!
//! There are a few of 2 MiB and some of 64 KiB, mapped once, with memory from their first use on
//! (outside the budget: 10 MiB at most). A thread that finds none waits for one. A thread that has
//! one encrypts or compresses and writes, or reads, and waits for nothing but the device. (One that
//! writes compressed pages encrypted has one of each kind, in this order; kswapd may read to a second
//! one.)

use hugeswap_policy::UNIT_BYTES;
use hugeswap_sys::{Result, futex, mm};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

/// How many there are of a size, and what size.
const KINDS: [(u32, usize); 2] = [(32, 64 << 10), (4, UNIT_BYTES as usize)];
/// After this time a waiter looks again.
const PATIENCE_NS: u64 = 1_000_000;

/// Buffers of one size.
struct Kind {
    mapped: usize,
    at: usize,
    /// A bit for each that is taken, or is not there.
    taken: AtomicU32,
    waiting: AtomicU32,
}

/// The buffers of a process for encrypted, or for compressed, pages, of both sizes.
pub(crate) struct Buffers([Kind; 2]);

impl Buffers {
    pub fn new() -> Result<Buffers> {
        let small = map(KINDS[0])?;
        let large = map(KINDS[1]).inspect_err(|_| unmap(KINDS[0], small.0))?;
        let kind = |(mapped, at), (n, _)| Kind {
            mapped,
            at,
            taken: AtomicU32::new(not_there(n)),
            waiting: AtomicU32::new(0),
        };
        Ok(Buffers([kind(small, KINDS[0]), kind(large, KINDS[1])]))
    }

    /// A buffer for `len` bytes, 2 MiB at most.
    pub fn take(&self, len: usize) -> Buffer<'_> {
        let which = usize::from(len > KINDS[0].1);
        let kind = &self.0[which];
        loop {
            let taken = kind.taken.load(Acquire);
            let number = taken.trailing_ones();
            if number < 32 {
                let now = taken | 1 << number;
                if kind
                    .taken
                    .compare_exchange(taken, now, AcqRel, Relaxed)
                    .is_ok()
                {
                    return Buffer {
                        kind,
                        number,
                        at: kind.at + number as usize * KINDS[which].1,
                    };
                }
                continue;
            }
            kind.waiting.fetch_add(1, AcqRel);
            futex::wait(&kind.taken, taken, Some(PATIENCE_NS), false);
            kind.waiting.fetch_sub(1, AcqRel);
        }
    }

    /// In a forked child, where no thread has one.
    pub fn reset_in_child(&self) {
        for (kind, (n, _)) in self.0.iter().zip(KINDS) {
            kind.taken.store(not_there(n), Relaxed);
            kind.waiting.store(0, Relaxed);
        }
    }
}

fn not_there(n: u32) -> u32 {
    u32::MAX.checked_shl(n).unwrap_or(0)
}

/// The mapping, and where in it the first buffer is: large ones are to be huge pages, which a
/// device takes by one request.
fn map((n, len): (u32, usize)) -> Result<(usize, usize)> {
    let at = mm::map_own(bytes((n, len)), mm::PROT_RW)?;
    // SAFETY: advice that discards nothing. Where it is not taken the buffers are small pages.
    let _ = unsafe { mm::advise(at, bytes((n, len)), libc::MADV_HUGEPAGE) };
    Ok((at, at.next_multiple_of(len)))
}

fn bytes((n, len): (u32, usize)) -> usize {
    (n as usize + 1) * len
}

fn unmap(of: (u32, usize), at: usize) {
    // SAFETY: mapped by `map`, and no buffer is taken any more.
    let _ = unsafe { mm::unmap(at, bytes(of)) };
}

impl Drop for Buffers {
    fn drop(&mut self) {
        for (kind, of) in self.0.iter().zip(KINDS) {
            unmap(of, kind.mapped);
        }
    }
}

/// A buffer taken, until it is dropped.
pub(crate) struct Buffer<'a> {
    kind: &'a Kind,
    number: u32,
    /// Where it is.
    pub at: usize,
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        self.kind.taken.fetch_and(!(1 << self.number), AcqRel);
        if self.kind.waiting.load(Acquire) > 0 {
            futex::wake(&self.kind.taken, 1, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_buffer_is_had_twice_and_all_come_back() {
        let buffers = Buffers::new().unwrap();
        for len in [4096, UNIT_BYTES as usize] {
            let (n, size) = KINDS[usize::from(len > 4096)];
            let all: Vec<_> = (0..n).map(|_| buffers.take(len)).collect();
            let mut at: Vec<_> = all.iter().map(|b| b.at).collect();
            at.sort_unstable();
            assert!(at.windows(2).all(|w| w[0] + size == w[1]), "{at:x?}");
            std::thread::scope(|s| {
                let waiter = s.spawn(|| buffers.take(len).at);
                drop(all);
                assert!(at.contains(&waiter.join().unwrap()));
            });
        }
        assert_eq!(buffers.0[0].taken.load(Relaxed), 0);
        assert_eq!(buffers.0[1].taken.load(Relaxed), !0xf);
    }
}
