//! The memory of a process, the lowest of the engine's layers: frames and pages, how threads wait
//! for them, and what is known of units.
//!
//! The engine is built of layers. Each is a struct that owns its state and holds the layer below
//! it, which it reaches by `Deref`: [`Memory`], [`Paging`](crate::paging::Paging),
//! [`Ranges`](crate::ranges::Ranges), [`Reclaim`](crate::reclaim::Reclaim),
//! [`Engine`](crate::Engine). A layer calls what is below it and cannot name what is above it. What
//! has to go up goes by a queue or a word that a thread above looks at: events for the lists, jobs
//! for the I/O threads, [`Member::kick`] for kswapd.
//!
//! Here: frames ([`frames`], [`take`], [`huge`]), how much there is ([`marks`]) and how threads
//! wait for it ([`wait`], [`pacing`]), steps of a unit's life ([`life`]), events for the reclaim
//! lists ([`lists`]), groups ([`groups`]), how much a fault brings in ([`sizes`], [`thp`],
//! [`advisor`]), frames of compressed memory ([`zswapd`]), the limit on mappings ([`mappings`]), and huge pages for free frames
//! ([`kcompactd`]).

mod advised;
mod advisor;
mod deferred;
mod demand;
mod frames;
mod grouping;
pub mod groups;
pub(crate) mod huge;
pub(crate) mod kcompactd;
mod learning;
mod life;
pub(crate) mod lists;
pub(crate) mod mappings;
pub(crate) mod marks;
pub(crate) mod pacing;
mod pages;
mod pause;
pub(crate) mod rests;
pub(crate) mod sizes;
mod take;
pub(crate) mod thp;
pub(crate) mod wait;
mod zswapd;

use crate::UNIT;
use crate::arena::Arena;
use crate::backend::{self, Backend};
use crate::clean::Clean;
use crate::error::EngineError;
use crate::gate::Gate;
use crate::lock::{Held, Lock};
use crate::marker_table::Markers;
use crate::outcome::{Fault, Outcome};
use crate::pages::Base;
use crate::pool::{FaultMode, Member, record_fault};
use crate::store::Store;
use crate::table::Table;
use crate::track::stamps::Track;
use crate::zeroed::Zeroed;
use advised::UsageTable;
use crossbeam_queue::ArrayQueue;
use deferred::Kcompactd;
use demand::FrameDemand;
use groups::Groups;
use hugeswap_policy::counters::FaultClass;
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::recording::{Happening, Kind};
use hugeswap_policy::swapin::readahead::Streams;
use hugeswap_policy::workingset::lruvec::Weights;
use hugeswap_sys::{futex, now_ns};
use learning::Sizes;
use lists::{Lists, LruEvent};
use pacing::Pacing;
use rests::Rests;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64};

/// Units remembered that came by base pages where they were to be whole.
const FELL_BACK: usize = 1024;

/// The memory of a process, the lowest of the engine's layers, with the parts that all layers use.
pub struct Memory {
    pub(crate) pool: Arc<Member>,
    pub(crate) store: Arc<Store>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) table: Table,
    pub(crate) arena: Arena,
    pub(crate) base: Base,
    pub(crate) markers: Markers,
    pub(crate) track: Track,
    pub(crate) sizes: Sizes,
    pub(crate) usage: UsageTable,
    pub(crate) groups: Groups,
    pub(crate) backend: Backend,
    /// The lists of reclaim: kswapd's, except when the queue of events is full.
    pub(crate) lru: Lock<Lists>,
    /// What the units on the lists weigh.
    pub(crate) weights: Arc<Weights<Zeroed<AtomicU16>>>,
    pub(crate) events: ArrayQueue<LruEvent>,
    /// Streams of faults.
    streams: Lock<Streams>,
    /// Watched clean units and unused read-ahead, oldest first: what a fault may take.
    pub(crate) clean: Clean,
    /// The rest of units of which some pages were touched while they were watched.
    pub(crate) rests: Rests,
    pub(crate) frame_demand: FrameDemand,
    pub(crate) pacing: Pacing,
    pub(crate) kcompactd: Kcompactd,
    /// Units that came by base pages where they were to be whole, oldest first.
    pub(crate) fell_back: ArrayQueue<u32>,
    /// When the limit on mappings was last met; 0 is never.
    mappings_short_at: AtomicU64,
    /// A fault waits for mappings, and found none to free.
    mappings_wanted: AtomicBool,
    /// Units from this one on were never touched.
    pub(crate) high_unit: AtomicU32,
    /// Units under write-back, with their writes queued or under way.
    pub(crate) inflight_writes: AtomicU32,
    /// Changes when there is work for the I/O threads.
    pub(crate) work_seq: AtomicU32,
    /// Changes when memory becomes available.
    pub(crate) avail_seq: AtomicU32,
    /// Threads that wait for memory.
    pub(crate) stalled: AtomicU32,
    /// It was said that swap is full.
    pub(crate) said_full: AtomicBool,
    pub(crate) stopping: AtomicBool,
}

