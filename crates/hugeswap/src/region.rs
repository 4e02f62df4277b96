//! Private regions: memory of this process alone, zero at first or a file's.

use crate::range::{Backing, ManagedRange, PAGE};
use crate::{Error, FileMode, Group, Pool};
use hugeswap_engine::MapError;
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::knobs::settings::{RegionSetting, Setting, SettingError};
use hugeswap_policy::markers::Marker;
use std::ops::Deref;
use std::ptr::NonNull;

/// Managed memory that belongs to this process alone, like a `Box<[u8]>`: zero at first
/// ([`Pool::region`]), or a file's content ([`Pool::map_file`]). Dropping it gives memory and swap
/// back, and writes a file's changes to the file.
///
/// A region is read and written as a slice. Hints, page states, tracking and snapshots are methods
/// of [`ManagedRange`], to which it dereferences.
///
/// ```
/// use hugeswap::{Advice, Pool};
/// let pool = Pool::builder().memory(64 << 20).build()?;
/// let mut region = pool.region(256 << 20)?;
/// region.as_mut_slice()[5] = 1;
/// region.advise(0, 2 << 20, Advice::PageOut)?; // keeps the content
/// assert_eq!(region.as_slice()[5], 1);
/// region.discard(0, 2 << 20)?; // gives it up
/// assert_eq!(region.as_slice()[5], 0);
/// # Ok::<(), hugeswap::Error>(())
/// ```
///
/// An access to memory that is lost (its swap device failed, or returned other bytes than were
/// written) raises SIGBUS; it never returns wrong bytes. [`ManagedRange::read_at`] and
/// [`Region::write_at`] return [`Error::Lost`] instead.
pub struct Region {
    range: ManagedRange,
}

impl Deref for Region {
    type Target = ManagedRange;

    fn deref(&self) -> &ManagedRange {
        &self.range
    }
}

impl Region {
    pub(crate) fn new(pool: Pool, len: usize) -> Result<Region, Error> {
        let refused = |cause| Error::Region { len, cause };
        let engine = pool.inner.engine;
        let addr = engine.map(len, crate::range::UNIT, true).map_err(refused)?;
        let addr = NonNull::new(addr as *mut u8).ok_or(refused(MapError::NoAddresses))?;
        Ok(Region {
            range: ManagedRange::new(pool, addr, len, Backing::Private),
        })
    }

    /// A region of a file, mapped at `addr`.
    pub(crate) fn of_file(pool: Pool, addr: NonNull<u8>, len: usize, mode: FileMode) -> Region {
        Region {
            range: ManagedRange::new(pool, addr, len, Backing::File(mode)),
        }
    }

    /// The bytes. Reading those that are in swap waits until they are in memory.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: mapped, initialised memory of `len` bytes that belongs to `self`.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }

