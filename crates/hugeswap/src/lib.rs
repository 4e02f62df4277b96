//! More memory than you are allowed to use: regions of managed memory that hugeswap keeps
//! within a budget, moving the rest to swap in whole huge pages.
//!
//! ```no_run
//! use hugeswap::{Pool, Advice};
//! let pool = Pool::builder().memory(64 << 20).swap("/var/tmp").build()?;
//! let mut region = pool.region(256 << 20)?;
//! region.as_mut_slice()[12345] = 1;
//! region.advise(0, 2 << 20, Advice::PageOut)?;
//! assert_eq!(region.as_slice()[12345], 1);
//! println!("{} pages out", pool.stats().pswpout);
//! # Ok::<(), hugeswap::Error>(())
//! ```
//!
//! # System calls
//! In signal mode (the default, which needs no privilege) a system call that is given a pointer
//! into memory that is in swap fails with EFAULT, and some calls have by then lost data. Hold the
//! range first with [`Region::pin`]. In message mode nothing of the kind is needed.
//!
//! # Threads and forks
//! All types are `Send` and `Sync`. A forked child sees what the parent had at the moment of the fork (of a file: what
//! the file has, see [`Pool::map_file`]).
//! A thread that touches a region must not block SIGSEGV (signal mode).

mod file;
mod group;
mod pagemap;
mod region;
mod shared;
mod snapshot;
mod stats;
mod swap;
mod track;

pub use group::{Group, GroupStats};
pub use hugeswap_engine::FileMode;
pub use hugeswap_engine::TrackError;
pub use hugeswap_engine::groups::GroupError;
pub use hugeswap_engine::pool::Room;
pub use hugeswap_engine::pool::losses::{Cause, Loss};
pub use hugeswap_engine::pool::{FaultMode, ScrubReport, SwapSpec};
pub use hugeswap_engine::shared::SharedError;
pub use hugeswap_policy::advisor::advice::{Advice as BudgetAdvice, Point as BudgetPoint};
pub use hugeswap_policy::knobs;
pub use hugeswap_policy::markers::pagemap::{Categories, Filter, State as PageState, SwapPlace};
pub use pagemap::{PageRange, Pagemap};
pub use region::{Advice, Pin, Region};
pub use snapshot::{Snapshot, SnapshotError};
pub use stats::Stats;
pub use swap::{SwapArea, SwapOffError};
pub use track::{Epoch, Granularity};

use hugeswap_engine::pool::{self, PoolConfig};
use hugeswap_engine::{Engine, EngineConfig, EngineError};
use hugeswap_policy::shared::Nonsense;
use std::path::PathBuf;
use std::sync::Arc;

/// Why bytes are lost, in words.
fn why(loss: &Option<Loss>) -> String {
    match loss {
        Some(loss) => loss.to_string(),
        None => "their swap, or their file, could not be read, or has changed".to_owned(),
    }
}

