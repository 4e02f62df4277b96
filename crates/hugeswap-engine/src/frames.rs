//! Where frames come from: free ones, the rest of the budget, clean units nobody misses, and
//! other processes. Whoever runs low wakes kswapd; whoever finds none waits for it.
//!
//! Called by the fault path, whose rules hold here (see `fault`), by kswapd and by the I/O threads.

use crate::call::Done;
use crate::engine::Engine;
use crate::huge::{Huge, Wait};
use crate::table::{Locked, NO_FRAME};
use hugeswap_policy::counters::Counter;
use hugeswap_policy::frames::{self, Credits, Frame, Sources};
use hugeswap_policy::gfp::Gfp;
use hugeswap_policy::numa;
use hugeswap_policy::unit::{CLEAN, COW, Kind, LOCKED, READAHEAD, WATCHED, WRITABLE, Word};
use hugeswap_policy::watermark::Watermarks;
use hugeswap_policy::{PAGE_BYTES, UNIT_BYTES, UNIT_PAGES};
use hugeswap_sys::{futex, now_ns};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// How many whole frames are asked for, from one of kswapd's ticks to the next.
#[derive(Default)]
pub(crate) struct FrameDemand {
    now: AtomicU32,
    before: AtomicU32,
}

impl FrameDemand {
    /// Fewer than this many are next to none.
    const LOW: u32 = 8;

    fn note(&self) {
        self.now.fetch_add(1, Relaxed);
    }

    pub fn is_low(&self) -> bool {
        self.now.load(Relaxed).max(self.before.load(Relaxed)) < FrameDemand::LOW
    }

    /// As many as there are where huge pages are used, from now on.
    pub fn raise(&self) {
        self.now.fetch_max(FrameDemand::LOW, Relaxed);
    }

    /// A tick has passed.
    pub fn tick(&self) {
        self.before.store(self.now.swap(0, Relaxed), Relaxed);
    }
}

/// Patience with a swap that is full, and with one that is only slow.
const FULL_PATIENCE_NS: u64 = 2_000_000_000;
pub(crate) const SLOW_PATIENCE_NS: u64 = 60_000_000_000;
/// After so long a wait others are asked for more than their surplus.
const HUNGER_NS: u64 = 50_000_000;
/// A round of reclaim: until something becomes available, or so long.
pub(crate) const ROUND_NS: u64 = 100_000_000;

/// How long a thread has waited for memory in vain.
struct Patience {
    start: u64,
    /// When swap was last seen to take writes.
    not_full: u64,
}

impl Patience {
    fn new(now: u64) -> Patience {
        Patience {
            start: now,
            not_full: now,
        }
    }

    /// Has it been too long? Full is a swap that was found so at every look for as long: one write that fails also makes
    /// it look full for a moment.
    fn ended(&mut self, now: u64, full: bool) -> bool {
        if !full {
            self.not_full = now;
        }
        now - self.start > SLOW_PATIENCE_NS || now - self.not_full > FULL_PATIENCE_NS
    }
}

impl Sources for Engine {
    type Word = AtomicU64;

    fn take_free(&self, nodes: &[u8]) -> Option<u32> {
        self.arena.take_free(nodes)
    }

    fn take_fresh(&self) -> Option<u32> {
        self.arena.take_fresh()
    }

    fn charge(&self) -> bool {
        self.pool.charge(self.pool.me(), 1)
    }

    fn uncharge(&self) {
        self.pool.uncharge(self.pool.me(), 1);
    }

    /// Of a unit that nobody touched since it was watched.
    fn take_clean(&self, nodes: &[u8]) -> Option<u32> {
        while let Some(unit) = self.clean.pop(nodes) {
            let takeable = |w: Word| {
                w.evictable()
                    && (w.kind() == Kind::Cached || (w.has(WATCHED) && w.has(CLEAN) && !w.has(COW)))
            };
            let Some(w) = self.table.try_lock_if(unit, takeable) else {
                let w = self.table.load(unit);
                if w.has(LOCKED) && matches!(w.kind(), Kind::Present | Kind::Cached) {
                    // Who has it locked may leave it as it is: the lists bring it back here.
                    self.note_resident(unit);
                }
                continue;
            };
            // If it failed, the unit may have been dropped: then there is room for a fresh frame.
            return self.take_locked(w);
        }
        None
    }

    fn discard(&self, place: u32) {
        self.arena.discard(place);
    }

    fn credits(&self) -> &Credits<AtomicU64> {
        self.base.credits()
    }

    fn shed(&self, left: u64) {
        self.base.pieces.shed(left as i64);
    }
}

impl Engine {
    /// A frame without waiting: a free one, a fresh one within the budget, or that of the
    /// oldest watched clean unit.
    pub(crate) fn get_frame_nowait(&self) -> Option<Frame> {
        self.frame_of(Gfp::USER, None)
    }

