//! Frames and base pages handed out and taken back: from where, in which order, and what is charged for it.
//!
//! * [`Lists`]: places of an arena, without a lock, by node and processor
//! * [`Credits`]: base pages that are charged, by the frame, and not in use
//! * [`charge`]: the budget, which several processes share
//! * [`take_huge`], [`take_frame`], [`take_pages`], [`hand_back`]: who may have what, and the order in which all of these are asked, over whatever
//!   has them ([`Sources`])
//!
//! What is true of them at every step: each charged frame is in use, free, or 512 base pages, in use or free; each place holds one frame
//! or none, and is one's that took it or in one list; nothing beyond the budget is charged.
//! `tests/frames.rs` checks that against a model, and under several threads; `tests/frames_loom.rs` explores the lists.

mod credits;
mod lists;

pub use credits::Credits;
pub use lists::{Here, Lists, MOST_PLACES};

use crate::UNIT_PAGES;
use crate::cell::Cell;
use crate::defrag::gfp::{BasePages, Gfp, Verdict};
use crate::watermark::Watermarks;

/// A frame to use: its place, and whether it is known to hold zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// See above.
    pub place: u32,
    /// See above.
    pub zeroed: bool,
}

/// Where frames are to be had. Nothing here waits.
pub trait Sources {
    /// What counts pages.
    type Word: Cell<u64>;

    /// A free frame of one of these nodes, the first that has any: its place.
    fn take_free(&self, nodes: &[u8]) -> Option<u32>;
    /// An empty place, where the next touch brings a frame of zeros of the node that it comes from.
    fn take_fresh(&self) -> Option<u32>;
    /// Charges a frame, if there is room in the budget.
    fn charge(&self) -> bool;
    /// Takes that back.
    fn uncharge(&self);
    /// The frame of the oldest unit that is clean and that nobody misses, of one of these nodes as for [`Sources::take_free`].
    fn take_clean(&self, nodes: &[u8]) -> Option<u32>;
    /// The frame's memory goes back to the machine; its place is empty then.
    fn discard(&self, place: u32);
    /// Base pages charged and free.
    fn credits(&self) -> &Credits<Self::Word>;
    /// Of what is charged and free of base pages, `left` remain: the memory of the others must not be kept.
    fn shed(&self, left: u64);
}

/// A frame for a request for a huge page where so many are available; or what is to be done instead, which is not [`Verdict::Take`]. `pages`: can base
/// pages take its place? `credits`: how many of those are free. `take` tries to take one, with the flags that say of which nodes.
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
    // What is counted could not be had, or is another node's: that makes base pages.
    let others = gfp_of_it.has(Gfp::THISNODE);
    Err(gfp.without(match pages {
        BasePages::Never => BasePages::Never,
        _ if others || credits() > 0 => BasePages::Free,
        _ => BasePages::NoneFree,
    }))
}

/// A frame of one of `nodes`, nearest first. A fresh one is always the toucher's own node's, so it goes before those of others.
/// `pages_first`: free base pages are given up before the budget is asked.
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

/// A frame for the charge of 512 free pages.
fn frame_of_pages(s: &impl Sources) -> Option<Frame> {
    pages_as_frame(s).then(|| fresh(s)).and_then(|frame| {
        if frame.is_none() {
            s.credits().put(UNIT_PAGES);
        }
        frame
    })
}

/// Takes a whole frame's charge from the pages that are free, if there are enough.
fn pages_as_frame(s: &impl Sources) -> bool {
    let left = s.credits().take_frame();
    if let Some(left) = left {
        // Their memory is to become the frame's.
        s.shed(left);
    }
    left.is_some()
}

/// Charges `n` base pages, if that can be. How many are left of those charged; `n` more there were before. `nodes`: whose frames are
/// broken up for it, those first that are of least use here.
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

/// Gives the budget a frame back that is free, or clean; false: there is none. `nodes` as for [`take_pages`].
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

/// Charges `n` frames to `own` unless the budget is exceeded then; what is used in all after it. `used` adds up what everybody has,
/// `own` included. Two who try for the last frames at once may both be refused; never do both get them.
pub fn charge(own: &impl Cell<u64>, n: u64, used: impl Fn() -> u64, budget: u64) -> Option<u64> {
    add(own, |c| c + n);
    let now = used();
    if now > budget {
        add(own, |c| c - n);
        return None;
    }
    Some(now)
}

/// Changes a number.
fn add(cell: &impl Cell<u64>, f: impl Fn(u64) -> u64) -> u64 {
    let mut old = cell.get();
    loop {
        match cell.change(old, f(old)) {
            Ok(()) => return old,
            Err(now) => old = now,
        }
    }
}
