//! The decision against its bound, and each of its parts.

use super::*;
use proptest::prelude::*;

const RAM: Costs = Costs {
    page: 8_000,
    piece: 25_000,
    whole: 325_000,
    fill: 325_000,
    memory: 0,
};

fn fault(unit: u64, page: u16, present: u16, density: Density) -> Fault {
    Fault {
        unit,
        page,
        present,
        density,
        stay: STAY,
        near: Near::default(),
    }
}

/// Touches pages of an empty unit in order until they are all there; what the decisions cost, by
/// the same prices.
fn residency(costs: &Costs, allowed: Allowed, pages: &[u16], advice: Advice) -> u64 {
    let mut present = [false; PAGES as usize];
    let mut history = UnitHistory::NEW;
    let mut cost = 0;
    for &page in pages {
        if present[page as usize] {
            continue;
        }
        let there = present.iter().filter(|&&p| p).count() as u16;
        let f = fault(0, page, there, Density::UNKNOWN);
        let d = decide(costs, allowed, &f, history, advice);
        assert!(d.pages.contains(&page) && d.pages.end <= PAGES);
        assert_eq!(d.pages.start % d.pages.len() as u16, 0);
        assert_eq!(d.whole, d.pages.len() == 512);
        let (transfer, brought) = match d.pages.len() {
            1 => (costs.page, 1),
            16 => (costs.piece, 16),
            _ => (costs.whole, u64::from(PAGES - there)),
        };
        cost += transfer + costs.memory * brought;
        present[d.pages.start as usize..d.pages.end as usize].fill(true);
        history = d.history;
    }
    cost
}

fn distinct(pages: &[u16]) -> u64 {
    let set: std::collections::HashSet<_> = pages.iter().collect();
    set.len() as u64
}

prop_compose! {
    fn any_costs()(page in 500u64..500_000, piece in 0u64..500_000, whole in 0u64..20_000_000, memory in 0u64..100_000) -> Costs {
        Costs { page, piece: page + piece, whole: page + piece + whole, fill: 0, memory }
    }
}

proptest! {
    /// Whatever is touched and whatever it costs: never more than twice the better choice in
    /// hindsight, if nothing advises.
    #[test]
    fn never_more_than_twice_the_better_choice(costs in any_costs(), pages in proptest::collection::vec(0..PAGES, 1..1500)) {
        let n = distinct(&pages);
        let small = n * costs.of(Size::Page);
        let best = small.min(costs.of(Size::Whole));
        let cost = residency(&costs, Allowed::ALL, &pages, Advice::None);
        prop_assert!(cost <= 2 * best, "{cost} for {n} pages, best {best}");
    }

    /// Advised or not, no unit costs more than twice the whole.
    #[test]
    fn never_more_than_twice_the_whole(costs in any_costs(), stride in 1u16..=512, advice in 0..5, used in 1u16..=16, pages in proptest::collection::vec(0..PAGES, 1..1500)) {
        let advice = [Advice::None, Advice::Run(stride), Advice::Near(used), Advice::Stream(stride), Advice::Dense][advice as usize];
        let cost = residency(&costs, Allowed::ALL, &pages, advice);
        prop_assert!(cost <= 2 * costs.of(Size::Whole) || cost <= distinct(&pages) * costs.of(Size::Page));
    }

    /// With pieces for the smallest transfer, the same promise in pieces.
    #[test]
    fn never_more_than_twice_the_better_choice_without_single_pages(costs in any_costs(), pages in proptest::collection::vec(0..PAGES, 1..1500)) {
        let pieces: Vec<u16> = pages.iter().map(|p| p / PIECE_PAGES).collect();
        let best = (distinct(&pieces) * costs.of(Size::Piece)).min(costs.of(Size::Whole));
        let allowed = Allowed { base_4k: false, ..Allowed::ALL };
        let cost = residency(&costs, allowed, &pages, Advice::None);
        prop_assert!(cost <= 2 * best, "{cost}, best {best}");
    }

    /// Decisions keep to what is allowed, and accounts survive being kept as a word, from any
    /// state.
    #[test]
    fn keeps_to_what_is_allowed(bits: u64, seed: u64, base_4k: bool, piece_64k: bool, whole: bool,
                                faults in proptest::collection::vec((0u64..1 << 62, 0u16..600, 0u16..600, any::<u8>(), 0u16..513), 1..200)) {
        let allowed = Allowed { base_4k, piece_64k, whole };
        let mut g = Granularity::new(seed);
        let mut history = UnitHistory::from_bits(bits);
        prop_assert_eq!(history.to_bits(), bits);
        for (unit, page, present, density, left) in faults {
            let d = g.on_fault(&RAM, allowed, &fault(unit, page, present, Density(density)), history);
            let ok = match d.pages.len() {
                1 => base_4k || !(piece_64k || whole),
                16 => piece_64k,
                _ => whole,
            };
            prop_assert!(ok, "{d:?} under {allowed:?}");
            prop_assert!(!(d.missed && d.whole), "{d:?}");
            history = g.on_evicted(&RAM, d.history, left, STAY).0;
            g.on_ahead(unit, unit.saturating_add(u64::from(left)));
            g.on_soft_fault(unit, page);
        }
    }
}

