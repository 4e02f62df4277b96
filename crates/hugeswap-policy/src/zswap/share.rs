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
//! part of memory, and then looks again: what left because of it and came back tells.
//!
//! The same costs say for pages and for whole units whether to compress them at all: a device may
//! be faster than the codec for whole units and slower by a factor of ten for pages.

use crate::UNIT_PAGES;
use crate::advisor::{self, Tally, WORDS};
use crate::swapin::granularity::{DeviceCost, Direction};

/// A process that has fewer frames has no compressed memory: it needs them for what it touches.
const LEAST: u64 = 8;
/// Divisions that are compared.
const STEPS: u64 = 16;
/// Pages that must have come back for a choice.
const ENOUGH: f64 = 2048.0;
/// A step is this part of the memory in use.
const STEP: u64 = 16;
/// Another division must be cheaper by so much,
const CHEAPER: f64 = 0.97;
/// and one with compressed memory where there is none by more: it has to be tried to be known.
const WORTH_A_TRIAL: f64 = 0.8;
/// What the processor does for a fault besides, nanoseconds.
const FAULT: f64 = 5_000.0;
/// What leaves memory does so in the background, and costs the program so much of its time.
const BACKGROUND: f64 = 0.5;
/// How much more often pages are taken to be used that never left than those that came back
/// soonest.
const UNSEEN: f64 = 1.5;
/// Pages that came back within this part of memory tell about those that never left.
const SOON: f64 = 0.125;

/// Frames of compressed memory that a process may have that is charged `charged` frames, of which
/// `percent` of a hundred may be.
pub fn most(charged: u64, percent: u64) -> u64 {
    match charged {
        0..LEAST => 0,
        _ => charged * percent.min(90) / 100,
    }
}

/// Frames kept empty in advance, of `most`, so that pages can be stored while others are written
/// back.
pub fn stock(most: u64) -> u64 {
    (most / 16).clamp(1, 8).min(most)
}

/// What a page costs, nanoseconds, in and out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Into memory, with the fault.
    pub r#in: f64,
    /// Out of memory.
    pub out: f64,
}

impl Cost {
    /// A page that comes by itself.
    pub fn paged(of: &DeviceCost) -> Cost {
        let ns = |d| f64::from(of.per_size(d).page);
        Cost {
            r#in: ns(Direction::In) + FAULT,
            out: ns(Direction::Out) * BACKGROUND,
        }
    }

    /// A page of a unit that comes as a whole.
    pub fn whole(of: &DeviceCost) -> Cost {
        let ns = |d| f64::from(of.per_size(d).whole) / UNIT_PAGES as f64;
        Cost {
            r#in: ns(Direction::In) + FAULT / UNIT_PAGES as f64,
            out: ns(Direction::Out) * BACKGROUND,
        }
    }
}

/// What pages cost that come by themselves, and with whole units.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Class {
    /// On the device.
    pub device: Cost,
    /// In compressed memory.
    pub zswap: Cost,
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
    /// Bytes of pages to bytes of their blocks.
    pub ratio: f64,
    /// Part of the pages that are short enough when compressed.
    pub kept: f64,
    /// Costs of pages that come by themselves, and of those that come with whole units.
    pub classes: [Class; 2],
}

/// What is to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Most frames of compressed memory.
    pub frames: u64,
    /// Are pages compressed that leave by themselves, and whole units?
    pub classes: [bool; 2],
}

/// The cheapest division; `now` if there is no better one, or too little is known.
pub fn choose(known: &Known<'_>, now: Choice) -> Choice {
    let pages = |frames: u64| (frames * UNIT_PAGES) as f64;
    let resident = pages(known.charged - known.zswap.min(known.charged)).max(1.0);
    let returns = Returns::new(known.back, resident);
    if returns.all() < ENOUGH || known.most == 0 {
        return match known.most {
            0 => Choice::default(),
            most => Choice {
                frames: now.frames.min(most),
                ..now
            },
        };
    }
    let cost = |frames: u64| {
        let uncompressed = pages(known.charged.saturating_sub(frames));
        let reach = uncompressed + pages(frames) * known.ratio;
        let mut sum = 0.0;
        let classes = std::array::from_fn(|k| {
            let class = known.classes[k];
            let (near, far) = returns.beyond(k, resident, uncompressed, reach);
            let device = class.device.r#in + class.device.out;
            let zswap = class.zswap.r#in + class.zswap.out;
            let without = (near + far) * device;
            // What is compressed in vain is written to the device as well.
            let kept = near * zswap + far * (device + class.zswap.out);
            let tried = known.kept * kept + (1.0 - known.kept) * without;
            let compresses = frames > 0 && tried < without;
            sum += if compresses { tried } else { without };
            compresses
        });
        (sum, Choice { frames, classes })
    };
    let mut best = cost(now.frames.min(known.most));
    best.0 *= match now.frames {
        0 => WORTH_A_TRIAL,
        _ => CHEAPER,
    };
    for step in 0..=STEPS {
        let other = cost(known.most * step / STEPS);
        if other.0 < best.0 {
            best = other;
        }
    }
    match best.1.classes {
        [false, false] => Choice::default(),
        _ => best.1,
    }
}

