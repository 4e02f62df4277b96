//! How much of the memory in use is compressed memory, and what is compressed.
//!
//! A page that comes back has a distance: how many pages left memory between its leaving and its
//! return ([`crate::advisor`]). With `R` pages in memory it would not have left if there had been
//! room for `R` and its distance. So the distances of a while tell what any division of the memory
//! would have cost: what is within the uncompressed part is free, what is within reach of the
//! compressed part costs a decompression, and the rest a read of the device. [`choose`] takes the
//! cheapest division. How often pages are used that never left is not known; that is taken to be as
//! often as those that came back soonest, and a half more. Mostly it is more, and the more the
//! smaller the uncompressed part becomes. So [`step`] goes towards the cheapest division by a small
//! part of memory, or by a quarter where much is to be gained, and then looks again: what left
//! because of it and came back tells.
//!
//! The same costs say for pages and for whole units whether to compress them at all: a device may
//! be faster than the codec for whole units and slower by a factor of ten for pages. And they say
//! by what: a codec that makes pages shorter reaches further and takes longer.

mod cost;
mod returns;
mod tiny;

pub use cost::Cost;
pub use returns::{dearer, follow, missed};
pub use tiny::of_tiny;

use super::codec::{CODECS, Codec};
use crate::UNIT_PAGES;
use crate::advisor::Tally;
use returns::Returns;

/// A process that has fewer frames has no compressed memory: it needs them for what it touches.
const LEAST: u64 = 8;
/// Divisions that are compared.
const STEPS: u64 = 16;
/// Pages that must have come back for a choice.
const ENOUGH: f64 = 1024.0;
/// A step is this part of the memory in use,
const STEP: u64 = 16;
/// and this part of it where the cheapest division costs half as much as the present one.
const LARGE_STEP: u64 = 4;
/// Another division must be cheaper by so much,
const CHEAPER: f64 = 0.97;
/// and one with compressed memory where there is none by more: it has to be tried to be known.
const WORTH_A_TRIAL: f64 = 0.8;
/// Another codec must be cheaper by so much: what is there is of the old one.
const OTHER_CODEC: f64 = 1.1;
/// What a page costs of a device that is to be spared, nanoseconds, at least.
const SPARED: f64 = 100_000.0;
/// A device that takes so many times what most of its transfers do has a limit on them. (One
/// without takes twice or three times as long while much is written.)
const LIMITED: f64 = 4.0;

/// Frames of compressed memory that a process may have that is charged `charged` frames, of which
/// `percent` of a hundred may be.
pub fn most(charged: u64, percent: u64) -> u64 {
    match charged {
        0..LEAST => 0,
        _ => most_alone(charged, percent),
    }
}

/// The same where there is nothing else that memory could leave to.
pub fn most_alone(charged: u64, percent: u64) -> u64 {
    charged * percent.min(90) / 100
}

/// Frames kept empty in advance, of `most`, so that pages can be stored while others are written
/// back.
pub fn stock(most: u64) -> u64 {
    (most / 16).clamp(1, 8).min(most)
}

/// What a codec makes of the pages that leave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compressed {
    /// Bytes of pages to bytes of their blocks.
    pub ratio: f64,
    /// Part of the pages that are short enough when compressed.
    pub kept: f64,
    /// Costs of pages that come by themselves, and of those that come with whole units.
    pub classes: [Cost; 2],
}

/// What is known when a division is chosen.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// Pages that came back lately, by distance in multiples of `resident`.
    pub back: Tally<'a>,
    /// Frames in use, compressed memory included.
    pub charged: u64,
    /// Of those, frames of compressed memory now.
    pub zswap: u64,
    /// Most frames that may be.
    pub most: u64,
    /// What pages cost on the device that come by themselves, and with whole units.
    pub device: [Cost; 2],
    /// The device takes that many times what most of its transfers do ([`dearer`]), which is in its
    /// costs already.
    pub dearer: f64,
    /// The same in compressed memory, by codec; `None`: it is not to be used.
    pub codecs: [Option<Compressed>; CODECS],
}

