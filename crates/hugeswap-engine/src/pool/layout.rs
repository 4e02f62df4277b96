//! The layout of the pool segment: fixed, versioned, every field an atomic.
//!
//! ```text
//! | Header | Record x (MAX_PROCESSES + 1) | cluster words (u32) | bitmaps (64 bytes a cluster) | layouts (3 bits a cluster) | page sums (512 x u64 a cluster) | seals (512 x 24 bytes a cluster) |
//! | bad slots (64 bytes a cluster) | words of shared units (8 bytes each) | a bit for each of those that is charged |
//! | what happens while the pool is recorded (64 bytes a slot), and stacks of that (16 KiB a slot)
//! | a bit for each cluster that is packed | lengths of its blocks (512 x u16 a cluster) | pages of a cluster in compressed memory (u32) | their words (512 x u64 a cluster) | owners, and bytes in use, of its frames (u32 each) | its frames (2 MiB each) |
//! ```
//!
//! * The header holds the budget, the settings (which may change in use), the swap areas, the
//!   checksum key, peaks, and the counters of processes that are gone.
//! * A record holds a process's id, start time and program image, the frames and bytes that it
//!   holds, its counters and histograms, and the futex that its kswapd sleeps on. The last record
//!   is nobody's: processes without a record work in it.
//! * A cluster's word names the record that owns the cluster and counts the units that refer to it,
//!   or the single slots in use, which the bitmap names.
//! * The page sums take 4 KiB for each cluster that was ever in use: 0.2% of that swap, outside the
//!   budget. Where swap is encrypted the seals (nonces and tags) take 12 KiB more.
//!
//! Any process of the pool may write any of it, and any of them may be hostile or dying. So a
//! reader validates what it reads, bounds every index, and never follows an address found here.

use super::losses::{KEPT, LossEntry};
use super::recording::Recording;
use hugeswap_policy::advisor;
use hugeswap_policy::counters::{Counter, FaultClass};
use hugeswap_policy::histogram;
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::{PAGE_BYTES, UNIT_BYTES};
use hugeswap_sys::fs::Identity;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU8, AtomicU32, AtomicU64};

/// "hugeswap" in ASCII.
pub const MAGIC: u64 = u64::from_le_bytes(*b"hugeswap");
/// Changed whenever the layout does.
pub const VERSION: u32 = 39;
/// See [`Record::unreadable`].
pub const ONLY_UNREADABLE: u64 = 1 << 31;
/// Most processes a pool can have at one time.
pub const MAX_PROCESSES: usize = 256;

/// The record that children use for which there was none. It belongs to no process, and so is
/// counted nowhere. It owns no slots.
pub const NOBODY: usize = MAX_PROCESSES;
/// Most swap areas a pool can have.
pub const MAX_AREAS: usize = 32;

/// Durations of transfers of a swap area when it was turned on.
#[repr(C)]
pub struct AreaCosts {
    /// 1: they were measured.
    pub measured: AtomicU32,
    /// Nanoseconds of 4 KiB, 64 KiB and 2 MiB, from swap and to it.
    pub ns: [[AtomicU32; 3]; 2],
}

/// Most shared regions a pool can have.
pub const MAX_SHARED: usize = 16;
/// Most processes that can have one of them mapped: all there can be, for a forked child must have
/// what its parent has.
pub const MAX_CLIENTS: usize = MAX_PROCESSES;
/// Units that all shared regions of a pool can have together.
pub const SHARED_UNITS: usize = 1 << 18;
/// Longest name of one, bytes.
pub const SHARED_NAME: usize = 64;

/// A process that has a shared region mapped.
#[repr(C)]
pub struct Client {
    /// Its record's index + 1, and the record's generation in the upper half; 0: no process.
    pub owner: AtomicU64,
    /// Its process id.
    pub pid: AtomicI32,
    /// The descriptors it has: of the memory, and the userfaultfd that its mapping is registered
    /// with (-1: it has not mapped it yet).
    pub memory: AtomicI32,
    /// See `memory`.
    pub uffd: AtomicI32,
    /// Address of the mapping there.
    pub addr: AtomicU64,
    /// Does it track writes? As [`Shared::tracked`].
    pub tracks: AtomicU32,
}

