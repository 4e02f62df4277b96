//! kswapd: keeps memory available, so that faults need not wait.
//!
//! There is one kswapd in each process. It takes the oldest units off the lists, as many as are
//! missing and up to 8 at a time (up to 64 as reclaim fails), makes dirty neighbours read-only by
//! one call, and has them written where they stand, up to 8 at a time, while readers go on. It
//! leaves the clean ones *watched*: still in memory, but mapped without access. A touch brings a
//! watched unit back for the price of a soft fault, and a fault elsewhere may take its frame at
//! once. kswapd itself writes and drops the pages of base-mapped units.
//!
//! Faults tell the lists what they touched through a queue ([`crate::memory::lists`]), so that they
//! never wait for the lock of the lists. The lists are active and inactive, for each kind of pages
//! in each group ([`hugeswap_policy::workingset::lruvec`]), with refault distances; `vmscan` there
//! divides the work between them. They are weighed in pages: a base-mapped unit counts as its pages
//! in memory.
//!
//! When kswapd works, and until when: [`crate::memory::marks`]. Another process may ask for frames
//! (`give_back`): [`hugeswap_policy::donor`] tells which process asks which. Where the budget has
//! become smaller, each process gives back its part of what is charged beyond it
//! ([`Pool::excess_of`](crate::pool::Pool::excess_of)).

use crate::UNIT;
use crate::khugepaged::Khugepaged;
use crate::lock::Lock;
use crate::look::Answer;
use crate::memory::marks::WRITE_DEPTH;
use crate::paging::Job;
use crate::ranges::Ranges;
use crate::storm::Storm;
use crate::swap::scrub::Scrubber;
use crate::table::Locked;
use crate::threads::{Handle, Threads, Times};
use hugeswap_policy::UNIT_PAGES;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::unit::step::Event;
use hugeswap_policy::unit::{CLEAN, COW, Kind, LOCKED, Place, WATCHED, WRITABLE, WRITEBACK};
use hugeswap_sys::{futex, now_ns, process};
use std::ops::Deref;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};

/// Units looked at in one step: so many, and up to this as reclaim fails.
const BATCH: usize = 8;
const MOST: usize = 64;
/// Between samples of how much memory is huge, and looks after children.
const TICK_NS: u64 = 200_000_000;

/// The engine's own threads and their state: the fourth of the
/// engine's layers.
pub struct Reclaim {
    ranges: Ranges,
    pub(crate) khugepaged: Khugepaged,
    pub(crate) scrubber: Scrubber,
    /// What kswapd has answered to processes that look from outside.
    pub(crate) looked: Answer,
    /// A thread empties swap areas that are to be taken off.
    pub(crate) emptying: AtomicBool,
    pub(crate) thread_kind: Threads,
    /// kswapd has descriptors of its own (1). A futex.
    pub(crate) has_descriptors: AtomicU32,
    pub(crate) threads: Lock<Vec<Handle>>,
    pub(crate) times: Times,
}

impl Reclaim {
    /// Without threads.
    pub(crate) fn new(ranges: Ranges, threads: Threads) -> Reclaim {
        Reclaim {
            ranges,
            khugepaged: Khugepaged::new(),
            scrubber: Scrubber::default(),
            looked: Answer::new(),
            emptying: AtomicBool::new(false),
            thread_kind: threads,
            has_descriptors: AtomicU32::new(0),
            threads: Lock::freed_in_children(Vec::new()),
            times: Times::default(),
        }
    }
}

impl Deref for Reclaim {
    type Target = Ranges;

    fn deref(&self) -> &Ranges {
        &self.ranges
    }
}

