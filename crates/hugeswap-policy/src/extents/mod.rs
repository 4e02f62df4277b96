//! Where swap lies on its device.
//!
//! A swap file may be tens of thousands of extents on its device. The kernel's swap finds the
//! extent of each page at each transfer, and a linear list of them once took a third of all time.
//! The published system keeps them in a balanced map. Here [`Extents`] is such a map, with less
//! memory and faster look-ups, read by any number of threads without a lock.
//!
//! The engine writes to swap files through their file system, which finds the blocks. It uses the
//! map to find the area that a cluster is in, at each transfer. What the extents of the file decide
//! is which clusters to claim: a cluster in one piece is one request of the device
//! ([`for_each_cluster`], [`layout`]), also in a file that grows while it is in use.
//!
//! Source: Aaron Lu, "mm, swap: use rbtree for swap_extent" (Linux 5.3, 2019).
//!
//! | part | what it decides |
//! | --- | --- |
//! | [`Extents`] | which extent a page is in, where that lies, and how much of it follows |
//! | [`for_each_cluster`] | which clusters of 2 MiB have all their blocks, and in how many pieces |
//! | [`layout`] | which cluster a claim takes first, by how each lies on its device |
//!
//! In the engine: `pool/areas.rs` locates clusters; `pool/extents.rs` asks the file system for
//! extents (FIEMAP) as an area is turned on or grows; `store/claim.rs` claims by [`layout`].

mod clusters;
pub mod layout;
mod map;

pub use clusters::for_each_cluster;
pub use map::{Extent, Extents, Place, Refused, Run};
