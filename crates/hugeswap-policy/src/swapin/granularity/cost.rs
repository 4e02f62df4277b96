//! What transfers cost, in nanoseconds: the device's time, which is tracked; the CPU's, which is
//! given; and memory, which has a price.
//!
//! No clock is read here: the engine measures, as an area is turned on and at every transfer, and
//! reports.
//!
//! Concurrency: all threads may share a [`DeviceCost`]; two observations at the same moment may
//! count as one. The owner of a [`MemoryPrice`] serialises calls.

use std::sync::atomic::{AtomicU32, Ordering};

use super::{PIECE_PAGES, Size};
use crate::{PAGE_BYTES, UNIT_BYTES, UNIT_PAGES};

/// Direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From swap to memory.
    In,
    /// From memory to swap.
    Out,
}

/// Nanoseconds of one transfer of each size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerSize {
    /// 4 KiB: nearly all latency.
    pub page: u32,
    /// 64 KiB: latency and bandwidth.
    pub piece: u32,
    /// 2 MiB: nearly all bandwidth.
    pub whole: u32,
}

impl PerSize {
    const fn array(self) -> [u32; 3] {
        [self.page, self.piece, self.whole]
    }
}

/// The sizes that are tracked, in bytes.
const BYTES: [u64; 3] = [PAGE_BYTES, PIECE_PAGES as u64 * PAGE_BYTES, UNIT_BYTES];

/// The cost of transfers of one swap device, as last seen.
///
/// Three sizes are tracked for each direction, since neither latency nor bandwidth can be told from
/// one of them alone. Each is an exponentially weighted mean (an eighth for the newest), in which
/// one observation counts for no more than twice and no less than half of the mean: an outlier
/// moves it by an eighth at most, and a real change is followed at that rate.
///
/// A size that seems too dear is not used, and so not observed: a measurement that was disturbed, as
/// swap was turned on, would keep it out for good. So while pages are read, and a larger size has not
/// been for long, its cost falls towards what the other two sizes say of it.
#[derive(Debug)]
pub struct DeviceCost {
    ns: [[AtomicU32; 3]; 2],
    /// Pages read since a piece was, and since a whole unit was, or since their costs last fell.
    unseen: [AtomicU32; 2],
}

/// After so many pages read alone the costs of a piece and of a whole unit fall, if neither was read:
/// trying one again costs a small part of that.
const FALLS_AFTER: [u32; 2] = [1024, 8192];

