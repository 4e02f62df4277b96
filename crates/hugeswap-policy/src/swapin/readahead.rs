//! Which units to read before they are asked for: sequential streams among faults.
//!
//! A fixed table remembers the positions of recent faults. A fault next to one of them makes a
//! *stream*, ascending or descending, and units ahead of a stream are read before the program gets
//! there. Windows ramp 1, 2, 4 and so on up to the maximum, and the next window is asked for when
//! half of the last has been used, so a steady stream never waits for its own readahead. A constant
//! stride of up to [`MAX_STRIDE`] units is followed too, after a third fault and one unit at a
//! time.
//!
//! Units that were read ahead and not used ([`Streams::on_waste`]) halve the window of their
//! stream, which then grows back one unit at a time. Waste, and chance neighbours among random
//! faults, put the table in doubt; then a stream needs a fourth fault before anything is read.
//!
//! First touches ([`Streams::on_first_touch`]) have streams of their own.
//!
//! Promises: a window lies below the mapping's limit and within the maximum of the unit that
//! faulted, so a stream never has more than that outstanding. It does not ask for a unit twice
//! unless the first time was wasted. No allocation; constant time.
//!
//! Concurrency: none; the owner serialises calls.

/// Number of streams of each sort that are remembered.
pub const STREAMS: usize = 16;
/// Longest stride that is followed, in units.
pub const MAX_STRIDE: u64 = 8;
/// Largest number of units that a first touch maps at once.
pub const MAX_AROUND: u32 = 32;

/// Units beyond this are never read ahead (no address space is that large).
const UNIT_END: u64 = 1 << 62;
/// A stream counts as used so many faults later than it was, compared with a lone fault.
const STREAM_LEAD: u64 = 4 * STREAMS as u64;
/// Doubt at which a longer run is needed, and the largest doubt.
const DOUBTFUL: u32 = 8;
const DOUBT_MAX: u32 = 16;
/// Faults in sequence before anything is read: normally, in doubt, and the largest number counted.
const RUN: u32 = 2;
const RUN_IN_DOUBT: u32 = 4;
const RUN_MAX: u32 = 8;

/// Units to read: `start .. start + count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// First unit.
    pub start: u64,
    /// Number of units; 0 if there is nothing to read.
    pub count: u32,
}

impl Window {
    /// An empty window.
    pub const NONE: Window = Window { start: 0, count: 0 };

    /// True if there is nothing to read.
    pub const fn is_empty(self) -> bool {
        self.count == 0
    }

    /// Unit after the last.
    pub const fn end(self) -> u64 {
        self.start + self.count as u64
    }

    /// The units in the order in which the program needs them, for a window that a fault on `unit`
    /// gave: nearest first.
    pub fn units(self, unit: u64) -> impl Iterator<Item = u64> {
        (0..u64::from(self.count)).map(move |i| {
            if self.start < unit {
                self.end() - 1 - i
            } else {
                self.start + i
            }
        })
    }
}

/// One remembered fault, or the stream that grew from it. Positions of a descending
/// stream are mirrored, so every stream ascends.
#[derive(Clone, Copy, Default)]
struct Stream {
    /// Number of the fault at which it was last used; 0 for an empty place.
    stamp: u64,
    /// Position of the last fault.
    last: u64,
    /// First position that was not asked for; above `last`.
    ahead: u64,
    /// Distance between faults; 0 if unknown (a lone fault).
    stride: u64,
    down: bool,
    /// Faults in sequence, up to [`RUN_MAX`]. A stream with fewer than it needs reads nothing.
    run: u32,
    /// Size of the last window.
    window: u32,
    /// Largest window, after its own waste.
    cap: u32,
    /// Faults in a row on units that had been asked for and were not there.
    misses: u32,
    /// Waste was already counted since the last fault.
    wasted: bool,
}

impl Stream {
    fn position(down: bool, unit: u64) -> u64 {
        if down { UNIT_END - unit } else { unit }
    }

    fn is_stream(&self) -> bool {
        self.run >= RUN
    }

    fn ask_again(&mut self, unit: u64) {
        let p = Self::position(self.down, unit);
        if p > self.last {
            self.ahead = self.ahead.min(p);
        }
    }

    fn shrink(&mut self) {
        self.cap = (self.cap / 2).max(1);
        self.window = self.window.min(self.cap);
    }

    /// Rank for replacement: the smallest is replaced first.
    fn rank(&self) -> u64 {
        if self.stamp != 0 && self.is_stream() {
            self.stamp + STREAM_LEAD
        } else {
            self.stamp
        }
    }
}

/// One remembered run of first touches.
#[derive(Clone, Copy, Default)]
struct Touch {
    stamp: u64,
    /// The unit that continues it.
    next: u64,
    count: u32,
}

/// The streams of one process (or thread). About 2 KiB.
pub struct Streams {
    streams: [Stream; STREAMS],
    touches: [Touch; STREAMS],
    now: u64,
    max_window: u32,
    /// How often of late neighbouring faults were chance and readahead was wasted.
    doubt: u32,
}

