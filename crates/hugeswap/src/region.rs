//! A region: managed memory as a pointer and a length.

use crate::{Error, FileMode, Group, Pool, knobs};
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::thp::Usage;
use std::ptr::NonNull;

/// What the program knows about its use of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// It will be used soon: begin to read it.
    WillNeed,
    /// It will not be used soon: move it to swap now (units of 2 MiB, and pages of those that are in memory by pages).
    PageOut,
    /// Its content is not needed any more: it reads as zeros from now on. Of a file: what is in memory of the units of 2 MiB that the range
    /// meets is dropped, after it was written to the file if it was changed, and comes from the file again at the next touch.
    DontNeed,
    /// Its content is not needed any more, until it is written again: it reads as before or as zeros. Of a file: as `DontNeed`.
    Free,
    /// It is worth huge pages: where `thp.enabled` or `thp.swapin` is `madvise`, it gets them.
    HugePage,
    /// It is to be in memory by base pages only.
    NoHugePage,
    /// Its pages will be used here and there: under `thp.swapin=auto` it comes in by single pages.
    Random,
    /// It will be used from one end to the other: under `thp.swapin=auto` it comes in by whole units.
    Sequential,
    /// Neither `Random` nor `Sequential`.
    Normal,
}

/// Managed memory, zero at first or a file's ([`Pool::map_file`]), freed when dropped. `Send` and `Sync` like a `Box<[u8]>`.
pub struct Region {
    pub(crate) pool: Pool,
    addr: NonNull<u8>,
    len: usize,
    pub(crate) file: Option<FileMode>,
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
        Ok(Region {
            pool,
            addr,
            len,
            file: None,
        })
    }

    /// A region of a file, mapped at `addr`.
    pub(crate) fn of_file(pool: Pool, addr: NonNull<u8>, len: usize, mode: FileMode) -> Region {
        Region {
            pool,
            addr,
            len,
            file: Some(mode),
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

    fn range(&self, offset: usize, len: usize) -> Result<usize, Error> {
        let ok = offset.checked_add(len).is_some_and(|end| end <= self.len);
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
    pub fn advise(&mut self, offset: usize, len: usize, advice: Advice) -> Result<(), Error> {
        let at = self.range(offset, len)?;
        let engine = self.pool.inner.engine;
        match advice {
            Advice::WillNeed => engine.willneed(at, len),
            Advice::PageOut => engine.pageout(at, len),
            Advice::DontNeed => engine.discard(at, len),
            Advice::Free => engine.free_lazily(at, len),
            Advice::HugePage => engine.advise_use(at, len, Usage::HugePage),
            Advice::NoHugePage => engine.advise_use(at, len, Usage::NoHugePage),
            Advice::Random => engine.advise_use(at, len, Usage::Random),
            Advice::Sequential => engine.advise_use(at, len, Usage::Sequential),
            Advice::Normal => engine.advise_use(at, len, Usage::Normal),
        }
        Ok(())
    }

    /// Sets `thp.enabled` or `thp.swapin` (`KEY=VALUE`) for this region alone, from now on and whatever the pool's is; a forked
    /// child has what was set before the fork. Other settings are refused.
    pub fn set(&self, setting: &str) -> Result<(), Error> {
        let (knob, value) = knobs::parse_setting(setting).map_err(Error::Setting)?;
        self.set_own(knob, Some(value))
    }

    /// Has the region follow the pool's `thp.enabled` or `thp.swapin` (`KEY`) again.
    pub fn unset(&self, key: &str) -> Result<(), Error> {
        let unknown = || Error::Setting(format!("no setting is called '{key}'"));
        self.set_own(knobs::find(key).ok_or_else(unknown)?, None)
    }

    fn set_own(&self, knob: Knob, value: Option<u64>) -> Result<(), Error> {
        let at = self.addr.as_ptr() as usize;
        let engine = self.pool.inner.engine;
        if engine.set_for_range(at, self.len, knob, value) {
            return Ok(());
        }
        let name = knob.name();
        Err(Error::Setting(format!(
            "{name} is the pool's: a region has thp.enabled and thp.swapin of its own"
        )))
    }

    /// Puts the region in a group of the same pool; it leaves the one it was in. In memory and in swap, all of it counts there from now on.
    pub fn set_group(&self, group: &Group) -> Result<(), Error> {
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
        engine.copy_out(at, to).map_err(|_| Error::Lost {
            offset,
            len: to.len(),
        })
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
        unsafe { engine.copy_in(at, from) }.map_err(|_| Error::Lost {
            offset,
            len: from.len(),
        })
    }

    /// Is the page at `offset` in memory?
    pub fn is_resident(&self, offset: usize) -> bool {
        offset < self.len
            && self
                .pool
                .inner
                .engine
                .resident(self.addr.as_ptr() as usize + offset)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let (engine, at) = (self.pool.inner.engine, self.addr.as_ptr() as usize);
        match self.file {
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
