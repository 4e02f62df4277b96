//! `hugeswap swap`: inspects swap files.

mod inspect;
mod show;

use clap::Subcommand;
use std::path::PathBuf;

const EXAMPLES: &str = "\
EXAMPLES:
  hugeswap swap inspect /swapfile
  hugeswap swap inspect /proc/4711/fd/1020 --json";

/// Look at swap files
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = false)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show in how many pieces a file lies on its device, and what that means for swapping to it
    Inspect(Inspect),
}

// Arguments of `hugeswap swap inspect`.
#[derive(clap::Args)]
#[command(after_help = "\
EXAMPLES:
  hugeswap swap inspect /swapfile
  hugeswap swap inspect /swapfile --extents
  hugeswap swap inspect /proc/4711/fd/1020 --json

hugeswap's own swap files have no names. Those of a running program are among the descriptors of
its processes: ls -l /proc/PID/fd | grep deleted

An extent is a stretch of the file; a piece is one or more of them that follow each other on the
device; a cluster is 2 MiB of the file, aligned: a huge page's worth. The file system is asked
(FIEMAP) and believed. What was written to the file and is not yet on the device is written out
first; otherwise it is only looked at. Exit status: 0, or 2 if the file cannot be inspected.")]
struct Inspect {
    /// A swap file, or any other file
    file: PathBuf,
    /// List all extents
    #[arg(long)]
    extents: bool,
    /// List all clusters without holes, those in one piece first
    #[arg(long)]
    clusters: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command. Returns the exit status.
pub fn run(args: &Args) -> anyhow::Result<i32> {
    use std::io::Write;
    let Command::Inspect(args) = &args.command;
    let found = inspect::inspect(&args.file)?;
    let found = found.with_lists(args.extents, args.clusters);
    let text = if args.json {
        serde_json::to_string_pretty(&found)? + "\n"
    } else {
        show::text(&found)
    };
    // A reader (head, less) that closes the pipe is no failure.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(0)
}
