//! Named groups of regions: what each may count on in memory and in swap, and what it has.
//!
//! The lists keep to `min` and `high` (`hugeswap_policy::workingset::lruvec`). The limit on swap is
//! kept here: what is dirty and has no place in swap yet is not written while the group has all
//! that it may have. It stays in memory then, so others are reclaimed in its stead.
//!
//! Concurrency: groups are made and set under a lock that the fault path never takes. kswapd reads
//! the limits as atomics.

use crate::lock::Lock;
use crate::memory::lists::Lists;
use hugeswap_policy::workingset::lruvec::{Events, GROUPS};
use hugeswap_policy::workingset::vmscan::PageKind;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Why a group could not be made or set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum GroupError {
    #[error("a pool has at most {} named groups: use one of those it has", GROUPS - 1)]
    TooMany,
    #[error("a group needs a name")]
    NoName,
    #[error(
        "the groups' min add up to {asked} bytes, and at most {most} of the budget can be promised: lower one of them"
    )]
    Promised { asked: u64, most: u64 },
    #[error(
        "min ({min} bytes) is above high ({high} bytes): a group cannot be sure of what it is to give up first"
    )]
    Contradiction { min: u64, high: u64 },
}

/// What a group may count on, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupLimits {
    /// Not reclaimed for others while it has no more than this.
    pub min: u64,
    /// Reclaimed first while it has more than this.
    pub high: u64,
    /// Most swap it may take.
    pub swap_max: u64,
}

impl GroupLimits {
    /// Nothing promised, nothing limited.
    pub const NONE: GroupLimits = GroupLimits {
        min: 0,
        high: u64::MAX,
        swap_max: u64::MAX,
    };
}

/// What a group has, in pages, and what was counted for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupUse {
    /// In memory, by kind (anonymous, of files).
    pub resident: [u64; 2],
    /// The active ones of those.
    pub active: [u64; 2],
    /// In swap: a cluster of a unit's own counts 512, single slots one each.
    pub swap: u64,
    /// By kind; see [`Event`](hugeswap_policy::workingset::lruvec::Event).
    pub events: [Events; 2],
}

/// The groups of an engine, by number; group 0 has what is in no other.
pub(crate) struct Groups {
    /// Names and limits, of group 1 on.
    pub(super) named: Lock<Vec<(String, GroupLimits)>>,
    /// Most pages of swap.
    pub(super) swap_max: [AtomicU64; GROUPS],
    /// No fewer than each group has in swap or is about to have.
    pub(super) swap_at_most: Lock<[u64; GROUPS]>,
    /// Refaults, activations and restores of base pages, by kind.
    pub(super) pages: [[[AtomicU64; 3]; 2]; GROUPS],
    /// Base pages that came back in time and that the lists were not told of: of units that had been
    /// deactivated, and others.
    pub(super) claims: [[[AtomicU64; 2]; 2]; GROUPS],
}

impl Default for Groups {
    fn default() -> Self {
        Groups {
            named: Lock::new(Vec::new()),
            swap_max: [const { AtomicU64::new(u64::MAX) }; GROUPS],
            swap_at_most: Lock::new([0; GROUPS]),
            pages: [const { [const { [const { AtomicU64::new(0) }; 3] }; 2] }; GROUPS],
            claims: [const { [const { [const { AtomicU64::new(0) }; 2] }; 2] }; GROUPS],
        }
    }
}

impl Groups {
    /// Base pages came back: refaults, activated, restored.
    pub fn count_pages(&self, group: usize, kind: PageKind, counts: [u64; 3]) {
        for (to, n) in self.pages[group][kind as usize].iter().zip(counts) {
            to.fetch_add(n, Relaxed);
        }
    }

    /// Some of them came back in time; `deactivated`: of a unit that had made room for others.
    pub fn claim(&self, group: usize, kind: PageKind, deactivated: bool, pages: u64) {
        let claims = &self.claims[group][kind as usize];
        claims[usize::from(deactivated)].fetch_add(pages, Relaxed);
    }

    /// Tells the lists what base pages claimed since this was last done.
    pub fn settle_claims(&self, lru: &mut Lists) {
        for (group, claims) in self.claims.iter().enumerate() {
            for (kind, claimed) in PageKind::ALL.into_iter().zip(claims) {
                let [others, deactivated] = claimed;
                if others.load(Relaxed) + deactivated.load(Relaxed) > 0 {
                    let take = |n: &AtomicU64| n.swap(0, Relaxed);
                    lru.claimed(group, kind, take(others), take(deactivated));
                }
            }
        }
    }
}
