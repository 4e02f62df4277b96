//! A machine of counters under the granularity policy: least recently used memory, costs added up.

use hugeswap_policy::UNIT_PAGES;
use hugeswap_policy::granularity::*;
use std::collections::{BTreeMap, VecDeque};

/// What a machine's device and CPU take, in nanoseconds.
#[derive(Clone, Copy)]
pub struct Device {
    pub name: &'static str,
    pub r#in: PerSize,
    /// Taking a fault and mapping what it brought.
    pub cpu: PerSize,
    /// Evicting a page as one of a batch, and a whole unit.
    pub evict: (u64, u64),
}

pub const DEVICES: [Device; 2] = [
    Device {
        name: "RAM-speed",
        r#in: PerSize {
            page: 3_000,
            piece: 13_000,
            whole: 300_000,
        },
        cpu: PerSize {
            page: 5_000,
            piece: 12_000,
            whole: 25_000,
        },
        evict: (1_000, 320_000),
    },
    Device {
        name: "ext4",
        r#in: PerSize {
            page: 102_000,
            piece: 217_000,
            whole: 1_100_000,
        },
        cpu: PerSize {
            page: 5_000,
            piece: 12_000,
            whole: 25_000,
        },
        evict: (33_000, 520_000),
    },
];

/// What may be transferred, with the whole policy (if more than one size may) or without.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// Always this size.
    Always(Size),
    /// As the policy says, of what is allowed.
    Auto(Allowed),
}

#[derive(Clone, Copy)]
enum Node {
    Page(u64),
    Unit(u64),
}

/// Of a whole unit nobody sees the touches, but for the first after it was found the oldest and watched.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Whole {
    #[default]
    No,
    Mapped,
    Watched,
}

/// How long a unit is watched, in pages evicted: of eight units.
const WATCHED: u64 = 8 * UNIT_PAGES;
/// A touch of a watched unit: taking the fault, and a page or the unit mapped.
const SOFT: PerSize = PerSize {
    page: 7_000,
    piece: 15_000,
    whole: 10_000,
};

/// The state of a unit: 0 or more base pages, or whole.
#[derive(Clone, Default)]
struct Unit {
    whole: Whole,
    present: u16,
    history: UnitHistory,
    density: Density,
}

#[derive(Default, Clone, Copy, Debug)]
pub struct Seen {
    pub soft: u64,
    pub small: u64,
    pub run: u64,
    pub paid: u64,
    pub stream: u64,
    pub dense: u64,
}

pub struct Machine {
    policy: Policy,
    device: Device,
    tracked: DeviceCost,
    granularity: Granularity,
    price: MemoryPrice,
    capacity: u64,
    resident: u64,
    clock: u64,
    evictions: u64,
    lru: BTreeMap<u64, Node>,
    watched: VecDeque<(u64, u64)>,
    /// Stamp of a resident base page; 0 is absent.
    pages: Vec<u64>,
    /// Eviction clock at which a page left; 0 is never.
    left_at: Vec<u64>,
    units: Vec<Unit>,
    /// What it all took, in nanoseconds.
    pub cost: u64,
    pub seen: Seen,
}

