//! Where swap lies on its device.
//!
//! A swap file is many extents on its device, and what its blocks look like decides what a transfer of
//! 2 MiB costs. The published system looks up the extent of each page at each transfer, in a
//! balanced map in place of a list; see [`Extents`].
//!
//! Source: Aaron Lu, "swap: use rbtree for swap_extent" (Linux 5.3, 2019).
//!
//! | part | what it decides |
//! | --- | --- |
//! | [`Extents`] | which extent a page of an area is in, and how much of it follows |
//! | [`for_each_cluster`] | which clusters of 2 MiB have blocks, and in how many pieces |
//! | [`layout`] | which cluster a claim takes first, by how each lies on its device |
//!
//! In the engine: `pool/lies.rs` asks the file system (FIEMAP) as an area is turned on or grows;
//! `store/claim.rs` claims by [`layout`].

mod clusters;
pub mod layout;
mod map;

pub use clusters::for_each_cluster;
pub use map::{Extent, Extents, Place, Refused, Run};
