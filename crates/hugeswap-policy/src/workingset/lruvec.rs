//! Active and inactive lists, for each kind of pages and each group of regions.
//!
//! * New units and units that come from swap start inactive. The oldest inactive unit is reclaimed
//!   next.
//! * A unit becomes active if it is touched while it is watched. It also does if it comes back from
//!   swap so soon that a slightly smaller working set would have kept it, unless the units that
//!   make room for such units come back as often ([`crate::workingset::Duel`]).
//! * While the active list is far below its share ([`super::vmscan::inactive_target`]), reclaim makes the
//!   oldest inactive unit active instead of taking it, if it is whole. Nothing is known of any unit
//!   then, and a sweep over more than memory later finds half of memory or more in place, where
//!   lists in order of use would find nothing. This rule is not the kernel's.
//! * When a unit becomes active, what the active list has beyond its share goes back to the
//!   inactive list, oldest first.
//! * Which kind is reclaimed depends on what is in use ([`super::vmscan::Balance`]); which group, on its
//!   limits ([`super::vmscan::Limits`]) and its size.
//!
//! Everything is weighed in pages: a unit of which a few base pages are in memory counts as those
//! ([`Weights`]). Counted in units, the active list would fill with units that take no memory, and
//! a stream beside it would get the rest.
//!
//! Every operation but `isolate` takes amortised constant time, and nothing allocates after
//! construction. The lists have one owner; any thread may change weights at any time.

mod share;
mod weights;

pub use weights::{GROUPS, Weights};

use crate::UNIT_PAGES;
use crate::workingset::lru::{Reclaim, Rings};
use crate::workingset::vmscan::{Balance, Limits, PageKind, Priority};
use crate::workingset::{Duel, Origin, Shadow};
use share::{Claims, FILLED};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicU16;
use weights::{LRUVECS, group_of, kind_of, lruvec};

/// Events that the lists count, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Event {
    /// Pages that came back from swap, or from their file, and had left a shadow.
    Refault,
    /// Refaulted pages that were activated at once.
    Activate,
    /// Refaulted pages that had been part of the working set before.
    Restore,
    /// Pages that became active, for whatever reason.
    PgActivate,
    /// Pages that went back from the active to the inactive list.
    PgDeactivate,
    /// Pages that reclaim looked at.
    Scan,
}

impl Event {
    /// Every event, in index order.
    pub const ALL: [Event; Event::COUNT] = [
        Event::Refault,
        Event::Activate,
        Event::Restore,
        Event::PgActivate,
        Event::PgDeactivate,
        Event::Scan,
    ];
    /// Number of events.
    pub const COUNT: usize = 6;
}

/// Counts, indexed by [`Event`].
pub type Events = [u64; Event::COUNT];

/// Flag of a unit that is part of the working set: it was used while it was active, or on its way
/// there.
const WORKINGSET: u8 = 1 << 2;

fn was(workingset: bool) -> u8 {
    if workingset { WORKINGSET } else { 0 }
}

/// A group of regions.
#[derive(Clone, Debug, Default)]
struct Group {
    limits: Limits,
    /// Pages evicted so far: the eviction clock.
    clock: u64,
    balance: Balance,
    /// Pages that the group is owed when groups take turns.
    owed: i64,
}

/// The active and inactive lists of one process. See the module for the rules.
pub struct Lruvecs<W = Vec<AtomicU16>> {
    rings: Rings,
    /// Shadow of each unit; see [`Shadow`].
    shadows: Vec<u64>,
    /// Flags of each unit in memory: [`WORKINGSET`], and an [`Origin`].
    flags: Vec<u8>,
    weights: Arc<Weights<W>>,
    groups: [Group; GROUPS],
    /// Number of the last group in use.
    groups_used: usize,
    duels: [Duel; LRUVECS],
    /// The same for claims of base pages: what was not deactivated counts as refused.
    page_duels: [Duel; LRUVECS],
    /// The active lists that are being filled with units of which nothing is known.
    filling: [bool; LRUVECS],
    /// Pages taken since a unit of which nothing is known was last let be active.
    left_since_filled: [u64; LRUVECS],
    claims: [Claims; LRUVECS],
    events: [Events; LRUVECS],
    /// Counts by kind, of events that were not yet taken.
    news: [Events; 2],
    detection: bool,
    swappiness: u64,
    priority: Priority,
}

