//! The budget, which may change while the pool is in use.
//!
//! A smaller budget holds for charges at once: no frame is charged beyond it. What is charged
//! beyond it already is the *excess*. The kswapd of each process gives back its part of the excess:
//! free and clean frames at once, others as they are written out. A larger budget holds at once. It
//! never exceeds the *ceiling*, by which each process sizes its tables when it joins.

use super::layout::Record;
use super::{MIN_MEMORY, Pool};
use hugeswap_policy::UNIT_BYTES;
use hugeswap_sys::futex;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// How the budget has moved, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moves {
    /// How often it changed.
    pub changes: u64,
    /// The smallest so far.
    pub lowest_bytes: u64,
    /// The largest so far.
    pub highest_bytes: u64,
}

/// A limit that the budget follows, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Followed {
    /// The limit.
    pub limit_bytes: u64,
    /// What is in use of it.
    pub used_bytes: u64,
    /// The largest use so far.
    pub peak_bytes: u64,
}

impl Pool {
    /// The largest budget that there may be, in frames.
    pub fn ceiling_frames(&self) -> u64 {
        self.header().budget.ceiling.load(Relaxed)
    }

    /// The first budget of a new pool.
    pub(super) fn begin_budget(&self, frames: u64) {
        let h = self.header();
        h.frames.store(frames, Relaxed);
        let b = &h.budget;
        for cell in [&b.ceiling, &b.lowest, &b.highest] {
            cell.store(frames, Relaxed);
        }
    }

    /// The budget may become as large as `bytes`. To be called before a process joins: those that
    /// have joined stay sized for the ceiling of that time.
    pub fn raise_ceiling(&self, bytes: u64) {
        let ceiling = &self.header().budget.ceiling;
        ceiling.fetch_max(bytes / UNIT_BYTES, Relaxed);
    }

    /// Changes the budget, as far as the smallest one and the ceiling allow, and returns it in
    /// bytes. It does not wait for memory beyond it to be given back.
    pub fn set_budget(&self, bytes: u64) -> u64 {
        let (least, most) = (MIN_MEMORY / UNIT_BYTES, self.ceiling_frames());
        let frames = (bytes / UNIT_BYTES).clamp(least.min(most), most);
        let h = self.header();
        let was = h.frames.swap(frames, Relaxed);
        if frames != was {
            h.budget.changes.fetch_add(1, Relaxed);
            h.budget.lowest.fetch_min(frames, Relaxed);
            h.budget.highest.fetch_max(frames, Relaxed);
        }
        if frames > was {
            self.note_release();
        } else if frames < was {
            self.live().for_each(|(_, r)| wake(r));
        }
        frames * UNIT_BYTES
    }

    /// Asks processes to take out what they have used least lately: of process `pid`, or of each its
    /// share of `bytes`. How many bytes were asked for: no more than what can leave. It does not wait
    /// for that. What is in use comes back.
    pub fn ask_to_page_out(&self, pid: Option<i32>, bytes: u64) -> u64 {
        let asked = |r: &&Record| {
            let is_it = pid.is_none_or(|pid| pid == r.pid.load(Relaxed));
            is_it && r.responsive.load(Relaxed) == 1
        };
        let of = || self.live().map(|(_, r)| r).filter(asked);
        let has = |r: &Record| {
            let own = r.charged.load(Relaxed);
            own.saturating_sub(r.foreign.load(Relaxed))
        };
        let all: u64 = of().map(has).sum();
        let wanted = bytes.div_ceil(UNIT_BYTES).min(all);
        let (mut passed, mut given) = (0u64, 0);
        for r in of() {
            // (So that the shares add up.)
            passed = (passed + has(r)).min(all);
            let share = (wanted * passed / all.max(1)).saturating_sub(given);
            if share > 0 {
                given += share;
                r.give_back.store(share, Relaxed);
                wake(r);
            }
        }
        given * UNIT_BYTES
    }

    /// What processes were asked for, and have not given yet, bytes.
    pub fn asked_to_page_out(&self) -> u64 {
        let asked = self.live().map(|(_, r)| r.give_back.load(Relaxed));
        asked
            .fold(0, u64::saturating_add)
            .saturating_mul(UNIT_BYTES)
    }

    /// How the budget has moved.
    pub fn budget_moves(&self) -> Moves {
        let b = &self.header().budget;
        Moves {
            changes: b.changes.load(Relaxed),
            lowest_bytes: b.lowest.load(Relaxed) * UNIT_BYTES,
            highest_bytes: b.highest.load(Relaxed) * UNIT_BYTES,
        }
    }

