//! Named groups of regions: what each may count on in memory and in swap, and what it has.
//!
//! The lists keep to `min` and `high` (`hugeswap_policy::workingset::lruvec`); the limit on swap is kept here: what is dirty and has no place
//! in swap yet is not written while the group has all it may have. It stays in memory then, so others are reclaimed in its stead.
//!
//! Concurrency: groups are made and set under a lock that the fault path never takes; limits are read as atomics by kswapd.

use crate::lock::Lock;
use crate::memory::Memory;
use crate::memory::lists::Lists;
use hugeswap_policy::unit::{Kind, LOCKED, Place, WRITEBACK, Word};
use hugeswap_policy::workingset::lruvec::{Event, Events, GROUPS};
use hugeswap_policy::workingset::vmscan::{Limits, PageKind};
use hugeswap_policy::{PAGE_BYTES, UNIT_BYTES, UNIT_PAGES};
use hugeswap_sys::signal::Blocked;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Frames that are nobody's by promise: faults, readahead and write-behind need some.
const UNPROMISED: u64 = 8;

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
    /// Of those, active.
    pub active: [u64; 2],
    /// In swap: a cluster of a unit's own counts 512, single slots one each.
    pub swap: u64,
    /// By kind; see [`Event`].
    pub events: [Events; 2],
}

/// See the file's head.
pub(crate) struct Groups {
    /// Names and limits, of group 1 on.
    named: Lock<Vec<(String, GroupLimits)>>,
    /// Most pages of swap.
    swap_max: [AtomicU64; GROUPS],
    /// No fewer than each group has in swap or is about to have.
    swap_at_most: Lock<[u64; GROUPS]>,
    /// Refaults, activations and restores of base pages, by kind.
    pages: [[[AtomicU64; 3]; 2]; GROUPS],
    /// Of the activated, those that the lists were not told of.
    claims: [[AtomicU64; 2]; GROUPS],
}

impl Default for Groups {
    fn default() -> Self {
        Groups {
            named: Lock::new(Vec::new()),
            swap_max: [const { AtomicU64::new(u64::MAX) }; GROUPS],
            swap_at_most: Lock::new([0; GROUPS]),
            pages: [const { [const { [const { AtomicU64::new(0) }; 3] }; 2] }; GROUPS],
            claims: [const { [const { AtomicU64::new(0) }; 2] }; GROUPS],
        }
    }
}

impl Groups {
    /// Base pages came back: refaults, activated, restored.
    pub fn count_pages(&self, group: usize, kind: PageKind, counts: [u64; 3]) {
        for (to, n) in self.pages[group][kind as usize].iter().zip(counts) {
            to.fetch_add(n, Relaxed);
        }
        self.claims[group][kind as usize].fetch_add(counts[1], Relaxed);
    }

    /// Tells the lists what base pages claimed since this was last done.
    pub fn settle_claims(&self, lru: &mut Lists) {
        for (group, claims) in self.claims.iter().enumerate() {
            for (kind, claimed) in PageKind::ALL.into_iter().zip(claims) {
                if claimed.load(Relaxed) > 0 {
                    lru.claimed(group, kind, claimed.swap(0, Relaxed));
                }
            }
        }
    }
}

impl Memory {
    /// The group of this name, made if there is none. Its number.
    pub fn group(&self, name: &str) -> Result<usize, GroupError> {
        if name.is_empty() {
            return Err(GroupError::NoName);
        }
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        let mut named = self.groups.named.lock();
        if let Some(i) = named.iter().position(|(n, _)| n == name) {
            return Ok(i + 1);
        }
        if named.len() + 1 == GROUPS {
            return Err(GroupError::TooMany);
        }
        named.push((name.to_owned(), GroupLimits::NONE));
        Ok(named.len())
    }

    /// What a group may count on.
    pub fn group_limits(&self, group: usize) -> GroupLimits {
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        let named = self.groups.named.lock();
        let limits = group.checked_sub(1).and_then(|i| named.get(i));
        limits.map_or(GroupLimits::NONE, |(_, l)| *l)
    }

