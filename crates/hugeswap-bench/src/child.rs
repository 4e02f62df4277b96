//! Child processes with a time limit, ended together with all they started.
//!
//! A child leads a process group of its own, so that ending it ends its children, and so that Ctrl-C reaches
//! us alone: we then end the child and undo what was set up. Signals only set a flag; every wait looks at it.

use anyhow::{Context, Result};
use hugeswap_support::interrupt::check_interrupted;
use rustix::process::{Pid, Signal, kill_process_group};
use std::hash::{DefaultHasher, Hasher};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often a wait looks whether it should end.
pub const TICK: Duration = Duration::from_millis(20);

/// A child did not end in time, and was ended.
#[derive(Debug)]
pub struct TooLong(Duration);

impl std::fmt::Display for TooLong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seconds = self.0.as_secs();
        write!(
            f,
            "it did not end within {seconds} seconds: raise --timeout, or give it less to do"
        )
    }
}

impl std::error::Error for TooLong {}

/// How a child ended.
pub struct Ended {
    pub status: ExitStatus,
    /// What it wrote to stderr, the last few KiB.
    pub stderr: String,
    /// From its start to its end.
    pub elapsed: Duration,
}

impl Ended {
    /// The last line of stderr, or how it ended if it said nothing.
    pub fn reason(&self) -> String {
        let last = self.stderr.lines().rev().find(|l| !l.trim().is_empty());
        let how = match (self.status.code(), self.status.signal()) {
            (Some(code), _) => format!("exit status {code}"),
            (None, Some(signal)) => format!("ended by signal {signal}"),
            (None, None) => "ended".into(),
        };
        last.map_or_else(|| how.clone(), |l| format!("{} ({how})", l.trim()))
    }
}

/// A child that does not outlive this value.
struct Group(Child);

impl Group {
    fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            // It may have ended on its own.
            let _ = kill_process_group(pid, signal);
        }
    }

    /// Asks, then insists. What hangs in the kernel is left to whoever undoes what it hangs on.
    fn end(&mut self) {
        for (signal, patience) in [(Signal::TERM, 3), (Signal::KILL, 10)] {
            self.signal(signal);
            let until = Instant::now() + Duration::from_secs(patience);
            while Instant::now() < until {
                if !matches!(self.0.try_wait(), Ok(None)) {
                    // Members of the group that outlived its leader.
                    self.signal(Signal::KILL);
                    return;
                }
                std::thread::sleep(TICK);
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            self.end();
        }
    }
}

/// A child that was started, and who reads its stderr.
struct Started {
    child: Group,
    at: Instant,
    limit: Duration,
    stderr: JoinHandle<String>,
}

impl Started {
    /// In a group of its own, without input.
    fn new(command: &mut Command, limit: Duration) -> Result<(Started, Option<ChildStdout>)> {
        check_interrupted()?;
        let program = command.get_program().to_string_lossy().into_owned();
        let at = Instant::now();
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        let mut child = Group(
            command
                .spawn()
                .with_context(|| format!("cannot start {program}"))?,
        );
        let stdout = child.0.stdout.take();
        let stderr = child.0.stderr.take();
        let stderr = std::thread::spawn(move || stderr.map(tail).unwrap_or_default());
        let started = Started {
            child,
            at,
            limit,
            stderr,
        };
        Ok((started, stdout))
    }

    /// Its status if it has ended.
    fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child.0.try_wait().context("lost a child process")
    }

    /// An error if it is time to end it.
    fn may_go_on(&self) -> Result<()> {
        check_interrupted()?;
        if self.at.elapsed() > self.limit {
            return Err(TooLong(self.limit).into());
        }
        Ok(())
    }

    /// What there is to say of it; the rest of its group is ended.
    fn finish(self, status: ExitStatus) -> Ended {
        let elapsed = self.at.elapsed();
        // Whatever the child left running would hold its stderr open.
        self.child.signal(Signal::KILL);
        Ended {
            status,
            stderr: self.stderr.join().unwrap_or_default(),
            elapsed,
        }
    }
}

