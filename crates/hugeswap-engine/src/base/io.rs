//! Pages of a cluster: read and verified, written and summed.

use super::PAGE;
use crate::PAGES;
use crate::bits::Bits;
use crate::checksum;
use crate::pages::record::Record;
use crate::paging::Paging;
use crate::store::batch::{self, Run};
use crate::store::scatter::Single;
use crate::table::Locked;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::unit::{MAY_WRITE, Place, Word};
use std::sync::atomic::AtomicU64;

impl Paging {
    /// Writes the dirty pages of a locked unit, which are write-protected, to its place in swap; to
    /// a new one if it has none or a forked child may read it. Was all written?
    pub(super) fn write_dirty(&self, w: &mut Locked<'_>, record: &Record) -> bool {
        let unit = w.unit();
        if !record.dirty.any() {
            return true;
        }
        if let Some(place) = w.file() {
            return self.write_file_dirty(unit, place, record);
        }
        self.forget_unchanged(unit, **w, record);
        if !record.dirty.any() {
            return true;
        }
        let written = Bits::none();
        written.copy(&record.dirty);
        if !self.place_for_dirty(w, record) {
            return false;
        }
        // Else what is noted as written is not what memory holds.
        debug_assert_ne!(
            self.backend.is_frozen(w.addr(), &record.dirty),
            Some(false),
            "unit {unit} can be written to while it is written out"
        );
        let done = match w.place() {
            Place::Singles => self.write_scattered(unit, record),
            Place::Cluster(cluster) => self.write_in_place(unit, cluster, record),
            Place::Nothing | Place::File(_) => false,
        };
        if done {
            // (If not: what could not be written is not compared with what is stored in its place,
            // which may be bad.)
            record.changed.join(&written);
            self.store.note_full(false);
        }
        done
    }

    /// Will a page that is about to be read also be written? So it was the last time. It comes
    /// writable then, which saves a fault, and whether it was changed is seen by its sum when it
    /// leaves ([`Paging::forget_unchanged`]).
    pub(super) fn is_changed_again(
        &self,
        unit: u32,
        w: Word,
        record: &Record,
        page: usize,
    ) -> bool {
        record.changed.get(page)
            && w.has(MAY_WRITE)
            && self.backend.can().has_single_pages()
            && w.file().is_none()
            && !self.track.is_tracked(unit)
            && self.pool.knob(Knob::CleanDrop) != 0
            && self.sum_of_stored(unit, w, record, page).is_some()
    }

    /// May a page that is about to be read be in memory only, and not in swap besides? Where its
    /// place is compressed memory without a device, it is to be in one of them only (the
    /// kernel's exclusive loads); it comes writable and dirty. (Not of a scattered unit, in whose
    /// table stands what is stored and nothing else: giving a slot back may allocate.)
    pub(super) fn may_move_in(&self, unit: u32, w: Word, page: usize) -> bool {
        w.has(MAY_WRITE)
            && self.backend.can().has_single_pages()
            && !self.track.is_tracked(unit)
            && !self.markers.is_read_only(unit, page)
            && w.cluster().is_some_and(|cluster| {
                self.pool.is_in_memory(cluster)
                    && self.store.may_overwrite(Single { cluster, at: page })
            })
    }

    /// Pages in `moved` of a locked unit that were brought in dirty are not in swap any more.
    pub(super) fn give_up_moved(&self, w: Word, record: &Record, moved: &Bits) {
        let Some(cluster) = w.cluster().filter(|_| moved.any()) else {
            return;
        };
        for page in moved.both(&record.dirty).filter(|&p| record.present.get(p)) {
            self.store.forget_stored(cluster, page..page + 1);
            record.stored.put(page..page + 1, false);
        }
    }

    /// Of the dirty pages of a locked unit, which are write-protected, those that are as they are
    /// stored after all are not dirty any more.
    fn forget_unchanged(&self, unit: u32, w: Word, record: &Record) {
        if self.pool.knob(Knob::CleanDrop) == 0 {
            return;
        }
        let at = self.table.addr(unit);
        let mut unchanged = 0;
        // (What was not changed when it was last in memory did not come writable: it was written
        // to.)
        for page in record.dirty.both(&record.changed) {
            let Some(sum) = self.sum_of_stored(unit, w, record, page) else {
                continue;
            };
            // SAFETY: a dirty page is in memory, readable and write-protected.
            let bytes =
                unsafe { std::slice::from_raw_parts((at + page * PAGE) as *const u8, PAGE) };
            if checksum::matches(&self.store.key, bytes, std::slice::from_ref(sum)) {
                record.dirty.put(page..page + 1, false);
                record.changed.put(page..page + 1, false);
                unchanged += 1;
            }
        }
        if unchanged > 0 {
            self.pool.count(Counter::PageCleanDrop, unchanged);
        }
    }

    /// The sum of a page of a locked unit as it is stored; `None`: it is not, nothing is known of
    /// it, or its slot is bad.
    fn sum_of_stored(
        &self,
        unit: u32,
        w: Word,
        record: &Record,
        page: usize,
    ) -> Option<&AtomicU64> {
        if !record.stored.get(page) || self.store.is_bad_anywhere(unit, w.place(), page..page + 1) {
            return None;
        }
        let slot = self.store.slot_of(unit, w.place(), page)?;
        let sums = self.pool.cluster_sums().get(slot.cluster as usize)?;
        let sum = sums.get(slot.at)?;
        checksum::known(std::slice::from_ref(sum)).then_some(sum)
    }

    /// [`Paging::write_dirty`] for a unit with a cluster that may be overwritten.
    fn write_in_place(&self, unit: u32, cluster: u64, record: &Record) -> bool {
        let at = self.table.addr(unit);
        let mut next = 0;
        loop {
            let mut runs: [Run; batch::MOST] = Default::default();
            let mut n = 0;
            while n < runs.len()
                && let Some(pages) = record.dirty.run(next, PAGES, true)
            {
                next = pages.end;
                let memory = at + pages.start * PAGE;
                runs[n] = Run {
                    cluster,
                    pages,
                    memory,
                };
                n += 1;
            }
            if n == 0 {
                return true;
            }
            let done = self.store.write_runs(&runs[..n]);
            for (k, run) in runs[..n].iter().enumerate() {
                let written = done >> k & 1 == 1;
                // What the cluster held of those that failed may be gone; memory has them.
                record.stored.put(run.pages.clone(), written);
                if written {
                    record.dirty.put(run.pages.clone(), false);
                }
            }
            if done.count_ones() as usize != n {
                return false;
            }
        }
    }
}
