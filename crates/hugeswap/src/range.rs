//! What private and shared regions have in common.

use crate::{Advice, Error, FileMode, Pool, SharedError};
use hugeswap_policy::defrag::thp::Usage;
use hugeswap_policy::markers::Marker;
use hugeswap_policy::{PAGE_BYTES, UNIT_BYTES};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

pub(crate) const PAGE: usize = PAGE_BYTES as usize;
pub(crate) const UNIT: usize = UNIT_BYTES as usize;

/// What the bytes of a range are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    /// Private anonymous memory.
    Private,
    /// A private copy of a file's.
    File(FileMode),
    /// Memory that other processes have mapped, too.
    Shared,
}

/// A managed range of addresses: what [`Region`](crate::Region) and
/// [`SharedRegion`](crate::SharedRegion) have in common. Both dereference to it.
///
/// Nothing here changes the content of the memory, so every method takes `&self`, and any thread
/// may call it. Offsets and lengths are in bytes from the start of the range; a page is 4096
/// bytes, a unit 2 MiB.
///
/// ```
/// use hugeswap::{Advice, ManagedRange, Pool};
/// fn resident_pages(range: &ManagedRange) -> usize {
///     let offsets = (0..range.len()).step_by(4096);
///     offsets.filter(|&at| range.is_resident(at)).count()
/// }
/// let pool = Pool::builder().memory(64 << 20).build()?;
/// let region = pool.region(8 << 20)?;
/// region.advise(0, region.len(), Advice::PageOut)?;
/// println!("{} pages are left in memory", resident_pages(&region));
/// # Ok::<(), hugeswap::Error>(())
/// ```
pub struct ManagedRange {
    pub(crate) pool: Pool,
    addr: NonNull<u8>,
    len: usize,
    pub(crate) backing: Backing,
    /// See [`ManagedRange::tracked`]; 0: writes are not tracked. Changed in the engine's turn.
    pub(crate) tracked: AtomicU64,
}

// SAFETY: the range is memory that is this value's alone (or shared, and then reached only by
// volatile access); the engine may be used from any thread.
unsafe impl Send for ManagedRange {}
// SAFETY: methods that take `&self` only read, or go through a raw pointer or a volatile view,
// which are the caller's to synchronise.
unsafe impl Sync for ManagedRange {}

impl ManagedRange {
    pub(crate) fn new(pool: Pool, addr: NonNull<u8>, len: usize, backing: Backing) -> ManagedRange {
        ManagedRange {
            pool,
            addr,
            len,
            backing,
            tracked: AtomicU64::new(0),
        }
    }

    /// Address of the first byte, aligned to 2 MiB. It is valid for [`ManagedRange::len`] bytes for
    /// the life of the range.
    ///
    /// A system call that is given the pointer fails with EFAULT where the memory is in swap
    /// (signal mode): see [`Region::pin`](crate::Region::pin).
    pub fn as_ptr(&self) -> *mut u8 {
        self.addr.as_ptr()
    }

    /// Length in bytes; not 0.
    pub fn len(&self) -> usize {
        self.len
    }

    /// False: a range is never empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The pool that manages the range.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Address of a range of bytes.
    pub(crate) fn at(&self, offset: usize, len: usize) -> Result<usize, Error> {
        let ok = offset.checked_add(len).is_some_and(|end| end <= self.len);
        if self.is_missing() {
            return Err(Error::Shared(SharedError::Missing));
        }
        if ok {
            Ok(self.addr.as_ptr() as usize + offset)
        } else {
            Err(Error::Range {
                offset,
                len,
                size: self.len,
            })
        }
    }

    /// True if the range is a [`SharedRegion`](crate::SharedRegion).
    pub fn is_shared(&self) -> bool {
        self.backing == Backing::Shared
    }

    /// The length of a range that counts for a shared region: its last unit is whole wherever the
    /// region ends.
    fn whole_units(&self, offset: usize, len: usize) -> usize {
        match self.is_shared() && offset + len == self.len {
            true => (offset + len).next_multiple_of(UNIT) - offset,
            false => len,
        }
    }