    /// The same of the nodes that `gfp` allows, `wanted` (else the caller's) first.
    pub(crate) fn frame_of(&self, gfp: Gfp, wanted: Option<u8>) -> Option<Frame> {
        self.frame_demand.note();
        let numa = &self.arena.numa;
        let here = numa.here().node;
        let wanted = wanted.unwrap_or(here);
        let nodes = gfp.nodes(numa.near(wanted));
        let frame = frames::take_frame(self, nodes, self.has_single_pages())?;
        self.count_node(wanted, numa.of_place(frame.place), here, 1);
        self.took_frame();
        Some(frame)
    }

    /// `n` frames came from node `got`, wanted on `wanted` by somebody on `here`.
    pub(crate) fn count_node(&self, wanted: u8, got: u8, here: u8, n: u64) {
        if self.arena.numa.nodes() > 1 {
            numa::events(wanted, got, here).for_each(|c| self.pool.count(c, n));
        }
    }

    /// The nodes in the order in which the caller does without their frames.
    pub(crate) fn far_nodes(&self) -> &[u8] {
        self.arena.numa.far(self.arena.numa.here().node)
    }

    /// A frame, waiting for kswapd and for other processes if need be (a stall): for what comes whole or not at all.
    pub(crate) fn get_frame(&self) -> Option<Frame> {
        if let Some(f) = self.get_frame_nowait() {
            return Some(f);
        }
        match self.wait_for_huge(Wait::FOR_A_FRAME) {
            Huge::Frame(f) => Some(f),
            _ => None,
        }
    }

