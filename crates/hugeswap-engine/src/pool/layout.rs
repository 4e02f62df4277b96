//! The layout of the pool segment: fixed, versioned, every field an atomic.
//!
//! ```text
//! | Header | Record x MAX_PROCESSES | slot words (u32) | bitmaps (64 bytes a slot) | lies (2 bits a slot) | page sums (512 x u64 a slot) | seals (512 x 24 bytes a slot) |
//! | bad slots (64 bytes a slot) |
//! ```
//! Any process of the pool may write any of it, and any of them may be hostile or
//! dying: whoever reads validates, bounds every index, and never follows an
//! address found here.

use crate::checksum::Sums;
use crate::swap::seal::Seals;
use hugeswap_policy::advisor;
use hugeswap_policy::counters::{Counter, FaultClass};
use hugeswap_policy::histogram;
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::slots::{lies, split};
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, AtomicU64};

/// "hugeswap" in ASCII.
pub const MAGIC: u64 = u64::from_le_bytes(*b"hugeswap");
/// Changed whenever the layout does.
pub const VERSION: u32 = 10;
/// Most processes a pool can have at one time.
pub const MAX_PROCESSES: usize = 256;
/// Most swap areas a pool can have.
pub const MAX_AREAS: usize = 32;

/// What transfers of a swap area took when it was turned on.
#[repr(C)]
pub struct AreaCosts {
    /// 1: they were measured.
    pub measured: AtomicU32,
    /// Nanoseconds of 4 KiB, 64 KiB and 2 MiB, from swap and to it.
    pub ns: [[AtomicU32; 3]; 2],
}

/// Most bytes of a request or an answer.
pub const LETTER: usize = 4096;

/// Where the pool is asked for something from outside.
#[repr(C)]
pub struct Mailbox {
    /// Who may touch the rest; a futex.
    pub state: AtomicU32,
    /// Who asks.
    pub from: AtomicI32,
    /// Bytes of `text`.
    pub len: AtomicU32,
    /// The request, then the answer.
    pub text: [AtomicU8; LETTER],
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
    /// See [`area`](hugeswap_policy::slots::area).
    pub state: AtomicU32,
    /// Counts areas: another one at this place has another number. Not 0.
    pub serial: AtomicU32,
    /// Under which it is being taken off; see [`Record::emptied`].
    pub ticket: AtomicU32,
    /// Areas of a higher priority are filled first.
    pub priority: AtomicI32,
    /// Its descriptor in the process that made the pool.
    pub fd: AtomicI32,
    /// 1: opened for direct I/O.
    pub direct: AtomicU32,
    /// What it is ([`Kind`](super::swap::Kind)).
    pub kind: AtomicU32,
    /// First slot of the area.
    pub first_slot: AtomicU64,
    /// Slots it has.
    pub slots: AtomicU64,
    /// Bytes of it that have blocks of the device so far.
    pub allocated: AtomicU64,
    /// Write errors seen.
    pub errors: AtomicU64,
    /// When it last could not grow, for there was no room; nanoseconds of CLOCK_MONOTONIC, 0: it could.
    pub no_room: AtomicU64,
    /// Read errors seen, wrong sums included.
    pub read_errors: AtomicU64,
    /// Whether it is to be written to ([`Breaker`](hugeswap_policy::breaker::Breaker)).
    pub health: AtomicU64,
    /// What reads took.
    pub reads: Latencies,
    /// What writes took.
    pub writes: Latencies,
    /// What its transfers cost at first.
    pub costs: AreaCosts,
}

