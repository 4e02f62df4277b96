//! Buffers that pages are encrypted, or compressed, in on their way to swap, since a program's memory
//! is left as it is; and that compressed ones are read to and decoded in.
//!
//! There are a few of 2 MiB and some of 64 KiB, mapped once. A thread that finds none waits for one. A
//! thread that has one encrypts or compresses and writes, or reads, and waits for nothing but the
//! device. (One that writes compressed pages encrypted has one of each kind, in this order; kswapd may
//! read to a second one.)
//!
//! A large buffer is charged against the budget while it has memory: from its first use until none has
//! been used for a second ([`Buffers::rest`]). A thread that cannot do without has one charged beyond
//! the budget, and kswapd makes up for it. A thread that can ([`Buffers::take_charged`]) gets one where
//! the budget has room, or when kswapd had a frame to spare for it. (The small ones have memory from their first use on, 2 MiB at
//! most, beside the budget.)

use crate::pool::Member;
use hugeswap_policy::UNIT_BYTES;
use hugeswap_sys::{Result, futex, mm};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU32};

/// How many there are of a size, and what size.
const KINDS: [(u32, usize); 2] = [(32, 64 << 10), (4, UNIT_BYTES as usize)];
/// Of those, the large ones.
const LARGE: usize = 1;
/// After this time a waiter looks again.
const PATIENCE_NS: u64 = 1_000_000;
/// After so many looks without a use the large ones have no memory.
const REST: u32 = 5;
/// A pool with a budget of so many frames gives each process one large buffer, but for two (a thread
/// that has one may wait for another to read to).
const BUDGET_EACH: u64 = 32;
const LEAST: u64 = 2;
/// A process that holds so many frames gets a large buffer that it could do without, and one more for
/// each so many.
const FRAMES_FIRST: u64 = 8;
const FRAMES_EACH: u64 = 32;

/// Buffers of one size.
struct Kind {
    mapped: usize,
    at: usize,
    /// A bit for each that is taken, or is not there.
    taken: AtomicU32,
    waiting: AtomicU32,
}

impl Kind {
    /// A free one of those whose bits are set.
    fn try_take(&self, of: u32) -> Option<u32> {
        let mut taken = self.taken.load(Acquire);
        loop {
            let number = (taken | !of).trailing_ones();
            if number >= u32::BITS {
                return None;
            }
            let now = taken | 1 << number;
            match self.taken.compare_exchange(taken, now, AcqRel, Acquire) {
                Ok(_) => return Some(number),
                Err(is) => taken = is,
            }
        }
    }

    /// Until one is put back, maybe.
    #[cold]
    #[inline(never)]
    fn wait(&self, of: u32) {
        let taken = self.taken.load(Acquire);
        if taken & of == of {
            self.waiting.fetch_add(1, AcqRel);
            futex::wait(&self.taken, taken, Some(PATIENCE_NS), false);
            self.waiting.fetch_sub(1, AcqRel);
        }
    }

    fn put(&self, number: u32) {
        self.taken.fetch_and(!(1 << number), AcqRel);
        if self.waiting.load(Acquire) > 0 {
            futex::wake(&self.taken, 1, false);
        }
    }
}

/// The buffers of a process for encrypted, or for compressed, pages, of both sizes.
pub(crate) struct Buffers {
    kinds: [Kind; 2],
    /// A bit for each large one that is charged.
    charged: AtomicU32,
    /// A thread did without since none was charged.
    wanted: AtomicBool,
    /// Changes when a large one is taken.
    uses: AtomicU32,
    /// That, at the last look; and how many looks there were since it changed.
    seen: AtomicU32,
    rested: AtomicU32,
}

impl Buffers {
    pub fn new() -> Result<Buffers> {
        let small = map(KINDS[0])?;
        let large = map(KINDS[LARGE]).inspect_err(|_| unmap(KINDS[0], small.0))?;
        let kind = |(mapped, at), (n, _)| Kind {
            mapped,
            at,
            taken: AtomicU32::new(not_there(n)),
            waiting: AtomicU32::new(0),
        };
        Ok(Buffers {
            kinds: [kind(small, KINDS[0]), kind(large, KINDS[LARGE])],
            charged: AtomicU32::new(0),
            wanted: AtomicBool::new(false),
            uses: AtomicU32::new(0),
            seen: AtomicU32::new(0),
            rested: AtomicU32::new(0),
        })
    }