impl Reclaim {
    /// The thread's body.
    pub(crate) fn kswapd(&'static self) {
        let private = self.take_private_descriptors();
        let inside = self.gate.enter_daemon();
        self.pool.follow_areas(self.low_fd, private, true);
        if private {
            self.store.batches.open();
        }
        drop(inside);
        self.has_descriptors.store(1, Release);
        futex::wake(&self.has_descriptors, u32::MAX >> 1, false);
        for i in 0..2 {
            // Without workers kswapd does their work itself, only slower.
            let _ = self.spawn(&format!("hs-io/{i}"), move || self.worker());
        }
        // Without it units become whole at faults only.
        let _ = self.spawn("hs-khugepaged", move || self.khugepaged());
        self.pool.record().responsive.store(1, Relaxed);
        let mut last_tick = 0;
        let mut storm = Storm::new();
        loop {
            if self.stopping.load(Acquire) {
                let _inside = self.gate.enter_daemon();
                self.store.batches.close();
                return;
            }
            let seen = self.pool.record().kick.load(Acquire);
            let inside = self.gate.enter_daemon();
            self.pool.follow_areas(self.low_fd, private, false);
            let busy = self.step();
            let every = self.storm(&mut storm);
            if now_ns() - last_tick > TICK_NS {
                last_tick = now_ns();
                self.tick();
                self.end_with_program();
            }
            drop(inside);
            let wrote = self.write_some();
            if !busy && !wrote && !self.scrub_some() {
                let wait = every.unwrap_or(TICK_NS);
                futex::wait(&self.pool.record().kick, seen, Some(wait), true);
            }
        }
    }

    /// One step of reclaim; false if there was nothing to do.
    fn step(&self) -> bool {
        let mut busy =
            self.serve_descriptors() | self.answer_looks() | self.sharing.serve(self.host());
        for _ in 0..64 {
            let Some(unit) = self.evict_requests.pop() else {
                break;
            };
            self.evict_now(unit);
            busy = true;
        }
        if self.backend.can().takes_mappings && self.mappings_are_short() {
            busy |= self.leave_some_pages();
        }
        busy |= self.find_clusters();
        let owed = self.frames_owed();
        if owed > 0 {
            busy |= self.give_back(owed);
        }
        busy |= self.feed_reserve() | self.feed_buffers();
        let (available, marks) = self.available();
        let coming = u64::from(self.inflight_writes.load(Relaxed));
        let waiting = self.stalled.load(Relaxed) > 0;
        let few =
            self.has_few_frames() && owed == 0 && (!waiting || available / UNIT_PAGES + coming > 0);
        let shared = self.sharing.resident();
        // A thread waits although memory is counted as available: that memory cannot be had.
        // Or one waits for mappings, which the units in memory take.
        let starving = (waiting && coming == 0) || self.are_mappings_wanted();
        let mut missing = marks.high.saturating_sub(available + coming * UNIT_PAGES);
        let grows = self.zswap_grows(starving || missing > 0);
        if few && shared == 0 {
            return busy;
        }
        if self.gate.is_closed() && !waiting {
            // A fork waits until nothing is being written: nothing new is begun ahead of need.
            return busy;
        }
        if grows && self.store.zswap.is_eager() {
            // Where pages come and go one by one, a whole frame is never free by itself.
            let enough = marks.high + UNIT_PAGES;
            missing = enough.saturating_sub(available + coming * UNIT_PAGES);
        }
        let short = starving || missing > 0;
        self.measure_reclaim(short || available < marks.high);
        busy |= grows && self.feed_zswap();
        if short || coming < owed {
            if coming < u64::from(WRITE_DEPTH) {
                let own = self.pool.record().charged.load(Relaxed);
                let turn = shared > 0 && (few || self.sharing.has_turn(shared, own));
                if turn && self.sharing.evict_some(self.host()) {
                    return true;
                }
                if few {
                    return busy;
                }
                let wanted = match starving || owed > 0 {
                    true => BATCH - (coming as usize).min(BATCH),
                    // What is brought out beyond what is missing may be in use, where there is
                    // little memory.
                    false => missing.div_ceil(UNIT_PAGES) as usize,
                };
                return self.reclaim_batch(wanted.clamp(1, BATCH)) || busy;
            }
            return true;
        }
        self.woken_for_huge(true);
        // Keep the queue of events from filling up.
        if self.events.len() > self.events.capacity() / 2 {
            let mut lru = self.lru.lock();
            self.drain_events(&mut lru);
        }
        busy
    }

    /// Takes the oldest units, about as many as are wanted: clean ones are watched at once, dirty
    /// ones made read-only and queued for writing. False if no unit could be taken, and it is no use
    /// to go on.
    fn reclaim_batch(&self, wanted: usize) -> bool {
        let (progress, stayed) = self.reclaim_oldest(wanted);
        if !progress {
            self.woken_for_huge(false);
        }
        self.lru.lock().progressed(progress);
        // (What stays has one turn less to stay: this comes to an end.)
        progress || stayed
    }

