//! What hugeswap *decides*, apart from how it is carried out.
//!
//! Nothing here knows a clock, a thread, I/O or (after construction) an allocation, and there is no
//! `unsafe`. The engine executes these decisions on real memory; a test or a simulator drives the
//! same code without a kernel.
//!
//! # The five systems
//!
//! Each was published for the Linux kernel. The page of each names its source, its parts, and the
//! files of the engine that carry it out. No system uses another one.
//!
//! | module | system |
//! | --- | --- |
//! | [`thp_swap`] | huge pages are swapped out and in, in one piece |
//! | [`markers`] | the state of a page outlasts the page |
//! | [`extents`] | where swap lies on its device |
//! | [`defrag`] | huge pages are to be had without a stall |
//! | [`workingset`] | the working set is protected, and recognised when it was missed |
//!
//! # What serves all of them
//!
//! | module | what it decides |
//! | --- | --- |
//! | [`mod@unit`] | the state word of a unit of 2 MiB, and its transitions |
//! | [`shared`] | the state word of a unit of shared memory |
//! | [`swapin`] | how much a fault brings in, and what is read ahead of it |
//! | [`watermark`] | when reclaim starts and stops |
//! | [`donor`] | which process gives memory to another of its pool |
//! | [`pace`] | how long threads pause that take memory faster than reclaim makes it available |
//! | [`numa`] | which node memory comes from |
//! | [`device`] | what a slow or failing device makes the engine do |
//! | [`advisor`] | what another budget would bring |
//! | [`counters`], [`histogram`] | what operators see, under the kernel's names |
//! | [`knobs`] | what operators set |
//! | [`turns`] | when what others act on may change |
//! | [`cell`] | the atomic integer of lock-free protocols |
//!
//! # Where to begin
//!
//! A unit's life is [`mod@unit`]. [`driver`] runs the whole policy on a machine of counters, in the
//! order in which an engine asks: a trace goes in, decisions come out. [`driver::offline`] compares
//! orders of reclaim on traces.
//!
//! Hot words are atomics that any thread changes without a lock; lists have one owner and get their
//! work in batches. Each module says at its head which of the two it is.
#![forbid(unsafe_code)]

#[macro_use]
mod names;

pub mod advisor;
pub mod cell;
pub mod counters;
pub mod defrag;
pub mod device;
pub mod donor;
pub mod driver;
pub mod extents;
pub mod histogram;
pub mod knobs;
pub mod markers;
pub mod numa;
pub mod pace;
pub mod recording;
pub mod shared;
pub mod swapin;
pub mod thp_swap;
pub mod turns;
pub mod unit;
pub mod watermark;
pub mod workingset;
pub mod zswap;

/// Bytes in a unit: one x86-64 huge page.
pub const UNIT_BYTES: u64 = 2 << 20;
/// log2 of [`UNIT_BYTES`].
pub const UNIT_SHIFT: u32 = 21;
/// Bytes in a base page.
pub const PAGE_BYTES: u64 = 4096;
/// Base pages in a unit.
pub const UNIT_PAGES: u64 = UNIT_BYTES / PAGE_BYTES;
