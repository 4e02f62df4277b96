//! The options of `hugeswap run`, which `hugeswap record` takes, too.

use crate::exporter::serve::Address;
use crate::stat;
use clap::ValueEnum;
use std::path::PathBuf;
use std::time::Duration;

/// How a program is run.
#[derive(clap::Args)]
pub struct Options {
    /// Memory that is managed and that PROG and its children may have in memory together; what is not managed
    /// comes on top. auto (the default): all of their memory stays within the limit of the control group
    /// (container), or, without one, within what the machine has available
    #[arg(long, value_name = "SIZE|auto")]
    pub memory: Option<String>,
    /// Limit for all memory of PROG and its children, managed or not; file pages that the kernel can drop do not
    /// count. The budget for managed memory is what is left
    #[arg(long, value_name = "SIZE")]
    pub total: Option<String>,
    /// Directory for swap, or a swap file (mode 0600, never removed); may be repeated. Default: /var/tmp, or
    /// another directory on a disk. Areas of a higher priority are used first. Add ",device=allow" to have
    /// a block device overwritten, ",tmpfs=allow" to mean a directory that is in memory. "mem": no disk; what
    /// leaves memory is compressed and stays there, within the budget (the default where there is no
    /// directory on a disk)
    #[arg(long, value_name = "PATH|mem[,size=SIZE][,pri=N]")]
    pub swap: Vec<String>,
    /// Encrypt what goes to swap (AES-256-GCM, under a key that is never written anywhere)
    #[arg(long)]
    pub encrypt: bool,
    /// How page faults are taken: in the faulting thread (signal), or by a thread that reads them
    /// from a userfaultfd (message, needs privilege) [default: auto]
    #[arg(long, value_name = "MODE", value_enum)]
    pub fault_mode: Option<Mode>,
    /// Manage small blocks of malloc from the beginning, and not only in processes that have much
    /// memory in them; the same as --set route.small=on
    #[arg(long)]
    pub small: bool,
    /// Programs that are statically linked (Go) or for musl, and that a shell or make starts: manage them (auto, where
    /// that can be; on, or say what is in the way), or not (off). PROG itself is managed in any case [default: auto]
    #[arg(
        long = "static",
        value_name = "WHEN",
        value_enum,
        default_missing_value = "on",
        num_args = 0..=1,
        require_equals = true
    )]
    pub static_programs: Option<Static>,
    /// Wait also for what PROG leaves in the background: its memory stays managed, and what it starts is managed too
    #[arg(long)]
    pub wait_all: bool,
    /// Change a setting; may be repeated (--help lists them)
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Serve the figures of this run to Prometheus while it takes: at 127.0.0.1:PORT, or unix:PATH
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<Address>,
    /// Write a line of JSON to standard error every so many seconds, and at the end
    #[arg(long, value_name = "SECONDS", value_parser = stat::interval)]
    pub log: Option<Duration>,
    /// The report at the end [default: human]
    #[arg(long, value_name = "FORMAT", value_enum)]
    pub report: Option<Format>,
    /// Write the report to FILE, not to standard error
    #[arg(long, value_name = "FILE")]
    pub report_file: Option<PathBuf>,
    /// Options from a file, in TOML, by the names that they have here, settings in a table "set"; those of the
    /// command line come first, then HUGESWAP_MEMORY, _TOTAL, _SWAP, _SET and _CONFIG of the environment
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    Auto,
    Signal,
    Message,
}

/// Are programs that are statically linked or for musl managed, whatever program starts them?
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Static {
    Auto,
    On,
    Off,
}

/// How the report is written.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Human,
    Json,
    None,
}