impl Known<'_> {
    fn codecs(&self) -> impl Iterator<Item = (Codec, Compressed)> {
        let each = Codec::ALL.into_iter().zip(self.codecs);
        each.filter_map(|(codec, c)| Some((codec, c?)))
    }

    fn resident(&self) -> f64 {
        pages(self.charged.saturating_sub(self.zswap)).max(1.0)
    }

    fn returns(&self) -> Returns<'_> {
        Returns::new(self.back, self.resident())
    }

    /// What comes back would have cost with `frames` compressed so, and what is compressed then.
    fn cost(
        &self,
        returns: &Returns<'_>,
        frames: u64,
        (codec, by): (Codec, Compressed),
    ) -> (f64, Choice) {
        let uncompressed = pages(self.charged.saturating_sub(frames));
        let reach = uncompressed + pages(frames) * by.ratio;
        let mut sum = 0.0;
        let classes = std::array::from_fn(|k| {
            let (device, zswap) = (self.device[k], by.classes[k]);
            let (near, far) = returns.beyond(k, self.resident(), uncompressed, reach);
            let device = device.r#in + device.out;
            let without = (near + far) * device;
            // What is compressed in vain is written to the device as well.
            let kept = near * (zswap.r#in + zswap.out) + far * (device + zswap.out);
            let tried = by.kept * kept + (1.0 - by.kept) * without;
            let compresses = frames > 0 && tried < without;
            sum += if compresses { tried } else { without };
            compresses
        });
        let choice = Choice {
            frames,
            classes,
            codec,
        };
        (sum, choice)
    }
}

fn pages(frames: u64) -> f64 {
    (frames * UNIT_PAGES) as f64
}

/// What is to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Most frames of compressed memory.
    pub frames: u64,
    /// Are pages compressed that leave by themselves, and whole units?
    pub classes: [bool; 2],
    /// By what.
    pub codec: Codec,
}

/// The cheapest division; `now` if there is no better one, or too little is known.
pub fn choose(known: &Known<'_>, now: Choice) -> Choice {
    cheapest(known, now).0
}

/// The same, and whether it costs half of what the present one does, or less.
fn cheapest(known: &Known<'_>, now: Choice) -> (Choice, bool) {
    let returns = known.returns();
    if returns.all() < ENOUGH || known.most == 0 {
        let stays = match known.most {
            0 => Choice::default(),
            most => Choice {
                frames: now.frames.min(most),
                ..now
            },
        };
        return (stays, false);
    }
    let (mut best, mut present) = ((f64::MAX, Choice::default()), f64::MAX);
    for by in known.codecs() {
        let (stays, changes) = match now.frames {
            0 => (WORTH_A_TRIAL, 1.0),
            _ if by.0 == now.codec => (CHEAPER, 1.0),
            _ => (CHEAPER, OTHER_CODEC),
        };
        if now.frames == 0 || by.0 == now.codec {
            let (cost, choice) = known.cost(&returns, now.frames.min(known.most), by);
            present = present.min(cost);
            if cost * stays < best.0 {
                best = (cost * stays, choice);
            }
        }
        for step in 0..=STEPS {
            let (cost, choice) = known.cost(&returns, known.most * step / STEPS, by);
            if cost * changes < best.0 {
                best = (cost * changes, choice);
            }
        }
    }
    let choice = match best.1.classes {
        [false, false] => Choice::default(),
        _ => best.1,
    };
    (choice, best.0 * 2.0 <= present)
}

/// The cheapest codec where compressed memory is to be as large as it may be, since the device is to be
/// spared: it is taken for a slow one. `now`'s, if there is no better one, or too little is known.
pub fn choose_codec(known: &Known<'_>, now: Choice) -> Codec {
    let slow = |cost: Cost| Cost {
        r#in: cost.r#in.max(SPARED),
        ..cost
    };
    let known = &Known {
        device: known.device.map(slow),
        ..*known
    };
    let returns = known.returns();
    if returns.all() < ENOUGH {
        return now.codec;
    }
    let cost = |(codec, by): (Codec, Compressed)| {
        let other = if codec == now.codec { 1.0 } else { OTHER_CODEC };
        (
            known.cost(&returns, known.most, (codec, by)).0 * other,
            codec,
        )
    };
    let costs = known.codecs().map(cost);
    costs
        .min_by(|a, b| a.0.total_cmp(&b.0))
        .map_or(now.codec, |best| best.1)
}

