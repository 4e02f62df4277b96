//! What pages are compressed by, and what each of the compressors makes of the pages that leave.
//!
//! No one of them is right for every program. Beside a disk that reads a page in 20 us LZ4 may gain
//! where Zstandard does not; beside one that takes a millisecond a page that is half as long is worth
//! any time of the processor's. A heap of pointers becomes half as long by LZ4 and a fifth by
//! Zstandard; text of random digits becomes no shorter by LZ4 at all. So one page of many is
//! compressed by one of them after the other, and their lengths and times are kept here; which of
//! them is used is [`super::share`]'s choice.
//!
//! Blocks of 16 KiB take 2 to 10% less room than pages in most heaps (docs/compressed.md), which does
//! not outweigh that all of a block is decoded for one page of it.
//!
//! Concurrency: all threads may share [`Seen`]; two samples at the same moment may count as one.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// The number of compressors.
pub const CODECS: usize = 3;

/// A compressor; those that make pages shorter come later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Codec {
    /// LZ4.
    #[default]
    Lz4,
    /// Zstandard at level -1: without entropy coding of literals.
    ZstdFast,
    /// Zstandard at level 1.
    Zstd,
}

impl Codec {
    /// All, by number.
    pub const ALL: [Codec; CODECS] = [Codec::Lz4, Codec::ZstdFast, Codec::Zstd];

    /// What is to be used at least where `held` of at most `most` frames of compressed memory are
    /// filled, and memory has nothing else to leave to: what comes to be short is room. `parts`:
    /// what part of a page each makes of it ([`Seen::part`]). One that takes more time is worth it
    /// only where it gains room.
    pub fn for_room(held: u64, most: u64, parts: [f64; CODECS]) -> Codec {
        let part = |by: Codec| parts[by as usize];
        let that_gain = |worth: f64| {
            let gains = move |&by: &Codec| part(by) < part(Codec::Lz4) * worth;
            Codec::ALL.into_iter().filter(gains)
        };
        let found = match held * 4 {
            n if n > most * 3 => that_gain(LITTLE).min_by(|&a, &b| part(a).total_cmp(&part(b))),
            // (The quickest of them.)
            n if n > most * 2 => that_gain(MUCH).next(),
            _ => None,
        };
        found.unwrap_or(Codec::Lz4)
    }
}

/// A codec that takes more time must make pages so much shorter where room is short,
const LITTLE: f64 = 0.9;
/// and where it is about to be.
const MUCH: f64 = 0.75;

/// The mean length of blocks changes by a part of so many with each.
const FOLLOW: i64 = 32;
/// All of them, of the pages that are tried.
const ALL: u32 = 1 << 16;
/// What is thought of pages changes with so many that are tried.
const TRIED: i64 = 1024;
/// A sample counts for so many pages that are tried.
const WORTH: u64 = 32;

/// Blocks are tiny where a page is so many times as long, and so many once that was found;
const TINY: [f64; 2] = [8.0, 5.0];
/// where so large a part of the pages becomes short enough,
const NEARLY_ALL: [f64; 2] = [0.95, 0.9];
/// and so many pages, or samples that count for as many, have told.
const TOLD: u32 = 512;

/// What one compressor has made of pages lately.
#[derive(Debug, Default)]
pub struct Seen {
    /// The part of the pages tried that are short enough, of [`ALL`].
    kept: AtomicU32,
    /// Pages tried, up to [`TRIED`]: the first of them tell most.
    tried: AtomicU32,
    /// Mean length of the blocks of those samples that were short enough, bytes; 0: none was.
    length: AtomicU32,
}

impl Seen {
    /// Of pages that were tried, or would have been, `short` were short enough, and `poor` not.
    pub fn note_tried(&self, short: u64, poor: u64) {
        let all = (short + poor) as i64;
        if all > 0 {
            let was = i64::from(self.kept.load(Relaxed));
            let is = short as i64 * i64::from(ALL) / all;
            let tried = (i64::from(self.tried.load(Relaxed)) + all).min(TRIED);
            let now = was + (is - was) * all.min(tried) / tried;
            self.kept.store(now as u32, Relaxed);
            self.tried.store(tried as u32, Relaxed);
        }
    }

    /// A sample has come to a block that takes so many bytes, or is not short enough.
    pub fn note_sample(&self, block: Option<usize>) {
        let short = block.is_some();
        self.note_tried(if short { WORTH } else { 0 }, if short { 0 } else { WORTH });
        if let Some(len) = block {
            let was = i64::from(self.length.load(Relaxed));
            let now = match was {
                0 => len as i64,
                _ => was + (len as i64 - was) / FOLLOW,
            };
            self.length.store(now as u32, Relaxed);
        }
    }

