//! A machine of counters under the granularity policy, costs added up. Memory is the engine's:
//! units leave whole, in the order in which they came; of whole ones alone is it seen, while they
//! are watched, that they are in use.

use hugeswap_policy::UNIT_PAGES;
use hugeswap_policy::swapin::granularity::*;
use std::collections::VecDeque;

/// What a machine's device and CPU take, in nanoseconds.
#[derive(Clone, Copy)]
pub struct Device {
    pub name: &'static str,
    pub r#in: PerSize,
    /// Taking a fault and mapping what it brought.
    pub cpu: PerSize,
    /// Making a unit whole of which something is there.
    pub fill: u32,
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
        fill: 750_000,
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
        fill: 1_600_000,
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

/// Of a whole unit nobody sees the touches, but for the first after it was found the oldest and
/// watched.
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
    /// Eviction clock at which the first of its pages came.
    came_at: u64,
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
    evictions: u64,
    /// Units, oldest first.
    lru: VecDeque<u64>,
    watched: VecDeque<(u64, u64)>,
    /// Is it resident as a base page?
    pages: Vec<bool>,
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
            price: MemoryPrice::new(u64::from(device.r#in.page + device.cpu.page)),
            capacity,
            resident: 0,
            evictions: 0,
            lru: VecDeque::new(),
            watched: VecDeque::new(),
            pages: vec![false; pages],
            left_at: vec![0; pages],
            units: vec![Unit::default(); units],
            cost: 0,
            seen: Seen::default(),
        }
    }

    /// The program touches a page.
    pub fn touch(&mut self, page: u64) {
        let unit = page / UNIT_PAGES;
        if !self.pages[page as usize] && self.units[unit as usize].whole != Whole::Mapped {
            self.fault(unit, page);
        }
    }

    /// How much of a unit's stay lies ahead.
    fn stay(&self, unit: u64) -> u16 {
        let u = &self.units[unit as usize];
        let gone = (self.evictions - u.came_at) * u64::from(STAY) / self.resident.max(1);
        match u.present {
            0 => STAY,
            _ => STAY - gone.min(u64::from(STAY) - 1) as u16,
        }
    }

    fn fault(&mut self, unit: u64, page: u64) {
        // What was charged once stays charged, as in the engine.
        let full = self.evictions > 0;
        let memory = if full { self.price.price() } else { 0 };
        let soft = self.units[unit as usize].whole == Whole::Watched;
        let costs = if soft {
            Costs::resident(SOFT, memory)
        } else {
            Costs::new(&self.tracked, self.device.cpu, self.device.fill, memory)
        };
        let fault = Fault {
            unit,
            page: (page % UNIT_PAGES) as u16,
            present: self.units[unit as usize].present,
            density: self.units[unit as usize].density,
            stay: self.stay(unit),
            near: Near::default(),
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
            Reason::Run | Reason::Ahead | Reason::Near => &mut self.seen.run,
            Reason::Paid => &mut self.seen.paid,
            Reason::Stream => &mut self.seen.stream,
            Reason::Dense => &mut self.seen.dense,
        } += 1;
        let pages = d.pages.len() as u16;
        let alone = match d.whole {
            true if fault.present > 0 => costs.fill,
            _ => Costs { memory: 0, ..costs }.of_pages(pages),
        };
        self.cost += alone;
        let left_at = self.left_at[page as usize];
        if !soft {
            let distance = (left_at != 0).then(|| self.evictions - left_at);
            let brought = u64::from(pages).min(UNIT_PAGES - u64::from(fault.present));
            self.price.on_fault(brought, distance, self.resident, alone);
        }
        self.units[unit as usize].history = d.history;
        self.units[unit as usize].density = d.density;
        let base = unit * UNIT_PAGES;
        if d.whole {
            for p in base..base + UNIT_PAGES {
                self.pages[p as usize] = false;
            }
            let u = &mut self.units[unit as usize];
            self.resident -= u64::from(u.present);
            u.present = 0;
            u.whole = Whole::Mapped;
            self.lru.retain(|&l| l != unit);
            self.lru.push_back(unit);
            if soft {
                self.watched.retain(|&(w, _)| w != unit);
            } else {
                self.resident += UNIT_PAGES;
            }
        } else {
            if soft {
                self.watched.retain(|&(w, _)| w != unit);
                self.units[unit as usize].whole = Whole::No;
                self.resident -= UNIT_PAGES;
                self.evictions += UNIT_PAGES;
                self.price.on_evicted(UNIT_PAGES, UNIT_PAGES, 0);
                let base = base as usize;
                self.left_at[base..base + UNIT_PAGES as usize].fill(self.evictions);
            }
            for p in d.pages.clone() {
                let p = (base + u64::from(p)) as usize;
                let u = &mut self.units[unit as usize];
                if u.present == 0 && u.whole == Whole::No {
                    u.came_at = self.evictions;
                    self.lru.push_back(unit);
                }
                u.present += u16::from(!self.pages[p]);
                self.resident += u64::from(!self.pages[p]);
                self.pages[p] = true;
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
        let unit = if due {
            self.watched.pop_front().map(|(unit, _)| unit)
        } else {
            self.lru.pop_front()
        };
        let unit = unit.unwrap();
        let u = &mut self.units[unit as usize];
        if u.whole == Whole::Mapped {
            u.whole = Whole::Watched;
            self.watched.push_back((unit, self.evictions));
            return;
        }
        let (n, touched, ns) = if u.whole == Whole::Watched {
            u.whole = Whole::No;
            let touched = match u.density {
                Density::UNKNOWN | Density::FULL => UNIT_PAGES,
                known => u64::from(known.pages()),
            };
            (UNIT_PAGES, touched, self.device.evict.1)
        } else {
            let n = u64::from(u.present);
            u.present = 0;
            let gone = (self.evictions - u.came_at) * u64::from(STAY) / self.resident.max(1);
            let price = self.price.price();
            let costs = Costs::new(&self.tracked, self.device.cpu, self.device.fill, price);
            let (history, density) =
                self.granularity
                    .on_evicted(&costs, u.history, 0, gone.min(STAY.into()) as u16);
            u.history = history;
            u.density = density.unwrap_or(u.density);
            (n, n, n * self.device.evict.0)
        };
        self.resident -= n;
        self.evictions += n;
        self.cost += ns;
        self.price.on_evicted(n, touched, ns);
        let base = (unit * UNIT_PAGES) as usize;
        for p in base..base + UNIT_PAGES as usize {
            if n == UNIT_PAGES || self.pages[p] {
                self.left_at[p] = self.evictions;
            }
            self.pages[p] = false;
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
