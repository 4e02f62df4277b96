//! A program all of whose threads are stopped, between two of their instructions.

use super::target::{Target, field};
use anyhow::{Context, Result, bail};
use hugeswap_sys::trace::Tracee;
use hugeswap_sys::{Errno, signal};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long is tried to stop all threads.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long one thread may take to stop, nanoseconds. (One that reads from a disk has to be waited for.)
const STOP_NS: u64 = 5_000_000_000;

/// The threads. They go on when this is dropped.
pub struct Stopped {
    pub threads: Vec<Tracee>,
    pid: i32,
}

/// Stops every thread of a program.
pub fn stop(target: &Target) -> Result<Stopped> {
    Stopped::of(target, stop_all(target, &[])?)
}

/// Stops every thread of a program that is attached, but hugeswap's. Those that are in code of
/// hugeswap's with its locks, or about to be by a signal, are let go on until they have left it: what
/// they wait for there is nothing that a stopped thread has.
pub fn stop_attached(target: &Target) -> Result<Stopped> {
    let deadline = Instant::now() + PATIENCE;
    let mut at_rest: Vec<Tracee> = Vec::new();
    loop {
        let is_hugeswaps = |&tid: &i32| is_hugeswaps(target, tid);
        let ours = target.threads()?.into_iter().filter(is_hugeswaps);
        let but: Vec<_> = ours.chain(at_rest.iter().map(Tracee::tid)).collect();
        let is_inside = |t: &Tracee| {
            t.mask().is_ok_and(is_inside)
                || signals(target.pid, t.tid(), "SigPnd:") & signal::TOLD != 0
        };
        let (inside, outside): (Vec<_>, Vec<_>) =
            stop_all(target, &but)?.into_iter().partition(is_inside);
        at_rest.extend(outside);
        if inside.is_empty() {
            return Stopped::of(target, at_rest);
        }
        Stopped::of(target, inside)?.let_go();
        if Instant::now() > deadline {
            bail!("{target} did not come to rest: try again",);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Stops them, and those that they make meanwhile.
pub fn stop_all(target: &Target, but: &[i32]) -> Result<Vec<Tracee>> {
    let mut seen: BTreeSet<i32> = but.iter().copied().collect();
    let mut threads = Vec::new();
    loop {
        let new: Vec<_> = target
            .threads()?
            .into_iter()
            .filter(|&tid| seen.insert(tid))
            .collect();
        if new.is_empty() {
            break;
        }
        // All are asked before any is waited for.
        let mut asked = Vec::new();
        for tid in new {
            match Tracee::seize(tid) {
                Ok(tracee) => asked.push(tracee),
                Err(Errno::ESRCH) => {}
                Err(Errno::EPERM) if has_ended(target, tid) => {}
                Err(Errno::EPERM) => bail!("{}", not_permitted(target)),
                Err(e) => return Err(e).context("cannot stop the program's threads"),
            }
        }
        for mut tracee in asked {
            match tracee.interrupt(STOP_NS) {
                Ok(()) => threads.push(tracee),
                Err(Errno::ESRCH) => {}
                Err(Errno::EBUSY) => bail!(
                    "{target} is stopped: continue it first (kill -CONT {})",
                    target.pid
                ),
                Err(Errno(libc::ETIMEDOUT)) => bail!(
                    "a thread of {target} waits in the kernel for something that cannot be interrupted: try again",
                ),
                Err(e) => return Err(e).context("cannot stop the program's threads"),
            }
        }
    }
    Ok(threads)
}

/// Is a thread with this mask in code of hugeswap's, which may have locks? The handler of faults
/// blocks everything; that of system calls all but [`signal::TOLD`], except while the program's own call is
/// made, under the program's mask. (A C library never blocks all signals: some are its own.)
pub fn is_inside(mask: u64) -> bool {
    const NEVER: u64 = signal::bit(libc::SIGKILL) | signal::bit(libc::SIGSTOP);
    mask & signal::TOLD != 0 || mask | signal::TOLD | NEVER == signal::ALL
}

/// Is it a thread of hugeswap's, or one that the kernel has made for its I/O? (The program's have
/// faults blocked for moments only.)
pub fn is_hugeswaps(target: &Target, tid: i32) -> bool {
    let name = std::fs::read_to_string(format!("/proc/{}/task/{tid}/comm", target.pid));
    let is_named = name.is_ok_and(|n| n.starts_with("hs-") || n.starts_with("iou-"));
    is_named && signals(target.pid, tid, "SigBlk:") & signal::bit(libc::SIGSEGV) != 0
}

/// A set of signals of a thread, as its status names it.
fn signals(pid: i32, tid: i32, key: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/status"));
    let status = status.unwrap_or_default();
    u64::from_str_radix(field(&status, key), 16).unwrap_or(0)
}

/// Has a thread ended, and was not waited for yet?
fn has_ended(target: &Target, tid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/task/{tid}/stat", target.pid));
    // (The name, which is in parentheses, may be anything.)
    let state = stat.ok().and_then(|s| {
        s.rsplit_once(") ")
            .map(|(_, rest)| rest.starts_with(['Z', 'X']))
    });
    state.unwrap_or(true)
}

fn not_permitted(target: &Target) -> String {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    let what = match scope.as_deref().map(str::trim) {
        Ok("1") => "as root, or after `sysctl -w kernel.yama.ptrace_scope=0`",
        Ok("2") => "as root",
        Ok("3") => "after a restart of the machine with kernel.yama.ptrace_scope below 3",
        _ => "as its user, or as root",
    };
    format!("{target} may not be traced by this user: do it {what}",)
}

impl Stopped {
    /// These.
    pub fn of(target: &Target, threads: Vec<Tracee>) -> Result<Stopped> {
        if threads.is_empty() {
            bail!("{}", target.gone());
        }
        let pid = target.pid;
        Ok(Stopped { threads, pid })
    }

    /// Calls begin anew as the threads go on that wait for a time, or that would fail.
    pub fn begin_calls_anew(&self) {
        for t in &self.threads {
            let has_signal = || {
                let of = |key| signals(self.pid, t.tid(), key);
                let pending = of("SigPnd:") | of("ShdPnd:");
                pending & !t.mask().unwrap_or(0) != 0
            };
            let _ = t.begin_call_anew(has_signal);
        }
    }

    /// They go on.
    pub fn let_go(self) {}
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.begin_calls_anew();
        self.threads.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_blocks_all_is_hugeswaps() {
        assert!(is_inside(signal::ALL) && is_inside(signal::ALL & !signal::TOLD));
        assert!(is_inside(0xffff_ffff_bffb_fabf) && is_inside(signal::bit(libc::SIGBUS)));
        // What sigfillset() and pthread_sigmask() make: all but two of the C library's own.
        let of_libc = 0xffff_fffe_7ffb_feff & !signal::TOLD;
        assert!(!is_inside(of_libc) && !is_inside(0) && !is_inside(signal::bit(libc::SIGINT)));
    }
}
