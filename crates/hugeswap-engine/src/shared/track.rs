//! Which shared memory was written since when, by whichever process: stamps beside the words, in
//! the segment.
//!
//! An *epoch* takes write access to each unit away in every process that has the region mapped, as
//! eviction does. A thread that gives it back first stamps the unit, or the page, with the number
//! of the last epoch. The owner of the unit's word does both. So what was written since an epoch
//! began has a stamp no older than it, wherever the writer is, and whether or not it lives.
//!
//! * What is brought in arrives write-protected. In the other processes the protection outlives the
//!   memory (the kernel keeps a marker for it), except for pages that were touched while they were
//!   dropped. So a thread that drops a unit protects it once more, or stamps it
//!   ([`Sharing::protect_again`]). A thread that carries on what a dead process began stamps the
//!   unit.
//! * A process that maps a region says so, and then write-protects all of its mapping if writes are
//!   tracked. A process that begins an epoch says so, and then looks which processes have the
//!   region mapped. One of them sees the other.
//! * Tracking ends with the last process that wants it. Epochs are counted for all regions of the
//!   pool, so that stamps of an earlier time mean nothing later.
//!
//! kswapd begins epochs, because it has the descriptors of the other processes.

use super::{Host, Maintenance, Map, Sharing};
use crate::lock::Lock;
use crate::track::stamps::TrackError;
use crate::{PAGE, PAGES};
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::markers::pagemap::{Categories, State};
use hugeswap_policy::shared::{Kind, Op};
use hugeswap_sys::signal::Blocked;
use hugeswap_sys::{Errno, futex};
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// A value of [`Begin::state`].
const IDLE: u32 = 0;
const ASKED: u32 = 1;
const DONE: u32 = 2;
/// After this time kswapd is woken once more.
const PATIENCE_NS: u64 = 1_000_000;

/// An epoch that a program thread wants, and kswapd begins.
pub(super) struct Begin {
    /// Held by that thread. Not in the gate: it waits for kswapd.
    turn: Lock<()>,
    state: AtomicU32,
    /// Where the region is.
    addr: AtomicU64,
    epoch: AtomicU32,
    /// 0, or why it could not be begun.
    errno: AtomicU32,
}

impl Begin {
    pub fn new() -> Begin {
        Begin {
            turn: Lock::freed_in_children(()),
            state: AtomicU32::new(IDLE),
            addr: AtomicU64::new(0),
            epoch: AtomicU32::new(0),
            errno: AtomicU32::new(0),
        }
    }

    /// In a forked child, where no thread wants one.
    pub fn reset(&self) {
        // SAFETY: this thread is the only one.
        unsafe { self.turn.reset_in_child(()) };
        self.state.store(IDLE, Relaxed);
    }
}

impl Sharing {
    /// [`Sharing::begin_epoch`] of the shared region at `addr`.
    pub(crate) fn begin_epoch<T>(
        &self,
        addr: usize,
        by_pages: bool,
        then: impl FnOnce(u32) -> T,
    ) -> Result<T, TrackError> {
        if self.pool.knob(Knob::Markers) == 0 {
            return Err(TrackError::Off);
        }
        let _blocked = Blocked::all();
        let _turn = self.begin.turn.lock();
        let epoch = {
            let _inside = self.gate.enter();
            let (index, _) = self.map_of(addr).ok_or(TrackError::Shared)?;
            let table = self.pool.shared_table();
            let table = table.map_err(|_| TrackError::Unreachable(Errno::ETIMEDOUT))?;
            let clock = &self.pool.header().shared_epoch;
            let next = |now: u32| now.checked_add(1).filter(|&n| n < u32::MAX);
            let before = clock.fetch_update(SeqCst, SeqCst, next);
            let epoch = before.map_err(|_| TrackError::Epochs)? + 1;
            table.track(index, self.pool.me(), 1 + u32::from(by_pages), epoch);
            epoch
        };
        let begin = &self.begin;
        begin.addr.store(addr as u64, Relaxed);
        begin.epoch.store(epoch, Relaxed);
        begin.state.store(ASKED, SeqCst);
        while begin.state.load(Acquire) != DONE {
            self.pool.kick();
            futex::wait(&begin.state, ASKED, Some(PATIENCE_NS), false);
        }
        begin.state.store(IDLE, Relaxed);
        match begin.errno.load(Relaxed) {
            0 => Ok(then(epoch)),
            e => Err(TrackError::Unreachable(Errno(e as i32))),
        }
    }