/// Units that memory says are dense, of which a share is, in an order of `lies`; touches out of
/// sequence. Total and best cost.
fn advised(seed: u64, units: u64, mut lies: impl FnMut(u64) -> bool) -> (u64, u64, Granularity) {
    let mut g = Granularity::new(seed);
    let (mut cost, mut best) = (0, 0);
    for unit in 0..units {
        let touches = if lies(unit) { 1 } else { PAGES };
        let mut history = UnitHistory::NEW;
        for i in 0..touches {
            // Far from the last unit's, so that no run is seen.
            let f = fault(
                unit * 1000,
                ((unit * 7 + u64::from(i) * 165) % UNIT_PAGES) as u16,
                i,
                Density::FULL,
            );
            let d = g.on_fault(&RAM, Allowed::ALL, &f, history);
            history = d.history;
            cost += if d.whole { RAM.whole } else { RAM.page };
            if d.whole {
                break;
            }
        }
        best += RAM.whole.min(u64::from(touches) * RAM.page);
        g.on_evicted(&RAM, history, 0, STAY);
    }
    (cost, best, g)
}

#[test]
fn advice_that_is_right_costs_little_more_than_the_best() {
    let (cost, best, g) = advised(1, 20_000, |_| false);
    assert!(cost * 100 <= best * 103, "{cost} for {best}");
    assert_eq!(g.trust().1, 63);
}

#[test]
fn advice_that_lies_costs_no_more_than_promised() {
    let constant = 22 * RAM.whole;
    let promised = |best: u64| best * 25 / 12 + constant;
    // The promise is an average: each case over many coins.
    let check = |name: &str, units: u64, lies: &dyn Fn(u64) -> bool| {
        let runs = (0..40).map(|i| advised(i, units, lies));
        let (cost, best) = runs.fold((0, 0), |(c, b), (cost, best, _)| (c + cost, b + best));
        assert!(
            cost / 40 <= promised(best / 40),
            "{name}: {cost} is more than promised for {best}"
        );
    };
    check("always", 5_000, &|_| true);
    for percent in [2, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95] {
        check(&format!("{percent} in 100"), 4_000, &|u| {
            u.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 & 0xffff < percent * 656
        });
    }
    for period in [1, 2, 5, 20, 50, 100, 200, 500, 1000, 2000] {
        check(&format!("in turns of {period}"), 8_000, &|u| {
            u / period % 2 == 1
        });
        check(&format!("{period} times after 3 times"), 8_000, &|u| {
            u % (4 * period) >= 3 * period
        });
    }
}

#[test]
fn a_dense_unit_comes_whole_at_once_and_a_sparse_one_does_not() {
    let mut g = Granularity::new(7);
    let mut whole = |unit: u64, density| {
        let f = fault(unit * 1000, 3, 0, density);
        g.on_fault(&RAM, Allowed::ALL, &f, UnitHistory::NEW).reason == Reason::Dense
    };
    let dense = (0..100).filter(|&u| whole(u, Density::of(400))).count();
    assert!(dense >= 15, "{dense} of 100 were believed");
    assert!((100..200).all(|u| !whole(u, Density::of(40))));
    assert!((200..300).all(|u| !whole(u, Density::UNKNOWN)));
}

