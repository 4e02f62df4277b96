//! How large compressed memory is, and what is kept there, where the settings leave that to it:
//! what [`hugeswap_policy::zswap::share`] chooses, a few times a second, while
//! [`hugeswap_policy::zswap::trial`] finds that it gets the program further.

use super::codec::Scratch;
use super::log::room;
use super::{PAGE, Zswap};
use crate::lock::Lock;
use hugeswap_policy::advisor::{Tally, WORDS};
use hugeswap_policy::knobs::{Knob, zswap};
use hugeswap_policy::swapin::granularity::DeviceCost;
use hugeswap_policy::zswap::share::{self, Choice, Class, Cost, Known};
use hugeswap_policy::zswap::trial::{Seen, Trial};
use hugeswap_sys::now_ns;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

/// While nothing is kept, one page of so many that are written is compressed, to see what it would
/// come to,
const SAMPLE: u32 = 64;
/// and counts for so many that are tried.
const WORTH: u64 = 32;
/// The mean length of blocks changes by a part of so many with each.
const FOLLOW: i64 = 32;
/// All of them, of the pages that are tried.
const ALL: u32 = 1 << 16;
/// What is thought of pages changes with so many that are tried.
const TRIED: u32 = 1024;

/// What is chosen, and what that follows from.
pub(super) struct Chosen {
    /// Frames at most.
    pub frames: AtomicU64,
    /// Are pages kept that leave by themselves, and whole units?
    pub classes: [AtomicBool; 2],
    /// The part of the pages tried that are short enough, of [`ALL`].
    kept: AtomicU32,
    /// Pages written that might have been samples.
    written: AtomicU32,
    /// Mean length of the blocks of those samples that were short enough, bytes; 0: none was.
    length: AtomicU32,
    returns: Lock<Returns>,
}

/// Pages that came back: lately, and all until the last look.
struct Returns {
    lately: [u64; WORDS],
    last: [u64; WORDS],
    trial: Trial,
}

impl Chosen {
    /// Nothing, for nothing is known.
    pub fn new() -> Chosen {
        Chosen {
            frames: AtomicU64::new(0),
            classes: [const { AtomicBool::new(false) }; 2],
            kept: AtomicU32::new(0),
            written: AtomicU32::new(0),
            length: AtomicU32::new(0),
            returns: Lock::new(Returns {
                lately: [0; WORDS],
                last: [0; WORDS],
                trial: Trial::default(),
            }),
        }
    }

    /// In a forked child, which has another record.
    pub fn reset(&self) {
        let mut returns = self.returns.lock();
        (returns.lately, returns.last) = ([0; WORDS], [0; WORDS]);
        returns.trial = Trial::default();
        drop(returns);
        self.put(Choice::default());
    }

    fn put(&self, choice: Choice) {
        self.frames.store(choice.frames, Relaxed);
        for (cell, yes) in self.classes.iter().zip(choice.classes) {
            cell.store(yes, Relaxed);
        }
    }

    fn get(&self) -> Choice {
        Choice {
            frames: self.frames.load(Relaxed),
            classes: [0, 1].map(|k| self.classes[k].load(Relaxed)),
        }
    }

    /// Of pages that were tried, or would have been, `short` were short enough.
    pub fn note_tried(&self, short: u64, poor: u64) {
        let all = (short + poor) as i64;
        if all > 0 {
            let was = i64::from(self.kept.load(Relaxed));
            let is = short as i64 * i64::from(ALL) / all;
            let now = was + (is - was) * all.min(TRIED.into()) / i64::from(TRIED);
            self.kept.store(now as u32, Relaxed);
        }
    }

    /// A sample has come to a block of this length, or is not short enough.
    fn note_sample(&self, block: Option<usize>) {
        self.note_tried(
            if block.is_some() { WORTH } else { 0 },
            if block.is_none() { WORTH } else { 0 },
        );
        if let Some(len) = block {
            let was = i64::from(self.length.load(Relaxed));
            let now = match was {
                0 => len as i64,
                _ => was + (len as i64 - was) / FOLLOW,
            };
            self.length.store(now as u32, Relaxed);
        }
    }
}

impl Zswap {
    /// kswapd, a few times a second: chooses anew. `device`: what the device costs; `by_pages`:
    /// no trial of whole units is under way or due.
    pub fn choose(&self, device: &DeviceCost, by_pages: bool) {
        if self.pool.knob(Knob::ZswapEnabled) != zswap::AUTO {
            return;
        }
        let record = self.pool.record();
        let mut now = [0; WORDS];
        for (n, word) in now.iter_mut().zip(&record.events.advisor) {
            *n = word.load(Relaxed);
        }
        let mut returns = self.chosen.returns.lock();
        let returns = &mut *returns;
        let since = std::array::from_fn(|i| now[i].wrapping_sub(returns.last[i]));
        share::follow(&mut returns.lately, &mut returns.last, &now);
        let class = |cost: fn(&DeviceCost) -> Cost| Class {
            device: cost(device),
            zswap: cost(&self.cost),
        };
        let known = Known {
            back: Tally::new(&returns.lately),
            charged: record.charged.load(Relaxed),
            zswap: self.held(),
            most: self.ceiling(),
            ratio: self.ratio(),
            kept: f64::from(self.chosen.kept.load(Relaxed)) / f64::from(ALL),
            classes: [class(Cost::paged), class(Cost::whole)],
        };
        let now = self.chosen.get();
        let may_be = returns.trial.on_look(Seen {
            ns: now_ns(),
            stalled_ns: record.events.stalled_ns.load(Relaxed),
            missed: share::missed(Tally::new(&since), known.charged, known.zswap),
            with: now.frames > 0,
            by_pages,
        });
        let choice = match may_be {
            true => share::step(&known, now),
            false => Choice::default(),
        };
        if choice != now {
            self.chosen.put(choice);
            returns.lately = [0; WORDS];
        }
    }

    /// Pages at `from`, which is readable, are about to be written to the device. Now and then one
    /// of them is compressed, to see what that comes to.
    pub fn sample(&self, from: usize, pages: usize) {
        if self.pool.knob(Knob::ZswapEnabled) != zswap::AUTO || self.is_on() {
            return;
        }
        let before = self.chosen.written.fetch_add(pages as u32, Relaxed);
        if before % SAMPLE + (pages as u32) < SAMPLE {
            return;
        }
        let Some(mut scratch) = self.scratches.iter().find_map(Lock::try_lock) else {
            return;
        };
        let scratch = scratch.get_or_insert_with(Scratch::new);
        let page = before as usize / SAMPLE as usize % pages;
        // SAFETY: the caller's memory; whatever is there while it is copied.
        unsafe { scratch.copy_page(from + page * PAGE) };
        self.chosen.note_sample(scratch.compress());
    }

    /// Bytes of pages to bytes of their blocks: as they are now, or as samples were.
    fn ratio(&self) -> f64 {
        let pages = self.pool.record().zswap_pages.load(Relaxed);
        let (_, used) = self.log.lock().full(self.pool.zswap_used());
        match (used, self.chosen.length.load(Relaxed)) {
            (0, 0) => 1.0,
            (0, len) => PAGE as f64 / room(len as usize) as f64,
            (used, _) => (pages * PAGE as u64) as f64 / used as f64,
        }
    }
}
