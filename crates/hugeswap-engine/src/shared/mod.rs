//! Shared regions: memory that several processes of a pool have mapped, brought in and out in whole
//! units, with one state of each unit for all.
//!
//! A region is a memory file outside the window. Each process maps it and registers its mapping
//! with a userfaultfd of its own in SIGBUS mode, for absent and for write-protected pages. A unit's
//! word in the segment ([`hugeswap_policy::shared`]) says where its bytes are. A thread that
//! changes that owns the word meanwhile, and the word names it. Under `hugeswap run` shared
//! anonymous mappings of programs can be such regions (`shared.anonymous`), without a name and at
//! addresses of their own right behind the window, and so can memory files (`shared.files`), found
//! by device, inode and time of the file.
//!
//! * *In* (`fault`): the touching thread reads the cluster into a buffer and copies it into its own
//!   mapping, so a page is there for other threads only with its bytes.
//! * *Ahead* of a stream (`ahead`): the same, by the I/O threads.
//! * *Out* (`evict`), by kswapd of any process that needs memory: the unit is write-protected in
//!   every process that has it mapped, read, and written to swap. Then the word says so, by one
//!   compare-and-swap, and the memory is dropped. A thread that writes to the unit before has taken
//!   the word away: that compare-and-swap fails, and nothing has happened. (A userfaultfd works on
//!   the memory of the process that made it, whichever process holds it, so the other processes
//!   need not answer, or even run.)
//! * The memory is read only through the registered mapping or by read(2), and neither fills a
//!   hole. So only the owner of the word can fill a hole.
//! * A process that maps a region says so before it looks at the words. A process that takes a unit
//!   out changes its word before it looks which processes have the region. One of them sees the
//!   other.
//! * No wait is without end: an owner that is stopped, hangs, or was made up costs a thread that
//!   needs the unit an error after a minute. Its words cannot be taken over, because it may go on.
//!   What the segment says is checked wherever it is used: a process of the pool that writes
//!   nonsense there spoils shared memory, which it might write to anyway, and nothing else.
//! * A thread that needs a word whose owner has died takes it over (`recover`) and carries on from
//!   where it is. What was begun to be brought in is brought in to the end, because others may be
//!   writing to the pages that are there.
//!
//! A child does not inherit the registration: it maps the region anew in its part of the fork,
//! before its first own instruction.

mod ahead;
mod api;
mod discard;
mod error;
mod evict;
mod fault;
mod fork;
mod host;
mod keep;
mod lock;
mod map;
mod recover;
mod track;

pub use error::SharedError;

use crate::gate::Gate;
use crate::pool::Member;
use crate::store::Store;

use crate::UNIT;
use crate::lock::{Held, Lock};
use crate::outcome::{Fault, Outcome};
use crate::pool::layout::{FileIdentity, MAX_SHARED};
use crate::store::buffers::Buffers;
use crossbeam_queue::ArrayQueue;
use hugeswap_policy::counters::FaultClass;
use hugeswap_policy::defrag::gfp::Gfp;
use hugeswap_policy::markers::pagemap::{Categories, State, SwapPlace};
use hugeswap_policy::shared::{Kind, Nonsense, Op, Word};
use hugeswap_policy::swapin::readahead::Streams;
use hugeswap_policy::{PAGE_BYTES, UNIT_BYTES, UNIT_PAGES};
use hugeswap_sys::{Result, now_ns};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize};
use track::Begin;

/// A thread that has waited this long for a word checks whether its owner is still alive.
const DOUBT_NS: u64 = 30_000_000;

/// A region as this process has it mapped.
#[derive(Default)]
pub(crate) struct Map {
    /// Address of the mapping, or 0 if there is none. Stored last, so a reader that sees it sees
    /// the rest.
    addr: AtomicUsize,
    /// Bytes mapped: whole pages, the last unit perhaps in part.
    len: AtomicUsize,
    /// Number of its first unit.
    first: AtomicU32,
    serial: AtomicU32,
    /// The memory file, and its identity.
    memory: AtomicI32,
    identity: FileIdentity,
    uffd: AtomicI32,
    /// One more than the serial of the region whose descriptors kswapd has met: its own of them
    /// stay, whatever the program closes. A futex.
    met: AtomicU32,
    /// I/O threads that use it.
    holders: AtomicU32,
}

/// The descriptors of a region in the calling thread's table.
#[derive(Clone, Copy)]
struct Fds {
    memory: i32,
    uffd: i32,
}

/// A descriptor of another process that this process's kswapd has opened too.
struct PeerDescriptor {
    region: usize,
    serial: u32,
    /// As in the segment.
    client: u64,
    /// Its number in that process.
    number: i32,
    fd: i32,
}

