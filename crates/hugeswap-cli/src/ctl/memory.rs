//! `hugeswap ctl memory`: the budget of a running pool.

use crate::text;
use anyhow::{Context, Result, bail};
use hugeswap_engine::pool::{MIN_MEMORY, Pool};
use hugeswap_policy::{UNIT_BYTES, knobs};
use hugeswap_support::interrupt::{check_interrupted, watch_signals};
use indicatif::{ProgressBar, ProgressStyle};
use std::time::{Duration, Instant};

const LOOK: Duration = Duration::from_millis(20);
/// Nothing is given back for so long: it will not be.
const PATIENCE: Duration = Duration::from_secs(5);

/// Show a pool's budget, or change it while it is in use
///
/// A smaller budget holds at once for what is new; the command waits until what is above it has left. A larger one
/// can be as large as the first one was.
#[derive(clap::Args)]
pub struct Args {
    /// The new budget
    size: Option<String>,
}

/// Runs the command. Returns the exit status: 1 if memory above the budget stays in use.
pub fn run(pool: &Pool, args: &Args) -> Result<i32> {
    let budget = || pool.frames() * UNIT_BYTES;
    let in_use = || pool.used_frames() * UNIT_BYTES;
    let most = pool.ceiling_frames() * UNIT_BYTES;
    let was = budget();
    let Some(size) = &args.size else {
        println!(
            "memory: {}, {} in use, at most {}",
            text::bytes(was),
            text::bytes(in_use()),
            text::bytes(most)
        );
        return Ok(0);
    };
    let wanted = knobs::parse_size(size).context("SIZE")?;
    if pool.followed_limit().is_some() {
        bail!(
            "the budget follows a limit: change that (or start with `hugeswap run --memory SIZE`)"
        );
    }
    if wanted > most {
        bail!(
            "{size} is more than the {} that the pool was made for: start the program with more",
            text::bytes(most)
        );
    }
    if wanted < MIN_MEMORY {
        bail!("{size} is too little: at least {}", text::bytes(MIN_MEMORY));
    }
    watch_signals()?;
    let now = pool.set_budget(wanted);
    let above = || in_use().saturating_sub(now);
    watch_leave(pool, above)?;
    println!("memory: {} (was {})", text::bytes(now), text::bytes(was));
    let left = above();
    if left > 0 {
        println!(
            "{} above it stay in use: a process is stopped, memory is locked, or swap is full",
            text::bytes(left)
        );
    }
    Ok(i32::from(left > 0))
}

/// Waits until nothing is above any more, or nothing leaves.
pub fn watch_leave(pool: &Pool, above: impl Fn() -> u64) -> Result<()> {
    let (first, mut last, mut since) = (above(), above(), Instant::now());
    let bar = ProgressBar::new(first);
    bar.set_style(ProgressStyle::with_template(
        "{bar:40} {bytes} of {total_bytes} have left",
    )?);
    while above() > 0 && since.elapsed() < PATIENCE {
        check_interrupted()?;
        std::thread::sleep(LOOK);
        pool.reap();
        if above() < last {
            (last, since) = (above(), Instant::now());
        }
        bar.set_position(first.saturating_sub(above()));
    }
    bar.finish_and_clear();
    Ok(())
}
