//! `hugeswap-torture`: does managed memory behave as memory does?
//!
//! `check` is an ordinary program. It does what programs do to memory, at random from a seed, and
//! compares every word it reads with a model that hugeswap does not manage. It knows nothing of
//! hugeswap: run plainly it passes, too, which is how the checker itself is checked.
//!
//! `sweep` runs `check` under `hugeswap run` in every mode, seed after seed. It finds hangs by the
//! lack of progress, keeps the stacks of what hangs, and looks for a smaller run that fails the
//! same way.
//!
//! The two share nothing but the command line and a file of counters ([`board`]).

mod board;
mod check;
mod sweep;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "hugeswap-torture",
    about = "Checks that managed memory behaves as memory does",
    after_help = "EXAMPLES:\n  hugeswap-torture sweep --seconds 60 --seeds 20\n  \
                  hugeswap-torture sweep --modes message --seeds 1 --first-seed 7\n  \
                  hugeswap run --memory 64M -- hugeswap-torture check --seed 7 --bytes 256M"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Change and read memory at random, and compare it with a model
    Check(check::Args),
    /// Run `check` under hugeswap in every mode, for a number of seeds
    Sweep(sweep::Args),
}

fn main() {
    let result = match Cli::parse().command {
        Command::Check(args) => check::run(&args),
        Command::Sweep(args) => sweep::run(&args),
    };
    match result {
        Ok(true) => {}
        Ok(false) => std::process::exit(1),
        Err(e) => {
            eprintln!("hugeswap-torture: {e:#}");
            std::process::exit(2);
        }
    }
}

/// A size as people write it: a number with K, M or G.
fn size(text: &str) -> Result<usize, String> {
    let (number, shift) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (&text[..text.len() - 1], 10),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 20),
        Some(b'G' | b'g') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: usize = number
        .parse()
        .map_err(|_| format!("{text} is no size: write a number with K, M or G"))?;
    number
        .checked_shl(shift)
        .filter(|bytes| bytes >> shift == number)
        .ok_or_else(|| format!("{text} is more than an address can hold"))
}
