//! More memory than you are allowed to use: regions of managed memory that hugeswap keeps within a
//! budget, moving the rest to swap in whole huge pages.
//!
//! A [`Pool`] is a budget and its swap. A [`Region`] of it is memory like a `Box<[u8]>`, of any size
//! that budget and swap can hold together; the pool keeps in memory what is in use:
//!
//! ```
//! use hugeswap::Pool;
//! let pool = Pool::builder().memory(64 << 20).swap("/var/tmp").build()?;
//! let mut region = pool.region(256 << 20)?;
//! region.as_mut_slice()[12345] = 1;
//! assert_eq!(region.as_slice()[12345], 1);
//! println!("{} pages went to swap", pool.stats().pswpout);
//! # Ok::<(), hugeswap::Error>(())
//! ```
//!
//! # Where to look
//! | to | see |
//! | --- | --- |
//! | choose budget, swap and settings | [`Builder`], [`settings`], [`SwapSpec`] |
//! | use memory of this process | [`Region`] |
//! | map a file within the budget | [`Pool::map_file`] |
//! | share memory between processes | [`SharedRegion`], [`Pool::join`] |
//! | say how memory will be used | [`ManagedRange::advise`], [`Advice`] |
//! | give content up | [`Region::discard`], [`SharedRegion::remove`] |
//! | promise memory to some regions | [`Group`] |
//! | see what is in memory, in swap, or idle | [`ManagedRange::pagemap`], [`ManagedRange::scan`] |
//! | see what was written since a moment | [`ManagedRange::track_writes`] |
//! | save a region, and restore it | [`ManagedRange::snapshot`], [`Region::restore`] |
//! | measure, and choose a budget | [`Pool::stats`], [`Pool::advice`] |
//! | add and remove swap while in use | [`Pool::swap_on`], [`Pool::swap_off`] |
//!
//! # Units
//! Sizes, offsets and lengths are in bytes unless the name says otherwise. A page is 4096 bytes. A
//! unit is 2 MiB, the size of a huge page: memory moves in whole units where it can.
//!
//! # Errors
//! An operation that fails returns an [`Error`], whose message says what failed, on what, and why. An
//! *access* cannot return an error: an access to memory whose swap failed, or returned other bytes
//! than were written, raises SIGBUS, and never returns wrong bytes. [`ManagedRange::read_at`] and
//! [`Region::write_at`] copy with an error instead.
//!
//! # System calls
//! In signal mode (the default, which needs no privilege) a system call that is given a pointer to
//! memory that is in swap fails with EFAULT, and some calls have by then lost data. Hold the range
//! with [`Region::pin`], or copy with [`ManagedRange::read_at`] and [`Region::write_at`]. In message
//! mode ([`FaultMode::Message`], which needs privilege) system calls need no care.
//!
//! # Blocking
//! An access to memory that is in swap waits for the device, and so may one to new memory, for other
//! memory to leave. Methods say where they wait. Nothing waits without end: an operation that
//! another process of the pool prevents fails in the end.
//!
//! # Threads, signals and forks
//! All types are `Send` and `Sync`. A thread that touches a region must not block SIGSEGV and SIGBUS
//! (signal mode); a fault at any other address goes to the program's own handler. A forked child sees
//! what the parent had at the moment of the fork (of a file: what the file has, see
//! [`Pool::map_file`]), and its memory counts against the same budget.

mod advice;
mod builder;
mod error;
mod file;
mod group;
mod pagemap;
mod pool;
mod range;
mod region;
mod shared;
mod snapshot;
mod stats;
mod swap;
mod track;

/// Typed settings: a type for each, and [`Setting`](settings::Setting) for any of them. See
/// [`Builder::set`]. docs/settings.md explains each.
pub mod settings {
    pub use hugeswap_policy::knobs::settings::*;
}

/// Volatile views of a [`SharedRegion`], from the crate [`vm_memory`]: memory that others may write
/// at any moment, read and written without a reference to its bytes.
pub mod volatile {
    pub use vm_memory::{
        AtomicAccess, AtomicInteger, ByteValued, Bytes, VolatileArrayRef, VolatileMemory,
        VolatileMemoryError, VolatileRef, VolatileSlice,
    };
}

pub use advice::Advice;
pub use builder::Builder;
pub use error::{Error, FileError};
pub use group::{Group, GroupStats};
pub use hugeswap_engine::groups::GroupError;
pub use hugeswap_engine::pool::losses::{Cause, Loss};
pub use hugeswap_engine::pool::{FaultMode, PoolError, Room, ScrubReport, SwapSpec, SwapSpecError};
pub use hugeswap_engine::shared::SharedError;
pub use hugeswap_engine::{EngineError, FileMode, TrackError};
pub use hugeswap_engine::{MapError, MapFileError, MarkerError, PinError};
pub use hugeswap_policy::advisor::advice::{Advice as BudgetAdvice, Point as BudgetPoint};
pub use hugeswap_policy::markers::pagemap::{Categories, Filter, State as PageState, SwapPlace};
pub use pagemap::{PageRange, Pagemap};
pub use pool::Pool;
pub(crate) use pool::Running;
pub use range::ManagedRange;
pub use region::{Pin, Region};
pub use shared::SharedRegion;
pub use snapshot::{Snapshot, SnapshotError};
pub use stats::Stats;
pub use swap::{SwapArea, SwapOffError};
pub use track::{Epoch, Granularity};