    /// A buffer for `len` bytes, 2 MiB at most; a large one is charged to `member`.
    pub fn take(&self, member: &Member, len: usize) -> Buffer<'_> {
        let which = if len > KINDS[0].1 { LARGE } else { 0 };
        let of = match which {
            LARGE => first(member.frames() / BUDGET_EACH),
            _ => u32::MAX,
        };
        let buffer = loop {
            match self.kinds[which].try_take(of) {
                Some(number) => break self.taken(which, number),
                None => self.kinds[which].wait(of),
            }
        };
        if which == LARGE && self.becomes_charged(buffer.number) {
            member.charge_buffer(member.me());
            member.kick();
        }
        buffer
    }

    /// A large buffer of those that are charged. If all are taken and `member` holds enough memory, one
    /// more is, where the budget has room; else kswapd is asked for a frame. `None`: none is charged.
    pub fn take_charged(&self, member: &Member) -> Option<Buffer<'_>> {
        let kind = &self.kinds[LARGE];
        loop {
            let charged = self.charged.load(Acquire);
            if let Some(number) = kind.try_take(charged) {
                // (Unless it has just given its memory back.)
                if self.charged.load(Acquire) >> number & 1 == 1 {
                    return Some(self.taken(LARGE, number));
                }
                kind.put(number);
                continue;
            }
            let most = match member.charged() {
                ..FRAMES_FIRST => 0,
                frames => (frames / FRAMES_EACH).clamp(1, KINDS[LARGE].0.into()),
            };
            if u64::from(charged.count_ones()) < most {
                if member.charge(member.me(), 1) {
                    if !self.supply(member) {
                        member.uncharge(member.me(), 1);
                    }
                    continue;
                }
                if !self.wanted.swap(true, AcqRel) {
                    member.kick();
                }
            }
            if charged == 0 {
                return None;
            }
            kind.wait(charged);
        }
    }

    fn taken(&self, which: usize, number: u32) -> Buffer<'_> {
        self.uses.fetch_add(which as u32, Relaxed);
        let kind = &self.kinds[which];
        let at = kind.at + number as usize * KINDS[which].1;
        Buffer { kind, number, at }
    }

    /// Was this large one not charged?
    fn becomes_charged(&self, number: u32) -> bool {
        let bit = 1 << number;
        self.charged.load(Relaxed) & bit == 0 && self.charged.fetch_or(bit, AcqRel) & bit == 0
    }

    /// Has a thread done without?
    pub fn is_one_wanted(&self) -> bool {
        self.wanted.load(Relaxed)
    }

    /// A frame that `member` is charged is for one more large buffer. False: all have one.
    pub fn supply(&self, member: &Member) -> bool {
        self.wanted.store(false, Relaxed);
        let there = (0..KINDS[LARGE].0).find(|&number| self.becomes_charged(number));
        if there.is_some() {
            member.note_buffer(member.me());
        }
        there.is_some()
    }

    /// kswapd, some times a second: large ones give their memory back after a second without a use.
    pub fn rest(&self, member: &Member) {
        let uses = self.uses.load(Relaxed);
        if self.charged.load(Relaxed) == 0 || self.seen.swap(uses, Relaxed) != uses {
            return self.rested.store(0, Relaxed);
        }
        if self.rested.fetch_add(1, Relaxed) < REST {
            return;
        }
        let kind = &self.kinds[LARGE];
        for number in 0..KINDS[LARGE].0 {
            let bit = 1 << number;
            if self.charged.load(Acquire) & bit == 0 || kind.try_take(bit).is_none() {
                continue;
            }
            discard(kind.at + number as usize * KINDS[LARGE].1, KINDS[LARGE].1);
            self.charged.fetch_and(!bit, AcqRel);
            member.uncharge_buffer(member.me());
            kind.put(number);
        }
    }

    /// In a forked child, where no thread has one, and which is charged for none.
    pub fn reset_in_child(&self) {
        for (kind, (n, _)) in self.kinds.iter().zip(KINDS) {
            kind.taken.store(not_there(n), Relaxed);
            kind.waiting.store(0, Relaxed);
        }
        self.charged.store(0, Relaxed);
        self.wanted.store(false, Relaxed);
        discard(self.kinds[LARGE].mapped, bytes(KINDS[LARGE]));
    }
}

