//! A region: managed memory as a pointer and a length.

use crate::{Error, FileMode, Group, Pool, SharedError, knobs};
use hugeswap_policy::defrag::thp::Usage;
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::markers::Marker;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// What the program knows about its use of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// It will be used soon: begin to read it.
    WillNeed,
    /// It will not be used soon: move it to swap now (units of 2 MiB, and pages of those that are in memory by pages).
    PageOut,
    /// Its content is not needed any more: it reads as zeros from now on. Of a file: what is in memory of the units of 2 MiB that the range
    /// meets is dropped, after it was written to the file if it was changed, and comes from the file again at the next touch. Of a shared
    /// region: it reads as zeros for everybody (the kernel's MADV_REMOVE).
    DontNeed,
    /// Its content is not needed any more, until it is written again: it reads as before or as zeros. Of a file: as `DontNeed`.
    Free,
    /// It is worth huge pages: where `thp.enabled` or `thp.swapin` is `madvise`, it gets them, and where `thp.defrag` is, it waits for
    /// them.
    HugePage,
    /// It is to be in memory by base pages only.
    NoHugePage,
    /// Its pages will be used here and there: under `thp.swapin=auto` it comes in by single pages.
    Random,
    /// It will be used from one end to the other: under `thp.swapin=auto` it comes in by whole units.
    Sequential,
    /// Neither `Random` nor `Sequential`.
    Normal,
    /// Whole pages of it are guards from now on: what they hold is given up, and touching them is SIGSEGV, until `Unguard` (the kernel's MADV_GUARD_INSTALL). `DontNeed`
    /// leaves them. The rest of a unit of 2 MiB with guards comes and goes by base pages; if it is pinned, it is the kernel's for good, and not swapped any more.
    Guard,
    /// Guards are gone; what they were is zeros. What is no guard stays as it is.
    Unguard,
    /// Whole pages of it are poisoned: what they hold is given up, and touching them is SIGBUS, until `DontNeed`. As with UFFDIO_POISON, for who finds that data is lost.
    Poison,
}

/// Managed memory, zero at first or a file's ([`Pool::map_file`]), freed when dropped. `Send` and `Sync` like a `Box<[u8]>`.
pub struct Region {
    pub(crate) pool: Pool,
    addr: NonNull<u8>,
    len: usize,
    pub(crate) file: Option<FileMode>,
    pub(crate) shared: bool,
    /// See [`Region::tracked`]; 0: writes are not tracked. Changed in the engine's turn.
    pub(crate) tracked: AtomicU64,
}

// SAFETY: a region owns its memory like a boxed slice; the engine may be used from any thread.
unsafe impl Send for Region {}
// SAFETY: shared access only reads (or goes through `as_ptr`, which is the caller's to synchronise).
unsafe impl Sync for Region {}

impl Region {
    pub(crate) fn new(pool: Pool, len: usize) -> Result<Region, Error> {
        let addr = pool
            .inner
            .engine
            .map(len, 2 << 20, true)
            .map_err(|_| Error::TooLarge(len))?;
        let addr = NonNull::new(addr as *mut u8).ok_or(Error::TooLarge(len))?;
        Ok(Region::at(pool, addr, len, false))
    }

    pub(crate) fn at(pool: Pool, addr: NonNull<u8>, len: usize, shared: bool) -> Region {
        Region {
            pool,
            addr,
            len,
            file: None,
            shared,
            tracked: AtomicU64::new(0),
        }
    }

    /// A region of a file, mapped at `addr`.
    pub(crate) fn of_file(pool: Pool, addr: NonNull<u8>, len: usize, mode: FileMode) -> Region {
        Region {
            pool,
            addr,
            len,
            file: Some(mode),
            shared: false,
            tracked: AtomicU64::new(0),
        }
    }

    /// First byte; valid for [`Region::len`] bytes for the life of the region, aligned to 2 MiB. Not to be written through unless
    /// [`Region::is_writable`].
    pub fn as_ptr(&self) -> *mut u8 {
        self.addr.as_ptr()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Is the region of no length? (Never: such a region cannot be made.)
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: mapped, initialised memory of `len` bytes owned by `self`.
        unsafe { std::slice::from_raw_parts(self.addr.as_ptr(), self.len) }
    }

