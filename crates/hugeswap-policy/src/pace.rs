//! How long threads pause that take memory faster than it is made available: as the kernel delays a
//! task above `memory.high`, and one that dirties files faster than they are written.
//!
//! If every thread takes what there is until there is nothing, the next one stalls, whatever
//! depends on it. So below `low`, each frame's worth that a fault takes is followed by a pause
//! before the thread's next fault. The pause is longer the less is left: at half of `low` as long
//! as reclaim takes for a frame, near nothing many times that. Threads then take no more than
//! reclaim makes available, while something is left for the next request.
//!
//! A pause has a limit. If reclaim makes nothing available for long, everything is taken in the
//! end, and a thread stalls.

use crate::UNIT_PAGES;
use crate::watermark::Watermarks;

/// Nanoseconds that a frame is taken to cost before the first measurement.
const GUESS_NS: u64 = 5_000_000;
/// Bounds of what a measurement is believed.
const LEAST_NS: u64 = 1_000;
const MOST_NS: u64 = 1_000_000_000;
/// Nanoseconds of a measurement.
const WINDOW_NS: u64 = 20_000_000;

/// The pause of a thread that took a frame's worth, or a part of one, while `available` pages were
/// left, and `others` pause as well. `frame_ns` is what reclaim takes for a frame.
pub fn pause_ns(
    available: u64,
    marks: Watermarks,
    frame_ns: u64,
    others: u64,
    limit_ns: u64,
) -> u64 {
    let below = u128::from(marks.low.saturating_sub(available));
    let low = u128::from(marks.low.max(1));
    let all = u128::from(others.saturating_add(1));
    // With nothing available, only the limit bounds the pause.
    let pause = (u128::from(frame_ns) * all * 2 * below * below)
        .checked_div(low * u128::from(available))
        .unwrap_or(u128::from(limit_ns));
    pause.min(u128::from(limit_ns)) as u64
}

/// Measures the time that reclaim takes for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meter {
    /// Begin of the window, and the pages made available before it.
    window: Option<(u64, u64)>,
    frame_ns: u64,
}

impl Meter {
    /// No measurement yet.
    pub const fn new() -> Meter {
        Meter {
            window: None,
            frame_ns: GUESS_NS,
        }
    }

    /// Nanoseconds that reclaim takes for a frame.
    pub const fn frame_ns(&self) -> u64 {
        self.frame_ns
    }

    /// Notes that reclaim is working (`short`) or idle, and made `made` pages available so far.
    pub fn on_look(&mut self, now: u64, made: u64, short: bool) {
        let Some((start, before)) = self.window.filter(|_| short) else {
            self.window = short.then_some((now, made));
            return;
        };
        let (passed, pages) = (now.saturating_sub(start), made.saturating_sub(before));
        // A window without any page gives a lower bound.
        if passed < WINDOW_NS {
            return;
        }
        let frame = (u128::from(passed) * u128::from(UNIT_PAGES) / u128::from(pages.max(1)))
            .clamp(u128::from(LEAST_NS), u128::from(MOST_NS)) as u64;
        let frame = match pages {
            // At most twice as long each time: a device may pause for a moment.
            0 => frame.min(self.frame_ns * 2),
            _ => frame,
        };
        self.frame_ns = ((self.frame_ns + frame) / 2).clamp(LEAST_NS, MOST_NS);
        self.window = Some((now, made));
    }
}

impl Default for Meter {
    fn default() -> Meter {
        Meter::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn longer_the_less_is_left() {
        let marks = Watermarks::for_budget(256);
        assert_eq!(marks.low, 16 * UNIT_PAGES);
        let of = |units: u64| pause_ns(units * UNIT_PAGES, marks, 4 * MS, 0, 200 * MS);
        assert_eq!([16, 17, 100].map(of), [0; 3]);
        let expect = [MS * 2 / 3, 4 * MS, 18 * MS, 112_500_000, 200 * MS];
        assert_eq!([12, 8, 4, 1, 0].map(of), expect);
        // Other threads take, too.
        let half = 8 * UNIT_PAGES;
        assert_eq!(pause_ns(half, marks, 4 * MS, 3, 200 * MS), 16 * MS);
        assert_eq!(pause_ns(0, marks, 4 * MS, 30, 200 * MS), 200 * MS);
        assert_eq!(pause_ns(0, marks, 4 * MS, 0, 0), 0);
    }

    #[test]
    fn what_reclaim_takes() {
        let mut m = Meter::new();
        m.on_look(0, 0, true);
        // Two frames in 20 ms, for a while.
        for i in 1..20u64 {
            m.on_look(i * 20 * MS, i * 2 * UNIT_PAGES, true);
        }
        assert!(m.frame_ns().abs_diff(10 * MS) < MS / 10, "{m:?}");
        // The time that it was idle is not counted.
        let before = m.frame_ns();
        m.on_look(500 * MS, 38 * UNIT_PAGES, false);
        m.on_look(9000 * MS, 38 * UNIT_PAGES, true);
        assert_eq!(m.frame_ns(), before);
        // The device hangs.
        for i in 1..20u64 {
            m.on_look((9000 + i * 20) * MS, 38 * UNIT_PAGES, true);
        }
        assert!(m.frame_ns() > 500 * MS, "{m:?}");
    }

    proptest! {
        /// Programs that take as fast as they can, with pauses, never find nothing, however fast
        /// the device, as long as it does not change by more than the limit allows.
        #[test]
        fn who_pauses_does_not_find_nothing(
            frames in 256u64..2000,
            threads in 1u64..9,
            device_ns in 100_000u64..20_000_000,
        ) {
            let marks = Watermarks::for_budget(frames);
            let mut available = marks.high;
            let mut next: Vec<u64> = vec![0; threads as usize];
            let (mut now, mut made_at) = (0u64, device_ns);
            for _ in 0..20_000 {
                let (i, at) = next.iter().copied().enumerate().min_by_key(|&(_, t)| t).unwrap();
                now = now.max(at);
                while made_at <= now {
                    available = (available + UNIT_PAGES).min(marks.high);
                    made_at += device_ns;
                }
                prop_assert!(available > 0, "at {now}");
                available -= UNIT_PAGES;
                let others = next.iter().filter(|&&t| t > now).count() as u64;
                // The measurement may be off by a half.
                let pause = pause_ns(available, marks, device_ns / 2, others, 200 * MS);
                next[i] = now + pause.max(1000);
            }
        }

        #[test]
        fn within_bounds(
            looks in proptest::collection::vec((0u64..1 << 40, 0u64..1 << 40, any::<bool>()), 0..50),
            available: u64, budget in 1u64..5000, others: u64, limit: u64,
        ) {
            let mut m = Meter::new();
            for (now, made, short) in looks {
                m.on_look(now, made, short);
                prop_assert!((LEAST_NS..=MOST_NS).contains(&m.frame_ns()));
            }
            let marks = Watermarks::for_budget(budget);
            prop_assert!(pause_ns(available, marks, m.frame_ns(), others, limit) <= limit);
        }
    }
}
