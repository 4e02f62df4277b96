//! Fault streams that advance, page by page or by any stride, within units and across them.
//!
//! Like [`crate::swapin::readahead`], which does this for units: a fixed table of recent faults and
//! of the runs that grew from them, ascending or descending. Here a run has a length
//! ([`Run::seen`]), and what is brought in for it is worth no more than that, so it ramps by
//! itself: the program's next steps are expected to be as many as those it has made.
//!
//! No allocation; constant time; the owner serialises calls.

use super::PIECE_PAGES;
use crate::UNIT_PAGES;

/// Number of faults and runs that are remembered. When another fault comes, runs have at most half
/// of the places: lone faults would replace each other in the rest, and no run could begin.
pub const PAGE_STREAMS: usize = 32;
/// Longest stride that is followed, in pages: beyond it a run uses less than a page of each unit.
pub const MAX_PAGE_STRIDE: u64 = UNIT_PAGES;

/// Pages beyond this are not followed (no address space is that large).
const PAGE_END: u64 = 1 << 62;
/// A run counts as used so many faults later than it was, compared with a lone fault: it does not
/// fault while it uses what came for it, and others do meanwhile. The longer the run, the later, up
/// to four units.
const RUN_LEAD: u64 = 4 * PAGE_STREAMS as u64;
const RUN_LEAD_MAX: u64 = 4 * UNIT_PAGES;
/// Number of pages in memory that a run may pass over.
const PASSED_OVER: u64 = PIECE_PAGES as u64;

/// The run that a fault is part of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Number of steps that the run has made; 0 for a lone fault.
    pub seen: u32,
    /// Pages of a step; 0 for a lone fault.
    pub stride: u16,
    /// The run goes towards lower addresses.
    pub down: bool,
}

/// A run that has ended: it was not heard of for longer than others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    /// The pages that it has made, with those that were brought for it last.
    pub pages: u32,
    /// How many runs it stands for.
    pub weight: u32,
}

impl Run {
    /// The number of touches to expect in the `pages` that lie ahead of the run, with the page of
    /// this fault: no more than it has made.
    pub(super) fn touches(self, pages: u64) -> u64 {
        if self.seen == 0 {
            return 1;
        }
        let fit = pages.div_ceil(u64::from(self.stride.max(1)));
        u64::from(self.seen).min(fit).max(1)
    }

    /// True if it has come by more than the length of a unit.
    pub(super) fn is_long(self) -> bool {
        u64::from(self.seen) * u64::from(self.stride) >= UNIT_PAGES
    }
}

/// Positions of a descending stream are mirrored, so every stream ascends.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// Number of the fault at which it was last used; 0 for an empty place.
    stamp: u64,
    /// Position of the last fault.
    last: u64,
    /// First position that was not brought in for it; above `last`.
    ahead: u64,
    /// Distance between faults; 0 for a lone fault that had no neighbour.
    stride: u64,
    seen: u32,
    down: bool,
    /// How many runs it stands for once it has ended: see [`PageStreams::lead`].
    weight: u32,
}

impl Stream {
    fn position(down: bool, page: u64) -> u64 {
        if down { PAGE_END - page } else { page }
    }

    fn run(&self) -> Run {
        Run {
            seen: self.seen,
            stride: if self.seen == 0 {
                0
            } else {
                u16::try_from(self.stride).unwrap_or(u16::MAX)
            },
            down: self.down,
        }
    }

    /// True if it is a run: more than two faults side by side.
    fn advances(&self) -> bool {
        self.stamp != 0 && self.seen > 1
    }

    /// Rank for replacement: the smallest is replaced first.
    fn rank(&self) -> u64 {
        if self.advances() {
            self.stamp + RUN_LEAD + u64::from(self.seen).min(RUN_LEAD_MAX)
        } else {
            self.stamp
        }
    }

    /// What is known of its length.
    fn ended(&self) -> Option<Ended> {
        let pages = match self.seen {
            0 => 1,
            _ if self.stride != 1 || self.down => 1,
            seen => u64::from(seen) + self.ahead.saturating_sub(self.last),
        };
        let pages = u32::try_from(pages).unwrap_or(u32::MAX);
        (self.weight > 0).then_some(Ended {
            pages,
            weight: self.weight,
        })
    }

    /// The number of steps from the last fault to `page`, if that continues the run.
    fn steps(&self, page: u64) -> Option<u64> {
        let gap = Stream::position(self.down, page).checked_sub(self.last)?;
        let steps = gap.checked_div(self.stride)?;
        let on_grid = steps.checked_mul(self.stride)? == gap;
        // A lone fault that has a neighbour needs the third of the stride; a run may pass over
        // pages in memory.
        let reach = if self.seen == 0 {
            0
        } else {
            self.ahead - self.last + PASSED_OVER * self.stride
        };
        (on_grid && (steps <= 1 || gap <= reach)).then_some(steps)
    }
}

