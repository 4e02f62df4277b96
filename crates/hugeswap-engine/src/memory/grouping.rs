//! Groups as the layers above ask for them, and the limit on a group's swap.

use crate::memory::Memory;
use crate::memory::groups::{GroupError, GroupLimits, GroupUse};
use hugeswap_policy::unit::{Kind, LOCKED, Place, WRITEBACK, Word};
use hugeswap_policy::workingset::lruvec::{Event, GROUPS};
use hugeswap_policy::workingset::vmscan::{Limits, PageKind};
use hugeswap_policy::{PAGE_BYTES, UNIT_BYTES, UNIT_PAGES};
use hugeswap_sys::signal::Blocked;
use std::sync::atomic::Ordering::Relaxed;

/// Frames that are promised to no group: faults, readahead and write-behind need some.
const UNPROMISED: u64 = 8;

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

    /// May a locked unit that is about to be written take as much of swap as it needs? If so, it is
    /// taken to do that.
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

    /// No fewer pages than a group has in swap and its units other than `but`, which somebody is at
    /// work on, may be about to take.
    fn swap_at_most(&self, group: usize, but: u32) -> u64 {
        let all = 0..self.high_unit.load(Relaxed);
        let ours = all.filter(|&u| self.weights.place(u).0 == group);
        ours.map(|u| {
            // One look: between two the unit may be written, and would seem to have nothing in
            // both.
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
