//! The beginning of an epoch: what can be written of a range is made read-only, by as few calls as
//! can be.
//!
//! Called by program threads; see `crate::ranges` for the rules.

use super::{PAGE, PAGES, TrackError};
use crate::UNIT;
use crate::call::Done;
use crate::paging::Paging;
use crate::table::Locked;
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::unit::step::Event;
use hugeswap_policy::unit::{Kind, LOCKED, WATCHED, WRITABLE, WRITEBACK, Word};
use hugeswap_sys::signal::Blocked;
use std::sync::atomic::Ordering::Relaxed;

/// Units protected by one call.
const MOST: usize = 64;
/// Runs of pages of a unit that are protected each by itself.
const MOST_RUNS: usize = 16;
/// Runs with so few pages between them are one.
const GAP: usize = 8;

/// Locked neighbours of one kind, which all are to be protected.
struct Batch<'a> {
    engine: &'a Paging,
    first: u32,
    units: [Option<Locked<'a>>; MOST],
    len: usize,
    /// What was written before is of the epoch before this one.
    epoch: u32,
}

impl<'a> Batch<'a> {
    /// Takes a unit in. (It is the first, or the neighbour of the last, and of the same kind.)
    fn add(&mut self, w: Locked<'a>) {
        let next = self.len > 0 && w.unit() == self.first + self.len as u32;
        if self.len == MOST || !next || self.kind() != Some(w.kind()) {
            self.flush();
            self.first = w.unit();
        }
        self.units[self.len] = Some(w);
        self.len += 1;
    }

    fn kind(&self) -> Option<Kind> {
        self.units[0].as_ref().map(|w| w.kind())
    }

    /// Protects and unlocks what is in it.
    fn flush(&mut self) {
        let Some(kind) = self.kind() else {
            return;
        };
        let engine = self.engine;
        let at = engine.table.addr(self.first);
        let whole = kind == Kind::Present;
        let protected = if whole {
            engine.backend.set_read_only(at, self.len * UNIT).is_ok()
        } else {
            engine.freeze_units(self.first, self.len).is_ok()
        };
        for w in self.units[..self.len].iter_mut().filter_map(Option::take) {
            let unit = w.unit();
            if !protected {
                // Some of it may be read-only by now, and what is not can be written: it counts as
                // written. A fault puts the rest right.
                engine.track.note_written(unit);
                if whole {
                    engine.track.note_half_protected(unit);
                }
            }
            let read_only = whole && protected;
            if read_only {
                engine.close_for_epoch(unit, self.epoch - 1);
            }
            match read_only {
                true => engine.settle_by(w, Event::MadeReadOnly),
                false => w.settle(),
            }
        }
        self.len = 0;
    }
}

impl Paging {
    /// Begins an epoch for the units of `[addr, addr+len)`, which are tracked from now on,
    /// `by_pages` or as wholes: what is written after this call has begun, and is not in memory as
    /// this call ends, is told by [`Paging::written_since`] of the epoch. What `then` makes of its
    /// number, before another begins or tracking ends.
    pub fn begin_epoch<T>(
        &self,
        addr: usize,
        len: usize,
        by_pages: bool,
        then: impl FnOnce(u32) -> T,
    ) -> Result<T, TrackError> {
        if self.is_of_file(addr) {
            return Err(TrackError::File);
        }
        if self.sharing.is_shared(addr) {
            return self.sharing.begin_epoch(addr, by_pages, then);
        }
        if self.pool.knob(Knob::Markers) == 0 {
            return Err(TrackError::Off);
        }
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        let _turn = self.track.turn.lock();
        let tables = self
            .track
            .open(self.table.units(), !self.backend.can().arrives_read_only);
        let tables = tables.map_err(TrackError::Table)?;
        let epoch = self.track.next_epoch().ok_or(TrackError::Epochs)?;
        let mut batch = Batch {
            engine: self,
            first: 0,
            units: [const { None }; MOST],
            len: 0,
            epoch,
        };
        for unit in self.table.units_of(addr, len) {
            let w = self.lock_for_epoch(unit, &mut batch);
            let stamps = &tables.units[unit as usize];
            let before = stamps.since.load(Relaxed);
            let last = stamps.whole.load(Relaxed).max(stamps.some.load(Relaxed));
            let open = stamps.open.load(Relaxed) != 0;
            if w.kind() != Kind::Present || stamps.whole.load(Relaxed) >= before {
                // There is nothing to be found out.
                stamps.open.store(0, Relaxed);
            }
            stamps.fine.store(by_pages.into(), Relaxed);
            stamps.since.store(epoch, Relaxed);
            let to_protect = match w.kind() {
                // A system call writes to it, for which protection is nothing.
                Kind::Present if w.has(WRITABLE) && w.pins() > 0 => {
                    self.track.note_written(unit);
                    false
                }
                Kind::Present => w.has(WRITABLE) || open && !w.has(WATCHED) && w.allows(false),
                // No page has become writable since the last epoch, if none was written.
                Kind::Base => {
                    let dirty = self.base.records.of(unit).dirty.any();
                    let changed = dirty && (before == 0 || last >= before);
                    changed && !self.freeze_written(unit, before)
                }
                _ => false,
            };
            if to_protect {
                batch.add(w);
            } else {
                w.settle();
            }
        }
        batch.flush();
        Ok(then(epoch))
    }