impl Streams {
    /// No streams, and windows of up to `max_window` units. 0 turns readahead off, but not the
    /// grouping of first touches.
    pub fn new(max_window: u32) -> Streams {
        Streams {
            streams: [Stream::default(); STREAMS],
            touches: [Touch::default(); STREAMS],
            now: 0,
            max_window,
            doubt: 0,
        }
    }

    /// Sets the largest window. Units that were asked for already stay asked for.
    pub fn set_max_window(&mut self, max_window: u32) {
        self.max_window = max_window;
    }

    /// Notes a fault on `unit` that needed data from swap, and returns what to read now. `cached`
    /// says that the unit had been read ahead or was on its way. `limit` is the first unit past the
    /// mapping. The caller clips a descending window at the start of the mapping, and drops units
    /// that are not in swap.
    pub fn on_fault(&mut self, unit: u64, limit: u64, cached: bool) -> Window {
        let limit = limit.min(UNIT_END);
        if unit >= limit || self.max_window == 0 {
            return Window::NONE;
        }
        self.now += 1;
        if let Some(i) = self.find(unit, cached) {
            return self.advance(i, unit, limit, cached);
        }
        self.remember(unit);
        Window::NONE
    }

    /// Notes that units `from..to` are in memory, so that a thread that passed them did not fault:
    /// an ascending stream that had reached `from` is at `to` by now.
    pub fn on_resident(&mut self, from: u64, to: u64) {
        let to = to.min(UNIT_END);
        let passed = self.streams.iter_mut().find(|s| {
            s.stamp != 0
                && s.is_stream()
                && s.stride == 1
                && !s.down
                && s.last + 1 >= from
                && s.last < to
                && s.ahead >= from
                && s.ahead <= to
        });
        if let Some(s) = passed {
            s.last = to - 1;
            s.ahead = to;
        }
    }

    /// Notes that a unit that was read ahead was reclaimed without having been used.
    pub fn on_waste(&mut self, unit: u64) {
        if unit >= UNIT_END {
            return;
        }
        self.doubt = (self.doubt + 2).min(DOUBT_MAX);
        if let Some(s) = self.asked_for(unit) {
            if !s.wasted {
                s.wasted = true;
                s.shrink();
            }
            s.ask_again(unit);
        }
    }

    /// Notes that a window was not carried out from `unit` on (in the direction of the stream), for
    /// want of memory. The next fault asks for the rest again.
    pub fn on_cut_short(&mut self, unit: u64) {
        if unit < UNIT_END
            && let Some(s) = self.asked_for(unit)
        {
            s.ask_again(unit);
        }
    }

    /// The stream that recently asked for `unit`.
    fn asked_for(&mut self, unit: u64) -> Option<&mut Stream> {
        self.streams.iter_mut().find(|s| {
            let p = Stream::position(s.down, unit);
            // `last` itself was used; units that a stream jumped over are its waste too.
            s.stamp != 0
                && s.is_stream()
                && p < s.ahead
                && p != s.last
                && p + 2 * u64::from(s.window.max(1)) * s.stride.max(1) > s.last
        })
    }

    /// Notes the first touch of `unit`, and returns how many units from `unit` on to map at once,
    /// `unit` included: 1 unless touches come in sequence; never beyond `limit`.
    pub fn on_first_touch(&mut self, unit: u64, limit: u64) -> u32 {
        self.now += 1;
        let room = limit.saturating_sub(unit).clamp(1, u64::from(MAX_AROUND)) as u32;
        // Within the last count: the caller mapped fewer than it might have.
        let known = self
            .touches
            .iter()
            .position(|t| t.stamp != 0 && unit <= t.next && t.next - unit < u64::from(t.count));
        let i = known.unwrap_or_else(|| oldest(self.touches.iter().map(|t| t.stamp)));
        let before = match known {
            None => 0,
            Some(_) if self.touches[i].next == unit => self.touches[i].count * 2,
            Some(_) => self.touches[i].count,
        };
        // Without readahead nothing is mapped ahead of first touches either.
        let room = if self.max_window == 0 { 1 } else { room };
        let count = before.clamp(1, room);
        self.touches[i] = Touch {
            stamp: self.now,
            next: unit.saturating_add(u64::from(count)),
            count,
        };
        count
    }

    /// The stream that `unit` continues, if any: a running one before a lone fault.
    fn find(&mut self, unit: u64, cached: bool) -> Option<usize> {
        let mut jump = None;
        for (i, s) in self
            .streams
            .iter()
            .enumerate()
            .filter(|(_, s)| s.stamp != 0 && s.is_stream())
        {
            let p = Stream::position(s.down, unit);
            if s.stride == 1 {
                if p >= s.last && p <= s.ahead {
                    return Some(i);
                }
                // The stream may have passed units that were in memory and did not fault.
                let near = p > s.ahead && p - s.ahead <= u64::from(s.window);
                if !cached && near && s.run >= RUN_IN_DOUBT {
                    jump = jump.or(Some(i));
                }
            } else if p == s.last || p == s.last + s.stride {
                return Some(i);
            }
        }
        if jump.is_some() {
            return jump;
        }
        // Lone faults: the same unit again, its neighbours, or the third of a stride.
        let mut third = None;
        for (i, s) in self
            .streams
            .iter_mut()
            .enumerate()
            .filter(|(_, s)| s.stamp != 0 && !s.is_stream())
        {
            let at = Stream::position(s.down, s.last);
            if at == unit {
                return Some(i);
            }
            if at.abs_diff(unit) == 1 {
                s.down = unit < at;
                s.last = Stream::position(s.down, at);
                s.ahead = s.last + 1;
                s.stride = 1;
                return Some(i);
            }
            if s.stride != 0 && Stream::position(s.down, unit) == s.last + s.stride {
                third = Some(i);
            }
        }
        third
    }

