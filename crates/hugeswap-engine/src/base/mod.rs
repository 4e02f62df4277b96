//! Base-mapped units: 512 base pages that come and go each by itself, or, where userfaultfd is
//! refused, 64 KiB at a time.
//!
//! A unit that is in swap, or watched, can become base-mapped in signal mode. A touch of an absent
//! page is a fault, and so is a write to a write-protected one. The [`backend`](crate::backend)
//! puts pages in place.
//!
//! * *In* ([`fault`], [`bring`]): pages are read from swap into one of 32 buffers of 64 KiB,
//!   verified, and put in place atomically, so other threads see a page whole or fault, too. They
//!   are write-protected, so that a page that was only read is dropped without a write. Two are
//!   not: the page that is being written, and a page that is read alone and was changed when it was
//!   last in memory. That one counts as dirty, and its sum says when it leaves whether it is what
//!   swap holds ([`io`]); not so where writes are tracked. The frame of a watched unit goes to the
//!   arena, and the pages to be kept are copied back from there. That takes no I/O, since swap holds
//!   the same bytes. The rest stays there until memory is wanted ([`rest`]).
//! * *Out* ([`evict`]), by kswapd, a unit at a time. The unit stays base-mapped.
//! * *Whole again* ([`whole`]): into a frame goes what is present (write-protected first, then
//!   copied), the rest is read or zero, and the frame takes the unit's place like any other.
//!
//! [`tracked`] has units in memory whose pages are told apart, [`present`] pages installed,
//! protected and dropped, [`place`] where pages go in swap, [`part`] pages that move on the
//! program's request.
//!
//! A unit's [`Record`](crate::pages::record::Record) of 768 bytes (memory only for units that have been in swap) has a
//! bit for each page that is present, that is dirty, that is stored, that was changed when it was
//! last in memory (a hint), and that was present when the unit last left; and what the policy
//! remembers. A page neither present nor stored reads as zero. In swap a unit has a cluster, each
//! page at its own offset in it, whether it is base-mapped or whole; or it is scattered over single
//! slots ([`crate::store`]). Pages are charged to the pool by whole frames, of which a process
//! keeps what it has not used up; 512 free pages serve as a frame.
//!
//! Concurrency: everything happens under the unit's lock. Base-mapped units are never pinned: a
//! caller that needs one held makes it whole first. Message mode has none: there the kernel and
//! devices write to memory that is not pinned, and dropping a base page would not notice.

mod bring;
mod copy;
mod evict;
mod fault;
mod io;
mod part;
mod place;
mod present;
mod rest;
mod tracked;
mod whole;

pub(crate) use crate::PAGE;
use crate::store::BUFFER;
pub(crate) use tracked::Split;
pub(crate) use whole::Cause;
