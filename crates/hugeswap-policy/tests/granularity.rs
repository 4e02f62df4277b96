//! The granularity policy on whole memories: what access patterns cost under it, compared with 4
//! KiB always and 2 MiB always.
//!
//! Costs are counted, not timed, so the figures are the same everywhere. `cargo test -p
//! hugeswap-policy --test granularity -- --nocapture` prints them as a table.

#[path = "granularity/machine.rs"]
mod machine;

use hugeswap_policy::UNIT_PAGES;
use hugeswap_policy::swapin::granularity::{Allowed, Size};
use machine::{DEVICES, Device, Machine, Policy};
use std::ops::Range;

const UNITS: usize = 128;
const PAGES: u64 = UNITS as u64 * UNIT_PAGES;
/// Memory holds half of it, or as much in a hundred as HUGESWAP_TEST_SHARE says.
fn capacity() -> u64 {
    let share = std::env::var("HUGESWAP_TEST_SHARE").ok();
    let share = share.and_then(|s| s.parse::<u64>().ok());
    PAGES * share.unwrap_or(50) / 100
}

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn share(&mut self) -> f64 {
        self.next() as f64 / (1u64 << 53) as f64
    }
}

fn uniform(n: usize) -> Vec<u64> {
    let mut r = Rng(1);
    (0..n).map(|_| r.below(PAGES)).collect()
}

/// Zipf with theta 0.9 over all pages; ranks are `scatter`ed over the region in groups of so many
/// pages.
fn zipf(n: usize, scatter: u64) -> Vec<u64> {
    let mut sums = Vec::with_capacity(PAGES as usize);
    let mut sum = 0.0;
    for rank in 1..=PAGES {
        sum += (rank as f64).powf(-0.9);
        sums.push(sum);
    }
    let mut r = Rng(2);
    let groups = PAGES / scatter;
    (0..n)
        .map(|_| {
            let at = r.share() * sum;
            let rank = sums.partition_point(|&s| s < at) as u64;
            // An odd multiplier permutes a power of two.
            (rank / scatter).wrapping_mul(0x9e37_79b1) % groups * scatter + rank % scatter
        })
        .collect()
}

fn sweeps(stride: u64, n: usize) -> Vec<u64> {
    (0..n)
        .flat_map(|_| (0..PAGES).step_by(stride as usize))
        .collect()
}

fn downward(n: usize) -> Vec<u64> {
    let mut trace = sweeps(1, n);
    trace.reverse();
    trace
}

fn mixed(n: usize) -> Vec<u64> {
    let half = sweeps(1, n.div_ceil(PAGES as usize));
    let both = half.into_iter().take(n).zip(uniform(n));
    both.flat_map(|(a, b)| [a, b]).collect()
}

fn phases() -> Vec<u64> {
    let mut trace = sweeps(1, 4);
    trace.extend(uniform(600_000));
    trace.extend(sweeps(1, 8));
    trace.extend(uniform(600_000));
    trace
}

/// Hoare's quicksort, as it touches pages: each part from both ends inwards, then its halves, down
/// to a page.
fn quicksort(parts: Range<u64>, trace: &mut Vec<u64>) {
    let n = parts.end - parts.start;
    if n < 2 {
        return;
    }
    for i in 0..n / 2 {
        trace.extend([parts.start + i, parts.end - 1 - i]);
    }
    // (Not quite in the middle, as a pivot that is guessed.)
    let middle = parts.start + n * 9 / 20 + 1;
    quicksort(parts.start..middle, trace);
    quicksort(middle..parts.end, trace);
}

/// Merge sort from the bottom, as it touches pages: two runs are read and a third is written,
/// between the halves of the region.
fn merges() -> Vec<u64> {
    let n = PAGES / 2;
    let mut trace = Vec::new();
    let mut from = 0;
    for run in (0..).map(|i| 32 << i).take_while(|run| run < &n) {
        let to = n - from;
        for start in (0..n).step_by(2 * run as usize) {
            for i in 0..run {
                let left = [from + start + i, to + start + 2 * i];
                let right = [from + start + run + i, to + start + 2 * i + 1];
                trace.extend(left.into_iter().chain(right).filter(|&p| p < PAGES));
            }
        }
        from = to;
    }
    trace
}

