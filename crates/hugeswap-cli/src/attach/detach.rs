//! `hugeswap detach`: has the `hugeswap attach` that a program belongs to give its memory back.

use crate::ctl::pools;
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::time::Duration;

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
    let maker = pools::of(pid)?.maker();
    let line = std::fs::read(format!("/proc/{maker}/cmdline"));
    let Ok(line) = line else {
        bail!(
            "the hugeswap attach that process {pid} belongs to is gone: its memory stays managed"
        );
    };
    let mut words = line.split(|&b| b == 0);
    if words.nth(1) != Some(b"attach") {
        bail!("process {pid} was started by `hugeswap run`: its memory stays managed");
    }
    let attach = Pid::from_raw(maker).context("there is no such process")?;
    kill_process(attach, Signal::INT).context("hugeswap attach cannot be told")?;
    while Path::new(&format!("/proc/{maker}/fd/0")).exists() {
        std::thread::sleep(Duration::from_millis(20));
    }
    if !Path::new(&format!("/proc/{pid}")).exists() {
        bail!("process {pid} has ended");
    }
    match pools::of(pid) {
        Err(_) => Ok(0),
        Ok(_) => {
            bail!("not all memory of process {pid} could be given back: hugeswap attach says why")
        }
    }
}
