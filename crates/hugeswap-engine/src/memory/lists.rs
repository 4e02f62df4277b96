//! What threads tell the reclaim lists: which units came to memory, and which were touched while
//! that could be seen.
//!
//! Threads push events to a queue. kswapd takes them off before it takes units off the lists; a
//! thread that finds the queue full does it in its place.

use super::Memory;
use crate::zeroed::Zeroed;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::workingset::lruvec::{Event, Lruvecs};
use hugeswap_policy::workingset::vmscan::PageKind;
use std::sync::atomic::AtomicU16;

/// A unit that is in memory now, with [`REFERENCED`] if it was touched while it was watched, or
/// [`BY_PAGES`] if it came by base pages.
pub(crate) type LruEvent = u32;
/// See [`LruEvent`]. Windows have far fewer units than 2^30.
const REFERENCED: LruEvent = 1 << 31;
/// See [`LruEvent`].
const BY_PAGES: LruEvent = 1 << 30;

/// The reclaim lists of an engine.
pub(crate) type Lists = Lruvecs<Zeroed<AtomicU16>>;

impl Memory {
    /// Tells the LRU lists that a whole unit is in memory.
    pub(crate) fn note_resident(&self, unit: u32) {
        self.note(unit);
    }

    /// Tells them that the first pages of a base-mapped unit are.
    pub(crate) fn note_pages_resident(&self, unit: u32) {
        self.note(unit | BY_PAGES);
    }

    /// Tells the LRU lists that a unit was touched while it was watched.
    pub(crate) fn note_referenced(&self, unit: u32) {
        self.note(unit | REFERENCED);
    }

    fn note(&self, event: LruEvent) {
        while self.events.push(event).is_err() {
            if let Some(mut lru) = self.lru.try_lock() {
                self.drain_events(&mut lru);
            } else {
                std::hint::spin_loop();
            }
        }
    }

    pub(crate) fn drain_events(&self, lru: &mut Lists) {
        for _ in 0..self.events.capacity() {
            match self.events.pop() {
                Some(e) if e & REFERENCED != 0 => lru.referenced(e & !REFERENCED),
                Some(e) if e & BY_PAGES != 0 => lru.pages_came(e & !BY_PAGES),
                Some(e) => lru.came(e),
                None => break,
            }
        }
        self.publish(lru);
    }

    /// What the lists counted becomes the pool's to show.
    fn publish(&self, lru: &mut Lists) {
        for kind in PageKind::ALL {
            let news = lru.take_news(kind);
            for (event, n) in Event::ALL.into_iter().zip(news) {
                if n > 0 {
                    self.pool.count(Counter::of_lists(event, kind), n);
                }
            }
        }
    }
}
