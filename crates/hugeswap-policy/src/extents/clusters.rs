//! Which clusters of an area to hand out first: those in one piece on the device, where one transfer is one
//! stretch of it.

use super::Extents;

/// The clusters of an area (aligned, all of one size) that lie somewhere with all their pages, those in one piece
/// first, then by the number of their pieces, and in the order of the area among equals.
///
/// A cluster's number here is its *rank*. An allocator that counts slots by rank and looks for a free one from the front on
/// ([`slots::claim`](crate::thp_swap::clusters::claim) with a hint below [`whole`](Clusters::whole)) hands out those in one piece first, and
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

/// Clusters told apart while extents come, one after the other, without a map of them: [`each_cluster`].
struct Telling<F> {
    bytes: u64,
    found: F,
    /// The cluster that the last bytes seen are in, and how many of its bytes lie somewhere.
    part: (u64, u64),
}

impl<F: FnMut(u64, bool)> Telling<F> {
    /// Bytes of the area that follow each other on the device, no others before or after them.
    fn run(&mut self, from: u64, to: u64) {
        let mut at = from;
        while at < to {
            let cluster = at / self.bytes;
            let end = to.min((cluster + 1).saturating_mul(self.bytes));
            let len = end - at;
            if len == self.bytes {
                (self.found)(cluster, true);
            } else {
                if self.part.0 != cluster {
                    self.part = (cluster, 0);
                }
                self.part.1 += len;
                if self.part.1 == self.bytes {
                    (self.found)(cluster, false);
                }
            }
            at = end;
        }
    }
}

/// Tells `found` of each cluster (aligned, of `bytes` bytes) that lies somewhere with all its bytes, and whether it is in one piece: what
/// [`Clusters`] says of a map of these extents, without memory. `extents`: first byte in the area, first byte on the device, length, in
/// order and not overlapping.
pub fn each_cluster(
    extents: impl IntoIterator<Item = (u64, u64, u64)>,
    bytes: u64,
    found: impl FnMut(u64, bool),
) {
    let mut telling = Telling {
        bytes,
        found,
        part: (0, 0),
    };
    // First and last byte (excluded) of what follows each other so far, and where the next would be on the device.
    let mut run = (0, 0, 0);
    for (at, place, len) in extents {
        let (end, next) = (at.saturating_add(len), place.saturating_add(len));
        if at != run.1 || place != run.2 {
            telling.run(run.0, run.1);
            run.0 = at;
        }
        (run.1, run.2) = (end, next);
    }
    telling.run(run.0, run.1);
}
