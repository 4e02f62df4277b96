//! One run of the checker under hugeswap: started, disturbed, watched, judged.
//!
//! A hang is a checker that makes no step for a while, however fast or slow the machine is; the
//! stacks of all its threads are kept then.

use super::modes::Mode;
use crate::board::{self, View, Word};
use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// What is the same for all trials of a sweep.
pub struct Place {
    /// The `hugeswap` executable.
    pub hugeswap: PathBuf,
    /// Where swap and logs are.
    pub dir: PathBuf,
    /// No step for so long is a hang.
    pub stall: Duration,
    /// Run the checker plainly, without hugeswap.
    pub plain: bool,
}

/// What is run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub mode: Mode,
    pub seed: u64,
    pub threads: usize,
    pub bytes: usize,
    pub seconds: u64,
    /// Steps of each thread; the run is over after these or the seconds.
    pub steps: u64,
    pub without: Vec<&'static str>,
    pub skip: Vec<(u64, u64, u64)>,
}

/// How a trial ended.
#[derive(Debug)]
pub struct Outcome {
    /// `None`: as it should.
    pub failure: Option<String>,
    pub steps: u64,
    pub accesses: u64,
    pub range_ops: u64,
    pub forks: u64,
    pub took: Duration,
}

impl Plan {
    /// The checker's arguments, but for its board.
    pub fn arguments(&self) -> Vec<String> {
        let mut a: Vec<String> = vec!["check".into()];
        let mut say = |key: &str, value: String| a.extend([format!("--{key}"), value]);
        say("seed", self.seed.to_string());
        say("threads", self.threads.to_string());
        say("bytes", self.bytes.to_string());
        say("seconds", self.seconds.to_string());
        if self.mode.shared > 0 {
            say("shared", self.mode.shared.to_string());
        }
        if self.steps != u64::MAX {
            say("steps", self.steps.to_string());
        }
        if !self.without.is_empty() {
            say("without", self.without.join(","));
        }
        if !self.skip.is_empty() {
            let parts = self.skip.iter().map(|(t, a, b)| format!("{t}:{a}-{b}"));
            say("skip", parts.collect::<Vec<_>>().join(","));
        }
        a
    }

    /// Bytes of memory that the checker may have.
    pub fn budget(&self) -> usize {
        (self.bytes / 100 * self.mode.percent).max(16 << 20)
    }

    /// hugeswap's arguments, but for the swap area and the program.
    pub fn managed(&self) -> Vec<String> {
        let m = &self.mode;
        let budget = format!("{}M", self.budget() >> 20);
        let mut a: Vec<String> = vec!["run".into(), "--memory".into(), budget];
        a.extend(["--fault-mode".into(), m.faults.into()]);
        // (What the checker knows of its memory is to stay out of what it looks at.)
        a.extend(["--set".into(), "route.small=off".into()]);
        a.extend(
            m.settings
                .iter()
                .flat_map(|s| ["--set".into(), (*s).into()]),
        );
        a.extend(m.options.iter().map(|o| (*o).into()));
        a
    }
}

/// Kills the group when it goes out of scope.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
        let _ = self.0.wait();
    }
}

/// Runs the checker once. Errors are those of the sweep's own means.
pub fn run(place: &Place, plan: &Plan) -> Result<Outcome> {
    let board_file = tempfile::NamedTempFile::new_in(&place.dir)?;
    board_file.as_file().set_len(board::BYTES as u64)?;
    let log = tempfile::NamedTempFile::new_in(&place.dir)?;
    let board = View(board_file.as_file());
    let mut child = Group(start(place, plan, board_file.path(), log.as_file())?);
    let began = Instant::now();
    let failure = watch(place, plan, &board, &mut child.0, log.path())?;
    drop(child);
    Ok(Outcome {
        failure,
        steps: board.get(Word::Steps)?,
        accesses: board.get(Word::Accesses)?,
        range_ops: board.get(Word::RangeOps)?,
        forks: board.get(Word::Forks)?,
        took: began.elapsed(),
    })
}

fn start(place: &Place, plan: &Plan, board: &Path, log: &File) -> Result<Child> {
    let me = std::env::current_exe()?;
    let mut command = if place.plain {
        Command::new(&me)
    } else {
        let mut c = Command::new(&place.hugeswap);
        c.args(plan.managed())
            .arg("--swap")
            .arg(format!("{},size=16G", place.dir.display()))
            .args(["--report", "none", "--"])
            .arg(&me);
        c
    };
    command
        .args(plan.arguments())
        .arg("--board")
        .arg(board)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log.try_clone()?)
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {}", place.hugeswap.display()))
}

/// Watches until the end; what was wrong, if anything.
fn watch(
    place: &Place,
    plan: &Plan,
    board: &View,
    child: &mut Child,
    log: &Path,
) -> Result<Option<String>> {
    let (mut last, mut since) = (u64::MAX, Instant::now());
    let mut restless = super::restless::Restless::new(plan.seed);
    let mut slots_looked_at = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(judge(status, log));
        }
        let drained = board.get(Word::Drained)? > 0;
        if drained && !slots_looked_at {
            slots_looked_at = true;
            let leak = match place.plain {
                true => None,
                false => super::restless::left_in_swap(place, child.id()),
            };
            board.set(Word::Release, 1)?;
            if let Some(leak) = leak {
                return Ok(Some(leak));
            }
        }
        let now = board.get(Word::Steps)?.wrapping_add(u64::from(drained));
        if now != last {
            (last, since) = (now, Instant::now());
        } else if since.elapsed() > place.stall {
            let stacks = super::stacks::keep(child.id(), &plan.mode, plan.seed)?;
            return Ok(Some(format!(
                "no step in {} s after {now} steps; stacks are in {}; {}",
                place.stall.as_secs(),
                stacks.display(),
                last_words(log)
            )));
        }
        if plan.mode.restless && !drained && !place.plain {
            restless.disturb(place, child.id());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn judge(status: ExitStatus, log: &Path) -> Option<String> {
    if status.success() {
        return None;
    }
    let how = match status.signal() {
        Some(n) => format!("ended by signal {n}"),
        None => format!("{status}"),
    };
    Some(format!("{how}: {}", last_words(log)))
}

/// The last lines of what the checker and hugeswap said.
fn last_words(log: &Path) -> String {
    let said = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = said.lines().collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}