/// When a unit of a shared region was last written, in epochs of the pool.
#[repr(C)]
pub struct SharedStamps {
    /// When write access was last taken away from it everywhere.
    pub since: AtomicU32,
    /// When all of it was last written, as far as is known.
    pub whole: AtomicU32,
    /// When any of its pages was.
    pub some: AtomicU32,
}

/// The same of each of its pages.
pub type SharedPageStamps = [AtomicU32; 512];

/// One shared region.
#[repr(C)]
pub struct Shared {
    /// See [`shared`].
    pub state: AtomicU32,
    /// Another one at this place has another number. Not 0.
    pub serial: AtomicU32,
    /// Changes whenever a process has come to map it.
    pub changes: AtomicU32,
    /// First of its units.
    pub first: AtomicU32,
    /// How many.
    pub units: AtomicU32,
    /// Are its writes tracked? 0: no, 1: by units, 2: by pages.
    pub tracked: AtomicU32,
    /// The first epoch since they are.
    pub tracked_from: AtomicU32,
    /// Bytes of `name`; 0: no other process asks for it.
    pub name_len: AtomicU32,
    /// 1: it is the kernel's: nothing of it leaves memory any more, and it is not charged.
    pub left: AtomicU32,
    /// Bytes asked for.
    pub len: AtomicU64,
    /// Device and inode of the memory.
    pub identity: FileIdentity,
    /// Its name. A name that begins with byte 1 stands for a file of a program's.
    pub name: [AtomicU8; SHARED_NAME],
    /// The processes that have it mapped.
    pub clients: [Client; MAX_CLIENTS],
}

/// States of a shared region.
pub mod shared {
    /// None.
    pub const FREE: u32 = 0;
    /// There is one.
    pub const LIVE: u32 = 1;
    /// No process has it any more; its units are being given back.
    pub const ENDING: u32 = 2;
}

/// Most bytes of a request or an answer.
pub const LETTER: usize = 4096;

/// The mailbox for requests to the pool from outside.
#[repr(C)]
pub struct Mailbox {
    /// Which process may touch the rest: what is going on, and which one asks
    /// ([`holder`](super::holder)). Its low half is a futex.
    pub state: AtomicU64,
    /// Bytes of `text`.
    pub len: AtomicU32,
    /// The request, then the answer.
    pub text: [AtomicU8; LETTER],
}

/// Where a process is asked what its pages are; see `pool::looking`.
#[repr(C)]
pub struct Look {
    /// Another number: a process asks.
    pub asked: AtomicU32,
    /// The number that was answered last.
    pub answered: AtomicU32,
    /// From which address on.
    pub from: AtomicU64,
    /// Which thread holds the answer, and under which descriptor.
    pub tid: AtomicI32,
    /// See `tid`.
    pub fd: AtomicI32,
}

/// The identity of a file that a process has open: a number of a descriptor may stand for another
/// one by now.
#[repr(C)]
#[derive(Default)]
pub struct FileIdentity {
    dev: AtomicU64,
    ino: AtomicU64,
}

impl FileIdentity {
    /// From now on it is this one.
    pub fn set(&self, file: &Identity) {
        self.dev.store(file.dev, Relaxed);
        self.ino.store(file.ino, Relaxed);
    }

    /// Is it this one?
    pub fn is(&self, file: &Identity) -> bool {
        (file.dev, file.ino) == (self.dev.load(Relaxed), self.ino.load(Relaxed))
    }
}

/// How long transfers took.
#[repr(C)]
pub struct Latencies {
    /// By [`histogram::bucket`].
    pub counts: [AtomicU64; histogram::BUCKETS],
    /// The longest, nanoseconds.
    pub max_ns: AtomicU64,
}