impl Machine {
    /// `units` in swap, memory for `capacity` pages.
    pub fn new(policy: Policy, device: Device, units: usize, capacity: u64) -> Machine {
        let pages = units * UNIT_PAGES as usize;
        Machine {
            policy,
            device,
            tracked: DeviceCost::new(device.r#in, device.r#in),
            granularity: Granularity::new(0x9e37_79b9_7f4a_7c15),
            price: MemoryPrice::new(),
            capacity,
            resident: 0,
            clock: 0,
            evictions: 0,
            lru: BTreeMap::new(),
            watched: VecDeque::new(),
            pages: vec![0; pages],
            left_at: vec![0; pages],
            units: vec![Unit::default(); units],
            cost: 0,
            seen: Seen::default(),
        }
    }

    fn stamp(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// The program touches a page.
    pub fn touch(&mut self, page: u64) {
        let unit = page / UNIT_PAGES;
        if self.pages[page as usize] != 0 {
            self.lru.remove(&self.pages[page as usize]);
            let stamp = self.stamp();
            self.place(page, stamp);
        } else if self.units[unit as usize].whole != Whole::Mapped {
            self.fault(unit, page);
        }
    }

    fn place(&mut self, page: u64, stamp: u64) {
        self.pages[page as usize] = stamp;
        self.lru.insert(stamp, Node::Page(page));
    }

    fn fault(&mut self, unit: u64, page: u64) {
        let full = self.capacity - self.resident < UNIT_PAGES;
        let memory = if full { self.price.price() } else { 0 };
        let soft = self.units[unit as usize].whole == Whole::Watched;
        let costs = if soft {
            Costs::resident(SOFT, memory)
        } else {
            Costs::new(&self.tracked, self.device.cpu, memory)
        };
        let fault = Fault {
            unit,
            page: (page % UNIT_PAGES) as u16,
            present: self.units[unit as usize].present,
            density: self.units[unit as usize].density,
        };
        let history = self.units[unit as usize].history;
        let d = match self.policy {
            Policy::Always(size) => {
                let only = Allowed {
                    base_4k: size == Size::Page,
                    piece_64k: size == Size::Piece,
                    whole: size == Size::Whole,
                };
                decide(&costs, only, &fault, history, Advice::None)
            }
            Policy::Auto(allowed) => self.granularity.on_fault(&costs, allowed, &fault, history),
        };
        assert!(d.pages.contains(&fault.page));
        *match d.reason {
            _ if soft => &mut self.seen.soft,
            Reason::Small => &mut self.seen.small,
            Reason::Run => &mut self.seen.run,
            Reason::Paid => &mut self.seen.paid,
            Reason::Stream => &mut self.seen.stream,
            Reason::Dense => &mut self.seen.dense,
        } += 1;
        let size = match d.pages.len() {
            1 => Size::Page,
            16 => Size::Piece,
            _ => Size::Whole,
        };
        let alone = Costs { memory: 0, ..costs }.of(size);
        self.cost += alone;
        let left_at = self.left_at[page as usize];
        if left_at != 0 && !soft {
            self.price
                .on_refault(self.evictions - left_at, self.resident, alone);
        }
        self.units[unit as usize].history = d.history;
        self.units[unit as usize].density = d.density;
        let base = unit * UNIT_PAGES;
        if d.whole {
            for p in base..base + UNIT_PAGES {
                if self.pages[p as usize] != 0 {
                    self.lru.remove(&self.pages[p as usize]);
                    self.pages[p as usize] = 0;
                    self.resident -= 1;
                }
            }
            let stamp = self.stamp();
            let u = &mut self.units[unit as usize];
            u.present = 0;
            u.whole = Whole::Mapped;
            self.lru.insert(stamp, Node::Unit(unit));
            if soft {
                self.watched.retain(|&(w, _)| w != unit);
            } else {
                self.resident += UNIT_PAGES;
            }
        } else {
            for p in d.pages.clone() {
                let p = base + u64::from(p);
                if self.pages[p as usize] == 0 {
                    let stamp = self.stamp();
                    self.place(p, stamp);
                    self.units[unit as usize].present += 1;
                    self.resident += 1;
                }
            }
        }
        if matches!(self.policy, Policy::Auto(_)) {
            self.pass_over(unit, &d);
        }
        while self.resident > self.capacity {
            self.evict();
        }
    }

    /// Tells of whole neighbours.
    fn pass_over(&mut self, unit: u64, d: &Decision) {
        let whole = |u: &u64| {
            self.units
                .get(*u as usize)
                .is_some_and(|u| u.whole == Whole::Mapped)
        };
        if d.pages.end == 512 {
            let n = (unit + 1..unit + 9).take_while(whole).count() as u64;
            self.granularity.on_ahead(unit + 1, unit + 1 + n);
        }
        if d.pages.start == 0 {
            let n = (1..=unit.min(8)).take_while(|i| whole(&(unit - i))).count() as u64;
            self.granularity.on_ahead(unit - n, unit);
        }
    }

    fn evict(&mut self) {
        // Watched for as long as it takes to evict what is watched, and not touched.
        let due = self.watched.front().is_some_and(|&(_, at)| {
            let full = self.watched.len() as u64 * UNIT_PAGES >= WATCHED;
            full || self.evictions - at >= WATCHED || self.lru.is_empty()
        });
        if !due && let Some((_, Node::Unit(unit))) = self.lru.first_key_value() {
            self.units[*unit as usize].whole = Whole::Watched;
            self.watched.push_back((*unit, self.evictions));
            self.lru.pop_first();
            return;
        }
        let node = match self.watched.front() {
            Some(&(unit, _)) if due => {
                self.watched.pop_front();
                Node::Unit(unit)
            }
            _ => self.lru.pop_first().unwrap().1,
        };
        match node {
            Node::Unit(unit) => {
                self.units[unit as usize].whole = Whole::No;
                self.resident -= UNIT_PAGES;
                self.evictions += UNIT_PAGES;
                self.cost += self.device.evict.1;
                let touched = match self.units[unit as usize].density {
                    Density::UNKNOWN | Density::FULL => UNIT_PAGES,
                    known => u64::from(known.pages()),
                };
                self.price
                    .on_evicted(UNIT_PAGES, touched, self.device.evict.1);
                let base = (unit * UNIT_PAGES) as usize;
                for p in base..base + UNIT_PAGES as usize {
                    if self.pages[p] == 0 {
                        self.left_at[p] = self.evictions;
                    }
                }
            }
            Node::Page(page) => {
                self.pages[page as usize] = 0;
                self.resident -= 1;
                self.evictions += 1;
                self.cost += self.device.evict.0;
                self.price.on_evicted(1, 1, self.device.evict.0);
                self.left_at[page as usize] = self.evictions;
                let u = &mut self.units[(page / UNIT_PAGES) as usize];
                u.present -= 1;
                let (history, density) = self.granularity.on_evicted(u.history, u.present);
                u.history = history;
                // What is known of a whole unit stands until all of it is gone.
                if u.whole == Whole::No {
                    u.density = density.unwrap_or(u.density);
                }
            }
        }
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let s = self.seen;
        write!(
            f,
            "soft {} small {} run {} paid {} stream {} dense {}; trust {:?}, price {} ns",
            s.soft,
            s.small,
            s.run,
            s.paid,
            s.stream,
            s.dense,
            self.granularity.trust(),
            self.price.price()
        )
    }
}
