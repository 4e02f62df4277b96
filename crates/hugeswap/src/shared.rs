//! Shared regions: memory that several processes of a pool have mapped.

use crate::range::{Backing, ManagedRange};
use crate::{Builder, Error, Pool, Running, SharedError};
use hugeswap_engine::pool::{self, FaultMode};
use hugeswap_engine::{Engine, EngineConfig, Window, high_descriptor};
use std::ops::Deref;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use vm_memory::{VolatileMemory, VolatileMemoryError, VolatileSlice};

impl Pool {
    /// Makes a shared region of `len` bytes of zeros under `name`: other processes of the pool map
    /// it by [`Pool::attach_shared`], and forked children share it. It lasts as long as any process
    /// has it. Needs signal mode and userfaultfd.
    ///
    /// # Errors
    /// [`Error::Shared`] with the cause: the name is taken, budget and swap have no room, or the
    /// machine has no userfaultfd for it.
    pub fn shared(&self, len: usize, name: &str) -> Result<SharedRegion, Error> {
        let addr = self.inner.engine.share(name, len)?;
        SharedRegion::new(self.clone(), addr, len)
    }

    /// Maps the shared region that another process of the pool has made under `name`.
    ///
    /// # Errors
    /// [`Error::Shared`] with the cause.
    pub fn attach_shared(&self, name: &str) -> Result<SharedRegion, Error> {
        let (addr, len) = self.inner.engine.attach_shared(name)?;
        SharedRegion::new(self.clone(), addr, len)
    }

    /// Maps the shared region whose memory `memory` is: a descriptor that another process got from
    /// [`SharedRegion::memory`] and passed on over a socket.
    ///
    /// # Errors
    /// [`Error::Shared`] with the cause.
    pub fn attach_shared_memory(&self, memory: BorrowedFd<'_>) -> Result<SharedRegion, Error> {
        let engine = self.inner.engine;
        let (addr, len) = engine.attach_shared_memory(memory.as_raw_fd())?;
        SharedRegion::new(self.clone(), addr, len)
    }

    /// What another process needs to join this pool ([`Pool::join`]), as text. It serves processes
    /// that may open this one's descriptors, as a rule those of the same user, and is good as long
    /// as this process and the one that made the pool live.
    pub fn ticket(&self) -> String {
        let pool = self.inner.engine.pool();
        format!("{}:{}", std::process::id(), pool.fd())
    }

    /// Joins a pool that another process has made: one budget and one swap for both, regions of its
    /// own, and shared ones.
    ///
    /// # Errors
    /// [`Error::Ticket`] for text that is no ticket; [`Error::Pool`] and [`Error::Engine`].
    pub fn join(ticket: &str) -> Result<Pool, Error> {
        let bad = || Error::Ticket {
            ticket: ticket.to_owned(),
        };
        let (pid, fd) = ticket.split_once(':').ok_or_else(bad)?;
        let (pid, fd) = (
            pid.parse().map_err(|_| bad())?,
            fd.parse().map_err(|_| bad())?,
        );
        let segment = pool::Pool::attach(pid, fd, high_descriptor())?;
        let engine = Engine::start(
            segment,
            EngineConfig {
                fault_mode: FaultMode::Auto,
                window: Window::Anywhere(Builder::WINDOW),
                ..EngineConfig::default()
            },
        )?;
        Ok(Pool {
            inner: Arc::new(Running { engine }),
        })
    }
}

/// Memory that several processes of a pool have mapped: what one writes the others read at once, as
/// with the kernel's shared memory. What is in swap is there once, for all.
///
/// Others may write at any moment, so there is no `&[u8]` of it. It is reached
/// * by copies: [`ManagedRange::read_at`] and [`SharedRegion::write_at`], which return an error for
///   lost memory where a plain access raises SIGBUS;
/// * by volatile views, those of the crate [`vm_memory`] ([`crate::volatile`]): a
///   [`VolatileSlice`] of a part, a reference to a value, and atomics. The region implements
///   [`VolatileMemory`], which has all of them;
/// * by [`ManagedRange::as_ptr`], which is the caller's to synchronise.
///
/// Hints, page states, tracking and snapshots are methods of [`ManagedRange`], to which it
/// dereferences. docs/shared.md tells what happens when a process dies.
///
/// ```no_run
/// use hugeswap::Pool;
/// use hugeswap::volatile::{Bytes, VolatileMemory};
/// use std::sync::atomic::{AtomicU64, Ordering};
/// let pool = Pool::builder().memory(64 << 20).build()?;
/// let region = pool.shared(16 << 20, "queue")?;
/// // Another process: Pool::join(&ticket)?.attach_shared("queue")?
/// region.write_at(4096, b"first message")?;
/// let ready: &AtomicU64 = region.get_atomic_ref(0)?;
/// ready.store(1, Ordering::Release);
/// let view = region.get_slice(4096, 64)?;
/// assert_eq!(view.read_obj::<u8>(0)?, b'f');
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SharedRegion {
    range: ManagedRange,
}

