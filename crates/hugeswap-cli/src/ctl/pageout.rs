//! `hugeswap ctl pageout`: memory that was used least lately leaves.

use super::memory::watch_leave;
use crate::text;
use anyhow::{Context, Result, bail};
use hugeswap_engine::pool::Pool;
use hugeswap_policy::{UNIT_BYTES, knobs};
use hugeswap_support::interrupt::watch_signals;

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
    let asked = pool.ask_to_page_out(args.pid, wanted);
    watch_leave(pool, || in_use().saturating_sub(before - asked))?;
    let left = before.saturating_sub(in_use());
    println!(
        "paged out: {}, {} in use",
        text::bytes(left),
        text::bytes(in_use())
    );
    if asked < wanted.next_multiple_of(UNIT_BYTES) {
        println!("no more than {} could leave", text::bytes(asked));
    } else if left < asked {
        println!("the rest stays: it is in use, locked, a process is stopped, or swap is full");
    }
    Ok(i32::from(left < wanted))
}
