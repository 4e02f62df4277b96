//! Active and inactive lists, for each kind of pages and each group of regions.
//!
//! * New units and those that come from swap start inactive. The oldest inactive one goes next.
//! * A unit becomes active when it is touched while it was watched, or when it comes back from swap so soon that a smaller
//!   working set would have kept it, and those that made room for such units are not missed as much ([`crate::workingset`]).
//! * While the active list has much less than its share ([`vmscan::inactive_target`]), reclaim lets the oldest inactive unit be active instead of
//!   taking it, if it is whole: nothing is known of any yet, and a sweep over more than memory then finds half of memory or more where it left it, where
//!   lists in order of use would find nothing. This is ours.
//! * What the active list has beyond its share as a unit becomes active goes back, oldest first, for another round through the inactive one.
//! * Which kind is taken of is a matter of what is in use ([`vmscan::Balance`]); which group, of its limits ([`vmscan::Limits`]) and its size.
//!
//! All is weighed in pages: a unit of which a few base pages are in memory counts as those ([`Weights`]). Counted in
//! units, the active list would be full of what takes no memory, and a stream beside it would have the rest to itself.
//!
//! Every operation but `isolate` takes constant time (amortised), nothing allocates after construction, and
//! the lists have one owner; weights may be told by anybody at any time.

mod weights;

pub use weights::{GROUPS, Weights};

use crate::UNIT_PAGES;
use crate::workingset::lru::{Reclaim, Rings};
use crate::workingset::vmscan::{self, Balance, Limits, PageKind, Priority};
use crate::workingset::{Duel, Origin, Shadow};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicU16;
use weights::{LRUVECS, group_of, kind_of, lruvec};

/// What the lists count, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Event {
    /// Came back from swap (or their file), having left a shadow.
    Refault,
    /// Of those, activated at once.
    Activate,
    /// Of those, had been part of the working set before.
    Restore,
    /// Became active, for whatever reason.
    PgActivate,
    /// Went back from the active to the inactive list.
    PgDeactivate,
    /// Looked at by reclaim.
    Scan,
}

impl Event {
    /// Each.
    pub const ALL: [Event; Event::COUNT] = [
        Event::Refault,
        Event::Activate,
        Event::Restore,
        Event::PgActivate,
        Event::PgDeactivate,
        Event::Scan,
    ];
    /// How many there are.
    pub const COUNT: usize = 6;
}

/// Counts by [`Event`].
pub type Events = [u64; Event::COUNT];

/// In a unit's flags: it is part of the working set, for it was in use while it was active or on its way there.
const WORKINGSET: u8 = 1 << 2;

fn was(workingset: bool) -> u8 {
    if workingset { WORKINGSET } else { 0 }
}

/// What base pages that came back claim of the active list.
#[derive(Clone, Debug, Default)]
struct Claims {
    /// In pages; less than a unit's.
    pages: u64,
    /// The group's eviction clock at the last.
    last: Option<u64>,
}

/// Claims at one time, in pages.
const MOST_CLAIMS: u64 = 64 * UNIT_PAGES;

/// One group of regions.
#[derive(Clone, Debug, Default)]
struct Group {
    limits: Limits,
    /// Pages evicted so far.
    clock: u64,
    balance: Balance,
    /// What it is owed when groups take turns, in pages.
    owed: i64,
}

/// See the file's head.
pub struct Lruvecs<W = Vec<AtomicU16>> {
    rings: Rings,
    /// By unit; see [`Shadow`].
    shadows: Vec<u64>,
    /// Of units in memory: [`WORKINGSET`], and an [`Origin`].
    flags: Vec<u8>,
    weights: Arc<Weights<W>>,
    groups: [Group; GROUPS],
    /// Groups up to here have been used.
    groups_used: usize,
    duels: [Duel; LRUVECS],
    /// Which active lists are being filled with what nothing is known of.
    filling: [bool; LRUVECS],
    claims: [Claims; LRUVECS],
    events: [Events; LRUVECS],
    /// By kind, of what was not asked for yet.
    news: [Events; 2],
    detection: bool,
    swappiness: u64,
    priority: Priority,
}

fn ring(lruvec: usize, active: bool) -> usize {
    lruvec * 2 + usize::from(active)
}

impl<W: Deref<Target = [AtomicU16]>> Lruvecs<W> {
    /// Lists for units `0..capacity`, all of them anonymous and of group 0; `weights` are as many zeros. 20 bytes of
    /// address space for each unit of the capacity besides; only what is used costs memory.
    pub fn new(capacity: u32, weights: W) -> Lruvecs<W> {
        Lruvecs {
            rings: Rings::new(capacity, LRUVECS * 2),
            shadows: vec![0; capacity as usize],
            flags: vec![0; capacity as usize],
            weights: Arc::new(Weights::new(weights)),
            groups: Default::default(),
            groups_used: 1,
            duels: Default::default(),
            filling: [true; LRUVECS],
            claims: Default::default(),
            events: Default::default(),
            news: Default::default(),
            detection: true,
            swappiness: 60,
            priority: Priority::DEFAULT,
        }
    }

