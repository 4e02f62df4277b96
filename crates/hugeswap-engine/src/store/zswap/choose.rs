//! How large compressed memory is, and what is kept there, where the settings leave that to it:
//! what [`hugeswap_policy::zswap::share`] chooses, a few times a second, while
//! [`hugeswap_policy::zswap::trial`] finds that it gets the program further. And by what pages are
//! compressed, which samples tell.

use super::super::codec::{LONGEST, SHORT, Scratch};
use super::log::room;
use super::{PAGE, PAGES, Zswap};
use crate::lock::Lock;
use hugeswap_policy::advisor::{Tally, WORDS};
use hugeswap_policy::knobs::{Knob, zswap};
use hugeswap_policy::swapin::granularity::{DeviceCost, Direction, PIECE_PAGES, Size};
use hugeswap_policy::zswap::codec::{CODECS, Codec, Seen};
use hugeswap_policy::zswap::share::{self, Choice, Compressed, Cost, Known};
use hugeswap_policy::zswap::trial::{self, Trial};
use hugeswap_sys::now_ns;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};

/// One page of so many that are written, or stored, is compressed by the next of the codecs, to see
/// what it would come to.
const SAMPLE: u32 = 64;

/// What is chosen, and what that follows from.
pub(super) struct Chosen {
    /// Frames at most.
    pub frames: AtomicU64,
    /// Are pages kept that leave by themselves, and whole units?
    pub classes: [AtomicBool; 2],
    /// The cheapest division costs half of what the present one does, or less.
    eager: AtomicBool,
    /// A [`Codec`].
    codec: AtomicU8,
    seen: [Seen; CODECS],
    /// Pages written that might have been samples.
    written: AtomicU32,
    /// Samples taken.
    samples: AtomicU32,
    returns: Lock<Returns>,
}

/// Pages that came back: lately, and all until the last look.
struct Returns {
    lately: [u64; WORDS],
    last: [u64; WORDS],
    trial: Trial,
    /// `stalled_ns` at the last look.
    stalled: u64,
    /// What the device costs is to be multiplied by this: [`share::dearer`].
    dearer: f64,
    /// It becomes larger, for much is to be gained.
    grows: bool,
    /// It is there without a trial, since blocks are tiny.
    tiny: bool,
}

impl Returns {
    fn none() -> Returns {
        Returns {
            lately: [0; WORDS],
            last: [0; WORDS],
            trial: Trial::default(),
            stalled: 0,
            dearer: 1.0,
            grows: false,
            tiny: false,
        }
    }
}

impl Chosen {
    /// Nothing, for nothing is known.
    pub fn new() -> Chosen {
        Chosen {
            frames: AtomicU64::new(0),
            classes: [const { AtomicBool::new(false) }; 2],
            eager: AtomicBool::new(false),
            codec: AtomicU8::new(0),
            seen: Default::default(),
            written: AtomicU32::new(0),
            samples: AtomicU32::new(0),
            returns: Lock::new(Returns::none()),
        }
    }

    /// In a forked child, which has another record.
    pub fn reset(&self) {
        *self.returns.lock() = Returns::none();
        self.eager.store(false, Relaxed);
        self.put(Choice::default());
    }

    fn put(&self, choice: Choice) {
        self.codec.store(choice.codec as u8, Relaxed);
        self.frames.store(choice.frames, Relaxed);
        for (cell, yes) in self.classes.iter().zip(choice.classes) {
            cell.store(yes, Relaxed);
        }
    }

    fn get(&self) -> Choice {
        Choice {
            frames: self.frames.load(Relaxed),
            classes: [0, 1].map(|k| self.classes[k].load(Relaxed)),
            codec: Codec::ALL[self.codec.load(Relaxed) as usize % CODECS],
        }
    }

    /// Of pages that were tried, or would have been, `short` were short enough.
    pub fn note_tried(&self, by: Codec, short: u64, poor: u64) {
        self.seen[by as usize].note_tried(short, poor);
    }
}