    /// Is more charged than the budget, which has become smaller?
    pub(crate) fn is_beyond_budget(&self) -> bool {
        self.header().budget.changes.load(Relaxed) > 0 && self.used_frames() > self.frames()
    }

    /// Frames charged beyond the budget that record `me` has to give back: its part of what all
    /// have charged that reclaim can take. 0 in a pool whose budget never changed, where only a fork
    /// goes beyond it for a moment.
    pub(crate) fn excess_of(&self, me: usize) -> u64 {
        if self.header().budget.changes.load(Relaxed) == 0 {
            return 0;
        }
        let reclaimable = |r: &Record| {
            let charged = r.charged.load(Relaxed);
            charged.saturating_sub(r.foreign.load(Relaxed))
        };
        let (mut used, mut all) = (self.shared_frames(), self.shared_frames());
        for (_, r) in self.live() {
            used += r.charged.load(Relaxed);
            all += reclaimable(r);
        }
        part(
            used.saturating_sub(self.frames()),
            reclaimable(&self.records()[me]),
            all,
        )
    }

    /// The budget follows a limit of `limit` bytes, of which `used` are in use.
    pub fn note_limit(&self, limit: u64, used: u64) {
        let b = &self.header().budget;
        b.limit.store(limit, Relaxed);
        b.used.store(used, Relaxed);
        b.peak.fetch_max(used, Relaxed);
    }

    /// The limit that the budget follows.
    pub fn followed_limit(&self) -> Option<Followed> {
        let b = &self.header().budget;
        let limit_bytes = b.limit.load(Relaxed);
        (limit_bytes > 0).then(|| Followed {
            limit_bytes,
            used_bytes: b.used.load(Relaxed),
            peak_bytes: b.peak.load(Relaxed),
        })
    }
}

/// The part of `over` that falls to a process with `own` of `all` frames, rounded up.
fn part(over: u64, own: u64, all: u64) -> u64 {
    if over == 0 || own == 0 {
        return 0;
    }
    over.saturating_mul(own).div_ceil(all.max(own)).min(own)
}

fn wake(r: &Record) {
    r.kick.fetch_add(1, Release);
    futex::wake(&r.kick, 1, true);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::small_pool;

    #[test]
    fn parts_add_up_to_the_whole() {
        assert_eq!(part(0, 10, 20), 0);
        assert_eq!(part(10, 0, 20), 0);
        assert_eq!(part(10, 5, 15) + part(10, 10, 15), 4 + 7);
        assert_eq!(part(100, 5, 15), 5);
        assert_eq!(part(3, 7, 0), 3);
        assert_eq!(part(u64::MAX, u64::MAX, 1), 1);
    }

    #[test]
    fn a_budget_moves_between_the_smallest_and_the_ceiling() {
        let pool = small_pool();
        assert_eq!(pool.set_budget(1 << 40), 64 << 20);
        assert_eq!(pool.budget_moves().changes, 0);
        pool.raise_ceiling(96 << 20);
        assert_eq!(pool.set_budget((80 << 20) + 1), 80 << 20);
        assert_eq!(pool.set_budget(0), MIN_MEMORY);
        assert_eq!(pool.set_budget(1 << 40), 96 << 20);
        let moves = Moves {
            changes: 3,
            lowest_bytes: MIN_MEMORY,
            highest_bytes: 96 << 20,
        };
        assert_eq!(pool.budget_moves(), moves);
        assert_eq!(pool.followed_limit(), None);
        pool.note_limit(1 << 30, 5);
        pool.note_limit(1 << 30, 3);
        let followed = Followed {
            limit_bytes: 1 << 30,
            used_bytes: 3,
            peak_bytes: 5,
        };
        assert_eq!(pool.followed_limit(), Some(followed));
    }

    #[test]
    fn a_process_owes_what_it_has_beyond_a_smaller_budget() {
        let pool = small_pool();
        let me = pool.join().unwrap();
        assert!(pool.charge(me, 30));
        assert_eq!(pool.excess_of(me), 0);
        pool.set_budget(40 << 20);
        assert!(!pool.charge(me, 1));
        assert_eq!(pool.excess_of(me), 10);
        pool.records()[me].foreign.store(25, Relaxed);
        assert_eq!(pool.excess_of(me), 5);
        pool.records()[me].foreign.store(0, Relaxed);
        pool.uncharge(me, 10);
        assert_eq!(pool.excess_of(me), 0);
        pool.uncharge(me, 20);
    }
}