    /// What tells the lists how much of a unit is in memory.
    pub fn weights(&self) -> Arc<Weights<W>> {
        self.weights.clone()
    }

    /// Is what comes back soon after it left to be active? (Yes, until something else is told.)
    pub fn set_detection(&mut self, on: bool) {
        self.detection = on;
    }

    /// How readily anonymous pages are taken beside those of files: 0 to 200, 60 at first.
    pub fn set_swappiness(&mut self, swappiness: u64) {
        self.swappiness = swappiness;
    }

    /// What a group may count on. Of a number beyond [`GROUPS`], nothing.
    pub fn set_limits(&mut self, group: usize, limits: Limits) {
        if let Some(g) = self.groups.get_mut(group) {
            g.limits = limits;
            self.groups_used = self.groups_used.max(group + 1);
        }
    }

    /// A unit is of another kind or group from now on, wherever it is. A unit that is new to either is forgotten first.
    pub fn assign(&mut self, unit: u32, group: usize, kind: PageKind) {
        let v = lruvec(group.min(GROUPS - 1), kind);
        self.groups_used = self.groups_used.max(group_of(v) + 1);
        self.weights.put_lruvec(unit, v);
        if let Some(r) = self.rings.ring_of(unit) {
            self.rings.put_newest(unit, ring(v, r % 2 == 1));
        }
    }

    /// A unit's content is no more: nothing is remembered of it.
    pub fn forget(&mut self, unit: u32) {
        self.rings.remove(unit);
        self.weights.put_active(unit, false);
        // Of what was never used nothing is written: it takes no memory.
        if self.shadows[unit as usize] != 0 {
            self.shadows[unit as usize] = 0;
        }
        if self.flags[unit as usize] != 0 {
            self.flags[unit as usize] = 0;
        }
    }

    /// A whole unit came into memory. Its weight was told before.
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

    /// The first base pages of a unit came into memory. Which of them stay longer is known of each of them
    /// ([`crate::workingset::lives`]), and told by [`Lruvecs::spared`].
    pub fn pages_came(&mut self, unit: u32) {
        if let Some((v, _)) = self.begin_stay(unit) {
            self.rings.put_newest(unit, ring(v, false));
        }
    }

    /// The lists of a unit that is on none, and its shadow, which is taken.
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

    /// Base pages of an isolated unit were evicted, and `left` of them spared: it goes on, active if those are most of what it had.
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

    /// Had the working set been smaller by what it has now, would the page still be here?
    fn is_in_time(&self, v: usize, shadow: Shadow) -> bool {
        // A unit may have changed groups meanwhile: the clocks of two say nothing.
        if !self.detection || usize::from(shadow.group) != group_of(v) {
            return false;
        }
        let distance = shadow.distance(self.groups[group_of(v)].clock);
        distance <= self.workingset_pages(v)
    }

    /// Pages that may be idle while one of this kind comes back: those that are active, and all of the other kind.
    fn workingset_pages(&self, v: usize) -> u64 {
        let other = lruvec(group_of(v), PageKind::ALL[1 - kind_of(v) as usize]);
        self.weights.sum(v, true) + self.weights.sum(other, true) + self.weights.sum(other, false)
    }

    /// A unit was touched while it was watched.
    pub fn referenced(&mut self, unit: u32) {
        let v = self.weights.lruvec(unit);
        let pages = self.weights.of(unit);
        self.shadows[unit as usize] = 0;
        // As good as back.
        let origin = Origin::from_bits(self.flags[unit as usize]);
        self.duels[v].on_left(origin, pages);
        self.duels[v].on_back(origin, pages);
        self.groups[group_of(v)]
            .balance
            .on_rotated(kind_of(v), pages);
        self.activate(unit);
    }

    /// A unit was isolated and could not be reclaimed: it goes where the newest are of the list it was on.
    pub fn put_back(&mut self, unit: u32) {
        let v = self.weights.lruvec(unit);
        self.shadows[unit as usize] = 0;
        let active = self.rings.ring_of(unit).is_some_and(|r| r % 2 == 1);
        self.rings.put_newest(unit, ring(v, active));
    }

    /// A unit turned out to be in use.
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

    /// Pages the active list may have.
    fn active_share(&self, v: usize) -> u64 {
        let total = self.weights.sum(v, false) + self.weights.sum(v, true);
        total - vmscan::inactive_target(total)
    }