/// The streams of one process (or thread). About 1,800 bytes.
#[derive(Clone, Debug, Default)]
pub struct PageStreams {
    streams: [Stream; PAGE_STREAMS],
    now: u64,
    /// The place of the stream of the last fault.
    last: usize,
    /// The run that gave way to it.
    ended: Option<Ended>,
}

impl PageStreams {
    /// No streams.
    pub fn new() -> PageStreams {
        PageStreams::default()
    }

    /// Notes a fault on `page` (its number in the address space) that needed data from swap, or
    /// data read ahead.
    pub fn on_fault(&mut self, page: u64) -> Run {
        if page >= PAGE_END {
            return Run::default();
        }
        self.now += 1;
        let now = self.now;
        let runs = self.streams.iter_mut().enumerate();
        let next = runs
            .filter(|(_, s)| s.stamp != 0)
            .filter_map(|(i, s)| s.steps(page).map(|steps| (i, steps, s)))
            .max_by_key(|(_, _, s)| (s.seen, s.stamp));
        if let Some((i, steps, s)) = next {
            self.last = i;
            s.stamp = now;
            let p = Stream::position(s.down, page);
            let made = if s.seen == 0 {
                2 * steps // this one, and the one that gave the stride
            } else {
                // Pages that it passed over were not brought for it, and prove nothing.
                steps.min(s.ahead.saturating_sub(s.last) / s.stride.max(1) + 1)
            };
            s.seen = s
                .seen
                .saturating_add(u32::try_from(made).unwrap_or(u32::MAX));
            s.last = p;
            s.ahead = s.ahead.max(p + 1);
            return s.run();
        }
        self.remember(page)
    }

    /// Notes that pages `start..end` were brought in: a stream that has reached them faults next
    /// beyond them.
    pub fn on_brought(&mut self, start: u64, end: u64) {
        if start >= end || end >= PAGE_END {
            return;
        }
        for s in self.streams.iter_mut().filter(|s| s.stamp != 0) {
            let (start, end) = if s.down {
                (PAGE_END - end + 1, PAGE_END - start + 1)
            } else {
                (start, end)
            };
            if start <= s.ahead && end > s.ahead {
                s.ahead = end;
            }
        }
    }

    /// A run that ended with the last fault, which took its place, if its length is known. (Each is
    /// told once.)
    pub(super) fn ended(&mut self) -> Option<Ended> {
        self.ended.take()
    }

    /// The run of the last fault, of no other stride than a page, upwards: how many pages it has
    /// made before, and how many runs it stands for (see [`PageStreams::lead`]).
    pub(super) fn upward(&self) -> Option<(u32, u32)> {
        let s = &self.streams[self.last];
        (!s.down && (s.seen == 0 || s.stride == 1)).then_some((s.seen, s.weight))
    }

    /// The run of the last fault stands for `weight` runs once it has ended. 0: it gets more than it
    /// has asked for, so how long it would have become is not seen.
    pub(super) fn lead(&mut self, weight: u32) {
        self.streams[self.last].weight = weight;
    }

    /// Remembers a fault that continues no run. The newest lone fault near it gives a stride to
    /// look for; a neighbour of that has made a step already.
    fn remember(&mut self, page: u64) -> Run {
        let near = self
            .streams
            .iter_mut()
            .filter(|s| s.stamp != 0 && s.seen == 0)
            .map(|s| (s.stamp, Stream::position(s.down, s.last), s))
            .filter(|&(_, at, _)| at != page && at.abs_diff(page) <= MAX_PAGE_STRIDE)
            .max_by_key(|&(stamp, at, _)| (stamp, at));
        let (down, stride) = near
            .as_ref()
            .map_or((false, 0), |(_, at, _)| (page < *at, at.abs_diff(page)));
        // The neighbour is a part of this run.
        let weight = match near {
            Some((_, _, s)) if stride == 1 => std::mem::take(&mut s.weight),
            _ => 1,
        };
        let last = Stream::position(down, page);
        let stream = Stream {
            stamp: self.now,
            last,
            ahead: last + 1,
            stride,
            seen: u32::from(stride == 1),
            down,
            weight,
        };
        let runs = self.streams.iter().filter(|s| s.advances()).count();
        let any = runs <= PAGE_STREAMS / 2;
        let places = self.streams.iter_mut().enumerate();
        let places = places.filter(|(_, s)| any || s.advances());
        if let Some((i, s)) = places.min_by_key(|(_, s)| s.rank()) {
            self.last = i;
            self.ended = s.ended().filter(|_| s.stamp != 0);
            *s = stream;
        }
        stream.run()
    }
}
