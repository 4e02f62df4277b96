//! The pool: a budget, its swap and its counters.

use crate::{BudgetAdvice, Builder, Error, FaultMode, Group, Region, ScrubReport, Stats};
use hugeswap_engine::Engine;
use hugeswap_policy::knobs::settings::{Setting, SettingError};
use std::sync::Arc;
use std::time::Duration;

/// How often a scrub is looked at.
const LOOK: Duration = Duration::from_millis(2);

/// A memory budget, its swap and its counters. Cheap to clone; memory, swap and threads are given
/// back when the pool and all its regions are dropped.
///
/// ```
/// let pool = hugeswap::Pool::builder().memory(64 << 20).build()?;
/// let regions = [pool.region(128 << 20)?, pool.region(64 << 20)?];
/// println!("{} bytes are in use", pool.stats().resident_bytes);
/// # Ok::<(), hugeswap::Error>(())
/// ```
#[derive(Clone)]
pub struct Pool {
    pub(crate) inner: Arc<Running>,
}

/// The engine of a pool in this process.
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
    /// Starts the configuration of a new pool.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// Makes a region of `len` bytes of zeros, private to this process. It takes memory only as it
    /// is touched, but budget and swap must be able to hold all of it.
    ///
    /// # Errors
    /// [`Error::Region`] with the cause.
    pub fn region(&self, len: usize) -> Result<Region, Error> {
        Region::new(self.clone(), len)
    }

    /// Changes a setting while the pool is in use, for all its processes: a type of
    /// [`settings`](crate::settings), or text, `KEY=VALUE`. docs/settings.md says for which settings
    /// a change has an effect.
    ///
    /// # Errors
    /// [`Error::Setting`] for text that is refused, and for a setting that only a new pool takes.
    pub fn set<S>(&self, setting: S) -> Result<(), Error>
    where
        S: TryInto<Setting>,
        S::Error: Into<SettingError>,
    {
        let setting: Setting = setting.try_into().map_err(Into::into)?;
        if setting.knob().is_fixed() {
            return Err(SettingError::Fixed { setting }.into());
        }
        let pool = self.inner.engine.pool();
        pool.set_knob(setting.knob(), setting.value());
        Ok(())
    }

    /// The group of this name, which is made if there is none. [`Region::set_group`] puts regions in
    /// it.
    ///
    /// # Errors
    /// [`Error::Group`] for an empty name, and when a 16th group would have to be made.
    pub fn group(&self, name: &str) -> Result<Group, Error> {
        Group::new(self.clone(), name)
    }

    /// What the pool has and did so far, over all its processes. Takes some microseconds.
    pub fn stats(&self) -> Stats {
        Stats::of(self.inner.engine)
    }

    /// What a larger or a smaller budget would have brought so far: by budget, how many base pages
    /// would have come back from swap; and which budget to take. `None` if too little has come back
    /// to tell. Takes some milliseconds.
    ///
    /// ```
    /// # let pool = hugeswap::Pool::builder().memory(64 << 20).build()?;
    /// if let Some(advice) = pool.advice() {
    ///     println!("{advice:?}");
    /// }
    /// # Ok::<(), hugeswap::Error>(())
    /// ```
    pub fn advice(&self) -> Option<BudgetAdvice> {
        self.inner.engine.pool().report().advice()
    }

    /// Has all processes of the pool read everything that is in swap, verify it, and repair what can
    /// be repaired. Waits until they are done, which takes as long as the reading does. What is lost
    /// raises SIGBUS when touched.
    pub fn scrub(&self) -> ScrubReport {
        let pool = self.inner.engine.pool();
        let number = pool.request_scrub();
        loop {
            if let Some(report) = pool.scrubbed(number) {
                return report;
            }
            std::thread::sleep(LOOK);
            // A process that has died meanwhile is not waited for.
            pool.reap();
        }
    }

    /// Checks the pool's accounts in this process: frames, base pages, slots. For tests; all faults
    /// wait meanwhile.
    ///
    /// # Errors
    /// What does not add up, in words.
    pub fn audit(&self) -> Result<(), String> {
        self.inner.engine.audit()
    }

    /// How faults are taken; never [`FaultMode::Auto`].
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
