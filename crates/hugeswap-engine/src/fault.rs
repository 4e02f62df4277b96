//! The fault path: one piece of code for both fault modes, called from the signal handler, the
//! userfaultfd threads, and whoever brings memory in on purpose (pins).
//!
//! Its rules: no allocation, no foreign lock, no touch of managed memory (the units it moves
//! are in the arena or locked), no panic, no formatting, errno untouched, bounded stack. Everything it
//! calls obeys them too.

use crate::checksum;
use crate::engine::{Engine, Job, LruEvent, REFERENCED, UNIT, forked_unseen};
use crate::pool::record_fault;
use crate::table::{NO_FRAME, QUEUED};
use hugeswap_policy::counters::{Counter, FaultClass};
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::unit::{
    CLEAN, COW, Kind, LOCKED, MAY_WRITE, READAHEAD, UNCHARGED, WAITERS, WATCHED, WRITABLE, Word,
};
use hugeswap_policy::{UNIT_PAGES, watermark::Watermarks};
use hugeswap_sys::{Errno, fs, futex, mm, now_ns};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// What came of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The access can be tried again.
    Retry,
    /// The access is the program's own error.
    NotOurs,
    /// The bytes are lost.
    Poisoned,
    /// Neither memory nor swap is left.
    NoMemory,
}

/// A frame to use: its place, and whether it is known to hold zeros.
#[derive(Clone, Copy)]
pub(crate) struct Frame {
    pub place: u32,
    pub zeroed: bool,
}

/// Patience with a swap that is full, and with one that is only slow.
const FULL_PATIENCE_NS: u64 = 2_000_000_000;
const SLOW_PATIENCE_NS: u64 = 60_000_000_000;
/// After so long a wait others are asked for more than their surplus.
const HUNGER_NS: u64 = 50_000_000;

/// Faults that looked like the program's error once, by thread: the second time they are believed.
static DOUBTS: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

/// A fault that our state cannot explain may be one that another thread has just resolved: let
/// it be tried once more before it is called an error.
fn seen_before(addr: usize) -> bool {
    let tid = hugeswap_sys::process::tid() as u64;
    let mark = (addr as u64) ^ (tid << 48);
    DOUBTS[(tid % 64) as usize].swap(mark, Relaxed) == mark
}

/// In a forked child: thread ids mean others now.
pub(crate) fn forget_doubts() {
    DOUBTS.iter().for_each(|d| d.store(0, Relaxed));
}

impl Engine {
    /// Resolves a fault at `addr`. Called without locks held.
    pub(crate) fn fault(&self, addr: usize, write: bool) -> Outcome {
        let Some(unit) = self.table.unit_of(addr) else {
            return Outcome::NotOurs;
        };
        if forked_unseen(self.fork_mark) {
            fs::complain(&[
                b"hugeswap: this process was forked by a raw system call; its managed memory cannot be used\n",
            ]);
            return Outcome::Poisoned;
        }
        let _inside = self.gate.enter();
        self.resolve(unit, addr, write)
    }

    /// [`Engine::fault`] for a caller that is inside the gate.
    pub(crate) fn resolve(&self, unit: u32, addr: usize, write: bool) -> Outcome {
        let start = now_ns();
        let mut waited = false;
        loop {
            let w = self.table.load(unit);
            if w.has(LOCKED) {
                if self.table.frame(unit) == QUEUED && self.table.claim_queued(unit) {
                    // A read was planned and nobody has begun it: it is ours now, with the lock.
                    let w = self.table.load(unit).clear(LOCKED | WAITERS);
                    match self.major(unit, w, write, start) {
                        Some(outcome) => return outcome,
                        None => continue,
                    }
                }
                waited = true;
                self.table.wait_locked(unit);
                continue;
            }
            match w.kind() {
                Kind::Free => return Outcome::NotOurs,
                Kind::Poisoned => return Outcome::Poisoned,
                Kind::Foreign => {
                    return if seen_before(addr) {
                        Outcome::NotOurs
                    } else {
                        Outcome::Retry
                    };
                }
                _ if !w.allows(write) => {
                    return if seen_before(addr) {
                        Outcome::NotOurs
                    } else {
                        Outcome::Retry
                    };
                }
                _ => {}
            }
            let Some(w) = self.table.try_lock_if(unit, |now| now == w) else {
                continue;
            };
            let done = match w.kind() {
                Kind::Present => self.soft(unit, w, write, start),
                Kind::None => self.first_touch(unit, w, write, start),
                Kind::Cached => {
                    let class = if waited {
                        FaultClass::Wait
                    } else {
                        FaultClass::Soft
                    };
                    self.take_from_cache(unit, w, write, class, start)
                }
                Kind::Swapped => self.major(unit, w, write, start),
                _ => {
                    self.table.unlock(unit, w);
                    None
                }
            };
            if let Some(outcome) = done {
                return outcome;
            }
        }
    }

