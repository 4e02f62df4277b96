//! The settings of `--set KEY=VALUE`: names, bounds and defaults, in one place.

pub mod settings;

use crate::device::faulty::Kind;
use settings::{Setting, SettingError};

/// How the value of a setting is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A size in bytes; suffixes K, M, G, T are accepted.
    Bytes,
    /// A plain number.
    Count,
    /// `on` or `off`.
    Switch,
    /// One of several words; the value is its index.
    Choice(&'static [&'static str]),
}

macro_rules! choices {
    ($($(#[$doc:meta])* $choice:ident in $words:ident {
        $($(#[$word_doc:meta])* $variant:ident = $constant:ident $word:literal,)*
    })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u64)]
        pub enum $choice { $($(#[$word_doc])* $variant,)* }
        impl $choice {
            /// Every choice, in the order of its number.
            pub const ALL: &'static [$choice] = &[$($choice::$variant,)*];
            /// The word of each choice, in the same order.
            pub const WORDS: &'static [&'static str] = &[$($word,)*];
        }
        $(#[$doc])*
        pub mod $words {
            $($(#[$word_doc])* pub const $constant: u64 = super::$choice::$variant as u64;)*
            /// The words.
            pub const WORDS: &[&str] = super::$choice::WORDS;
        }
    )*};
}

choices! {
    /// Which memory may be huge: the setting `thp.enabled`, in the kernel's words.
    ThpEnabled in enabled {
        /// All memory except what was advised `MADV_NOHUGEPAGE`.
        Always = ALWAYS "always",
        /// Only memory that was advised `MADV_HUGEPAGE`.
        Madvise = MADVISE "madvise",
        /// No memory: everything is held by base pages.
        Never = NEVER "never",
    }
    /// What a fault on swapped memory brings in: the setting `thp.swapin`, in the kernel's words.
    ThpSwapin in swapin {
        /// The whole unit or single pages, as the faults so far suggest.
        Auto = AUTO "auto",
        /// The whole unit of 2 MiB.
        Always = ALWAYS "always",
        /// The whole unit where `MADV_HUGEPAGE` was advised; base pages elsewhere.
        Madvise = MADVISE "madvise",
        /// Base pages.
        Never = NEVER "never",
    }
    /// What is done for a huge page where none is free: the setting `thp.defrag`, in the kernel's
    /// words.
    ThpDefrag in defrag {
        /// The fault waits for a huge page.
        Always = ALWAYS "always",
        /// The fault takes base pages at once, and wakes the threads that make huge pages free.
        Defer = DEFER "defer",
        /// The fault waits where `MADV_HUGEPAGE` was advised; elsewhere as `Defer`.
        DeferMadvise = DEFER_MADVISE "defer+madvise",
        /// The fault waits where `MADV_HUGEPAGE` was advised; elsewhere it takes base pages at once.
        Madvise = MADVISE "madvise",
        /// The fault takes base pages at once.
        Never = NEVER "never",
    }
    /// Which processes' small blocks of malloc are managed, too: the setting `route.small`.
    RouteSmall in small {
        /// No process's.
        Off = OFF "off",
        /// Those of each process that has asked for 4 MiB in such blocks.
        On = ON "on",
        /// Those of each process whose memory that is not managed has grown to a sixteenth of the
        /// budget (4 to 64 MiB).
        Auto = AUTO "auto",
    }
    /// Whether changed pages from here and there of a unit are written side by side: the setting
    /// `swap.gather`.
    SwapGather in gather {
        /// Each to its own place.
        Never = NEVER "never",
        /// Side by side, while half of swap is free.
        Always = ALWAYS "always",
        /// So while no more than one thread waits for swap.
        Auto = AUTO "auto",
    }
    /// Whether whole units are compressed before they are written to a device: the setting
    /// `swap.compress`.
    SwapCompress in compress {
        /// They are not.
        Never = NEVER "never",
        /// Those that become shorter are, while half of swap is free.
        Always = ALWAYS "always",
        /// So where the device takes longer for the rest than the compressor does.
        Auto = AUTO "auto",
    }
    /// Whether pages are compressed and kept in memory before they are written to swap: the setting
    /// `zswap.enabled`.
    ZswapEnabled in zswap {
        /// They are not.
        Never = NEVER "never",
        /// They are, as long as there is room.
        Always = ALWAYS "always",
        /// They are where that costs less than to write them and read them back.
        Auto = AUTO "auto",
    }
    /// What pages are compressed by: the setting `zswap.compressor`.
    ZswapCompressor in compressor {
        /// The one with which the program waits least, as samples of the pages that leave show.
        Auto = AUTO "auto",
        /// LZ4: the fastest.
        Lz4 = LZ4 "lz4",
        /// Zstandard at level -1: pages become half as long again as by LZ4, and take twice the time.
        ZstdFast = ZSTD_FAST "zstd-fast",
        /// Zstandard at level 1, which also makes text shorter that has no repetitions.
        Zstd = ZSTD "zstd",
    }
}

macro_rules! knobs {
    ($($variant:ident => $name:literal, $unit:ident $(($choice:ident))?, $min:expr, $max:expr, $default:expr, $doc:literal;)*) => {
        named! {
            /// One setting; its index is that in the pool segment, its name the KEY of `KEY=VALUE`.
            Knob: $($variant => $name, $doc;)*
        }
        impl Knob {
            /// How the VALUE is written.
            pub const fn form(self) -> Form {
                match self { $(Knob::$variant => Form::$unit $(($choice::WORDS))?,)* }
            }
            /// Smallest and largest VALUE.
            pub const fn bounds(self) -> (u64, u64) { match self { $(Knob::$variant => ($min, $max),)* } }
            /// The VALUE of a pool for which none is set.
            pub const fn default_value(self) -> u64 { match self { $(Knob::$variant => $default,)* } }
            /// True if the knob can be set only when a pool is made.
            pub const fn is_fixed(self) -> bool { matches!(self, Knob::Encrypt) }
        }
        /// A type for each setting: what [`crate::knobs::settings`] offers.
        pub(crate) mod types {
            use super::Knob;
            use crate::knobs::settings::typed;
            $(typed!($variant, $name, $unit $(($choice))?, $doc);)*
        }
    };
}

knobs! {
    MallocMin => "route.malloc_min", Bytes, 128 << 10, 1 << 40, 1 << 20, "smallest malloc that goes to managed memory";
    MmapMin => "route.mmap_min", Bytes, 128 << 10, 1 << 40, 1 << 20, "smallest private anonymous mmap that goes to managed memory";
    ReserveMin => "route.reserve_min", Bytes, 128 << 10, 1 << 40, 128 << 10, "smallest mapping without access that is managed once the program makes it accessible";
    Small => "route.small", Choice(RouteSmall), 0, 2, small::AUTO, "whether small blocks of malloc are managed, too; for a new pool only";
    SharedAnonymous => "shared.anonymous", Switch, 0, 1, 0, "manage programs' shared anonymous memory, from route.mmap_min on (signal mode)";
    SharedFiles => "shared.files", Switch, 0, 1, 0, "manage memory files of programs (memfd_create, shm_open) that they map shared, from shared.files_min on (signal mode)";
    SharedFilesMin => "shared.files_min", Bytes, 128 << 10, 1 << 40, 16 << 20, "smallest memory file that is managed";
    ReadaheadMax => "readahead.max", Count, 0, 64, 8, "most 2 MiB units read ahead of a sequential stream; 0 turns readahead off";
    ThpEnabled => "thp.enabled", Choice(ThpEnabled), 0, 2, enabled::ALWAYS, "which memory may be huge: always, what the program advised (madvise), or never (base pages)";
    ThpSwapin => "thp.swapin", Choice(ThpSwapin), 0, 3, swapin::AUTO, "what a fault on swapped memory brings in: always the whole unit of 2 MiB, never (base pages), madvise, or auto";
    ThpDefrag => "thp.defrag", Choice(ThpDefrag), 0, 4, defrag::MADVISE, "what is done for a huge page where none is free: always waits for it, madvise where the program advised it, defer and defer+madvise wake who makes some free, never; those that do not wait get base pages at once";
    KhugepagedDefrag => "khugepaged.defrag", Switch, 0, 1, 1, "khugepaged may wait for a huge page";
    KhugepagedMaxPtesNone => "khugepaged.max_ptes_none", Count, 0, 511, 511, "most pages of a unit that hold nothing, for khugepaged to make it one huge page";
    KhugepagedMaxPtesSwap => "khugepaged.max_ptes_swap", Count, 0, 511, 64, "most pages of a unit that are in swap, for khugepaged to make it one huge page";
    KhugepagedPagesToScan => "khugepaged.pages_to_scan", Count, 0, 1 << 30, 4096, "base pages that khugepaged looks at before it sleeps; 0 turns it off";
    KhugepagedScanSleep => "khugepaged.scan_sleep_ms", Count, 1, 3_600_000, 10_000, "how long khugepaged sleeps, milliseconds";
    MinFreeKbytes => "vm.min_free_kbytes", Count, 0, 1 << 40, 0, "below this much free memory, KiB, there are base pages only (watermark min); 0: by the budget";
    WatermarkScale => "vm.watermark_scale_factor", Count, 0, 3000, 0, "from watermark min to low, and from low to high, in parts of 10,000 of the budget; 0: by the budget";
    WatermarkBoost => "vm.watermark_boost_factor", Count, 0, 100_000, 15_000, "how far low and high are raised at most while memory is taken faster than it is made free, in parts of 10,000 of high; 0: not";
    ThrottleMax => "vm.throttle_max_usec", Count, 0, 10_000_000, 200_000, "longest pause of a thread that takes memory faster than it is made free, microseconds; 0: none";
    FullPatience => "vm.full_patience_ms", Count, 0, 86_400_000, 2000, "how long a program waits for memory while swap is full before it is ended, milliseconds: swap can be added meanwhile (ctl swap add)";
    Swappiness => "swappiness", Count, 0, 200, 60, "how readily anonymous memory is reclaimed beside mapped files: 0 files only, 100 even, 200 anonymous only";
    WorkingsetDetection => "workingset.detection", Switch, 0, 1, 1, "what comes back from swap soon after it left is taken for part of the working set; off is for comparisons";
    SyscallTrap => "syscall.trap", Switch, 0, 1, 1, "catch system calls that wrappers do not see (signal mode)";
    SyscallIoUring => "syscall.io_uring", Switch, 0, 1, 0, "let programs use io_uring: the memory of requests is held until they are done (signal mode)";
    Checksum => "swap.checksum", Switch, 0, 1, 1, "verify every unit read back from swap";
    IoUring => "swap.io_uring", Switch, 0, 1, 1, "write single pages to swap several at once, by io_uring where there is one";
    SwapGather => "swap.gather", Choice(SwapGather), 0, 2, gather::AUTO, "write changed pages from here and there of 2 MiB side by side to new places in swap, by few writes: never, always, or auto, while pages come one by one";
    SwapCompress => "swap.compress", Choice(SwapCompress), 0, 2, compress::AUTO, "compress what is written in whole units of 2 MiB to a device: never, always, or auto, where the device is slower than that";
    SwapPoll => "swap.poll", Switch, 0, 1, 1, "poll for short reads of swap instead of sleeping, while no other thread wants the processor";
    WbtLat => "swap.wbt_lat_usec", Count, 0, 10_000_000, 2000, "writers to swap are slowed down while small reads take longer than so many microseconds (or than 8 times what they took at first, if that is more); 0: never";
    CleanDrop => "swap.clean_drop", Switch, 0, 1, 1, "drop unchanged units without writing them again";
    ZswapEnabled => "zswap.enabled", Choice(ZswapEnabled), 0, 2, zswap::AUTO, "keep pages that leave memory compressed, in memory, before they are written to swap: never, always, or auto, where that is cheaper";
    ZswapCompressor => "zswap.compressor", Choice(ZswapCompressor), 0, 3, compressor::AUTO, "what compresses pages: lz4, zstd-fast (level -1), zstd (level 1), or auto, whichever saves the program most time";
    ZswapMaxPool => "zswap.max_pool_percent", Count, 1, 90, 80, "most of the memory in use that may be compressed memory, in parts of 100";
    Encrypt => "swap.encrypt", Switch, 0, 1, 0, "encrypt what goes to swap (AES-256-GCM); for a new pool only";
    Initialise => "swap.initialise", Switch, 0, 1, 0, "write to new parts of swap files, when there is nothing else to do, before they are used (ext4, xfs)";
    Markers => "markers", Switch, 0, 1, 1, "guards, poisoned pages and tracking of writes can be had; off refuses them";
    NumaFake => "debug.numa_fake", Count, 0, crate::numa::MAX_NODES as u64, 0, "testing: so many nodes are pretended, for a process that joins from then on; 0: those of the machine";
    Storm => "debug.storm", Count, 0, 1_000_000, 0, "testing: evict a random unit every N microseconds; 0 is off";
    SwapReadFail => "debug.swap_read_fail", Count, 0, 1 << 31, 0, "testing: every Nth read of swap, or of a mapped file, fails (EIO)";
    SwapReadFlip => "debug.swap_read_flip", Count, 0, 1 << 31, 0, "testing: every Nth read of swap has a bit changed";
    SwapWriteFail => "debug.swap_write_fail", Count, 0, 1 << 31, 0, "testing: every Nth write of swap, or to a mapped file, fails (EIO)";
    SharedPatience => "debug.shared_patience_ms", Count, 1, 600_000, 60_000, "testing: who waits for another process that holds a unit of shared memory gives up after so long, milliseconds";
    Userfaultfd => "debug.userfaultfd", Switch, 0, 1, 1, "testing: off does as if userfaultfd were refused for base pages (signal mode)";
    PieceMappings => "debug.piece_mappings", Count, 0, 1 << 31, 0, "testing: most mappings that 64 KiB pieces may take without userfaultfd; 0: half of what is free under vm.max_map_count";
    SwapSpace => "debug.swap_space", Bytes, 0, 1 << 50, 0, "testing: each swap area is full (ENOSPC) after so many bytes; 0 is off";
    FaultSeed => "debug.fault_seed", Count, 0, u64::MAX, 0, "testing: what the faults by rate follow from; 0: there are none";
    FaultEio => "debug.fault_eio", Count, 0, 1_000_000, 0, "testing: of a million operations so many fail (EIO), for one or two attempts";
    FaultShort => "debug.fault_short", Count, 0, 1_000_000, 0, "testing: of a million operations so many transfer only a part at first";
    FaultNoSpace => "debug.fault_nospace", Count, 0, 1_000_000, 0, "testing: of a million writes so many are refused (ENOSPC), for one or two attempts";
    FaultFlip => "debug.fault_flip", Count, 0, 1_000_000, 0, "testing: of a million reads so many have a bit changed, for one or two attempts";
    FaultMisread => "debug.fault_misread", Count, 0, 1_000_000, 0, "testing: of a million reads so many come from the wrong place, for one or two attempts";
    FaultMiswrite => "debug.fault_miswrite", Count, 0, 1_000_000, 0, "testing: of a million writes so many go to the wrong place";
    FaultTorn => "debug.fault_torn", Count, 0, 1_000_000, 0, "testing: of a million writes so many are done in part";
    FaultLost => "debug.fault_lost", Count, 0, 1_000_000, 0, "testing: of a million writes so many are not done, and said to be";
    FaultBad => "debug.fault_bad", Count, 0, 1_000_000, 0, "testing: of a million pages of swap so many cannot be read, every other one of them not written either";
    FaultDelay => "debug.fault_delay", Count, 0, 1_000_000, 0, "testing: of a million operations so many take up to 1/32 of debug.fault_hang_ms longer";
    FaultHang => "debug.fault_hang", Count, 0, 1_000_000, 0, "testing: of a million operations so many take up to debug.fault_hang_ms longer";
    FaultGone => "debug.fault_gone", Count, 0, 1 << 40, 0, "testing: the last swap area is not there any more (ENODEV) after so many transfers; 0 is off";
    FaultHangMs => "debug.fault_hang_ms", Count, 1, 60_000, 500, "testing: longest hang, milliseconds";
}

impl Knob {
    /// The setting for how often faults of this kind are injected, or `None` if the kind has no
    /// rate.
    pub const fn of_fault(kind: Kind) -> Option<Knob> {
        Some(match kind {
            Kind::Eio => Knob::FaultEio,
            Kind::Short => Knob::FaultShort,
            Kind::NoSpace => Knob::FaultNoSpace,
            Kind::Flip => Knob::FaultFlip,
            Kind::Misread => Knob::FaultMisread,
            Kind::Miswrite => Knob::FaultMiswrite,
            Kind::Torn => Knob::FaultTorn,
            Kind::Lost => Knob::FaultLost,
            Kind::Bad => Knob::FaultBad,
            Kind::Delay => Knob::FaultDelay,
            Kind::Hang => Knob::FaultHang,
            Kind::Gone => return None,
        })
    }
}

/// The knob of a KEY.
pub fn find(name: &str) -> Option<Knob> {
    Knob::ALL.iter().copied().find(|k| k.name() == name)
}

/// Why a text is no size. The message is one line that says what to write.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SizeError {
    /// It is not a number with a suffix.
    NotASize {
        /// The text.
        text: String,
    },
    /// It is more than 64 bits can say.
    TooLarge {
        /// The text.
        text: String,
    },
}

impl std::fmt::Display for SizeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SizeError::NotASize { text } => write!(
                f,
                "'{text}' is not a size: write a number with K, M, G or T, like 600M or 1.5G"
            ),
            SizeError::TooLarge { text } => write!(f, "'{text}' is too large a size"),
        }
    }
}