    /// kswapd: begins an epoch, if one is wanted.
    pub(super) fn begin_wanted_epoch(&self, host: &impl Host, state: &mut Maintenance) -> bool {
        let begin = &self.begin;
        if begin.state.load(SeqCst) != ASKED {
            return false;
        }
        let addr = begin.addr.load(Relaxed) as usize;
        let begun = match self.map_of(addr) {
            Some((region, m)) => {
                let epoch = begin.epoch.load(Relaxed);
                let mut units = m.units();
                units.try_for_each(|unit| self.begin_for(host, state, region, m, unit, epoch))
            }
            None => Err(Errno::EBADF),
        };
        let errno = begun.map_or_else(|e| e.0 as u32, |()| 0);
        begin.errno.store(errno, Relaxed);
        begin.state.store(DONE, SeqCst);
        futex::wake(&begin.state, 1, false);
        true
    }

    fn begin_for(
        &self,
        host: &impl Host,
        state: &mut Maintenance,
        region: usize,
        m: &Map,
        unit: u32,
        epoch: u32,
    ) -> Result<(), Errno> {
        let mut waiting = None;
        let held = loop {
            let w = self.load(unit);
            if w.is_locked() && w.op() != Op::Out {
                if self.is_stuck(&mut waiting) {
                    return Err(Errno::ETIMEDOUT);
                }
                // It may be waiting for this thread.
                while let Some(handed) = self.handed.pop() {
                    self.carry_on_own(host, state, handed);
                }
                if !self.pool.owner_lives(w.owner()) {
                    let fds = self.fds_of(state, region, m)?;
                    self.carry_on_orphan(host, region, fds, m, unit);
                }
                self.wait(unit, w);
                self.pool.reap();
            } else if let Some(held) = self.take(unit, w, Op::Touch) {
                break held;
            }
        };
        let Some(stamps) = self.pool.shared_stamps(unit) else {
            held.settle();
            return Ok(());
        };
        let since = stamps.since.load(Relaxed);
        let last = stamps.whole.load(SeqCst).max(stamps.some.load(SeqCst));
        let from = self.pool.header().shared[region].tracked_from.load(Relaxed);
        // What was not written since is without write access everywhere.
        let done = match since >= from && last < since {
            true => Ok(()),
            // Others write to it unseen: all of it counts as written.
            _ if held.kind() == Kind::Kept => Ok(()),
            false => self.freeze(state, region, m, unit),
        };
        if done.is_ok() {
            stamps.since.store(epoch, SeqCst);
        }
        held.settle();
        done
    }

    /// This process does not track writes to the region at `addr` any more. Calls `then` before an
    /// epoch can begin.
    pub(crate) fn end_tracking(&self, addr: usize, then: impl FnOnce()) {
        let _blocked = Blocked::all();
        let _turn = self.begin.turn.lock();
        let _inside = self.gate.enter();
        then();
        if let Some((index, _)) = self.map_of(addr) {
            // (A process that cannot have the table goes on tracking until it gives the region up.)
            if let Ok(table) = self.pool.shared_table() {
                table.track(index, self.pool.me(), 0, 0);
            }
        }
    }

    /// How writes to a region are tracked: 0 not, 1 by units, 2 by pages. The owner of the word of
    /// a unit of it may rely on it, as far as that unit goes.
    pub(super) fn tracking_of(&self, region: usize) -> u32 {
        let s = self.pool.header().shared.get(region);
        s.map_or(0, |s| s.tracked.load(SeqCst))
    }

    /// Pages of a unit whose word is the caller's are about to be writable, or to change. The rules
    /// of the fault path hold.
    pub(super) fn stamp(&self, region: usize, unit: u32, pages: Range<usize>) {
        let how = self.tracking_of(region);
        let Some(stamps) = self.pool.shared_stamps(unit).filter(|_| how != 0) else {
            return;
        };
        let now = self.pool.header().shared_epoch.load(SeqCst);
        if how == 1 || pages.len() == PAGES {
            stamps.whole.fetch_max(now, SeqCst);
            return;
        }
        if let Some(of) = self.pool.shared_page_stamps(unit) {
            for stamp in of.get(pages).into_iter().flatten() {
                stamp.fetch_max(now, SeqCst);
            }
        }
        // After the pages': a thread that sees it sees them.
        stamps.some.fetch_max(now, SeqCst);
    }