/// What [`Memory::new`] is made of.
pub(crate) struct Parts {
    pub pool: Arc<Member>,
    pub store: Arc<Store>,
    pub gate: Arc<Gate>,
    pub table: Table,
    pub arena: Arena,
    pub base: Base,
    pub lists: Lists,
    pub backend: Backend,
    /// Places of the arena.
    pub places: u32,
}

impl Memory {
    /// Nothing is in memory yet.
    pub(crate) fn new(parts: Parts) -> Result<Memory, EngineError> {
        let Parts {
            pool,
            store,
            gate,
            table,
            arena,
            base,
            lists,
            backend,
            places,
        } = parts;
        let usage = UsageTable::new(table.units())
            .map_err(|e| EngineError::System("cannot map the table of advice", e))?;
        let readahead = pool.knob(Knob::ReadaheadMax) as u32;
        let nodes = arena.numa.nodes();
        Ok(Memory {
            sizes: Sizes::new(
                pool.header().key[0].load(Relaxed),
                &store.cost,
                table.units(),
            ),
            store,
            gate,
            table,
            arena,
            base,
            markers: Markers::new(),
            track: Track::new(),
            usage,
            groups: Groups::default(),
            backend,
            weights: lists.weights(),
            lru: Lock::new(lists),
            events: ArrayQueue::new(16 << 10),
            streams: Lock::new(Streams::new(readahead)),
            clean: Clean::new(nodes, (places as usize * 2).max(1024)),
            rests: Rests::default(),
            frame_demand: FrameDemand::default(),
            pacing: Pacing::new(),
            kcompactd: Kcompactd::default(),
            fell_back: ArrayQueue::new(FELL_BACK),
            mappings_short_at: AtomicU64::new(0),
            mappings_wanted: AtomicBool::new(false),
            high_unit: AtomicU32::new(0),
            inflight_writes: AtomicU32::new(0),
            work_seq: AtomicU32::new(0),
            avail_seq: AtomicU32::new(0),
            stalled: AtomicU32::new(0),
            said_full: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            pool,
        })
    }

    /// After a frame was moved to `unit`: if that happened between the parts of a fork, the mark
    /// that keeps the arena out of the child came along and must go.
    pub(crate) fn let_inherit(&self, unit: u32) {
        if self.gate.is_forker() {
            let _ = (self.backend).let_inherit(self.table.addr(unit), UNIT, true);
        }
    }

    /// A fault has been resolved.
    pub(crate) fn timed(&self, class: FaultClass, fault: Fault) -> Option<Outcome> {
        let ns = now_ns().saturating_sub(fault.start);
        record_fault(&self.pool.record().events, class, ns);
        let happening = || Happening {
            ns,
            detail: class as u8,
            write: fault.write,
            ..Happening::new(Kind::Fault, fault.start, fault.addr as u64)
        };
        self.pool.note_fault(happening, fault.code);
        Some(Outcome::Retry)
    }

    /// A thread has waited.
    fn note_wait(&self, kind: Kind, start: u64, ns: u64) {
        self.pool.note(|| Happening {
            ns,
            ..Happening::new(kind, start, 0)
        });
    }

    /// So many pages of a unit have left memory.
    fn note_evicted(&self, unit: u32, pages: u64) {
        self.pool.note(|| Happening {
            pages: pages as u32,
            ..Happening::new(Kind::Evicted, now_ns(), self.table.addr(unit) as u64)
        });
    }

