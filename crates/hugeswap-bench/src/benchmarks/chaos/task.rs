//! The task of the program, and its report.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// A thread or child that does nothing for so long hangs: many times as long as the device does.
pub const PATIENCE: Duration = Duration::from_secs(40);

/// What the program is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Task {
    pub region: u64,
    pub memory: u64,
    pub seconds: u64,
    pub operations: u64,
    pub threads: u32,
    pub areas: u32,
    pub seed: u64,
    pub swap: Vec<String>,
    /// Message mode instead of signal mode.
    pub message: bool,
    pub set: Vec<String>,
    /// Faults of the device, as settings.
    pub faults: Vec<String>,
}

/// What became of pages.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Pages {
    /// Pages read and compared.
    pub verified: u64,
    /// Pages that held something else than what was written. The first of each thread is reported on
    /// stderr.
    pub wrong: u64,
    /// Pages that could not be read, which was reported as an error.
    pub lost: u64,
    /// Accesses that failed once, and succeeded when repeated.
    pub refused: u64,
}

impl Pages {
    pub fn add(&mut self, other: &Pages) {
        self.verified += other.verified;
        self.wrong += other.wrong;
        self.lost += other.lost;
        self.refused += other.refused;
    }
}

/// The program's only line of output.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    pub seconds: f64,
    pub operations: u64,
    #[serde(flatten)]
    pub pages: Pages,
    /// Children that threads forked, which did the same and ended.
    pub children: u64,
    /// Threads that did nothing for [`PATIENCE`], and children that did not end.
    pub hangs: u64,
    /// Milliseconds of the longest operation.
    pub longest_ms: f64,
    pub counters: BTreeMap<String, u64>,
}
