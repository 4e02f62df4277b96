//! Compressed memory made empty: the oldest frame is written back to swap, or the emptiest is moved
//! together with what is stored now.
//!
//! One thread of the process does this (`hs-zswap`), a frame at a time inside the gate. What was
//! read since it was stored is passed over once: it goes to the end of the log. The rest is sorted
//! by slot and written in runs, as long as they are in swap.
//!
//! A page that cannot be written stays where it is.

use super::super::codec::{Block, room};
use super::log::{self, block_at};
use super::{PAGE, PAGES, Zswap};
use crate::UNIT;
use crate::store::{Pages, Store};
use hugeswap_policy::counters::Counter;
use hugeswap_policy::zswap::entry::{self, Entry, REFERENCED};
use hugeswap_policy::zswap::slot::Slot;
use hugeswap_sys::futex;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

/// Full frames are moved together while so much of them, in parts of 16, is not in use.
const LOOSE: u64 = 1;
/// Blocks that are gone through at one time.
const BLOCKS: usize = 4096;

/// What is to be done with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    /// Written back.
    WriteBack(u32),
    /// Moved together.
    Compact(u32),
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shrunk {
    /// A frame was dealt with.
    Some,
    /// There is nothing to do.
    Nothing,
    /// Swap does not take it.
    Failed,
}

/// What the thread works with.
pub(crate) struct Shrinker {
    buffer: Pages,
    blocks: Vec<(u64, Entry)>,
}

impl Shrinker {
    /// `None`: there is no memory for it.
    pub fn new() -> Option<Shrinker> {
        Some(Shrinker {
            buffer: Pages::new(UNIT).ok()?,
            blocks: Vec::with_capacity(BLOCKS),
        })
    }
}

impl Store {
    /// Makes one frame of compressed memory empty, if that is needed. `idle`: nothing was stored
    /// for a while.
    pub(crate) fn shrink_zswap(&self, with: &mut Shrinker, idle: bool) -> Shrunk {
        let z = &self.zswap;
        let Some(task) = z.task(idle) else {
            return Shrunk::Nothing;
        };
        let (frame, write_back) = match task {
            Task::WriteBack(f) => (f, true),
            Task::Compact(f) => (f, false),
        };
        let filled = z.log.lock().filled(frame);
        let (mut at, mut failed) = (0, false);
        // What is passed over must leave room for what comes.
        let mut pass_over = z.pool.zswap_used()[frame as usize].load(Relaxed) / 2;
        while at < filled {
            with.blocks.clear();
            while with.blocks.len() < BLOCKS
                && let Some((slot, e, next)) = block_at(&z.pool, frame, at, filled)
            {
                at = next;
                let Some(word) = z.word_of(slot, e) else {
                    continue;
                };
                let referenced = word.load(Relaxed) & REFERENCED != 0;
                let room = log::room(e.len) as u32;
                if write_back && z.drop_clean(slot, word, false) {
                    continue;
                }
                let only_here = z.pool.is_in_memory(slot / PAGES as u64);
                let stays = !write_back || only_here || referenced && pass_over >= room;
                if stays && z.move_block(slot, e, word) {
                    pass_over = pass_over.saturating_sub(room);
                } else if write_back && !only_here && !z.drop_clean(slot, word, true) {
                    with.blocks.push((slot, e));
                }
            }
            failed |= !self.write_back(with);
            if block_at(&z.pool, frame, at, filled).is_none() {
                break;
            }
        }
        match z.put_frame(frame) && !failed {
            true => Shrunk::Some,
            false => Shrunk::Failed,
        }
    }

    /// Writes blocks to their slots. False: some are not.
    fn write_back(&self, with: &mut Shrinker) -> bool {
        with.blocks.sort_unstable_by_key(|b| b.0);
        let mut rest = &with.blocks[..];
        let mut all = true;
        while let Some(&(first, _)) = rest.first() {
            let together = |(k, b): (usize, &(u64, Entry))| {
                b.0 == first + k as u64 && b.0 / PAGES as u64 == first / PAGES as u64
            };
            let n = rest.iter().enumerate().take_while(|&x| together(x)).count();
            let (run, after) = rest.split_at(n);
            rest = after;
            all &= self.write_back_run(run, with.buffer.addr());
        }
        all
    }

    /// The same of neighbours in one cluster.
    fn write_back_run(&self, run: &[(u64, Entry)], buffer: usize) -> bool {
        let z = &self.zswap;
        let mut all = true;
        let mut k = 0;
        while k < run.len() {
            let from = k;
            while k < run.len() && z.begin_write_back(run[k], buffer + (k - from) * PAGE) {
                k += 1;
            }
            if k > from {
                let page = (run[from].0 % PAGES as u64) as usize;
                let pages = page..page + (k - from);
                let cluster = run[from].0 / PAGES as u64;
                let written = self.write_kept(cluster, pages, buffer).is_ok();
                z.end_write_back(&run[from..k], written);
                all &= written;
            } else {
                k += 1;
            }
        }
        all
    }

    /// Writes pages to their slots, which are this process's own and keep the sums that they have.
    fn write_kept(
        &self,
        cluster: u64,
        pages: Range<usize>,
        from: usize,
    ) -> hugeswap_sys::Result<()> {
        self.write_to_device(cluster, pages, from, None, false)
    }
}

