//! The scrubber: on request, every process reads all that it has in swap, at leisure, and checks
//! whether it is what was written.
//!
//! What is bad ([`crate::store`]) and still in memory becomes dirty and is written elsewhere. What
//! is bad and nowhere else is lost, which one line says and `hwpoison` counts, once. kswapd does
//! it, a unit at a time, when it has nothing else to do, under the unit's lock. It leaves out units
//! that another thread has locked: what is being read is verified by its reader. It also leaves out
//! base pages that are dirty, because what swap holds of them is not needed. (It looks at units in
//! memory that may be dirty: if they turn out not to have changed, what swap holds is what counts.)

use super::{PAGE, PAGES};
use crate::checksum::{self, UnitSums};
use crate::pages::record::Record;
use crate::reclaim::Reclaim;
use crate::store::BUFFER;
use crate::table::Locked;
use hugeswap_policy::unit::step::Event;
use hugeswap_policy::unit::{Kind, Place, WATCHED, WRITEBACK, Word};
use hugeswap_sys::{fs, process};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// How far an engine is.
#[derive(Default)]
pub(crate) struct Scrubber {
    number: AtomicU32,
    next: AtomicU32,
}

impl Reclaim {
    /// Scrubs one unit, if that was asked for; false if there is nothing to do. For kswapd.
    pub(crate) fn scrub_some(&self) -> bool {
        let wanted = self.pool.header().scrubs.load(Acquire);
        let scrub = &self.pool.record().scrub;
        if scrub.done.load(Relaxed) == wanted {
            return false;
        }
        let _inside = self.gate.enter_daemon();
        let s = &self.scrubber;
        if s.number.swap(wanted, Relaxed) != wanted {
            scrub.begin(scrub.done.load(Relaxed));
            s.next.store(0, Relaxed);
        }
        let unit = s.next.fetch_add(1, Relaxed);
        if unit >= self.high_unit.load(Acquire) {
            scrub.done.store(wanted, Release);
            return false;
        }
        let stored =
            |w: Word| matches!(w.place(), Place::Cluster(_) | Place::Singles) && !w.has(WRITEBACK);
        if let Some(mut w) = self.table.try_lock_if(unit, stored) {
            let was = *w;
            self.scrub_unit(&mut w);
            let dirtied = w.kind() == Kind::Present && *w != was && !was.has(WATCHED);
            w.settle();
            if dirtied {
                self.note_resident(unit);
            }
            process::yield_now();
        }
        true
    }

    fn scrub_unit(&self, w: &mut Locked<'_>) {
        let unit = w.unit();
        let record = (w.kind() == Kind::Base).then(|| self.base.records.of(unit));
        let in_memory = |p: usize| match record {
            Some(record) => record.present.get(p),
            None => matches!(w.kind(), Kind::Present | Kind::Cached),
        };
        let (mut bad, mut lost, mut news) = (0, 0, 0);
        let mut page = 0;
        while page < PAGES {
            let end = PAGES.min(page + BUFFER / PAGE);
            let found = self.verify(unit, **w, record, page..end);
            for (p, new) in found.into_iter().flatten() {
                bad += 1;
                lost += u64::from(!in_memory(p));
                news += u64::from(!in_memory(p) && new);
                if let Some(record) = record.filter(|_| in_memory(p)) {
                    self.make_page_dirty(record, p);
                }
            }
            page = end;
        }
        let scrub = &self.pool.record().scrub;
        scrub.bad.fetch_add(bad, Relaxed);
        scrub.lost.fetch_add(lost, Relaxed);
        if news > 0 {
            self.complain_of_loss(unit, news);
        }
        let kept = match w.kind() {
            Kind::Present if bad > 0 => self.make_dirty(w),
            Kind::Cached if bad > 0 => self.write_elsewhere(w),
            _ => true,
        };
        if kept {
            scrub.recovered.fetch_add(bad - lost, Relaxed);
        }
    }

    /// Which of a few pages of a locked unit are bad in swap, and was that not known?
    fn verify(
        &self,
        unit: u32,
        w: Word,
        record: Option<&Record>,
        pages: std::ops::Range<usize>,
    ) -> [Option<(usize, bool)>; BUFFER / PAGE] {
        let buffer = self.base.take_buffer();
        let mut bad = [None; BUFFER / PAGE];
        let needed = |p: usize| match record {
            // (What came writable may be dropped without being written.)
            Some(r) => r.stored.get(p) && (!r.dirty.get(p) || r.changed.get(p)),
            // What was written while it changed is not known, and not needed.
            None if w.kind() == Kind::Present => self.store.is_known(unit, w.place(), p),
            None => self.store.slot_of(unit, w.place(), p).is_some(),
        };
        let mut good = 0;
        let first = pages.start;
        let mut next = first;
        while next < pages.end {
            let run = (next..pages.end).take_while(|&p| needed(p)).count();
            let run = next..next + run;
            if run.is_empty() {
                next += 1;
                continue;
            }
            next = run.end;
            if self
                .read_stored(unit, w, run.clone(), buffer.addr())
                .is_ok()
                && !self.store.is_bad_anywhere(unit, w.place(), run.clone())
            {
                good += run.len() as u64;
                continue;
            }
            for p in run {
                let known = self.store.is_bad_anywhere(unit, w.place(), p..p + 1);
                match self.read_or_mark(unit, w, p, buffer.addr(), false) {
                    Ok(()) if !known => good += 1,
                    // (Read after all, it is in memory if it is to be had, or stays where it is.)
                    Ok(()) | Err(_) => bad[p - first] = Some((p, !known)),
                }
            }
        }
        self.pool.record().scrub.good.fetch_add(good, Relaxed);
        bad
    }

    /// A unit that is in memory, and whose place in swap is bad, becomes dirty. False: that could
    /// not be.
    pub(super) fn make_dirty(&self, w: &mut Locked<'_>) -> bool {
        let opens = w.has(WATCHED) && w.allows(false);
        if opens && self.backend.set_readable(w.addr()).is_err() {
            return false;
        }
        self.advance(w, Event::Dirtied);
        true
    }

    /// The same of one in the arena: it is written to another cluster.
    pub(super) fn write_elsewhere(&self, w: &mut Locked<'_>) -> bool {
        let Some(new) = self.store.claim_cluster() else {
            return false;
        };
        let at = self.arena.addr(w.frame());
        let mut sums: UnitSums = [0; PAGES];
        // SAFETY: a cached unit's frame is in the arena, and no thread changes it.
        checksum::fill(&self.store.key, unsafe { self.bytes(at) }, &mut sums);
        if self.store.write(new, 0..PAGES, at, &sums, false).is_err() {
            self.store.release_cluster(new);
            return false;
        }
        self.store.free_place(w.unit(), w.place());
        self.advance(w, Event::Placed(Place::Cluster(new)));
        true
    }

    pub(super) fn complain_of_loss(&self, unit: u32, pages: u64) {
        let (mut a, mut b, mut c) = ([0u8; 20], [0u8; 20], [0u8; 20]);
        fs::complain(&[
            b"hugeswap: process ",
            fs::digits(process::pid() as u64, 10, &mut a),
            b": ",
            fs::digits((pages * PAGE as u64) >> 10, 10, &mut b),
            b" KiB of memory are lost, from 0x",
            fs::digits(self.table.addr(unit) as u64, 16, &mut c),
            b" on: swap gave back something else than was written, or nothing\n",
        ]);
    }
}
