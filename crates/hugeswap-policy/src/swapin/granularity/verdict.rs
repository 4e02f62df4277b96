//! Whether a change to whole units was right: judged by what the program does.
//!
//! [`super::Ghost`] finds on paper that whole units would cost less. Once they come, nothing is left
//! to compare on paper: a page that is touched in a whole unit raises no fault, so what single pages
//! would cost is not known. (A program may fill an index that fits at first, which whole units serve
//! best, and that outgrows memory soon, when each of them is read for one page.) What is seen is the
//! part of its time for which the program runs and does not wait for swap. It is measured while pages
//! come, and again once memory was turned over by whole units. The change was wrong if the program
//! runs for clearly less of its time than before, or, later on, for less than half of what it did.
//!
//! After a change that was wrong none is made for so many times as long as it lasted, and each time in a
//! row twice as long, unless the program runs for less of its time by pages than it did by whole units.
//!
//! No clock is read here: the owner looks at one, a few times a second, and serialises calls.

use super::progress::{Seen, part};

/// Time that the program runs or waits in a window, nanoseconds.
const WINDOW: u64 = 1_000_000_000;
/// The same where it runs for less than a quarter of what it did.
const HOPELESS: u64 = 400_000_000;
/// Memory that is turned over more slowly is measured as it is, and anything later is not for want
/// of time to settle.
const SETTLED: u64 = 2_000_000_000;

/// The rest after a change that was wrong, in times of its length, at first and at most.
const REST: u64 = 4;
const LONGEST_REST: u64 = 64;
/// A change that was right for so long was no mistake.
const LASTED: u64 = 10_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Pages come: what the program does then is measured.
    Pages,
    /// Whole units come, and memory still has pages from before.
    Settling,
    /// Whole units come: the first window.
    Measuring,
    /// The change was right so far.
    Staying,
}

/// What was measured, and where the present window began.
#[derive(Debug)]
pub struct Verdict {
    phase: Phase,
    start: Seen,
    /// While pages came: time that the program ran, and that it ran or waited. Older windows count half
    /// at each new one. Nothing measured: 0.
    ran: u64,
    busy: u64,
    /// When the change was made.
    changed: u64,
    /// Part of the time for which it ran when the change was found right, or wrong.
    found: u64,
    /// Until when no change is made, and the times of the next rest.
    until: u64,
    rest: u64,
}

impl Default for Verdict {
    fn default() -> Verdict {
        Verdict {
            phase: Phase::Pages,
            start: Seen::default(),
            ran: 0,
            busy: 0,
            changed: 0,
            found: 0,
            until: 0,
            rest: REST,
        }
    }
}

impl Verdict {
    /// To be called a few times a second. `whole`: the change is in force. Was it wrong?
    ///
    /// Where memory is free, what comes is for other reasons: that is not measured.
    pub fn on_look(&mut self, seen: Seen, whole: bool) -> bool {
        match (self.phase == Phase::Pages, whole) {
            (true, true) => {
                (self.phase, self.start, self.changed) = (Phase::Settling, seen, seen.ns);
            }
            // It was changed back otherwise.
            (false, false) => self.begin(seen),
            _ => {}
        }
        if !seen.full || self.start.ns == 0 {
            self.start = seen;
            return false;
        }
        let ran = seen.ran_ns.saturating_sub(self.start.ran_ns);
        let stalled = seen.stalled_ns.saturating_sub(self.start.stalled_ns);
        let busy = ran.saturating_add(stalled);
        let share = part(ran, busy);
        let is_over = busy >= WINDOW;
        match self.phase {
            Phase::Pages => {
                if is_over {
                    (self.ran, self.busy) = (self.ran / 2 + ran, self.busy / 2 + busy);
                    self.start = seen;
                    if share < self.found {
                        self.until = 0;
                    }
                }
                false
            }
            Phase::Settling => {
                let turned = seen.evicted.wrapping_sub(self.start.evicted);
                let time = seen.ns.saturating_sub(self.start.ns);
                if turned >= seen.resident || time >= SETTLED {
                    (self.phase, self.start) = (Phase::Measuring, seen);
                }
                false
            }
            Phase::Measuring => {
                let before = part(self.ran, self.busy);
                let hopeless = busy >= HOPELESS && share * 4 < before;
                if !is_over && !hopeless {
                    return false;
                }
                (self.phase, self.start, self.found) = (Phase::Staying, seen, share);
                share * 4 < before * 3 && self.is_wrong(seen)
            }
            Phase::Staying => {
                if !is_over {
                    return false;
                }
                self.start = seen;
                share * 2 < self.found && {
                    self.found = share;
                    self.is_wrong(seen)
                }
            }
        }
    }

