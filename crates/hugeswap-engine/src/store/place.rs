//! The pages of a unit in swap, whatever its place is: where each is, whether it can be had, and
//! reads of them.
//!
//! All of it is called under the unit's lock. A unit of a mapped file has nothing here.

use super::scatter::Single;
use super::{PAGES, Store};
use crate::checksum;
use hugeswap_policy::unit::Place;
use hugeswap_sys::{Errno, Result};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

impl Store {
    /// The slot of page `page` of a unit.
    pub(crate) fn slot_of(&self, unit: u32, place: Place, page: usize) -> Option<Single> {
        match place {
            Place::Cluster(cluster) => Some(Single { cluster, at: page }),
            Place::Singles => self.scatter.of(unit)?.get(page),
            Place::Nothing | Place::File(_) => None,
        }
    }

    /// Can page `page` of a unit be read from swap, as far as is known?
    pub(crate) fn is_known(&self, unit: u32, place: Place, page: usize) -> bool {
        self.slot_of(unit, place, page).is_some_and(|s| {
            let sums = self.pool.cluster_sums().get(s.cluster as usize);
            sums.and_then(|sums| sums.get(s.at..s.at + 1))
                .is_some_and(checksum::known)
        })
    }

    /// Is a unit's place, as far as it can be seen, partly bad, so that what can be read of it has
    /// to come by the page?
    pub(crate) fn is_partly_bad(&self, unit: u32, place: Place) -> bool {
        self.is_bad_anywhere(unit, place, 0..PAGES)
    }

    /// The same of some of its pages.
    pub(crate) fn is_bad_anywhere(&self, unit: u32, place: Place, pages: Range<usize>) -> bool {
        if self.pool.header().losses.load(Relaxed) == 0 {
            return false;
        }
        match place {
            Place::Cluster(cluster) => self.pool.is_bad_or_lost(cluster, pages),
            Place::Singles => {
                let places = self.scatter.of(unit);
                let mut slots = pages.filter_map(|p| places?.get(p));
                slots.any(|s| self.pool.is_bad_or_lost(s.cluster, s.at..s.at + 1))
            }
            Place::Nothing | Place::File(_) => false,
        }
    }

    /// Reads all of a unit that is in single slots to `to`. What has no slot is zero.
    pub(crate) fn read_singles(&self, unit: u32, to: usize) -> Result<()> {
        let places = self.scatter.of(unit).ok_or(Errno::EIO)?;
        self.read_apart(places, 0..PAGES, to, true)
    }

    /// Reads pages of a unit that are in swap, side by side in the unit, to `to`. EIO: some are
    /// not.
    pub(crate) fn read_stored(
        &self,
        unit: u32,
        place: Place,
        pages: Range<usize>,
        to: usize,
    ) -> Result<()> {
        match place {
            Place::Cluster(cluster) => self.read_pages(cluster, pages, to),
            Place::Singles => {
                let places = self.scatter.of(unit).ok_or(Errno::EIO)?;
                self.read_apart(places, pages, to, false)
            }
            Place::Nothing | Place::File(_) => Err(Errno::EIO),
        }
    }
}
