//! Event counters, under the names `/proc/vmstat` gives the same events.
//!
//! A counter is an index into a fixed array of 64-bit words: each process of a
//! pool has one such array in the pool segment, and a reader adds them up.

use crate::device::faulty::Kind;
use crate::workingset::lruvec::Event;
use crate::workingset::vmscan::PageKind;

named! {
    /// One event counter. Its name is the kernel's, where the kernel has one.
    Counter:
    PswpIn => "pswpin", "Base pages read from swap (a huge page counts 512).";
    PswpOut => "pswpout", "Base pages written to swap (a huge page counts 512).";
    ZswpIn => "zswpin", "Base pages read from compressed memory.";
    ZswpOut => "zswpout", "Base pages compressed and kept in memory.";
    ZswpClean => "zswap_stored_clean", "Of those, pages that swap holds as well, so that they need not be written when room is needed.";
    ZswpWb => "zswpwb", "Base pages written from compressed memory to swap, for it was full.";
    ZswpZstd => "zswap_stored_zstd", "Of the pages kept in compressed memory, those compressed by Zstandard, at either level.";
    ZswpBytes => "zswap_stored_bytes", "Bytes that the pages kept in compressed memory took there.";
    ZswpMoved => "zswap_moved", "Blocks of compressed memory moved together, or passed over since they were read.";
    ZswpPoor => "zswap_reject_compress_poor", "Pages that compressed too little and were written to swap.";
    ZswpSkipped => "zswap_reject_skipped", "Pages written to swap without an attempt, for those before compressed too little.";
    ZswpFull => "zswap_pool_limit_hit", "Pages written to swap since compressed memory was full.";
    ThpSwpIn => "thp_swpin", "Huge pages swapped in whole.";
    ThpSwpOut => "thp_swpout", "Huge pages swapped out whole.";
    ThpSwpInTrial => "thp_swpin_trial", "Trials of whole units, or of the sizes the rules find, while threads wait for faults.";
    ThpSwpInTrialKept => "thp_swpin_trial_kept", "Trials after which it stayed so, since the program got further.";
    ThpSwpInFallback => "thp_swpin_fallback", "Units swapped in where no huge page was to be had.";
    ThpSwpOutFallback => "thp_swpout_fallback", "Units swapped out that were not huge.";
    ThpFaultAlloc => "thp_fault_alloc", "Huge pages given on first touch.";
    ThpFaultFallback => "thp_fault_fallback", "First touches that got a base page, for no huge page was to be had.";
    SwapCacheHit => "swap_cache_hit", "Faults served from the swap cache or by mapping a watched unit again.";
    SwapRa => "swap_ra", "Units read ahead.";
    SwapRaHit => "swap_ra_hit", "Units read ahead that were then used.";
    PgReclaim => "pgsteal_kswapd", "Units whose memory background reclaim freed.";
    AllocStall => "allocstall", "Faults that had to wait for memory (direct reclaim).";
    AllocStallUsec => "allocstall_usec", "How long they waited, microseconds.";
    AllocThrottle => "alloc_throttle", "Times that a thread paused, for it took memory faster than it was made available.";
    AllocThrottleUsec => "alloc_throttle_usec", "How long they paused, microseconds.";
    CompactStall => "compact_stall", "Times that a huge page was waited for.";
    CompactSuccess => "compact_success", "Huge pages made available by that.";
    CompactFail => "compact_fail", "Times that it was in vain.";
    CompactDaemonWake => "compact_daemon_wake", "Times that huge pages were to be made available in the background, for none was to be had.";
    CompactDaemonSuccess => "compact_daemon_success", "Free frames that were not huge and became so.";
    CompactDaemonFail => "compact_daemon_fail", "Times that the kernel had no huge page for that.";
    CleanDrop => "pgclean_drop", "Units dropped without a write because swap already held their bytes.";
    PageCleanDrop => "pgclean_drop_4k", "Base pages that came writable, since they were changed the last time, and were not written because swap already held their bytes.";
    ZeroDrop => "zero_drop", "Units dropped without I/O because they were all zeros.";
    WriteRedirtied => "write_redirtied", "Write-outs made useless by a write while they were going on.";
    SwapMoved => "swap_moved", "Pages moved from one place in swap to another: off an area that is taken off, or together.";
    SwapInitialised => "swap_initialised", "Pages of swap files written with zeros before they were used.";
    SwapWriteError => "swap_write_error", "Swap writes that failed, but for want of room (the page stayed in memory).";
    SwapSoftFull => "swap_soft_full", "Times that swap was found nearly full; at most once.";
    SwapReadError => "swap_read_error", "Swap reads that failed or whose checksum did not match.";
    SwapSumError => "swap_sum_error", "Reads of swap that brought something else than was written; most are tried again.";
    SwapCorrupt => "swap_corrupt", "Reads of swap that brought something else than was written, again when repeated: bytes on the device have changed.";
    SwapThrottled => "swap_write_throttled", "Units written with others waiting, or in parts, so that reads are not kept waiting (swap.wbt_lat_usec).";
    SwapBatched => "swap_write_batched", "Writes of single pages, and runs of them, that were done several at once (swap.io_uring).";
    SwapPolled => "swap_read_polled", "Reads of swap that were polled for (swap.poll).";
    SwapPollYield => "swap_poll_yield", "Of those, reads during which another thread wanted the processor: threads sleep for a while then.";
    SwapReadTogether => "swap_read_batched", "Reads of pages of a unit that lie apart in swap, and runs of them, that were done several at once.";
    SwapGathered => "swap_write_gathered", "Single pages, changed here and there, that were written side by side to new places (swap.gather).";
    SwapPacked => "swap_write_compressed", "Pages written to swap compressed, in whole units (swap.compress).";
    SwapPackedBlocks => "swap_write_compressed_blocks", "Blocks of 4 KiB that they took.";
    SwapPackedIn => "swap_read_compressed", "Pages read from swap that were compressed there.";
    SwapPackPoor => "swap_compress_poor", "Whole units that were written as they are, for they did not become shorter by an eighth.";
    SwapRetry => "swap_retry", "Transfers of swap tried again after an error.";
    Poisoned => "hwpoison", "Pages, and whole units, lost: touching one is SIGBUS.";
    Cow => "pgcow", "Units copied because a forked relative shares them.";
    Pinned => "pin", "Ranges held in memory for a system call.";
    SyscallTrapped => "syscall_trapped", "System calls caught by the safety net because an argument pointed into managed memory.";
    MapLimit => "map_limit", "Times the limit on mappings was met and room was made.";
    MapError => "map_error", "Attempts of faults that the kernel did not map memory for; most are repeated with success.";
    GiveBack => "give_back", "Frames handed to another process of the pool.";
    ThpSplitPmd => "thp_split_pmd", "Units that went over from one huge page to base pages.";
    ThpCollapseFailed => "thp_collapse_alloc_failed", "Base-mapped units that stayed so, for no huge page was to be had.";
    ThpCollapse => "thp_collapse_alloc", "Units that went back from base pages to one huge page.";
    KhugepagedCollapsed => "khugepaged_pages_collapsed", "Base-mapped units that khugepaged made one huge page.";
    KhugepagedAllocFailed => "khugepaged_alloc_failed", "Times that khugepaged had no huge page for that.";
    KhugepagedFullScans => "khugepaged_full_scans", "Times that khugepaged has looked at all units.";
    RefaultAnon => "workingset_refault_anon", "Pages that came back from swap (a huge page counts 512).";
    RefaultFile => "workingset_refault_file", "Pages of mapped files that came back.";
    ActivateAnon => "workingset_activate_anon", "Of those from swap, activated at once: a larger share of memory would have kept them.";
    ActivateFile => "workingset_activate_file", "The same of mapped files.";
    RestoreAnon => "workingset_restore_anon", "Of those activated, part of the working set before.";
    RestoreFile => "workingset_restore_file", "The same of mapped files.";
    PgActivate => "pgactivate", "Pages that became active.";
    PgDeactivate => "pgdeactivate", "Pages that went back from the active to the inactive list.";
    PgScanAnon => "pgscan_anon", "Anonymous pages that reclaim looked at.";
    PgScanFile => "pgscan_file", "Pages of mapped files that reclaim looked at.";
    FileIn => "filein", "Base pages read from mapped files (a huge page counts 512).";
    FileOut => "fileout", "Base pages written back to mapped files (a huge page counts 512).";
    FileReadError => "file_read_error", "Reads of mapped files that failed, or that the file was too short for.";
    FileWriteError => "file_write_error", "Writes to mapped files that failed (the pages stayed in memory).";
    FaultEio => "fault_injected_eio", "Faults made on purpose: errors.";
    FaultShort => "fault_injected_short", "Faults made on purpose: short transfers.";
    FaultNoSpace => "fault_injected_nospace", "Faults made on purpose: full devices.";
    FaultFlip => "fault_injected_flip", "Faults made on purpose: changed bits.";
    FaultMisread => "fault_injected_misread", "Faults made on purpose: reads from the wrong place.";
    FaultMiswrite => "fault_injected_miswrite", "Faults made on purpose: writes to the wrong place.";
    FaultTorn => "fault_injected_torn", "Faults made on purpose: writes done in part.";
    FaultLost => "fault_injected_lost", "Faults made on purpose: writes not done.";
    FaultBad => "fault_injected_bad", "Faults made on purpose: transfers of bad pages.";
    FaultGone => "fault_injected_gone", "Faults made on purpose: transfers of a device that is gone.";
    FaultDelay => "fault_injected_delay", "Faults made on purpose: delays.";
    FaultHang => "fault_injected_hang", "Faults made on purpose: hangs.";
    FaultDetected => "fault_detected", "Reads spoilt on purpose, or by an earlier write, that were noticed.";
    FaultUndetected => "fault_undetected", "Reads spoilt on purpose, or by an earlier write, that were not noticed.";
    FaultUnexplained => "fault_unexplained", "Reads that were found wrong, or failed, though nothing was spoilt.";
    NumaHit => "numa_hit", "Frames that came from the node where they were wanted (0 where there is one node, as of the four below).";
    NumaMiss => "numa_miss", "Frames that came from another node than the one where they were wanted.";
    NumaForeign => "numa_foreign", "Frames that were wanted on a node and came from another.";
    NumaLocal => "numa_local", "Frames that came from the node of the processor that asked.";
    NumaOther => "numa_other", "Frames that came from another node than that.";
    Ejected => "ejected", "Units handed to the kernel (mixed protections; locked ones until they are unlocked).";
}

