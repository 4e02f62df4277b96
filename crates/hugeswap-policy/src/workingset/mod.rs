//! The working set: which pages stay, and how one that left too early is recognised.
//!
//! Where a new page starts on the active list, pages that are used once push out those that are in
//! use. Here new pages start on an *inactive* list, and only references make them active. A page
//! that leaves memory leaves a *shadow*; when it comes back, the distance since then tells whether
//! a slightly different choice would have kept it, and it becomes active at once.
//!
//! Source: Joonsoo Kim, "workingset protection/detection on the anonymous LRU list" (Linux 5.9,
//! 2020), after Johannes Weiner, "Thrash detection-based file cache sizing" (Linux 3.15).
//!
//! | part | what it decides |
//! | --- | --- |
//! | [`lru`] | order of use: rings of unit numbers, and the interface of any such order |
//! | [`lruvec`] | which unit is reclaimed next: active and inactive lists by kind and group |
//! | [`vmscan`] | how reclaim divides its work between lists, kinds and groups |
//! | [`Rewrites`] | how long a whole unit that is written to all the time is not written out |
//! | [`Shadow`], [`Duel`], [`lives`] | what a unit leaves behind, and whether it is activated as it returns |
//!
//! In the engine: `memory/lists.rs` feeds the lists; `reclaim.rs` isolates units and gives them up;
//! `memory/sizes.rs` goes by the distances of base pages; `memory/groups.rs` keeps the limits of
//! groups.

pub mod lru;
pub mod lruvec;
mod rewrite;
mod shadow;
pub mod vmscan;

pub use rewrite::Rewrites;
pub use shadow::{Duel, MOST_LIVES, MeanDistance, Origin, Shadow, lives};
