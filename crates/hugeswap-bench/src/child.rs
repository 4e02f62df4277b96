//! Child processes with a time limit, which are ended together with all processes they started.
//!
//! A child leads a process group of its own: to end it ends its children, and Ctrl-C reaches this
//! process alone, which then ends the child and undoes what was set up. Every wait checks for a
//! request to stop ([`hugeswap_support::interrupt`]).
//!
//! A *worker* is this executable again, with a task as JSON on its command line; it reports its
//! figures as lines of JSON.

use anyhow::{Context, Result};
use hugeswap_support::interrupt::check_interrupted;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::hash::{DefaultHasher, Hasher};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between two checks of a wait.
pub const TICK: Duration = Duration::from_millis(20);

/// A child did not end within its time limit, and was ended.
#[derive(Debug, thiserror::Error)]
#[error("it did not end within {} seconds: raise --timeout, or give it less to do", .0.as_secs())]
pub struct TooLong(Duration);

/// How a child ended.
pub struct Ended {
    pub status: ExitStatus,
    /// The last few KiB that it wrote to stderr.
    pub stderr: String,
    /// From its start to its end.
    pub elapsed: Duration,
}

impl Ended {
    /// The last line of stderr, or the exit status if there is none.
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

    /// Sends SIGTERM, then SIGKILL. A process that hangs in the kernel is left to the keeper, which
    /// undoes what it hangs on.
    fn end(&mut self) {
        for (signal, patience) in [(Signal::TERM, 3), (Signal::KILL, 10)] {
            self.signal(signal);
            let until = Instant::now() + Duration::from_secs(patience);
            while Instant::now() < until {
                if !matches!(self.0.try_wait(), Ok(None)) {
                    // Some members of the group may have outlived its leader.
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

/// A child that was started, and the thread that reads its stderr.
struct Started {
    child: Group,
    at: Instant,
    limit: Duration,
    stderr: JoinHandle<String>,
}

impl Started {
    /// Starts a child in a group of its own, without input.
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

    /// An error once the child has to be ended.
    fn check_time(&self) -> Result<()> {
        check_interrupted()?;
        if self.at.elapsed() > self.limit {
            return Err(TooLong(self.limit).into());
        }
        Ok(())
    }

    /// Ends the rest of its group.
    fn finish(self, status: ExitStatus) -> Ended {
        let elapsed = self.at.elapsed();
        // A process that the child left running would hold its stderr open.
        self.child.signal(Signal::KILL);
        Ended {
            status,
            stderr: self.stderr.join().unwrap_or_default(),
            elapsed,
        }
    }
}

/// Runs `command` to its end and gives each line of its stdout to `on_line`. It is an error if it does
/// not end within `limit` ([`TooLong`]), if the user interrupts, or if `on_line` fails. Its exit status
/// is for the caller to judge.
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
        started.check_time()?;
    };
    Ok(started.finish(status))
}

/// This executable again, as a worker of some kind.
pub fn worker(kind: &str, task: &impl Serialize) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["__worker", kind, &serde_json::to_string(task)?]);
    Ok(command)
}

/// The task of a worker.
pub fn task<T: DeserializeOwned>(json: &str) -> Result<T> {
    serde_json::from_str(json).context("not a worker's task")
}

/// Prints a figure of a worker.
pub fn tell(figure: &impl Serialize) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, figure)?;
    out.write_all(b"\n")?;
    out.flush().context("nobody reads the figures")
}

/// A figure that a worker printed.
pub fn figure<F: DeserializeOwned>(line: &str) -> Result<F> {
    serde_json::from_str(line).with_context(|| format!("not a worker's figure: {line}"))
}

/// Runs a worker to its end, as [`run`] does, and gives each of its figures to `on_figure`.
pub fn figures<F: DeserializeOwned>(
    command: &mut Command,
    limit: Duration,
    mut on_figure: impl FnMut(F) -> Result<()>,
) -> Result<Ended> {
    run(command, limit, |line| on_figure(figure(line)?))
}

/// Runs `command` to its end. Returns a digest of all that it writes to stdout. `on_tick` is given its
/// process id every [`TICK`], and ten times as often in its first second. Errors are those of
/// [`run`].
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
        started.check_time()?;
        on_tick(pid);
        let young = started.at.elapsed() < Duration::from_secs(1);
        std::thread::sleep(if young { TICK / 10 } else { TICK });
    };
    let ended = started.finish(status);
    Ok((ended, digest.join().unwrap_or_default()))
}

/// A digest of all bytes up to the end: the same for the same bytes within this process, however they
/// arrive.
fn digest_of(mut from: impl Read) -> u64 {
    const BLOCK: usize = 64 << 10;
    let mut hasher = DefaultHasher::new();
    let mut block = Vec::with_capacity(BLOCK);
    loop {
        block.clear();
        // Whole blocks: a hasher may depend on how the bytes are divided.
        let read = from.by_ref().take(BLOCK as u64).read_to_end(&mut block);
        hasher.write(&block);
        if read.is_err() || block.len() < BLOCK {
            return hasher.finish();
        }
    }
}

/// The lines of a reader, read by a thread of their own.
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

/// The last bytes of a reader.
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
    fn lines_and_status_are_reported() {
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
    fn a_digest_does_not_depend_on_how_bytes_arrive() {
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
    fn a_child_that_takes_too_long_is_ended_with_its_children() {
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
