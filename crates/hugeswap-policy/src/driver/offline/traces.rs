//! The traces that orders of reclaim are compared on; the same at every call.

/// A sequence of accesses to units.
#[derive(Clone, Debug)]
pub struct Trace {
    /// What it is, in a few words.
    pub name: String,
    /// Unit numbers are below this.
    pub units: u32,
    /// The accesses.
    pub accesses: Vec<u32>,
    /// Sizes of memory, in units, to compare in.
    pub capacities: Vec<u32>,
}

/// Number of accesses for each unit of the footprint, about.
const LENGTH: u32 = 20;

impl Trace {
    /// A trace to compare in a quarter, a half and three quarters of the units it touches.
    fn new(name: &str, units: u32, accesses: Vec<u32>) -> Trace {
        let mut touched = vec![false; units as usize];
        accesses.iter().for_each(|&u| touched[u as usize] = true);
        let footprint = touched.iter().filter(|t| **t).count() as u32;
        Trace {
            name: name.into(),
            units,
            accesses,
            capacities: [1, 2, 3].map(|n| (footprint * n / 4).max(1)).into(),
        }
    }

    /// Sets the one size of memory to compare in.
    fn within(self, capacities: &[u32]) -> Trace {
        Trace {
            capacities: capacities.into(),
            ..self
        }
    }
}

/// Random numbers: splitmix64 (Steele, Lea and Flood, 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u32) -> u32 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u32
    }

    /// A number from 0 to 1.
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Zipf's law over units in random order: the k-th in order of heat is drawn in proportion to
/// 1/k^theta.
struct Zipf {
    /// Sums of the weights up to each.
    sums: Vec<f64>,
    units: Vec<u32>,
}

impl Zipf {
    fn new(units: u32, theta: f64) -> Zipf {
        let mut order: Vec<u32> = (0..units).collect();
        let mut random = Random(u64::from(units));
        for last in (1..units).rev() {
            order.swap(last as usize, random.below(last + 1) as usize);
        }
        let mut sum = 0.0;
        let weights = (1..=units).map(|k| {
            sum += f64::from(k).powf(-theta);
            sum
        });
        Zipf {
            sums: weights.collect(),
            units: order,
        }
    }

    fn next(&self, random: &mut Random) -> u32 {
        let all = self.sums.last().copied().unwrap_or(0.0);
        let x = random.share() * all;
        let k = self.sums.partition_point(|sum| *sum <= x);
        self.units[k.min(self.units.len() - 1)]
    }
}

/// Every trace, over about so many units.
///
/// # Panics
/// If there are fewer than 64 units.
pub fn traces(units: u32) -> Vec<Trace> {
    assert!(units >= 64, "a trace needs some units");
    let length = units * LENGTH;
    let mut all = Vec::new();
    for tenths in [1u32, 3, 5, 7, 9, 11, 13] {
        let theta = f64::from(tenths) / 10.0;
        let (zipf, mut random) = (Zipf::new(units, theta), Random(tenths.into()));
        let accesses = (0..length).map(|_| zipf.next(&mut random)).collect();
        all.push(Trace::new(&format!("zipf {theta}"), units, accesses));
    }
    let mut random = Random(100);
    let uniform = (0..length).map(|_| random.below(units)).collect();
    all.push(Trace::new("uniform", units, uniform));
    // Over 2 and 1.5 times memory.
    let around = (0..units).cycle().take(length as usize).collect();
    all.push(Trace::new("loop", units, around).within(&[units / 2, units * 2 / 3]));
    all.push(hot_beside_scan(units));
    for (name, before, parts) in [
        ("hot + stream", 0, 4),
        ("hot + long stream", 0, 1),
        ("late hot + stream", 2, 4),
        ("late hot + long", 2, 1),
    ] {
        all.push(hot_beside_stream(name, units, before, parts));
    }
    all.push(change(units));
    all.extend(mixes(units));
    all.push(thrash(units));
    all
}

/// An eighth of the units is hot and read at random. Between any two of its reads, an endless scan
/// of the other units goes on by one.
fn hot_beside_scan(units: u32) -> Trace {
    let (hot, mut random) = (units / 8, Random(200));
    let mut scan = (hot..units).cycle();
    let accesses = (0..units * LENGTH).map(|n| match n % 2 {
        0 => random.below(hot),
        _ => scan.next().unwrap_or(hot),
    });
    Trace::new("hot + scan", units, accesses.collect())
}