/// Counters and fault latencies: one set for each process, one for those that are gone.
#[repr(C)]
pub struct Events {
    /// By [`Counter`].
    pub counters: [AtomicU64; Counter::COUNT],
    /// Nanoseconds spent in faults.
    pub fault_ns: AtomicU64,
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
    /// Slots there is room for in this segment.
    pub slots: AtomicU64,
    /// Slots used by areas so far: none has any at or above this.
    pub slots_high: AtomicU64,
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
    /// Number + 1 of the descriptor of the key that swap is encrypted with, in the process that made the pool; 0: it is not.
    pub key_fd: AtomicI32,
    /// Writers that have numbered what they encrypt: see [`crate::swap::seal::Nonces`].
    pub writers: AtomicU32,
    /// Bytes of swap that are never used again: see `swap::quarantine`.
    pub bad_bytes: AtomicU64,
    /// Slots that were ever found bad, and pages lost otherwise.
    pub losses: AtomicU64,
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
    /// Largest total of managed bytes mapped at one time.
    pub peak_managed: AtomicU64,
    /// Fault mode in use: 0 none yet, 1 signal, 2 message, 3 both.
    pub mode_used: AtomicU32,
    /// Processes that gave up since memory and swap ran out.
    pub exhausted: AtomicU32,
    /// 1: swap was nearly full.
    pub soft_full: AtomicU32,
    /// When somebody last looked whether it is, nanoseconds of CLOCK_MONOTONIC.
    pub room_seen: AtomicU64,
    /// Settings, by [`Knob`].
    pub knobs: [AtomicU64; Knob::COUNT],
    /// The swap areas.
    pub areas: [Area; MAX_AREAS],
    /// What processes that are gone had counted.
    pub retired: Events,
    /// Requests from outside.
    pub mailbox: Mailbox,
}

/// Record states.
pub mod state {
    /// Nobody's.
    pub const FREE: u32 = 0;
    /// A process's.
    pub const LIVE: u32 = 1;
    /// Being cleaned up after its process went.
    pub const REAPING: u32 = 2;
    /// Being filled in (by a child about to be forked, or one that joins).
    pub const JOINING: u32 = 3;
    /// Its process is gone, but a process forked from it may still read its slots.
    pub const ZOMBIE: u32 = 4;
}

/// What a process's last scrub found, base pages: see [`crate::swap::scrub::ScrubReport`].
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
    pub state: AtomicU32,
    /// Its process id.
    pub pid: AtomicI32,
    /// Its start time, as `/proc/PID/stat` tells it (clock ticks).
    pub start_time: AtomicU64,
    /// Frames it holds.
    pub charged: AtomicU64,
    /// Managed bytes it has mapped.
    pub managed: AtomicU64,
    /// Frames others ask it to give back.
    pub give_back: AtomicU64,
    /// Futex its reclaim thread sleeps on; shared between processes.
    pub kick: AtomicU32,
    /// 1: it has a reclaim thread that answers `give_back`.
    pub responsive: AtomicU32,
    /// Record (index + 1) of the process it was forked from and may share slots with; 0 is none.
    pub parent: AtomicU32,
    /// By area: the [`ticket`](Area::ticket) under which this process has emptied it.
    pub emptied: [AtomicU32; MAX_AREAS],
    /// Which program image it runs: changes with exec.
    pub image: AtomicU64,
    /// Of its swap.
    pub scrub: Scrub,
    /// What it counted.
    pub events: Events,
}

/// Offsets of the parts of a segment with `slots` slots.
#[derive(Clone, Copy, Debug)]
pub struct Offsets {
    /// Of the records.
    pub records: usize,
    /// Of the slot words.
    pub slot_words: usize,
    /// Of the bitmaps of split slots.
    pub split_maps: usize,
    /// Of the two maps that say how slots lie ([`lies`]), one after the other.
    pub lies: usize,
    /// Of the slot sums.
    pub slot_sums: usize,
    /// Of the seals, for a pool that encrypts.
    pub seals: usize,
    /// Of the bitmaps of bad slots.
    pub bad_maps: usize,
    /// Of the end.
    pub end: usize,
}

/// Computes them; `None` if the numbers are absurd.
pub fn offsets(slots: u64) -> Option<Offsets> {
    if slots > 1 << 32 {
        return None;
    }
    let align = |n: usize| n.next_multiple_of(4096);
    let slots = slots as usize;
    let records = align(size_of::<Header>());
    let slot_words = align(records + size_of::<Record>() * MAX_PROCESSES);
    let split_maps = align(slot_words + slots * 4);
    let lies = align(split_maps + slots * split::MAP_WORDS * 8);
    let slot_sums = align(lies + 2 * lies::words(slots) * 8);
    let seals = align(slot_sums + slots * size_of::<Sums>());
    let bad_maps = align(seals + slots * size_of::<Seals>());
    let end = align(bad_maps + slots * split::MAP_WORDS * 8);
    Some(Offsets {
        records,
        slot_words,
        split_maps,
        lies,
        slot_sums,
        seals,
        bad_maps,
        end,
    })
}
