//! How a fault gets a huge page: at once, after waiting, or not, in which case base pages take its
//! place. `thp.defrag` says which of these it may do ([`hugeswap_policy::defrag::gfp`]).
//!
//! Where units cannot be base-mapped by single pages (message mode, userfaultfd refused, the limit
//! on mappings, between the parts of a fork) a huge page is the only way, and every thread waits.
//!
//! The fault path calls this, and its rules hold here (see `fault`). So do the engine's threads.

use crate::memory::Memory;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::defrag::frames::{Frame, take_huge};
use hugeswap_policy::defrag::gfp::{BasePages, Caller, Gfp, Verdict};
use hugeswap_policy::knobs::Knob;

/// What came of a request for a huge page.
pub(crate) enum Huge {
    /// This one.
    Frame(Frame),
    /// Base pages are to take its place.
    BasePages,
    /// It can be waited for ([`Memory::wait_for_huge`]).
    Wait(Wait),
    /// There is neither memory nor swap.
    NoMemory,
}

/// How a huge page is waited for.
#[derive(Clone, Copy)]
pub(crate) struct Wait {
    gfp: Gfp,
    /// None: until there is one, or until patience is at its end.
    rounds: Option<u32>,
    /// Base pages will do, if they come first.
    or_pages: bool,
}

impl Wait {
    /// For a frame, whatever it takes.
    pub const FOR_A_FRAME: Wait = Wait {
        gfp: Gfp::USER,
        rounds: None,
        or_pages: false,
    };
    /// For a frame, for a few rounds of reclaim.
    pub const A_MOMENT: Wait = Wait {
        rounds: Some(3),
        ..Wait::FOR_A_FRAME
    };
}

impl Memory {
    /// What a request for a huge page for `unit` may do.
    pub(crate) fn gfp_of(&self, unit: u32, caller: Caller) -> Gfp {
        match self.backend.can().has_single_pages() {
            true => self
                .usage_of(unit)
                .gfp(self.pool.knob(Knob::ThpDefrag), caller),
            false => Gfp::USER,
        }
    }

    /// The same for what is read ahead.
    pub(crate) fn gfp_ahead(&self) -> Gfp {
        match self.backend.can().has_single_pages() {
            true => Gfp::READAHEAD,
            false => Gfp::USER,
        }
    }

    /// Can base pages take the place of a huge page, and are any free?
    fn base_pages(&self, available: u64) -> BasePages {
        if !self.backend.can().has_single_pages()
            || self.gate.is_forker()
            || self.mappings_are_short()
        {
            BasePages::Never
        } else if available > 0 || self.base.credits().pages() > 0 {
            BasePages::Free
        } else {
            BasePages::NoneFree
        }
    }

    /// How many huge pages such a request could have now.
    pub(crate) fn huge_room(&self, gfp: Gfp) -> u64 {
        if gfp.has(Gfp::MEMALLOC) {
            return u64::MAX;
        }
        let (available, marks) = self.available();
        gfp.room(available, marks)
    }

    /// Would a fault on `unit` that wants it whole get a huge page, also by waiting for it? Not if
    /// base pages would take its place.
    pub(crate) fn huge_is_to_be_had(&self, unit: u32, caller: Caller) -> bool {
        let gfp = self.gfp_of(unit, caller);
        if gfp.has(Gfp::MEMALLOC) {
            return true;
        }
        let (available, marks) = self.available();
        let verdict = gfp.verdict(available, marks, self.base_pages(available));
        verdict != Verdict::BasePages
    }

    /// A huge page without waiting, if it can be on the node of `unit`'s memory; without one on the
    /// caller's node.
    pub(crate) fn huge_nowait(&self, gfp: Gfp, unit: Option<u32>) -> Option<Frame> {
        if self.huge_room(gfp) == 0 {
            return None;
        }
        let wanted = unit.map(|unit| self.arena.numa.of_unit(unit));
        self.frame_of(gfp, wanted)
    }

    /// A huge page for a fault on `unit`, if one is to be had at once. Not [`Huge::NoMemory`].
    pub(crate) fn huge(&self, unit: u32, caller: Caller) -> Huge {
        let gfp = self.gfp_of(unit, caller);
        let have = self.available();
        let pages = self.base_pages(have.0);
        let credits = || self.base.credits().pages();
        let verdict = match take_huge(gfp, have, pages, credits, |gfp| self.frame_of(gfp, None)) {
            Ok(frame) => return Huge::Frame(frame),
            Err(verdict) => verdict,
        };
        match verdict {
            Verdict::BasePages => {
                self.frame_demand.note();
                if gfp.has(Gfp::KSWAPD_RECLAIM) {
                    self.wake_for_huge();
                }
                Huge::BasePages
            }
            Verdict::Wait(rounds) => Huge::Wait(Wait {
                gfp: if rounds.is_some() { gfp } else { Gfp::USER },
                rounds,
                or_pages: false,
            }),
            Verdict::WaitForAny | Verdict::Take => Huge::Wait(Wait {
                or_pages: true,
                ..Wait::FOR_A_FRAME
            }),
        }
    }

    /// [`Memory::huge`], waiting if that is what it comes to. With the unit's lock held, which is
    /// absent.
    pub(crate) fn huge_or_wait(&self, unit: u32, caller: Caller) -> Huge {
        match self.huge(unit, caller) {
            Huge::Wait(wait) => self.wait_for_huge(wait),
            other => other,
        }
    }

    /// Waits for a huge page. Not [`Huge::Wait`].
    pub(crate) fn wait_for_huge(&self, wait: Wait) -> Huge {
        if self.gate.is_forker() {
            // The engine's threads are at rest.
            self.pool.charge_over(self.pool.me());
            return match self.arena.take_fresh() {
                Some(place) => Huge::Frame(Frame {
                    place,
                    zeroed: true,
                }),
                None => Huge::NoMemory,
            };
        }
        // A thread that waits for anything at all waits as for a base page.
        let compact = |c| self.pool.count(c, u64::from(!wait.or_pages));
        compact(Counter::CompactStall);
        let got = self.wait_for_memory(wait.rounds, || match self.huge_nowait(wait.gfp, None) {
            Some(frame) => Some(Huge::Frame(frame)),
            None if wait.or_pages && self.base.credits().pages() > 0 => Some(Huge::BasePages),
            None => None,
        });
        compact(match got {
            Some(Huge::Frame(_)) => Counter::CompactSuccess,
            _ => Counter::CompactFail,
        });
        match got {
            Some(huge) => huge,
            None if wait.rounds.is_some() => Huge::BasePages,
            None => Huge::NoMemory,
        }
    }

    /// A frame, waiting for kswapd and for other processes if need be (a stall): for what comes
    /// whole or not at all.
    pub(crate) fn get_frame(&self) -> Option<Frame> {
        if let Some(f) = self.get_frame_nowait() {
            return Some(f);
        }
        match self.wait_for_huge(Wait::FOR_A_FRAME) {
            Huge::Frame(f) => Some(f),
            _ => None,
        }
    }
}