    /// kswapd, which has dropped a unit whose word is its own: it is write-protected everywhere, or
    /// stamped.
    pub(super) fn protect_again(&self, state: &mut Maintenance, region: usize, m: &Map, unit: u32) {
        if self.tracking_of(region) == 0 {
            return;
        }
        let told = self
            .pool
            .shared_stamps(unit)
            .is_some_and(|s| s.whole.load(SeqCst) >= s.since.load(SeqCst));
        if !told && self.freeze(state, region, m, unit).is_err() {
            self.stamp(region, unit, 0..PAGES);
        }
    }

    /// [`Sharing::written_since`] of a shared region: the pages of a unit.
    pub(super) fn written(
        &self,
        unit: u32,
        pages: Range<usize>,
        epoch: u32,
        mut tell: impl FnMut(Range<usize>),
    ) {
        let Some(stamps) = self.pool.shared_stamps(unit) else {
            return;
        };
        if stamps.whole.load(SeqCst) >= epoch || self.is_kept(unit) {
            return tell(pages);
        }
        if stamps.some.load(SeqCst) < epoch {
            return;
        }
        let Some(of) = self.pool.shared_page_stamps(unit) else {
            return;
        };
        let mut page = pages.start;
        while page < pages.end {
            let is = |p: usize| of[p].load(SeqCst) >= epoch;
            let this = is(page);
            let end = (page + 1..pages.end).find(|&p| is(p) != this);
            let end = end.unwrap_or(pages.end);
            if this {
                tell(page..end);
            }
            page = end;
        }
    }

    /// The units of `[addr, addr+len)` of a shared region, where each is, and which of its pages
    /// lie in the range.
    pub(crate) fn units(
        &self,
        addr: usize,
        len: usize,
    ) -> impl Iterator<Item = (u32, usize, Range<usize>)> {
        let map = self.map_of(addr);
        let units = map.map_or(0..0, |(_, m)| m.units_in(addr, len, false));
        units.filter_map(move |unit| {
            let at = map?.1.addr_of(unit);
            let from = addr.max(at) - at;
            let to = (addr + len).min(at + PAGES * PAGE) - at;
            Some((unit, at, from / PAGE..to.div_ceil(PAGE)))
        })
    }

    /// [`Sharing::written_since`], run by run, of a shared region.
    pub(crate) fn written_since(
        &self,
        addr: usize,
        len: usize,
        epoch: u32,
        mut tell: impl FnMut(Range<usize>),
    ) {
        for (unit, at, pages) in self.units(addr, len) {
            self.written(unit, pages, epoch, |run| {
                tell(at + run.start * PAGE..at + run.end * PAGE);
            });
        }
    }

    /// Calls `tell` for pages of a unit that are all in `state`, and says also which were written
    /// since the last epoch, if that is tracked.
    pub(super) fn with_writes(
        &self,
        region: usize,
        unit: u32,
        pages: Range<usize>,
        state: State,
        mut tell: impl FnMut(Range<usize>, State),
    ) {
        let stamps = self.pool.shared_stamps(unit);
        let Some(stamps) = stamps.filter(|_| self.tracking_of(region) != 0) else {
            return tell(pages, state);
        };
        let first = pages.start;
        let mut told = |run: Range<usize>, more| {
            if !run.is_empty() {
                let state = state.nth((run.start - first) as u64);
                let categories = state.categories | Categories::TRACKED | more;
                tell(
                    run,
                    State {
                        categories,
                        ..state
                    },
                );
            }
        };
        let mut next = first;
        let since = stamps.since.load(SeqCst);
        self.written(unit, pages.clone(), since, |run| {
            told(next..run.start, Categories::NONE);
            next = run.end;
            told(run, Categories::WRITTEN);
        });
        told(next..pages.end, Categories::NONE);
    }
}
