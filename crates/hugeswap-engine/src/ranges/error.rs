//! Why a range could not be mapped, held or marked.

use hugeswap_sys::Errno;

/// Why memory cannot be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The length is 0.
    #[error("it has no length")]
    Empty,
    /// Budget and swap together could not hold it.
    #[error(
        "budget and swap cannot hold it beside what they have promised: make it smaller or give more swap"
    )]
    NoRoom,
    /// No run of addresses of the pool's is long enough.
    #[error("no addresses are left for it: give the pool a larger address space")]
    NoAddresses,
    /// The kernel refused a mapping.
    #[error("the kernel could not map it: memory or mappings (vm.max_map_count) are short")]
    Kernel,
}

/// As `mmap` says it.
impl From<MapError> for Errno {
    fn from(error: MapError) -> Errno {
        match error {
            MapError::Empty => Errno::EINVAL,
            MapError::NoRoom | MapError::NoAddresses | MapError::Kernel => Errno::ENOMEM,
        }
    }
}

/// Why a range cannot be held in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PinError {
    /// The range is longer than one pin may hold.
    #[error("it is more than one pin may hold: pin at most Region::pin_limit bytes at a time")]
    TooLarge,
    /// The unit has as many pins as can be counted.
    #[error("too many pins hold it already: drop some of them first")]
    TooMany,
    /// Some of the range is not mapped, or not with the access that is wanted.
    #[error("some of it is not mapped with that access")]
    NotMapped,
    /// The range meets a guard.
    #[error("some of it is guarded: remove the guard first")]
    Guard,
    /// Some of the range cannot be read back from swap or from its file.
    #[error("some of it is lost: discard it first")]
    Lost,
    /// Some of the range is in base pages, or in a unit with markers.
    #[error("some of it is in base pages: use Region::pin, which makes them whole")]
    InPages,
    /// Budget and swap are full, or the kernel is short of memory or of mappings.
    #[error("memory is short, and swap has no room for what would have to leave")]
    NoMemory,
}

/// Why pages cannot be marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MarkerError {
    /// The range does not begin or end at a page.
    #[error("only whole pages of 4096 bytes can be marked")]
    NotWholePages,
    /// This kind of memory has no markers, or this pool has none.
    #[error(
        "only private memory in signal mode, with userfaultfd and without markers=off, has markers"
    )]
    Unsupported,
    /// Some of the range is not mapped.
    #[error("some of it is not mapped")]
    NotMapped,
    /// The program may not write to some of the range.
    #[error("some of it is protected from writes")]
    Protected,
    /// A pin holds some of the range, or a fault of another process does.
    #[error("some of it is pinned: drop the pin first")]
    Held,
    /// A guarded page was to be poisoned.
    #[error("some of it is guarded, and a guard cannot be poisoned: remove the guard first")]
    IsGuard,
    /// Some of the range cannot be read back from swap.
    #[error("some of it is lost: discard it first")]
    Lost,
    /// Budget and swap are full, or the kernel is short of mappings.
    #[error("memory or mappings (vm.max_map_count) are short")]
    NoMemory,
    /// A system call failed.
    #[error("the kernel refused: {0}")]
    System(#[from] Errno),
}
