//! Huge pages without stalls.
//!
//! A fault that found no free huge page used to reclaim and compact memory on the spot, and the
//! program stood still. Here a request says what it may do where none is free ([`gfp`]): wait, wake
//! the threads that make huge pages available, or neither, and take base pages at once. Threads in
//! the background keep free memory between watermarks (kswapd), make free huge frames out of
//! scattered base pages (kcompactd) and put base-mapped units together again (khugepaged).
//!
//! Source: Mel Gorman, "mm: thp: set THP defrag by default to madvise and add a stall-free defrag
//! option" (Linux 4.6, 2016); David Rientjes, "mm, thp: add new defer+madvise defrag
//! option" (Linux 4.11, 2017).
//!
//! | part | what it decides |
//! | --- | --- |
//! | [`gfp`] | what a request may do where no huge page is free (`thp.defrag`) |
//! | [`thp`] | which units may be huge, and how they come in: settings and advice |
//! | [`mod@frames`] | which free frame a request gets, and what is charged for it |
//! | [`khugepaged`] | which base-mapped units become huge again |
//! | [`compaction`] | when kcompactd tries again after it failed |
//!
//! The marks that wake and stop kswapd are [`crate::watermark`].
//!
//! In the engine: `memory/huge.rs` asks for huge frames; `memory/frames.rs`, `arena.rs` and `base`
//! keep frames and base pages; `reclaim.rs` is kswapd; `memory/kcompactd.rs` and `khugepaged.rs`
//! are the threads of these names.

pub mod compaction;
pub mod frames;
pub mod gfp;
pub mod khugepaged;
pub mod thp;