    fn done(&self, unit: u32, class: FaultClass, start: u64) -> Option<Outcome> {
        self.note_resident(unit);
        self.timed(class, start)
    }

    /// After a frame was moved to `unit`: if that happened between the parts of a fork, the mark that keeps
    /// the arena out of the child came along and must go.
    fn let_inherit(&self, unit: u32) {
        if self.gate.is_forker() {
            // SAFETY: advice that discards nothing.
            let _ = unsafe { mm::advise(self.table.addr(unit), UNIT, libc::MADV_DOFORK) };
        }
    }

    fn timed(&self, class: FaultClass, start: u64) -> Option<Outcome> {
        record_fault(&self.record().events, class, now_ns().saturating_sub(start));
        Some(Outcome::Retry)
    }

    /// Memory is there: give access.
    fn soft(&self, unit: u32, w: Word, write: bool, start: u64) -> Option<Outcome> {
        if write && w.has(COW) {
            return self.copy_on_write(unit, w, start);
        }
        let at = self.table.addr(unit);
        // Given again even if the word says the program has it: it costs little, and heals whatever made the
        // fault happen.
        let (changed, new) = if write || w.has(WRITABLE) {
            (
                self.mover().set_writable(at, UNIT),
                w.clear(WATCHED | CLEAN | READAHEAD).set(WRITABLE),
            )
        } else {
            (self.mover().set_readable(at), w.clear(WATCHED | READAHEAD))
        };
        if changed.is_err() {
            self.table.unlock(unit, w);
            return self.mappings_exhausted(start);
        }
        if w.has(WATCHED) {
            self.watched.fetch_sub(1, Relaxed);
            self.count(Counter::SwapCacheHit, 1);
        }
        self.table.unlock(unit, new);
        if w.has(WATCHED) {
            self.note_referenced(unit);
        }
        self.timed(FaultClass::Soft, start)
    }

    /// A write to a frame that a forked relative may share.
    fn copy_on_write(&self, unit: u32, w: Word, start: u64) -> Option<Outcome> {
        let at = self.table.addr(unit);
        if !w.has(UNCHARGED) && !self.maybe_children.load(Acquire) {
            // Nobody shares it any more: the kernel lets us keep the page.
            if self.mover().set_writable(at, UNIT).is_err() {
                self.table.unlock(unit, w);
                return self.mappings_exhausted(start);
            }
            if w.has(WATCHED) {
                self.watched.fetch_sub(1, Relaxed);
            }
            self.table.unlock(
                unit,
                w.clear(WATCHED | CLEAN | COW | READAHEAD).set(WRITABLE),
            );
            return self.done(unit, FaultClass::Soft, start);
        }
        let Some(frame) = self.get_frame_nowait() else {
            // A write-out of this unit may be what frees memory, and it needs the lock: wait
            // without it. (Absent units may stay locked meanwhile: nobody needs them for that.)
            self.table.unlock(unit, w);
            let Some(frame) = self.get_frame() else {
                return Some(Outcome::NoMemory);
            };
            self.arena.put_free(frame.place);
            return None;
        };
        let to = self.arena.addr(frame.place);
        let moved = self.mover().set_readable(at).and_then(|()| {
            // SAFETY: the unit is locked, present and readable; the place holds a frame of ours.
            unsafe { std::ptr::copy_nonoverlapping(at as *const u8, to as *mut u8, UNIT) };
            self.mover().map_in(to, at, true)
        });
        if moved.is_err() {
            self.arena.put_free(frame.place);
            self.table.unlock(unit, w.clear(WATCHED));
            if w.has(WATCHED) {
                self.watched.fetch_sub(1, Relaxed);
            }
            return self.mappings_exhausted(start);
        }
        self.let_inherit(unit);
        self.arena.put_empty(frame.place);
        if w.has(WATCHED) {
            self.watched.fetch_sub(1, Relaxed);
        }
        if !w.has(UNCHARGED) {
            self.pool.uncharge(self.me(), 1);
        }
        self.count(Counter::Cow, 1);
        self.table.unlock(
            unit,
            w.clear(WATCHED | CLEAN | COW | UNCHARGED | READAHEAD)
                .set(WRITABLE),
        );
        self.done(unit, FaultClass::Cow, start)
    }