    /// The bytes, to be changed.
    ///
    /// # Panics
    /// If the region may only be read ([`Region::is_writable`]).
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        assert!(self.is_writable(), "{}", Error::ReadOnly);
        // SAFETY: as in `as_slice`, and `self` is borrowed uniquely.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len()) }
    }

    /// Copies bytes to the region from `offset` on. Unlike a plain access, which raises SIGBUS, it
    /// returns an error where the rest of a page that the bytes belong to is lost.
    ///
    /// # Errors
    /// [`Error::Lost`], [`Error::Guard`], [`Error::Range`], [`Error::ReadOnly`]. After an error some
    /// of the bytes may have been copied.
    pub fn write_at(&mut self, offset: usize, from: &[u8]) -> Result<(), Error> {
        if !self.is_writable() {
            return Err(Error::ReadOnly);
        }
        // SAFETY: the region is borrowed uniquely.
        unsafe { self.copy_in(offset, from) }
    }

    /// Gives up the content of `[offset, offset+len)`: it reads as zeros from now on
    /// (`MADV_DONTNEED`), and the memory and swap behind whole units are free. Poisoned pages are
    /// healed; guards stay.
    ///
    /// Of a file, the memory of every unit of 2 MiB that the range meets is given up, after it was
    /// written to the file if it was changed; the next access reads the file again.
    ///
    /// # Errors
    /// [`Error::Range`]; [`Error::NotDiscarded`] for parts of units, where memory and swap are full.
    pub fn discard(&mut self, offset: usize, len: usize) -> Result<(), Error> {
        // SAFETY: the region is borrowed uniquely.
        unsafe { self.give_up(offset, len) }
    }

    /// Gives up the content of `[offset, offset+len)` when its memory is wanted (`MADV_FREE`): until
    /// it is written again it reads as before or as zeros. Of a file: as [`Region::discard`].
    ///
    /// # Errors
    /// [`Error::Range`].
    pub fn discard_lazily(&mut self, offset: usize, len: usize) -> Result<(), Error> {
        let at = self.at(offset, len)?;
        self.pool.inner.engine.free_lazily(at, len);
        Ok(())
    }

    /// Gives up the content of whole pages and makes guards of them (`MADV_GUARD_INSTALL`): an
    /// access raises SIGSEGV, until [`Region::remove_guard`]. The rest of a unit of 2 MiB with guards
    /// comes and goes by base pages; if it is pinned it is the kernel's from then on, and not swapped
    /// any more.
    ///
    /// # Errors
    /// [`Error::Marker`] with the cause; pages before the unit that met it are guards. [`Error::Range`].
    pub fn install_guard(&mut self, offset: usize, len: usize) -> Result<(), Error> {
        self.mark(offset, len, Marker::Guard)
    }

    /// Removes the guards of a range; the pages read as zeros. Pages without a guard stay as they
    /// are (`MADV_GUARD_REMOVE`).
    ///
    /// # Errors
    /// [`Error::Range`].
    pub fn remove_guard(&mut self, offset: usize, len: usize) -> Result<(), Error> {
        let at = self.at(offset, len)?;
        let engine = self.pool.inner.engine;
        engine.remove_markers(at, len, Marker::Guard);
        Ok(())
    }

    /// Gives up the content of whole pages and poisons them (as `UFFDIO_POISON` does): an access
    /// raises SIGBUS, until [`Region::discard`]. It is for a program that finds that data is lost.
    ///
    /// # Errors
    /// [`Error::Marker`] with the cause; pages before the unit that met it are poisoned.
    /// [`Error::Range`].
    pub fn poison(&mut self, offset: usize, len: usize) -> Result<(), Error> {
        self.mark(offset, len, Marker::Poison)
    }

    /// Marks whole pages.
    fn mark(&self, offset: usize, len: usize, marker: Marker) -> Result<(), Error> {
        let at = self.at(offset, len)?;
        // The last page of the region is whole wherever the region ends.
        let whole = match offset + len == self.len() {
            true => (offset + len).next_multiple_of(PAGE) - offset,
            false => len,
        };
        let marked = (self.pool.inner.engine).install_markers(at, whole, marker);
        marked.map_err(|cause| Error::Marker { offset, len, cause })
    }

    /// Sets `thp.enabled`, `thp.swapin` or `thp.defrag` for this region alone, whatever the pool's
    /// is, for faults from now on. A forked child has what was set before the fork.
    ///
    /// ```
    /// use hugeswap::settings::ThpSwapin;
    /// # let pool = hugeswap::Pool::builder().memory(64 << 20).build()?;
    /// # let region = pool.region(256 << 20)?;
    /// region.set(ThpSwapin::Never)?;
    /// region.set("thp.swapin=never")?; // the same
    /// # Ok::<(), hugeswap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Setting`] for text that is not one of these settings.
    pub fn set<S>(&self, setting: S) -> Result<(), Error>
    where
        S: TryInto<RegionSetting>,
        S::Error: Into<SettingError>,
    {
        let setting: RegionSetting = setting.try_into().map_err(Into::into)?;
        let setting = Setting::from(setting);
        self.set_own(setting.knob(), Some(setting.value()))
    }

    /// Has the region follow the pool's `thp.enabled`, `thp.swapin` or `thp.defrag` again; `name` is
    /// one of these.
    ///
    /// # Errors
    /// [`Error::Setting`] for any other name.
    pub fn unset(&self, name: &str) -> Result<(), Error> {
        let knob = hugeswap_policy::knobs::find(name);
        let unknown = || SettingError::Unknown { name: name.into() };
        self.set_own(knob.ok_or_else(unknown)?, None)
    }

    fn set_own(&self, knob: Knob, value: Option<u64>) -> Result<(), Error> {
        let at = self.as_ptr() as usize;
        let engine = self.pool.inner.engine;
        if engine.set_for_range(at, self.len(), knob, value) {
            return Ok(());
        }
        Err(SettingError::OnlyOfPool { name: knob.name() }.into())
    }

    /// Puts the region in a group of the same pool; it leaves the one it was in. All of it, in memory
    /// and in swap, counts for the group from now on.
    ///
    /// # Errors
    /// [`Error::ForeignGroup`].
    pub fn set_group(&self, group: &Group) -> Result<(), Error> {
        if !group.is_of(&self.pool) {
            return Err(Error::ForeignGroup);
        }
        let engine = self.pool.inner.engine;
        engine.assign_group(self.as_ptr() as usize, self.len(), group.number());
        Ok(())
    }

    /// Brings `[offset, offset+len)` to memory and holds it there until the pin is dropped, so that
    /// a system call can be given its address. `write`: the call will write to it. Waits for the
    /// bytes to come from swap. Pins count against the budget: hold them briefly.
    ///
    /// ```
    /// use std::os::fd::AsRawFd;
    /// # let pool = hugeswap::Pool::builder().memory(64 << 20).build()?;
    /// # let region = pool.region(256 << 20)?;
    /// # let file = std::fs::File::open("/dev/zero").expect("a device");
    /// let pin = region.pin(4096, 65536, true)?;
    /// // SAFETY: the pin holds the bytes, and nobody else has a slice of them.
    /// let n = unsafe { libc::read(file.as_raw_fd(), pin.as_ptr().cast(), pin.len()) };
    /// # assert!(n > 0);
    /// # Ok::<(), hugeswap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Pin`] with the cause, [`Error::Range`], [`Error::ReadOnly`]. Nothing is held then.
    pub fn pin(&self, offset: usize, len: usize, write: bool) -> Result<Pin<'_>, Error> {
        let at = self.at(offset, len)?;
        if write && !self.is_writable() {
            return Err(Error::ReadOnly);
        }
        let pinned = self.pool.inner.engine.pin(at, len, write);
        pinned.map_err(|cause| Error::Pin { offset, len, cause })?;
        Ok(Pin {
            region: self,
            at,
            len,
        })
    }

    /// The most bytes that one pin may hold.
    pub fn pin_limit(&self) -> usize {
        self.pool.inner.engine.pin_limit()
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.range.fmt(f)
    }
}

/// A range of a [`Region`] that is held in memory; dropping it lets go. See [`Region::pin`].
#[must_use]
pub struct Pin<'a> {
    region: &'a Region,
    at: usize,
    len: usize,
}

impl Pin<'_> {
    /// Address of the first byte held.
    pub fn as_ptr(&self) -> *mut u8 {
        self.at as *mut u8
    }

    /// Number of bytes held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if no byte is held.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.region.pool.inner.engine.unpin(self.at, self.len);
    }
}
