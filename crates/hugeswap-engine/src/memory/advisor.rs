//! Input of the advisor ([`hugeswap_policy::advisor`]): when pages leave and come back, added up in
//! the process's record of the pool segment.
//!
//! Concurrency: atomics, and records under the units' locks. The fault path calls this, and its
//! rules hold here.

use crate::memory::Memory;
use crate::pages::record::{PageTurns, Record};
use hugeswap_policy::{UNIT_PAGES, advisor};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

impl Memory {
    /// Adds to a word of the tally.
    pub(crate) fn advise(&self, word: usize, n: u64) {
        if let Some(word) = self.pool.record().events.advisor.get(word) {
            word.fetch_add(n, Relaxed);
        }
    }

    /// Pages of this process in memory, those apart that are compressed.
    pub(super) fn resident_pages(&self) -> u64 {
        self.pool.record().uncompressed() * UNIT_PAGES
    }

    /// The absent ones of `pages` of a locked, base-mapped unit are to be read from swap.
    #[inline(never)]
    pub(crate) fn advise_pages_back(&self, unit: u32, record: &Record, pages: Range<usize>) {
        let resident = self.resident_pages();
        for page in pages.filter(|&p| !record.present.get(p) && record.stored.get(p)) {
            let distance = self.distance(unit, record, page);
            self.advise(advisor::paged_back(distance, resident), 1);
        }
    }

    /// Pages evicted since an absent page of a locked unit left: counted, if that was when some of
    /// the unit last did, else by the usual length of its turns. Of a page that never left by
    /// itself, at least so many.
    fn distance(&self, unit: u32, record: &Record, page: usize) -> u64 {
        let since = self.since(record);
        let turns = self.base.turns.get(unit as usize);
        let byte = turns.and_then(|PageTurns(bytes)| bytes.get(page));
        let (Some(byte), false) = (byte, record.left.get(page)) else {
            return since;
        };
        let turn = record.turn.load(Relaxed);
        let known = turn.saturating_sub(record.known_from.load(Relaxed));
        let absent = advisor::absent(byte.load(Relaxed), turn, known);
        since.saturating_add(absent.saturating_mul(record.turn_length.load(Relaxed)))
    }

    /// The refault distance of an absent page of a locked unit: see `hugeswap_policy::workingset`.
    /// `None`: it is not known to have left.
    pub(crate) fn refault_distance(&self, unit: u32, record: &Record, page: usize) -> Option<u64> {
        let marked = || {
            let turns = self.base.turns.get(unit as usize);
            turns.is_some_and(|PageTurns(bytes)| {
                bytes.get(page).is_some_and(|b| b.load(Relaxed) != 0)
            })
        };
        (record.left.get(page) || marked()).then(|| self.distance(unit, record, page))
    }

    /// Pages evicted since some of a locked unit last were. Of what never left here (a parent's,
    /// say) nothing is known.
    fn since(&self, record: &Record) -> u64 {
        match record.left_at.load(Relaxed) {
            0 => u64::MAX,
            at => self.sizes.evicted().saturating_sub(at),
        }
    }

    /// A locked unit was read from swap whole.
    pub(crate) fn advise_came_back(&self, unit: u32) {
        let distance = self.since(self.base.records.of(unit));
        let word = advisor::whole_back(distance, self.resident_pages());
        self.advise(word, UNIT_PAGES);
    }

    /// A turn of a locked, base-mapped unit ends at `now`: the `n` pages in `left` are leaving.
    #[inline(never)]
    pub(crate) fn advise_turn(&self, unit: u32, record: &Record, n: u64, now: u64) {
        self.advise(advisor::LEFT_PAGED, n);
        let turn = record.turn.load(Relaxed);
        let length = now.saturating_sub(record.left_at.load(Relaxed));
        let mean = match record.turn_length.load(Relaxed) {
            0 => length,
            before => before - before / 4 + length / 4,
        };
        record.turn_length.store(mean, Relaxed);
        record.turn.store(turn + 1, Relaxed);
        let Some(PageTurns(bytes)) = self.base.turns.get(unit as usize) else {
            return;
        };
        let left = bytes
            .iter()
            .enumerate()
            .filter(|(p, _)| record.left.get(*p));
        left.for_each(|(_, byte)| byte.store(advisor::mark(turn), Relaxed));
    }

    /// All of a locked unit was in memory until now: of turns before nothing is known.
    pub(crate) fn advise_whole(&self, record: &Record) {
        record.known_from.store(record.turn.load(Relaxed), Relaxed);
    }
}