/// Why something could not be done; one line that says what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pool could not be made.
    #[error(transparent)]
    Pool(#[from] pool::PoolError),
    /// The engine could not be started.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A setting that does not parse or is out of bounds.
    #[error("{0}")]
    Setting(String),
    /// No budget was given.
    #[error("a pool needs a memory budget: Pool::builder().memory(bytes)")]
    NoMemory,
    /// The region asked for is larger than budget and swap together can hold, or than the addresses left.
    #[error(
        "a region of {0} bytes does not fit into what budget and swap have left: make it smaller or give more swap"
    )]
    TooLarge(usize),
    /// A range outside the region, or not on page boundaries where that matters.
    #[error("range {offset}..+{len} is not within the region of {size} bytes")]
    Range {
        /// Where the range starts, bytes.
        offset: usize,
        /// How long it is, bytes.
        len: usize,
        /// Size of the region, bytes.
        size: usize,
    },
    /// More than can be held in memory at one time.
    #[error("{0} bytes are too many to hold in memory at once: pin at most {1}")]
    PinTooLarge(usize, usize),
    /// A group could not be made or set.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// A swap area could not be taken off.
    #[error(transparent)]
    SwapOff(#[from] SwapOffError),
    /// A file that could not be mapped.
    #[error("cannot map {}: {what}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not, and what to do.
        what: String,
    },
    /// What was changed of a mapped file could not be written to it; it is still in memory.
    #[error("the mapped file could not be written: {0}; try again when that is put right")]
    Sync(std::io::Error),
    /// A region that may only be read was to be written.
    #[error("the region's file is mapped read-only: map it FileMode::WriteBack")]
    ReadOnly,
    /// What was in memory there cannot be read back from swap, or from its file.
    #[error(
        "bytes {offset}..+{len} of the region are lost: {}; discard them (Advice::DontNeed)", why(.loss)
    )]
    Lost {
        /// Where the range starts, bytes.
        offset: usize,
        /// How long it is, bytes.
        len: usize,
        /// Where swap has failed, and whether the bytes there have changed or could not be read; of several pages the first of which that is known. None: of a
        /// file, or not remembered any more.
        loss: Option<Loss>,
    },
    /// A part of 2 MiB could not be given up: it had to be in memory for that, and neither memory nor swap was left. Some of the range may be as it was.
    #[error(
        "bytes {offset}..+{len} of the region could not all be discarded, for memory and swap are full: discard whole units of 2 MiB, or give more swap"
    )]
    NotDiscarded {
        /// Where the range starts, bytes.
        offset: usize,
        /// How long it is, bytes.
        len: usize,
    },
    /// Pages could not be marked.
    #[error("pages cannot be marked: {0}")]
    Marker(&'static str),
    /// A guard is in the way.
    #[error("bytes {offset}..+{len} of the region meet a guard: Advice::Unguard removes it")]
    Guard {
        /// Where the range starts, bytes.
        offset: usize,
        /// How long it is, bytes.
        len: usize,
    },
    /// A shared region could not be had.
    #[error("no shared region: {0}")]
    Shared(#[from] SharedError),
    /// What cannot be done with shared memory.
    #[error("{0}: not with a shared region")]
    NotShared(&'static str),
    /// Another process that has the shared region holds a part of it, and does not go on.
    #[error("another process of the pool, stopped or hanging, holds a part of the shared region")]
    Stuck,
    /// What the pool's segment says of a shared region's pages cannot be: another process has damaged it.
    #[error("what the pool says of the shared region makes no sense: {0}")]
    Segment(#[from] Nonsense),
    /// Writes cannot be tracked.
    #[error(transparent)]
    Track(#[from] TrackError),
    /// A snapshot could not be made or used.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// An epoch that says nothing.
    #[error(
        "the epoch is another region's, or tracking was stopped since it began: begin one with Region::track_writes"
    )]
    Epoch,
    /// The range could not be brought into memory.
    #[error("memory could not be brought in: {0}")]
    BringIn(std::io::Error),
}

/// How a pool is to be.
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder {
    memory: Option<u64>,
    swap: Vec<SwapSpec>,
    fault_mode: FaultMode,
    settings: Vec<(knobs::Knob, u64)>,
    window: usize,
    error: Option<String>,
}

impl Builder {
    pub(crate) const WINDOW: usize = 1 << 40;

    /// The budget in bytes: managed memory in use never exceeds it. Rounded down to 2 MiB.
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = Some(bytes);
        self
    }

    /// Adds a swap area in a directory on a disk, as large as needed and as the disk allows. Without
    /// any, `/var/tmp` or a like place is taken.
    pub fn swap(self, directory: impl Into<PathBuf>) -> Self {
        self.swap_area(SwapSpec::new(directory))
    }

    /// Adds a swap area.
    pub fn swap_area(mut self, spec: SwapSpec) -> Self {
        self.swap.push(spec);
        self
    }

    /// How faults are taken. Message mode needs privilege.
    pub fn fault_mode(mut self, mode: FaultMode) -> Self {
        self.fault_mode = mode;
        self
    }

    /// Encrypts what goes to swap: AES-256-GCM under a random key that is in locked memory only, and gone with the pool. The same as the setting
    /// `swap.encrypt`. docs/swap.md says what that keeps from whom.
    pub fn encrypt(mut self, on: bool) -> Self {
        self.settings.push((knobs::Knob::Encrypt, on.into()));
        self
    }

    /// A setting, `KEY=VALUE` (see [`knobs`]).
    pub fn set(mut self, setting: &str) -> Self {
        match knobs::parse_setting(setting) {
            Ok(s) => self.settings.push(s),
            Err(e) => self.error = self.error.or(Some(e)),
        }
        self
    }

    /// Most bytes of addresses that all regions of the pool may take (1 TiB if not said).
    pub fn address_space(mut self, bytes: usize) -> Self {
        self.window = bytes;
        self
    }

    /// Makes the pool and starts its engine.
    pub fn build(self) -> Result<Pool, Error> {
        if let Some(e) = self.error {
            return Err(Error::Setting(e));
        }
        let config = PoolConfig {
            memory: self.memory.ok_or(Error::NoMemory)?,
            swap: self.swap,
            fault_mode: self.fault_mode,
            settings: self.settings,
        };
        let segment = pool::Pool::create(&config)?;
        let engine = Engine::start(
            segment,
            EngineConfig {
                fault_mode: self.fault_mode,
                window: Some(self.window),
                ..EngineConfig::default()
            },
        )?;
        Ok(Pool {
            inner: Arc::new(Running { engine }),
        })
    }
}

/// A budget, its swap and its counters. Cheap to clone; everything is given back when the pool and all its
/// regions are dropped.
#[derive(Clone)]
pub struct Pool {
    pub(crate) inner: Arc<Running>,
}

pub(crate) struct Running {
    pub(crate) engine: &'static Engine,
}

impl Drop for Running {
    fn drop(&mut self) {
        // SAFETY: the last owner of the pool and of its regions is gone, so nobody holds memory
        // of the engine's or calls it.
        unsafe { self.engine.stop() };
    }
}

impl Pool {
    /// Starts describing a pool.
    pub fn builder() -> Builder {
        Builder {
            memory: None,
            swap: Vec::new(),
            fault_mode: FaultMode::Auto,
            settings: Vec::new(),
            window: Builder::WINDOW,
            error: None,
        }
    }

    /// A region of `len` bytes of zeros, private to this process. Takes memory only as it is touched.
    pub fn region(&self, len: usize) -> Result<Region, Error> {
        Region::new(self.clone(), len)
    }

    /// Changes a setting, `KEY=VALUE` (see [`knobs`]), while the pool is in use. Not every setting is looked at again:
    /// docs/settings.md says which are.
    pub fn set(&self, setting: &str) -> Result<(), Error> {
        let (knob, value) = knobs::parse_setting(setting).map_err(Error::Setting)?;
        if knob.is_fixed() {
            let name = knob.name();
            return Err(Error::Setting(format!(
                "{name} can only be set for a new pool: Pool::builder().set(\"{setting}\")"
            )));
        }
        self.inner.engine.pool().set_knob(knob, value);
        Ok(())
    }

    /// The group of this name, made if there is none; regions are put in it by [`Region::set_group`]. At most 15.
    pub fn group(&self, name: &str) -> Result<Group, Error> {
        Group::new(self.clone(), name)
    }

    /// What the pool did so far.
    pub fn stats(&self) -> Stats {
        Stats::of(self.inner.engine)
    }

    /// What a larger or a smaller budget would have brought so far: base pages that would have come back from swap, by
    /// budget, and which budget to take. `None` if too little has come back to tell. Takes some milliseconds; any thread may ask.
    pub fn advice(&self) -> Option<BudgetAdvice> {
        self.inner.engine.pool().report().advice()
    }

    /// Has everything that is in swap read, verified, and put right where it can be: by all processes of the pool, in the background. Waits until they are done, which
    /// takes as long as the reading does. Touching what is lost is SIGBUS.
    pub fn scrub(&self) -> ScrubReport {
        let pool = self.inner.engine.pool();
        let number = pool.request_scrub();
        loop {
            if let Some(report) = pool.scrubbed(number) {
                return report;
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
            // Who has died meanwhile is not waited for.
            pool.reap();
        }
    }

    /// Says what does not add up of what the pool keeps account of in this process: frames, base pages, slots. For
    /// tests; all faults wait meanwhile.
    pub fn audit(&self) -> Result<(), String> {
        self.inner.engine.audit()
    }

    /// How faults are taken.
    pub fn fault_mode(&self) -> FaultMode {
        self.inner.engine.mode()
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("stats", &self.stats())
            .finish()
    }
}