    /// In haste, or where what is dirty could only be compressed and there is little room for it,
    /// more of the oldest units are looked at. What is clean goes, and only as many dirty ones as
    /// are wanted: the device takes longer than there may be time. (Clean-first LRU, Park et al.,
    /// 2006.) Returns whether any unit was taken, and whether one stays that would be written to no
    /// avail.
    fn reclaim_oldest(&self, wanted: usize) -> (bool, bool) {
        let mut haste = 4 * self.pool.excess_of(self.pool.me()) as usize;
        let mut to_write = if haste > 0 { wanted } else { usize::MAX };
        if self.store.zswap.lacking() > 0 {
            haste = MOST;
            to_write = usize::from(self.store.zswap.has_room_for_unit());
        }
        let mut out = [0u32; MOST];
        let (n, spare) = {
            let mut lru = self.lru.lock();
            lru.set_detection(self.pool.knob(Knob::WorkingsetDetection) != 0);
            lru.set_swappiness(self.pool.knob(Knob::Swappiness));
            self.drain_events(&mut lru);
            let most = match self.has_few_frames() {
                true => 1,
                false => lru.batch(wanted.max(haste.min(MOST))),
            };
            self.groups.settle_claims(&mut lru);
            let waiting = self.inflight_writes.load(Relaxed) > 0;
            let n = lru.take_oldest(most, &mut out, waiting);
            for &unit in &out[..n] {
                let record = self.base.records.of(unit);
                record.set_deactivated(lru.was_deactivated(unit));
            }
            (n, lru.may_spare())
        };
        out[..n].sort_unstable();
        let (mut progress, mut stayed) = (false, false);
        let mut i = 0;
        while i < n {
            let unit = out[i];
            i += 1;
            let Some(mut w) = self
                .table
                .try_lock_if(unit, |w| w.evictable() && !w.has(WATCHED))
            else {
                self.relink_if_pinned(unit);
                continue;
            };
            if w.kind() == Kind::Base {
                match self.evict_pages(w, spare) {
                    Some((freed, left)) => {
                        progress |= freed > 0;
                        if left > 0 {
                            self.lru.lock().spared(unit, freed, left);
                        }
                    }
                    None => self.lru.lock().put_back(unit),
                }
                let (available, marks) = self.available();
                if available >= marks.high {
                    let mut lru = self.lru.lock();
                    out[i..n].iter().for_each(|&u| lru.put_back(u));
                    return (true, stayed);
                }
                continue;
            }
            if w.kind() == Kind::Cached {
                w.settle();
                if self.push_clean(unit).is_ok() {
                    progress = true;
                    self.note_available();
                } else {
                    self.lru.lock().put_back(unit);
                }
                continue;
            }
            self.leave_far_apart(&mut w);
            if w.has(CLEAN) {
                progress |= self.park(w);
                continue;
            }
            if spare && self.base.records.of(unit).stays_though_dirty() {
                w.settle();
                self.lru.lock().referenced(unit);
                stayed = true;
                continue;
            }
            if to_write == 0 || !self.swap_is_allowed(unit, *w) {
                w.settle();
                self.lru.lock().put_back(unit);
                continue;
            }
            if !w.allows(false) {
                to_write -= 1;
                progress |= self.write_out_closed(w);
                continue;
            }
            // A run of dirty neighbours is protected by one call.
            let mut run = [const { None }; MOST];
            run[0] = Some(w);
            let mut len = 1;
            while i < n
                && len < to_write
                && out[i] == unit + len as u32
                && let Some(next) = self.table.try_lock_if(out[i], |w| {
                    let dirty = w.kind() == Kind::Present && !w.has(WATCHED | CLEAN);
                    w.evictable() && dirty && w.allows(false)
                })
            {
                if !self.swap_is_allowed(out[i], *next) {
                    next.settle();
                    self.lru.lock().put_back(out[i]);
                    i += 1;
                    break;
                }
                run[len] = Some(next);
                len += 1;
                i += 1;
            }
            to_write -= len;
            progress |= self.start_writes(unit, len, run.into_iter().flatten());
        }
        (progress, stayed)
    }

