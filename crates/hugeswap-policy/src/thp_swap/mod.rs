//! Swapping huge pages out and in, in one piece.
//!
//! Swap that splits each 2 MiB huge page into 512 base pages ends with no huge page left: every
//! page costs an unmap, an interrupt to flush TLBs and a transfer of 4 KiB. Here a huge page that
//! leaves memory gets a whole *cluster* of swap, 512 slots that follow each other and start at a
//! multiple of 2 MiB. It leaves by one unmap and one write, and comes back by one fault, one read
//! and one map. A cluster is split into its slots only where base pages are swapped singly.
//!
//! Source: Ying Huang, "swap: Swapout/swapin THP in one piece" (patches for the Linux kernel,
//! 2018; the swap-out half is in the kernel since 4.13, CONFIG_THP_SWAP).
//!
//! | part | what it decides |
//! | --- | --- |
//! | [`clusters`] | which cluster a unit gets, who owns it, how many units refer to it |
//! | [`slots`] | which slots of 4 KiB a base page gets, in clusters that are split |
//! | [`area`] | whether a cluster that was just claimed may be kept while its swap area is emptied |
//! | [`room`] | how much swap areas can still hold where several grow on one disk |
//!
//! What a fault brings in, whole units or pages, is for [`crate::swapin`] and
//! [`crate::defrag::thp`]. The word that stands for a swapped unit (the kernel's PMD swap entry)
//! is [`unit::Word`](crate::unit::Word).
//!
//! In the engine: `store` claims, writes, reads and releases clusters and slots; `memory/huge.rs`
//! and `backend` get and map whole units; `paging.rs` and `base` take units apart; `swap/off.rs`
//! empties an area that is taken off.

pub mod area;
pub mod clusters;
pub mod room;
pub mod slots;
