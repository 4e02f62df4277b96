//! The map against a `BTreeMap`, exhaustively where it is small.

use super::*;
use crate::extents::for_each_cluster;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn extent(first: u32, pages: u32, backing: u8, page: u64) -> Extent {
    let place = Place { backing, page };
    Extent {
        first,
        pages,
        place,
    }
}

/// Every page by itself: the plainest model.
type Model = BTreeMap<u32, Place>;

fn model(extents: &[Extent]) -> Model {
    let pages = extents.iter().flat_map(|e| {
        (0..e.pages).map(|k| {
            let place = Place {
                backing: e.place.backing,
                page: e.place.page + u64::from(k),
            };
            (e.first + k, place)
        })
    });
    pages.collect()
}

fn next(place: Option<Place>) -> Option<Place> {
    place.map(|p| Place {
        backing: p.backing,
        page: p.page + 1,
    })
}

/// The runs of a range, page by page.
fn plain_runs(model: &Model, first: u32, stop: u32) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut expected = None;
    for page in first..stop {
        let place = model.get(&page).copied();
        match runs.last_mut() {
            Some(run) if expected == place && run.place.is_some() == place.is_some() => {
                run.pages += 1;
            }
            _ => runs.push(Run {
                first: page,
                pages: 1,
                place,
            }),
        }
        expected = next(place);
    }
    runs
}

/// Everything the map answers about pages below `to` is what the model says.
fn check(extents: &[Extent], to: u32) {
    let map = Extents::new(extents.iter().copied()).unwrap();
    let model = model(extents);
    let end = model.last_key_value().map_or(0, |(p, _)| p + 1);
    assert_eq!(map.end(), end);
    let whole = plain_runs(&model, 0, end);
    let merged: Vec<Extent> = whole
        .iter()
        .filter_map(|r| Some(extent(r.first, r.pages, r.place?.backing, r.place?.page)))
        .collect();
    assert_eq!(map.iter().collect::<Vec<_>>(), merged);
    assert_eq!(
        (map.len(), map.is_empty()),
        (merged.len(), merged.is_empty())
    );
    let mut run = whole.iter();
    let mut now = run.next();
    for page in 0..to {
        while now.is_some_and(|r| r.first + r.pages <= page) {
            now = run.next();
        }
        let found = map.look_up(page);
        let pages = now.map_or(u32::MAX - page, |r| r.first + r.pages - page);
        assert_eq!(
            found,
            Run {
                first: page,
                pages,
                place: model.get(&page).copied()
            }
        );
    }
}

/// Extents from the lengths of gaps and pieces; a piece continues the one before on the device if
/// it says so.
fn laid_out(pieces: &[(u32, u32, u8, bool)]) -> Vec<Extent> {
    let (mut first, mut after) = (
        0,
        Place {
            backing: 0,
            page: 7,
        },
    );
    let mut out = Vec::new();
    for &(gap, pages, backing, continues) in pieces {
        first += gap;
        let place = if continues {
            after
        } else {
            Place {
                backing,
                page: after.page * 3 % 1000 + 5,
            }
        };
        out.push(Extent {
            first,
            pages,
            place,
        });
        first += pages;
        after = Place {
            page: place.page + u64::from(pages),
            ..place
        };
    }
    out
}

fn pieces(most: usize, longest: u32) -> impl Strategy<Value = Vec<(u32, u32, u8, bool)>> {
    let gap = prop_oneof![3 => Just(0), 1 => 0..longest];
    // Mostly short, some long: buckets are crowded and empty.
    let pages = prop_oneof![4 => 0u32..4, 1 => 0..longest];
    prop::collection::vec((gap, pages, 0u8..3, any::<bool>()), 0..most)
}

