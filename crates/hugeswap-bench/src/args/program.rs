//! Arguments of `program`.

use super::against::{self, Against, Device};
use super::{Common, UNIT, size, wrong};
use hugeswap_engine::pool::MIN_MEMORY;
use std::fmt;

// Arguments of `hugeswap bench program`.
#[derive(clap::Args)]
#[command(after_help = format!("\
EXAMPLES:
  hugeswap bench program -- python3 job.py
  hugeswap bench program --memory 50%,25% --vs kernel --device /var/tmp --timeout 120 -- sort -S1G big.txt

The program runs plain, then under hugeswap with less memory, and with --vs kernel in a control group with the kernel's
swap, in turn, pair after pair. It has no input, and what it writes to stdout is compared: a run that writes
something else, or ends otherwise than the plain one, fails the benchmark. A share (25%) is one of the anonymous memory that
the plain run had at most, its children's included, looked at 50 times a second. The kernel's runs may use as much as hugeswap's: the
budget and what hugeswap did not manage. A run that does not end within --timeout is told as such, and its time is at least that; so is one of the
kernel's that it killed for want of memory.

{}", against::HELP))]
pub struct Program {
    /// What the program may have: shares of what it needs, or sizes
    #[arg(long, value_name = "SHARE|SIZE,..", value_delimiter = ',', default_value = "25%", value_parser = Share::parse)]
    pub memory: Vec<Share>,
    /// Do not compare what is written to stdout (of a program that tells times, for instance)
    #[arg(long)]
    pub any_output: bool,
    #[command(flatten)]
    pub against: Against,
    #[command(flatten)]
    pub common: Common,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub program: Vec<String>,
}

/// A part of what a program needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    Percent(u32),
    Bytes(u64),
}

impl Share {
    fn parse(text: &str) -> Result<Share, String> {
        let Some(percent) = text.strip_suffix('%') else {
            return size(text).map(Share::Bytes);
        };
        match percent.parse() {
            Ok(n @ 1..=1000) => Ok(Share::Percent(n)),
            _ => Err(format!("{text}: a share is from 1% to 1000%")),
        }
    }

    /// Bytes of a need, in whole units.
    pub fn of(self, need: u64) -> u64 {
        let bytes = match self {
            Share::Percent(n) => (need / 100 * u64::from(n)).next_multiple_of(UNIT),
            Share::Bytes(n) => n,
        };
        bytes.max(MIN_MEMORY)
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Share::Percent(n) => write!(f, "{n}%"),
            Share::Bytes(n) => write!(f, "{} MiB", n >> 20),
        }
    }
}

impl Program {
    /// Where to swap.
    pub fn device(&self) -> anyhow::Result<Device> {
        self.against.device(&self.common, false)
    }

    /// Everything that can be checked without running.
    pub fn check(&self) -> anyhow::Result<()> {
        self.common.check()?;
        self.against.check()?;
        if self.memory.is_empty() {
            return wrong("--memory: give at least one share or size".into());
        }
        for share in &self.memory {
            if let Share::Bytes(n) = share {
                super::check_memory(*n, super::super::machine::memory_bytes()?)?;
            }
        }
        self.device().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_sizes() {
        assert_eq!(Share::parse("25%"), Ok(Share::Percent(25)));
        assert_eq!(Share::parse("64M"), Ok(Share::Bytes(64 << 20)));
        for wrong in ["", "%", "0%", "-1%", "1001%", "64", "64Q"] {
            assert!(Share::parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(Share::Percent(25).of(1 << 30), 256 << 20);
        assert_eq!(Share::Percent(50).of((1 << 30) + 4096), (512 << 20) + UNIT);
        assert_eq!(Share::Percent(1).of(1 << 20), MIN_MEMORY);
    }
}
