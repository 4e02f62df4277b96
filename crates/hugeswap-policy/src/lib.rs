//! What hugeswap *decides*, apart from how it is carried out.
//!
//! Nothing here knows a clock, a thread, I/O or (after construction) an
//! allocation; there is no `unsafe`. The engine executes these decisions on real
//! memory, and a test or a simulator can drive the same code without a kernel.
//!
//! * [`mod@unit`]: the 64-bit state word of one 2 MiB unit, and its transitions
//! * [`lruvec`]: which unit goes next, on lists ([`lru`]) whose work [`vmscan`] divides and [`workingset`] corrects
//! * [`readahead`]: what to bring in before it is asked for
//! * [`granularity`]: how much to bring in at a fault; [`thp`]: where that is settled by what is set or advised
//! * [`slots`]: where in swap a unit goes
//! * [`faulty`]: what a faulty device does, for tests
//! * [`retry`]: when a transfer that failed is tried again; [`breaker`]: whether a device that fails is asked at all
//! * [`extents`]: where on a device a page of swap lies
//! * [`mod@frames`]: free frames and base pages, and in which order they are asked for; [`numa`]: from which node
//! * [`watermark`]: when reclaim starts and stops
//! * [`driver`]: all of it together on a machine of counters, for tests and simulation; its [`driver::offline`], which allocates,
//!   compares lists on traces
//! * [`advisor`]: what another budget would bring
//! * [`counters`], [`histogram`]: what operators see, under the kernel's names
//! * [`knobs`]: what they may set
#![forbid(unsafe_code)]

pub mod advisor;
pub mod breaker;
pub mod compaction;
pub mod counters;
pub mod driver;
pub mod extents;
pub mod faulty;
pub mod frames;
pub mod gfp;
pub mod granularity;
pub mod histogram;
pub mod khugepaged;
pub mod knobs;
pub mod lru;
pub mod lruvec;
pub mod markers;
pub mod numa;
pub mod pace;
pub mod pagemap;
pub mod readahead;
pub mod retry;
pub mod shared;
pub mod slots;
pub mod thp;
pub mod unit;
pub mod vmscan;
pub mod watermark;
pub mod wbt;
pub mod workingset;

/// Bytes in a unit: one x86-64 huge page.
pub const UNIT_BYTES: u64 = 2 << 20;
/// log2 of [`UNIT_BYTES`].
pub const UNIT_SHIFT: u32 = 21;
/// Bytes in a base page.
pub const PAGE_BYTES: u64 = 4096;
/// Base pages in a unit.
pub const UNIT_PAGES: u64 = UNIT_BYTES / PAGE_BYTES;