    /// A unit never touched before (or discarded): it reads as zeros.
    fn first_touch(&self, unit: u32, w: Word, write: bool, start: u64) -> Option<Outcome> {
        self.high_unit.fetch_max(unit + 1, Relaxed);
        let in_place =
            self.mover().watches_in_place() && w.has(MAY_WRITE) && self.arena.free_frames() == 0;
        if in_place && let Some(outcome) = self.first_touch_in_place(unit, w, start) {
            return Some(outcome);
        }
        let Some(frame) = self.get_frame() else {
            self.table.unlock(unit, w);
            return Some(Outcome::NoMemory);
        };
        let from = self.arena.addr(frame.place);
        if !frame.zeroed || !self.mover().moves_holes() && !mm::populate(from, UNIT) {
            // SAFETY: the place holds a frame that is ours alone.
            unsafe { std::ptr::write_bytes(from as *mut u8, 0, UNIT) };
        }
        let writable = write || !self.mover().arrives_clean();
        if self
            .mover()
            .map_in(from, self.table.addr(unit), writable)
            .is_err()
        {
            self.arena.put_free(frame.place);
            self.table.unlock(unit, w);
            return self.mappings_exhausted(start);
        }
        self.let_inherit(unit);
        self.arena.put_empty(frame.place);
        let new = w.with_kind(Kind::Present);
        self.table.unlock(
            unit,
            if writable && w.has(MAY_WRITE) {
                new.set(WRITABLE)
            } else {
                new
            },
        );
        self.count(Counter::ThpFaultAlloc, 1);
        self.done(unit, FaultClass::FirstTouch, start)
    }

    /// First touch while the budget is not used up: let the kernel fault the memory in where
    /// it stands, and for a sequence of first touches several units at once.
    fn first_touch_in_place(&self, unit: u32, w: Word, start: u64) -> Option<Outcome> {
        let want = match self.streams.try_lock() {
            Some(mut s) => s
                .on_first_touch(u64::from(unit), u64::from(self.table.units()))
                .clamp(1, 32),
            None => 1,
        };
        let mut n = 1;
        while n < want
            && self
                .table
                .try_lock_if(unit + n, |o| o.kind() == Kind::None && o == w)
                .is_some()
        {
            n += 1;
        }
        let mut got = n;
        while got > 0 && !self.pool.charge(self.me(), u64::from(got)) {
            got /= 2;
        }
        for extra in got.max(1)..n {
            self.table.unlock(unit + extra, w);
        }
        if got == 0 {
            return None;
        }
        let len = got as usize * UNIT;
        if self
            .mover()
            .set_writable(self.table.addr(unit), len)
            .is_err()
        {
            for extra in 1..got {
                self.table.unlock(unit + extra, w);
            }
            self.pool.uncharge(self.me(), u64::from(got));
            return None;
        }
        let new = w.with_kind(Kind::Present).set(WRITABLE);
        self.high_unit.fetch_max(unit + got, Relaxed);
        for i in (0..got).rev() {
            self.table.unlock(unit + i, new);
            if i > 0 {
                self.note_resident(unit + i);
            }
        }
        self.count(Counter::ThpFaultAlloc, u64::from(got));
        self.done(unit, FaultClass::FirstTouch, start)
    }

