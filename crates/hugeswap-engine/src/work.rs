//! The I/O threads: reads ahead, reads that program threads could not do, and write-outs.
//!
//! Two threads in each process take reads first, then writes, as many and as large as the latency
//! of reads allows ([`hugeswap_policy::device::wbt`], `store::wbt`, [`crate::writers`]). Faulting
//! threads do their own reads. A planned read locks its unit at once, but belongs to the thread
//! that takes it up first: an I/O thread, or the program's own that touches the unit.
//!
//! A write that fails for good is counted and tried in other clusters, three more times, preferably
//! in another area. The unit stays in memory until one attempt works.

use crate::checksum::{self, UnitSums};
use crate::paging::Job;
use crate::paging::Paging;
use crate::sparse::Sparse;
use crate::store::initialise::{self, Ahead};
use crate::table::{Locked, NO_FRAME};
use hugeswap_policy::UNIT_PAGES;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::unit::FilePlace;
use hugeswap_policy::unit::step::Event;
use hugeswap_policy::unit::{Place, WRITABLE};
use hugeswap_sys::futex;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::Ordering::{Acquire, Release};

/// Without work an I/O thread looks again after so long.
const IDLE_NS: u64 = 500_000_000;

/// What came of writing a unit.
enum Wrote {
    /// It is zeros: there is nothing to write.
    Zeros,
    /// The place that it has holds the same.
    Unchanged(Place),
    /// It was written to this cluster.
    To(u64),
    /// What of it is not zero was written to single slots.
    Sparse(Sparse),
    /// No cluster would take it.
    Nothing,
}

impl Paging {
    /// A thread's body: reads first, writes when there is nothing to read.
    pub(crate) fn worker(&'static self) {
        loop {
            let seq = self.work_seq.load(Acquire);
            if self.stopping.load(Acquire) {
                return;
            }
            let inside = self.gate.enter_daemon();
            if let Some(job) = self.reads.pop() {
                self.read_in(job);
                continue;
            }
            drop(inside);
            if self.write_some() {
                continue;
            }
            if let Some(rest) = self.prepare_some() {
                let rest = self.writers.rest_left().map_or(rest, |w| w.min(rest));
                futex::wait(&self.work_seq, seq, Some(rest), false);
            }
        }
    }

    /// Does one queued write; false if there is none, or not for now.
    pub(crate) fn write_some(&self) -> bool {
        let _inside = self.gate.enter_daemon();
        self.write_one()
    }

    /// Nothing is to be read or written: prepares for what will be. `None`: something was done;
    /// else when to look again, nanoseconds.
    fn prepare_some(&self) -> Option<u64> {
        let _inside = self.gate.enter_daemon();
        if self.store.grow_ahead() {
            return None;
        }
        match self.store.initialise_ahead(|| self.is_idle()) {
            Ahead::Done => None,
            Ahead::Later => Some(initialise::QUIET_NS),
            Ahead::Nothing => Some(IDLE_NS),
        }
    }

    /// Is nothing read or written, or waited for?
    fn is_idle(&self) -> bool {
        self.reads.is_empty()
            && self.writes.is_empty()
            && self.inflight_writes.load(Acquire) == 0
            && !self.somebody_waits()
    }

    /// [`Paging::write_some`] for a thread that is inside the gate (which is not entered twice: a
    /// fork that closes it in between would wait for ever).
    pub(crate) fn write_one(&self) -> bool {
        let Some(writing) = self.may_write() else {
            return false;
        };
        match self.writes.pop() {
            Some(Job::Write(unit)) => {
                self.write_out(unit);
                writing.done();
                true
            }
            _ => false,
        }
    }

    fn read_in(&self, job: Job) {
        match job {
            Job::Read(unit) => {
                if let Some(w) = self.table.claim(unit) {
                    self.read_planned(w);
                }
            }
            Job::Shared(unit) => self.sharing.bring(self.host(), unit),
            Job::Handed(unit) => self.read_handed(unit),
            Job::Whole(unit) => self.whole_handed(unit),
            Job::Bring { unit, from, to } => self.bring_handed(unit, from.into()..to.into()),
            Job::Drop { unit, from, to } => self.drop_handed(unit, from.into()..to.into()),
            Job::Settle { unit, drop } => self.settle_handed(unit, drop),
            Job::Flush(unit) => self.flush_handed(unit),
            Job::Write(unit) => self.write_out(unit),
        }
    }

