//! Whether whole units are written to swap compressed, and by what.
//!
//! A device that moves 125 MiB in a second takes a unit that is a third as long in a third of the
//! time, which is more than the compressor takes; a device that is faster than the compressor would
//! wait for it. So what a unit costs, there and back, is computed for each compressor from what the
//! device takes for as many bytes, what the compressor takes, and what part of the bytes it leaves;
//! and a unit is compressed where that is an eighth less than without. Now and then one is compressed
//! to see what comes of it, where the device is slow enough for that to gain.
//!
//! Concurrency: all threads may share [`Packing`]; two notes at the same moment may count as one.

use super::codec::{CODECS, Codec};
use crate::swapin::granularity::{Direction, follow};
use crate::{UNIT_BYTES, UNIT_PAGES};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};

/// What is to be gained, in parts of so many of what a unit costs without.
const WORTH: f64 = 8.0;
/// One unit of so many is tried while none is compressed,
const TRY: u32 = 8;
/// and while they are, by the next of the compressors.
const TRY_ANOTHER: u32 = 32;
/// What part of a unit is expected to remain where that is not known.
const UNKNOWN: f64 = 0.25;
/// All of a unit, in parts.
const ALL: u32 = 1 << 16;
/// The mean of parts changes by one of so many with each.
const FOLLOW: i64 = 8;
/// The mean of transfers changes by one of so many: a device with a limit answers some at once, and
/// others not before the next part of a second. It is the mean that counts.
const FOLLOW_DEVICE: i64 = 16;
/// A transfer that takes longer is taken for one that was disturbed, nanoseconds.
const LONGEST: u64 = 64_000_000;
/// Transfers of fewer bytes say nothing of larger ones.
const LARGE: u64 = UNIT_BYTES / 8;

/// What one compressor makes of units.
#[derive(Debug)]
struct Seen {
    /// What remains, of [`ALL`]; 0: not known.
    part: AtomicU32,
    /// Nanoseconds of a unit, by direction.
    ns: [AtomicU32; 2],
}

/// What units cost a device, and compressors.
#[derive(Debug)]
pub struct Packing {
    /// Nanoseconds of a unit that is not compressed, by direction.
    device: [AtomicU32; 2],
    by: [Seen; CODECS],
    turn: AtomicU32,
    /// The compressor that packed last.
    last: AtomicU32,
    /// Units are packed, but for those that become no shorter.
    used: AtomicBool,
}

