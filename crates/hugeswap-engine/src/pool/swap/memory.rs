//! An area without a device: its slots are numbers, and what is stored there is in compressed
//! memory (`store::zswap`) or not at all. So it takes what compressed memory has room for, however
//! many slots it has.
//!
//! As every area it has a descriptor by which processes know it: that of a file in memory, which
//! stays empty.

use super::{Found, Kind, Refusal, SwapSpec};
use crate::pool::{PoolError, machine_memory};
use hugeswap_policy::UNIT_BYTES;
use hugeswap_sys::mm;

/// Bytes of slots for each byte of the machine's memory where no size is given: what compresses
/// better is rare.
const TIMES: u64 = 4;

pub(super) fn open(spec: &SwapSpec, refusal: &Refusal) -> Result<Found, PoolError> {
    let most = (machine_memory() * TIMES).max(UNIT_BYTES);
    let fd = mm::memfd(c"hugeswap-mem", false).map_err(|e| {
        let hint = "allow more open files (ulimit -n), or name a directory on a disk";
        refusal.because(format!("cannot be made: {e}"), hint)
    })?;
    Ok(Found {
        fd,
        kind: Kind::Memory,
        direct: false,
        bytes: spec.size.unwrap_or(most).min(super::MAX_BYTES),
    })
}