    /// A read planned ahead. If anything stands in its way it is simply not done.
    fn read_planned(&self, w: Locked<'_>) {
        let unit = w.unit();
        // What is not needed yet waits for nothing, and takes no reserves.
        let gfp = self.gfp_ahead();
        let Some(frame) = self.huge_nowait(gfp, Some(unit)) else {
            return w.settle();
        };
        let at = self.arena.addr(frame.place);
        if self.read_unit(unit, *w, at, false).is_err() {
            self.arena.put_free(frame.place);
            w.settle();
            return;
        }
        w.set_frame(frame.place);
        let numa = &self.arena.numa;
        numa.set_unit(unit, numa.of_place(frame.place));
        self.settle_by(w, Event::Filled);
    }

    /// A read that a program thread could not do; its frame is in the table, its lock is ours.
    fn read_handed(&self, unit: u32) {
        let mut w = self.table.passed(unit);
        let place = w.frame();
        let at = self.arena.addr(place);
        let read = self.read_unit(unit, *w, at, false).is_ok();
        let of_file = w.file().is_some();
        if read || !of_file && self.read_unit_by_pages(unit, *w, at) {
            return self.settle_by(w, Event::Filled);
        }
        self.note_read_error(*w);
        w.set_frame(NO_FRAME);
        self.arena.put_free(place);
        if !of_file && self.go_over_to_pages(&mut w) {
            // What can be read of it can be had.
            return w.settle();
        }
        if !of_file {
            self.note_unit_lost(unit, *w);
        }
        self.store.free_place(unit, w.place());
        self.settle_by(w, Event::Lost);
    }

    /// Writes a unit under write-back to swap, from where it stands.
    pub(crate) fn write_out(&self, unit: u32) {
        let tried = self.write_out_inner(unit);
        if self.store.zswap.lacking() > 0 {
            // What it took of compressed memory is to come back, before it is touched again.
            self.free_parked(unit);
            self.pool.kick();
        }
        self.inflight_writes.fetch_sub(1, Release);
        // A thread that waits for memory is patient as long as some becomes available: a file that
        // cannot be written is not that. (Where swap takes no writes, it is called full.)
        if tried {
            self.note_available();
            if self.frames_owed() > 0 {
                // Only kswapd hands them back.
                self.pool.kick();
            }
        }
    }

    /// False: it belongs to a file, which did not take it.
    fn write_out_inner(&self, unit: u32) -> bool {
        if let Some(place) = self.table.load(unit).file() {
            return self.write_out_to_file(unit, place);
        }
        // (Under write-back the unit is mapped readable; if the program writes meanwhile, the word
        // says so and the result is thrown away.)
        let wrote = self.write_from(unit, self.table.addr(unit));
        self.finish_write_out(self.table.lock(unit), wrote);
        true
    }

    /// Writes a locked, dirty unit that the program has no access to, and leaves it where a fault
    /// may take its frame. Unlocks it. Was it written? (What is under write-back is mapped
    /// readable where it stands, and so this one is written from a place in the arena.)
    pub(crate) fn write_out_closed(&self, mut w: Locked<'_>) -> bool {
        let unit = w.unit();
        let place = self.arena.take_empty();
        let place = place.filter(|&place| {
            let moved = self.move_out(unit, place, false).is_ok();
            if !moved {
                self.arena.put_empty(place);
            }
            moved
        });
        let Some(place) = place else {
            w.settle();
            self.lru.lock().put_back(unit);
            return false;
        };
        self.advance(&mut w, Event::WriteBegun);
        let from = self.arena.addr(place);
        let wrote = self.write_from(unit, from);
        if self.backend.relocate(from, w.addr(), false).is_err() {
            // (Rather readable than lost.)
            return self.put_back(w, place);
        }
        self.arena.put_empty(place);
        let written = !matches!(wrote, Wrote::Nothing);
        self.finish_write_out(w, wrote);
        self.note_available();
        written
    }