proptest! {
    #[test]
    fn agrees_with_a_tree(pieces in pieces(120, 60)) {
        let extents = laid_out(&pieces);
        let end = extents.last().map_or(0, |e| e.first + e.pages);
        check(&extents, end + 70);
    }

    #[test]
    fn ranges_are_split_where_extents_end(pieces in pieces(60, 20), first in 0u32..400, pages in 0u32..400) {
        let extents = laid_out(&pieces);
        let map = Extents::new(extents.iter().copied()).unwrap();
        let found: Vec<Run> = map.runs(first, pages).collect();
        prop_assert_eq!(found, plain_runs(&model(&extents), first, first + pages));
    }

    #[test]
    fn clusters_and_their_pieces_are_those_of_a_map(pieces in pieces(80, 40), size in 1u32..20) {
        let extents = laid_out(&pieces);
        let map = Extents::new(extents.iter().copied()).unwrap();
        let expected: Vec<(u64, u32)> = (0..map.end() / size)
            .map(|n| (n, map.runs(n * size, size).collect::<Vec<_>>()))
            .filter(|(_, runs)| runs.iter().all(|r| r.place.is_some()))
            .map(|(n, runs)| (n.into(), runs.len() as u32))
            .collect();
        let bytes = |e: &Extent| (u64::from(e.first), e.place.pack(), u64::from(e.pages));
        let mut found = Vec::new();
        for_each_cluster(extents.iter().map(bytes), size.into(), |n, pieces| found.push((n, pieces)));
        prop_assert_eq!(found, expected);
    }

    /// Far apart and far out, where every product is at its largest. Only borders are looked at.
    #[test]
    fn holds_at_any_scale(mut cuts in prop::collection::vec(any::<u32>(), 2..200), tail in prop::collection::vec(1u32..9, 0..60)) {
        // A crowd at the end of a wide area.
        let crowd = tail.iter().scan(u32::MAX - 600, |at, n| { *at += n; Some(*at) });
        cuts.extend(crowd);
        cuts.sort_unstable();
        cuts.dedup();
        let mut extents: Vec<Extent> = cuts
            .windows(2)
            .enumerate()
            .map(|(n, w)| extent(w[0], w[1] - w[0], n as u8, PLACE_PAGES - u64::from(u32::MAX) - n as u64))
            .collect();
        extents.retain(|e| e.place.backing % 5 != 3);
        let map = Extents::new(extents.iter().copied()).unwrap();
        let starts: BTreeMap<u32, Extent> = extents.iter().map(|e| (e.first, *e)).collect();
        for cut in cuts {
            for page in [cut.saturating_sub(1), cut, cut.saturating_add(1)] {
                let before = starts.range(..=page).next_back().map(|(_, e)| *e);
                let inside = before.filter(|e| page - e.first < e.pages);
                let place = inside.map(|e| Place { page: e.place.page + u64::from(page - e.first), ..e.place });
                prop_assert_eq!(map.look_up(page).place, place);
            }
        }
    }
}

/// Every area of up to 7 pages, each a gap, on either of two backings, continuing the page before
/// or not.
#[test]
fn every_small_area() {
    fn grow(extents: &mut Vec<Extent>, page: u32, last: u32) {
        if page == last {
            check(extents, last + 3);
            return;
        }
        grow(extents, page + 1, last);
        let before = extents.last().copied();
        let elsewhere =
            [(0, 100), (1, 200)].map(|(b, p)| extent(page, 1, b, p + 10 * u64::from(page)));
        let after = before.map(|e| Extent {
            first: page,
            place: Place {
                page: e.place.page + 1,
                ..e.place
            },
            ..e
        });
        for e in elsewhere.into_iter().chain(after) {
            extents.push(e);
            grow(extents, page + 1, last);
            extents.pop();
        }
    }
    for pages in 0..=7 {
        grow(&mut Vec::new(), 0, pages);
    }
}

/// An empty extent breaks nothing, wherever on the device it says it is.
#[test]
fn empty_extents_part_no_piece() {
    let extents = [(0, 500, 3), (3, 900, 0), (3, 503, 1)];
    let mut found = Vec::new();
    for_each_cluster(extents, 4, |n, pieces| found.push((n, pieces)));
    assert_eq!(found, [(0, 1)]);
    let map = Extents::new(extents.map(|(at, place, len)| extent(at as u32, len as u32, 0, place)));
    assert_eq!(map.unwrap().len(), 1);
}