/// What shared regions need of the engine that they belong to: its memory, and its threads.
pub(crate) trait Host {
    /// Memory has become available.
    fn note_available(&self);
    /// Wakes kswapd if memory is short.
    fn check_watermark(&self);
    /// Gives a frame that the engine can do without back to the pool; false: there is none.
    fn hand_back_one(&self) -> bool;
    /// See [`Sharing::wait_for_memory`](crate::Engine).
    fn wait_for_memory<T>(&self, rounds: Option<u32>, take: impl Fn() -> Option<T>) -> Option<T>;
    /// A unit was written to swap as a whole, or could not be.
    fn note_unit_written(&self, written: bool);
    /// Streams of faults; `None`: another thread has them.
    fn try_streams(&self) -> Option<Held<'_, Streams>>;
    /// Units that could come whole now.
    fn huge_room(&self, gfp: Gfp) -> u64;
    /// A fault of this class is over.
    fn timed(&self, class: FaultClass, fault: Fault) -> Option<Outcome>;
    /// Has an I/O thread, once woken, bring a unit in; false: it has too much to do.
    fn queue_shared(&self, unit: u32) -> bool;
    /// Wakes up to `n` I/O threads.
    fn wake_workers(&self, n: u32);
    /// Are faults taken by signals?
    fn takes_faults_by_signals(&self) -> bool;
    /// Is the engine about to end?
    fn is_stopping(&self) -> bool;
}

/// The shared regions of an engine.
pub(crate) struct Sharing {
    pool: Arc<Member>,
    store: Arc<Store>,
    gate: Arc<Gate>,
    /// Descriptors are above this one.
    low_fd: i32,
    /// The program cannot close them.
    are_descriptors_safe: bool,
    maps: [Map; MAX_SHARED],
    buffers: Buffers,
    /// Units that are to leave memory.
    requests: ArrayQueue<u32>,
    /// Units whose words go with the job: what a program thread's descriptors could not do.
    handed: ArrayQueue<u32>,
    /// Threads waiting for words.
    waiting: AtomicU32,
    /// Held by a thread that takes units out, carries on for the dead, or unmaps.
    maintenance: Lock<Maintenance>,
    /// kswapd may have descriptors of regions open.
    reaches: AtomicBool,
    /// Held by a thread that discards.
    discarding: Lock<()>,
    begin: Begin,
}

/// What only the thread that maintains shared regions needs.
#[derive(Default)]
struct Maintenance {
    peers: Vec<PeerDescriptor>,
    /// Since when some process that has a region could not be reached; 0: all could.
    unreachable_since: [u64; MAX_SHARED],
    /// The unit to examine next, as an index over all regions.
    clock: usize,
    turn: u64,
}

impl Sharing {
    /// The shared regions of an engine: none yet.
    pub fn new(
        pool: Arc<Member>,
        store: Arc<Store>,
        gate: Arc<Gate>,
        low_fd: i32,
        are_descriptors_safe: bool,
    ) -> Result<Sharing> {
        Ok(Sharing {
            pool,
            store,
            gate,
            low_fd,
            are_descriptors_safe,
            maps: Default::default(),
            buffers: Buffers::new()?,
            requests: ArrayQueue::new(1024),
            handed: ArrayQueue::new(1024),
            waiting: AtomicU32::new(0),
            maintenance: Lock::new(Maintenance::default()),
            reaches: AtomicBool::new(false),
            discarding: Lock::new(()),
            begin: Begin::new(),
        })
    }

    /// kswapd, some times a second: buffers that are not in use give their memory back.
    pub fn rest_buffers(&self) {
        self.buffers.rest(&self.pool);
    }

    /// The regions that are mapped, with their indices.
    fn maps(&self) -> impl Iterator<Item = (usize, &Map)> {
        let all = self.maps.iter().enumerate();
        all.filter(|(_, m)| m.addr.load(Acquire) != 0)
    }

    fn map_of(&self, addr: usize) -> Option<(usize, &Map)> {
        self.maps().find(|(_, m)| m.range().contains(&addr))
    }

    fn map_with(&self, unit: u32) -> Option<(usize, &Map)> {
        self.maps().find(|(_, m)| m.units().contains(&unit))
    }

    /// Is `addr` in a shared region?
    pub fn contains(&self, addr: usize) -> bool {
        self.map_of(addr).is_some()
    }

    /// Is any mapped?
    pub fn is_used(&self) -> bool {
        self.maps().next().is_some()
    }

    /// Is there anything for kswapd to look after?
    pub fn is_waited_for(&self) -> bool {
        self.waiting.load(Relaxed) > 0
    }
}

impl Map {
    fn range(&self) -> Range<usize> {
        let addr = self.addr.load(Acquire);
        addr..addr + self.len.load(Relaxed)
    }

    fn units(&self) -> Range<u32> {
        let first = self.first.load(Relaxed);
        first..first + self.len.load(Relaxed).div_ceil(UNIT) as u32
    }

    /// How much of a unit is mapped.
    fn span_of(&self, unit: u32) -> usize {
        UNIT.min(self.range().end - self.addr_of(unit))
    }

    fn unit_at(&self, addr: usize) -> u32 {
        self.first.load(Relaxed) + ((addr - self.addr.load(Acquire)) / UNIT) as u32
    }

    fn addr_of(&self, unit: u32) -> usize {
        self.addr.load(Acquire) + (unit - self.first.load(Relaxed)) as usize * UNIT
    }