impl Packing {
    /// `device`: nanoseconds of a unit that is read, and written; `pages`: the same of a page, of each
    /// compressor.
    pub fn new(device: [u32; 2], pages: [(u32, u32); CODECS]) -> Packing {
        let of_unit = |ns: u32| AtomicU32::new(ns * UNIT_PAGES as u32);
        Packing {
            device: device.map(AtomicU32::new),
            by: pages.map(|(r#in, out)| Seen {
                part: AtomicU32::new(0),
                ns: [of_unit(r#in), of_unit(out)],
            }),
            turn: AtomicU32::new(0),
            last: AtomicU32::new(0),
            used: AtomicBool::new(false),
        }
    }

    /// By what the next unit is to be compressed; `None`: it is not. `given`: the settings name the
    /// compressor; `always`: and they want it.
    pub fn choose(&self, given: Option<Codec>, always: bool) -> Option<Codec> {
        let turn = self.turn.fetch_add(1, Relaxed);
        let plain = self.device_ns();
        let enough = plain - plain / WORTH;
        let all = Codec::ALL
            .into_iter()
            .filter(|&by| given.is_none_or(|given| given == by));
        let known = |by: &Codec| self.seen(*by).part.load(Relaxed) > 0;
        let best = all
            .clone()
            .filter(known)
            .min_by(|&a, &b| self.cost(a).total_cmp(&self.cost(b)));
        let chosen = best.filter(|&by| always || self.cost(by) < enough);
        self.used.store(chosen.is_some(), Relaxed);
        let every = if chosen.is_some() { TRY_ANOTHER } else { TRY };
        let next = all.cycle().nth((turn / every) as usize % CODECS);
        let is_due = best.is_none() || turn.is_multiple_of(every);
        next.filter(|&by| is_due && (always || self.least(by) < enough))
            .or(chosen)
    }

    /// Are units packed now, other than to see what comes of it?
    pub fn is_used(&self) -> bool {
        self.used.load(Relaxed)
    }

    /// A transfer of so many bytes took so long.
    pub fn note_device(&self, direction: Direction, bytes: u64, ns: u64) {
        if bytes >= LARGE {
            let unit = (ns.saturating_mul(UNIT_BYTES) / bytes).min(LONGEST) as i64;
            let mean = &self.device[direction as usize];
            let was = i64::from(mean.load(Relaxed));
            mean.store((was + (unit - was) / FOLLOW_DEVICE) as u32, Relaxed);
        }
    }

    /// A unit was compressed in `ns` to what takes so many pages; `None`: it is not worth it, as
    /// its first pages showed.
    pub fn note_packed(&self, by: Codec, pages: Option<usize>, ns: u64) {
        let is = pages.map_or(i64::from(ALL), |n| {
            n as i64 * i64::from(ALL) / UNIT_PAGES as i64
        });
        let seen = self.seen(by);
        let was = i64::from(seen.part.load(Relaxed));
        let part = match was {
            0 => is,
            _ => was + (is - was) / FOLLOW,
        };
        seen.part.store(part.max(1) as u32, Relaxed);
        if pages.is_some() {
            self.last.store(by as u32, Relaxed);
            self.note_time(by, Direction::Out, ns);
        }
    }

    /// A unit was decoded in `ns`.
    pub fn note_unpacked(&self, ns: u64) {
        let last = self.last.load(Relaxed) as usize % CODECS;
        self.note_time(Codec::ALL[last], Direction::In, ns);
    }

    /// What a compressor took for a unit.
    fn note_time(&self, by: Codec, direction: Direction, ns: u64) {
        let mean = &self.seen(by).ns[direction as usize];
        mean.store(follow(mean.load(Relaxed), ns), Relaxed);
    }

    fn seen(&self, by: Codec) -> &Seen {
        &self.by[by as usize]
    }

    fn device_ns(&self) -> f64 {
        self.device.iter().map(|n| f64::from(n.load(Relaxed))).sum()
    }

    fn codec_ns(&self, by: Codec) -> f64 {
        let ns = &self.seen(by).ns;
        ns.iter().map(|n| f64::from(n.load(Relaxed))).sum()
    }

    /// Nanoseconds of a unit, there and back, compressed.
    fn cost(&self, by: Codec) -> f64 {
        let part = f64::from(self.seen(by).part.load(Relaxed)) / f64::from(ALL);
        self.device_ns() * part + self.codec_ns(by)
    }

    /// The same if it becomes as short as most do.
    fn least(&self, by: Codec) -> f64 {
        self.device_ns() * UNKNOWN + self.codec_ns(by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nanoseconds of pages, as they are on some processors.
    const PAGES: [(u32, u32); CODECS] = [(1_500, 5_000), (4_500, 11_000), (6_000, 17_000)];

    fn packing(device_ms: u32) -> Packing {
        Packing::new([device_ms * 1_000_000; 2], PAGES)
    }

    /// A thousand units that become so many pages by each compressor; how many went by each, and as
    /// they are.
    fn go(p: &Packing, given: Option<Codec>, pages: [Option<usize>; CODECS]) -> [u32; CODECS + 1] {
        let mut counts = [0; CODECS + 1];
        for _ in 0..1000 {
            let by = p.choose(given, false);
            counts[by.map_or(CODECS, |by| by as usize)] += 1;
            if let Some(by) = by {
                let ns = u64::from(PAGES[by as usize].1) * UNIT_PAGES;
                p.note_packed(by, pages[by as usize], ns);
            }
        }
        counts
    }

    #[test]
    fn a_fast_device_never_waits_for_a_compressor() {
        let halves = [Some(150); CODECS];
        assert_eq!(go(&packing(1), None, halves)[CODECS], 1000);
        assert_eq!(go(&packing(2), None, halves)[CODECS], 1000);
    }

    #[test]
    fn a_slow_device_gets_what_is_shortest_for_the_time() {
        let p = packing(16);
        let counts = go(&p, None, [Some(200), Some(180), Some(170)]);
        assert!(counts[0] > 900 && p.is_used(), "{counts:?}");
        // A disk that spins, and data that LZ4 does not make shorter.
        let counts = go(&packing(60), None, [None, Some(300), Some(170)]);
        assert!(counts[2] > 900, "{counts:?}");
    }

    #[test]
    fn what_does_not_become_shorter_is_hardly_tried() {
        let p = packing(16);
        let counts = go(&p, None, [None; CODECS]);
        assert_eq!(counts[CODECS], 1000 - 1000 / TRY, "{counts:?}");
        assert!(!p.is_used());
        let counts = go(&packing(16), Some(Codec::Lz4), [None; CODECS]);
        assert!((860..900).contains(&counts[CODECS]), "{counts:?}");
        assert_eq!(counts[1] + counts[2], 0);
    }

    #[test]
    fn a_limit_that_is_reached_is_noticed_and_one_that_is_gone() {
        let p = packing(1);
        assert_eq!(p.choose(None, false), None);
        for _ in 0..20 {
            // Half as long, at 125 MiB a second; of those that are written one of two at once.
            p.note_device(Direction::In, UNIT_BYTES / 2, 8_000_000);
            p.note_device(Direction::Out, UNIT_BYTES, 1_000_000);
            p.note_device(Direction::Out, UNIT_BYTES, 31_000_000);
            p.note_device(Direction::Out, 4096, 1);
        }
        let counts = go(&p, None, [Some(200); CODECS]);
        assert!(counts[CODECS] < 20, "{counts:?}");
        for _ in 0..80 {
            p.note_device(Direction::In, UNIT_BYTES, 1_000_000);
            p.note_device(Direction::Out, UNIT_BYTES, 1_000_000);
        }
        let counts = go(&p, None, [Some(200); CODECS]);
        assert_eq!(counts[CODECS], 1000, "{counts:?}");
    }

    #[test]
    fn always_is_always_and_data_that_change_are_noticed() {
        let p = packing(1);
        assert_eq!(p.choose(Some(Codec::Zstd), true), Some(Codec::Zstd));
        assert!(p.choose(None, true).is_some());
        let p = packing(16);
        go(&p, None, [None; CODECS]);
        let counts = go(&p, None, [Some(100); CODECS]);
        assert!(counts[CODECS] < 300, "{counts:?}");
    }
}
