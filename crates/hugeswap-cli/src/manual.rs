//! `hugeswap completions` and `hugeswap man`: what shells and man(1) know of the command line, made
//! from the same source as `--help`.

use anyhow::{Context, Result};
use clap::Command;
use clap_complete::Shell;
use std::io::Write;
use std::path::PathBuf;

const COMPLETIONS: &str = "\
EXAMPLES:
  hugeswap completions bash > ~/.local/share/bash-completion/completions/hugeswap
  hugeswap completions zsh > ~/.zfunc/_hugeswap          (with fpath+=~/.zfunc before compinit)
  hugeswap completions fish > ~/.config/fish/completions/hugeswap.fish";

const MAN: &str = "\
EXAMPLE:
  hugeswap man ~/.local/share/man/man1 && man hugeswap-run";

/// Print what a shell completes command lines by
#[derive(clap::Args)]
#[command(after_help = COMPLETIONS)]
pub struct Completions {
    shell: Shell,
}

/// Write man pages, one for each command
#[derive(clap::Args)]
#[command(after_help = MAN)]
pub struct Man {
    /// Where: it is made if it is not there
    directory: PathBuf,
}

/// Prints them. Returns the exit status.
pub fn completions(args: &Completions, mut command: Command) -> Result<i32> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "hugeswap", &mut script);
    // A reader (head, less) that closes the pipe is no failure.
    let _ = std::io::stdout().write_all(&script);
    Ok(0)
}

/// Writes them. Returns the exit status.
pub fn man(args: &Man, command: Command) -> Result<i32> {
    let shown = args.directory.display();
    let write = || {
        std::fs::create_dir_all(&args.directory)?;
        clap_mangen::generate_to(command, &args.directory)
    };
    write().with_context(|| format!("man pages cannot be written to {shown}"))?;
    Ok(0)
}