/// One swap area.
#[repr(C)]
pub struct Area {
    /// See [`area`](hugeswap_policy::thp_swap::area).
    pub state: AtomicU32,
    /// Counts areas: another one at this place has another number. Not 0.
    pub serial: AtomicU32,
    /// Under which it is being taken off; see [`Record::emptied`].
    pub ticket: AtomicU32,
    /// The ticket under which what cannot be read of it may be given up.
    pub losing: AtomicU32,
    /// Pages that were given up since it was last to be taken off.
    pub lost: AtomicU64,
    /// Areas of a higher priority are filled first.
    pub priority: AtomicI32,
    /// Its descriptor in the process that made the pool.
    pub fd: AtomicI32,
    /// What that stood for when the area came: device and inode. By now it may stand for something
    /// of the program's.
    pub identity: FileIdentity,
    /// 1: opened for direct I/O.
    pub direct: AtomicU32,
    /// What it is ([`Kind`](super::swap::Kind)).
    pub kind: AtomicU32,
    /// First cluster of the area.
    pub first_cluster: AtomicU64,
    /// Clusters it has.
    pub clusters: AtomicU64,
    /// Bytes of it that have blocks of the device so far.
    pub allocated: AtomicU64,
    /// The file system it is on, by its device number.
    pub disk: AtomicU64,
    /// Bytes that were free there when that was last looked at.
    pub disk_free: AtomicU64,
    /// Write errors seen.
    pub errors: AtomicU64,
    /// When it last could not grow, for there was no room; nanoseconds of CLOCK_MONOTONIC, 0: it
    /// could.
    pub no_room: AtomicU64,
    /// Read errors seen, wrong sums included.
    pub read_errors: AtomicU64,
    /// Whether it is to be written to ([`Breaker`](hugeswap_policy::device::breaker::Breaker)).
    pub health: AtomicU64,
    /// Durations of reads.
    pub reads: Latencies,
    /// Durations of writes.
    pub writes: Latencies,
    /// Bytes that were read, and that were written.
    pub moved: [AtomicU64; 2],
    /// Durations of its transfers when it was turned on.
    pub costs: AreaCosts,
    /// How it is written to ([`Throttle`](hugeswap_policy::device::wbt::Throttle)).
    pub throttle: AtomicU64,
    /// Reads of more than 64 KiB.
    pub large_reads: AtomicU64,
    /// Smaller reads that took too long.
    pub slow_reads: AtomicU64,
    /// Smaller reads, and those that took too long, when `throttle` last changed.
    pub seen: [AtomicU64; 2],
}

/// Counters and fault latencies: one set for each process, one for those that are gone.
#[repr(C)]
pub struct Events {
    /// By [`Counter`].
    pub counters: [AtomicU64; Counter::COUNT],
    /// Nanoseconds spent in faults.
    pub fault_ns: AtomicU64,
    /// The part of it in faults that waited for memory that had left, or for other threads.
    pub stalled_ns: AtomicU64,
    /// Longest fault of each class, nanoseconds.
    pub fault_max_ns: [AtomicU64; FaultClass::COUNT],
    /// By class and [`histogram::bucket`].
    pub faults: [[AtomicU64; histogram::BUCKETS]; FaultClass::COUNT],
    /// Sum over samples of managed bytes in memory, and of those mapped huge.
    pub sampled_present: AtomicU64,
    /// See `sampled_present`.
    pub sampled_huge: AtomicU64,
    /// When pages came back; see [`advisor`].
    pub advisor: [AtomicU64; advisor::WORDS],
}

/// How the budget moves; see [`budget`](super::budget). Frames, and bytes where that is said.
#[repr(C)]
pub struct BudgetRecord {
    /// The largest budget that there may be.
    pub ceiling: AtomicU64,
    /// How often the budget has changed.
    pub changes: AtomicU64,
    /// The smallest budget so far.
    pub lowest: AtomicU64,
    /// The largest budget so far.
    pub highest: AtomicU64,
    /// The limit that the budget follows, bytes; 0: it follows none.
    pub limit: AtomicU64,
    /// What is in use of that limit, bytes.
    pub used: AtomicU64,
    /// The largest use of the limit so far, bytes.
    pub peak: AtomicU64,
}