impl DeviceCost {
    /// Costs that start from measurements at swap-on.
    pub fn new(r#in: PerSize, out: PerSize) -> DeviceCost {
        DeviceCost {
            ns: [r#in, out].map(|d| d.array().map(|ns| AtomicU32::new(ns.max(1)))),
            unseen: [const { AtomicU32::new(0) }; 2],
        }
    }

    fn way(&self, direction: Direction) -> &[AtomicU32; 3] {
        let [r#in, out] = &self.ns;
        match direction {
            Direction::In => r#in,
            Direction::Out => out,
        }
    }

    /// Notes that a transfer of exactly one of the tracked sizes took `ns`.
    pub fn observe(&self, direction: Direction, size: Size, ns: u64) {
        let [page, piece, whole] = self.way(direction);
        let known = self.per_size(direction);
        let (cell, mean) = match size {
            Size::Page => (page, known.page),
            Size::Piece => (piece, known.piece),
            Size::Whole => (whole, known.whole),
        };
        cell.store(follow(mean, ns), Ordering::Relaxed);
        if direction == Direction::In {
            let [of_piece, of_whole] = &self.unseen;
            match size {
                Size::Page => self.fall(),
                Size::Piece => of_piece.store(0, Ordering::Relaxed),
                Size::Whole => of_whole.store(0, Ordering::Relaxed),
            }
        }
    }

    /// A page was read: the costs of what was not for long fall, by an eighth of the way.
    fn fall(&self) {
        let ns = self.per_size(Direction::In);
        let [b0, b1, b2] = BYTES;
        let [_, piece, whole] = self.way(Direction::In);
        let others = [
            (
                piece,
                ns.piece,
                line(b0, ns.page.into(), b2, ns.whole.into(), b1),
            ),
            (
                whole,
                ns.whole,
                line(b0, ns.page.into(), b1, ns.piece.into(), b2),
            ),
        ];
        for (((cell, ns, least), unseen), after) in
            others.into_iter().zip(&self.unseen).zip(FALLS_AFTER)
        {
            let seen = unseen.load(Ordering::Relaxed).saturating_add(1);
            unseen.store(if seen < after { seen } else { 0 }, Ordering::Relaxed);
            let above = u64::from(ns).saturating_sub(least);
            if seen >= after && above > 0 {
                cell.store(ns - above.div_ceil(8) as u32, Ordering::Relaxed);
            }
        }
    }

    /// The present cost of each tracked size; that of a larger size is never below that of a
    /// smaller one, nor above that of as many bytes by the smaller one: it was measured in a bad
    /// moment then.
    pub fn per_size(&self, direction: Direction) -> PerSize {
        let [page, piece, whole] = self.way(direction);
        let page = page.load(Ordering::Relaxed);
        let times = |n: usize| (BYTES[n + 1] / BYTES[n]) as u32;
        let piece = piece.load(Ordering::Relaxed);
        let piece = piece.clamp(page, page.saturating_mul(times(0)));
        let whole = whole.load(Ordering::Relaxed);
        let whole = whole.clamp(piece, piece.saturating_mul(times(1)));
        PerSize { page, piece, whole }
    }

    /// The cost of one transfer of `bytes`: linear between the tracked sizes, and beyond 2 MiB at
    /// the bandwidth between the last two.
    pub fn cost(&self, direction: Direction, bytes: u64) -> u64 {
        let ns = self.per_size(direction);
        let [b0, b1, b2] = BYTES;
        if bytes <= b0 {
            u64::from(ns.page)
        } else if bytes <= b1 {
            line(b0, ns.page.into(), b1, ns.piece.into(), bytes)
        } else {
            line(b1, ns.piece.into(), b2, ns.whole.into(), bytes)
        }
    }
}

/// The mean, in nanoseconds, after one more observation; see [`DeviceCost`].
pub fn follow(mean: u32, ns: u64) -> u32 {
    let mean = u64::from(mean);
    let seen = ns.max(mean / 2).min(mean * 2);
    // Rounded away from the mean, so that small means move too.
    let next = if seen >= mean {
        mean + (seen - mean).div_ceil(8)
    } else {
        mean - (mean - seen).div_ceil(8)
    };
    u32::try_from(next.max(1)).unwrap_or(u32::MAX)
}

/// The line through two points of rising cost, at `n` (bytes, or pages) not before the first.
fn line(n0: u64, ns0: u64, n1: u64, ns1: u64, n: u64) -> u64 {
    let rise = u128::from(ns1.saturating_sub(ns0)) * u128::from(n.saturating_sub(n0));
    let more = rise / u128::from(n1.saturating_sub(n0).max(1));
    ns0.saturating_add(u64::try_from(more).unwrap_or(u64::MAX))
}

/// The costs that a decision weighs, all in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// A fault that brings 4 KiB: signal, transfer, map.
    pub page: u64,
    /// A fault that brings 64 KiB.
    pub piece: u64,
    /// A fault that brings a whole unit.
    pub whole: u64,
    /// A fault that brings the missing part of a unit, and makes it whole.
    pub fill: u64,
    /// What each page that becomes resident costs others ([`MemoryPrice::price`]).
    pub memory: u64,
}

impl Costs {
    /// The costs of a device, with `cpu` for a fault of each size (taking it, mapping what it
    /// brought), `fill` for making a unit whole of which a part is there, and a price of memory for
    /// each page.
    pub fn new(device: &DeviceCost, cpu: PerSize, fill: u32, memory: u64) -> Costs {
        let io = device.per_size(Direction::In);
        let sum = |a: u32, b: u32| u64::from(a) + u64::from(b);
        let whole = sum(io.whole, cpu.whole);
        Costs {
            page: sum(io.page, cpu.page),
            piece: sum(io.piece, cpu.piece),
            whole,
            fill: whole.max(fill.into()),
            memory,
        }
    }

    /// A fault that brings so many pages side by side: linear between the sizes that are tracked.
    pub fn of_pages(&self, pages: u16) -> u64 {
        let piece = u64::from(PIECE_PAGES);
        let pages = u64::from(pages).clamp(1, UNIT_PAGES);
        let alone = match pages <= piece {
            true => line(1, self.page, piece, self.piece, pages),
            false => line(piece, self.piece, UNIT_PAGES, self.whole, pages),
        };
        alone.saturating_add(self.memory.saturating_mul(pages))
    }

    /// The costs with memory taken for no more than `stay` of [`STAY`](super::STAY).
    pub(super) fn for_stay(&self, stay: u16) -> Costs {
        let stay = u64::from(stay.min(super::STAY));
        Costs {
            memory: self.memory.saturating_mul(stay) / u64::from(super::STAY),
            ..*self
        }
    }

