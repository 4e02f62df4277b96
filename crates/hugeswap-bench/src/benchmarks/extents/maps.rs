//! The maps that are compared, over the same made-up extents.

use hugeswap_policy::extents::{Extent, Extents, Place};
use hugeswap_support::random::{below, permutation};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A page of the device, and the number of pages of the area that follow there.
pub type Found = (u64, u32);

/// A map from pages of the area to pages of the device. The pages looked up are in the area.
pub trait Map: Sync {
    /// Look-ups between two checks for the end.
    const CHUNK: usize = 1024;
    fn look_up(&self, page: u32) -> Found;
}

/// Entries in order. A look-up starts at the entry that the last look-up of any thread found, and goes
/// round.
pub struct List {
    extents: Vec<Extent>,
    last: AtomicUsize,
}

impl List {
    pub fn new(extents: &[Extent]) -> List {
        List {
            extents: extents.to_vec(),
            last: AtomicUsize::new(0),
        }
    }

    pub fn bytes(&self) -> usize {
        size_of_val(&*self.extents)
    }
}

impl Map for List {
    const CHUNK: usize = 16;

    fn look_up(&self, page: u32) -> Found {
        let started = self.last.load(Relaxed);
        let (before, after) = self.extents.split_at(started);
        let within = |e: &Extent| page >= e.first && page - e.first < e.pages;
        let (at, e) = match after.iter().position(within) {
            Some(n) => (started + n, after[n]),
            None => {
                let n = before
                    .iter()
                    .position(within)
                    .expect("the page is in the area");
                (n, before[n])
            }
        };
        if at != started {
            self.last.store(at, Relaxed);
        }
        let skip = page - e.first;
        (e.place.page + u64::from(skip), e.pages - skip)
    }
}

/// The standard library's ordered map, by first page.
pub struct Tree(BTreeMap<u32, (u32, u64)>);

impl Tree {
    pub fn new(extents: &[Extent]) -> Tree {
        let entries = extents.iter().map(|e| (e.first, (e.pages, e.place.page)));
        Tree(entries.collect())
    }
}

impl Map for Tree {
    fn look_up(&self, page: u32) -> Found {
        let found = self.0.range(..=page).next_back();
        let (first, (pages, place)) = found.expect("the page is in the area");
        let skip = page - first;
        (place + u64::from(skip), pages - skip)
    }
}

impl Map for Extents {
    fn look_up(&self, page: u32) -> Found {
        let run = Extents::look_up(self, page);
        (run.place.expect("the page is in the area").page, run.pages)
    }
}

/// No map, but as many entries of 12 bytes, one of which is read by its number.
pub struct Array {
    entries: Vec<[u32; 3]>,
    /// Entries for a page, times 2^32.
    scale: u64,
}

impl Array {
    pub fn new(extents: &[Extent], pages: u32) -> Array {
        let entry = |e: &Extent| [e.first, e.pages, e.place.page as u32];
        Array {
            entries: extents.iter().map(entry).collect(),
            scale: ((extents.len() as u64) << 32) / u64::from(pages),
        }
    }

    pub fn bytes(&self) -> usize {
        size_of_val(&*self.entries)
    }
}

impl Map for Array {
    fn look_up(&self, page: u32) -> Found {
        let e = self.entries[((u64::from(page) * self.scale) >> 32) as usize];
        (u64::from(e[2]), e[1])
    }
}

/// `count` extents that make up `pages` pages, cut at random, in random order on the device, none next
/// to the one that it follows in the area. The same call gives the same extents.
pub fn made_up(count: u32, pages: u32) -> Vec<Extent> {
    let mut state = u64::from(count);
    let mut cuts = std::collections::BTreeSet::from([0]);
    while cuts.len() < count as usize {
        cuts.insert(below(pages.into(), &mut state) as u32);
    }
    let firsts: Vec<u32> = cuts.into_iter().collect();
    let ends = firsts[1..].iter().copied().chain([pages]);
    let mut extents: Vec<Extent> = firsts
        .iter()
        .zip(ends)
        .map(|(&first, end)| Extent {
            first,
            pages: end - first,
            place: Place {
                backing: 0,
                page: 0,
            },
        })
        .collect();
    let order = permutation(extents.len(), &mut state);
    let mut free = 0;
    for n in order {
        extents[n].place.page = free;
        // One page between them, so that neighbours on the device do not merge.
        free += u64::from(extents[n].pages) + 1;
    }
    extents
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_maps_find_the_same() {
        for count in [1, 2, 77, 5000] {
            let extents = made_up(count, 100_000);
            assert_eq!(extents.len(), count as usize);
            let ours = Extents::new(extents.iter().copied()).unwrap();
            assert_eq!((ours.len(), ours.end()), (count as usize, 100_000));
            let (list, tree) = (List::new(&extents), Tree::new(&extents));
            let mut state = 3;
            for _ in 0..2000 {
                let page = below(100_000, &mut state) as u32;
                let found = Map::look_up(&ours, page);
                assert_eq!(list.look_up(page), found);
                assert_eq!(tree.look_up(page), found);
                let within = |e: &&Extent| page >= e.first && page - e.first < e.pages;
                let e = extents.iter().find(within).unwrap();
                let place = e.place.page + u64::from(page - e.first);
                assert_eq!(found, (place, e.first + e.pages - page));
            }
        }
    }

    #[test]
    fn an_array_has_an_entry_for_every_page() {
        let extents = made_up(777, 1 << 20);
        let array = Array::new(&extents, 1 << 20);
        for page in [0, 1, (1 << 20) - 1] {
            array.look_up(page);
        }
        assert_eq!(array.bytes(), 777 * 12);
    }
}