/// Sizes of the transfers of a program that touches pages `stride` apart.
fn ramp(costs: &Costs, start: u64, stride: i64, faults: usize) -> Vec<usize> {
    let mut g = Granularity::new(3);
    let mut at = start;
    let mut sizes = Vec::new();
    let mut unit = (u64::MAX, UnitHistory::NEW, std::collections::HashSet::new());
    while sizes.len() < faults {
        let (u, p) = (at / UNIT_PAGES, (at % UNIT_PAGES) as u16);
        if unit.0 != u {
            unit = (u, UnitHistory::NEW, Default::default());
        }
        if !unit.2.contains(&p) {
            let f = fault(u, p, unit.2.len() as u16, Density::UNKNOWN);
            let d = g.on_fault(costs, Allowed::ALL, &f, unit.1);
            unit.1 = d.history;
            unit.2.extend(d.pages.clone());
            sizes.push(d.pages.len());
        }
        at = at.wrapping_add_signed(stride);
    }
    sizes
}

#[test]
fn a_run_ramps_from_pages_to_pieces_to_units() {
    for (start, stride) in [(512_000, 1), (512_511, -1), (512_000, 3), (512_511, -5)] {
        let sizes = ramp(&RAM, start, stride, 60);
        assert_eq!(&sizes[..2], [1, 1], "stride {stride}");
        let first = |size| sizes.iter().position(|&s| s == size).unwrap();
        assert!(
            first(16) < 12 && first(16) < first(512),
            "stride {stride}: {sizes:?}"
        );
        let late = sizes[first(512)..].iter().filter(|&&s| s == 512).count();
        assert!(late > 5, "stride {stride}: {sizes:?}");
    }
}

#[test]
fn a_stride_that_uses_little_of_a_unit_stays_small() {
    // 64 KiB apart: 32 pages of a unit, which is less than a unit costs.
    assert!(ramp(&RAM, 0, 16, 400).iter().all(|&s| s == 1));
    // On a device with latency it is more.
    let disk = Costs {
        page: 107_000,
        piece: 229_000,
        whole: 1_125_000,
        fill: 1_125_000,
        memory: 0,
    };
    assert!(ramp(&disk, 0, 16, 400).ends_with(&[512; 4]));
    assert!(ramp(&disk, 0, 256, 400).iter().all(|&s| s == 1));
}

#[test]
fn pages_that_leave_take_what_they_paid_with_them() {
    let mut g = Granularity::new(5);
    let mut h = UnitHistory::NEW;
    for (i, page) in (0..40).map(|i| (i, i * 165 % PAGES)) {
        h = decide(
            &RAM,
            Allowed::ALL,
            &fault(0, page, i, Density::UNKNOWN),
            h,
            Advice::None,
        )
        .history;
    }
    assert_eq!(h.paid(), 320_000);
    let (h, news) = g.on_evicted(&RAM, h, 10, STAY);
    assert_eq!((h.paid(), news), (80_000, Some(Density::of(40))));
    let (h, news) = g.on_evicted(&RAM, h, 5, STAY);
    assert_eq!((h.paid(), news), (40_000, None));
    assert_eq!(g.on_evicted(&RAM, h, 0, STAY), (UnitHistory::NEW, None));
}

#[test]
fn device_costs_follow_but_shrug_off_outliers() {
    let start = PerSize {
        page: 100_000,
        piece: 220_000,
        whole: 1_100_000,
    };
    let device = DeviceCost::new(start, start);
    device.observe(Direction::In, Size::Page, 10_000_000_000);
    assert_eq!(device.per_size(Direction::In).page, 112_500);
    device.observe(Direction::In, Size::Page, 0);
    assert!(device.per_size(Direction::In).page >= 100_000);
    assert_eq!(device.per_size(Direction::Out), start);
    for _ in 0..100 {
        device.observe(Direction::In, Size::Page, 5_000);
    }
    assert_eq!(device.per_size(Direction::In).page, 5_000);
    for _ in 0..300 {
        device.observe(Direction::In, Size::Page, 5_000_000);
    }
    let now = device.per_size(Direction::In);
    assert_eq!(
        (now.page, now.piece, now.whole),
        (5_000_000, 5_000_000, 5_000_000)
    );
}