    /// The costs of a unit that is in memory but not mapped (watched, or read ahead): nothing is
    /// transferred, only mapped. Pages that are not mapped again leave when their memory is wanted,
    /// so that a whole unit does not stay for ever for a few of its pages.
    pub fn resident(cpu: PerSize, memory: u64) -> Costs {
        Costs {
            page: cpu.page.into(),
            piece: cpu.piece.into(),
            whole: cpu.whole.into(),
            fill: cpu.whole.into(),
            memory,
        }
    }

    /// The whole cost of one transfer into empty memory.
    pub fn of(&self, size: Size) -> u64 {
        let ns = match size {
            Size::Page => self.page,
            Size::Piece => self.piece,
            Size::Whole => self.whole,
        };
        ns.saturating_add(self.memory.saturating_mul(u64::from(size.pages())))
    }
}

/// Number of evicted pages after which the price is computed anew.
const WINDOW: u64 = 4096;
/// Pages that count as brought and soon returned before any was: as many as where half of what is
/// used fits.
const DOUBT: u64 = 64;
const DOUBT_BACK: u64 = 14;
/// Largest number of faults that a page more in memory is taken to save in a stay: no more than
/// there are on it, which is unknown. The second: where single pages are weighed against the few
/// around them, of which it is known how many are used.
const MOST_SAVED: u64 = 3;
const MOST_SAVED_NEAR: u64 = 16;
/// Pages that return within this part of a turn of memory (1/`NEAR`) tell how many faults it saves.
const NEAR: u64 = 4;
/// Parts in which the share of touched pages is counted.
const SHARES: u64 = 1 << 10;

/// What it costs others that a page becomes resident: another has to be evicted (a share of a
/// write, and of an unmap), and perhaps brought back.
///
/// With `e` the cost of evicting a page, `r` that of bringing a page back, alone or with its unit
/// as the case may be, and `x` the faults that a page more in memory would have saved for as long
/// as a page stays, the price is `p = e + x (r + e)`.
///
/// `x` follows from the pages that return soon after they were evicted. With memory of `M` pages, a
/// page more saves the pages that return within the next eviction: `M f(0)` in a stay, where `f` is
/// the density of the distances, in evicted pages, at which pages return. It is measured over a
/// quarter of `M`, of which a share `q` returns: `x = -4 ln(1 - q)`, which is exact where each page
/// is as likely as any other (`h / (1 - h)` for a share `h` that is in memory). A loop over at
/// least a quarter more than memory has an `x` of 0: it misses everything, with a page more as
/// well. So the price is high where memory is short of pages used at random, and almost nothing
/// under streams, whose pages return one turn later. It keeps uniform work on small transfers: when
/// every page is as good as any other, a whole unit displaces as much as it brings. All pages of a
/// unit that comes back whole count as returned. That is too many where it came for one of them,
/// and then a higher price makes fewer of those.
///
/// To that is added the cost of pages that were never touched. When a page returns that would be
/// resident had only touched pages been brought in (of the resident pages and those evicted since,
/// the touched ones would have fitted), its fault is due to them. These costs add up as long as
/// they occur, so that in the end they outweigh the cost of bringing in sparse units in small
/// transfers once: ski rental again, of room.
#[derive(Clone, Debug, Default)]
pub struct MemoryPrice {
    /// Since the price was last computed.
    new: Sums,
    /// Before that, for about half a turn of memory: evictions come many at a time, and returns in
    /// between.
    old: Sums,
    wasted_ns: u64,
    /// Number of resident pages, as last reported.
    resident: u64,
    pressure: u64,
    pressure_near: u64,
    waste: u64,
}

/// Counts of evicted pages.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    evicted: u64,
    evict_ns: u64,
    touched: u64,
    /// Pages that were brought, and the cost of that.
    brought: u64,
    bring_ns: u64,
    /// Returned pages that had been evicted shortly before, and those that would have been brought
    /// so, but were spared.
    returned: u64,
    spared: u64,
}

impl Sums {
    /// Adds those of another, of which `keep` in [`SHARES`] parts count.
    fn and(&self, other: &Sums, keep: u64) -> Sums {
        let sum = |a: u64, b: u64| a.saturating_add(b.saturating_mul(keep) / SHARES);
        Sums {
            evicted: sum(self.evicted, other.evicted),
            evict_ns: sum(self.evict_ns, other.evict_ns),
            touched: sum(self.touched, other.touched),
            brought: sum(self.brought, other.brought),
            bring_ns: sum(self.bring_ns, other.bring_ns),
            returned: sum(self.returned, other.returned),
            spared: sum(self.spared, other.spared),
        }
    }

