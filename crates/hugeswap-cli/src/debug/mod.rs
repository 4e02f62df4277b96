//! `hugeswap debug`: help for debuggers of programs under `hugeswap run`.

use anyhow::Result;
use clap::Subcommand;
use std::io::Write;

const SCRIPT: &str = include_str!("hugeswap.gdb");

/// Help debuggers with programs whose memory is managed
#[derive(clap::Args)]
#[command(after_help = "\
EXAMPLE:
  hugeswap debug gdb-script >hugeswap.gdb
  gdb -p 4711 -x hugeswap.gdb
  (gdb) hugeswap-read 0x400000200000 64")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print commands for gdb: they pass on hugeswap's signals, and read memory that is in swap
    GdbScript,
}

/// Runs the command. Returns the exit status.
pub fn run(args: &Args) -> Result<i32> {
    match args.command {
        Command::GdbScript => std::io::stdout().write_all(SCRIPT.as_bytes())?,
    }
    Ok(0)
}