    /// A locked unit that is clean, and came whole from many places in swap, gives them up: it will
    /// be written to one place.
    fn leave_far_apart(&self, w: &mut Locked<'_>) {
        let unit = w.unit();
        if w.kind() == Kind::Present
            && w.has(CLEAN)
            && !w.has(COW | WATCHED)
            && self.store.has_room_to_move()
            && self.store.is_far_apart(unit, w.place())
            && self.swap_is_allowed(unit, **w)
        {
            self.store.free_place(unit, w.place());
            self.advance(w, Event::Placed(Place::Nothing));
        }
    }

    fn relink_if_pinned(&self, unit: u32) {
        let w = self.table.load(unit);
        if w.kind() == Kind::Base {
            // The thread that has it locked may bring in one more page, which is not told to the
            // lists.
            self.lru.lock().put_back(unit);
            return;
        }
        if w.has(LOCKED) && matches!(w.kind(), Kind::Present | Kind::Cached) {
            // It may be as it was once the thread that has it locked is done, and no event would
            // tell the lists: an epoch begins, say, for many at once.
            self.lru.lock().put_back(unit);
            return;
        }
        if w.has(LOCKED | WRITEBACK) || !matches!(w.kind(), Kind::Present | Kind::Cached) {
            return;
        }
        if w.pins() > 0 {
            // In use, so active. Pinned units that went back to where they came from could fill the
            // inactive list, and then what can be evicted would never leave the active one.
            self.lru.lock().referenced(unit);
        } else if !w.has(WATCHED) || self.push_clean(unit).is_err() {
            self.lru.lock().put_back(unit);
        }
    }

