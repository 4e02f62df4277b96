//! The engine: carries out on real memory what `hugeswap-policy` decides.
//!
//! One [`engine`] serves one pool in one process. It has five layers, each a struct that holds the
//! layer below ([`memory`] says how they are tied together):
//!
//! * [`Engine`]: `engine`, `fork`, `message`
//! * `Reclaim`: `reclaim` (kswapd), `khugepaged`, `swap` (what goes over units because of swap),
//!   `threads`
//! * `Ranges`: `ranges` (mapping, discarding, protecting, pinning), `pagemap`
//! * `Paging`: `fault` (the fault path, one piece of code for both fault modes), `base` (units
//!   mapped by base pages), `read`, `work` (the I/O threads), `file` (mapped files), `track` (which
//!   memory was written since when), `markers`
//! * `Memory`: `memory` (frames, [`groups`], how much a fault brings in)
//!
//! Below them are rooms, which know nothing of the layers:
//!
//! * [`pool`]: the segment that processes share: budget, swap areas, counters
//! * `store`: places in swap, and bytes between them and memory
//! * [`shared`]: memory that several processes of a pool have mapped
//! * `backend`: how memory is put in place; `arena`: where frames wait; `table`: what each unit is
//! * `numa`: on which node frames are; `clean`: units whose frames may be taken; [`space`]:
//!   addresses
//! * `gate`: counts the threads inside the engine; [`lock`]: locks, and their order
//!
//! [`handler`] takes the signals of faults; [`Compressor`] measures codecs.
//!
//! Rules of the fault path (checked by tests and CI): no allocation; no lock that program code,
//! libc or another runtime can hold; no touch of managed memory; no panic,
//! formatting or logging; errno preserved; bounded stack.

mod arena;
mod audit;
mod backend;
mod base;
mod bits;
mod call;
mod careful;
mod checksum;
mod clean;
mod compressor;
mod copying;
mod doubts;
pub mod engine;
mod error;
mod fault;
mod file;
mod fork;
mod forked;
mod gate;
pub mod handler;
pub mod health;
pub mod intervals;
mod khugepaged;
pub mod lock;
mod look;
mod map_frame;
mod marker_table;
mod markers;
mod memory;
mod message;
mod nested;
mod numa;
mod numbering;
mod outcome;
mod pagemap;
mod pages;
mod paging;
mod park;
pub mod pool;
mod ranges;
mod read;
mod reclaim;
mod redelivery;
pub mod shared;
pub mod space;
mod sparse;
mod stack;
mod store;
mod storm;
mod swap;
mod table;
mod threads;
mod track;
mod window;
mod work;
mod writer_count;
mod writers;
mod zero;
mod zeroed;

pub use compressor::{Compressor, Made, Most};
pub use engine::{Engine, EngineConfig, high_descriptor};
pub use error::EngineError;
pub use fault::MESSAGES as FAULT_MESSAGES;
pub use file::{FileMode, MapFileError};
pub use fork::{fork_child, fork_parent, fork_prepare, is_registered as fork_is_registered};
pub use memory::groups;
pub use ranges::{Claim, Contents, MapError, MarkerError, PinError, Prot};
pub use threads::Threads;
pub use track::TrackError;
pub use window::Window;

/// A base page, bytes.
pub(crate) const PAGE: usize = hugeswap_policy::PAGE_BYTES as usize;
/// Base pages of a unit.
pub(crate) const PAGES: usize = hugeswap_policy::UNIT_PAGES as usize;
/// A unit, bytes.
pub(crate) const UNIT: usize = hugeswap_policy::UNIT_BYTES as usize;

/// First managed address under `hugeswap run`: fixed, so that a system-call filter inherited over
/// exec still means the same range, and a multiple of 4 GiB, so that the filter compares high
/// halves only.
pub const WINDOW_BASE: usize = 0x4000_0000_0000;
/// Length of that window, bytes.
pub const WINDOW_LEN: usize = 0x0800_0000_0000;
/// First of the addresses below 2 GiB that are managed, for mappings that are to be there (MAP_32BIT).
/// The kernel places such from 1 GiB on; the first quarter of that GiB is left to what is not managed.
pub const LOW_BASE: usize = 0x5000_0000;
/// How many there are.
pub const LOW_LEN: usize = 0x3000_0000;
/// Address of the shared memory of programs under `hugeswap run`: right behind the window.
pub const SHARED_BASE: usize = WINDOW_BASE + WINDOW_LEN;
/// Addresses there are for it.
pub const SHARED_LEN: usize = 0x0100_0000_0000;
/// Most engines one process can have.
pub const MAX_ENGINES: usize = 8;