impl Zswap {
    /// kswapd, a few times a second: chooses anew. `device`: what the device costs; `by_pages`:
    /// no trial of whole units is under way or expected soon; `evicted`: pages, in all.
    pub fn choose(&self, device: &DeviceCost, by_pages: bool, evicted: u64) {
        let setting = self.pool.knob(Knob::ZswapEnabled);
        let alone = self.has_reserve() && self.pool.is_without_device();
        if setting == zswap::NEVER && !alone {
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
        let mut device = [Cost::paged(device), Cost::whole(device)];
        let stalled_ns = record.events.stalled_ns.load(Relaxed);
        let stalled = stalled_ns.wrapping_sub(std::mem::replace(&mut returns.stalled, stalled_ns));
        if self.held() == 0
            && let Some(dearer) = share::dearer(Tally::new(&since), device, stalled)
        {
            returns.dearer = (returns.dearer + dearer) / 2.0;
        }
        for cost in &mut device {
            cost.r#in *= returns.dearer;
        }
        let known = Known {
            back: Tally::new(&returns.lately),
            charged: record.charged.load(Relaxed),
            zswap: self.held(),
            most: self.ceiling(),
            device,
            dearer: returns.dearer,
            codecs: Codec::ALL.map(|by| self.compressed(by)),
        };
        // (What the settings say may be another than what was chosen last.)
        let now = Choice {
            codec: self.codec(),
            ..self.chosen.get()
        };
        if setting == zswap::ALWAYS || alone {
            // (Where there is nothing else, it is room that decides.)
            let codec = match alone {
                true => Codec::Lz4,
                false => share::choose_codec(&known, now),
            };
            self.chosen.codec.store(codec as u8, Relaxed);
            self.chosen.eager.store(false, Relaxed);
            self.note_codec(now.codec, codec);
            return;
        }
        let is_tiny = self.chosen.seen[Codec::Lz4 as usize].is_tiny(PAGE, returns.tiny);
        let tiny = is_tiny
            .then(|| share::of_tiny(&known, Codec::Lz4, returns.tiny))
            .flatten();
        if tiny.is_some() || returns.tiny {
            // (What was measured is not of what there is then.)
            returns.tiny = tiny.is_some();
            returns.trial = Trial::default();
            returns.grows = false;
            self.chosen.eager.store(false, Relaxed);
            let choice = tiny.unwrap_or(Choice {
                codec: now.codec,
                ..Choice::default()
            });
            self.chosen.put(choice);
            return self.note_codec(now.codec, choice.codec);
        }
        let may_be = returns.trial.on_look(trial::Seen {
            ns: now_ns(),
            stalled_ns,
            missed: share::missed(Tally::new(&since), known.charged, known.zswap),
            evicted,
            resident: known.charged * PAGES as u64,
            with: now.frames > 0,
            grows: returns.grows,
            by_pages,
        });
        let nothing = Choice {
            codec: now.codec,
            ..Choice::default()
        };
        let (choice, eager) = match may_be {
            true => share::step(&known, now),
            false => (nothing, false),
        };
        // It stays eager until it has grown to what it is to be, nearly; what it does is measured
        // before that.
        let larger = choice.frames > now.frames;
        let eager = (eager || self.is_eager()) && (larger || known.zswap * 8 < choice.frames * 7);
        returns.grows = eager && (larger || known.zswap * 2 < choice.frames);
        self.chosen.eager.store(eager, Relaxed);
        if choice != now {
            self.chosen.put(choice);
            self.note_codec(now.codec, choice.codec);
            returns.lately = [0; WORDS];
        }
    }

    /// Pages that became no shorter by one codec may by another.
    fn note_codec(&self, was: Codec, is: Codec) {
        if is != was {
            self.poor.store(0, Relaxed);
        }
    }

    /// Is so much to be gained that memory is evicted to make it larger?
    pub fn is_eager(&self) -> bool {
        self.chosen.eager.load(Relaxed)
    }

    /// By what pages are compressed now.
    pub fn codec(&self) -> Codec {
        let chosen = || self.chosen.get().codec.max(self.codec_for_room());
        self.pool.given_codec().unwrap_or_else(chosen)
    }

    /// By what they are compressed at least.
    fn codec_for_room(&self) -> Codec {
        match self.has_reserve() {
            true => {
                let parts = std::array::from_fn(|by| self.chosen.seen[by].part(PAGE));
                Codec::for_room(self.held(), self.most.load(Relaxed).into(), parts)
            }
            false => Codec::Lz4,
        }
    }

    /// What a codec makes of the pages that leave; `None`: the settings do not allow it.
    fn compressed(&self, by: Codec) -> Option<Compressed> {
        let used = self.codec();
        let free = self.pool.given_codec().is_none();
        let (seen, cost) = (&self.chosen.seen[by as usize], &self.costs[by as usize]);
        (free || by == used).then(|| Compressed {
            ratio: match by == used {
                true => self.ratio().unwrap_or(seen.ratio(PAGE)),
                false => seen.ratio(PAGE),
            },
            kept: seen.kept(),
            classes: [Cost::paged(cost), Cost::whole(cost)],
        })
    }

    /// So many pages are about to leave for the device. Now and then one of them is compressed, to
    /// see what that comes to.
    ///
    /// # Safety
    /// `at` tells for each of them, by its number, where it can be read.
    pub unsafe fn sample(&self, pages: usize, at: impl FnOnce(usize) -> Option<usize>) {
        let wanted = self.pool.knob(Knob::ZswapEnabled) == zswap::AUTO && !self.is_on();
        let page = wanted.then(|| self.sample_of(pages)).flatten();
        let Some(from) = page.and_then(at) else {
            return;
        };
        let Some(mut scratch) = self.codecs.try_scratch() else {
            return;
        };
        let scratch = scratch.get_or_insert_with(Scratch::new);
        // SAFETY: the caller's memory; whatever is there while it is copied.
        unsafe { scratch.copy_page(from) };
        self.take_sample(scratch);
    }

    /// Which of the next `pages` that are stored is a sample: none where the codec is given.
    pub(super) fn sample_of_stored(&self, pages: usize) -> Option<usize> {
        let free = self.pool.given_codec().is_none();
        free.then(|| self.sample_of(pages)).flatten()
    }

    /// Which of the next `pages` is a sample.
    fn sample_of(&self, pages: usize) -> Option<usize> {
        if pages == 0 {
            return None;
        }
        let before = self.chosen.written.fetch_add(pages as u32, Relaxed);
        let is_due = before % SAMPLE + pages as u32 >= SAMPLE;
        is_due.then(|| (before / SAMPLE) as usize % pages)
    }

    /// Compresses the page in `scratch` by the next of the codecs, and decompresses it.
    pub(super) fn take_sample(&self, scratch: &mut Scratch) {
        let next = || {
            let n = self.chosen.samples.fetch_add(1, Relaxed);
            Codec::ALL[n as usize % CODECS]
        };
        let by = self.pool.given_codec().unwrap_or_else(next);
        let start = now_ns();
        let most = if self.has_reserve() { LONGEST } else { SHORT };
        let len = scratch.compress(by, most);
        self.note_cost(by, Direction::Out, now_ns() - start);
        self.chosen.seen[by as usize].note_sample(len.map(room));
        if let Some(len) = len {
            let start = now_ns();
            scratch.decompress(&self.codecs.decoders, len);
            self.note_cost(by, Direction::In, now_ns() - start);
        }
    }

    /// What a codec takes for a page. What is in use is measured where it is used.
    fn note_cost(&self, by: Codec, direction: Direction, ns: u64) {
        if self.is_on() && by == self.codec() {
            return;
        }
        let of = |n: usize| ns * n as u64;
        let cost = &self.costs[by as usize];
        cost.observe(direction, Size::Page, ns);
        cost.observe(direction, Size::Piece, of(PIECE_PAGES as usize));
        cost.observe(direction, Size::Whole, of(PAGES));
    }

    /// Bytes of pages to bytes of their blocks, as they are now.
    fn ratio(&self) -> Option<f64> {
        let pages = self.pool.record().zswap_pages.load(Relaxed);
        let (_, used) = self.log.lock().full(self.pool.zswap_used());
        (used > 0).then(|| (pages * PAGE as u64) as f64 / used as f64)
    }
}