    /// Changes what a group may count on; nothing has changed if that is refused.
    pub fn set_group_limits(&self, group: usize, limits: GroupLimits) -> Result<(), GroupError> {
        let GroupLimits { min, high, .. } = limits;
        if min > high {
            return Err(GroupError::Contradiction { min, high });
        }
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        let mut named = self.groups.named.lock();
        let others = named.iter().enumerate().filter(|(i, _)| i + 1 != group);
        let asked = others.fold(min, |sum, (_, (_, l))| sum.saturating_add(l.min));
        let most = self.pool.frames().saturating_sub(UNPROMISED) * UNIT_BYTES;
        if asked > most {
            return Err(GroupError::Promised { asked, most });
        }
        let Some((_, to)) = group.checked_sub(1).and_then(|i| named.get_mut(i)) else {
            return Ok(());
        };
        *to = limits;
        let pages = |bytes: u64| match bytes {
            u64::MAX => u64::MAX,
            n => n / PAGE_BYTES,
        };
        self.groups.swap_max[group].store(pages(limits.swap_max), Relaxed);
        let limits = Limits {
            min: pages(min),
            high: pages(high),
        };
        self.lru.lock().set_limits(group, limits);
        Ok(())
    }

    /// The units of `[addr, addr+len)` belong to a group from now on.
    pub fn assign_group(&self, addr: usize, len: usize, group: usize) {
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        let mut lru = self.lru.lock();
        for unit in self.table.units_of(addr, len) {
            let (_, kind) = self.weights.place(unit);
            lru.assign(unit, group, kind);
        }
        drop(lru);
        // What each has in swap is to be looked at anew.
        *self.groups.swap_at_most.lock() = [u64::MAX; GROUPS];
    }

    /// What a group has.
    pub fn group_use(&self, group: usize) -> GroupUse {
        let group = group.min(GROUPS - 1);
        let mut events = {
            let _blocked = Blocked::all();
            let _inside = self.gate.enter();
            let lru = self.lru.lock();
            PageKind::ALL.map(|k| lru.events(group, k))
        };
        for (events, pages) in events.iter_mut().zip(&self.groups.pages[group]) {
            for (event, n) in [Event::Refault, Event::Activate, Event::Restore]
                .into_iter()
                .zip(pages)
            {
                events[event as usize] += n.load(Relaxed);
            }
        }
        GroupUse {
            resident: PageKind::ALL.map(|k| self.weights.used(group, k)),
            active: PageKind::ALL.map(|k| self.weights.active(group, k)),
            swap: self.swap_of_group(group),
            events,
        }
    }

    /// Bytes of a kind that are in memory, and active or not.
    pub fn listed_bytes(&self, kind: PageKind, active: bool) -> u64 {
        self.weights.listed(kind, active) * PAGE_BYTES
    }

    /// Pages of swap that a group has, counted one by one.
    fn swap_of_group(&self, group: usize) -> u64 {
        let all = 0..self.high_unit.load(Relaxed);
        all.filter(|&u| self.weights.place(u).0 == group)
            .map(|u| self.pages_in_swap(u, self.table.load(u)))
            .sum()
    }

    fn pages_in_swap(&self, unit: u32, w: Word) -> u64 {
        match w.place() {
            Place::Nothing | Place::File(_) => 0,
            Place::Singles => self.store.scatter.of(unit).map_or(0, |p| p.count()),
            Place::Cluster(_) => UNIT_PAGES,
        }
    }

    /// May a locked unit that is about to be written take as much of swap as it needs? If so, it is taken to do that.
    pub(crate) fn swap_is_allowed(&self, unit: u32, w: Word) -> bool {
        let (group, _) = self.weights.place(unit);
        let max = self.groups.swap_max[group].load(Relaxed);
        if max == u64::MAX || w.file().is_some() {
            return true;
        }
        let more = match w.kind() {
            Kind::Base => {
                let record = self.base.records.of(unit);
                UNIT_PAGES.min(record.dirty.count() + record.stored.count())
            }
            _ => UNIT_PAGES,
        };
        let more = more.saturating_sub(self.pages_in_swap(unit, w));
        // One after the other, so that what one is allowed the next knows of.
        let mut at_most = self.groups.swap_at_most.lock();
        let at_most = &mut at_most[group];
        let fits = |have: u64| more == 0 || have.saturating_add(more) <= max;
        if !fits(*at_most) {
            *at_most = self.swap_at_most(group, unit);
        }
        let allowed = fits(*at_most);
        if allowed {
            *at_most += more;
        }
        allowed
    }

    /// No fewer pages than a group has in swap and its units other than `but`, which somebody is at work on, may be about to take.
    fn swap_at_most(&self, group: usize, but: u32) -> u64 {
        let all = 0..self.high_unit.load(Relaxed);
        let ours = all.filter(|&u| self.weights.place(u).0 == group);
        ours.map(|u| {
            // One look: between two the unit may be written, and would seem to have nothing in both.
            let w = self.table.load(u);
            let grows = u != but && w.has(LOCKED | WRITEBACK);
            match w.place() {
                Place::Nothing | Place::Singles if grows => UNIT_PAGES,
                _ => self.pages_in_swap(u, w),
            }
        })
        .sum()
    }
}
