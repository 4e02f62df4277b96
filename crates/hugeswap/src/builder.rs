//! What a pool is made of.

use crate::{Error, FaultMode, Pool, Running, SwapSpec};
use hugeswap_engine::pool::{self, PoolConfig};
use hugeswap_engine::{Engine, EngineConfig, Window};
use hugeswap_policy::knobs::settings::{Encrypt, Setting, SettingError};
use std::path::PathBuf;
use std::sync::Arc;

/// Configuration of a pool. Only the budget must be given.
///
/// ```no_run
/// use hugeswap::settings::{Checksum, ReadaheadMax, ThpSwapin};
/// use hugeswap::{Pool, SwapSpec};
/// let pool = Pool::builder()
///     .memory(256 << 20)
///     .swap_area(SwapSpec::parse("/mnt/fast,size=4G,pri=10")?)
///     .swap("/var/tmp") // used when the other is full
///     .set(ThpSwapin::Auto)
///     .set(ReadaheadMax::new(4)?)
///     .set("swap.checksum=on") // from a command line; the same as Checksum(true)
///     .build()?;
/// # Ok::<(), hugeswap::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder {
    memory: Option<u64>,
    swap: Vec<SwapSpec>,
    fault_mode: FaultMode,
    settings: Vec<Setting>,
    window: usize,
    /// The first setting that was refused, told by [`Builder::build`].
    refused: Option<SettingError>,
}

impl Builder {
    pub(crate) const WINDOW: usize = 1 << 40;

    pub(crate) fn new() -> Builder {
        Builder {
            memory: None,
            swap: Vec::new(),
            fault_mode: FaultMode::Auto,
            settings: Vec::new(),
            window: Builder::WINDOW,
            refused: None,
        }
    }

    /// The budget in bytes, rounded down to 2 MiB. Managed memory in use never exceeds it.
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = Some(bytes);
        self
    }

    /// Adds a swap area in a directory on a disk, as large as needed and as the disk allows. Without
    /// any swap area the pool takes one in `/var/tmp` or a place like it.
    pub fn swap(self, directory: impl Into<PathBuf>) -> Self {
        self.swap_area(SwapSpec::new(directory))
    }

    /// Adds a swap area.
    pub fn swap_area(mut self, spec: SwapSpec) -> Self {
        self.swap.push(spec);
        self
    }

    /// Chooses how faults are taken; [`FaultMode::Auto`] without. Message mode needs privilege.
    pub fn fault_mode(mut self, mode: FaultMode) -> Self {
        self.fault_mode = mode;
        self
    }

    /// Encrypts what goes to swap by AES-256-GCM, under a random key that is in locked memory only
    /// and gone with the pool. The same as the setting [`Encrypt`]. docs/swap.md says what that keeps
    /// from whom.
    pub fn encrypt(self, on: bool) -> Self {
        self.set(Encrypt(on))
    }

    /// Gives the pool a setting: a type of [`settings`](crate::settings), or text, `KEY=VALUE`. A
    /// later one takes the place of an earlier one. Text that is refused makes
    /// [`Builder::build`] fail.
    pub fn set<S>(mut self, setting: S) -> Self
    where
        S: TryInto<Setting>,
        S::Error: Into<SettingError>,
    {
        match setting.try_into() {
            Ok(setting) => self.settings.push(setting),
            Err(e) => self.refused = self.refused.or(Some(e.into())),
        }
        self
    }

    /// Limits the addresses that all regions of the pool may take together, in bytes; 1 TiB without.
    pub fn address_space(mut self, bytes: usize) -> Self {
        self.window = bytes;
        self
    }

    /// Makes the pool, its swap files and its segment, and starts the engine and its threads.
    ///
    /// # Errors
    /// [`Error::NoMemory`] if no budget was given, [`Error::Setting`] for a setting that was refused,
    /// [`Error::Pool`] and [`Error::Engine`] with what the machine does not allow.
    pub fn build(self) -> Result<Pool, Error> {
        if let Some(refused) = self.refused {
            return Err(refused.into());
        }
        let settings = self.settings.iter().map(|s| (s.knob(), s.value()));
        let config = PoolConfig {
            memory: self.memory.ok_or(Error::NoMemory)?,
            swap: self.swap,
            fault_mode: self.fault_mode,
            settings: settings.collect(),
        };
        let segment = pool::Pool::create(&config)?;
        let engine = Engine::start(
            segment,
            EngineConfig {
                fault_mode: self.fault_mode,
                window: Window::Anywhere(self.window),
                ..EngineConfig::default()
            },
        )?;
        Ok(Pool {
            inner: Arc::new(Running { engine }),
        })
    }
}
