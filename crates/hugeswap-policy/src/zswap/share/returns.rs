//! What pages that came back tell: what other divisions of memory would have spared, how many were
//! missed, and how dear the device is.

use super::{Cost, ENOUGH};
use crate::UNIT_PAGES;
use crate::advisor::{self, Tally, WORDS};

/// Pages that come back are taken to cost so many times what the device does, at least and at most.
pub(super) const CHEAPEST: f64 = 1.0 / 8.0;
pub(super) const DEAREST: f64 = 32.0;
/// How much more often pages are taken to be used that never left than those that came back
/// soonest.
const UNSEEN: f64 = 1.5;
/// Pages that came back within this part of memory tell about those that never left.
const SOON: f64 = 0.125;

/// Distances that are shorter than this part of memory do not tell pages apart.
const BLUR: f64 = 1.0 / 16.0;

/// Pages that came back, by distance in pages.
pub(super) struct Returns<'a> {
    back: Tally<'a>,
    resident: f64,
}

impl<'a> Returns<'a> {
    pub fn new(back: Tally<'a>, resident: f64) -> Returns<'a> {
        Returns { back, resident }
    }

    pub fn all(&self) -> f64 {
        (0..2).map(|k| self.back.class(k).sum::<f64>()).sum()
    }

    /// Pages of class `k` that would have come back with memory for `uncompressed` pages where now
    /// there are `resident`: those within `reach`, and those beyond it.
    pub fn beyond(&self, k: usize, resident: f64, uncompressed: f64, reach: f64) -> (f64, f64) {
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
/// of which `zswap` are compressed memory: see [`crate::zswap::trial`].
pub fn missed(back: Tally<'_>, charged: u64, zswap: u64) -> f64 {
    let resident = ((charged - zswap.min(charged)) * UNIT_PAGES) as f64;
    let beyond = (charged * UNIT_PAGES) as f64 / resident.max(1.0) - 1.0;
    // Distances are those of units, and no more exact than that: where little is compressed it is
    // not those few pages that would have stayed.
    let beyond = match beyond < 2.0 * BLUR {
        true => (beyond - BLUR).max(0.0) * 2.0,
        false => beyond,
    };
    let far = |k| {
        let by_distance = back.class(k).enumerate();
        by_distance.filter(move |&(bucket, _)| advisor::begins(bucket) >= beyond)
    };
    (0..2).flat_map(far).map(|(_, n)| n).sum()
}

/// For the pages that came `back` faults took `stalled_ns` in all: how many times what was expected
/// of the device that is, [`CHEAPEST`] to [`DEAREST`]. `None`: too few came back.
///
/// What a device costs ([`DeviceCost`](crate::swapin::granularity::DeviceCost)) is that of most transfers. A device with a limit on
/// transfers or bytes answers most of them at once, and then none until the next part of a second.
/// And where a fault brings pages nearby along, each of them costs a part of a transfer.
pub fn dearer(back: Tally<'_>, device: [Cost; 2], stalled_ns: u64) -> Option<f64> {
    let n = |k: usize| back.class(k).sum::<f64>();
    let expected = n(0) * device[0].r#in + n(1) * device[1].r#in;
    let enough = n(0) + n(1) >= ENOUGH / 4.0;
    enough.then(|| (stalled_ns as f64 / expected).clamp(CHEAPEST, DEAREST))
}

/// What came back before, and since `last`, of `now`: what is older counts less, but where that would
/// leave too little for a choice, as beside a slow device.
pub fn follow(lately: &mut [u64; WORDS], last: &mut [u64; WORDS], now: &[u64; WORDS]) {
    let back = Tally::new(lately);
    let all: f64 = (0..2).flat_map(|k| back.class(k)).sum();
    let fade = all >= 2.0 * ENOUGH;
    for ((sum, last), now) in lately.iter_mut().zip(last).zip(now) {
        let old = if fade { *sum / 4 * 3 } else { *sum };
        *sum = old + now.wrapping_sub(*last);
        *last = *now;
    }
}