/// The head of the segment.
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU32,
    /// Fault mode asked for: 0 auto, 1 signal, 2 message.
    pub fault_mode: AtomicU32,
    /// The budget, in frames of 2 MiB.
    pub frames: AtomicU64,
    /// What the budget may become and has been: see [`budget`](super::budget).
    pub budget: BudgetRecord,
    /// Clusters there is room for in this segment.
    pub clusters: AtomicU64,
    /// Clusters used by areas so far: none has any at or above this.
    pub clusters_high: AtomicU64,
    /// Frames that compressed memory can have.
    pub zswap_frames: AtomicU64,
    /// Length of the segment, bytes.
    pub length: AtomicU64,
    /// The process that made the pool and holds its descriptors.
    pub creator: AtomicI32,
    /// Changes whenever an area comes, goes or is to be emptied.
    pub areas_generation: AtomicU32,
    /// Areas there ever were.
    pub area_serial: AtomicU32,
    /// Times that an area was to be taken off.
    pub tickets: AtomicU32,
    /// Key of the checksums, random for each pool.
    pub key: [AtomicU64; 4],
    /// Number + 1 of the descriptor of the key that swap is encrypted with, in the process that
    /// made the pool; 0: it is not.
    pub key_fd: AtomicI32,
    /// Writers that have numbered what they encrypt: see [`crate::store::seal::Nonces`].
    pub writers: AtomicU32,
    /// Bytes of swap that are never used again: see `swap::quarantine`.
    pub bad_bytes: AtomicU64,
    /// Slots that were ever found bad, and pages lost otherwise.
    pub losses: AtomicU64,
    /// Where the last of them were: see [`losses`](super::losses).
    pub lost: [LossEntry; KEPT],
    /// The next entry of those.
    pub lost_next: AtomicU64,
    /// Scrubs that were asked for.
    pub scrubs: AtomicU32,
    /// Records used so far: no live record stands at or above this index.
    pub records_high: AtomicU32,
    /// Futex: changes whenever frames come back to the pool.
    pub released: AtomicU32,
    /// Processes that ever joined.
    pub joined: AtomicU64,
    /// Largest total of frames charged at one time.
    pub peak_frames: AtomicU64,
    /// Largest total of managed memory that held something at one time, bytes: see
    /// [`Pool::touched_bytes`](super::Pool::touched_bytes).
    pub peak_managed: AtomicU64,
    /// Fault mode in use: 0 none yet, 1 signal, 2 message, 3 both.
    pub mode_used: AtomicU32,
    /// Processes that gave up since memory and swap ran out.
    pub exhausted: AtomicU32,
    /// 1: swap was nearly full.
    pub soft_full: AtomicU32,
    /// When that was last looked at, nanoseconds of CLOCK_MONOTONIC.
    pub room_seen: AtomicU64,
    /// Who records it.
    pub recording: Recording,
    /// Settings, by [`Knob`].
    pub knobs: [AtomicU64; Knob::COUNT],
    /// The swap areas.
    pub areas: [Area; MAX_AREAS],
    /// Counters of processes that are gone.
    pub retired: Events,
    /// Requests from outside.
    pub mailbox: Mailbox,
    /// Held by a process that makes, maps or leaves a shared region: see [`holder`](super::holder).
    pub shared_lock: AtomicU64,
    /// Units of shared regions so far: none has any at or above this.
    pub shared_high: AtomicU32,
    /// Regions there ever were.
    pub shared_serial: AtomicU32,
    /// The shared regions.
    pub shared: [Shared; MAX_SHARED],
    /// The last epoch of shared regions, of all of them.
    pub shared_epoch: AtomicU32,
}

/// Record states: the low 8 bits of the word.
pub mod state {
    /// Not in use.
    pub const FREE: u64 = 0;
    /// A process's.
    pub const LIVE: u64 = 1;
    /// Being cleaned up after its process went; the other bits name the process that does it
    /// ([`holder`](super::super::holder)).
    pub const REAPING: u64 = 2;
    /// Reserved for a child about to be forked, or one that joins; the other bits tell when
    /// (microseconds since boot), so that no two reservations look the same.
    pub const JOINING: u64 = 3;
    /// Its process is gone, but a process forked from it may still read its slots.
    pub const ZOMBIE: u64 = 4;
    /// Being filled in by its process, which the other bits name.
    pub const FILLING: u64 = 5;

    /// The state that a word tells.
    pub fn of(word: u64) -> u64 {
        word & 0xff
    }
}