/// What is to be next on the way to the cheapest division. If that is another choice than `now`,
/// what came back before is to be forgotten: it tells of the division before.
pub fn step(known: &Known<'_>, now: Choice) -> Choice {
    let to = choose(known, now);
    let step = (known.charged / STEP).max(1);
    // What there may be and is not there yet has not shown what it does.
    let most = (known.zswap + stock(now.frames) + step).max(now.frames);
    let frames = to
        .frames
        .clamp(now.frames.saturating_sub(2 * step), now.frames + step);
    Choice {
        frames: frames.min(most).min(known.most),
        classes: match frames {
            0 => [false; 2],
            // (While it becomes less, what there is stays in use.)
            _ if to.frames == 0 => now.classes,
            _ => to.classes,
        },
    }
}

/// Pages that came back, by distance in pages.
struct Returns<'a> {
    back: Tally<'a>,
    resident: f64,
}

impl<'a> Returns<'a> {
    fn new(back: Tally<'a>, resident: f64) -> Returns<'a> {
        Returns { back, resident }
    }

    fn all(&self) -> f64 {
        (0..2).map(|k| self.back.class(k).sum::<f64>()).sum()
    }

    /// Pages of class `k` that would have come back with memory for `uncompressed` pages where now
    /// there are `resident`: those within `reach`, and those beyond it.
    fn beyond(&self, k: usize, resident: f64, uncompressed: f64, reach: f64) -> (f64, f64) {
        let (mut near, mut far, mut soon) = (0.0, 0.0, 0.0);
        for (bucket, n) in self.back.class(k).enumerate() {
            let x = advisor::begins(bucket);
            let depth = resident + x * self.resident;
            if x < SOON {
                soon += n;
            }
            if depth < uncompressed {
                continue;
            }
            match depth < reach {
                true => near += n,
                false => far += n,
            }
        }
        // Pages that have not left now, and would.
        let unseen = (resident - uncompressed).max(0.0) / (SOON * self.resident) * soon * UNSEEN;
        (near + unseen, far)
    }
}

/// Pages that came `back` and would have left also with all of the `charged` frames uncompressed,
/// of which `zswap` are compressed memory: see [`super::trial`].
pub fn missed(back: Tally<'_>, charged: u64, zswap: u64) -> f64 {
    let resident = ((charged - zswap.min(charged)) * UNIT_PAGES) as f64;
    let beyond = (charged * UNIT_PAGES) as f64 / resident.max(1.0) - 1.0;
    let far = |k| {
        let by_distance = back.class(k).enumerate();
        by_distance.filter(|&(bucket, _)| advisor::begins(bucket) >= beyond)
    };
    (0..2).flat_map(far).map(|(_, n)| n).sum()
}

/// What came back before, and since `last`, of `now`: what is older counts less.
pub fn follow(lately: &mut [u64; WORDS], last: &mut [u64; WORDS], now: &[u64; WORDS]) {
    for ((sum, last), now) in lately.iter_mut().zip(last).zip(now) {
        *sum = *sum / 4 * 3 + now.wrapping_sub(*last);
        *last = *now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advisor::{paged_back, whole_back};

    fn class(device: (f64, f64), zswap: (f64, f64)) -> Class {
        let cost = |(r#in, out)| Cost { r#in, out };
        Class {
            device: cost(device),
            zswap: cost(zswap),
        }
    }

    /// A disk of 80 us a page and 1 GB/s, and LZ4.
    fn known(back: &[u64; WORDS]) -> Known<'_> {
        Known {
            back: Tally::new(back),
            charged: 1000,
            zswap: 0,
            most: 500,
            ratio: 3.0,
            kept: 1.0,
            classes: [
                class((85_000.0, 15_000.0), (8_000.0, 5_000.0)),
                class((4_000.0, 2_000.0), (2_000.0, 4_000.0)),
            ],
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
            kept: 0.0,
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
        known.classes[1].device = Cost {
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
        let class = known(&[0; WORDS]).classes[0];
        let mut sum = 0.0;
        for (uses, data) in [(hot, 600.0), (1.0 - hot, 2400.0)] {
            let beyond = |depth: u64| (1.0 - depth as f64 / data).max(0.0);
            let (away, far) = (beyond(uncompressed), beyond(reach));
            let zswap = class.zswap.r#in + class.zswap.out;
            let device = class.device.r#in + class.device.out;
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
                now = step(&known, now);
            }
            let best = (0..=90)
                .map(|f| costs(hot, f * 10))
                .fold(f64::MAX, f64::min);
            let got = costs(hot, now.frames);
            assert!(got < best * 1.15, "{hot}: {now:?}: {got} and {best}");
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
    }

    #[test]
    fn little_is_no_reason() {
        let mut back = [0; WORDS];
        back[paged_back(RESIDENT / 2, RESIDENT)] = 100;
        let now = Choice {
            frames: 100,
            classes: [true, false],
        };
        assert_eq!(choose(&known(&back), now), now);
        let none = Known {
            most: 0,
            ..known(&back)
        };
        assert_eq!(choose(&none, now), Choice::default());
    }
}
