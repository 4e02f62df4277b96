//! Units of which few pages are not zero leave memory by single slots, one for each page that is
//! not. The others take neither a write nor swap, and are zero again when they come back.
//!
//! A huge page is zeroed as a whole at its first touch. Where a program touches its memory here and
//! there, most of each unit that leaves was never used: written as a whole it would be read as data,
//! page by page.
//!
//! The slots are the unit's only once the write-back has ended and the program did not write
//! meanwhile; until then its old place stays. The caller's rules hold here (see `work`).

use crate::bits::Bits;
use crate::checksum;
use crate::paging::Paging;
use crate::store::scatter::Single;
use crate::table::Locked;
use crate::{PAGE, PAGES};
use hugeswap_policy::UNIT_PAGES;
use hugeswap_policy::unit::{Place, WRITABLE};

/// Pages of a unit that are not zero, at most. More are read by fewer calls from a cluster.
const FEW: usize = PAGES / 16;

/// Where the pages of a unit that are not zero were written to.
pub(crate) struct Sparse {
    pages: Bits,
    slots: [u32; FEW],
    n: usize,
}

impl Sparse {
    fn singles(&self) -> impl Iterator<Item = Single> {
        let slots = self.slots.iter().take(self.n);
        slots.map(|&number| Single {
            cluster: u64::from(number) / UNIT_PAGES,
            at: number as usize % PAGES,
        })
    }
}

impl Paging {
    /// Writes the pages of a unit under write-back that are not zero, and stand at `at`, to single
    /// slots. `None`: they are too many, or could not be written so; nothing has changed.
    pub(crate) fn write_sparse(&self, unit: u32, at: usize) -> Option<Sparse> {
        if !self.backend.can().has_single_pages() {
            return None;
        }
        let pages = Bits::none();
        let mut memory = [0; FEW];
        let mut n = 0;
        for page in 0..PAGES {
            let from = at + page * PAGE;
            // SAFETY: the unit's, readable; if it is written to meanwhile, the caller learns of it.
            let bytes = unsafe { std::slice::from_raw_parts(from as *const u8, PAGE) };
            if checksum::is_zero(bytes) {
                continue;
            }
            *memory.get_mut(n)? = from;
            n += 1;
            pages.put(page..page + 1, true);
        }
        self.store.scatter.open(unit)?;
        let buffer = self.base.take_buffer();
        let mut sparse = Sparse {
            pages,
            slots: [0; FEW],
            n: 0,
        };
        while sparse.n < n {
            let rest = &memory[sparse.n..n];
            let Some((cluster, slots)) = self.store.claim_gathered(rest.len()) else {
                self.release_sparse(&sparse);
                return None;
            };
            let memory = &rest[..slots.len()];
            let store = &self.store;
            let written = store.write_side_by_side(cluster, slots.clone(), memory, buffer.addr());
            let first = Single {
                cluster,
                at: slots.start,
            };
            let Some(first) = u32::try_from(first.number())
                .ok()
                .filter(|_| written.is_ok())
            else {
                store.release_singles(cluster, slots);
                self.release_sparse(&sparse);
                return None;
            };
            for k in 0..slots.len() {
                sparse.slots[sparse.n + k] = first + k as u32;
            }
            sparse.n += slots.len();
        }
        Some(sparse)
    }

    /// Ends the write-back of a locked unit whose pages were written so.
    pub(crate) fn finish_sparse(&self, w: Locked<'_>, sparse: &Sparse) {
        let places = self.store.scatter.of(w.unit());
        let Some(places) = places.filter(|_| !w.has(WRITABLE)) else {
            self.release_sparse(sparse);
            return self.end_write_out(w, None);
        };
        if w.place() == Place::Singles {
            self.store.free_pages(places, 0..PAGES);
        }
        for (page, slot) in sparse.pages.both(&sparse.pages).zip(sparse.singles()) {
            places.put(page, Some(slot));
        }
        self.end_write_out(w, Some(Place::Singles));
    }

    fn release_sparse(&self, sparse: &Sparse) {
        for slot in sparse.singles() {
            self.store
                .release_singles(slot.cluster, slot.at..slot.at + 1);
        }
    }
}
