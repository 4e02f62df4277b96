//! Hints about the use of memory.

/// What the program knows about its use of a range: a hint for
/// [`ManagedRange::advise`](crate::ManagedRange::advise), which never changes the content.
///
/// What gives up content is a method of its own: [`Region::discard`](crate::Region::discard),
/// [`Region::discard_lazily`](crate::Region::discard_lazily),
/// [`SharedRegion::remove`](crate::SharedRegion::remove).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// It will be used soon: reading begins now (`MADV_WILLNEED`).
    WillNeed,
    /// It will not be used soon: it is moved to swap now (`MADV_PAGEOUT`), in units of 2 MiB. Of a
    /// unit that the range has in part its pages go where single pages can be had (signal mode with
    /// userfaultfd), and the unit is in memory by pages then; not those of a file or a shared region.
    PageOut,
    /// It is worth huge pages (`MADV_HUGEPAGE`): it gets them where `thp.enabled` or `thp.swapin`
    /// is `madvise`, and waits for them where `thp.defrag` is.
    HugePage,
    /// It is held in memory by base pages only (`MADV_NOHUGEPAGE`).
    NoHugePage,
    /// Its pages will be used in no order (`MADV_RANDOM`): under `thp.swapin=auto` it comes in by
    /// single pages.
    Random,
    /// It will be used from one end to the other (`MADV_SEQUENTIAL`): under `thp.swapin=auto` it
    /// comes in by whole units.
    Sequential,
    /// Neither `Random` nor `Sequential` (`MADV_NORMAL`).
    Normal,
}