fn ring(lruvec: usize, active: bool) -> usize {
    lruvec * 2 + usize::from(active)
}

impl<W: Deref<Target = [AtomicU16]>> Lruvecs<W> {
    /// Lists for units `0..capacity`, all anonymous and of group 0. `weights` are as many zeros.
    /// Costs 20 bytes of address space a unit besides; only parts in use cost memory.
    pub fn new(capacity: u32, weights: W) -> Lruvecs<W> {
        Lruvecs {
            rings: Rings::new(capacity, LRUVECS * 2),
            shadows: vec![0; capacity as usize],
            flags: vec![0; capacity as usize],
            weights: Arc::new(Weights::new(weights)),
            groups: Default::default(),
            groups_used: 1,
            duels: Default::default(),
            page_duels: Default::default(),
            filling: [true; LRUVECS],
            left_since_filled: [0; LRUVECS],
            claims: Default::default(),
            events: Default::default(),
            news: Default::default(),
            detection: true,
            swappiness: 60,
            priority: Priority::DEFAULT,
        }
    }

    /// The weights, through which any thread tells the lists how much of a unit is in memory.
    pub fn weights(&self) -> Arc<Weights<W>> {
        self.weights.clone()
    }

    /// Sets whether units that come back soon become active (at first: yes).
    pub fn set_detection(&mut self, on: bool) {
        self.detection = on;
    }

    /// Sets how readily anonymous pages are reclaimed beside those of files: 0 to 200, at first 60.
    pub fn set_swappiness(&mut self, swappiness: u64) {
        self.swappiness = swappiness;
    }

    /// Sets the limits of a group. Does nothing for a number from [`GROUPS`] on.
    pub fn set_limits(&mut self, group: usize, limits: Limits) {
        if let Some(g) = self.groups.get_mut(group) {
            g.limits = limits;
            self.groups_used = self.groups_used.max(group + 1);
        }
    }

    /// Moves a unit to another kind or group, whatever list it is on. A unit that is new to either
    /// must be forgotten first.
    pub fn assign(&mut self, unit: u32, group: usize, kind: PageKind) {
        let v = lruvec(group.min(GROUPS - 1), kind);
        self.groups_used = self.groups_used.max(group_of(v) + 1);
        self.weights.put_lruvec(unit, v);
        if let Some(r) = self.rings.ring_of(unit) {
            self.rings.put_newest(unit, ring(v, r % 2 == 1));
        }
    }

    /// Drops what is remembered of a unit whose content is gone.
    pub fn forget(&mut self, unit: u32) {
        self.rings.remove(unit);
        self.weights.put_active(unit, false);
        // Units that were never used are not written, so they take no memory.
        if self.shadows[unit as usize] != 0 {
            self.shadows[unit as usize] = 0;
        }
        if self.flags[unit as usize] != 0 {
            self.flags[unit as usize] = 0;
        }
    }

    /// Adds a whole unit that came into memory. Its weight must be set before.
    pub fn came(&mut self, unit: u32) {
        let Some((v, shadow)) = self.begin_stay(unit) else {
            return;
        };
        let pages = self.weights.of(unit);
        let Some(shadow) = shadow else {
            return self.rings.put_newest(unit, ring(v, false));
        };
        self.count(v, Event::Refault, pages);
        if !self.is_in_time(v, shadow) {
            return self.rings.put_newest(unit, ring(v, false));
        }
        self.duels[v].on_back(shadow.origin, pages);
        if !self.duels[v].grants() {
            self.flags[unit as usize] = Origin::Refused as u8 | was(shadow.workingset);
            return self.rings.put_newest(unit, ring(v, false));
        }
        self.count(v, Event::Activate, pages);
        if shadow.workingset {
            self.count(v, Event::Restore, pages);
        }
        self.groups[group_of(v)]
            .balance
            .on_rotated(kind_of(v), pages);
        self.activate(unit);
    }