impl Zswap {
    /// What is to be done next.
    fn task(&self, idle: bool) -> Option<Task> {
        let most = u64::from(self.most.load(Relaxed));
        let empty = idle && self.pool.record().zswap_pages.load(Relaxed) == 0;
        let mut log = self.log.lock();
        if empty {
            log.close();
        }
        let rests = idle && self.has_reserve() && self.is_small();
        if rests {
            self.reserve.store(0, Relaxed);
        }
        let reserved = self.reserve.load(Relaxed);
        while ((empty || rests) && log.spare() > reserved || self.held() > most)
            && let Some(frame) = log.take_spare()
        {
            self.give_frame_back(frame);
        }
        self.note_spare(&log);
        let held = self.held();
        if held == 0 {
            return None;
        }
        let used = self.pool.zswap_used();
        let (filled, in_use) = log.full(used);
        let full = held > most || held == most && log.spare() < self.stock(most);
        let short = full || self.lacking() > 0;
        // The one that is being filled is the last to go.
        if full && filled == 0 {
            log.close();
        }
        let room = log.room();
        let most = match short {
            // What is moved together is not written.
            true if self.lacking() == 0 => UNIT / 4 * 3,
            true => UNIT / 16 * 15,
            false if log.spare() == 0 && !self.has_reserve() => 0,
            false if (filled - in_use.min(filled)) * 16 <= filled * LOOSE => 0,
            false => UNIT / 16 * 15,
        };
        // (An empty one needs no room.)
        if let Some(frame) = log.take_emptiest(used, most.min(room).max(1) as u32) {
            return Some(Task::Compact(frame));
        }
        let somewhere = full && self.pool.has_device_area();
        somewhere.then(|| log.take_oldest().map(Task::WriteBack))?
    }

    /// A frame that was gone through. Is it empty?
    fn put_frame(&self, frame: u32) -> bool {
        let mut log = self.log.lock();
        if self.pool.zswap_used()[frame as usize].load(Acquire) > 0 {
            log.put_newest(frame);
            return false;
        }
        let most = u64::from(self.most.load(Relaxed));
        if self.held() <= most && log.spare() < self.stock(most) {
            log.put_spare(frame);
            self.note_spare(&log);
        } else {
            drop(log);
            self.give_frame_back(frame);
        }
        true
    }

    fn give_frame_back(&self, frame: u32) {
        let me = self.pool.me();
        self.pool.free_zswap_frame(me, frame);
        self.pool.uncharge(me, 1);
    }

    /// The word of a slot, if it names this block.
    fn word_of(&self, slot: u64, e: Entry) -> Option<&AtomicU64> {
        let (cluster, page) = (slot / PAGES as u64, (slot % PAGES as u64) as usize);
        let word = &self.pool.zswap_words(cluster)?[page];
        (self.pool.owns_cluster(cluster) && entry::same(word.load(Acquire), e.word()))
            .then_some(word)
    }

    /// Removes a page that its slot holds as well, unless it was read, or then too (`read`). Is it
    /// removed?
    fn drop_clean(&self, slot: u64, word: &AtomicU64, read: bool) -> bool {
        self.note_removed(slot / PAGES as u64, Slot(word).drop_clean(read))
    }

    /// Moves a block to the end of the log; false: there is no room.
    fn move_block(&self, slot: u64, e: Entry, word: &AtomicU64) -> bool {
        let mut log = self.log.lock();
        // SAFETY: within a frame of this process's. If it is given up meanwhile, the copy is, too.
        let block = unsafe { std::slice::from_raw_parts(self.block_at(e) as *const u8, e.len) };
        let Some(to) = log.append(&self.pool, slot, block) else {
            return false;
        };
        let moved = Slot(word).move_block(e.word(), to.word());
        self.note_spare(&log);
        drop(log);
        self.not_used(if moved { e } else { to });
        self.pool.count(Counter::ZswpMoved, 1);
        true
    }

    /// Decodes a block to `to` for its slot; false: it is no more, or is damaged.
    fn begin_write_back(&self, (slot, e): (u64, Entry), to: usize) -> bool {
        let Some(word) = self.word_of(slot, e) else {
            return false;
        };
        if !Slot(word).begin_write_back(e.word()) {
            return false;
        }
        let mut room = room();
        let mut block = Block::new(&mut room);
        // SAFETY: a block of this process's, which stays while the bit is set, and a page of the
        // thread's buffer.
        let decoded = unsafe {
            block.copy(self.block_at(e) as *const u8, e.len, to)
                && self.codecs.decoders.decompress(&mut block, to)
        };
        if !decoded {
            Slot(word).end_write_back(false);
        }
        decoded
    }

    /// Blocks are in their slots, or could not be written.
    fn end_write_back(&self, run: &[(u64, Entry)], written: bool) {
        for &(slot, _) in run {
            let (cluster, page) = (slot / PAGES as u64, (slot % PAGES as u64) as usize);
            let Some(word) = self.pool.zswap_words(cluster).map(|w| &w[page]) else {
                continue;
            };
            self.note_removed(cluster, Slot(word).end_write_back(written));
        }
        if written {
            self.pool.count(Counter::ZswpWb, run.len() as u64);
        }
        self.written_back.fetch_add(1, AcqRel);
        if self.waiting.load(Acquire) > 0 {
            futex::wake(&self.written_back, u32::MAX >> 1, false);
        }
    }
}