    /// The bytes, to change.
    ///
    /// # Panics
    /// If the region is one of a file that may only be read; [`Region::is_writable`] tells.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        assert!(self.is_writable(), "{}", Error::ReadOnly);
        // SAFETY: as in `as_slice`, and `self` is borrowed uniquely.
        unsafe { std::slice::from_raw_parts_mut(self.addr.as_ptr(), self.len) }
    }

    pub(crate) fn range(&self, offset: usize, len: usize) -> Result<usize, Error> {
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

    /// Tells how `[offset, offset+len)` will be used. `DontNeed` and `Free` change the content, hence `&mut`.
    ///
    /// `HugePage`, `NoHugePage`, `Random`, `Sequential` and `Normal` stand until other advice takes their place, and count for units
    /// of 2 MiB: `NoHugePage` for every unit that the range meets, the others for those that lie in it whole. They are looked at by
    /// every fault; what is in memory stays as it is.
    ///
    /// # Errors
    /// [`Error::Range`]; [`Error::NotDiscarded`] for `DontNeed` of parts of units where memory and swap are full.
    pub fn advise(&mut self, offset: usize, len: usize, advice: Advice) -> Result<(), Error> {
        let at = self.range(offset, len)?;
        let engine = self.pool.inner.engine;
        // Of a shared region the last unit is whole wherever it ends.
        let len = match self.shared && offset + len == self.len {
            true => (offset + len).next_multiple_of(2 << 20) - offset,
            false => len,
        };
        if !matches!(
            advice,
            Advice::WillNeed | Advice::PageOut | Advice::DontNeed
        ) {
            self.alone("advice other than WillNeed, PageOut and DontNeed")?;
        }
        match advice {
            Advice::WillNeed => engine.willneed(at, len),
            Advice::PageOut => engine.pageout(at, len),
            Advice::DontNeed if self.shared => {
                if !engine.discard_shared(at, len) {
                    return Err(Error::Stuck);
                }
            }
            Advice::DontNeed => engine
                .discard(at, len)
                .map_err(|_| Error::NotDiscarded { offset, len })?,
            Advice::Free => engine.free_lazily(at, len),
            Advice::HugePage => engine.advise_use(at, len, Usage::HugePage),
            Advice::NoHugePage => engine.advise_use(at, len, Usage::NoHugePage),
            Advice::Random => engine.advise_use(at, len, Usage::Random),
            Advice::Sequential => engine.advise_use(at, len, Usage::Sequential),
            Advice::Normal => engine.advise_use(at, len, Usage::Normal),
            Advice::Guard => self.mark(at, len, Marker::Guard)?,
            Advice::Poison => self.mark(at, len, Marker::Poison)?,
            Advice::Unguard => engine.remove_markers(at, len, Marker::Guard),
        }
        Ok(())
    }

    /// Marks whole pages.
    fn mark(&self, at: usize, len: usize, marker: Marker) -> Result<(), Error> {
        // The last page of the region is whole wherever that ends.
        let end = match at + len == self.as_ptr() as usize + self.len {
            true => (at + len).next_multiple_of(4096),
            false => at + len,
        };
        let engine = self.pool.inner.engine;
        let why = match engine.install_markers(at, end - at, marker) {
            Ok(()) => return Ok(()),
            Err(e) => match e.0 {
                libc::EINVAL => "they must be whole pages",
                libc::EOPNOTSUPP => {
                    "only private memory in signal mode, where there is userfaultfd, has markers, and not with markers=off"
                }
                libc::EAGAIN => "some of it is pinned",
                libc::EEXIST => "a guard cannot be poisoned",
                libc::EIO => "some of it is lost",
                _ => "mappings, or memory, are short",
            },
        };
        Err(Error::Marker(why))
    }

    /// Why bytes cannot be had.
    fn lost(&self, offset: usize, len: usize) -> Error {
        let at = self.as_ptr() as usize + offset;
        match self.pool.inner.engine.first_marker(at, len) {
            Some(Marker::Guard) => Error::Guard { offset, len },
            _ => Error::Lost {
                offset,
                len,
                loss: (at..at + len)
                    .step_by(4096)
                    .find_map(|at| self.pool.inner.engine.loss_at(at)),
            },
        }
    }

    /// Sets `thp.enabled`, `thp.swapin` or `thp.defrag` (`KEY=VALUE`) for this region alone, from now on and whatever the pool's is; a forked
    /// child has what was set before the fork. Other settings are refused.
    pub fn set(&self, setting: &str) -> Result<(), Error> {
        let (knob, value) = knobs::parse_setting(setting).map_err(Error::Setting)?;
        self.set_own(knob, Some(value))
    }

    /// Has the region follow the pool's `thp.enabled`, `thp.swapin` or `thp.defrag` (`KEY`) again.
    pub fn unset(&self, key: &str) -> Result<(), Error> {
        let unknown = || Error::Setting(format!("no setting is called '{key}'"));
        self.set_own(knobs::find(key).ok_or_else(unknown)?, None)
    }

    fn set_own(&self, knob: Knob, value: Option<u64>) -> Result<(), Error> {
        self.alone("settings of its own")?;
        let at = self.addr.as_ptr() as usize;
        let engine = self.pool.inner.engine;
        if engine.set_for_range(at, self.len, knob, value) {
            return Ok(());
        }
        let name = knob.name();
        Err(Error::Setting(format!(
            "{name} is the pool's: a region has thp.enabled, thp.swapin and thp.defrag of its own"
        )))
    }

    /// Puts the region in a group of the same pool; it leaves the one it was in. In memory and in swap, all of it counts there from now on.
    pub fn set_group(&self, group: &Group) -> Result<(), Error> {
        self.alone("groups")?;
        if !group.is_of(&self.pool) {
            let other = "the group is another pool's: take one from the region's own pool";
            return Err(Error::Setting(other.into()));
        }
        let at = self.addr.as_ptr() as usize;
        let engine = self.pool.inner.engine;
        engine.assign_group(at, self.len, group.number());
        Ok(())
    }

    /// Brings `[offset, offset+len)` in and holds it there until the pin is dropped, so that a system call
    /// can be given it. `write`: the call will write to it.
    pub fn pin(&self, offset: usize, len: usize, write: bool) -> Result<Pin<'_>, Error> {
        self.alone("pins (copy with read_at and write_at)")?;
        let at = self.range(offset, len)?;
        if write && !self.is_writable() {
            return Err(Error::ReadOnly);
        }
        let engine = self.pool.inner.engine;
        engine.pin(at, len, write).map_err(|e| match e.0 {
            11 => Error::PinTooLarge(len, engine.pin_limit()),
            _ => Error::BringIn(e.into()),
        })?;
        Ok(Pin {
            region: self,
            at,
            len,
        })
    }

    /// Most bytes one pin may hold.
    pub fn pin_limit(&self) -> usize {
        self.pool.inner.engine.pin_limit()
    }

    /// Copies bytes from `offset` on to `to`, and says so if they are lost: the swap, or file, that held them failed. (A plain access to
    /// them is SIGBUS.) Whatever else the unit of 2 MiB or the page holds may be lost with them;
    /// [`Advice::DontNeed`] makes zeros of it. On an error `to` has some of the bytes.
    pub fn read_at(&self, offset: usize, to: &mut [u8]) -> Result<(), Error> {
        let at = self.range(offset, to.len())?;
        let engine = self.pool.inner.engine;
        let len = to.len();
        engine.copy_out(at, to).map_err(|_| self.lost(offset, len))
    }

    /// Copies bytes to the region from `offset` on, and says so if the rest of a page that they belong to is lost. On an error some of
    /// them may have been copied.
    pub fn write_at(&mut self, offset: usize, from: &[u8]) -> Result<(), Error> {
        let at = self.range(offset, from.len())?;
        if !self.is_writable() {
            return Err(Error::ReadOnly);
        }
        let engine = self.pool.inner.engine;
        // SAFETY: within the region, which is borrowed uniquely.
        unsafe { engine.copy_in(at, from) }.map_err(|_| self.lost(offset, from.len()))
    }

    /// Is this a forked child that could not have a shared region of its parent's?
    fn is_missing(&self) -> bool {
        self.shared
            && !self
                .pool
                .inner
                .engine
                .is_shared(self.addr.as_ptr() as usize)
    }

    /// Is the page at `offset` in memory?
    pub fn is_resident(&self, offset: usize) -> bool {
        offset < self.len
            && !self.is_missing()
            && self
                .pool
                .inner
                .engine
                .resident(self.addr.as_ptr() as usize + offset)
    }

    /// The node (NUMA) of the huge page at `offset`, by the machine's number, as far as that is known. None: what is there is not in a huge
    /// page, or not in memory. Where there is one node: 0.
    pub fn numa_node(&self, offset: usize) -> Option<usize> {
        let engine = self.pool.inner.engine;
        (offset < self.len)
            .then(|| engine.node_of(self.addr.as_ptr() as usize + offset))
            .flatten()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let (engine, at) = (self.pool.inner.engine, self.addr.as_ptr() as usize);
        match self.file {
            _ if self.shared => engine.unmap_shared(at),
            Some(_) => engine.unmap_file(at, self.len),
            None => engine.unmap(at, self.len),
        }
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region")
            .field("addr", &self.addr)
            .field("len", &self.len)
            .finish()
    }
}

/// A range held in memory.
#[must_use]
pub struct Pin<'a> {
    region: &'a Region,
    at: usize,
    len: usize,
}

impl Pin<'_> {
    /// First byte held.
    pub fn as_ptr(&self) -> *mut u8 {
        self.at as *mut u8
    }

    /// Bytes held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Is nothing held?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.region.pool.inner.engine.unpin(self.at, self.len);
    }
}
