//! `hugeswap detach`: has the `hugeswap attach` that a program belongs to give its memory back.

use super::{check_that_it_fits, is_alive};
use crate::ctl::pools;
use anyhow::{Context, Result, bail};
use hugeswap_support::proc;
use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};

/// How long nothing may change.
const PATIENCE: Duration = Duration::from_secs(30);

const EXAMPLES: &str = "\
EXAMPLES:
  hugeswap detach 4711

The program goes on with all of its memory in memory: there must be room for it.";

/// Arguments of `hugeswap detach`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The process that `hugeswap attach` was given
    #[arg(value_name = "PID")]
    pid: i32,
}

/// Has a program's memory given back; returns the exit status.
pub fn run(args: &Args) -> Result<i32> {
    let pid = args.pid;
    let pool = pools::of(pid)?;
    let maker = pool.maker();
    let arguments = proc::arguments(maker);
    if arguments.is_empty() {
        bail!(
            "the hugeswap attach that process {pid} belongs to is gone: its memory stays managed"
        );
    }
    if arguments.get(1).is_none_or(|a| a != "attach") {
        bail!("process {pid} was started by `hugeswap run`: its memory stays managed");
    }
    let attach = Pid::from_raw(maker).context("there is no such process")?;
    check_that_it_fits(pid, &pool).with_context(|| format!("process {pid} stays attached"))?;
    kill_process(attach, Signal::INT).context("hugeswap attach cannot be told")?;
    // It ends when it has done that, or the program has ended.
    let (mut left, mut since) = (u64::MAX, Instant::now());
    while is_alive(maker) {
        let now = pool.swap_usage().used_bytes();
        if now != left {
            (left, since) = (now, Instant::now());
        }
        if since.elapsed() > PATIENCE {
            bail!(
                "the memory of process {pid} is not given back: hugeswap attach, process {maker}, says why"
            );
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    if !is_alive(pid) {
        bail!("process {pid} has ended");
    }
    match pools::of(pid) {
        Err(_) => Ok(0),
        Ok(_) => {
            bail!("not all memory of process {pid} could be given back: hugeswap attach says why")
        }
    }
}