    /// In the swap cache: move the frame into place.
    fn take_from_cache(
        &self,
        unit: u32,
        w: Word,
        write: bool,
        class: FaultClass,
        start: u64,
    ) -> Option<Outcome> {
        let place = self.table.frame(unit);
        if !w.has(READAHEAD) {
            self.watched.fetch_sub(1, Relaxed);
        }
        if let Err(outcome) = self.put_in_place(unit, w, place, write) {
            return outcome.or_else(|| self.mappings_exhausted(start));
        }
        self.count(Counter::SwapCacheHit, 1);
        if w.has(READAHEAD) {
            self.count(Counter::SwapRaHit, 1);
        }
        if w.has(READAHEAD) {
            self.note_resident(unit);
        } else {
            self.note_referenced(unit);
        }
        let done = self.timed(class, start);
        self.read_ahead(unit, true);
        done
    }

    /// Moves the frame at `place` to `unit` and unlocks it as present; on failure unlocks it as cached.
    fn put_in_place(
        &self,
        unit: u32,
        w: Word,
        place: u32,
        write: bool,
    ) -> Result<(), Option<Outcome>> {
        let writable = (write || !self.mover().arrives_clean()) && w.has(MAY_WRITE);
        let new = w.with_kind(Kind::Present).clear(READAHEAD);
        let new = if writable {
            new.clear(CLEAN).set(WRITABLE)
        } else {
            new.set(CLEAN)
        };
        match self
            .mover()
            .map_in(self.arena.addr(place), self.table.addr(unit), writable)
        {
            Ok(()) => {
                self.let_inherit(unit);
                self.table.set_frame(unit, NO_FRAME);
                self.table.unlock(unit, new);
                self.arena.put_empty(place);
                Ok(())
            }
            Err(_) => {
                self.table.set_frame(unit, place);
                // Read ahead, in effect: see `park` for what a cached unit without the mark is.
                self.table
                    .unlock(unit, w.with_kind(Kind::Cached).set(READAHEAD));
                self.note_resident(unit);
                Err(None)
            }
        }
    }

    /// In swap only: read it, here and now. `None`: look at the unit again.
    fn major(&self, unit: u32, w: Word, write: bool, start: u64) -> Option<Outcome> {
        let Some(slot) = w.slot() else {
            self.table.unlock(unit, w);
            return Some(Outcome::Poisoned);
        };
        let Some(frame) = self.get_frame() else {
            self.table.set_frame(unit, NO_FRAME);
            self.table.unlock(unit, w.with_kind(Kind::Swapped));
            return Some(Outcome::NoMemory);
        };
        // Tell the readers of what comes next before we wait for our own read.
        self.read_ahead(unit, false);
        let at = self.arena.addr(frame.place);
        if self.read_slot(slot, at, true).is_err() {
            // Our descriptor may be gone, or the device failed: the engine's threads have
            // descriptors of their own and the last word. The lock goes with the job.
            self.table.set_frame(unit, frame.place);
            while self.reads.push(Job::Handed(unit)).is_err() {
                hugeswap_sys::process::yield_now();
            }
            self.wake_workers(1);
            return None;
        }
        self.count_swap_in(at);
        match self.put_in_place(unit, w, frame.place, write) {
            Ok(()) => self.done(unit, FaultClass::Major, start),
            Err(outcome) => outcome.or_else(|| self.mappings_exhausted(start)),
        }
    }

    pub(crate) fn count_swap_in(&self, at: usize) {
        self.count(Counter::PswpIn, UNIT_PAGES);
        let huge = self.is_huge(at).unwrap_or(true);
        self.count(
            if huge {
                Counter::ThpSwpIn
            } else {
                Counter::ThpSwpInFallback
            },
            1,
        );
    }