    /// The part of the pages that are short enough, 0 to 1.
    pub fn kept(&self) -> f64 {
        f64::from(self.kept.load(Relaxed)) / f64::from(ALL)
    }

    /// What part of a page its block takes, of all pages, 0 to 1: a page that does not become short
    /// enough takes all of it.
    pub fn part(&self, page: usize) -> f64 {
        let kept = self.kept();
        kept / self.ratio(page) + (1.0 - kept)
    }

    /// Do pages become so short that all of them take little memory? `is_so`: that was found before.
    pub fn is_tiny(&self, page: usize, is_so: bool) -> bool {
        let k = usize::from(is_so);
        let told = self.tried.load(Relaxed) >= TOLD;
        told && self.kept() >= NEARLY_ALL[k] && self.ratio(page) >= TINY[k]
    }

    /// Bytes of a page, of those that are short enough, to bytes of its block.
    pub fn ratio(&self, page: usize) -> f64 {
        match self.length.load(Relaxed) {
            0 => 1.0,
            len => page as f64 / f64::from(len),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shorter_blocks_where_room_is_short() {
        let by = |held| Codec::for_room(held, 100, [0.6, 0.4, 0.3]);
        assert_eq!([by(0), by(50)], [Codec::Lz4; 2]);
        assert_eq!([by(51), by(75)], [Codec::ZstdFast; 2]);
        assert_eq!([by(76), by(100)], [Codec::Zstd; 2]);
        assert_eq!(Codec::for_room(0, 0, [0.6, 0.4, 0.3]), Codec::Lz4);
        assert!(Codec::Lz4 < Codec::ZstdFast && Codec::ZstdFast < Codec::Zstd);
    }

    #[test]
    fn only_a_codec_that_gains_room_may_take_more_time() {
        let by = |held, parts| Codec::for_room(held, 100, parts);
        // A heap that LZ4 makes short already, one that nothing makes shorter, and nothing known.
        for parts in [[0.15, 0.14, 0.14], [1.0, 1.0, 0.95], [1.0; 3]] {
            assert_eq!([by(60, parts), by(90, parts)], [Codec::Lz4; 2]);
        }
        // Zstandard -1 gains a little, 1 much: as text of random digits.
        assert_eq!(by(60, [0.55, 0.49, 0.28]), Codec::Zstd);
        assert_eq!(by(90, [0.55, 0.49, 0.28]), Codec::Zstd);
    }

    #[test]
    fn samples_tell_how_many_and_how_long() {
        let seen = Seen::default();
        assert_eq!(
            (seen.kept(), seen.ratio(4096), seen.part(4096)),
            (0.0, 1.0, 1.0)
        );
        for i in 0..1000 {
            seen.note_sample((i % 4 > 0).then_some(1024));
        }
        assert!((0.7..0.8).contains(&seen.kept()), "{}", seen.kept());
        assert_eq!(seen.ratio(4096), 4.0);
        assert!((seen.part(4096) - (1.0 - seen.kept() * 0.75)).abs() < 1e-9);
        seen.note_tried(0, 100_000);
        assert_eq!(seen.kept(), 0.0);
    }

    #[test]
    fn tiny_are_those_that_samples_have_told_to_be() {
        let seen = Seen::default();
        let is = || [false, true].map(|is_so| seen.is_tiny(4096, is_so));
        for n in 0..40 {
            assert_eq!(is(), [n >= 16; 2], "{n}");
            seen.note_sample(Some(64));
        }
        // (One in fifteen, then one in eight, is not short enough.)
        (0..2).for_each(|_| seen.note_sample(None));
        assert_eq!(is(), [false, true]);
        (0..2).for_each(|_| seen.note_sample(None));
        assert_eq!(is(), [false; 2]);
        (0..400).for_each(|_| seen.note_sample(Some(64)));
        assert_eq!(is(), [true; 2]);
        (0..400).for_each(|_| seen.note_sample(Some(700)));
        assert_eq!(is(), [false, true]);
        (0..400).for_each(|_| seen.note_sample(Some(900)));
        assert_eq!(is(), [false; 2]);
    }

    #[test]
    fn the_first_samples_tell_at_once() {
        let seen = Seen::default();
        seen.note_sample(Some(1000));
        assert_eq!(seen.kept(), 1.0);
        seen.note_sample(None);
        assert_eq!(seen.kept(), 0.5);
        for _ in 0..100 {
            seen.note_sample(Some(1000));
        }
        // (Later ones count for as much as those before them.)
        seen.note_sample(None);
        assert!((0.9..0.98).contains(&seen.kept()), "{}", seen.kept());
    }
}
