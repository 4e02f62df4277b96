//! Where frames come from: free ones, the rest of the budget, clean units nobody misses, and
//! other processes. Whoever runs low wakes kswapd; whoever finds none waits for it.
//!
//! Called by the fault path, whose rules hold here (see `fault`), by kswapd and by the I/O threads.

use crate::engine::Engine;
use crate::table::NO_FRAME;
use hugeswap_policy::UNIT_PAGES;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::unit::{CLEAN, COW, Kind, READAHEAD, WATCHED, WRITABLE, Word};
use hugeswap_policy::watermark::Watermarks;
use hugeswap_sys::{futex, now_ns};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// A frame to use: its place, and whether it is known to hold zeros.
#[derive(Clone, Copy)]
pub(crate) struct Frame {
    pub place: u32,
    pub zeroed: bool,
}

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

    fn is_low(&self) -> bool {
        self.now.load(Relaxed).max(self.before.load(Relaxed)) < FrameDemand::LOW
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

impl Engine {
    /// A frame without waiting: a free one, a fresh one within the budget, or that of the
    /// oldest watched clean unit.
    pub(crate) fn get_frame_nowait(&self) -> Option<Frame> {
        self.frame_demand.note();
        if let Some(place) = self.arena.take_free() {
            self.check_watermark();
            return Some(Frame {
                place,
                zeroed: false,
            });
        }
        if self.pool.charge(self.me(), 1) {
            match self.arena.take_fresh() {
                Some(place) => {
                    return Some(Frame {
                        place,
                        zeroed: true,
                    });
                }
                None => self.pool.uncharge(self.me(), 1),
            }
        }
        if self.take_free_pages_as_frame() {
            match self.arena.take_fresh() {
                Some(place) => {
                    return Some(Frame {
                        place,
                        zeroed: true,
                    });
                }
                None => self.put_pages(UNIT_PAGES),
            }
        }
        let place = self.take_clean()?;
        self.check_watermark();
        Some(Frame {
            place,
            zeroed: false,
        })
    }

    /// A frame, waiting for kswapd and for other processes if need be (a stall).
    pub(crate) fn get_frame(&self) -> Option<Frame> {
        if let Some(f) = self.get_frame_nowait() {
            return Some(f);
        }
        if self.gate.is_forker() {
            // The engine's threads are at rest.
            self.pool.charge_over(self.me());
            return self.arena.take_fresh().map(|place| Frame {
                place,
                zeroed: true,
            });
        }
        self.wait_for_memory(|| self.get_frame_nowait())
    }

    /// Waits until `take` finds what it wants, waking whoever can make room; `None` if that took too long. Not with
    /// the lock of a unit in memory held: it may be the one that has to go.
    pub(crate) fn wait_for_memory<T>(&self, take: impl Fn() -> Option<T>) -> Option<T> {
        self.count(Counter::AllocStall, 1);
        self.stalled.fetch_add(1, Relaxed);
        let mut patience = Patience::new(now_ns());
        let mut last = self.avail_seq.load(Acquire);
        let frame = loop {
            let seq = self.avail_seq.load(Acquire);
            if seq != last && !self.swap_full.load(Relaxed) {
                // Others get what comes: it is a queue, not the end.
                last = seq;
                patience = Patience::new(now_ns());
            }
            if let Some(f) = take() {
                break Some(f);
            }
            self.ask_others(now_ns() - patience.start > HUNGER_NS);
            self.kick();
            futex::wait(&self.avail_seq, seq, Some(1_000_000), false);
            let ended = patience.ended(now_ns(), self.swap_full.load(Relaxed));
            if ended || self.stopping.load(Relaxed) {
                break None;
            }
        };
        self.stalled.fetch_sub(1, Relaxed);
        if frame.is_none() {
            self.pool.header().exhausted.fetch_add(1, Relaxed);
        }
        frame
    }

    /// Takes the frame of the oldest clean unit that nobody touched since it was watched.
    pub(crate) fn take_clean(&self) -> Option<u32> {
        while let Some(unit) = self.clean.pop() {
            let takeable = |w: Word| {
                w.evictable()
                    && (w.kind() == Kind::Cached || (w.has(WATCHED) && w.has(CLEAN) && !w.has(COW)))
            };
            let Some(w) = self.table.try_lock_if(unit, takeable) else {
                continue;
            };
            // If it failed, the unit may have been dropped: then there is room for a fresh frame.
            return self.take_locked(unit, w);
        }
        None
    }

    /// Takes the frame of a locked, clean, evictable unit and unlocks it as swapped.
    pub(crate) fn take_locked(&self, unit: u32, w: Word) -> Option<u32> {
        let swapped = w
            .with_kind(Kind::Swapped)
            .clear(WATCHED | CLEAN | READAHEAD | WRITABLE);
        if w.kind() == Kind::Cached {
            let place = self.table.frame(unit);
            self.table.set_frame(unit, NO_FRAME);
            self.note_whole_evicted(unit);
            self.table.unlock(unit, swapped);
            if !w.has(READAHEAD) {
                self.watched.fetch_sub(1, Relaxed);
            }
            if w.has(READAHEAD)
                && let Some(mut s) = self.streams.try_lock()
            {
                s.on_waste(u64::from(unit));
            }
            return Some(place);
        }
        let Some(place) = self.arena.take_empty() else {
            self.table.unlock(unit, w);
            return None;
        };
        match self.mover().map_out(
            self.table.addr(unit),
            self.arena.addr(place),
            w.has(WATCHED),
        ) {
            Ok(()) => {
                if w.has(WATCHED) {
                    self.watched.fetch_sub(1, Relaxed);
                }
                self.table.set_frame(unit, NO_FRAME);
                self.note_whole_evicted(unit);
                self.table.unlock(unit, swapped);
                self.count(Counter::PgReclaim, 1);
                Some(place)
            }
            Err(_) => {
                self.arena.put_empty(place);
                // The limit on mappings: moving needs some, dropping frees some.
                self.count(Counter::MapLimit, 1);
                self.drop_clean(unit, w);
                None
            }
        }
    }

    /// Frames that a fault could have at once, and the marks they are held against.
    pub(crate) fn available(&self) -> (u64, Watermarks) {
        let (used, live) = self.pool.live().fold((0, 0u64), |(u, n), (_, r)| {
            (u + r.charged.load(Relaxed), n + 1)
        });
        let frames = self.pool.frames();
        let own = self.arena.free_frames()
            + self.base.free_frames()
            + self.watched.load(Relaxed).max(0) as u64;
        let share = (frames / live.max(1)).max(self.record().charged.load(Relaxed));
        let marks = if self.frame_demand.is_low() {
            Watermarks::for_pages(share)
        } else {
            Watermarks::for_budget(share)
        };
        (own + frames.saturating_sub(used), marks)
    }

    pub(crate) fn check_watermark(&self) {
        let (available, marks) = self.available();
        if available < marks.low {
            self.kick_if_idle();
        }
    }

    /// Asks the process that holds the most for frames: what it has beyond its share or, if this one waits
    /// in vain for its own to become free (`hungry`: they are pinned, say), whatever it has.
    fn ask_others(&self, hungry: bool) {
        let me = self.me();
        let live = self.pool.live().count() as u64;
        if live < 2 {
            return;
        }
        let share = self.pool.frames() / live;
        let mine = self.record().charged.load(Relaxed);
        if mine >= share && !hungry {
            return;
        }
        let richest = self
            .pool
            .live()
            .filter(|(i, r)| *i != me && r.responsive.load(Relaxed) == 1)
            .max_by_key(|(_, r)| r.charged.load(Relaxed));
        if let Some((_, r)) = richest
            && (hungry || r.charged.load(Relaxed) > share)
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