    /// Adds a unit of which the first base pages came into memory. If they came back in time
    /// ([`Weights::in_time`]), and that claim is granted ([`Lruvecs::claimed`] has those of the
    /// others), the unit is active. How long each page stays is known for each
    /// ([`crate::workingset::lives`]), and told by [`Lruvecs::spared`].
    pub fn pages_came(&mut self, unit: u32) {
        let Some((v, shadow)) = self.begin_stay(unit) else {
            return;
        };
        let in_time = self.weights.in_time(group_of(v), kind_of(v));
        let distance = shadow.and_then(|s| self.distance(v, s));
        if distance.is_some_and(|d| d <= in_time) && self.page_duels[v].grants() {
            self.activate(unit);
        } else {
            self.rings.put_newest(unit, ring(v, false));
        }
    }

    /// Takes the shadow of a unit that is on no list, and returns it with the lists of the unit.
    fn begin_stay(&mut self, unit: u32) -> Option<(usize, Option<Shadow>)> {
        if self.contains(unit) {
            return None;
        }
        let v = self.weights.lruvec(unit);
        let shadow = Shadow::from_bits(std::mem::take(&mut self.shadows[unit as usize]));
        if shadow.is_none() && kind_of(v) == PageKind::Anon {
            let total = self.weights.used(group_of(v), PageKind::Anon);
            let pages = self.weights.of(unit);
            self.groups[group_of(v)].balance.on_new(pages, total);
        }
        Some((v, shadow))
    }

    /// Puts back a unit after some of its base pages were evicted and `left` of them spared; it is
    /// active if those are most of what it had.
    pub fn spared(&mut self, unit: u32, evicted: u64, left: u64) {
        let v = self.weights.lruvec(unit);
        self.shadows[unit as usize] = 0;
        self.groups[group_of(v)]
            .balance
            .on_rotated(kind_of(v), left);
        if left > evicted {
            self.activate(unit);
        } else {
            self.rings.put_newest(unit, ring(v, false));
        }
    }

    /// The refault distance of a unit, if it counts.
    fn distance(&self, v: usize, shadow: Shadow) -> Option<u64> {
        // A unit may have changed groups meanwhile; the clocks of two groups cannot be compared.
        let counts = self.detection && usize::from(shadow.group) == group_of(v);
        counts.then(|| shadow.distance(self.groups[group_of(v)].clock))
    }

    /// True if the page would still be here, had the working set been smaller by its present size.
    fn is_in_time(&self, v: usize, shadow: Shadow) -> bool {
        let most = self.weights.working_set(group_of(v), kind_of(v));
        self.distance(v, shadow).is_some_and(|d| d <= most)
    }

    /// Notes that a unit was touched while it was watched.
    pub fn referenced(&mut self, unit: u32) {
        let v = self.weights.lruvec(unit);
        let pages = self.weights.of(unit);
        self.shadows[unit as usize] = 0;
        // The unit is as good as back.
        let origin = Origin::from_bits(self.flags[unit as usize]);
        self.duels[v].on_left(origin, pages);
        self.duels[v].on_back(origin, pages);
        self.groups[group_of(v)]
            .balance
            .on_rotated(kind_of(v), pages);
        self.activate(unit);
    }

    /// Puts back a unit that was isolated and could not be reclaimed, as the newest of its list.
    pub fn put_back(&mut self, unit: u32) {
        let v = self.weights.lruvec(unit);
        self.shadows[unit as usize] = 0;
        let active = self.rings.ring_of(unit).is_some_and(|r| r % 2 == 1);
        self.rings.put_newest(unit, ring(v, active));
    }

    /// Notes that a unit turned out to be in use.
    fn activate(&mut self, unit: u32) {
        let v = self.weights.lruvec(unit);
        self.flags[unit as usize] = WORKINGSET;
        self.count_activated(v, unit);
        self.weights.put_active(unit, true);
        self.rings.put_newest(unit, ring(v, true));
        self.shrink_active(v);
    }

    fn count_activated(&mut self, v: usize, unit: u32) {
        if self.rings.ring_of(unit) != Some(ring(v, true)) {
            self.count(v, Event::PgActivate, self.weights.of(unit));
        }
    }

