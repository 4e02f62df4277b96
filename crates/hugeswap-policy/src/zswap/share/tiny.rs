//! Compressed memory where pages become next to nothing ([`crate::zswap::codec::Seen::is_tiny`]):
//! there is nothing to divide, and nothing to try.

use super::{Choice, Cost, Known};
use crate::zswap::codec::Codec;

/// It may hold so many times what is in memory,
const REACH: u64 = 8;
/// in this part of memory at most,
const PART: u64 = 4;
/// where a page costs half as much as on the device, to begin with.
const TWICE: f64 = 2.0;

/// What is to be where the blocks of `codec` are tiny. `is_so`: that is chosen already. `None`: the
/// device is faster than the codec.
pub fn of_tiny(known: &Known<'_>, codec: Codec, is_so: bool) -> Option<Choice> {
    let by = known.codecs[codec as usize]?;
    let ns = |cost: Cost| cost.r#in + cost.out;
    let worth = if is_so { 1.0 } else { TWICE };
    let classes = [0, 1].map(|k| ns(by.classes[k]) * worth < ns(known.device[k]));
    let frames = (known.charged * REACH).div_ceil(by.ratio.max(1.0) as u64);
    let choice = Choice {
        frames: frames.min(known.charged / PART).min(known.most),
        classes,
        codec,
    };
    (classes[0] && choice.frames > 0).then_some(choice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advisor::WORDS;
    use crate::zswap::share::Compressed;
    use crate::zswap::share::tests::{LZ4, costs_of, known};

    #[test]
    fn a_device_that_is_slower_is_all_that_is_needed() {
        // (Nothing came back yet.)
        let nothing = [0; WORDS];
        let with = |ratio| Known {
            codecs: [Some(Compressed { ratio, ..LZ4 }), None, None],
            ..known(&nothing)
        };
        let known = with(50.0);
        let choice = of_tiny(&known, Codec::Lz4, false).unwrap();
        assert_eq!((choice.frames, choice.classes), (160, [true, false]));
        // A device that takes less than twice as long is no reason to begin, nor to end.
        let near = Known {
            device: costs_of([(18_000.0, 2_000.0), (500.0, 500.0)]),
            ..known
        };
        assert_eq!(of_tiny(&near, Codec::Lz4, false), None);
        assert!(of_tiny(&near, Codec::Lz4, true).is_some());
        let fast = Known {
            device: costs_of([(6_000.0, 2_000.0), (500.0, 500.0)]),
            ..known
        };
        assert_eq!(of_tiny(&fast, Codec::Lz4, true), None);
        let none = Known { most: 0, ..known };
        assert_eq!(of_tiny(&none, Codec::Lz4, false), None);
        assert_eq!(of_tiny(&known, Codec::Zstd, false), None);
        // A quarter of memory, where blocks are longer.
        let longer = with(8.0);
        assert_eq!(of_tiny(&longer, Codec::Lz4, false).unwrap().frames, 250);
    }
}
