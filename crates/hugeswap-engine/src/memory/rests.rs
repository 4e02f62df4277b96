//! The rests of units: frames of units that were watched, of which some pages were touched and went
//! over to base pages. Until memory is wanted such a frame stays in the arena, so that what else of
//! the unit is in use need not be read from swap, which holds the same bytes.
//!
//! A frame is the list's own from [`Rests::keep`] until it is taken out. Which pages of it count is
//! in the unit's [`Record::rest`](crate::pages::record::Record::rest), under the unit's lock: those
//! that were not in memory by themselves since. What is here of a unit whose record has none is
//! free memory.
//!
//! Concurrency: one lock, which is held while pages are copied from a frame, so that no thread has
//! it taken out meanwhile. The rules of the fault path hold.

use crate::lock::Lock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Frames that are kept at most: a page that is in use is mostly touched soon.
const MOST: usize = 32;

/// A unit and the place of its frame.
#[derive(Clone, Copy, Default)]
struct Rest {
    unit: u32,
    place: u32,
}

/// Oldest first.
#[derive(Default)]
struct List {
    rests: [Rest; MOST],
    len: usize,
}

impl List {
    fn find(&self, unit: u32) -> Option<usize> {
        self.rests
            .iter()
            .take(self.len)
            .position(|r| r.unit == unit)
    }

    /// Takes the one at `i`, which is there, out: its place.
    fn remove(&mut self, i: usize) -> u32 {
        let place = self.rests[i].place;
        self.rests.copy_within(i + 1..self.len, i);
        self.len -= 1;
        place
    }
}

/// See the head of the file.
pub(crate) struct Rests {
    list: Lock<List>,
    len: AtomicU64,
}

impl Default for Rests {
    fn default() -> Rests {
        Rests {
            list: Lock::new(List::default()),
            len: AtomicU64::new(0),
        }
    }
}

impl Rests {
    /// How many frames there are.
    pub fn len(&self) -> u64 {
        self.len.load(Relaxed)
    }

    /// Keeps the frame of a locked unit. A frame that goes for it is the caller's: the unit's own
    /// from before, or the oldest.
    pub fn keep(&self, unit: u32, place: u32) -> Option<u32> {
        let mut list = self.list.lock();
        let out = list.find(unit).or((list.len == MOST).then_some(0));
        let out = out.map(|i| list.remove(i));
        let n = list.len;
        list.rests[n] = Rest { unit, place };
        list.len += 1;
        self.len.store(list.len as u64, Relaxed);
        out
    }

    /// Takes the oldest out: its place.
    pub fn take(&self) -> Option<u32> {
        if self.len() == 0 {
            return None;
        }
        let mut list = self.list.lock();
        let place = (list.len > 0).then(|| list.remove(0));
        self.len.store(list.len as u64, Relaxed);
        place
    }

    /// Has `f` copy from the frame of a locked unit, by its place, if it is here.
    pub fn with<R>(&self, unit: u32, f: impl FnOnce(u32) -> R) -> Option<R> {
        let list = self.list.lock();
        let i = list.find(unit)?;
        Some(f(list.rests[i].place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn each_frame_is_had_once(ops in proptest::collection::vec((0u8..4, 0u32..48), 0..400)) {
            let rests = Rests::default();
            let mut model: VecDeque<(u32, u32)> = VecDeque::new();
            for (place, (op, unit)) in ops.into_iter().enumerate() {
                let place = place as u32;
                let known = model.iter().position(|&(u, _)| u == unit);
                match op {
                    0..=1 => {
                        let full = (model.len() == MOST).then_some(0);
                        let out = known.or(full).and_then(|i| model.remove(i));
                        model.push_back((unit, place));
                        prop_assert_eq!(rests.keep(unit, place), out.map(|(_, p)| p));
                    }
                    2 => prop_assert_eq!(rests.take(), model.pop_front().map(|(_, p)| p)),
                    _ => prop_assert_eq!(rests.with(unit, |p| p), known.map(|i| model[i].1)),
                }
                prop_assert_eq!(rests.len(), model.len() as u64);
            }
        }
    }
}