impl std::error::Error for SizeError {}

/// Parses a size: digits, an optional fraction, and an optional suffix B, K, M, G or T (powers of
/// 1024; `KiB`, `MB` and the like are accepted too).
///
/// # Errors
/// [`SizeError`] if the text is no such size.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let bad = || SizeError::NotASize { text: text.into() };
    let too_large = || SizeError::TooLarge { text: text.into() };
    let t = text.trim();
    let split = t
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(t.len());
    let (number, suffix) = t.split_at(split);
    let shift = match suffix.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(bad()),
    };
    let value = if let Ok(n) = number.parse::<u64>() {
        n.checked_mul(1 << shift).ok_or_else(too_large)?
    } else {
        let f: f64 = number.parse().map_err(|_| bad())?;
        let v = f * (1u64 << shift) as f64;
        if v >= 9.0e18 {
            return Err(too_large());
        }
        v as u64
    };
    Ok(value)
}

/// Parses `KEY=VALUE` and checks its bounds.
pub fn parse_setting(text: &str) -> Result<(Knob, u64), SettingError> {
    let setting: Setting = text.parse()?;
    Ok((setting.knob(), setting.value()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_size("600M"), Ok(600 << 20));
        assert_eq!(parse_size("1.5G"), Ok(3 << 29));
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("2 MiB"), Ok(2 << 20));
        for bad in ["", "M", "12Q", "-5M", "1.2.3G", "99999999999T", "nan"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn settings() {
        assert_eq!(
            parse_setting("route.malloc_min=2M"),
            Ok((Knob::MallocMin, 2 << 20))
        );
        assert_eq!(parse_setting("swap.checksum=off"), Ok((Knob::Checksum, 0)));
        for bad in [
            "x",
            "no.such=1",
            "route.malloc_min=1",
            "readahead.max=x",
            "swap.checksum=maybe",
        ] {
            assert!(parse_setting(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn defaults_are_within_bounds() {
        for k in Knob::ALL {
            let (min, max) = k.bounds();
            assert!((min..=max).contains(&k.default_value()), "{}", k.name());
            assert_eq!(find(k.name()), Some(*k));
        }
        for &kind in Kind::ALL {
            let name = format!("debug.fault_{}", kind.name());
            let knob = find(&name).unwrap_or_else(|| panic!("{name}"));
            assert!(Knob::of_fault(kind).is_none_or(|k| k == knob));
        }
    }
}