/// A piece took 1.7 ms, and a unit 3.7, as swap was turned on: other programs used the disk.
#[test]
fn what_was_measured_in_a_bad_moment_is_tried_again() {
    let start = PerSize {
        page: 25_000,
        piece: 1_700_000,
        whole: 3_700_000,
    };
    let device = DeviceCost::new(start, start);
    let read = |n: u32| (0..n).for_each(|_| device.observe(Direction::In, Size::Page, 25_000));
    read(1023);
    // No piece takes longer than its pages.
    let known = PerSize {
        piece: 400_000,
        ..start
    };
    assert_eq!(device.per_size(Direction::In), known);
    // It falls from there: by an eighth of the way to 132,876.
    read(1);
    assert_eq!(device.per_size(Direction::In).piece, 400_000 - 33_391);
    read(16 * 1024);
    let ns = device.per_size(Direction::In);
    // What the unit says of a piece is 133 us.
    assert!((133_000..400_000).contains(&ns.piece), "{ns:?}");
    // It is tried, and turns out to take 42. That says 600 us of the unit.
    for _ in 0..60 {
        device.observe(Direction::In, Size::Piece, 42_000);
    }
    read(40 * 8192);
    let ns = device.per_size(Direction::In);
    assert!((30_000..60_000).contains(&ns.piece), "{ns:?}");
    assert!((600_000..900_000).contains(&ns.whole), "{ns:?}");
    // What is observed now and then stays what it is, and so does what is written.
    for _ in 0..1000 {
        read(1000);
        device.observe(Direction::In, Size::Piece, 90_000);
    }
    assert!(device.per_size(Direction::In).piece > 80_000);
    assert_eq!(device.per_size(Direction::Out), known);
}

#[test]
fn device_costs_are_interpolated() {
    let start = PerSize {
        page: 100_000,
        piece: 220_000,
        whole: 1_100_000,
    };
    let device = DeviceCost::new(start, start);
    let cost = |bytes| device.cost(Direction::Out, bytes);
    assert_eq!(
        [cost(0), cost(4096), cost(65536), cost(2 << 20)],
        [100_000, 100_000, 220_000, 1_100_000]
    );
    assert_eq!(cost(4096 + 30 * 1024), 160_000);
    assert!((1_950_000..2_050_000).contains(&cost(4 << 20)));
    assert!((0..5000).all(|i| cost(i * 1000) <= cost((i + 1) * 1000)));
}

#[test]
fn memory_has_a_price_only_while_what_is_evicted_returns() {
    let mut price = MemoryPrice::new(7);
    assert_eq!(price.price(), 7);
    // A stream: nothing returns before it comes round. What it evicts has to be written, and that
    // is all: 586 ns a page.
    for _ in 0..100 {
        price.on_evicted(512, 512, 300_000);
        price.on_fault(512, Some(100_000), 50_000, 325_000);
    }
    assert!((580..620).contains(&price.price()), "{}", price.price());
    // Uniform work of which half is in memory: 1 - exp(-1/4) return while a quarter of memory is
    // evicted. A page more would save one fault.
    let uniform = |price: &mut MemoryPrice| {
        for i in 0..100_000 {
            price.on_evicted(1, 1, 1_000);
            let distance = (i % 9 < 2).then_some(10_000);
            price.on_fault(1, distance, 50_000, 8_000);
        }
    };
    uniform(&mut price);
    let half = price.price();
    assert!((9_700..10_300).contains(&half), "{half}");
    // A loop over a half more than memory misses everything with a page more, too.
    for _ in 0..100_000 {
        price.on_evicted(1, 1, 1_000);
        price.on_fault(1, Some(25_000), 50_000, 8_000);
    }
    assert!((990..1_300).contains(&price.price()), "{}", price.price());
    // What is spared is in use as well.
    uniform(&mut price);
    for _ in 0..100_000 {
        price.on_evicted(1, 1, 1_000);
        price.on_fault(1, None, 50_000, 8_000);
        price.on_spared(1);
    }
    assert!(price.price() > 2 * half, "{}", price.price());
}

#[test]
fn pages_that_nobody_touched_are_made_to_pay() {
    let mut price = MemoryPrice::new(0);
    for _ in 0..1000 {
        price.on_evicted(512, 128, 300_000);
        price.on_fault(512, Some(50_000), 50_000, 325_000);
    }
    let high = price.price();
    assert!(high > 10_000, "{high}");
    for _ in 0..1000 {
        price.on_evicted(512, 512, 300_000);
    }
    assert!(price.price() < 2_000, "{}", price.price());
}

