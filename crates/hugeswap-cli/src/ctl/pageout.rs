//! `hugeswap ctl pageout`: memory that was used least lately leaves.

use super::memory::watch_leave;
use crate::text;
use anyhow::{Context, Result, bail};
use hugeswap_engine::pool::Pool;
use hugeswap_policy::{UNIT_BYTES, knobs};
use hugeswap_support::interrupt::watch_signals;

/// So often what is missing is asked for again.
const ROUNDS: u32 = 4;

/// Page out what was used least lately, without a smaller budget
///
/// It is written to swap, where it is not there already, and the machine has its memory until the program uses it
/// again: before another program starts, say, or of one that will rest for long.
#[derive(clap::Args)]
pub struct Args {
    /// How much
    size: String,
    /// Of this process only
    #[arg(long, value_name = "PID")]
    pid: Option<i32>,
}

/// Runs the command. Returns the exit status: 1 if less than was asked for could leave.
pub fn run(pool: &Pool, args: &Args) -> Result<i32> {
    let wanted = knobs::parse_size(&args.size).context("SIZE")?;
    if let Some(pid) = args.pid
        && !pool.processes().any(|p| p.pid == pid)
    {
        let all: Vec<_> = pool.processes().map(|p| p.pid.to_string()).collect();
        bail!(
            "process {pid} manages no memory of this pool; these do: {}",
            all.join(", ")
        );
    }
    watch_signals()?;
    let in_use = || pool.used_frames() * UNIT_BYTES;
    let before = in_use();
    let left = || before.saturating_sub(in_use());
    let mut most = 0;
    // (What a process gives it may take again for something else, a buffer say.)
    for _ in 0..ROUNDS {
        let rest = wanted.saturating_sub(left());
        let asked = pool.ask_to_page_out(args.pid, rest);
        most = left() + asked;
        watch_leave(pool, || {
            wanted.saturating_sub(left()).min(pool.asked_to_page_out())
        })?;
        if asked == 0 || left() >= wanted {
            break;
        }
    }
    let left = left();
    println!(
        "paged out: {}, {} in use",
        text::bytes(left),
        text::bytes(in_use())
    );
    if left < wanted && most < wanted {
        println!("no more than {} could leave", text::bytes(most));
    } else if left < wanted {
        println!("the rest stays: it is in use, locked, a process is stopped, or swap is full");
    }
    Ok(i32::from(left < wanted))
}
