//! Why a shared region could not be had.

use crate::UNIT;
use crate::pool::layout::{MAX_CLIENTS, MAX_SHARED, SHARED_NAME, SHARED_UNITS};
use crate::pool::shared::Refused;
use hugeswap_sys::Errno;

pub(super) type Result<T> = std::result::Result<T, SharedError>;

/// Why a shared region could not be had; one line each, telling what to do.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum SharedError {
    #[error("the pool has a shared region of that name: attach to it, or give another name")]
    Exists,
    #[error("the pool has no shared region of that name: who makes it must have it still")]
    Unknown,
    #[error(
        "that is no memory of a shared region of the pool: pass on what SharedRegion::memory returns"
    )]
    NotMemory,
    #[error("a shared region's name has 1 to {SHARED_NAME} bytes, and does not begin with byte 1")]
    BadName,
    #[error(
        "a shared region has 1 to {} bytes",
        SHARED_UNITS * UNIT
    )]
    BadLength,
    #[error("budget and swap cannot hold it: make it smaller or give more swap")]
    NoRoom,
    #[error(
        "a pool has {MAX_SHARED} shared regions, of {} bytes together, at most: drop some",
        SHARED_UNITS * UNIT
    )]
    TableFull,
    #[error("{MAX_CLIENTS} processes have it mapped, and more cannot")]
    TooMany,
    #[error("this process has it mapped already: use the region that it has")]
    Here,
    #[error("shared regions need signal mode: build the pool with FaultMode::Signal")]
    Message,
    #[error("shared regions need userfaultfd, which is switched off here: debug.userfaultfd=on")]
    SwitchedOff,
    #[error(
        "shared regions need userfaultfd with write protection of shared memory ({0}): Linux 5.19, and a container that does not forbid userfaultfd"
    )]
    NoUserfaultfd(Errno),
    #[error(
        "process {0}, which has it mapped, cannot be reached ({1}): the processes must have the same user, and may be kept apart by kernel.yama.ptrace_scope or a container"
    )]
    Unreachable(i32, Errno),
    #[error("nobody who has it is there yet, or any more: try again")]
    Coming,
    #[error("another process of the pool, stopped or hanging, keeps it from being had")]
    Stuck,
    #[error("this process was forked when it could not be had")]
    Missing,
    #[error("what the pool says of it makes no sense")]
    BadSegment,
    #[error("{0}: {1}")]
    System(&'static str, Errno),
}

impl From<Refused> for SharedError {
    fn from(refused: Refused) -> SharedError {
        match refused {
            Refused::Exists => SharedError::Exists,
            Refused::Unknown => SharedError::Unknown,
            Refused::TableFull => SharedError::TableFull,
            Refused::TooMany => SharedError::TooMany,
            Refused::NoRoom => SharedError::NoRoom,
            Refused::Busy => SharedError::Stuck,
        }
    }
}