    /// Says how `[offset, offset+len)` will be used: a hint, which never changes the content.
    ///
    /// [`Advice::WillNeed`] and [`Advice::PageOut`] act at once: the first begins to read and
    /// returns, the second returns when the data are written. The others stand until other advice
    /// takes their place, and are looked at by every fault from then on; what is in memory stays as
    /// it is. They count for units of 2 MiB: [`Advice::NoHugePage`] for every unit that the range
    /// meets, the others for the units that lie in it whole.
    ///
    /// # Errors
    /// [`Error::Range`]; [`Error::SharedAdvice`] for advice that a shared region does not take.
    pub fn advise(&self, offset: usize, len: usize, advice: Advice) -> Result<(), Error> {
        let at = self.at(offset, len)?;
        let len = self.whole_units(offset, len);
        let engine = self.pool.inner.engine;
        let usage = match advice {
            Advice::WillNeed => {
                engine.willneed(at, len);
                return Ok(());
            }
            Advice::PageOut => {
                engine.pageout(at, len);
                return Ok(());
            }
            Advice::HugePage => Usage::HugePage,
            Advice::NoHugePage => Usage::NoHugePage,
            Advice::Random => Usage::Random,
            Advice::Sequential => Usage::Sequential,
            Advice::Normal => Usage::Normal,
        };
        if self.is_shared() {
            return Err(Error::SharedAdvice(advice));
        }
        engine.advise_use(at, len, usage);
        Ok(())
    }

    /// Copies the bytes from `offset` on to `to`. Unlike a plain access, which raises SIGBUS, it
    /// returns an error for bytes that are lost. Waits for the bytes to come from swap.
    ///
    /// # Errors
    /// [`Error::Lost`] if the swap or the file that holds the bytes failed; the rest of the page or
    /// of the unit of 2 MiB may be lost with them. [`Error::Guard`] and [`Error::Range`]. After an
    /// error `to` has some of the bytes.
    pub fn read_at(&self, offset: usize, to: &mut [u8]) -> Result<(), Error> {
        let at = self.at(offset, to.len())?;
        let engine = self.pool.inner.engine;
        let len = to.len();
        engine.copy_out(at, to).map_err(|_| self.lost(offset, len))
    }

    /// Copies bytes to the range.
    ///
    /// # Safety
    /// Nobody may have a slice of these bytes.
    pub(crate) unsafe fn copy_in(&self, offset: usize, from: &[u8]) -> Result<(), Error> {
        let at = self.at(offset, from.len())?;
        let engine = self.pool.inner.engine;
        // SAFETY: within the range; the rest is the caller's promise.
        unsafe { engine.copy_in(at, from) }.map_err(|_| self.lost(offset, from.len()))
    }

    /// Gives up the content of a range: [`Region::discard`](crate::Region::discard) and
    /// [`SharedRegion::remove`](crate::SharedRegion::remove).
    ///
    /// # Safety
    /// Nobody may have a slice of these bytes.
    pub(crate) unsafe fn give_up(&self, offset: usize, len: usize) -> Result<(), Error> {
        let at = self.at(offset, len)?;
        let engine = self.pool.inner.engine;
        if self.is_shared() {
            return match engine.discard_shared(at, self.whole_units(offset, len)) {
                true => Ok(()),
                false => Err(Error::Stuck { offset, len }),
            };
        }
        let discarded = engine.discard(at, len);
        discarded.map_err(|_| Error::NotDiscarded { offset, len })
    }

    /// The error for bytes that could not be read or written.
    fn lost(&self, offset: usize, len: usize) -> Error {
        let at = self.as_ptr() as usize + offset;
        match self.pool.inner.engine.first_marker(at, len) {
            Some(Marker::Guard | Marker::NoAccess) => Error::Guard { offset, len },
            _ => Error::Lost {
                offset,
                len,
                loss: (at..at + len)
                    .step_by(PAGE)
                    .find_map(|at| self.pool.inner.engine.loss_at(at)),
            },
        }
    }

    /// True in a forked child that could not have a shared region of its parent's.
    pub(crate) fn is_missing(&self) -> bool {
        self.is_shared() && !self.pool.inner.engine.is_shared(self.as_ptr() as usize)
    }

    /// True if the page at `offset` is in memory. False also for an offset beyond the end.
    pub fn is_resident(&self, offset: usize) -> bool {
        offset < self.len
            && !self.is_missing()
            && (self.pool.inner.engine).resident(self.as_ptr() as usize + offset)
    }

    /// The NUMA node of the huge page at `offset`, by the machine's number: 0 on a machine of one
    /// node. `None` if no huge page is there, or its node is not known.
    pub fn numa_node(&self, offset: usize) -> Option<usize> {
        let engine = self.pool.inner.engine;
        (offset < self.len)
            .then(|| engine.node_of(self.as_ptr() as usize + offset))
            .flatten()
    }
}

impl Drop for ManagedRange {
    fn drop(&mut self) {
        let (engine, at) = (self.pool.inner.engine, self.as_ptr() as usize);
        match self.backing {
            Backing::Shared => engine.unmap_shared(at),
            Backing::File(_) => engine.unmap_file(at, self.len),
            Backing::Private => engine.unmap(at, self.len),
        }
    }
}

impl std::fmt::Debug for ManagedRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ManagedRange")
            .field("addr", &self.addr)
            .field("len", &self.len)
            .field("backing", &self.backing)
            .finish()
    }
}