    /// How many units to isolate at a time, at least `least`: more as reclaim fails.
    pub fn batch(&self, least: usize) -> usize {
        self.priority.scan(Reclaim::len(self)).max(least)
    }

    /// Notes whether the units isolated last led to memory being freed.
    pub fn progressed(&mut self, progress: bool) {
        self.priority = self.priority.after(progress);
    }

    /// True if base pages that came back soon may be spared: not while reclaim fails.
    pub fn may_spare(&self) -> bool {
        self.detection && !self.priority.may_deactivate()
    }

    /// Takes off the units that are to be reclaimed first, up to `max` and no more than fit `out`,
    /// and leaves their shadows. Returns how many they are; all are of one group and kind. With
    /// `waiting`, some that were taken before are still being written, and it is better to take
    /// none than an active unit.
    pub fn take_oldest(&mut self, max: usize, out: &mut [u32], waiting: bool) -> usize {
        let max = max.min(out.len());
        let Some(group) = self.choose_group(max) else {
            return 0;
        };
        let first = self.choose_kind(group, max);
        for kind in [first, PageKind::ALL[1 - first as usize]] {
            let n = self.take_of(lruvec(group, kind), max, out, waiting);
            if n > 0 {
                return n;
            }
        }
        0
    }

    fn take_of(&mut self, v: usize, max: usize, out: &mut [u32], waiting: bool) -> usize {
        if self.inactive_is_short(v) {
            self.shrink_active(v);
        }
        // Active units are not taken from here. Where the rest is being written already, it is
        // enough to wait.
        let none = self.rings.len(ring(v, false)) == 0;
        if self.priority.may_deactivate() || none && !waiting {
            let most = self.priority.scan(self.rings.len(ring(v, true))).max(max);
            let _ = (0..most).take_while(|_| self.deactivate_oldest(v)).count();
        }
        let mut n = 0;
        while n < max
            && let Some(unit) = self.rings.oldest(ring(v, false))
        {
            let pages = self.weights.of(unit);
            // Base pages are spared one by one.
            let whole = pages == UNIT_PAGES;
            let known = self.flags[unit as usize] & WORKINGSET != 0;
            if whole && !none && !self.priority.may_deactivate() && self.active_is_filling(v, known)
            {
                // It becomes the oldest active unit: units known to be in use stay longer.
                self.count_activated(v, unit);
                self.weights.put_active(unit, true);
                if !known {
                    self.flags[unit as usize] |= FILLED;
                    self.left_since_filled[v] = 0;
                }
                self.rings.put_oldest(unit, ring(v, true));
                continue;
            }
            self.evict(v, unit, pages);
            out[n] = unit;
            n += 1;
        }
        n
    }

    /// Takes a unit off its list and leaves its shadow.
    fn evict(&mut self, v: usize, unit: u32, pages: u64) {
        let g = group_of(v);
        let total = self.weights.used(g, kind_of(v));
        self.count(v, Event::Scan, pages);
        self.groups[g].balance.on_scanned(kind_of(v), pages, total);
        self.rings.remove(unit);
        self.weights.put_active(unit, false);
        self.groups[g].clock += pages.max(1);
        self.left_since_filled[v] += pages;
        let flags = std::mem::take(&mut self.flags[unit as usize]);
        let shadow = Shadow {
            group: g as u8,
            clock: self.groups[g].clock,
            workingset: flags & WORKINGSET != 0,
            origin: Origin::from_bits(flags),
        };
        self.duels[v].on_left(shadow.origin, pages);
        let of_pages = match shadow.origin {
            Origin::Deactivated => Origin::Deactivated,
            _ => Origin::Refused,
        };
        self.page_duels[v].on_left(of_pages, pages);
        self.shadows[unit as usize] = shadow.to_bits();
    }

    /// Had a unit that was taken off the lists been deactivated to make room?
    pub fn was_deactivated(&self, unit: u32) -> bool {
        Shadow::from_bits(self.shadows[unit as usize])
            .is_some_and(|s| s.origin == Origin::Deactivated)
    }

    fn units(&self, group: usize) -> usize {
        let lists = ring(lruvec(group, PageKind::Anon), false)..;
        lists.take(4).map(|r| self.rings.len(r)).sum()
    }

