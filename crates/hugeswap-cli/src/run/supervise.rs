//! Standing in for the program: signals passed on, stops mirrored, its end imitated.
//!
//! One thread. Every signal is blocked and read from a descriptor, so nothing happens between a check
//! and a wait. The program is in our process group: what the kernel sends to the group (terminal
//! keys, hang-ups) it gets by itself; what a process sends to us is passed on.

use anyhow::{Context, Result};
use hugeswap_engine::pool::{Pool, SOFT_FULL_PERCENT};
use hugeswap_sys::signal::{ALL, Mask, bit};
use hugeswap_sys::spawn::{self, Change, Received};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// How often the pool is looked through for processes that died, and what was asked of it is done.
const REAP_EVERY: Duration = Duration::from_millis(100);

/// Said once, when it happens.
const NEARLY_FULL: &str = "swap is 90% full: when all of it is, memory that finds no place is lost; free space on the disks, \
                           or add an area (hugeswap ctl swap add)";
const _: () = assert!(SOFT_FULL_PERCENT == 90);

/// Faults of our own stay fatal.
const SYNCHRONOUS: Mask = bit(libc::SIGSEGV)
    | bit(libc::SIGBUS)
    | bit(libc::SIGFPE)
    | bit(libc::SIGILL)
    | bit(libc::SIGTRAP)
    | bit(libc::SIGABRT)
    | bit(libc::SIGSYS);

/// How the program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With this exit status.
    Exited(i32),
    /// By this signal.
    Killed(i32),
}

impl Ended {
    /// The status a shell would show.
    pub fn code(self) -> i32 {
        match self {
            Ended::Exited(code) => code,
            Ended::Killed(signal) => 128 + signal,
        }
    }
}

/// Has every signal blocked from its making to the end of this process.
pub struct Supervisor {
    signals: OwnedFd,
    mask: Mask,
}

impl Supervisor {
    /// Blocks signals and takes over reading them.
    pub fn new() -> Result<Supervisor> {
        let made = spawn::signal_descriptor(ALL & !SYNCHRONOUS);
        let (signals, mask) = made.context("cannot watch for signals")?;
        Ok(Supervisor { signals, mask })
    }

    /// The mask we were started with, which is the program's.
    pub fn mask(&self) -> Mask {
        self.mask
    }

    /// Waits until the program has ended.
    pub fn supervise(&self, pid: i32, pool: &Pool) -> Result<Ended> {
        let mut reaped = Instant::now();
        let mut warned = false;
        loop {
            let mut fds = [PollFd::new(&self.signals, PollFlags::IN)];
            let timeout = Timespec {
                tv_sec: 0,
                tv_nsec: REAP_EVERY.as_nanos() as i64,
            };
            // A failed wait is a short one: what follows looks at everything anyway.
            let _ = poll(&mut fds, Some(&timeout));
            while let Some(received) = spawn::next_signal(self.signals.as_fd()) {
                if is_passed_on(received) {
                    // It may be gone already; then its status is next.
                    let _ = spawn::send(pid, received.signal);
                }
            }
            match spawn::wait(pid, false)
                .context("lost the program")?
                .map(|w| w.change)
            {
                Some(Change::Exited(code)) => return Ok(Ended::Exited(code)),
                Some(Change::Killed(signal)) => return Ok(Ended::Killed(signal)),
                // Whoever continues us continues the program too: SIGCONT is passed on.
                Some(Change::Stopped(signal)) => spawn::stop_like(signal),
                None => {}
            }
            if reaped.elapsed() >= REAP_EVERY {
                pool.reap();
                pool.serve();
                if !warned && pool.was_nearly_full() {
                    warned = true;
                    crate::complain(NEARLY_FULL);
                }
                reaped = Instant::now();
            }
        }
    }
}

/// Does the program get this signal from us?
fn is_passed_on(received: Received) -> bool {
    match received.signal {
        libc::SIGCHLD => false,
        // Timers set before we were executed are ours alone, though the kernel sends the signal.
        libc::SIGALRM | libc::SIGVTALRM | libc::SIGPROF => true,
        _ => !received.from_kernel,
    }
}

/// Descriptors above the standard ones that we were started with.
pub fn inherited_descriptors() -> Vec<i32> {
    let Ok(list) = std::fs::read_dir("/proc/self/fd") else {
        return Vec::new();
    };
    let mut numbers: Vec<i32> = list
        .filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok())
        .filter(|&n| n > 2)
        .collect();
    // The listing's own descriptor was in the list and is closed now.
    numbers.retain(|n| std::fs::symlink_metadata(format!("/proc/self/fd/{n}")).is_ok());
    numbers
}

/// Lets go of what was handed to us for the program, so that whoever reads the other ends
/// sees the end when the program closes them, not when we do. Standard error
/// stays, for the report.
pub fn let_go(inherited: &[i32]) {
    inherited.iter().for_each(|&fd| hugeswap_sys::fs::close(fd));
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        // What cannot be replaced is kept: only an early end-of-file is lost.
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
    }
}

/// Ends as the program did: by the same signal, or (returned) with the same status.
pub fn end_like(ended: Ended) -> i32 {
    if let Ended::Killed(signal) = ended {
        spawn::die_like(signal);
    }
    ended.code()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_keys_are_not_passed_on_twice() {
        let from = |signal, from_kernel| {
            is_passed_on(Received {
                signal,
                from_kernel,
            })
        };
        assert!(!from(libc::SIGINT, true));
        assert!(from(libc::SIGINT, false));
        assert!(from(libc::SIGTERM, false));
        assert!(from(libc::SIGALRM, true));
        assert!(!from(libc::SIGCHLD, true));
        assert!(from(libc::SIGCONT, false));
    }

    #[test]
    fn codes_are_a_shells() {
        assert_eq!(Ended::Exited(3).code(), 3);
        assert_eq!(Ended::Killed(libc::SIGTERM).code(), 143);
    }
}