    /// Reads a slot to `at` (a place of the arena) and verifies it. `doubt`: the caller is a program
    /// thread, whose descriptor table is the program's to change.
    pub(crate) fn read_slot(&self, slot: u64, at: usize, doubt: bool) -> Result<(), Errno> {
        let (area, offset) = self.pool.locate(slot).ok_or(Errno::EIO)?;
        let a = &self.pool.areas()[area];
        if doubt && fs::identity(a.fd) != Ok(a.identity) {
            return Err(Errno::EBADF);
        }
        // SAFETY: the place is the caller's.
        unsafe { self.backing.read(&self.pool, a.fd, at, offset) }?;
        if self.pool.knob(Knob::Checksum) == 0 {
            return Ok(());
        }
        let want = &self.pool.slot_sums()[slot as usize];
        // SAFETY: the place was just filled and is the caller's.
        let got = checksum::sum(&self.key, unsafe { self.bytes(at) });
        if got == [want[0].load(Acquire), want[1].load(Acquire)] {
            Ok(())
        } else {
            Err(Errno::EIO)
        }
    }

    /// Plans reads of what a sequential stream will want next. `cached`: the fault met readahead.
    fn read_ahead(&self, unit: u32, cached: bool) {
        let Some(mut streams) = self.streams.try_lock() else {
            return;
        };
        let resident = self.resident_before(unit);
        if resident < unit {
            streams.on_resident(u64::from(resident), u64::from(unit));
        }
        let window = streams.on_fault(u64::from(unit), u64::from(self.table.units()), cached);
        drop(streams);
        let mut planned = 0;
        for u in window.units(u64::from(unit)) {
            let u = u as u32;
            if self
                .table
                .try_lock_if(u, |w| w.kind() == Kind::Swapped)
                .is_none()
            {
                continue;
            }
            self.table.set_frame(u, QUEUED);
            if self.reads.push(Job::Read(u)).is_err() {
                if self.table.claim_queued(u) {
                    let w = self.table.load(u);
                    self.table.unlock(u, w);
                }
                if let Some(mut streams) = self.streams.try_lock() {
                    streams.on_cut_short(u64::from(u));
                }
                break;
            }
            planned += 1;
        }
        if planned > 0 {
            self.count(Counter::SwapRa, planned);
            self.wake_workers(planned.min(2) as u32);
        }
    }

    /// First of the units in memory that end just before `unit` (at most 256 of them): a stream
    /// passes them without a fault.
    fn resident_before(&self, unit: u32) -> u32 {
        let floor = unit.saturating_sub(256);
        let mut first = unit;
        while first > floor && self.table.load(first - 1).kind() == Kind::Present {
            first -= 1;
        }
        // A stream that faults on unit after unit leaves them in memory: that is no jump.
        if unit - first > 1 { first } else { unit }
    }

    /// Tells the LRU lists that a unit is in memory.
    pub(crate) fn note_resident(&self, unit: u32) {
        self.note(unit);
    }

    /// Tells the LRU lists that a unit was touched while it was watched.
    pub(crate) fn note_referenced(&self, unit: u32) {
        self.note(unit | REFERENCED);
    }