/// What a process's last scrub found, base pages: see [`super::ScrubReport`].
#[repr(C)]
pub struct Scrub {
    /// Its number.
    pub done: AtomicU32,
    /// As in the report.
    pub good: AtomicU64,
    /// As in the report.
    pub bad: AtomicU64,
    /// As in the report.
    pub recovered: AtomicU64,
    /// As in the report.
    pub lost: AtomicU64,
}

/// One process of the pool.
#[repr(C)]
pub struct Record {
    /// See [`state`].
    pub state: AtomicU64,
    /// Its process id.
    pub pid: AtomicI32,
    /// Its start time, as `/proc/PID/stat` tells it (clock ticks).
    pub start_time: AtomicU64,
    /// How often this record has been handed out.
    pub generation: AtomicU32,
    /// Clusters + 1 of shared units that no word refers to just now, by what they are in the hands
    /// of: kswapd, a thread that discards.
    pub in_hand: [AtomicU64; 2],
    /// A shared unit + 1 that this process is about to write-protect, or is write-protecting, in
    /// others.
    pub freezing: AtomicU32,
    /// Frames it holds.
    pub charged: AtomicU64,
    /// Of those, frames of compressed memory.
    pub zswap: AtomicU64,
    /// Pages in them.
    pub zswap_pages: AtomicU64,
    /// Of those charged, frames of buffers.
    pub buffers: AtomicU64,
    /// Of those charged, frames that the kernel has for good: nothing takes them out.
    pub foreign: AtomicU64,
    /// Managed bytes it has mapped.
    pub managed: AtomicU64,
    /// Units that hold something, those it shares with the process it was forked from left out. (A
    /// child that gives up what its parent had in swap goes below 0.)
    pub touched: AtomicI64,
    /// Pages of base-mapped ones among those that hold nothing, when kswapd last looked.
    pub untouched_pages: AtomicU64,
    /// When it last faulted (nanoseconds of the monotonic clock, about).
    pub faulted: AtomicU64,
    /// Frames others ask it to give back.
    pub give_back: AtomicU64,
    /// Futex its reclaim thread sleeps on; shared between processes.
    pub kick: AtomicU32,
    /// 1: it has a reclaim thread that answers `give_back`.
    pub responsive: AtomicU32,
    /// Record (index + 1) of the process it was forked from and may share slots with; 0 is none.
    pub parent: AtomicU32,
    /// Which of that process's forks it came from (`place::kept`).
    pub fork: AtomicU64,
    /// 1: it is forking, so that a record reserved for its child is still wanted however long that
    /// takes.
    pub forking: AtomicU32,
    /// Transfers of it that are going on.
    pub transferring: AtomicU32,
    /// By area: the [`ticket`](Area::ticket) under which this process has emptied it.
    pub emptied: [AtomicU32; MAX_AREAS],
    /// By area: such a ticket (upper half), whether there was nothing else left
    /// ([`ONLY_UNREADABLE`]), and how many pages this process could not read there when it last
    /// tried.
    pub unreadable: [AtomicU64; MAX_AREAS],
    /// Identity of the program image that it runs: changes with exec.
    pub image: AtomicU64,
    /// The scrub of its swap.
    pub scrub: Scrub,
    /// Its faults since it is recorded.
    pub recorded: AtomicU64,
    /// The answer about its pages.
    pub look: Look,
    /// Its counters.
    pub events: Events,
}

impl Record {
    /// Frames that it is charged for other memory than compressed memory, and buffers.
    pub fn uncompressed(&self) -> u64 {
        let all = self.charged.load(Relaxed);
        all.saturating_sub(self.zswap.load(Relaxed) + self.buffers.load(Relaxed))
    }

    /// What it has that holds something, in memory or in swap, bytes ([`super::Pool::touched_bytes`]).
    pub fn touched_bytes(&self) -> u64 {
        let units = self.touched.load(Relaxed).max(0) as u64 * UNIT_BYTES;
        units.saturating_sub(self.untouched_pages.load(Relaxed) * PAGE_BYTES)
    }

    /// Its state.
    pub fn state(&self) -> u64 {
        state::of(self.state.load(std::sync::atomic::Ordering::Acquire))
    }
}