    /// May a change be made?
    pub fn allows(&self, now: u64) -> bool {
        now >= self.until
    }

    /// The change was wrong.
    fn is_wrong(&mut self, seen: Seen) -> bool {
        let took = seen.ns.saturating_sub(self.changed);
        if took >= LASTED {
            self.rest = REST;
        }
        self.until = seen.ns.saturating_add(took.min(LASTED) * self.rest);
        self.rest = (self.rest * 2).min(LONGEST_REST);
        self.begin(seen);
        true
    }

    /// Pages come again.
    fn begin(&mut self, seen: Seen) {
        (self.phase, self.start) = (Phase::Pages, seen);
        (self.ran, self.busy) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: u64 = 200_000_000;

    /// A program that runs for `ran` percent of the time and waits for the rest, for `looks`. After how
    /// many was the change found wrong?
    fn play(v: &mut Verdict, seen: &mut Seen, ran: u64, whole: bool, looks: u32) -> Option<u32> {
        for i in 1..=looks {
            seen.ns += TICK;
            seen.ran_ns += TICK * ran / 100;
            seen.stalled_ns += TICK * (100 - ran) / 100;
            seen.evicted += 30_000;
            if v.on_look(*seen, whole) {
                return Some(i);
            }
        }
        None
    }

    /// 10 seconds of pages.
    fn by_pages(ran: u64) -> (Verdict, Seen) {
        let mut seen = Seen {
            ns: 1,
            resident: 50_000,
            full: true,
            ..Seen::default()
        };
        let mut v = Verdict::default();
        assert_eq!(play(&mut v, &mut seen, ran, false, 50), None);
        (v, seen)
    }

    #[test]
    fn what_gets_the_program_further_stays() {
        for (before, since) in [(30, 90), (50, 50), (50, 40)] {
            let (mut v, mut seen) = by_pages(before);
            assert_eq!(play(&mut v, &mut seen, since, true, 500), None, "{before}");
            assert!(v.allows(seen.ns));
        }
    }

    #[test]
    fn what_holds_it_up_is_wrong_once_memory_was_turned_over() {
        let (mut v, mut seen) = by_pages(60);
        // Two looks until it was, and five that measure; two if it is hopeless.
        let found = play(&mut v, &mut seen, 40, true, 50);
        assert!(matches!(found, Some(6..=9)), "{found:?}");
        let (mut v, mut seen) = by_pages(60);
        let found = play(&mut v, &mut seen, 10, true, 50);
        assert!(matches!(found, Some(4..=6)), "{found:?}");
    }

    #[test]
    fn what_was_right_is_wrong_once_the_program_gets_half_as_far() {
        let (mut v, mut seen) = by_pages(50);
        assert_eq!(play(&mut v, &mut seen, 90, true, 100), None);
        assert_eq!(play(&mut v, &mut seen, 50, true, 100), None);
        assert!(play(&mut v, &mut seen, 40, true, 20).is_some());
    }

    #[test]
    fn a_change_that_was_wrong_is_barred_for_longer_each_time() {
        let (mut v, mut seen) = by_pages(60);
        let mut rests = Vec::new();
        for _ in 0..3 {
            assert!(play(&mut v, &mut seen, 20, true, 50).is_some());
            let began = seen.ns;
            while !v.allows(seen.ns) {
                play(&mut v, &mut seen, 60, false, 1);
            }
            rests.push((seen.ns - began) / TICK);
        }
        assert!(
            rests[0] >= 16 && rests[1] > rests[0] && rests[2] > rests[1],
            "{rests:?}"
        );
    }

    #[test]
    fn it_is_not_barred_where_pages_are_the_worse_after_all() {
        let (mut v, mut seen) = by_pages(60);
        assert!(play(&mut v, &mut seen, 30, true, 50).is_some());
        play(&mut v, &mut seen, 40, false, 6);
        assert!(!v.allows(seen.ns));
        play(&mut v, &mut seen, 20, false, 6);
        assert!(v.allows(seen.ns));
    }

    #[test]
    fn nothing_is_found_while_memory_is_free() {
        let (mut v, mut seen) = by_pages(60);
        seen.full = false;
        assert_eq!(play(&mut v, &mut seen, 1, true, 100), None);
        seen.full = true;
        assert!(play(&mut v, &mut seen, 1, true, 100).is_some());
    }
}
