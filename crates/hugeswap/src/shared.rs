//! Shared regions: memory that several processes of a pool see alike. docs/shared.md has what they promise.

use crate::{Builder, Error, Pool, Region, Running};
use hugeswap_engine::pool::{self, FaultMode};
use hugeswap_engine::{Engine, EngineConfig, high_descriptor};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

impl Pool {
    /// A region of `len` bytes of zeros that other processes of the pool can map under its name ([`Pool::attach_shared`]), and that forked children
    /// share. It lasts as long as any process has it. What one writes the others read at once, as with the kernel's shared memory; what is in swap is
    /// there once, for all. Needs userfaultfd and signal mode.
    pub fn shared(&self, len: usize, name: &str) -> Result<Region, Error> {
        let addr = self.inner.engine.share(name, len)?;
        Region::of_shared(self.clone(), addr, len)
    }

    /// The shared region that another process of the pool has made under this name.
    pub fn attach_shared(&self, name: &str) -> Result<Region, Error> {
        let (addr, len) = self.inner.engine.attach_shared(name)?;
        Region::of_shared(self.clone(), addr, len)
    }

    /// The same of the region whose memory this is: what [`Region::shared_memory`] gave another process of the pool, which has passed it on over a socket.
    pub fn attach_shared_memory(&self, memory: BorrowedFd<'_>) -> Result<Region, Error> {
        let engine = self.inner.engine;
        let (addr, len) = engine.attach_shared_memory(memory.as_raw_fd())?;
        Region::of_shared(self.clone(), addr, len)
    }

    /// What another process needs to know to become one of this pool ([`Pool::join`]). Only processes that may open this one's descriptors can: of the same user, as a
    /// rule. Good as long as this process and the one that made the pool live.
    pub fn ticket(&self) -> String {
        let pool = self.inner.engine.pool();
        format!("{}:{}", std::process::id(), pool.fd())
    }

    /// Becomes a process of a pool that another process has made: one budget, one swap, regions of its own, and shared ones.
    pub fn join(ticket: &str) -> Result<Pool, Error> {
        let bad = || Error::Setting(format!("'{ticket}' is no pool's ticket: see Pool::ticket"));
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
                window: Some(Builder::WINDOW),
                ..EngineConfig::default()
            },
        )?;
        Ok(Pool {
            inner: Arc::new(Running { engine }),
        })
    }
}

impl Region {
    fn of_shared(pool: Pool, addr: usize, len: usize) -> Result<Region, Error> {
        let addr = NonNull::new(addr as *mut u8).ok_or(Error::TooLarge(len))?;
        Ok(Region::at(pool, addr, len, true))
    }

    /// Do other processes see the same memory ([`Pool::shared`])?
    pub fn is_shared(&self) -> bool {
        self.shared
    }

    /// A descriptor of a shared region's memory, to be passed on to a process of the pool, which attaches by it ([`Pool::attach_shared_memory`]) and need not know the name. For
    /// nothing else: who reads or maps it finds zeros for what is in swap. Closed on exec. None for a region that is not shared.
    pub fn shared_memory(&self) -> Option<std::io::Result<OwnedFd>> {
        let fd = self
            .pool
            .inner
            .engine
            .shared_memory(self.as_ptr() as usize)?;
        // SAFETY: open as long as the region, which `self` is.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        Some(fd.try_clone_to_owned())
    }

    /// Refuses what cannot be done with shared memory.
    pub(crate) fn alone(&self, what: &'static str) -> Result<(), Error> {
        match self.shared {
            true => Err(Error::NotShared(what)),
            false => Ok(()),
        }
    }
}