    fn advance(&mut self, i: usize, unit: u64, limit: u64, cached: bool) -> Window {
        let (now, max) = (self.now, self.max_window);
        let s = &mut self.streams[i];
        s.stamp = now;
        let p = Stream::position(s.down, unit);
        if p == s.last {
            return Window::NONE;
        }
        if !s.is_stream() && s.stride > 1 {
            s.run = RUN; // a stride is only followed from its third fault on
        }
        if p == s.last + s.stride {
            s.run = (s.run + 1).min(RUN_MAX);
            if cached {
                self.doubt = self.doubt.saturating_sub(1);
            }
        } else {
            s.run = (s.run / 2).max(RUN);
        }
        let missed = !cached && p < s.ahead;
        s.misses = if missed { s.misses + 1 } else { 0 };
        s.last = p;
        // Two in a row are no race with a read about to start: nothing was read.
        if p >= s.ahead || s.misses >= 2 {
            s.ahead = p + s.stride;
        }
        if s.misses >= 2 {
            s.misses = 0;
            s.shrink();
        }
        s.wasted = false;
        if s.run < RUN_IN_DOUBT && self.doubt >= DOUBTFUL {
            return Window::NONE;
        }

        // Positions of a descending stream end after unit 0.
        let end = if s.down { UNIT_END + 1 } else { limit };
        if s.stride > 1 {
            let start = p + s.stride;
            if start < s.ahead || start >= end {
                return Window::NONE;
            }
            s.window = 1;
            s.ahead = start + 1;
            return window(s.down, start, 1);
        }
        let outstanding = s.ahead - p - 1;
        if outstanding > u64::from(s.window / 2) || s.ahead >= end {
            return Window::NONE;
        }
        let cap = s.cap.min(max);
        let next = (s.window * 2).clamp(1, cap);
        let room = u64::from(cap).saturating_sub(outstanding);
        let count = u64::from(next).min(room).min(end - s.ahead) as u32;
        if count == 0 {
            return Window::NONE;
        }
        s.window = next;
        s.cap = s.cap.saturating_add(1).min(max);
        let start = s.ahead;
        s.ahead += u64::from(count);
        window(s.down, start, count)
    }

    /// Remembers a fault that continues no stream.
    fn remember(&mut self, unit: u64) {
        // A near fault gives a stride to look for; the newest is the likeliest.
        let near = self
            .streams
            .iter()
            .filter(|s| s.stamp != 0 && !s.is_stream())
            .map(|s| (s.stamp, Stream::position(s.down, s.last)))
            .filter(|&(_, at)| at.abs_diff(unit) <= MAX_STRIDE)
            .max();
        let (down, stride) = near.map_or((false, 0), |(_, at)| (unit < at, at.abs_diff(unit)));
        let i = oldest(self.streams.iter().map(Stream::rank));
        if self.streams[i].run == RUN {
            self.doubt = (self.doubt + 2).min(DOUBT_MAX);
        }
        let last = Stream::position(down, unit);
        self.streams[i] = Stream {
            stamp: self.now,
            last,
            ahead: last + stride.max(1),
            stride,
            down,
            run: 1,
            window: 0,
            cap: self.max_window,
            misses: 0,
            wasted: false,
        };
    }
}

/// The place with the smallest rank.
fn oldest(ranks: impl Iterator<Item = u64>) -> usize {
    ranks
        .enumerate()
        .min_by_key(|&(_, rank)| rank)
        .map_or(0, |(i, _)| i)
}

/// Positions `start .. start + count` as units.
fn window(down: bool, start: u64, count: u32) -> Window {
    let start = if down {
        UNIT_END - (start + u64::from(count) - 1)
    } else {
        start
    };
    Window { start, count }
}

/// The first unit of the run of resident units that ends right before `unit`, but none before
/// `start`, and none far back; `unit` if there is no run, or a run of one unit. A stream that
/// faults on unit after unit leaves them in memory, which is no jump.
pub fn run_before(unit: u32, start: u32, is_there: impl Fn(u32) -> bool) -> u32 {
    let floor = unit.saturating_sub(256).max(start);
    let mut first = unit;
    while first > floor && is_there(first - 1) {
        first -= 1;
    }
    if unit - first > 1 { first } else { unit }
}

#[cfg(test)]
mod tests;
