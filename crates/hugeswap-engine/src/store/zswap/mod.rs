//! Compressed memory in front of swap: what leaves memory is compressed by the page and kept, and
//! is written to its slot when the room is needed. As the kernel's zswap, behind the verbs of the
//! store: a page has its slot all the time, and readers need not know where it is.
//!
//! * [`choose`]: how large it is, and what is kept, where that is left to it
//! * [`log`]: the frames, filled one after the other
//! * [`shrink`]: the oldest frame written back, the emptiest moved together
//!
//! # What is kept
//!
//! Pages that are written, and pages that leave without being written because their slot holds them
//! already ([`hugeswap_policy::zswap::entry::CLEAN`]): those are only removed again when room is needed.
//!
//! Pages of clusters that are this process's own, if they become shorter by three eighths. Where many in
//! a row do not, only one of [`TRY_ONE_OF`] is tried, until one does. Shared memory is not kept:
//! its clusters are no process's own.
//!
//! # Areas without a device
//!
//! Every page of a cluster of such an area is kept, whatever the settings: as it is, if it does not
//! become short enough. A page that there is no room for is refused as a full area refuses it. So
//! that this is not for want of an empty frame only, the last [`RESERVE`] frames of the budget are
//! for compressed memory ([`Zswap::lacking`]).
//!
//! # Protocol
//!
//! A word for each slot ([`hugeswap_policy::zswap::entry`]) says where the block is. What is done
//! with it while other processes read is [`hugeswap_policy::zswap::slot`]; to store a page, the
//! block is copied to the end of the log, and then the word is set, under the lock of the log. The
//! sum of a page is compared as that of every page.
//!
//! A frame is empty, and may be used for something else, when nothing of it counts as in use; a
//! block counts from before its word is set until after it is cleared.

mod choose;
mod log;
pub(crate) mod shrink;

use super::codec::{Block, Codecs, LONGEST, SHORT, Scratch, room};
use super::{PAGE, PAGES, observe};
use crate::lock::Lock;
use crate::pool::Member;
use crate::pool::layout::NOBODY;
use choose::Chosen;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::knobs::{Knob, zswap};
use hugeswap_policy::swapin::granularity::{DeviceCost, Direction, PIECE_PAGES, PerSize, Size};
use hugeswap_policy::zswap::codec::{CODECS, Codec};
use hugeswap_policy::zswap::entry::{Entry, WRITEBACK};
use hugeswap_policy::zswap::share;
use hugeswap_policy::zswap::slot::Slot;
use hugeswap_sys::{Result, futex, now_ns};
use log::Log;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, fence};

/// Empty frames that there are to be where there is an area without a device: what takes memory out
/// needs some. A whole unit, and half a frame to move blocks together.
pub(crate) const RESERVE: u64 = 2;
/// A process that is charged fewer frames holds such empty ones only while it needs them: there may
/// be many of that kind.
const SMALL: u64 = 16;
/// So many pages in a row that became no shorter are taken for a sign of more such.
const POOR_IN_A_ROW: u32 = 16;
/// Of those only one of so many is tried.
const TRY_ONE_OF: u32 = 16;
/// What reading a page costs by each codec until that was measured, nanoseconds, on a processor of
/// some years ago, and storing one.
pub(super) const COSTS: [(u32, u32); CODECS] = [(3_000, 8_000), (6_000, 14_000), (9_000, 22_000)];
/// After this time a thread that waits for a page that is written back looks again.
const PATIENCE_NS: u64 = 5_000_000;

const fn of_pages(ns: u32) -> PerSize {
    PerSize {
        page: ns,
        piece: ns * PIECE_PAGES as u32,
        whole: ns * PAGES as u32,
    }
}