/// The bits of the first `n` large ones.
fn first(n: u64) -> u32 {
    !not_there(n.clamp(LEAST, KINDS[LARGE].0.into()) as u32)
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

/// What was in a buffer, or in all of them, that nobody has is not in memory any more.
fn discard(at: usize, len: usize) {
    // SAFETY: large buffers, which no thread has taken but the caller.
    let _ = unsafe { mm::advise(at, len, libc::MADV_DONTNEED) };
}

fn unmap(of: (u32, usize), at: usize) {
    // SAFETY: mapped by `map`, and no buffer is taken any more.
    let _ = unsafe { mm::unmap(at, bytes(of)) };
}

impl Drop for Buffers {
    fn drop(&mut self) {
        for (kind, of) in self.kinds.iter().zip(KINDS) {
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
        self.kind.put(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::small_pool;

    /// This process in a pool with a budget of 64 MiB.
    fn member() -> Member {
        let pool = small_pool();
        let me = pool.join().unwrap();
        Member::new(pool, me)
    }

    #[test]
    fn no_buffer_is_had_twice_and_all_come_back() {
        let (buffers, member) = (Buffers::new().unwrap(), member());
        for len in [4096, UNIT_BYTES as usize] {
            let (_, size) = KINDS[usize::from(len > 4096)];
            // (The budget is a small one.)
            let n = if len > 4096 { LEAST as u32 } else { KINDS[0].0 };
            let all: Vec<_> = (0..n).map(|_| buffers.take(&member, len)).collect();
            let mut at: Vec<_> = all.iter().map(|b| b.at).collect();
            at.sort_unstable();
            assert!(at.windows(2).all(|w| w[0] + size == w[1]), "{at:x?}");
            std::thread::scope(|s| {
                let waiter = s.spawn(|| buffers.take(&member, len).at);
                drop(all);
                assert!(at.contains(&waiter.join().unwrap()));
            });
        }
        assert_eq!(buffers.kinds[0].taken.load(Relaxed), 0);
        assert_eq!(buffers.kinds[1].taken.load(Relaxed), !0xf);
    }

    #[test]
    fn large_buffers_are_charged_while_they_have_memory() {
        let (buffers, member) = (Buffers::new().unwrap(), member());
        let used = || (member.used_frames(), member.charged());
        let large = || buffers.take(&member, UNIT_BYTES as usize);
        drop(buffers.take(&member, 64 << 10));
        assert_eq!(used(), (0, 0));
        drop((large(), large()));
        drop(large());
        assert_eq!(used(), (2, 0));
        // Not those in use.
        let held = large();
        (0..=REST + 1).for_each(|_| buffers.rest(&member));
        assert_eq!(used(), (1, 0));
        drop(held);
        buffers.reset_in_child();
        drop(large());
        assert_eq!(member.used_frames(), 2, "a child is charged for its own");
    }

    #[test]
    fn a_thread_that_can_do_without_takes_no_more_than_the_budget() {
        let (buffers, member) = (Buffers::new().unwrap(), member());
        assert!(
            buffers.take_charged(&member).is_none(),
            "it holds too little"
        );
        assert!(!buffers.is_one_wanted());
        assert!(member.charge(member.me(), 31));
        drop(buffers.take_charged(&member).unwrap());
        assert_eq!(member.used_frames(), 32);
        (0..=REST + 1).for_each(|_| buffers.rest(&member));
        assert!(member.charge(member.me(), 1));
        assert!(buffers.take_charged(&member).is_none());
        assert!(buffers.is_one_wanted());
        // kswapd has one to spare.
        assert!(buffers.supply(&member));
        assert!(!buffers.is_one_wanted());
        drop(buffers.take_charged(&member).unwrap());
        assert_eq!((member.used_frames(), member.charged()), (32, 31));
    }
}