/// Objects of 64 KiB at random, each read from start to end.
fn objects(n: usize) -> Vec<u64> {
    let mut r = Rng(3);
    (0..n)
        .flat_map(|_| {
            let at = r.below(PAGES / 16) * 16;
            at..at + 16
        })
        .collect()
}

/// Units at random, used fully or for a page only: what is remembered of a unit is wrong half of
/// the time.
fn liar(visits: usize) -> Vec<u64> {
    let mut r = Rng(4);
    let mut trace = Vec::new();
    for _ in 0..visits {
        let unit = r.below(UNITS as u64);
        let first = r.below(UNIT_PAGES);
        let uses = if r.below(2) == 0 { UNIT_PAGES } else { 1 };
        // An odd step: every page once, out of sequence.
        trace.extend((0..uses).map(|i| unit * UNIT_PAGES + (first + i * 165) % UNIT_PAGES));
    }
    trace
}

/// Units at random get just as many touches as make them pay for the whole while memory is free, or
/// a single one.
fn spoiler(device: Device, n: usize) -> Vec<u64> {
    let cost = |a: u32, b: u32| u64::from(a) + u64::from(b);
    let whole = cost(device.r#in.whole, device.cpu.whole);
    let uses = whole / cost(device.r#in.page, device.cpu.page) + 1;
    let mut r = Rng(5);
    let mut trace = Vec::new();
    while trace.len() < n {
        let unit = r.below(UNITS as u64);
        let first = r.below(UNIT_PAGES);
        let uses = if r.below(2) == 0 { uses } else { 1 };
        trace.extend((0..uses).map(|i| unit * UNIT_PAGES + (first + i * 165) % UNIT_PAGES));
    }
    trace
}

/// What the last half of a trace, and all of it, cost in nanoseconds: always small, always whole,
/// and under the policy.
struct Row {
    name: &'static str,
    all: [u64; 3],
    late: [u64; 3],
}

fn costs(device: Device, policy: Policy, trace: &[u64]) -> (u64, u64, Machine) {
    let mut m = Machine::new(policy, device, UNITS, capacity());
    let (early, late) = trace.split_at(trace.len() / 2);
    early.iter().for_each(|&p| m.touch(p));
    let half = m.cost;
    late.iter().for_each(|&p| m.touch(p));
    (m.cost, m.cost - half, m)
}

fn run(name: &'static str, device: Device, allowed: Allowed, trace: &[u64]) -> Row {
    let small = if allowed.base_4k {
        Size::Page
    } else {
        Size::Piece
    };
    let policies = [
        Policy::Always(small),
        Policy::Always(Size::Whole),
        Policy::Auto(allowed),
    ];
    let runs = policies.map(|policy| costs(device, policy, trace));
    let us = |ns: u64| ns as f64 / trace.len() as f64 / 1e3;
    let all = runs.each_ref().map(|r| r.0);
    let late = runs.each_ref().map(|r| r.1);
    let ratio = |c: [u64; 3]| c[2] as f64 / c[0].min(c[1]).max(1) as f64;
    println!(
        "{:9} | {name:22} | {:8.2} | {:8.2} | {:8.2} | {:5.2} | {:5.2} | {}",
        device.name,
        us(all[0]),
        us(all[1]),
        us(all[2]),
        ratio(all),
        ratio(late),
        runs[2].2,
    );
    Row { name, all, late }
}

fn head(small: &str) {
    println!(
        "device    | accesses               | {small}, us | 2M, us   | auto, us | ratio | late  | decisions"
    );
}

/// What it may cost to fill a memory that is empty, or full of the wrong sizes, page by page.
fn filling(device: Device) -> u64 {
    capacity() * (u64::from(device.r#in.page) + u64::from(device.cpu.page) + device.evict.0)
}

impl Row {
    /// Twice the better of the two, and the filling of memory.
    fn holds_to_two(&self, device: Device) {
        let [small, whole, auto] = self.all;
        assert!(
            auto <= 2 * small.min(whole) + filling(device),
            "{}: {auto} ns is more than twice {small} or {whole}",
            self.name
        );
    }

    /// Once it has settled, within five in a hundred of the better.
    fn settles_at_the_better(&self) {
        let [small, whole, auto] = self.late;
        let best = small.min(whole);
        assert!(
            auto <= best + best / 20,
            "{}: {auto} ns in the last half, {small} or {whole} alone",
            self.name
        );
    }
}

#[test]
fn auto_is_near_the_better_of_both() {
    head(" 4K");
    let mut sorting = Vec::new();
    quicksort(0..PAGES, &mut sorting);
    for device in DEVICES {
        let traces = [
            ("sequential", sweeps(1, 8)),
            ("descending", downward(8)),
            ("uniform", uniform(1_000_000)),
            ("zipf 0.9", zipf(1_000_000, 1)),
            ("zipf 0.9, 64K groups", zipf(1_000_000, 16)),
            ("zipf 0.9, 2M groups", zipf(1_000_000, 512)),
            ("stride 16K", sweeps(4, 20)),
            ("stride 64K", sweeps(16, 60)),
            ("stride 1M", sweeps(256, 400)),
            ("64K objects", objects(40_000)),
            ("mixed half and half", mixed(600_000)),
            ("phases", phases()),
            ("liar", liar(5_000)),
            ("spoiler", spoiler(device, 400_000)),
            ("quicksort", sorting.clone()),
            ("merge sort", merges()),
        ];
        for (name, trace) in traces {
            let row = run(name, device, Allowed::ALL, &trace);
            row.holds_to_two(device);
            if ["sequential", "descending", "uniform"].contains(&name) {
                row.settles_at_the_better();
            }
        }
    }
}

#[test]
fn auto_is_near_the_better_of_both_without_single_pages() {
    head("64K");
    let pieces = Allowed {
        base_4k: false,
        ..Allowed::ALL
    };
    for device in DEVICES {
        let traces = [
            ("sequential", sweeps(1, 8)),
            ("uniform", uniform(300_000)),
            ("zipf 0.9", zipf(300_000, 1)),
            ("64K objects", objects(40_000)),
            ("mixed half and half", mixed(300_000)),
            ("liar", liar(5_000)),
        ];
        for (name, trace) in traces {
            run(name, device, pieces, &trace).holds_to_two(device);
        }
    }
}

/// Each phase, told from the others by nothing but its faults, costs what the better size for it
/// costs.
#[test]
fn a_change_of_phase_is_followed() {
    for device in DEVICES {
        let mut m = Machine::new(Policy::Auto(Allowed::ALL), device, UNITS, capacity());
        let mut alone = [Size::Page, Size::Whole]
            .map(|size| Machine::new(Policy::Always(size), device, UNITS, capacity()));
        for round in 0..3 {
            for (name, trace) in [("sequential", sweeps(1, 8)), ("uniform", uniform(600_000))] {
                let before = m.cost;
                let best = alone
                    .iter_mut()
                    .map(|m| {
                        let before = m.cost;
                        trace.iter().for_each(|&p| m.touch(p));
                        m.cost - before
                    })
                    .min();
                trace.iter().for_each(|&p| m.touch(p));
                let (best, auto) = (best.unwrap(), m.cost - before);
                println!(
                    "{:9} | round {round}, {name:10} | best alone {:8.2} us | auto {:8.2} us | {:.2}",
                    device.name,
                    best as f64 / trace.len() as f64 / 1e3,
                    auto as f64 / trace.len() as f64 / 1e3,
                    auto as f64 / best as f64
                );
                assert!(auto <= best + best / 20 + 2 * filling(device));
            }
        }
    }
}