/// This process's compressed memory. Shared by all threads.
pub(crate) struct Zswap {
    pool: Arc<Member>,
    codecs: Arc<Codecs>,
    log: Lock<Log>,
    /// Frames that there may be; 0: it is off.
    most: AtomicU32,
    /// Empty frames that are held for areas without a device: [`RESERVE`], once memory becomes
    /// short.
    reserve: AtomicU64,
    /// Empty frames.
    spare: AtomicU64,
    /// Bytes that [`Promise`]s keep.
    promised: AtomicUsize,
    /// Pages in a row that became no shorter.
    poor: AtomicU32,
    chosen: Chosen,
    /// Changes when pages that were written back are.
    written_back: AtomicU32,
    waiting: AtomicU32,
    /// What it costs to read from it, and to store, by codec.
    costs: [DeviceCost; CODECS],
    /// Changes when the thread that writes back may have something to do.
    pub call: AtomicU32,
    /// There is such a thread.
    pub started: AtomicBool,
}

/// Room for pages that are about to be stored.
pub(crate) struct Promise<'a> {
    zswap: &'a Zswap,
    bytes: usize,
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        self.zswap.promised.fetch_sub(self.bytes, AcqRel);
    }
}

impl Zswap {
    /// Nothing in it.
    pub(super) fn new(pool: Arc<Member>, codecs: Arc<Codecs>) -> Result<Zswap> {
        Ok(Zswap {
            log: Lock::new(Log::new(pool.zswap_capacity())?),
            pool,
            codecs,
            most: AtomicU32::new(0),
            reserve: AtomicU64::new(0),
            spare: AtomicU64::new(0),
            promised: AtomicUsize::new(0),
            poor: AtomicU32::new(0),
            chosen: Chosen::new(),
            written_back: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            costs: COSTS.map(|(r#in, out)| DeviceCost::new(of_pages(r#in), of_pages(out))),
            call: AtomicU32::new(0),
            started: AtomicBool::new(false),
        })
    }

    /// In a forked child, which has none of its own yet.
    pub fn reset_in_child(&self) {
        self.log.lock().reset();
        self.most.store(0, Relaxed);
        self.reserve.store(0, Relaxed);
        self.spare.store(0, Relaxed);
        self.promised.store(0, Relaxed);
        self.chosen.reset();
        self.waiting.store(0, Relaxed);
        self.started.store(false, Relaxed);
    }

    /// What it costs now to read from it, and to store.
    pub fn cost(&self) -> &DeviceCost {
        &self.costs[self.codec() as usize]
    }

    /// Is there to be any?
    fn is_wanted(&self) -> bool {
        (self.pool.knob(Knob::ZswapEnabled) != zswap::NEVER || self.pool.has_memory_area())
            && self.pool.zswap_capacity() > 0
            && self.pool.me() != NOBODY
    }

    /// Is there to be any now?
    pub fn is_chosen(&self) -> bool {
        let auto = self.pool.knob(Knob::ZswapEnabled) == zswap::AUTO;
        let some = !auto || self.chosen.frames.load(Relaxed) > 0 || self.pool.has_memory_area();
        self.is_wanted() && some
    }

    /// kswapd: how large it may be now. True: it would have one more frame to store to. `short`:
    /// memory is, or will soon be; `at_once`: some of this process's is to leave now.
    pub fn wants_frame(&self, short: bool, at_once: bool) -> bool {
        let (held, alone) = (self.held(), self.pool.has_memory_area());
        let most = match self.pool.knob(Knob::ZswapEnabled) {
            zswap::AUTO if !alone => self.ceiling().min(self.chosen.frames.load(Relaxed)),
            _ => self.ceiling(),
        };
        self.most.store(most as u32, Relaxed);
        let needs = short && (at_once || !self.is_small());
        let reserve = match alone {
            true if needs => RESERVE,
            true => self.reserve.load(Relaxed),
            false => 0,
        };
        self.reserve.store(reserve.min(most), Relaxed);
        let spare = self.log.lock().spare();
        if held > most || held == most && spare < self.stock(most) || self.lacking() > 0 {
            self.wake();
        }
        held < most && spare < self.stock(most) && (needs || !alone)
    }

    /// Does this process have little memory?
    fn is_small(&self) -> bool {
        self.pool.record().charged.load(Relaxed) < SMALL
    }

    /// Empty frames that there are to be, of `most`.
    fn stock(&self, most: u64) -> u64 {
        match self.reserve.load(Relaxed) {
            0 => share::stock(most),
            reserve => reserve,
        }
    }

    /// Are frames held for areas without a device?
    pub fn has_reserve(&self) -> bool {
        self.reserve.load(Relaxed) > 0
    }

    /// Frames that it lacks to take anything in, where there is nothing else that would: nobody
    /// else may have them.
    pub fn lacking(&self) -> u64 {
        let reserve = self.reserve.load(Relaxed);
        if reserve == 0 {
            return 0;
        }
        let more = u64::from(self.most.load(Relaxed)).saturating_sub(self.held());
        reserve.saturating_sub(self.spare.load(Relaxed)).min(more)
    }

    /// Could a whole unit be stored, whatever it becomes?
    pub fn has_room_for_unit(&self) -> bool {
        self.promise_room(PAGES).is_some()
    }

    /// Is so much in use no more that a frame would be empty if blocks were moved together?
    pub fn is_loose(&self) -> bool {
        let (filled, used) = self.log.lock().full(self.pool.zswap_used());
        filled > used + crate::UNIT as u64
    }

    /// Keeps room for so many pages, whatever they become, besides what moving blocks together
    /// takes. `None`: there is too little.
    pub fn promise_room(&self, pages: usize) -> Option<Promise<'_>> {
        let bytes = pages * log::room(PAGE);
        // (What others have stored of theirs counts twice until they are done.)
        let others = self.promised.fetch_add(bytes, AcqRel);
        let promise = Promise { zswap: self, bytes };
        let room = self.log.lock().room();
        (room >= others + bytes + crate::UNIT / 2).then_some(promise)
    }

    /// The most frames that the settings allow.
    fn ceiling(&self) -> u64 {
        if !self.is_wanted() {
            return 0;
        }
        let charged = self.pool.record().charged.load(Relaxed);
        let percent = self.pool.knob(Knob::ZswapMaxPool);
        let most = match self.pool.has_memory_area() {
            true => share::most_alone(charged, percent),
            false => share::most(charged, percent),
        };
        most.min(self.pool.zswap_capacity() as u64)
    }

    /// The process has charged a frame for compressed memory. False: there is none to be had.
    pub fn supply(&self) -> bool {
        let Some(frame) = self.pool.claim_zswap_frame(self.pool.me()) else {
            return false;
        };
        // At once, and not a page at a time while pages are stored.
        hugeswap_sys::mm::populate(self.pool.zswap_addr(frame), crate::UNIT);
        let mut log = self.log.lock();
        log.put_spare(frame);
        self.note_spare(&log);
        true
    }

    /// The log has taken an empty frame, or got one.
    fn note_spare(&self, log: &Log) {
        if self.spare.load(Relaxed) != log.spare() {
            self.spare.store(log.spare(), Relaxed);
        }
    }

    /// Frames of this process.
    fn held(&self) -> u64 {
        self.pool.record().zswap.load(Relaxed)
    }

    /// Has the thread that writes back look whether there is something to do.
    pub fn wake(&self) {
        self.call.fetch_add(1, Release);
        futex::wake(&self.call, 1, false);
    }

    /// Are pages kept now?
    pub fn is_on(&self) -> bool {
        self.most.load(Relaxed) > 0
    }

    /// Are pages of this cluster to be kept that leave memory by themselves, or with a `whole`
    /// unit?
    pub fn admits(&self, cluster: u64, whole: bool) -> bool {
        self.is_on()
            && (self.admits_class(whole) || self.pool.is_in_memory(cluster))
            && self.pool.owns_cluster(cluster)
    }

    /// Are pages that leave memory by themselves, or with a `whole` unit, to be kept, whatever area
    /// they go to?
    pub fn admits_class(&self, whole: bool) -> bool {
        let chosen = &self.chosen.classes[usize::from(whole)];
        self.is_on()
            && (chosen.load(Relaxed) || self.pool.knob(Knob::ZswapEnabled) == zswap::ALWAYS)
    }

    /// Stores pages of a cluster of this process's own, which are not in compressed memory, from
    /// `from`, which is readable. `how`: `CLEAN`, or 0, and whether pages are kept as they are that
    /// do not become short enough. Calls `stored` with each page that is kept.
    pub fn store(
        &self,
        cluster: u64,
        pages: Range<usize>,
        from: usize,
        (clean, all): (u64, bool),
        mut stored: impl FnMut(usize),
    ) {
        let mut scratch = self.codecs.scratch();
        let scratch = scratch.get_or_insert_with(Scratch::new);
        if let Some(n) = self.sample_of_stored(pages.len()) {
            // SAFETY: as below.
            unsafe { scratch.copy_page(from + n * PAGE) };
            self.take_sample(scratch);
        }
        let by = self.codec();
        let most = if all { LONGEST } else { SHORT };
        let start = now_ns();
        let (mut kept, mut poor, mut full, mut skipped) = (0, 0, 0, 0);
        let mut bytes = 0;
        for page in pages.clone() {
            let tried = self.is_tried();
            if !tried {
                skipped += 1;
                if !all {
                    continue;
                }
            }
            // SAFETY: the caller's memory. If the program changes it meanwhile, what is kept is of
            // no use, and it is the caller that knows.
            unsafe { scratch.copy_page(from + (page - pages.start) * PAGE) };
            let len = if tried {
                scratch.compress(by, most)
            } else {
                None
            };
            match len {
                Some(_) => self.poor.store(0, Relaxed),
                None if tried => {
                    self.poor.fetch_add(1, Relaxed);
                    poor += 1;
                }
                None => {}
            }
            let block = match len {
                Some(len) => &scratch.block[..len],
                None if all => &scratch.page[..],
                None => continue,
            };
            match self.keep(cluster, page, clean, block) {
                true => {
                    kept += 1;
                    bytes += log::room(block.len()) as u64;
                    stored(page);
                }
                false => full += 1,
            }
        }
        let counts = [
            (Counter::ZswpOut, kept),
            (Counter::ZswpClean, if clean != 0 { kept } else { 0 }),
            (Counter::ZswpZstd, if by == Codec::Lz4 { 0 } else { kept }),
            (Counter::ZswpBytes, bytes),
            (Counter::ZswpPoor, poor),
            (Counter::ZswpFull, full),
            (Counter::ZswpSkipped, skipped),
        ];
        for (counter, n) in counts.into_iter().filter(|&(_, n)| n > 0) {
            self.pool.count(counter, n);
        }
        let took = now_ns().saturating_sub(start);
        let cost = &self.costs[by as usize];
        if let Some(ns) = took.checked_div(kept + poor) {
            cost.observe(Direction::Out, Size::Page, ns);
        }
        if pages.len() > 1 {
            observe(cost, Direction::Out, pages.len(), took);
        }
        self.chosen.note_tried(by, kept + full, poor + skipped);
        if full > 0 {
            self.wake();
        }
    }

    /// Is the next page worth an attempt?
    fn is_tried(&self) -> bool {
        let poor = self.poor.load(Relaxed);
        if poor < POOR_IN_A_ROW || poor.is_multiple_of(TRY_ONE_OF) {
            return true;
        }
        self.poor
            .store(poor.wrapping_add(1).max(POOR_IN_A_ROW), Relaxed);
        false
    }

    fn keep(&self, cluster: u64, page: usize, clean: u64, block: &[u8]) -> bool {
        let (Some(count), Some(words)) = (
            self.pool.zswap_count(cluster),
            self.pool.zswap_words(cluster),
        ) else {
            return false;
        };
        let slot = cluster * PAGES as u64 + page as u64;
        let mut log = self.log.lock();
        let Some(entry) = log.append(&self.pool, slot, block) else {
            return false;
        };
        self.note_spare(&log);
        // First: where the count is 0 nobody looks at the words.
        count.fetch_add(1, AcqRel);
        let was = words[page].swap(entry.word() | clean, AcqRel);
        debug_assert_eq!(was, 0, "a slot is forgotten before it is written");
        self.pool.record().zswap_pages.fetch_add(1, Relaxed);
        true
    }

    /// May any page of a cluster be in compressed memory?
    pub fn has(&self, cluster: u64) -> bool {
        self.pool
            .zswap_count(cluster)
            .is_some_and(|n| n.load(Acquire) > 0)
    }

    /// Is a page in compressed memory?
    pub fn holds(&self, cluster: u64, page: usize) -> bool {
        self.has(cluster)
            && self
                .pool
                .zswap_words(cluster)
                .is_some_and(|w| w[page].load(Relaxed) != 0)
    }

    /// Reads a page to `to`, if it is in compressed memory. Its sum is the caller's to compare. (Not
    /// inlined: its block is large for a small stack, and callers read from devices, too.)
    #[inline(never)]
    pub fn load(&self, cluster: u64, page: usize, to: usize) -> bool {
        let Some(word) = self.pool.zswap_words(cluster).map(|w| &w[page]) else {
            return false;
        };
        let mut room = room();
        let mut block = Block::new(&mut room);
        let copied = Slot(word).load(|seen| {
            let e = self.entry(seen)?;
            // SAFETY: within a frame of the segment, and the caller's page. Another thread may use
            // the frame for something else meanwhile; then the word has changed.
            let copied = unsafe { block.copy(self.block_at(e) as *const u8, e.len, to) };
            fence(Acquire);
            copied.then_some(())
        });
        // SAFETY: the caller's page.
        copied.is_some() && unsafe { self.codecs.decoders.decompress(&mut block, to) }
    }

    /// Pages of a cluster are in compressed memory no more. The cluster is this process's own, and
    /// no other thread writes these pages.
    pub fn forget(&self, cluster: u64, pages: Range<usize>) {
        let (Some(count), Some(words)) = (
            self.pool.zswap_count(cluster),
            self.pool.zswap_words(cluster),
        ) else {
            return;
        };
        if count.load(Acquire) == 0 {
            return;
        }
        for word in words.get(pages).into_iter().flatten() {
            let removed = Slot(word).forget(|| self.wait_for_writeback(word));
            self.note_removed(cluster, removed);
        }
    }

    /// A word of a cluster's was removed; false: there was none.
    fn note_removed(&self, cluster: u64, word: Option<u64>) -> bool {
        let Some(word) = word else {
            return false;
        };
        if let Some(e) = self.entry(word) {
            self.pool.record().zswap_pages.fetch_sub(1, Relaxed);
            self.not_used(e);
        }
        if let Some(count) = self.pool.zswap_count(cluster) {
            count.fetch_sub(1, AcqRel);
        }
        true
    }

    /// The room of a block is free.
    fn not_used(&self, e: Entry) {
        let used = &self.pool.zswap_used()[e.frame as usize];
        used.fetch_sub(log::room(e.len) as u32, AcqRel);
    }

    #[cold]
    fn wait_for_writeback(&self, word: &AtomicU64) {
        let seen = self.written_back.load(Acquire);
        self.waiting.fetch_add(1, AcqRel);
        if word.load(Acquire) & WRITEBACK != 0 {
            futex::wait(&self.written_back, seen, Some(PATIENCE_NS), false);
        }
        self.waiting.fetch_sub(1, AcqRel);
    }

    fn entry(&self, word: u64) -> Option<Entry> {
        Entry::of(word, self.pool.zswap_capacity(), crate::UNIT, PAGE)
    }

    fn block_at(&self, e: Entry) -> usize {
        self.pool.zswap_addr(e.frame) + e.offset
    }
}
