//! State of a page that outlasts the page: markers, and what pagemap says.
//!
//! A page-table entry that is empty does not tell a page in swap from one that was never touched,
//! and what was known of the page is lost: whether it was written, protected, poisoned or guarded.
//! A *marker* keeps that while the page is away. For shared memory the state belongs to the object,
//! so every process that maps it reads the same.
//!
//! Source: Peter Xu, "mm: Enable PM_SWAP for shmem with PTE_MARKER" (RFC, 2021); PTE markers are in
//! the Linux kernel since 5.19. Guards are those of MADV_GUARD_INSTALL (Linux 6.13).
//!
//! | part | what it decides |
//! | --- | --- |
//! | [`Pages`], [`Marker`] | which bits of a page can be together, and which marker a page has |
//! | [`pagemap`] | the 64-bit word that tells of a page, categories of pages, and filters over them |
//!
//! In the engine: `marker_table.rs` keeps the markers and `markers.rs` sets and drops them; `track`
//! and `shared/track.rs` keep soft-dirty bits and write-protection across swap; `pagemap.rs`
//! answers for ranges.

mod bits;
pub mod pagemap;

pub use bits::{Marker, Misplaced, Pages};
