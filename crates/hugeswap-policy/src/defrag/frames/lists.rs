//! Places of an arena, handed out and taken back without a lock: those that hold a free frame, by the node of its memory, and those
//! that hold none.
//!
//! Each list is a stack, threaded through one array in which every place has the number of the next one: a place is in one stack, or
//! somebody's. A stack's head is one word,
//!
//! ```text
//!  63          26 25          0
//! | changes      | place + 1   |
//! ```
//!
//! changed by compare-and-swap. Who takes a place off has read what comes next while the place may have been somebody else's already; then the
//! head has changed, also if the same place is on top again, and what was read is not used.
//!
//! A *line* is the stacks of one processor (or of some that share it) for one node, in cache lines of its own. Who needs a frame takes it from the line
//! of his processor, then from the others of the node, then from the next node that he may take from; who gives one back puts it to his own processor's line. So processors that take and give
//! frames do not meet in one cache line; and since every line is within everybody's reach, no frame is ever kept from one who needs it, and there is
//! nothing to drain.
//!
//! Frames are counted before they are put and until they were taken: what is counted is never less than what is there.
//! Free frames are of two kinds: those that somebody (kcompactd) has looked at since they became free, and the others.
//!
//! Explored by loom (`tests/frames_loom.rs`).

use super::add;
use crate::cell::Cell;
use std::marker::PhantomData;
use std::ops::Deref;

const PLACE_BITS: u32 = 26;
const PLACE: u64 = (1 << PLACE_BITS) - 1;

/// More places than this cannot be numbered.
pub const MOST_PLACES: u32 = PLACE as u32;

/// The stacks of a line.
const LOOKED: usize = 0;
const NEW: usize = 1;
const EMPTY: usize = 2;
const FRESH: usize = 3;

/// Where somebody is who takes or gives a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Here {
    /// The node.
    pub node: u8,
    /// Which of the node's lines is the processor's.
    pub shard: u8,
}

#[repr(align(128))]
struct Line<H> {
    heads: [H; 4],
    /// Free frames.
    frames: H,
}

/// See the file's head. `H` are heads and counts, `N` dereferences to the numbers of the next places.
pub struct Lists<H, N, C> {
    lines: Box<[Line<H>]>,
    next: N,
    shards: usize,
    /// Places from here on are set apart ([`Lists::take_fresh`]).
    fresh_from: H,
    /// The first place that was never used, of those before and after that.
    unused: [H; 2],
    cell: PhantomData<C>,
}

impl<H: Cell<u64>, C: Cell<u32>, N: Deref<Target = [C]>> Lists<H, N, C> {
    /// All places are empty, those from `fresh_from` on set apart. `zero` makes a word; `next` has one for each place; `shards` lines for each of
    /// `nodes`.
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

    /// As new. Only while nobody else uses them.
    pub fn reset(&self, fresh_from: u32) {
        for line in &self.lines {
            line.heads.iter().for_each(|h| h.put(0));
            line.frames.put(0);
        }
        self.fresh_from.put(fresh_from.into());
        self.unused[0].put(0);
        self.unused[1].put(fresh_from.into());
    }

    /// How many places there are.
    pub fn places(&self) -> u32 {
        self.next.len() as u32
    }

    /// Places from here on are set apart for fresh frames.
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

    /// The lines of a node, one's own first.
    fn lines(&self, node: u8, shard: u8) -> impl Iterator<Item = &Line<H>> {
        let first = node as usize * self.shards;
        let of_node = self.lines.get(first..first + self.shards).unwrap_or(&[]);
        (0..of_node.len()).map(move |i| &of_node[(shard as usize + i) % of_node.len()])
    }

    fn line(&self, here: Here) -> &Line<H> {
        &self.lines[(here.node as usize * self.shards + here.shard as usize) % self.lines.len()]
    }

    /// Every line, one's own first.
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

    /// Takes a free frame of the first of `nodes` that has any.
    pub fn take_free(&self, here: Here, nodes: &[u8]) -> Option<u32> {
        nodes
            .iter()
            .flat_map(|&node| self.lines(node, here.shard))
            .find_map(|line| self.take_frame_of(line, &[LOOKED, NEW]))
    }

    /// Takes a free frame that nobody has looked at since it became free.
    pub fn take_to_look_at(&self, here: Here) -> Option<u32> {
        self.all(here)
            .find_map(|line| self.take_frame_of(line, &[NEW]))
    }

    /// Is there one?
    pub fn any_to_look_at(&self) -> bool {
        self.lines.iter().any(|l| l.heads[NEW].get() & PLACE != 0)
    }

    /// Gives a frame to the line of `here`, whose node is the frame's. `looked`: somebody has looked at it.
    pub fn put_free(&self, here: Here, place: u32, looked: bool) {
        let line = self.line(here);
        add(&line.frames, |n| n + 1);
        self.push(&line.heads[if looked { LOOKED } else { NEW }], place);
    }

    /// How many frames are free (a moment ago).
    pub fn free(&self) -> u64 {
        self.lines.iter().map(|l| l.frames.get()).sum()
    }

    /// The same of one node.
    pub fn free_of(&self, node: u8) -> u64 {
        self.lines(node, 0).map(|l| l.frames.get()).sum()
    }

    /// Takes an empty place.
    pub fn take_empty(&self, here: Here) -> Option<u32> {
        self.take_without(here, EMPTY)
    }

    /// Takes an empty place of those set apart.
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

    /// Calls `f` with each empty place that was used before, which is nobody else's meanwhile.
    pub fn each_empty(&self, mut f: impl FnMut(u32)) {
        for line in &self.lines {
            let head = &line.heads[EMPTY];
            // All at once, or those given back would be met again.
            let mut rest = (add(head, |old| changed(old, 0)) & PLACE) as u32;
            while let Some(place) = rest.checked_sub(1) {
                rest = self.next[place as usize].get();
                f(place);
                self.push(head, place);
            }
        }
    }

    /// Places that hold a free frame, and those that hold none, counted one by one. Only while nobody else uses them.
    pub fn count(&self) -> (u64, u64) {
        let length = |head: &H| {
            let next = |&p: &u32| p.checked_sub(1).map(|p| self.next[p as usize].get());
            let first = (head.get() & PLACE) as u32;
            let all = std::iter::successors(Some(first), next);
            // (As many as there are at most: broken ones must not hang who checks.)
            all.take(self.next.len() + 1).filter(|&p| p != 0).count() as u64
        };
        let of = |stack: usize| -> u64 { self.lines.iter().map(|l| length(&l.heads[stack])).sum() };
        let unused = self.fresh_from.get() - self.unused[0].get() + self.next.len() as u64
            - self.unused[1].get();
        (of(LOOKED) + of(NEW), of(EMPTY) + of(FRESH) + unused)
    }
}

/// A head that was changed once more, with another place (+ 1) on top.
fn changed(head: u64, top: u32) -> u64 {
    ((head >> PLACE_BITS).wrapping_add(1) << PLACE_BITS) | u64::from(top)
}