/// Runs `command` to its end, giving each line of its stdout to `on_line`. It is an error if it does not
/// end within `limit` ([`TooLong`]), if the user interrupts, or if `on_line` fails; its status is the caller's to judge.
pub fn run(
    command: &mut Command,
    limit: Duration,
    mut on_line: impl FnMut(&str) -> Result<()>,
) -> Result<Ended> {
    let (mut started, stdout) = Started::new(command, limit)?;
    let lines = lines_of(stdout);
    let mut open = true;
    let status = loop {
        if open {
            match lines.recv_timeout(TICK) {
                Ok(line) => {
                    on_line(&line)?;
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => open = false,
                Err(RecvTimeoutError::Timeout) => {}
            }
        } else {
            if let Some(status) = started.ended()? {
                break status;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        started.may_go_on()?;
    };
    Ok(started.finish(status))
}

/// Runs `command` to its end, with a digest of all that it writes to stdout; `on_tick` is given its process id
/// every [`TICK`], and ten times as often in its first second. Errors are those of [`run`].
pub fn digest(
    command: &mut Command,
    limit: Duration,
    mut on_tick: impl FnMut(u32),
) -> Result<(Ended, u64)> {
    let (mut started, stdout) = Started::new(command, limit)?;
    let digest = std::thread::spawn(move || stdout.map_or(0, digest_of));
    let pid = started.child.0.id();
    let status = loop {
        if let Some(status) = started.ended()? {
            break status;
        }
        started.may_go_on()?;
        on_tick(pid);
        let young = started.at.elapsed() < Duration::from_secs(1);
        std::thread::sleep(if young { TICK / 10 } else { TICK });
    };
    let ended = started.finish(status);
    Ok((ended, digest.join().unwrap_or_default()))
}

/// Of everything up to the end; the same for the same bytes in this process, however they come.
fn digest_of(mut from: impl Read) -> u64 {
    const BLOCK: usize = 64 << 10;
    let mut hasher = DefaultHasher::new();
    let mut block = Vec::with_capacity(BLOCK);
    loop {
        block.clear();
        // (Whole blocks: a hasher need not give the same for the same bytes in other parts.)
        let read = from.by_ref().take(BLOCK as u64).read_to_end(&mut block);
        hasher.write(&block);
        if read.is_err() || block.len() < BLOCK {
            return hasher.finish();
        }
    }
}

/// The lines a reader gives, from a thread.
pub fn lines_of(stdout: Option<impl Read + Send + 'static>) -> mpsc::Receiver<String> {
    let (to, from) = mpsc::channel();
    if let Some(stdout) = stdout {
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if to.send(line).is_err() {
                    break;
                }
            }
        });
    }
    from
}

fn tail(mut from: impl Read) -> String {
    const KEEP: usize = 8 << 10;
    let mut kept = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        kept.extend_from_slice(&buffer[..n]);
        if kept.len() > 2 * KEEP {
            kept.drain(..kept.len() - KEEP);
        }
    }
    String::from_utf8_lossy(&kept).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut c = Command::new("sh");
        c.arg("-c").arg(script);
        c
    }

    #[test]
    fn lines_and_status_are_told() {
        let mut seen = Vec::new();
        let ended = run(
            &mut sh("echo a; echo b; echo why >&2; exit 7"),
            Duration::from_secs(60),
            |l| {
                seen.push(l.to_owned());
                Ok(())
            },
        )
        .unwrap();
        assert_eq!(seen, ["a", "b"]);
        assert_eq!(ended.status.code(), Some(7));
        assert_eq!(ended.reason(), "why (exit status 7)");
    }

    #[test]
    fn a_digest_is_of_the_bytes_however_they_come() {
        let of = |script: &str| {
            let mut ticks = 0;
            let limit = Duration::from_secs(60);
            let (ended, digest) = digest(&mut sh(script), limit, |_| ticks += 1).unwrap();
            assert!(ended.status.success() && ticks > 0);
            digest
        };
        let whole = of("seq 40000; sleep 0.1");
        assert_eq!(whole, of("seq 20000; sleep 0.1; seq 20001 40000"));
        assert_ne!(whole, of("seq 39999; sleep 0.1"));
    }

    #[test]
    fn what_takes_too_long_is_ended_with_its_children() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let script = format!("sleep 1000 & echo $! > {}; wait", file.path().display());
        let e = run(&mut sh(&script), Duration::from_millis(500), |_| Ok(()))
            .err()
            .unwrap();
        assert!(e.is::<TooLong>(), "{e}");
        let pid = std::fs::read_to_string(file.path()).unwrap();
        let gone = || !std::path::Path::new(&format!("/proc/{}/exe", pid.trim())).exists();
        for _ in 0..500 {
            if gone() {
                return;
            }
            std::thread::sleep(TICK);
        }
        panic!("{} is still there", pid.trim());
    }
}
