//! Which clusters of an area to hand out first: those in one piece on the device, where one transfer is one
//! stretch of it.

use super::Extents;

/// The clusters of an area (aligned, all of one size) that lie somewhere with all their pages, those in one piece
/// first, then by the number of their pieces, and in the order of the area among equals.
///
/// A cluster's number here is its *rank*. An allocator that counts slots by rank and looks for a free one from the front on
/// ([`slots::claim`](crate::slots::claim) with a hint below [`whole`](Clusters::whole)) hands out those in one piece first, and
/// needs to know nothing else of extents. What grows at the end of the area ranks behind what was there if its clusters are ranked by themselves.
pub struct Clusters {
    /// First page and pieces, by rank.
    ranked: Box<[(u32, u32)]>,
    whole: usize,
}

impl Clusters {
    /// Ranks the clusters of `pages` pages (not 0) each.
    pub fn new(map: &Extents, pages: u32) -> Clusters {
        let firsts = (0..map.end() / pages).map(|n| n * pages);
        let mut ranked: Vec<_> = firsts
            .filter_map(|first| {
                let mut runs = map.runs(first, pages);
                let pieces = runs.try_fold(0, |n, run| run.place.map(|_| n + 1))?;
                Some((first, pieces))
            })
            .collect();
        ranked.sort_by_key(|&(_, pieces)| pieces);
        Clusters {
            whole: ranked.partition_point(|&(_, pieces)| pieces == 1),
            ranked: ranked.into(),
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ranked.len()
    }

    /// None?
    pub fn is_empty(&self) -> bool {
        self.ranked.is_empty()
    }

    /// How many are in one piece: those of rank 0 to this, excluded.
    pub fn whole(&self) -> usize {
        self.whole
    }

    /// First page and number of pieces of each, by rank.
    pub fn ranked(&self) -> &[(u32, u32)] {
        &self.ranked
    }
}