    /// Base pages came back in time: a larger share of memory would have kept them. As much of what is active goes back, which
    /// may have been idle all the while; they themselves are spared in turn.
    pub fn claimed(&mut self, group: usize, kind: PageKind, pages: u64) {
        let v = lruvec(group.min(GROUPS - 1), kind);
        let claims = &mut self.claims[v];
        claims.pages = (claims.pages + pages).min(MOST_CLAIMS);
        claims.last = Some(self.groups[group_of(v)].clock);
        while self.claims[v].pages >= UNIT_PAGES {
            self.claims[v].pages -= UNIT_PAGES;
            self.deactivate_oldest(v);
        }
    }

    /// Is there a claim on what is active, within a turn through memory?
    fn is_claimed(&self, v: usize) -> bool {
        let total = self.weights.sum(v, false) + self.weights.sum(v, true);
        let last = self.claims[v].last;
        last.is_some_and(|at| self.groups[group_of(v)].clock - at < total)
    }

    /// Is the active list so short of its share that it is filled with what nothing is known of?
    fn active_is_filling(&mut self, v: usize) -> bool {
        if self.is_claimed(v) {
            return false;
        }
        let (share, active) = (self.active_share(v), self.weights.sum(v, true));
        let enough = if self.filling[v] {
            share
        } else {
            share / 4 * 3
        };
        self.filling[v] = active + UNIT_PAGES <= enough;
        self.filling[v]
    }

    /// Has the inactive list not even half of what it should have? Memory comes and goes a little all the time: were
    /// the active list to give and take each time, it would soon be another one.
    fn inactive_is_short(&self, v: usize) -> bool {
        let (inactive, active) = (self.weights.sum(v, false), self.weights.sum(v, true));
        inactive < vmscan::inactive_target(inactive + active) / 2
    }

    /// What the active list has beyond its share goes back.
    fn shrink_active(&mut self, v: usize) {
        while self.weights.sum(v, true) > self.active_share(v) && self.deactivate_oldest(v) {}
    }

    fn deactivate_oldest(&mut self, v: usize) -> bool {
        let Some(unit) = self.rings.oldest(ring(v, true)) else {
            return false;
        };
        self.count(v, Event::PgDeactivate, self.weights.of(unit));
        self.weights.put_active(unit, false);
        let flags = &mut self.flags[unit as usize];
        *flags = Origin::Deactivated as u8 | *flags & WORKINGSET;
        self.rings.put_newest(unit, ring(v, false));
        true
    }

    /// How many units to isolate at a time, at least `least`: more as reclaim fails.
    pub fn batch(&self, least: usize) -> usize {
        self.priority.scan(Reclaim::len(self)).max(least)
    }

    /// What was isolated last led to something being freed, or did not.
    pub fn progressed(&mut self, progress: bool) {
        self.priority = self.priority.after(progress);
    }

    /// May base pages be spared that came back soon? Not as reclaim fails.
    pub fn may_spare(&self) -> bool {
        self.detection && !self.priority.may_deactivate()
    }

    /// Takes up to `max` units (and no more than fit `out`) that should go first off the lists, and leaves their shadows.
    /// How many there are; they are of one group and kind. `waiting`: some that were taken before are still being written, so that it
    /// is better to take none than of the active ones.
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
        // What is active is not taken from there. Where the rest is on its way already, it is enough to wait.
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
            // (Base pages are spared one by one.)
            let whole = pages == UNIT_PAGES;
            if whole && !none && !self.priority.may_deactivate() && self.active_is_filling(v) {
                // The first to go back: what is known to be in use stays before it.
                self.count_activated(v, unit);
                self.weights.put_active(unit, true);
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
        let flags = std::mem::take(&mut self.flags[unit as usize]);
        let shadow = Shadow {
            group: g as u8,
            clock: self.groups[g].clock,
            workingset: flags & WORKINGSET != 0,
            origin: Origin::from_bits(flags),
        };
        self.duels[v].on_left(shadow.origin, pages);
        self.shadows[unit as usize] = shadow.to_bits();
    }

    fn units(&self, group: usize) -> usize {
        let lists = ring(lruvec(group, PageKind::Anon), false)..;
        lists.take(4).map(|r| self.rings.len(r)).sum()
    }

    /// The group to take of: the one that is furthest above `high`; else they take turns by what they have above `min`; if none has, by
    /// what they have.
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
        // Weighted turns: each gains its share, the one with most pays.
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

    /// What was counted for a group and kind so far.
    pub fn events(&self, group: usize, kind: PageKind) -> Events {
        self.events[lruvec(group.min(GROUPS - 1), kind)]
    }

    /// What was counted for a kind, over all groups, since this was last asked.
    pub fn take_news(&mut self, kind: PageKind) -> Events {
        std::mem::take(&mut self.news[kind as usize])
    }

    /// Is the unit on a list?
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
