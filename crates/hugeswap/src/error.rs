//! The library's errors.

use crate::{Advice, GroupError, SharedError, SnapshotError, SwapOffError, TrackError};
use hugeswap_engine::pool::losses::Loss;
use hugeswap_engine::{EngineError, MapError, MapFileError, MarkerError, PinError, pool};
use hugeswap_policy::knobs::settings::SettingError;
use hugeswap_policy::shared::Nonsense;
use std::path::PathBuf;

/// Why an operation of the library failed.
///
/// The message is one line that says what failed, on which bytes, area or file, and why, and where
/// there is something to do about it, what. Ranges are offsets in the region, in bytes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pool's shared segment or its swap could not be made or joined.
    #[error(transparent)]
    Pool(#[from] pool::PoolError),
    /// The engine of this process could not be started.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A setting does not exist, or does not take the value.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// A text is no swap area ([`SwapSpec::parse`](crate::SwapSpec::parse)).
    #[error(transparent)]
    SwapSpec(#[from] pool::SwapSpecError),
    /// No budget was given to the builder of a pool.
    #[error("a pool needs a memory budget: Pool::builder().memory(bytes)")]
    NoMemory,
    /// The text is not what [`Pool::ticket`](crate::Pool::ticket) returns.
    #[error("'{ticket}' is not a pool's ticket: see Pool::ticket")]
    Ticket {
        /// The text.
        ticket: String,
    },
    /// A private region could not be made.
    #[error("a region of {len} bytes cannot be made: {cause}")]
    Region {
        /// Length that was asked for, bytes.
        len: usize,
        /// Why not.
        cause: MapError,
    },
    /// A range is not within its region.
    #[error("range {offset}..+{len} is not within the region of {size} bytes")]
    Range {
        /// Start of the range, bytes.
        offset: usize,
        /// Length of the range, bytes.
        len: usize,
        /// Length of the region, bytes.
        size: usize,
    },
    /// A range could not be held in memory.
    #[error("bytes {offset}..+{len} of the region cannot be pinned: {cause}")]
    Pin {
        /// Start of the range, bytes.
        offset: usize,
        /// Length of the range, bytes.
        len: usize,
        /// Why not.
        cause: PinError,
    },
    /// A group could not be made, or does not take the limit.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// A region was to join a group of another pool.
    #[error("the group is another pool's: take one from the region's own pool")]
    ForeignGroup,
    /// A swap area could not be taken off.
    #[error(transparent)]
    SwapOff(#[from] SwapOffError),
    /// A file could not be mapped.
    #[error("cannot map {}: {cause}", .path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Why not.
        cause: FileError,
    },
    /// Changes of a mapped file could not be written to it. They are still in memory.
    #[error("the mapped file could not be written: {0}; try again when that is put right")]
    Sync(std::io::Error),
    /// A region that may only be read was to be written.
    #[error("the region's file is mapped read-only: map it FileMode::WriteBack")]
    ReadOnly,
    /// The content of a range cannot be read back from swap, or from its file.
    #[error("bytes {offset}..+{len} of the region are lost: {}; discard them", why(.loss))]
    Lost {
        /// Start of the range, bytes.
        offset: usize,
        /// Length of the range, bytes.
        len: usize,
        /// Where swap failed, and whether the bytes there changed or could not be read, for the
        /// first lost page of which that is known. `None` for a file, and for a loss that is not
        /// remembered any more.
        loss: Option<Loss>,
    },
    /// A part of a unit of 2 MiB could not be discarded: the rest of the unit had to come to memory
    /// first, and memory and swap are full. Some of the range may be as it was.
    #[error(
        "bytes {offset}..+{len} of the region could not all be discarded, for memory and swap are full: discard whole units of 2 MiB, or give more swap"
    )]
    NotDiscarded {
        /// Start of the range, bytes.
        offset: usize,
        /// Length of the range, bytes.
        len: usize,
    },
    /// Pages could not be guarded or poisoned.
    #[error("bytes {offset}..+{len} of the region cannot be marked: {cause}")]
    Marker {
        /// Start of the range, bytes.
        offset: usize,
        /// Length of the range, bytes.
        len: usize,
        /// Why not.
        cause: MarkerError,
    },
    /// A range that was to be read or written meets a guard.
    #[error("bytes {offset}..+{len} of the region meet a guard: Region::remove_guard removes it")]
    Guard {
        /// Start of the range, bytes.
        offset: usize,
        /// Length of the range, bytes.
        len: usize,
    },
    /// A shared region could not be made, attached or used.
    #[error("shared region: {0}")]
    Shared(#[from] SharedError),
    /// The descriptor of a shared region's memory could not be duplicated.
    #[error("the descriptor of the shared region's memory cannot be duplicated: {cause}")]
    Descriptor {
        /// Why not.
        cause: std::io::Error,
    },
    /// A shared region takes no such advice.
    #[error("a shared region takes no Advice::{0:?}: only WillNeed and PageOut")]
    SharedAdvice(Advice),
    /// Another process that has the shared region holds a part of it, and does not go on.
    #[error(
        "bytes {offset}..+{len} of the shared region are held by another process of the pool that is stopped or hangs"
    )]
    Stuck {
        /// Start of the range, bytes.
        offset: usize,
        /// Length of the range, bytes.
        len: usize,
    },
    /// Another process has damaged the pool's account of a shared region.
    #[error("the pool's account of the shared region is damaged: {0}")]
    Segment(#[from] Nonsense),
    /// Writes cannot be tracked.
    #[error(transparent)]
    Track(#[from] TrackError),
    /// A snapshot could not be made or restored.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The epoch is not one of the region's, or tracking was stopped since.
    #[error(
        "the epoch is another region's, or tracking was stopped since it began: begin one with track_writes"
    )]
    Epoch,
}

/// Why a file cannot be mapped ([`Error::File`]).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The offset is not a multiple of the page size, 4096 bytes.
    #[error("offset {offset} is not a multiple of 4096: begin at {}", .offset & !4095)]
    Unaligned {
        /// The offset, bytes.
        offset: u64,
    },
    /// The length is 0.
    #[error("0 bytes cannot be mapped: give a length")]
    Empty,
    /// It is not a regular file.
    #[error("it is {kind}: only regular files can be mapped")]
    NotRegular {
        /// What it is, with its article: "a directory".
        kind: &'static str,
    },
    /// The range reaches beyond the last page of the file.
    #[error(
        "{offset}..+{len} is not within the file of {size} bytes: map less, or make the file longer first"
    )]
    Outside {
        /// Start of the range in the file, bytes.
        offset: u64,
        /// Length of the range, bytes.
        len: usize,
        /// Length of the file, bytes.
        size: u64,
    },
    /// The file may not be written.
    #[error("{0}: it may not be written, map it FileMode::ReadOnly")]
    NotWritable(std::io::Error),
    /// The file could not be opened or examined.
    #[error("{0}")]
    Open(std::io::Error),
    /// The engine could not map it.
    #[error(transparent)]
    Map(#[from] MapFileError),
}

/// The cause of a loss, in words.
fn why(loss: &Option<Loss>) -> String {
    match loss {
        Some(loss) => loss.to_string(),
        None => "their swap, or their file, could not be read, or has changed".to_owned(),
    }
}
