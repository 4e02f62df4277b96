//! The places of an arena, handed out and taken back without a lock: those that hold a free frame,
//! by the node of its memory, and those that hold none.
//!
//! Each list is a stack, linked through one array that has the number of the next place for every
//! place. A place is in one stack, or taken. The head of a stack is one word,
//!
//! ```text
//!  63          26 25          0
//! | changes      | place + 1   |
//! ```
//!
//! changed by compare-and-swap. A thread that pops a place reads its successor while another thread
//! may have taken the place already. Then the head has changed, even if the same place is on top
//! again, and the compare-and-swap fails.
//!
//! A *line* is the stacks of one processor (or of some that share it) for one node, in cache lines
//! of its own. A thread takes a frame from the line of its processor, then from the other lines of
//! the node, then from the next node that it may use; it gives a frame back to the line of its
//! processor. So processors do not meet in one cache line. Every thread reaches every line, so no
//! frame is kept from a thread that needs it, and there are no caches to drain.
//!
//! A frame is counted before it is put and until after it was taken, so the count is never below
//! the number of frames there. Free frames are of two kinds: those that kcompactd has looked at
//! since they became free, and the others.
//!
//! Explored by loom (`tests/frames_loom.rs`).

use super::add;
use crate::cell::Cell;
use std::marker::PhantomData;
use std::ops::Deref;

const PLACE_BITS: u32 = 26;
const PLACE: u64 = (1 << PLACE_BITS) - 1;

/// Largest number of places.
pub const MOST_PLACES: u32 = PLACE as u32;

/// The stacks of a line.
const LOOKED: usize = 0;
const NEW: usize = 1;
const EMPTY: usize = 2;
const FRESH: usize = 3;

/// Node and processor of a thread that takes or gives a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Here {
    /// Node of the processor.
    pub node: u8,
    /// Number of the processor's line among those of the node.
    pub shard: u8,
}

#[repr(align(128))]
struct Line<H> {
    heads: [H; 4],
    /// Number of free frames.
    frames: H,
}

/// The places of an arena. `H` are heads and counts, `N` dereferences to the numbers of the next
/// places.
pub struct Lists<H, N, C> {
    lines: Box<[Line<H>]>,
    next: N,
    shards: usize,
    /// Places from here on are set apart ([`Lists::take_fresh`]).
    fresh_from: H,
    /// First place that was never used, below `fresh_from` and from there on.
    unused: [H; 2],
    cell: PhantomData<C>,
}

impl<H: Cell<u64>, C: Cell<u32>, N: Deref<Target = [C]>> Lists<H, N, C> {
    /// Makes lists in which all places are empty, those from `fresh_from` on set apart. `zero`
    /// makes a word, `next` has one word for each place, and each of `nodes` has `shards` lines.
    pub fn new(
        zero: impl Fn() -> H,
        next: N,
        nodes: usize,
        shards: usize,
        fresh_from: u32,
    ) -> Self {
        debug_assert!(next.len() <= MOST_PLACES as usize);
        let line = || Line {
            heads: [zero(), zero(), zero(), zero()],
            frames: zero(),
        };
        let lists = Lists {
            lines: (0..nodes * shards).map(|_| line()).collect(),
            next,
            shards,
            fresh_from: zero(),
            unused: [zero(), zero()],
            cell: PhantomData,
        };
        lists.reset(fresh_from);
        lists
    }

    /// Makes all places empty again. Only while no other thread uses the lists.
    pub fn reset(&self, fresh_from: u32) {
        for line in &self.lines {
            line.heads.iter().for_each(|h| h.put(0));
            line.frames.put(0);
        }
        self.fresh_from.put(fresh_from.into());
        self.unused[0].put(0);
        self.unused[1].put(fresh_from.into());
    }

    /// Number of places.
    pub fn places(&self) -> u32 {
        self.next.len() as u32
    }

    /// Number of the first place that is set apart for fresh frames.
    pub fn fresh_from(&self) -> u32 {
        self.fresh_from.get() as u32
    }

    fn push(&self, head: &H, place: u32) {
        let mut old = head.get();
        loop {
            self.next[place as usize].put((old & PLACE) as u32);
            match head.change(old, changed(old, place + 1)) {
                Ok(()) => return,
                Err(now) => old = now,
            }
        }
    }

    fn pop(&self, head: &H) -> Option<u32> {
        let mut old = head.get();
        loop {
            let place = ((old & PLACE) as u32).checked_sub(1)?;
            let next = self.next[place as usize].get();
            match head.change(old, changed(old, next)) {
                Ok(()) => return Some(place),
                Err(now) => old = now,
            }
        }
    }

    /// The lines of a node, that of the processor first.
    fn lines(&self, node: u8, shard: u8) -> impl Iterator<Item = &Line<H>> {
        let first = node as usize * self.shards;
        let of_node = self.lines.get(first..first + self.shards).unwrap_or(&[]);
        (0..of_node.len()).map(move |i| &of_node[(shard as usize + i) % of_node.len()])
    }

