//! Stands in for the program: passes on signals, stops when it stops, and ends as it ends.
//!
//! There is one thread. Every signal is blocked and read from a descriptor, so none is lost between a
//! check and a wait. The program is in the same process group: it gets the signals that the kernel sends
//! to the group (terminal keys, hang-ups); a signal that a process sends to this process is passed on.

use super::footprint::Footprint;
use crate::explain::Message;
use anyhow::{Context, Result};
use hugeswap_engine::pool::{Pool, SOFT_FULL_PERCENT};
use hugeswap_sys::Errno;
use hugeswap_sys::signal::{ALL, Mask, bit};
use hugeswap_sys::spawn::{self, Change, Received};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// Time between two rounds of maintenance: processes that died are cleaned up, and requests of
/// `hugeswap ctl` are served.
const REAP_EVERY: Duration = Duration::from_millis(100);

/// Written once, when it happens.
const NEARLY_FULL: &str = "swap is 90% full: when all of it is, memory that finds no place is lost; free space on the disks, \
                           or add an area (hugeswap ctl swap add)";
const _: () = assert!(SOFT_FULL_PERCENT == 90);

/// Signals of faults of this process, which stay fatal.
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
    /// It exited with this status.
    Exited(i32),
    /// This signal killed it.
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

/// The end of the program.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// How it ended.
    pub ended: Ended,
    /// The largest resident set of any of its processes that were waited for, bytes.
    pub max_rss_bytes: u64,
    /// It left a core dump.
    pub core_dumped: bool,
}

/// Every signal, blocked from its creation to the end of this process.
pub struct Supervisor {
    signals: OwnedFd,
    mask: Mask,
}

impl Supervisor {
    /// Blocks the signals and opens the descriptor.
    pub fn new() -> Result<Supervisor> {
        let made = spawn::signal_descriptor(ALL & !SYNCHRONOUS);
        let (signals, mask) = made.context("cannot watch for signals")?;
        Ok(Supervisor { signals, mask })
    }

    /// The mask that this process was started with, which the program gets.
    pub fn mask(&self) -> Mask {
        self.mask
    }

    /// Waits until the program has ended; with `all`, until no descendant runs any more, or a signal asks
    /// this process to end.
    pub fn supervise(
        &self,
        pid: i32,
        all: bool,
        pool: &Pool,
        footprint: &mut Footprint,
    ) -> Result<Done> {
        let mut reaped = Instant::now();
        let mut warned = false;
        let mut ended: Option<Done> = None;
        let mut max_rss_bytes = 0;
        loop {
            let mut fds = [PollFd::new(&self.signals, PollFlags::IN)];
            let wait = footprint.due_in().min(REAP_EVERY);
            let timeout = Timespec {
                tv_sec: 0,
                tv_nsec: wait.as_nanos() as i64,
            };
            // A wait that fails is only shorter: everything is checked below.
            let _ = poll(&mut fds, Some(&timeout));
            while let Some(received) = spawn::next_signal(self.signals.as_fd()) {
                match ended {
                    // It may have ended already; then its status comes next.
                    None if is_passed_on(received) => {
                        let _ = spawn::send(pid, received.signal);
                    }
                    Some(done) if ends_the_wait(received) => return Ok(done),
                    _ => {}
                }
            }
            loop {
                let w = match spawn::wait(if all { -1 } else { pid }, false) {
                    Ok(Some(w)) => w,
                    Ok(None) => break,
                    Err(e) => match ended {
                        Some(done) if e == Errno(libc::ECHILD) => return Ok(done),
                        _ => return Err(e).context("lost the program"),
                    },
                };
                max_rss_bytes = w.max_rss_bytes.max(max_rss_bytes);
                if let Some(done) = &mut ended {
                    done.max_rss_bytes = max_rss_bytes;
                }
                let now = match w.change {
                    Change::Exited(code) => Ended::Exited(code),
                    Change::Killed(signal) => Ended::Killed(signal),
                    // SIGCONT is passed on, so a process that continues this one continues the program.
                    Change::Stopped(signal) if w.pid == pid => {
                        spawn::stop_like(signal);
                        continue;
                    }
                    Change::Stopped(_) => continue,
                };
                if w.pid == pid {
                    let done = Done {
                        ended: now,
                        max_rss_bytes,
                        core_dumped: w.core_dumped,
                    };
                    if !all {
                        return Ok(done);
                    }
                    ended = Some(done);
                }
            }
            footprint.sample_if_due(pool);
            if reaped.elapsed() >= REAP_EVERY {
                pool.reap();
                pool.serve();
                if !warned && pool.was_nearly_full() {
                    warned = true;
                    crate::complain(&format!("{NEARLY_FULL} {}", Message::SwapFull));
                }
                reaped = Instant::now();
            }
        }
    }
}

/// Whether a signal ends the wait for processes that are left when the program has ended.
fn ends_the_wait(received: Received) -> bool {
    matches!(
        received.signal,
        libc::SIGINT | libc::SIGTERM | libc::SIGHUP | libc::SIGQUIT
    )
}

/// Whether a signal is passed on to the program.
fn is_passed_on(received: Received) -> bool {
    match received.signal {
        libc::SIGCHLD => false,
        // A timer from before the exec is this process's alone, although the kernel sends the signal.
        libc::SIGALRM | libc::SIGVTALRM | libc::SIGPROF => true,
        _ => !received.from_kernel,
    }
}

/// Descriptors above the standard ones that this process was started with.
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

/// Closes the descriptors that were meant for the program, so that a reader of the other end sees the end
/// of the file when the program closes them. Standard error stays open for the report.
pub fn let_go(inherited: &[i32]) {
    inherited.iter().for_each(|&fd| hugeswap_sys::fs::close(fd));
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        // A descriptor that cannot be replaced stays open: the reader sees the end of the file later.
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
    }
}

/// Ends this process by the signal that ended the program, or returns its exit status.
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
