//! Why an engine could not be started.

use crate::WINDOW_BASE;
use crate::backend::OpenError;
use crate::pool::PoolError;
use hugeswap_sys::Errno;

/// Why an engine could not be started; one line each, telling what to do.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum EngineError {
    #[error(transparent)]
    Pool(#[from] PoolError),
    #[error(
        "message mode needs userfaultfd for kernel faults ({0}): run as root, set vm.unprivileged_userfaultfd=1, or use --fault-mode signal"
    )]
    NoMessageMode(Errno),
    #[error("this kernel cannot move pages ({0}): Linux 5.7 or later is needed")]
    NoMover(Errno),
    #[error(
        "no address space for managed memory ({0}): raise or remove the limit on virtual memory (ulimit -v)"
    )]
    NoAddressSpace(Errno),
    #[error(
        "the addresses that managed memory needs (from {WINDOW_BASE:#x} on) are in use, as they are in programs built with ThreadSanitizer (-fsanitize=thread): use a build without it to have memory managed"
    )]
    AddressesInUse,
    #[error("more than {} engines in one process", crate::MAX_ENGINES)]
    TooMany,
    #[error("{0}: {1}")]
    System(&'static str, Errno),
}

impl From<OpenError> for EngineError {
    fn from(error: OpenError) -> EngineError {
        match error {
            OpenError::Messages(e) => EngineError::NoMessageMode(e),
            OpenError::Stages(e) => EngineError::System("cannot map the stages of base pages", e),
        }
    }
}