    /// Locks a unit once no thread relies on its being writable. Nothing else is held while this
    /// waits.
    fn lock_for_epoch(&self, unit: u32, batch: &mut Batch<'_>) -> Locked<'_> {
        // Whether it was written while it was written out, WRITABLE tells.
        let settled = |w: Word| !(w.has(WRITEBACK) && w.has(WRITABLE));
        loop {
            if let Some(w) = self.table.try_lock_if(unit, settled) {
                return w;
            }
            batch.flush();
            let seen = self.table.load(unit);
            if seen.has(LOCKED) {
                if let Some(w) = self.table.claim(unit) {
                    return w;
                }
                self.table.wait_locked(unit);
            } else if !settled(seen) {
                self.table.wait_change(unit, seen);
            }
        }
    }

    /// Protects the pages of a locked, base-mapped unit that were written since the epoch `since`
    /// began, if they are told apart and few. False: nothing is done. (To protect what is protected
    /// costs the kernel as much.)
    fn freeze_written(&self, unit: u32, since: u32) -> bool {
        if since == 0 || !self.backend.can().has_single_pages() || !self.track.tracks_pages(unit) {
            return false;
        }
        let at = self.table.addr(unit);
        let mut runs = [const { 0..0 }; MOST_RUNS];
        let (mut n, mut many) = (0, false);
        self.written_pages(unit, 0..PAGES, since, |run| match runs[..n].last_mut() {
            Some(last) if run.start - last.end <= GAP => last.end = run.end,
            _ if n == MOST_RUNS => many = true,
            _ => {
                runs[n] = run;
                n += 1;
            }
        });
        if many {
            return false;
        }
        let protected = runs[..n].iter().try_for_each(|run| {
            self.backend
                .freeze_range(at + run.start * PAGE, run.len() * PAGE)
        });
        if protected.is_err() {
            // As in [`Batch::flush`].
            self.track.note_written(unit);
        }
        true
    }

    /// No page of base-mapped, locked neighbours can be written without a fault after this. If it
    /// fails, some may be so.
    fn freeze_units(&self, first: u32, n: usize) -> Done {
        if self.backend.can().has_single_pages() {
            return self.backend.freeze_range(self.table.addr(first), n * UNIT);
        }
        for unit in first..first + n as u32 {
            self.freeze(unit, &self.base.records.of(unit).dirty, 0)?;
        }
        Ok(())
    }

    /// The units of a range are not tracked any more; calls `then` before an epoch can begin.
    pub fn end_tracking(&self, addr: usize, len: usize, then: impl FnOnce()) {
        if self.sharing.is_shared(addr) {
            return self.sharing.end_tracking(addr, then);
        }
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        let _turn = self.track.turn.lock();
        then();
        for unit in self.table.units_of(addr, len) {
            self.track.forget_writes(unit);
        }
    }
}