    /// Offset of a unit in the memory file.
    fn offset_of(&self, unit: u32) -> u64 {
        u64::from(unit - self.first.load(Relaxed)) * UNIT_BYTES
    }

    /// The units that the range meets, or that lie in it whole.
    fn units_in(&self, addr: usize, len: usize, whole: bool) -> Range<u32> {
        let all = self.range();
        let (from, to) = (addr.max(all.start), (addr + len).min(all.end));
        let (from, to) = (from - all.start, to.saturating_sub(all.start));
        let (first, end) = match whole {
            // (The end cuts off what no process uses.)
            true if to == all.len() => (from.div_ceil(UNIT), to.div_ceil(UNIT)),
            true => (from.div_ceil(UNIT), to / UNIT),
            false => (from / UNIT, to.div_ceil(UNIT)),
        };
        let base = self.first.load(Relaxed);
        base + first as u32..base + end.max(first) as u32
    }

    /// In the program's table.
    fn fds(&self) -> Fds {
        Fds {
            memory: self.memory.load(Relaxed),
            uffd: self.uffd.load(Relaxed),
        }
    }
}

impl Sharing {
    fn word_of(&self, unit: u32) -> &AtomicU64 {
        // Units of maps are in the table: that was looked at when they were mapped.
        &self.pool.shared_words()[unit as usize]
    }

    /// Has a thread that waits since `since` waited too long for what other processes hold?
    fn is_stuck(&self, since: &mut Option<u64>) -> bool {
        let now = now_ns();
        now.saturating_sub(*since.get_or_insert(now)) > self.pool.shared_patience_ns()
    }

    /// Descriptors of shared regions, in the program's table.
    pub(crate) fn fds(&self) -> impl Iterator<Item = i32> {
        let maps = self.maps();
        maps.flat_map(|(_, m)| [m.fds().memory, m.fds().uffd])
    }

    /// The addresses at which this process has shared regions mapped: whole units.
    pub(crate) fn ranges(&self) -> Vec<Range<usize>> {
        self.maps().map(|(_, m)| m.range()).collect()
    }

    /// Is `addr` in a shared region?
    pub(crate) fn is_shared(&self, addr: usize) -> bool {
        self.contains(addr)
    }

    /// Units in memory of the regions that this process has mapped.
    pub(crate) fn resident(&self) -> u64 {
        let maps = self.maps();
        maps.map(|(_, m)| self.pool.shared_frames_of(m.units()))
            .sum()
    }

    /// Is the unit at `addr`, in a shared region, in memory?
    pub(crate) fn is_resident(&self, addr: usize) -> bool {
        self.map_of(addr).is_some_and(|(_, m)| {
            let w = self.load(m.unit_at(addr));
            w.is_in_memory()
        })
    }

    /// [`Sharing::page_states`] of a shared region.
    pub(crate) fn page_states(
        &self,
        addr: usize,
        len: usize,
        mut tell: impl FnMut(Range<usize>, State),
    ) {
        const PAGE: usize = PAGE_BYTES as usize;
        let Some((region, _)) = self.map_of(addr) else {
            return;
        };
        for (unit, at, pages) in self.units(addr, len) {
            let state = self.state_of(self.load(unit));
            let state = state.nth(pages.start as u64);
            self.with_writes(region, unit, pages, state, |pages, state| {
                tell(at + pages.start * PAGE..at + pages.end * PAGE, state);
            });
        }
    }

    /// Is what the segment says of the units of a range of a shared region possible? (Others write
    /// there, too. What is not is told as lost.)
    pub(crate) fn check_shared(
        &self,
        addr: usize,
        len: usize,
    ) -> std::result::Result<(), Nonsense> {
        let Some((_, m)) = self.map_of(addr) else {
            return Ok(());
        };
        let mut units = m.units_in(addr, len, false);
        units.try_for_each(|unit| self.load(unit).check())
    }

    fn state_of(&self, w: Word) -> State {
        if w.check().is_err() {
            return State {
                categories: Categories::FILE | Categories::POISONED,
                swap: None,
            };
        }
        let away = Categories::FILE | Categories::SWAPPED | Categories::HUGE;
        let here = Categories::FILE | Categories::PRESENT | Categories::SHARED | Categories::HUGE;
        let categories = match w.kind() {
            Kind::None => Categories::ZERO,
            Kind::Resident | Kind::Kept => here
                .and_if(w.cluster().is_none(), Categories::DIRTY)
                .and_if(w.op() == Op::Out, Categories::WRITEBACK),
            Kind::Swapped => away,
            Kind::Lost => Categories::FILE | Categories::POISONED,
        };
        let place = |cluster| {
            let (area, offset) = self.pool.locate(cluster)?;
            Some(SwapPlace {
                area: area as u8,
                page: offset / PAGE_BYTES,
            })
        };
        let cluster = w.cluster().filter(|_| w.kind() == Kind::Swapped);
        State {
            categories: categories.and_if(w.is_locked(), Categories::IN_TRANSIT),
            swap: cluster.and_then(place),
        }
    }
}

const _: () = assert!(UNIT_PAGES * PAGE_BYTES == UNIT_BYTES);
