//! What hugeswap *decides*, apart from how it is carried out.
//!
//! Nothing here knows a clock, a thread, I/O or (after construction) an allocation; there is no
//! `unsafe`. The engine executes these decisions on real memory, and a test or a simulator drives the
//! same code without a kernel.
//!
//! Five systems, each published for the Linux kernel, are each found in one place. Their pages name
//! the source, the parts, and the files of the engine that carry them out:
//!
//! * [`thp_swap`]: huge pages are swapped out and in, in one piece
//! * [`markers`]: the state of a page outlasts the page
//! * [`extents`]: where swap lies on its device
//! * [`defrag`]: huge pages are to be had without a stall
//! * [`workingset`]: the working set is protected, and recognised when it was missed
//!
//! What serves all of them:
//!
//! * [`mod@unit`]: the 64-bit state word of one 2 MiB unit, and its transitions; [`shared`]: the same for shared memory
//! * [`swapin`]: how much a fault brings in, and what is read ahead
//! * [`watermark`]: when reclaim starts and stops; [`pace`]: how long those pause who take memory faster than that
//! * [`device`]: what a slow or failing device makes the engine do
//! * [`numa`]: which node memory comes from
//! * [`counters`], [`histogram`]: what operators see, under the kernel's names; [`knobs`]: what they may set
//! * [`advisor`]: what another budget would bring
//! * [`cell`]: the atomic integer of protocols without a lock
//!
//! [`driver`] runs all of it on a machine of counters, for tests and simulation; its [`driver::offline`] compares lists on traces.
#![forbid(unsafe_code)]

pub mod advisor;
pub mod cell;
pub mod counters;
pub mod defrag;
pub mod device;
pub mod driver;
pub mod extents;
pub mod histogram;
pub mod knobs;
pub mod markers;
pub mod numa;
pub mod pace;
pub mod shared;
pub mod swapin;
pub mod thp_swap;
pub mod unit;
pub mod watermark;
pub mod workingset;

/// Bytes in a unit: one x86-64 huge page.
pub const UNIT_BYTES: u64 = 2 << 20;
/// log2 of [`UNIT_BYTES`].
pub const UNIT_SHIFT: u32 = 21;
/// Bytes in a base page.
pub const PAGE_BYTES: u64 = 4096;
/// Base pages in a unit.
pub const UNIT_PAGES: u64 = UNIT_BYTES / PAGE_BYTES;