    /// Waits until `take` finds what it wants, waking whoever can make room; `None` if that took too long, or more than `rounds`
    /// rounds of reclaim. Not with the lock of a unit in memory held: it may be the one that has to go.
    pub(crate) fn wait_for_memory<T>(
        &self,
        rounds: Option<u32>,
        take: impl Fn() -> Option<T>,
    ) -> Option<T> {
        self.pool.count(Counter::AllocStall, 1);
        self.stalled.fetch_add(1, Relaxed);
        self.boost_marks(self.marks(self.have().1));
        let start = now_ns();
        let mut patience = Patience::new(start);
        let mut round = (self.avail_seq.load(Acquire), now_ns());
        let mut left = rounds;
        let mut last = round.0;
        let got = loop {
            let seq = self.avail_seq.load(Acquire);
            if seq != last && !self.store.is_full() {
                // Others get what comes: it is a queue, not the end.
                last = seq;
                patience = Patience::new(now_ns());
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
            self.ask_others(now_ns() - patience.start > HUNGER_NS);
            self.pool.kick();
            futex::wait(&self.avail_seq, seq, Some(1_000_000), false);
            let ended = patience.ended(now_ns(), self.store.is_full());
            if ended || self.stopping.load(Relaxed) {
                break None;
            }
        };
        self.stalled.fetch_sub(1, Relaxed);
        self.pool
            .count(Counter::AllocStallUsec, (now_ns() - start) / 1000);
        if got.is_none() && rounds.is_none() {
            self.pool.header().exhausted.fetch_add(1, Relaxed);
        }
        got
    }

    /// Takes the frame of a locked, clean, evictable unit and unlocks it as swapped.
    pub(crate) fn take_locked(&self, w: Locked<'_>) -> Option<u32> {
        let (unit, was) = (w.unit(), *w);
        let swapped = |w: Word| {
            w.with_kind(Kind::Swapped)
                .clear(WATCHED | CLEAN | READAHEAD | WRITABLE)
        };
        if was.kind() == Kind::Cached {
            let place = w.frame();
            w.set_frame(NO_FRAME);
            self.note_whole_evicted(unit);
            w.settle_as(swapped);
            if !was.has(READAHEAD) {
                self.watched.fetch_sub(1, Relaxed);
            }
            if was.has(READAHEAD)
                && let Some(mut s) = self.streams.try_lock()
            {
                s.on_waste(u64::from(unit));
            }
            return Some(place);
        }
        let Some(place) = self.arena.take_empty() else {
            w.settle();
            return None;
        };
        match self.move_out(unit, place, was.has(WATCHED)) {
            Ok(()) => {
                if was.has(WATCHED) {
                    self.watched.fetch_sub(1, Relaxed);
                }
                w.set_frame(NO_FRAME);
                self.note_whole_evicted(unit);
                w.settle_as(swapped);
                self.pool.count(Counter::PgReclaim, 1);
                Some(place)
            }
            Err(_) => {
                self.arena.put_empty(place);
                // The limit on mappings: moving needs some, dropping frees some.
                self.pool.count(Counter::MapLimit, 1);
                self.drop_clean(w);
                None
            }
        }
    }

    /// Moves the frame at `place` to `unit`: see [`Mover::map_in`](crate::mover::Mover::map_in).
    pub(crate) fn move_in(&self, place: u32, unit: u32, writable: bool) -> Done {
        let (from, to) = (self.arena.addr(place), self.table.addr(unit));
        self.mover().map_in(from, to, writable)?;
        let numa = &self.arena.numa;
        numa.set_unit(unit, numa.of_place(place));
        Ok(())
    }

    /// Moves the memory of `unit` to an empty place: see [`Mover::map_out`](crate::mover::Mover::map_out).
    pub(crate) fn move_out(&self, unit: u32, place: u32, watched: bool) -> Done {
        let (from, to) = (self.table.addr(unit), self.arena.addr(place));
        self.mover().map_out(from, to, watched)?;
        let numa = &self.arena.numa;
        numa.set_place(place, numa.of_unit(unit));
        Ok(())
    }

    /// The node that the memory at `addr` is on, as far as that is known: by the machine's number, or the pretended one. None: it is not in a huge
    /// page, or not in memory.
    pub fn node_of(&self, addr: usize) -> Option<usize> {
        let unit = self.table.unit_of(addr)?;
        let there = matches!(self.table.load(unit).kind(), Kind::Present | Kind::Cached);
        let numa = &self.arena.numa;
        there.then(|| numa.number(numa.of_unit(unit)))
    }

    /// Frames that a fault could have at once, and the share of the budget that the marks go by.
    pub(crate) fn have(&self) -> (u64, u64) {
        let (used, live) = self.pool.live().fold((0, 0u64), |(u, n), (_, r)| {
            (u + r.charged.load(Relaxed), n + 1)
        });
        let used = used + self.pool.shared_frames();
        let frames = self.pool.frames();
        let own = self.arena.free_frames()
            + self.base.credits().frames()
            + self.watched.load(Relaxed).max(0) as u64;
        let share = (frames / live.max(1)).max(self.pool.record().charged.load(Relaxed));
        (own + frames.saturating_sub(used), share)
    }

    /// Memory that nobody uses, bytes: the rest of the budget, and what of this process's is charged and free (not what is
    /// watched). All of it, and what of it is in whole frames.
    pub fn free_bytes(&self) -> (u64, u64) {
        let rest = self.pool.frames().saturating_sub(self.pool.used_frames());
        let frames = rest + self.arena.free_frames() + self.base.credits().frames();
        let pages = self.base.credits().pages() % UNIT_PAGES;
        let in_frames = frames * UNIT_BYTES;
        (in_frames + pages * PAGE_BYTES, in_frames)
    }

    /// What a fault could have, and the marks it is held against.
    pub(crate) fn available(&self) -> (u64, Watermarks) {
        let (available, share) = self.have();
        (available, self.raised_marks(share))
    }

    /// Something was taken.
    pub(crate) fn check_watermark(&self) {
        let (available, marks) = self.available();
        if available < marks.low {
            self.kick_if_idle();
        }
    }

    /// The same of a frame's worth.
    pub(crate) fn took_frame(&self) {
        let (available, share) = self.have();
        if available < self.raised_marks(share).low {
            self.kick_if_idle();
            self.note_taken(available, self.marks(share));
        }
    }

    /// Asks the process that holds the most for frames: what it has beyond its share or, if this one waits
    /// in vain for its own to become free (`hungry`: they are pinned, say), whatever it has.
    pub(crate) fn ask_others(&self, hungry: bool) {
        let me = self.pool.me();
        let live = self.pool.live().count() as u64;
        if live < 2 {
            return;
        }
        let share = self.pool.frames() / live;
        let mine = self.pool.record().charged.load(Relaxed);
        if mine >= share && !hungry {
            return;
        }
        let others = || {
            let live = self.pool.live();
            live.filter(|(i, r)| *i != me && r.responsive.load(Relaxed) == 1)
        };
        // What is shared counts as one's that can take it out.
        let shared = self.pool.shared_frames();
        let keeper = others().map(|(i, _)| i).find(|&i| self.pool.has_shared(i));
        let holds = |i: usize, charged: u64| match keeper {
            Some(k) if k == i => charged + shared,
            _ => charged,
        };
        let richest = others()
            .map(|(i, r)| (holds(i, r.charged.load(Relaxed)), r))
            .max_by_key(|(n, _)| *n);
        if let Some((held, r)) = richest
            && (hungry || held > share)
            && r.give_back.load(Relaxed) == 0
        {
            r.give_back
                .store(share.saturating_sub(mine).clamp(1, 16), Relaxed);
            r.kick.fetch_add(1, std::sync::atomic::Ordering::Release);
            futex::wake(&r.kick, 1, true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failing_write_is_not_a_full_swap() {
        let mut p = Patience::new(5);
        for ms in 1..30_000u64 {
            assert!(!p.ended(5 + ms * 1_000_000, ms % 5 == 0), "after {ms} ms");
        }
        let then = 5 + 29_999_000_000;
        assert!(!p.ended(then + FULL_PATIENCE_NS - 1, true));
        assert!(p.ended(then + FULL_PATIENCE_NS + 1, true));
        let mut p = Patience::new(5);
        assert!(!p.ended(5 + SLOW_PATIENCE_NS, false));
        assert!(p.ended(6 + SLOW_PATIENCE_NS, false));
    }
}