#[test]
fn a_map_of_nothing_has_nothing() {
    let map = Extents::new([]).unwrap();
    assert!(map.is_empty());
    assert_eq!((map.len(), map.end()), (0, 0));
    assert_eq!(map.look_up(0).place, None);
    assert_eq!(map.look_up(u32::MAX).pages, 0);
    assert_eq!(map.runs(5, 3).count(), 1);
    assert!(Extents::new([extent(9, 0, 0, 0)]).unwrap().is_empty());
}

#[test]
fn pieces_merge_across_any_number_but_not_across_backings_or_gaps() {
    let map = Extents::new([
        extent(0, 4, 0, 100),
        extent(4, 4, 0, 104),
        extent(8, 4, 0, 108),
        extent(12, 4, 1, 112),
        extent(20, 4, 1, 116),
        extent(24, 4, 1, 100),
    ])
    .unwrap();
    let sizes: Vec<_> = map.iter().map(|e| (e.first, e.pages)).collect();
    assert_eq!(sizes, [(0, 12), (12, 4), (20, 4), (24, 4)]);
}

#[test]
fn what_is_out_of_order_or_bounds_is_refused() {
    let new = |list: &[Extent]| Extents::new(list.iter().copied()).map(|m| m.len());
    let one = extent(8, 4, 0, 0);
    assert_eq!(new(&[one, one]), Err(Refused::Order(8)));
    assert_eq!(new(&[one, extent(11, 1, 0, 50)]), Err(Refused::Order(11)));
    assert_eq!(new(&[one, extent(0, 1, 0, 50)]), Err(Refused::Order(0)));
    assert_eq!(
        new(&[extent(u32::MAX, 1, 0, 0)]),
        Err(Refused::Range(u32::MAX))
    );
    assert_eq!(new(&[extent(u32::MAX - 1, 1, 0, 0)]), Ok(1));
    assert_eq!(
        new(&[extent(0, 1, 255, PLACE_PAGES)]),
        Err(Refused::Range(0))
    );
    assert_eq!(new(&[extent(0, 1, 255, u64::MAX)]), Err(Refused::Range(0)));
    let last = extent(0, 1, 255, PLACE_PAGES - 1);
    assert_eq!(new(&[last]), Ok(1));
    let map = Extents::new([last]).unwrap();
    assert_eq!(map.look_up(0).place, Some(last.place));
}

/// Memory is what the head of the file says: 12 bytes an extent, and a fixed rest.
#[test]
fn an_extent_takes_12_bytes() {
    for n in [1, 2, 1000, 84_656] {
        let map = Extents::new((0..n).map(|k| extent(k * 3, 3, 0, u64::from(k) * 7))).unwrap();
        assert_eq!(map.len(), n as usize);
        assert!(
            map.bytes() <= 12 * n as usize + 128,
            "{} bytes",
            map.bytes()
        );
    }
}

/// The worst for the directory: one bucket has nearly all of them.
#[test]
fn a_crowded_bucket_is_searched() {
    let mut extents: Vec<_> = (0..5000)
        .map(|k| extent(k, 1, 0, u64::from(k) * 2))
        .collect();
    extents.push(extent(5000, u32::MAX - 5000, 1, 0));
    let map = Extents::new(extents.iter().copied()).unwrap();
    for e in &extents {
        let run = map.look_up(e.first);
        assert_eq!((run.place, run.pages), (Some(e.place), e.pages));
    }
}

/// Threads share a map while others make and drop maps of their own.
#[test]
fn many_threads_look_up_at_once() {
    let extents: Vec<_> = (0..3000)
        .map(|k| extent(k * 5, 5, (k % 3) as u8, u64::from(k) * 11))
        .collect();
    let map = Extents::new(extents.iter().copied()).unwrap();
    std::thread::scope(|s| {
        for thread in 0..4u32 {
            let (map, extents) = (&map, &extents);
            s.spawn(move || {
                for k in 0..30_000u32 {
                    let page = k.wrapping_mul(2_654_435_761).wrapping_add(thread) % 15_000;
                    let e = extents[page as usize / 5];
                    let skip = page - e.first;
                    let place = Place {
                        page: e.place.page + u64::from(skip),
                        ..e.place
                    };
                    assert_eq!(
                        map.look_up(page),
                        Run {
                            first: page,
                            pages: 5 - skip,
                            place: Some(place)
                        }
                    );
                }
            });
        }
    });
}
