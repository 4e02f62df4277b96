//! How a thread waits for memory: it wakes those that can make room, asks other processes, and
//! gives up when none has come for too long.
//!
//! The rules of the fault path hold.

use crate::memory::Memory;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::donor::{self, Holder};
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::recording;
use hugeswap_sys::{fs, futex, now_ns, process};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Patience with a swap that is only slow. (With one that is full: `vm.full_patience_ms`.)
pub(crate) const SLOW_PATIENCE_NS: u64 = 60_000_000_000;
/// A program that has waited for so long since swap is full says so, if it goes on waiting.
const SAY_NS: u64 = 1_000_000_000;
/// After a wait of this time other processes are asked for more than their surplus.
const HUNGER_NS: u64 = 50_000_000;
/// A round of reclaim: until something becomes available, or so long.
pub(crate) const ROUND_NS: u64 = 100_000_000;

/// How long a thread has waited for memory in vain.
struct Patience {
    /// The time in which swap was full is not counted: since this it is too slow.
    slow: u64,
    /// When swap was last seen to take writes.
    not_full: u64,
    looked: u64,
}

impl Patience {
    fn new(now: u64) -> Patience {
        Patience {
            slow: now,
            not_full: now,
            looked: now,
        }
    }

    /// How long swap has been full, as of the last look.
    fn full_for(&self) -> u64 {
        self.looked - self.not_full
    }

    /// Has it been too long? Full is a swap that was found so at every look for as long as
    /// `patience`: one write that fails also makes it look full for a moment.
    fn ended(&mut self, now: u64, full: bool, patience: u64) -> bool {
        if full {
            self.slow += now - self.looked;
        } else {
            self.not_full = now;
        }
        self.looked = now;
        match full {
            true => self.full_for() > patience,
            false => now - self.slow > SLOW_PATIENCE_NS,
        }
    }
}

impl Memory {
    /// Waits until `take` finds what it wants, waking threads that can make room; `None` if that
    /// took too long, or more than `rounds` rounds of reclaim. Not with the lock of a unit in
    /// memory held: it may be the one that has to go.
    pub(crate) fn wait_for_memory<T>(
        &self,
        rounds: Option<u32>,
        take: impl Fn() -> Option<T>,
    ) -> Option<T> {
        self.pool.count(Counter::AllocStall, 1);
        self.stalled.fetch_add(1, Relaxed);
        self.boost_marks(self.marks(self.have().1));
        let start = now_ns();
        let (mut patience, mut hungry_from) = (Patience::new(start), start);
        let mut round = (self.avail_seq.load(Acquire), now_ns());
        let mut left = rounds;
        let mut last = round.0;
        let got = loop {
            let seq = self.avail_seq.load(Acquire);
            if seq != last && !self.store.is_full() {
                // Others get what comes: it is a queue, not the end.
                last = seq;
                hungry_from = now_ns();
                patience = Patience::new(hungry_from);
            }
            if let Some(got) = take() {
                break Some(got);
            }
            if let Some(n) = &mut left
                && (seq != round.0 || now_ns() - round.1 > ROUND_NS)
            {
                round = (seq, now_ns());
                *n -= 1;
                if *n == 0 {
                    break None;
                }
            }
            self.ask_others(now_ns() - hungry_from > HUNGER_NS);
            self.pool.kick();
            futex::wait(&self.avail_seq, seq, Some(1_000_000), false);
            let most = self.pool.knob(Knob::FullPatience) * 1_000_000;
            let ended = patience.ended(now_ns(), self.store.is_full(), most);
            if most > 2 * SAY_NS && patience.full_for() > SAY_NS {
                self.say_that_swap_is_full();
            }
            if ended || self.stopping.load(Relaxed) {
                break None;
            }
        };
        self.stalled.fetch_sub(1, Relaxed);
        let ns = now_ns() - start;
        self.pool.count(Counter::AllocStallUsec, ns / 1000);
        self.note_wait(recording::Kind::Stalled, start, ns);
        if got.is_none() && rounds.is_none() {
            self.pool.header().exhausted.fetch_add(1, Relaxed);
        }
        got
    }

