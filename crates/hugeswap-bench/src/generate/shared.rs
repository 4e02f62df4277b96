//! Memory that the tasks of a worker share: under hugeswap a shared region of its pool, otherwise a
//! memory file.
//!
//! Under hugeswap the object is not injected into the tasks: they join the pool as processes do
//! that use the library. Each task writes its own part; another task's part is read while no task
//! writes.

use super::plan::{Thp, Work};
use anyhow::{Context, Result, bail};
use hugeswap::{Error, Pool, SharedError, SharedRegion};
use hugeswap_sys::mm::{BytesOf, SharedBytes};
use memmap2::MmapMut;
use std::fs::{File, OpenOptions};
use std::ops::{Deref, DerefMut};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

const NAME: &str = "bench";
/// How long the other tasks wait for the first to make the region.
const PATIENCE: Duration = Duration::from_secs(30);

/// Memory of a task.
pub enum Map {
    /// Its own.
    Own(MmapMut),
    /// A memory file.
    File(SharedBytes),
    /// A shared region. A task writes only its own part, and reads another task's part only while
    /// no task writes.
    Region(BytesOf<SharedRegion>),
}

impl Deref for Map {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Map::Own(m) => m,
            Map::File(m) => m,
            Map::Region(r) => r,
        }
    }
}

impl DerefMut for Map {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Map::Own(m) => m,
            Map::File(m) => m,
            Map::Region(r) => r,
        }
    }
}

fn ticket() -> Option<String> {
    std::env::var(hugeswap_support::POOL_VARIABLE).ok()
}

/// Is this process in a pool?
pub fn in_pool() -> bool {
    ticket().is_some()
}

/// A memory file that the tasks map where there is no pool, and the path at which they find it
/// while it is open.
pub fn memory_file(bytes: usize) -> Result<(File, PathBuf)> {
    let file = tempfile::tempfile_in("/dev/shm").context("no memory to share in /dev/shm")?;
    file.set_len(bytes as u64)?;
    let path = PathBuf::from(format!(
        "/proc/{}/fd/{}",
        std::process::id(),
        file.as_raw_fd()
    ));
    Ok((file, path))
}

/// Has a task join the pool by itself, without the injected object.
pub fn without_object(task: &mut Command) {
    if in_pool() {
        task.env_remove("LD_PRELOAD");
    }
}

/// Maps the memory that all tasks share; the first task makes it.
pub fn map(bytes: usize, work: &Work) -> Result<Map> {
    let Some(ticket) = ticket() else {
        let path = work.shared.as_ref().context("no memory to share")?;
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.context("the shared memory is gone")?;
        let map = SharedBytes::map(file.as_raw_fd(), bytes).context("cannot map shared memory")?;
        match work.thp {
            Thp::Unadvised => {}
            thp => map
                .advise_huge(thp == Thp::On)
                .context("cannot advise on huge pages")?,
        }
        return Ok(Map::File(map));
    };
    let pool = Pool::join(&ticket).context("cannot join the pool")?;
    if work.task == 0 {
        return Ok(Map::Region(BytesOf(pool.shared(bytes, NAME)?)));
    }
    let until = Instant::now() + PATIENCE;
    loop {
        match pool.attach_shared(NAME) {
            Ok(r) if r.len() == bytes => return Ok(Map::Region(BytesOf(r))),
            Ok(_) => bail!("the shared region has another length"),
            Err(Error::Shared(SharedError::Unknown)) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(e) => return Err(e.into()),
        }
    }
}