/// What is to be next on the way to the cheapest division, and whether that costs half of what the
/// present one does, or less. If it is another choice than `now`, what came back before is to be
/// forgotten: it tells of the division before.
pub fn step(known: &Known<'_>, now: Choice) -> (Choice, bool) {
    let (mut to, halves) = cheapest(known, now);
    if known.dearer >= LIMITED && to.frames > 0 {
        // What does not reach a device with a limit leaves its transfers to what has to; and what
        // went there is dear to bring back. So all is kept that can be, from now on.
        to.frames = known.most;
        to.codec = choose_codec(known, now);
        return (to, to.frames > now.frames);
    }
    let down = (known.charged * 2 / STEP).max(2);
    let up = match halves {
        true => (known.charged / LARGE_STEP).max(1),
        false => (known.charged / STEP).max(1),
    };
    // What there may be and is not there yet has not shown what it does.
    let most = (known.zswap + stock(now.frames) + up).max(now.frames);
    let frames = to
        .frames
        .clamp(now.frames.saturating_sub(down), now.frames + up);
    let next = Choice {
        frames: frames.min(most).min(known.most),
        classes: match frames {
            0 => [false; 2],
            // (While it becomes less, what there is stays in use.)
            _ if to.frames == 0 => now.classes,
            _ => to.classes,
        },
        codec: match to.frames {
            0 => now.codec,
            _ => to.codec,
        },
    };
    (next, halves)
}

#[cfg(test)]
mod tests {
    use super::returns::{CHEAPEST, DEAREST};
    use super::*;
    use crate::advisor::{WORDS, paged_back, whole_back};