    /// Writes what a unit under write-back holds, which stands at `at`, unless it is zeros.
    fn write_from(&self, unit: u32, at: usize) -> Wrote {
        // SAFETY: the caller's, readable; if it is written to meanwhile, the caller learns of it.
        let bytes = unsafe { self.bytes(at) };
        if checksum::is_zero(bytes) {
            return Wrote::Zeros;
        }
        if let Some(sparse) = self.write_sparse(unit, at) {
            return Wrote::Sparse(sparse);
        }
        let w = self.table.load(unit);
        let (old, own) = (w.place(), w.cluster());
        // Also while reads are not verified: they may be again before this is read.
        let mut sum = [0; UNIT_PAGES as usize];
        checksum::fill(&self.store.key, bytes, &mut sum);
        let sums = self.pool.cluster_sums();
        let unchanged = |cluster: u64| {
            let known = sums.get(cluster as usize);
            self.pool.knob(Knob::CleanDrop) != 0
                && known.is_some_and(|k| checksum::equal(k, &sum))
                && !self.pool.is_bad(cluster, 0..UNIT_PAGES as usize)
        };
        if own.is_some_and(unchanged) {
            self.pool.count(Counter::CleanDrop, 1);
            return Wrote::Unchanged(old);
        }
        match self.write_somewhere(own, at, &sum) {
            Some(cluster) => Wrote::To(cluster),
            None => Wrote::Nothing,
        }
    }

    /// What becomes of a locked unit after [`Paging::write_from`].
    fn finish_write_out(&self, w: Locked<'_>, wrote: Wrote) {
        let place = match wrote {
            Wrote::Zeros => return self.finish_zero(w),
            Wrote::Sparse(sparse) => return self.finish_sparse(w, &sparse),
            Wrote::Nothing => None,
            Wrote::Unchanged(place) => Some(place),
            Wrote::To(cluster) => Some(Place::Cluster(cluster)),
        };
        if let Wrote::To(cluster) = wrote
            && w.has(WRITABLE)
            && self.pool.owns_cluster(cluster)
        {
            // Changed while it was being written: what is on the device is neither the old nor the
            // new. (A cluster left alone still holds what it did, and a forked child may need it.)
            self.store.forget_stored(cluster, 0..UNIT_PAGES as usize);
        }
        self.end_write_out(w, place);
    }

    /// What becomes of a locked unit after its write-back. `place`: where it was written to, or has
    /// been all along; `None`: it was not written.
    pub(crate) fn end_write_out(&self, mut w: Locked<'_>, place: Option<Place>) {
        let Some(place) = place else {
            return self.settle_by(w, Event::NotWritten);
        };
        let written = Event::Written { place };
        if w.has(WRITABLE) {
            self.base.records.of(w.unit()).wrote_to_no_avail();
        }
        if w.has(WRITABLE) || w.pins() > 0 {
            self.settle_freeing(w, written);
        } else {
            self.advance_freeing(&mut w, written);
            self.park(w);
        }
    }

    /// Writes to the unit's own cluster, or to a new one; the cluster written, or `None` if none
    /// would take it.
    fn write_somewhere(&self, old: Option<u64>, at: usize, sum: &UnitSums) -> Option<u64> {
        let store = &self.store;
        // A forked child may still read the old cluster.
        let own = old.filter(|&s| store.may_overwrite_cluster(s) && !self.pool.avoids(s));
        let release = |cluster| {
            if own != Some(cluster) {
                store.release_cluster(cluster);
            }
        };
        let claim = |failed| store.claim_cluster_but(failed);
        let written = store.write_unit(own, claim, release, at, sum);
        self.note_unit_written(written.is_some());
        if written.is_some() {
            let huge = self.backend.is_huge(at).unwrap_or(true);
            let counter = match huge {
                true => Counter::ThpSwpOut,
                false => Counter::ThpSwpOutFallback,
            };
            self.pool.count(counter, 1);
        }
        written
    }

    /// Ends the write-back of a unit of a file. False if the file did not take it.
    pub(crate) fn write_out_to_file(&self, unit: u32, place: FilePlace) -> bool {
        let written = self.write_file_unit(unit, place).is_ok();
        if !written {
            self.rest_a_moment();
        }
        let w = self.table.lock(unit);
        if w.has(WRITABLE) {
            // Changed meanwhile: what the file has is neither the old nor the new.
            self.files.sums[unit as usize].store(0, Relaxed);
        }
        self.end_write_out(w, written.then_some(Place::File(place)));
        written
    }
}