    /// Puts `n` locked dirty neighbours from `first` on under write-back, and queues their writes.
    fn start_writes<'a>(
        &self,
        first: u32,
        n: usize,
        units: impl Iterator<Item = Locked<'a>>,
    ) -> bool {
        let at = self.table.addr(first);
        // Also what is not writable: a unit that was moved may be without any access until it is
        // touched, and the thread that writes it out reads it.
        if self.backend.set_read_only(at, n * UNIT).is_err() {
            for w in units {
                let unit = w.unit();
                if w.has(WRITABLE) {
                    self.track.note_half_protected(unit);
                }
                // Part of the range may be read-only by now: say so, a write fault puts it right.
                self.settle_by(w, Event::MadeReadOnly);
                self.lru.lock().put_back(unit);
            }
            self.pool.count(Counter::MapLimit, 1);
            return self.make_room();
        }
        for w in units {
            let unit = w.unit();
            self.settle_by(w, Event::WriteBegun);
            self.inflight_writes.fetch_add(1, Relaxed);
            while self.writes.push(Job::Write(unit)).is_err() {
                if let Some(Job::Write(u)) = self.writes.pop() {
                    self.write_out(u);
                }
            }
        }
        // (While nobody waits for it, one writer beside kswapd leaves more of the device to readers.)
        let writers = if self.frames_owed() > 0 {
            u32::MAX >> 1
        } else {
            1
        };
        self.wake_workers(writers);
        true
    }

    /// Hands up to `n` frames to the processes that asked, or to the machine if the budget is smaller
    /// now.
    fn give_back(&self, n: u64) -> bool {
        let mut given = 0;
        while given < n {
            if !self.hand_back_one() {
                break;
            }
            given += 1;
        }
        let owed = &self.pool.record().give_back;
        let _ = owed.fetch_update(Relaxed, Relaxed, |o| Some(o.saturating_sub(given)));
        let (charged, foreign) = {
            let r = self.pool.record();
            (r.charged.load(Relaxed), r.foreign.load(Relaxed))
        };
        if charged <= foreign && !self.sharing.is_used() {
            owed.store(0, Relaxed);
        }
        self.pool.count(Counter::GiveBack, given);
        given > 0
    }

    /// Brings one unit out now, as far as it may be: into swap, its frame free.
    pub(crate) fn evict_now(&self, unit: u32) {
        let Some(mut w) = self.table.try_lock_if(unit, |w| w.evictable()) else {
            return;
        };
        if w.kind() == Kind::Base {
            self.evict_pages(w, false);
            return;
        }
        self.leave_far_apart(&mut w);
        if w.kind() == Kind::Present && !w.has(CLEAN) {
            if !self.swap_is_allowed(unit, *w) {
                w.settle();
                return;
            }
            let begun = match w.allows(false) {
                true => self.start_writes(unit, 1, std::iter::once(w)),
                false => self.write_out_closed(w),
            };
            if !begun {
                return;
            }
            // The first thread that comes writes it; wait until that is done.
            while self.table.load(unit).has(WRITEBACK) {
                if !self.write_one() {
                    self.table.wait_locked(unit);
                    process::yield_now();
                }
            }
        } else if w.kind() == Kind::Present && !w.has(WATCHED) {
            self.park(w);
        } else {
            w.settle();
        }
        self.free_parked(unit);
    }

    /// Work that is done a few times a second.
    fn tick(&'static self) {
        let sharing = self.sharing.is_used();
        if self.stalled.load(Relaxed) > 0
            || self.store.kept.has_children()
            || sharing && self.sharing.is_waited_for()
        {
            self.pool.reap();
        }
        if sharing {
            self.sharing.carry_on_for_the_dead(self.host());
        }
        if self.store.kept.has_children() {
            self.store.release_kept();
        }
        self.frame_demand.tick();
        let no_trial = self.sizes.is_no_trial_near();
        let evicted = self.sizes.evicted();
        self.store.zswap.choose(&self.store.cost, no_trial, evicted);
        self.start_zswapd();
        self.store.rest_buffers();
        self.sharing.rest_buffers();
        self.call_khugepaged();
        if self.has_frames_to_compact() {
            self.khugepaged.wake();
        }
        self.look_at_progress(self.program_user_ns());
        self.store.look_again_for_clusters();
        self.empty_areas();
        if self.pool.header().creator.load(Relaxed) == process::pid() {
            self.pool.end_emptied_areas();
        }
        self.tidy_clusters();
        self.store.look_at_gather(self.sizes.are_by_pages());
        if self.pool.look_at_room() {
            self.pool.count(Counter::SwapSoftFull, 1);
        }
        self.sample();
        self.note_touched();
    }

    /// Starts the thread that empties compressed memory, once there is to be any. Where pieces of
    /// units take mappings there is none, for those are short, and units have to become whole again
    /// soon; unless there is nothing else for memory to leave to.
    fn start_zswapd(&'static self) {
        let z = &self.store.zswap;
        let can = self.backend.can();
        let can = can.has_single_pages() || can.faults_are_messages;
        if (can || self.pool.has_memory_area()) && z.is_chosen() && !z.started.swap(true, Relaxed) {
            // If there is no thread to be had, the next call tries again.
            let made = self.spawn("hs-zswap", move || self.zswapd()).is_ok();
            z.started.store(made, Relaxed);
        }
    }

    /// Notes how much managed memory holds something.
    fn note_touched(&self) {
        let high = self.high_unit.load(Relaxed).min(self.table.units());
        let base = (0..high).filter(|&u| self.table.load(u).kind() == Kind::Base);
        let untouched = base.map(|u| self.base.records.of(u).untouched_pages());
        self.pool
            .record()
            .untouched_pages
            .store(untouched.sum(), Relaxed);
        self.pool.note_touched();
    }

    /// Notes how much managed memory is in memory, and how much of it is huge.
    fn sample(&self) {
        let (mut present, mut huge) = (0, 0);
        for part in self.parts_in_use() {
            let p = self.backend.present_bytes(part.start, part.end);
            let (Ok(p), Ok(h)) = (p, self.backend.huge_bytes(part.start, part.end)) else {
                return;
            };
            present += p;
            huge += h;
        }
        let events = &self.pool.record().events;
        events.sampled_present.fetch_add(present, Relaxed);
        // Two looks at a moving thing.
        events.sampled_huge.fetch_add(huge.min(present), Relaxed);
    }

    /// Leaves the program's descriptor table for one that holds only ours; false: that was refused.
    pub(crate) fn take_private_descriptors(&self) -> bool {
        // (Those of shared regions it gets for itself, and closes with them. Not all but those: one
        // that is made at this moment would be in one list only, and its memory never free.)
        let mut keep: Vec<i32> = self.unshared_fds().collect();
        keep.sort_unstable();
        keep.dedup();
        // Where it is refused, the program's table has to do.
        let private = process::private_descriptors(&keep).is_ok();
        self.files.note_private_descriptors(private);
        private
    }
}