    fn line(&self, here: Here) -> &Line<H> {
        &self.lines[(here.node as usize * self.shards + here.shard as usize) % self.lines.len()]
    }

    /// Every line, that of the processor first.
    fn all(&self, here: Here) -> impl Iterator<Item = &Line<H>> {
        let first = here.node as usize * self.shards + here.shard as usize;
        (0..self.lines.len()).map(move |i| &self.lines[(first + i) % self.lines.len()])
    }

    fn take_frame_of(&self, line: &Line<H>, stacks: &[usize]) -> Option<u32> {
        if line.frames.get() == 0 {
            return None;
        }
        let place = stacks.iter().find_map(|&s| self.pop(&line.heads[s]))?;
        add(&line.frames, |n| n - 1);
        Some(place)
    }

    /// Takes a free frame of the first of `nodes` that has one.
    pub fn take_free(&self, here: Here, nodes: &[u8]) -> Option<u32> {
        nodes
            .iter()
            .flat_map(|&node| self.lines(node, here.shard))
            .find_map(|line| self.take_frame_of(line, &[LOOKED, NEW]))
    }

    /// Takes a free frame that kcompactd has not looked at since it became free.
    pub fn take_to_look_at(&self, here: Here) -> Option<u32> {
        self.all(here)
            .find_map(|line| self.take_frame_of(line, &[NEW]))
    }

    /// True if there is a frame for [`Lists::take_to_look_at`].
    pub fn any_to_look_at(&self) -> bool {
        self.lines.iter().any(|l| l.heads[NEW].get() & PLACE != 0)
    }

    /// Gives a frame to the line of `here`, whose node must be that of the frame. `looked` says
    /// that kcompactd has looked at it.
    pub fn put_free(&self, here: Here, place: u32, looked: bool) {
        let line = self.line(here);
        add(&line.frames, |n| n + 1);
        self.push(&line.heads[if looked { LOOKED } else { NEW }], place);
    }

    /// Number of free frames. Changes at any time.
    pub fn free(&self) -> u64 {
        self.lines.iter().map(|l| l.frames.get()).sum()
    }

    /// Number of free frames of one node. Changes at any time.
    pub fn free_of(&self, node: u8) -> u64 {
        self.lines(node, 0).map(|l| l.frames.get()).sum()
    }

    /// Takes an empty place.
    pub fn take_empty(&self, here: Here) -> Option<u32> {
        self.take_without(here, EMPTY)
    }

    /// Takes an empty place of those set apart for fresh frames.
    pub fn take_fresh(&self, here: Here) -> Option<u32> {
        self.take_without(here, FRESH)
    }

    fn take_without(&self, here: Here, stack: usize) -> Option<u32> {
        let used = self.all(here).find_map(|l| self.pop(&l.heads[stack]));
        used.or_else(|| {
            let (unused, end) = match stack {
                EMPTY => (&self.unused[0], self.fresh_from.get()),
                _ => (&self.unused[1], self.next.len() as u64),
            };
            let mut next = unused.get();
            while next < end {
                match unused.change(next, next + 1) {
                    Ok(()) => return Some(next as u32),
                    Err(now) => next = now,
                }
            }
            None
        })
    }

    /// Gives back a place without a frame.
    pub fn put_empty(&self, here: Here, place: u32) {
        let stack = if place < self.fresh_from() {
            EMPTY
        } else {
            FRESH
        };
        self.push(&self.line(here).heads[stack], place);
    }

    /// Calls `f` with each empty place that was used before; no other thread has it during the
    /// call.
    pub fn each_empty(&self, mut f: impl FnMut(u32)) {
        for line in &self.lines {
            let head = &line.heads[EMPTY];
            // All are taken first; places given back one by one would be met again.
            let mut rest = (add(head, |old| changed(old, 0)) & PLACE) as u32;
            while let Some(place) = rest.checked_sub(1) {
                rest = self.next[place as usize].get();
                f(place);
                self.push(head, place);
            }
        }
    }

    /// Counts the places that hold a free frame, and the empty ones, one by one. Only while no
    /// other thread uses the lists.
    pub fn count(&self) -> (u64, u64) {
        let length = |head: &H| {
            let next = |&p: &u32| p.checked_sub(1).map(|p| self.next[p as usize].get());
            let first = (head.get() & PLACE) as u32;
            let all = std::iter::successors(Some(first), next);
            // Bounded by the number of places, so that a broken link cannot hang the check.
            all.take(self.next.len() + 1).filter(|&p| p != 0).count() as u64
        };
        let of = |stack: usize| -> u64 { self.lines.iter().map(|l| length(&l.heads[stack])).sum() };
        let unused = self.fresh_from.get() - self.unused[0].get() + self.next.len() as u64
            - self.unused[1].get();
        (of(LOOKED) + of(NEW), of(EMPTY) + of(FRESH) + unused)
    }
}

/// The head after one more change, with another place (+ 1) on top.
fn changed(head: u64, top: u32) -> u64 {
    ((head >> PLACE_BITS).wrapping_add(1) << PLACE_BITS) | u64::from(top)
}