    /// Says so, once in a process.
    #[cold]
    #[inline(never)]
    fn say_that_swap_is_full(&self) {
        if self.said_full.swap(true, Relaxed) {
            return;
        }
        let (mut a, mut b) = ([0u8; 20], [0u8; 20]);
        let pid = process::pid() as u64;
        fs::complain(&[
            b"hugeswap: process ",
            fs::digits(pid, 10, &mut a),
            b" waits for memory since swap is full: add some, hugeswap ctl swap add DIR --pool ",
            fs::digits(pid, 10, &mut b),
            b"\n",
        ]);
    }

    /// Asks another process for frames: what it has beyond its share, all if it rests
    /// ([`hugeswap_policy::donor`]) or, if this one waits in vain for its own to become free
    /// (`hungry`: they are pinned, say), whatever it has.
    pub(crate) fn ask_others(&self, hungry: bool) {
        let me = self.pool.me();
        if self.pool.live().count() < 2 {
            return;
        }
        let now = now_ns();
        let others = || {
            let live = self.pool.live();
            live.filter(|(i, r)| *i != me && r.responsive.load(Relaxed) == 1)
        };
        // What is shared counts as one's that can take it out.
        let shared = self.pool.shared_frames();
        let keeper = others().map(|(i, _)| i).find(|&i| self.pool.has_shared(i));
        let holders = || {
            others().map(|(i, r)| {
                let own = r.charged.load(Relaxed);
                let frames = own.saturating_sub(r.foreign.load(Relaxed));
                let holder = Holder {
                    frames: frames + if keeper == Some(i) { shared } else { 0 },
                    owed: r.give_back.load(Relaxed),
                    rests: Holder::rests(r.faulted.load(Relaxed), now),
                };
                (r, holder)
            })
        };
        let mine = self.pool.record().charged.load(Relaxed);
        if let Some((r, n)) = donor::choose(self.pool.frames(), mine, hungry, holders) {
            r.give_back.store(n, Relaxed);
            r.kick.fetch_add(1, Release);
            futex::wake(&r.kick, 1, true);
        }
    }

    /// This process uses its memory at `now`.
    pub(crate) fn note_awake(&self, now: u64) {
        const EVERY_NS: u64 = donor::REST_NS / 16;
        let faulted = &self.pool.record().faulted;
        if now.saturating_sub(faulted.load(Relaxed)) > EVERY_NS {
            faulted.store(now, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const FULL: u64 = 2000 * MS;

    #[test]
    fn one_failing_write_is_not_a_full_swap() {
        let mut p = Patience::new(5);
        for ms in 1..30_000u64 {
            assert!(!p.ended(5 + ms * MS, ms % 5 == 0, FULL), "after {ms} ms");
        }
        let then = 5 + 29_999 * MS;
        assert!(!p.ended(then + FULL - 1, true, FULL));
        assert!(p.ended(then + FULL + 1, true, FULL));
        let mut p = Patience::new(5);
        assert!(!p.ended(5 + SLOW_PATIENCE_NS, false, FULL));
        assert!(p.ended(6 + SLOW_PATIENCE_NS, false, FULL));
    }

    /// With patience for an hour, what comes after half of it may still be slow.
    #[test]
    fn the_time_of_a_full_swap_is_its_own() {
        let hour = 3_600_000 * MS;
        let mut p = Patience::new(5);
        let half = (1..1_800_000u64).step_by(100).map(|ms| 5 + ms * MS);
        let last = half.clone().last().unwrap();
        half.for_each(|now| assert!(!p.ended(now, true, hour)));
        assert!(!p.ended(last + 100 * MS, false, hour));
        assert!(!p.ended(last + SLOW_PATIENCE_NS - 200 * MS, false, hour));
        assert!(p.ended(last + SLOW_PATIENCE_NS + 200 * MS, false, hour));
    }
}