    fn note(&self, event: LruEvent) {
        while self.events.push(event).is_err() {
            if let Some(mut lru) = self.lru.try_lock() {
                self.drain_events(&mut lru);
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// A frame without waiting: a free one, a fresh one within the budget, or that of the
    /// oldest watched clean unit.
    pub(crate) fn get_frame_nowait(&self) -> Option<Frame> {
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
        self.count(Counter::AllocStall, 1);
        self.stalled.fetch_add(1, Relaxed);
        let mut start = now_ns();
        let mut last = self.avail_seq.load(Acquire);
        let frame = loop {
            let seq = self.avail_seq.load(Acquire);
            if seq != last && !self.swap_full.load(Relaxed) {
                // Others get what comes: it is a queue, not the end.
                (last, start) = (seq, now_ns());
            }
            if let Some(f) = self.get_frame_nowait() {
                break Some(f);
            }
            self.ask_others(now_ns() - start > HUNGER_NS);
            self.kick();
            futex::wait(&self.avail_seq, seq, Some(1_000_000), false);
            let patience = if self.swap_full.load(Relaxed) {
                FULL_PATIENCE_NS
            } else {
                SLOW_PATIENCE_NS
            };
            if now_ns() - start > patience || self.stopping.load(Relaxed) {
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
        let own = self.arena.free_frames() + self.watched.load(Relaxed).max(0) as u64;
        let share = (frames / live.max(1)).max(self.record().charged.load(Relaxed));
        (
            own + frames.saturating_sub(used),
            Watermarks::for_budget(share),
        )
    }

    fn check_watermark(&self) {
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

    /// The limit on mappings was met: make room, and let the fault try again.
    fn mappings_exhausted(&self, start: u64) -> Option<Outcome> {
        self.count(Counter::MapLimit, 1);
        if now_ns() - start > SLOW_PATIENCE_NS {
            return Some(Outcome::NoMemory);
        }
        if !self.make_room() {
            // kswapd makes clean units of dirty ones; those can be dropped.
            self.kick();
            futex::wait(
                &self.avail_seq,
                self.avail_seq.load(Acquire),
                Some(1_000_000),
                false,
            );
        }
        None
    }

    /// Frees mappings: absent neighbours become one, empty places of the arena too, and some clean units
    /// are dropped where they stand, which needs no mapping. False if nothing was found.
    pub(crate) fn make_room(&self) -> bool {
        let mut made = self.merge_absent() > 0;
        if self.mover().watches_in_place() {
            self.arena.merge_empty();
            for _ in 0..8 {
                let Some(unit) = self.clean.pop() else { break };
                let takeable = |w: Word| w.evictable() && w.kind() == Kind::Present && w.has(CLEAN);
                if let Some(w) = self.table.try_lock_if(unit, takeable) {
                    made |= self.drop_clean(unit, w);
                }
            }
        }
        made
    }

    /// Drops a locked, clean, present unit where it stands and unlocks it; its frame goes back to the kernel.
    pub(crate) fn drop_clean(&self, unit: u32, w: Word) -> bool {
        if self
            .mover()
            .drop_pages(self.table.addr(unit), UNIT)
            .is_err()
        {
            // Whatever access the mapping has by now, a fault puts it right.
            self.table.unlock(unit, w);
            self.note_resident(unit);
            return false;
        }
        if w.has(WATCHED) {
            self.watched.fetch_sub(1, Relaxed);
        }
        let gone = COW | UNCHARGED | CLEAN | WATCHED | WRITABLE | READAHEAD;
        self.table
            .unlock(unit, w.with_kind(Kind::Swapped).clear(gone));
        if !w.has(UNCHARGED) {
            self.pool.uncharge(self.me(), 1);
        }
        self.note_available();
        true
    }

    /// Maps runs of absent units anew so that each run is one mapping; returns how many units
    /// were merged. Only in signal mode are there mappings to merge.
    pub(crate) fn merge_absent(&self) -> u32 {
        if !self.mover().watches_in_place() {
            return 0;
        }
        let end = self.high_unit.load(Relaxed).min(self.table.units());
        let absent = |w: Word| matches!(w.kind(), Kind::None | Kind::Swapped);
        let mut merged = 0;
        let mut unit = 0;
        while unit < end {
            let mut words = [Word::FREE; 64];
            let mut n = 0usize;
            while n < words.len()
                && (unit + n as u32) < end
                && let Some(w) = self.table.try_lock_if(unit + n as u32, absent)
            {
                words[n] = w;
                n += 1;
            }
            if n > 1
                && self
                    .mover()
                    .drop_pages(self.table.addr(unit), n * UNIT)
                    .is_ok()
            {
                merged += n as u32;
            }
            for (i, w) in words[..n].iter().enumerate() {
                self.table.unlock(unit + i as u32, *w);
            }
            unit += n.max(1) as u32;
        }
        merged
    }
}