    pub(super) fn costs_of(classes: [(f64, f64); 2]) -> [Cost; 2] {
        classes.map(|(r#in, out)| Cost { r#in, out })
    }

    pub(super) const LZ4: Compressed = Compressed {
        ratio: 3.0,
        kept: 1.0,
        classes: [
            Cost {
                r#in: 8_000.0,
                out: 5_000.0,
            },
            Cost {
                r#in: 2_000.0,
                out: 4_000.0,
            },
        ],
    };

    /// A disk of 80 us a page and 1 GB/s, and LZ4.
    pub(super) fn known(back: &[u64; WORDS]) -> Known<'_> {
        Known {
            back: Tally::new(back),
            charged: 1000,
            zswap: 0,
            most: 500,
            device: costs_of([(85_000.0, 15_000.0), (4_000.0, 2_000.0)]),
            dearer: 1.0,
            codecs: [Some(LZ4), None, None],
        }
    }

    const RESIDENT: u64 = 1000 * UNIT_PAGES;

    fn uniform(word: fn(u64, u64) -> usize, to: f64) -> [u64; WORDS] {
        let mut back = [0; WORDS];
        for i in 0..10_000 {
            let distance = (f64::from(i) / 10_000.0 * to * RESIDENT as f64) as u64;
            back[word(distance, RESIDENT)] += 1;
        }
        back
    }

    #[test]
    fn a_small_process_has_none_and_a_large_one_its_part() {
        assert_eq!((most(7, 50), most(8, 50), most(1000, 30)), (0, 4, 300));
        assert_eq!((most_alone(7, 50), most_alone(1000, 95)), (3, 900));
        assert_eq!((stock(0), stock(4), stock(32), stock(1000)), (0, 1, 2, 8));
    }

    #[test]
    fn pages_at_random_get_what_reaches_them_all() {
        // Twice as much data as memory: half of memory, at three to one, reaches all.
        let back = uniform(paged_back, 1.0);
        let choice = choose(&known(&back), Choice::default());
        assert!(choice.classes[0] && choice.frames >= 437, "{choice:?}");
        // And stays, when distances are seen from what is left uncompressed.
        let back = uniform(paged_back, 3.0);
        let now = Known {
            zswap: choice.frames,
            ..known(&back)
        };
        let then = choose(&now, choice);
        assert!(then.frames >= 400, "{choice:?} {then:?}");
    }

    #[test]
    fn what_does_not_compress_or_is_out_of_reach_gets_nothing() {
        let back = uniform(paged_back, 1.0);
        let noise = Known {
            codecs: [Some(Compressed { kept: 0.0, ..LZ4 }), None, None],
            ..known(&back)
        };
        assert_eq!(choose(&noise, Choice::default()), Choice::default());
        // A loop over ten times memory.
        let mut back = [0; WORDS];
        back[paged_back(9 * RESIDENT, RESIDENT)] = 100_000;
        assert_eq!(choose(&known(&back), Choice::default()), Choice::default());
    }

    #[test]
    fn whole_units_of_a_fast_disk_are_not_compressed() {
        let back = uniform(whole_back, 1.0);
        let mut known = known(&back);
        known.device[1] = Cost {
            r#in: 1_000.0,
            out: 500.0,
        };
        assert_eq!(choose(&known, Choice::default()), Choice::default());
    }

    #[test]
    fn a_working_set_that_nearly_fits_is_left_most_of_memory() {
        // All that comes back is just beyond memory, and memory is used evenly.
        let back = uniform(paged_back, 0.05);
        let choice = choose(&known(&back), Choice::default());
        assert!(choice.frames <= 125, "{choice:?}");
    }

    /// What comes back of many uses with so many frames uncompressed, if of the uses `hot` are of
    /// 600 frames and the rest of 2400.
    fn seen(hot: f64, uncompressed: u64) -> [u64; WORDS] {
        let mut back = [0; WORDS];
        let resident = uncompressed * UNIT_PAGES;
        for (uses, frames) in [(hot, 600), (1.0 - hot, 2400)] {
            for i in (0..1000).map(|i| i * frames * UNIT_PAGES / 1000) {
                if i >= resident {
                    back[paged_back(i - resident, resident)] += (uses * 1e6) as u64;
                }
            }
        }
        back
    }

    /// What the uses cost with `frames` of 1000 compressed.
    fn costs(hot: f64, frames: u64) -> f64 {
        let (uncompressed, reach) = (1000 - frames, 1000 - frames + 3 * frames);
        let device = known(&[0; WORDS]).device[0];
        let mut sum = 0.0;
        for (uses, data) in [(hot, 600.0), (1.0 - hot, 2400.0)] {
            let beyond = |depth: u64| (1.0 - depth as f64 / data).max(0.0);
            let (away, far) = (beyond(uncompressed), beyond(reach));
            let zswap = LZ4.classes[0].r#in + LZ4.classes[0].out;
            let device = device.r#in + device.out;
            sum += uses * ((away - far) * zswap + far * device);
        }
        sum
    }

    #[test]
    fn steps_lead_to_about_the_cheapest_division() {
        for hot in [0.0, 0.3, 0.6, 0.9, 0.98, 0.998] {
            let mut now = Choice::default();
            for _ in 0..60 {
                let back = seen(hot, 1000 - now.frames);
                let known = Known {
                    zswap: now.frames,
                    most: 900,
                    ..known(&back)
                };
                now = step(&known, now).0;
            }
            let best = (0..=90)
                .map(|f| costs(hot, f * 10))
                .fold(f64::MAX, f64::min);
            let got = costs(hot, now.frames);
            assert!(got < best * 1.15, "{hot}: {now:?}: {got} and {best}");
        }
    }

    #[test]
    fn a_codec_is_worth_its_time_where_its_reach_saves_more() {
        let shorter = Compressed {
            ratio: 5.0,
            classes: costs_of([(14_000.0, 10_000.0), (6_000.0, 8_000.0)]),
            ..LZ4
        };
        let with = |back, device_ns| Known {
            device: costs_of([(device_ns, device_ns / 6.0), (4_000.0, 2_000.0)]),
            codecs: [Some(Compressed { ratio: 1.8, ..LZ4 }), Some(shorter), None],
            ..known(back)
        };
        let back = uniform(paged_back, 1.0);
        let choice = choose(&with(&back, 85_000.0), Choice::default());
        assert_eq!(choice.codec, Codec::ZstdFast, "{choice:?}");
        // Beside a fast disk what is within reach of the fast one is cheaper, and the rest no dearer.
        let back = uniform(paged_back, 0.3);
        let choice = choose(&with(&back, 24_000.0), Choice::default());
        assert_eq!(choice.codec, Codec::Lz4, "{choice:?}");
        // Where the division is given, the codec is chosen by the same costs.
        let back = uniform(paged_back, 2.0);
        let now = Choice {
            frames: 400,
            classes: [true; 2],
            codec: Codec::Lz4,
        };
        let slow = Known {
            zswap: 400,
            ..with(&back, 85_000.0)
        };
        assert_eq!(choose_codec(&slow, now), Codec::ZstdFast);
        // Also where the device is faster than any.
        let fast = Known {
            device: costs_of([(2_000.0, 500.0), (500.0, 200.0)]),
            ..slow
        };
        assert_eq!(choose_codec(&fast, now), Codec::ZstdFast);
        // What is not to be used is not, and too little is no reason.
        let only = Known {
            codecs: [Some(LZ4), None, None],
            ..slow
        };
        assert_eq!(choose_codec(&only, now), Codec::Lz4);
        let nothing = [0; WORDS];
        assert_eq!(choose_codec(&with(&nothing, 85_000.0), now), Codec::Lz4);
    }

    #[test]
    fn little_at_a_time_is_enough_in_the_end() {
        let (mut lately, mut last, mut now) = ([0; WORDS], [0; WORDS], [0; WORDS]);
        let word = paged_back(RESIDENT / 2, RESIDENT);
        for look in 1..100 {
            now[word] += 200;
            follow(&mut lately, &mut last, &now);
            let enough = choose(&known(&lately), Choice::default()).frames > 0;
            assert_eq!(enough, look * 200 >= ENOUGH as u64, "{look}");
        }
        // And what is long ago is nothing.
        let newer = paged_back(RESIDENT / 4, RESIDENT);
        for _ in 0..60 {
            now[newer] += 1000;
            follow(&mut lately, &mut last, &now);
        }
        assert!(
            lately[word] < 10 && lately[newer] > 3000,
            "{}",
            lately[word]
        );
    }

    #[test]
    fn a_device_with_a_limit_is_dearer_than_most_of_its_transfers() {
        let back = uniform(paged_back, 1.0);
        let known = known(&back);
        let dearer = |us: u64| dearer(known.back, known.device, 10_000 * us * 1000);
        assert_eq!((dearer(340), dearer(40)), (Some(4.0), Some(40.0 / 85.0)));
        assert_eq!(dearer(1_000_000), Some(DEAREST));
        assert_eq!(dearer(1), Some(CHEAPEST));
        let nothing = [0; WORDS];
        assert_eq!(super::dearer(Tally::new(&nothing), known.device, 1), None);
    }

    #[test]
    fn codecs_that_differ_by_little_are_not_changed() {
        let back = uniform(paged_back, 1.0);
        let known = Known {
            codecs: [
                Some(LZ4),
                Some(Compressed {
                    ratio: 3.1,
                    classes: costs_of([(7_800.0, 5_000.0), (2_000.0, 4_000.0)]),
                    ..LZ4
                }),
                None,
            ],
            zswap: 450,
            ..known(&back)
        };
        for codec in [Codec::Lz4, Codec::ZstdFast] {
            let now = Choice {
                frames: 450,
                classes: [true, false],
                codec,
            };
            assert_eq!(choose(&known, now).codec, codec);
            assert_eq!(step(&known, now).0.codec, codec);
            assert_eq!(choose_codec(&known, now), codec);
        }
    }

    #[test]
    fn what_would_have_been_there_is_not_missed() {
        let back = uniform(paged_back, 1.0);
        let missed = |zswap| missed(Tally::new(&back), 1000, zswap);
        assert_eq!(missed(0), 10_000.0);
        // With a third of memory compressed, distances up to a half of the rest are within reach.
        let with = missed(333);
        assert!((4_800.0..5_200.0).contains(&with), "{with}");
        assert_eq!(missed(1000), 0.0);
        // Little of it is little, also of what came back soon.
        let mut soon = [0; WORDS];
        soon[paged_back(RESIDENT / 100, RESIDENT)] = 1000;
        let missed = |zswap| super::missed(Tally::new(&soon), 1000, zswap);
        assert_eq!([missed(20), missed(200)], [1000.0, 0.0]);
    }

    #[test]
    fn beside_a_device_with_a_limit_it_is_as_large_as_it_may_be_at_once() {
        let back = uniform(paged_back, 1.0);
        let limited = |dearer| Known {
            dearer,
            ..known(&back)
        };
        let (to, _) = step(&limited(1.0), Choice::default());
        assert!(to.frames < 500, "{to:?}");
        let (to, eager) = step(&limited(8.0), Choice::default());
        assert!(to.frames == 500 && eager, "{to:?}");
        assert_eq!(step(&limited(8.0), to), (to, false));
        // Not what does not compress.
        let noise = Known {
            codecs: [None; CODECS],
            ..limited(8.0)
        };
        assert_eq!(step(&noise, Choice::default()).0, Choice::default());
    }

    #[test]
    fn little_is_no_reason() {
        let mut back = [0; WORDS];
        back[paged_back(RESIDENT / 2, RESIDENT)] = 100;
        let now = Choice {
            frames: 100,
            classes: [true, false],
            codec: Codec::Lz4,
        };
        assert_eq!(choose(&known(&back), now), now);
        let none = Known {
            most: 0,
            ..known(&back)
        };
        assert_eq!(choose(&none, now), Choice::default());
    }
}
