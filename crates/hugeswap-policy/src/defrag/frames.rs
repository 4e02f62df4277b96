//! Which frame or base pages a request gets: from where, in which order, and what is charged.
//!
//! * [`Lists`]: the places of an arena, without a lock, by node and processor
//! * [`Credits`]: base pages that are charged, a frame at a time, and not in use
//! * [`charge`]: the budget that several processes share
//! * [`take_huge`], [`take_frame`], [`take_pages`], [`hand_back`]: the order in which these are
//!   asked, over whatever has the frames ([`Sources`])
//!
//! Invariants: each charged frame is in use, free, or 512 base pages, each in use or free. Each
//! place holds one frame or none, and is either taken or in one list. Nothing beyond the budget is
//! charged. `tests/frames.rs` checks these against a model and under several threads;
//! `tests/frames_loom.rs` explores the lists.

mod credits;
mod lists;

pub use credits::Credits;
pub use lists::{Here, Lists, MOST_PLACES};

use crate::UNIT_PAGES;
use crate::cell::Cell;
use crate::defrag::gfp::{BasePages, Gfp, Verdict};
use crate::watermark::Watermarks;

/// A frame that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The place of the arena that holds it.
    pub place: u32,
    /// It is known to hold zeros.
    pub zeroed: bool,
}

/// Where frames come from. No method waits.
pub trait Sources {
    /// The type of the numbers of pages.
    type Word: Cell<u64>;

    /// Takes a free frame of the first of `nodes` that has one, and returns its place.
    fn take_free(&self, nodes: &[u8]) -> Option<u32>;
    /// Takes an empty place, where the next touch brings a frame of zeros from the node of the
    /// thread that touches it.
    fn take_fresh(&self) -> Option<u32>;
    /// Charges a frame if the budget has room for it.
    fn charge(&self) -> bool;
    /// Takes a charge back.
    fn uncharge(&self);
    /// Takes the frame of the unit that has been clean and untouched for longest, of `nodes` as for
    /// [`Sources::take_free`].
    fn take_clean(&self, nodes: &[u8]) -> Option<u32>;
    /// Gives the memory of a frame back to the machine, which leaves its place empty.
    fn discard(&self, place: u32);
    /// The base pages that are charged and free.
    fn credits(&self) -> &Credits<Self::Word>;
    /// Called when `left` of the charged and free base pages remain: the memory of the others must
    /// be given back.
    fn shed(&self, left: u64);
}

/// Decides about a request for a huge page while `available` pages are available: a frame, or a
/// verdict other than [`Verdict::Take`]. `pages` says whether base pages can take its place,
/// `credits` how many of those are free. `take` tries to take a frame, with the flags that name the
/// nodes.
pub fn take_huge<F>(
    gfp: Gfp,
    (available, marks): (u64, Watermarks),
    pages: BasePages,
    credits: impl Fn() -> u64,
    take: impl FnOnce(Gfp) -> Option<F>,
) -> Result<F, Verdict> {
    let verdict = gfp.verdict(available, marks, pages);
    let may_have_any = pages == BasePages::Never || verdict == Verdict::WaitForAny;
    if verdict != Verdict::Take && !may_have_any {
        return Err(verdict);
    }
    let gfp_of_it = if may_have_any { Gfp::USER } else { gfp };
    if let Some(frame) = take(gfp_of_it) {
        return Ok(frame);
    }
    // The frames that were counted are taken by now, or of other nodes; they still make base pages.
    let others = gfp_of_it.has(Gfp::THISNODE);
    Err(gfp.without(match pages {
        BasePages::Never => BasePages::Never,
        _ if others || credits() > 0 => BasePages::Free,
        _ => BasePages::NoneFree,
    }))
}

/// Takes a frame of one of `nodes`, nearest first. A fresh frame comes from the node of the thread
/// that touches it, so it is preferred to a frame of another node. With `pages_first`, free base
/// pages are given up before the budget is asked.
pub fn take_frame(s: &impl Sources, nodes: &[u8], pages_first: bool) -> Option<Frame> {
    let old = |place| Frame {
        place,
        zeroed: false,
    };
    let (near, far) = nodes.split_at(nodes.len().min(1));
    if let Some(place) = s.take_free(near) {
        return Some(old(place));
    }
    if pages_first && let Some(frame) = frame_of_pages(s) {
        return Some(frame);
    }
    if s.charge() {
        if let Some(frame) = fresh(s) {
            return Some(frame);
        }
        s.uncharge();
    }
    frame_of_pages(s)
        .or_else(|| s.take_free(far).map(old))
        .or_else(|| s.take_clean(nodes).map(old))
}

fn fresh(s: &impl Sources) -> Option<Frame> {
    s.take_fresh().map(|place| Frame {
        place,
        zeroed: true,
    })
}

/// Takes a frame for the charge of 512 free base pages.
fn frame_of_pages(s: &impl Sources) -> Option<Frame> {
    pages_as_frame(s).then(|| fresh(s)).and_then(|frame| {
        if frame.is_none() {
            s.credits().put(UNIT_PAGES);
        }
        frame
    })
}

/// Takes the charge of a whole frame from the free base pages, if there are enough.
fn pages_as_frame(s: &impl Sources) -> bool {
    let left = s.credits().take_frame();
    if let Some(left) = left {
        // Their memory becomes that of the frame.
        s.shed(left);
    }
    left.is_some()
}

/// Charges `n` base pages, and returns how many of the charged ones are left free, or `None` if the
/// budget has no room. Frames of `nodes` are broken up for it; the first of these are of least use
/// here.
pub fn take_pages(s: &impl Sources, n: u64, nodes: &[u8]) -> Option<u64> {
    loop {
        if let Some(left) = s.credits().take(n) {
            return Some(left);
        }
        if !s.charge() {
            let place = s.take_free(nodes).or_else(|| s.take_clean(nodes))?;
            s.discard(place);
        }
        s.credits().put(UNIT_PAGES);
    }
}

/// Gives a frame that is free or clean back to the budget. False if there is none. `nodes` are as
/// for [`take_pages`].
pub fn hand_back(s: &impl Sources, nodes: &[u8]) -> bool {
    if !pages_as_frame(s) {
        let Some(place) = s.take_free(nodes).or_else(|| s.take_clean(nodes)) else {
            return false;
        };
        s.discard(place);
    }
    s.uncharge();
    true
}

/// Charges `n` frames to `own` unless that exceeds the budget, and returns the sum in use
/// afterwards. `used` adds up what all processes have, `own` included. Of two processes that try
/// for the last frames at once both may be refused; never do both get them.
pub fn charge(own: &impl Cell<u64>, n: u64, used: impl Fn() -> u64, budget: u64) -> Option<u64> {
    add(own, |c| c + n);
    let now = used();
    if now > budget {
        add(own, |c| c - n);
        return None;
    }
    Some(now)
}

/// Changes a number by compare-and-swap, and returns the new one.
fn add(cell: &impl Cell<u64>, f: impl Fn(u64) -> u64) -> u64 {
    let mut old = cell.get();
    loop {
        match cell.change(old, f(old)) {
            Ok(()) => return old,
            Err(now) => old = now,
        }
    }
}