    /// How faults are taken.
    pub fn mode(&self) -> FaultMode {
        match self.backend.kind() {
            backend::Kind::Message => FaultMode::Message,
            _ => FaultMode::Signal,
        }
    }

    pub(crate) fn note_mode(&self) {
        let bit = if self.mode() == FaultMode::Message {
            2
        } else {
            1
        };
        self.pool.header().mode_used.fetch_or(bit, Relaxed);
    }

    /// The pool, and this process in it.
    pub fn pool(&self) -> &Member {
        &self.pool
    }

    /// Has units that hold something counted in this process's record: whenever that has become
    /// another one.
    pub(crate) fn count_touched(&self) {
        // SAFETY: the record is mapped with the pool, which lives as long as the table.
        unsafe { self.table.count_in(&self.pool.record().touched) };
    }

    /// The main range of the managed addresses: where new mappings are.
    pub fn window(&self) -> std::ops::Range<usize> {
        self.table.window()
    }

    /// The ranges of managed addresses, the main one last. The others are those of
    /// [`Window::Over`](crate::Window), or below 2 GiB.
    pub fn window_parts(&self) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
        self.table.parts()
    }

    /// The range of managed addresses that `[addr, addr+len)` meets first; the main one, if none.
    pub fn window_at(&self, addr: usize, len: usize) -> std::ops::Range<usize> {
        self.table.part_at(addr, len)
    }

    /// Does `[addr, addr+len)` meet more than one of the ranges of managed addresses?
    pub fn meets_several_parts(&self, addr: usize, len: usize) -> bool {
        self.table.meets_several(addr, len)
    }

    /// What of the window was ever used, in the order of units.
    pub(crate) fn parts_in_use(&self) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
        let high = self.high_unit.load(Relaxed).min(self.table.units());
        let used = high.saturating_sub(self.table.first()) as usize * UNIT;
        let main = self.table.window();
        let mut parts = self.table.parts();
        std::iter::from_fn(move || {
            let part = parts.next()?;
            let end = if part == main {
                part.start + used
            } else {
                part.end
            };
            Some(part.start..end)
        })
    }

    /// Is `addr` in the window?
    pub fn contains(&self, addr: usize) -> bool {
        self.table.unit_of(addr).is_some()
    }

    pub(crate) fn wake_workers(&self, n: u32) {
        self.work_seq.fetch_add(1, Release);
        hugeswap_sys::futex::wake(&self.work_seq, n, false);
    }

    pub(crate) fn note_available(&self) {
        self.avail_seq.fetch_add(1, Release);
        if self.stalled.load(Acquire) > 0 {
            hugeswap_sys::futex::wake(&self.avail_seq, u32::MAX >> 1, false);
        }
    }

    /// Bytes at `[addr, addr+UNIT)` as a slice.
    ///
    /// # Safety
    /// The unit or place must be mapped readable, and stay so for the slice's life. Its bytes may
    /// be changed by the program meanwhile only where the result is thrown away then (write-back).
    pub(crate) unsafe fn bytes<'a>(&self, addr: usize) -> &'a [u8] {
        // SAFETY: passed on to the caller.
        unsafe { std::slice::from_raw_parts(addr as *const u8, UNIT) }
    }

    /// `unit` got base pages where it was to be whole. (If there are too many, they are found in
    /// time.)
    pub(crate) fn note_fell_back(&self, unit: u32) {
        let _ = self.fell_back.push(unit);
    }

    /// A device that fails is not asked again at once.
    pub(crate) fn rest_a_moment(&self) {
        let seq = self.work_seq.load(Relaxed);
        futex::wait(&self.work_seq, seq, Some(10_000_000), false);
    }

    /// What is known of streams, with `readahead.max` as it is set; `None` while another thread has
    /// it.
    pub(crate) fn try_streams(&self) -> Option<Held<'_, Streams>> {
        let mut streams = self.streams.try_lock()?;
        streams.set_max_window(self.pool.knob(Knob::ReadaheadMax) as u32);
        Some(streams)
    }
}