    /// Share of evicted pages that were touched, in [`SHARES`] parts.
    fn used(&self) -> u64 {
        match self.evicted {
            0 => SHARES,
            n => self.touched.saturating_mul(SHARES) / n,
        }
    }
}

impl MemoryPrice {
    /// `first` is the price before any eviction. The cost of bringing a page is a fair guess.
    pub fn new(first: u64) -> MemoryPrice {
        MemoryPrice {
            pressure: first,
            pressure_near: first,
            ..MemoryPrice::default()
        }
    }

    /// Notes that pages were written, so that they can be evicted, which took `ns`.
    pub fn on_written(&mut self, ns: u64) {
        self.new.evict_ns = self.new.evict_ns.saturating_add(ns);
    }

    /// Notes that `pages` were evicted, of which `touched` had been touched (all, if that is
    /// unknown). It took `ns` in all, with the writes meanwhile.
    pub fn on_evicted(&mut self, pages: u64, touched: u64, ns: u64) {
        let new = &mut self.new;
        new.evicted = new.evicted.saturating_add(pages);
        new.touched = new.touched.saturating_add(touched.min(pages));
        new.evict_ns = new.evict_ns.saturating_add(ns);
        if new.evicted >= WINDOW {
            self.form();
        }
    }

    /// Notes that a transfer of cost `ns` (without any price) brought `pages` that were not there,
    /// for one that had been evicted `distance` pages of eviction before, or not the last time that
    /// the unit was, while `resident` pages were resident.
    pub fn on_fault(&mut self, pages: u64, distance: Option<u64>, resident: u64, ns: u64) {
        self.resident = resident;
        let new = &mut self.new;
        new.brought = new.brought.saturating_add(pages);
        new.bring_ns = new.bring_ns.saturating_add(ns);
        let Some(distance) = distance else { return };
        if distance <= resident / NEAR {
            new.returned = new.returned.saturating_add(pages);
        }
        let used = self.old.used() + SHARES / 16; // the share is a rough one
        let would_be = distance.saturating_add(resident).saturating_mul(used) / SHARES;
        if would_be <= resident {
            self.wasted_ns = self.wasted_ns.saturating_add(ns);
        }
    }

    /// Notes that `pages` were spared when their turn came, since they come back soon. They count
    /// as evicted and back: without them, returns would seem few, and the price would be that of
    /// the least used pages.
    pub fn on_spared(&mut self, pages: u64) {
        self.new.spared = self.new.spared.saturating_add(pages);
    }

    /// The price of one page, in nanoseconds. While memory is free, the caller uses 0 instead.
    pub fn price(&self) -> u64 {
        self.pressure.saturating_add(self.waste)
    }

    /// The same for the pages near one that is wanted.
    pub fn near(&self) -> u64 {
        self.pressure_near.saturating_add(self.waste)
    }

    fn form(&mut self) {
        let wasted = self.wasted_ns / self.new.evicted.max(1);
        let horizon = (self.resident / 2).max(2 * self.new.evicted);
        let kept = (horizon - self.new.evicted) * SHARES / horizon.max(1);
        let sums = self.new.and(&self.old, kept);
        // -ln(1 - q) is close to 2 q / (2 - q), below a half.
        let asked = sums
            .brought
            .saturating_add(sums.spared)
            .saturating_add(DOUBT);
        let back = sums
            .returned
            .saturating_add(sums.spared)
            .saturating_add(DOUBT_BACK)
            .min(asked);
        let saved = (2 * NEAR * SHARES).saturating_mul(back) / (2 * asked - back);
        // In parts of a nanosecond: a page of a whole unit costs few.
        let each = |ns: u64, pages: u64| ns.saturating_mul(SHARES) / pages.max(1);
        let evict = each(sums.evict_ns, sums.evicted);
        let again = evict.saturating_add(each(sums.bring_ns, sums.brought));
        let pressure = |most: u64| {
            let saved = saved.min(most * SHARES);
            evict.saturating_add(again.saturating_mul(saved) / SHARES) / SHARES
        };
        *self = MemoryPrice {
            new: Sums::default(),
            old: sums,
            wasted_ns: 0,
            resident: self.resident,
            pressure: pressure(MOST_SAVED),
            pressure_near: pressure(MOST_SAVED_NEAR),
            waste: if wasted > 0 {
                self.waste.saturating_add(wasted)
            } else {
                self.waste / 4 * 3
            },
        };
    }
}
