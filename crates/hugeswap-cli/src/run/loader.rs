//! This executable as the loader of a program, without a run: it belonged to one that has ended or is out of reach,
//! and its process has a filter under which it only runs if it is loaded. (In a run the injected object is there
//! when this executable starts, and loads the program before `main`.)

use super::{OBJECT, object};
use anyhow::{Context, Result, bail};
use hugeswap_support::{POOL_VARIABLE, WITHOUT_POOL};
use std::convert::Infallible;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The descriptor of the object stays open in the program: not among the first.
const DESCRIPTOR: i32 = 100;

/// Executes this executable again, with the object, which loads the program; signals are unblocked, and SIGPIPE has
/// its default.
pub fn execute() -> Result<Infallible> {
    if std::env::var_os(POOL_VARIABLE).is_some() {
        bail!("the injected object is missing");
    }
    let object = object::file(OBJECT)?;
    let kept = rustix::io::fcntl_dupfd_cloexec(&object, DESCRIPTOR).unwrap_or(object.into());
    rustix::io::fcntl_setfd(&kept, rustix::io::FdFlags::empty())?;
    let mut arguments = std::env::args_os();
    let mut again = Command::new("/proc/self/exe");
    if let Some(name) = arguments.next() {
        again.arg0(name);
    }
    let mut preload = format!("/proc/self/fd/{}", kept.as_raw_fd());
    if let Some(others) = std::env::var_os("LD_PRELOAD") {
        preload = format!("{preload}:{}", others.to_string_lossy());
    }
    again
        .args(arguments)
        .env("LD_PRELOAD", preload)
        .env(POOL_VARIABLE, WITHOUT_POOL);
    let _ = kept.into_raw_fd();
    Err(again.exec()).context("this executable cannot be executed again")
}