impl Deref for SharedRegion {
    type Target = ManagedRange;

    fn deref(&self) -> &ManagedRange {
        &self.range
    }
}

impl SharedRegion {
    fn new(pool: Pool, addr: usize, len: usize) -> Result<SharedRegion, Error> {
        let addr = NonNull::new(addr as *mut u8).ok_or(SharedError::Missing)?;
        Ok(SharedRegion {
            range: ManagedRange::new(pool, addr, len, Backing::Shared),
        })
    }

    /// Copies bytes to the region from `offset` on. Other processes may see them in any order.
    ///
    /// # Errors
    /// [`Error::Lost`] if the rest of a page that the bytes belong to is lost; [`Error::Range`].
    /// After an error some of the bytes may have been copied.
    pub fn write_at(&self, offset: usize, from: &[u8]) -> Result<(), Error> {
        // SAFETY: there are no slices of a shared region.
        unsafe { self.copy_in(offset, from) }
    }

    /// Gives up the content of `[offset, offset+len)` for every process: it reads as zeros from now
    /// on (`MADV_REMOVE`), and the memory and swap behind whole units are free.
    ///
    /// # Errors
    /// [`Error::Stuck`] if another process holds a part and does not go on; [`Error::Range`].
    pub fn remove(&mut self, offset: usize, len: usize) -> Result<(), Error> {
        // SAFETY: there are no slices of a shared region.
        unsafe { self.give_up(offset, len) }
    }

    /// A descriptor of the region's memory, to be passed to another process of the pool, which
    /// attaches by it ([`Pool::attach_shared_memory`]) and need not know the name. It is of no
    /// other use: a process that reads or maps it finds zeros for what is in swap. Closed on exec.
    ///
    /// # Errors
    /// [`Error::Shared`] in a forked child that could not have the region; [`Error::Descriptor`] if
    /// no descriptor is left.
    pub fn memory(&self) -> Result<OwnedFd, Error> {
        let engine = self.pool.inner.engine;
        let fd = engine.shared_memory(self.as_ptr() as usize);
        // SAFETY: open as long as the region, which `self` is.
        let fd = unsafe { BorrowedFd::borrow_raw(fd.ok_or(SharedError::Missing)?) };
        fd.try_clone_to_owned()
            .map_err(|cause| Error::Descriptor { cause })
    }
}

// SAFETY: the mapping is readable and writable, and lives as long as the region.
#[doc(hidden)]
unsafe impl hugeswap_sys::mm::SharedMemory for SharedRegion {
    fn start(&self) -> *mut u8 {
        self.as_ptr()
    }

    fn size(&self) -> usize {
        self.range.len()
    }
}

impl VolatileMemory for SharedRegion {
    type B = ();

    fn len(&self) -> usize {
        self.range.len()
    }

    fn get_slice(
        &self,
        offset: usize,
        count: usize,
    ) -> Result<VolatileSlice<'_, ()>, VolatileMemoryError> {
        let addr = self.as_ptr() as usize;
        let end = (offset.checked_add(count)).ok_or(VolatileMemoryError::Overflow {
            base: offset,
            offset: count,
        })?;
        if end > self.range.len() {
            return Err(VolatileMemoryError::OutOfBounds { addr: end });
        }
        // SAFETY: the bytes are mapped as long as the region, which the slice borrows, and nobody
        // can have a Rust reference to them.
        Ok(unsafe { VolatileSlice::new((addr + offset) as *mut u8, count) })
    }
}

impl std::fmt::Debug for SharedRegion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.range.fmt(f)
    }
}
