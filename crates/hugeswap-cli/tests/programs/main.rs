//! Real programs, plain and under `hugeswap run` with a fraction of the memory they use: what they print, the files
//! they write and their exit status must be the same, to the byte, and swapping must really have happened.
//!
//! Each case runs in a process group of its own with a time limit. A case that cannot run here prints why and
//! counts as passed; with HUGESWAP_TESTS_COMPLETE=1 in the environment a missing tool is a failure (`.ci/install`
//! installs what is needed).

mod allocators;
mod c;
mod compiler;
mod debugger;
mod limited;
mod limits;
mod python;
mod sandbox;
mod sort;
mod threads;
mod unmanaged;
mod util;

use libtest_mimic::{Arguments, Failed, Trial};
use rustix::process::{Pid, Signal, kill_process_group};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use util::{Case, SKIP};

/// For hangs only: where every page is read for itself a case takes a minute, and several while others use the disk.
const LIMIT: Duration = Duration::from_secs(400);
/// Tells the process of a case which it is.
const CASE: &str = "HUGESWAP_TEST_CASE";

fn all() -> Vec<Case> {
    [
        c::cases(),
        sort::cases(),
        compiler::cases(),
        python::cases(),
        sandbox::cases(),
        limited::cases(),
        limits::cases(),
        unmanaged::cases(),
        debugger::cases(),
        allocators::cases(),
        threads::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn main() {
    if let Ok(name) = std::env::var(CASE) {
        let case = all().into_iter().find(|c| c.name == name);
        (case.expect("no such case").run)();
        return;
    }
    let args = Arguments::from_args();
    let trials = all()
        .into_iter()
        .map(|c| Trial::test(c.name.clone(), move || in_own_process(&c.name)))
        .collect();
    libtest_mimic::run(&args, trials).exit();
}

fn in_own_process(name: &str) -> Result<(), Failed> {
    let mut child = Command::new(std::env::current_exe()?)
        .env(CASE, name)
        .env_remove("HUGESWAP_POOL")
        .stdin(Stdio::null())
        .process_group(0)
        .spawn()?;
    let group = Pid::from_child(&child);
    let start = Instant::now();
    let status = loop {
        if let Some(s) = child.try_wait()? {
            break s;
        }
        if start.elapsed() > LIMIT {
            kill_process_group(group, Signal::KILL)?;
            child.wait()?;
            return Err(format!("did not end within {LIMIT:?}").into());
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    // Whatever a failed case left running.
    let _ = kill_process_group(group, Signal::KILL);
    match status.code() {
        Some(0 | SKIP) => Ok(()),
        _ => Err(format!("ended with {status}").into()),
    }
}