impl Counter {
    /// The counter of an injected fault of this kind.
    pub const fn of_fault(kind: Kind) -> Counter {
        match kind {
            Kind::Eio => Counter::FaultEio,
            Kind::Short => Counter::FaultShort,
            Kind::NoSpace => Counter::FaultNoSpace,
            Kind::Flip => Counter::FaultFlip,
            Kind::Misread => Counter::FaultMisread,
            Kind::Miswrite => Counter::FaultMiswrite,
            Kind::Torn => Counter::FaultTorn,
            Kind::Lost => Counter::FaultLost,
            Kind::Bad => Counter::FaultBad,
            Kind::Gone => Counter::FaultGone,
            Kind::Delay => Counter::FaultDelay,
            Kind::Hang => Counter::FaultHang,
        }
    }

    /// The counter that shows an event of the lists.
    pub const fn of_lists(event: Event, kind: PageKind) -> Counter {
        match (event, kind) {
            (Event::Refault, PageKind::Anon) => Counter::RefaultAnon,
            (Event::Refault, PageKind::File) => Counter::RefaultFile,
            (Event::Activate, PageKind::Anon) => Counter::ActivateAnon,
            (Event::Activate, PageKind::File) => Counter::ActivateFile,
            (Event::Restore, PageKind::Anon) => Counter::RestoreAnon,
            (Event::Restore, PageKind::File) => Counter::RestoreFile,
            (Event::PgActivate, _) => Counter::PgActivate,
            (Event::PgDeactivate, _) => Counter::PgDeactivate,
            (Event::Scan, PageKind::Anon) => Counter::PgScanAnon,
            (Event::Scan, PageKind::File) => Counter::PgScanFile,
        }
    }
}

named! {
    /// Classes of faults, for latency histograms.
    FaultClass:
    FirstTouch => "first_touch", "First touch of a unit.";
    Soft => "soft", "The memory was there: watched, write-protected, or in the swap cache.";
    Wait => "wait", "The thread waited for a read that another had begun (readahead in flight).";
    Major => "major_2m", "The faulting thread read a whole unit from swap.";
    Cow => "cow", "The thread copied a unit after fork.";
    Base => "major_4k", "The faulting thread read base pages of a unit from swap.";
}