/// While whole units are not to be had, a run comes by pieces, and is told where it would have come
/// whole; and does as soon as they are.
#[test]
fn a_run_goes_on_without_huge_pages() {
    let mut g = Granularity::new(5);
    let without = Allowed {
        whole: false,
        ..Allowed::ALL
    };
    let (mut pieces, mut missed) = (0, 0);
    let mut history = UnitHistory::NEW;
    let mut page = 0;
    while page < 3 * UNIT_PAGES {
        if page % UNIT_PAGES == 0 {
            history = UnitHistory::NEW;
        }
        let (unit, at) = (page / UNIT_PAGES, (page % UNIT_PAGES) as u16);
        let d = g.on_fault(
            &RAM,
            without,
            &fault(unit, at, at, Density::UNKNOWN),
            history,
        );
        assert!(!d.whole && d.pages.contains(&at));
        pieces += u32::from(d.pages.len() == 16);
        missed += u32::from(d.missed);
        history = d.history;
        page = unit * UNIT_PAGES + u64::from(d.pages.end);
    }
    assert!(pieces > 60 && missed > 40, "{pieces} {missed}");
    let f = fault(3, 0, 0, Density::FULL);
    let d = g.on_fault(&RAM, Allowed::ALL, &f, UnitHistory::NEW);
    assert!(d.whole && !d.missed, "{d:?}");
}

/// A unit that is tried while a run goes through it comes by pieces, and pays as a stream does:
/// without memory's price.
#[test]
fn a_trial_in_a_run_comes_by_pieces_and_is_over_soon() {
    let dear = Costs {
        memory: 50_000,
        ..RAM
    };
    let mut g = Granularity::new(7);
    let mut h = UnitHistory::trial(false);
    // The run is long before the unit, and the unit is tried because it was dense.
    for page in 0..512 {
        g.streams.on_fault(page);
    }
    let mut transfers = 0;
    let mut page = 0;
    while page < 512 {
        let f = fault(1, page, page, Density::FULL);
        let d = g.on_fault(&dear, Allowed::ALL, &f, h);
        transfers += 1;
        (h, page) = (d.history, d.pages.end);
    }
    // 325 us of a whole unit, at 25 us a piece.
    assert!(transfers < 20, "{transfers}");
}

/// Pages of a unit that is tried may leave before its faults have paid for the whole: what counts
/// is how fast they came.
#[test]
fn a_trial_that_is_cut_short_is_judged_by_its_rate() {
    let verdict = |touches: u64, stayed: u16| {
        let mut g = Granularity::new(9);
        let before = g.trust().1;
        let mut h = UnitHistory::trial(false);
        for _ in 0..touches {
            h = h.and(RAM.of(Size::Page), 0, 1, WORTH);
        }
        g.on_evicted(&RAM, h, 0, stayed);
        g.trust().1.cmp(&before)
    };
    let enough = RAM.of(Size::Whole) / RAM.of(Size::Page) + 1;
    use std::cmp::Ordering::{Greater, Less};
    assert_eq!(verdict(enough / 2, STAY), Less);
    assert_eq!(verdict(enough / 2 + 1, STAY / 2), Greater);
    assert_eq!(verdict(enough / 4 + 1, STAY / 4), Greater);
    // A touch or two at once say nothing.
    assert_eq!(verdict(2, 1), Less);
    // A stream's is not charged for memory, and memory's price is no argument against it.
    let dear = Costs {
        memory: 50_000,
        ..RAM
    };
    let mut g = Granularity::new(9);
    let before = g.trust().0;
    let h = UnitHistory::trial(true).and(RAM.of(Size::Whole), 0, 64, WORTH);
    g.on_evicted(&dear, h, 0, STAY / 2);
    assert!(g.trust().0 > before);
}

/// Runs that have gone far are remembered for long, but not so that no other can begin.
#[test]
fn old_runs_leave_room_for_new_ones() {
    let mut streams = PageStreams::new();
    for page in 0..2000 {
        for run in 0..PAGE_STREAMS as u64 {
            streams.on_fault(run << 20 | page);
        }
    }
    let far = |run: u64, page: u64| (100 + run) << 20 | page;
    for page in 0..8 {
        for run in 0..PAGE_STREAMS as u64 / 4 {
            streams.on_fault(far(run, page));
        }
    }
    for run in 0..PAGE_STREAMS as u64 / 4 {
        assert!(streams.on_fault(far(run, 8)).seen >= 8, "{run}");
    }
}