    /// The group to reclaim from: the one furthest above `high`; otherwise groups take turns by
    /// what they have above `min`; if none has any, by what they have.
    fn choose_group(&mut self, max: usize) -> Option<usize> {
        if self.groups_used == 1 {
            return (self.units(0) > 0).then_some(0);
        }
        let used: [u64; GROUPS] = std::array::from_fn(|g| match self.units(g) {
            0 => 0,
            _ => PageKind::ALL
                .map(|k| self.weights.used(g, k))
                .iter()
                .sum::<u64>()
                .max(1),
        });
        let limits = |g: usize| self.groups[g].limits;
        let furthest = (0..GROUPS).max_by_key(|&g| limits(g).excess(used[g]))?;
        if limits(furthest).excess(used[furthest]) > 0 {
            return Some(furthest);
        }
        let spare: [u64; GROUPS] = std::array::from_fn(|g| limits(g).reclaimable(used[g]));
        let weight = if spare.iter().sum::<u64>() > 0 {
            spare
        } else {
            used
        };
        let total: u64 = weight.iter().sum();
        if total == 0 {
            return None;
        }
        // Weighted turns: each group gains its share, and the one with most pays.
        let turn = (max as u64).saturating_mul(UNIT_PAGES);
        for (g, w) in self.groups.iter_mut().zip(weight) {
            g.owed += (u128::from(turn) * u128::from(w) / u128::from(total)) as i64;
        }
        let next = (0..GROUPS)
            .filter(|&g| weight[g] > 0)
            .max_by_key(|&g| self.groups[g].owed)?;
        self.groups[next].owed -= turn as i64;
        Some(next)
    }

    fn choose_kind(&mut self, group: usize, max: usize) -> PageKind {
        let some = PageKind::ALL.map(|kind| {
            let v = lruvec(group, kind);
            self.rings.len(ring(v, false)) + self.rings.len(ring(v, true)) > 0
        });
        match some {
            [true, false] => PageKind::Anon,
            [false, _] => PageKind::File,
            [true, true] => {
                let pages = max as u64 * UNIT_PAGES;
                self.groups[group].balance.choose(self.swappiness, pages)
            }
        }
    }

    fn count(&mut self, v: usize, event: Event, pages: u64) {
        self.events[v][event as usize] += pages;
        self.news[kind_of(v) as usize][event as usize] += pages;
    }

    /// Counts of a group and kind so far.
    pub fn events(&self, group: usize, kind: PageKind) -> Events {
        self.events[lruvec(group.min(GROUPS - 1), kind)]
    }

    /// Takes the counts of a kind, over all groups, since the last call.
    pub fn take_news(&mut self, kind: PageKind) -> Events {
        std::mem::take(&mut self.news[kind as usize])
    }

    /// True if the unit is on a list.
    pub fn contains(&self, unit: u32) -> bool {
        self.rings.ring_of(unit).is_some()
    }
}

/// Whole units: each weighs all its pages while it is on a list.
impl<W: Deref<Target = [AtomicU16]>> Reclaim for Lruvecs<W> {
    fn insert(&mut self, unit: u32) {
        self.weights.set(unit, UNIT_PAGES);
        self.came(unit);
    }

    fn reference(&mut self, unit: u32) {
        self.weights.set(unit, UNIT_PAGES);
        self.referenced(unit);
    }

    fn remove(&mut self, unit: u32) {
        self.weights.set(unit, 0);
        self.forget(unit);
    }

    fn rotate(&mut self, unit: u32) {
        self.weights.set(unit, UNIT_PAGES);
        self.put_back(unit);
    }

    fn isolate(&mut self, max: usize, out: &mut [u32]) -> usize {
        let n = self.take_oldest(max, out, false);
        out[..n].iter().for_each(|&u| self.weights.set(u, 0));
        n
    }

    fn len(&self) -> usize {
        (0..LRUVECS * 2).map(|r| self.rings.len(r)).sum()
    }

    fn contains(&self, unit: u32) -> bool {
        Lruvecs::contains(self, unit)
    }
}

#[cfg(test)]
mod tests;