/// Half of memory is hot and read from start to end: three times, and then each time when a stream
/// of units used once has gone on by memory, or a part of it. The stream may begin earlier, by so
/// many times memory.
fn hot_beside_stream(name: &str, units: u32, before: u32, parts: u32) -> Trace {
    let memory = units / 11;
    let (hot, piece) = (memory / 2, memory / parts);
    let mut at = hot + before * memory;
    let mut accesses: Vec<u32> = (hot..at).collect();
    for _ in 0..3 {
        accesses.extend(0..hot);
    }
    while at + piece <= units {
        accesses.extend(at..at + piece);
        accesses.extend(0..hot);
        at += piece;
    }
    Trace::new(name, units, accesses).within(&[memory])
}

/// One half of the units at random, then the other, four times each.
fn change(units: u32) -> Trace {
    let mut random = Random(300);
    let (half, turn) = (units / 2, units * LENGTH / 8);
    let accesses = (0..units * LENGTH).map(|n| n / turn % 2 * half + random.below(half));
    Trace::new("change", units, accesses.collect())
}

/// Four accesses of one kind to one of another, each in a half of its own.
fn mixes(units: u32) -> Vec<Trace> {
    let half = units / 2;
    let mix = |name: &str, often: &mut dyn FnMut() -> u32, seldom: &mut dyn FnMut() -> u32| {
        let accesses = (0..units * LENGTH).map(|n| match n % 5 {
            4 => half + seldom(),
            _ => often(),
        });
        Trace::new(name, units, accesses.collect())
    };
    let zipf = Zipf::new(half, 0.9);
    let mut random = Random(400);
    let (mut one, mut other) = ((0..half).cycle(), (0..half).cycle());
    let mut scan = || one.next().unwrap_or(0);
    let mut rescan = || other.next().unwrap_or(0);
    let mut uniform = Random(500);
    let first = mix("4 zipf : 1 scan", &mut || zipf.next(&mut random), &mut scan);
    let second = mix("4 scan : 1 zipf", &mut rescan, &mut || {
        zipf.next(&mut random)
    });
    let third = mix(
        "4 zipf : 1 uniform",
        &mut || zipf.next(&mut random),
        &mut || uniform.below(half),
    );
    vec![first, second, third]
}

/// The program of the kernel's series on the workingset of anonymous memory (J. Kim, 2020), scaled
/// to so many units: cold 512, hot-1 96 that becomes active, hot-2 96; then 20 times 128 of the
/// cold ones and hot-2, in 280.
fn thrash(units: u32) -> Trace {
    let part = |n: u32| (units * n / 704).max(1);
    let (cold, hot, slice) = (part(512), part(96), part(128));
    let (one, two) = (cold, cold + hot);
    let mut colds = (0..cold).cycle();
    let mut accesses: Vec<u32> = (0..cold).chain(one..one + hot).collect();
    for _ in 0..8 {
        accesses.extend(colds.by_ref().take(slice as usize / 4));
        accesses.extend(one..one + hot);
    }
    accesses.extend(two..two + hot);
    for _ in 0..20 {
        accesses.extend(colds.by_ref().take(slice as usize));
        accesses.extend(two..two + hot);
    }
    Trace::new("cold, hot-1, hot-2", two + hot, accesses).within(&[part(280)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_are_what_they_are_called() {
        let all = traces(512);
        for t in &all {
            assert!(t.accesses.iter().all(|&u| u < t.units), "{}", t.name);
            assert!(!t.capacities.is_empty() && t.capacities.iter().all(|&c| c > 0 && c < t.units));
        }
        let names: std::collections::BTreeSet<_> = all.iter().map(|t| &t.name).collect();
        assert_eq!(names.len(), all.len());
        // The hottest of zipf 0.5 gets 1 of about 2 * sqrt(512) accesses.
        let zipf = all.iter().find(|t| t.name == "zipf 0.5").unwrap();
        let mut counts = vec![0u32; 512];
        zipf.accesses.iter().for_each(|&u| counts[u as usize] += 1);
        let hottest = *counts.iter().max().unwrap() as usize;
        let share = zipf.accesses.len() as f64 / hottest as f64;
        assert!((36.0..52.0).contains(&share), "{share}");
        assert_eq!(all.last().unwrap().units, 372 + 69 + 69);
    }
}
