//! The program that is measured: it maps memory, writes it, reads it and verifies every word. It
//! knows nothing of hugeswap, of the kernel's swap, or of the benchmark.
//!
//! A *coordinator* starts the tasks (processes, this executable again), gives each its share of the
//! region, and has them do one step at a time: a step ends when the slowest task has ended it. Steps
//! go to a task's stdin and answers come from its stdout, so a task whose coordinator is gone sees
//! the end of its input and ends. Figures go to stdout, one JSON object a line.

use super::memory::Memory;
use super::plan::Work;
use super::played::Played;
use super::shared;
use super::words::{self, Corrupt, UNIT};
use crate::child::{self, tell};
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// How long nothing is done before and after a phase, so that counters can be read at its ends.
const PAUSE: Duration = Duration::from_millis(50);
/// Exit status of a worker whose memory did not hold what was written.
pub const CORRUPT: i32 = 3;

/// One line of a worker's output.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "lowercase")]
pub enum Figure {
    /// All memory is mapped.
    Ready { pid: u32 },
    /// A round of writing all memory; rounds count from 1.
    Write { round: u32, mb_s: f64 },
    /// A round of reading all memory.
    Read { round: u32, mb_s: f64 },
    /// Random reads: the time of one, as its thread sees it.
    Random { us_per_access: f64 },
    /// A phase.
    Phase { name: String, played: Played },
    /// What was asked for has been verified: a share of the region.
    Verified { share: f64 },
    /// From the first write to the last read, without the verification.
    Work { seconds: f64 },
}

/// A worker as a child process.
pub fn command(work: &Work) -> Result<Command> {
    child::worker("work", work)
}

/// Enters a cgroup and becomes another program.
pub fn exec(procs: &Path, argv: &[String]) -> Result<()> {
    let [program, args @ ..] = argv else {
        bail!("no program to run");
    };
    join(procs)?;
    let e = Command::new(program).args(args).exec();
    Err(e).with_context(|| format!("{program} could not be started"))
}

/// Enters a cgroup.
fn join(procs: &Path) -> Result<()> {
    std::fs::write(procs, std::process::id().to_string())
        .with_context(|| format!("cannot enter the memory cgroup through {}", procs.display()))
}

struct Task {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    index: u32,
}

impl Task {
    fn start(work: &Work, index: u32) -> Result<Task> {
        let work = Work {
            task: index,
            join: None,
            ..work.clone()
        };
        let mut command = child::worker("task", &work)?;
        if work.shared.is_some() {
            shared::without_object(&mut command);
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a task")?;
        let to = child.stdin.take().context("a task has no stdin")?;
        let from = BufReader::new(child.stdout.take().context("a task has no stdout")?);
        Ok(Task {
            child,
            to,
            from,
            index,
        })
    }

    /// Waits for the answer to a step.
    fn answer(&mut self) -> Result<Done> {
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        if let Ok(done) = serde_json::from_str(&line) {
            return Ok(done);
        }
        // The task has written the reason to stderr.
        let status = self.child.wait()?;
        let what = format!("task {} ended early ({status})", self.index);
        if status.code() == Some(CORRUPT) {
            return Err(Corrupt(what).into());
        }
        bail!(what)
    }
}

struct Tasks(Vec<Task>);

impl Tasks {
    /// Has all tasks do one step. Returns the seconds until the slowest had done it.
    fn step(&mut self, step: Step) -> Result<f64> {
        let started = Instant::now();
        self.answers(step)?;
        Ok(started.elapsed().as_secs_f64())
    }

    /// Plays phase number `n`. Returns what all tasks together did.
    fn play(&mut self, n: usize) -> Result<Played> {
        let mut played = self
            .answers(Step::Phase(n))?
            .into_iter()
            .filter_map(|d| d.played);
        let mut all = played.next().context("a task did not play its phase")?;
        played.for_each(|p| all.add(&p));
        Ok(all)
    }

    fn answers(&mut self, step: Step) -> Result<Vec<Done>> {
        let line = format!("{}\n", serde_json::to_string(&step)?);
        for t in &mut self.0 {
            t.to.write_all(line.as_bytes())
                .with_context(|| format!("task {} is gone", t.index))?;
        }
        self.0.iter_mut().map(Task::answer).collect()
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        for t in &mut self.0 {
            if matches!(t.child.try_wait(), Ok(None)) {
                // A task that failed takes its siblings along.
                let _ = t.child.kill();
                let _ = t.child.wait();
            }
        }
    }
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Step {
    Write(u32),
    Read(u32),
    Random(u32),
    Phase(usize),
    Verify(u32),
    End,
}

/// A task has done a step.
#[derive(Default, Serialize, Deserialize)]
struct Done {
    played: Option<Played>,
}

/// Starts the tasks and leads them through the work.
pub fn coordinate(work: &Work) -> Result<()> {
    if let Some(procs) = &work.join {
        join(procs)?;
    }
    let mut work = work.clone();
    let whole = share(&work) * work.tasks as usize;
    let without_pool = work.shared.is_some() && !shared::in_pool();
    // Open until all tasks have ended.
    let _memory;
    if without_pool {
        let (file, path) = shared::memory_file(whole)?;
        (_memory, work.shared) = (file, Some(path));
    }
    let work = &work;
    let mut tasks = Tasks(Vec::new());
    for index in 0..work.tasks {
        tasks.0.push(Task::start(work, index)?);
    }
    // The first answer of each says that its memory is mapped.
    for t in &mut tasks.0 {
        t.answer()?;
    }
    let pid = std::process::id();
    tell(&Figure::Ready { pid })?;
    let megabytes = whole as f64 / 1e6;
    let started = Instant::now();
    for round in 1..=work.rounds {
        let seconds = tasks.step(Step::Write(round))?;
        let mb_s = megabytes / seconds;
        tell(&Figure::Write { round, mb_s })?;
    }
    if work.random_reads > 0 {
        let seconds = tasks.step(Step::Random(work.rounds))?;
        let at_once = f64::from(work.tasks) * f64::from(work.threads);
        let us_per_access = seconds * 1e6 * at_once / work.random_reads as f64;
        tell(&Figure::Random { us_per_access })?;
    }
    for round in 1..=work.read_rounds {
        let seconds = tasks.step(Step::Read(work.rounds))?;
        let mb_s = megabytes / seconds;
        tell(&Figure::Read { round, mb_s })?;
    }
    for (n, phase) in work.phases.iter().enumerate() {
        std::thread::sleep(PAUSE);
        let (name, played) = (phase.name.clone(), tasks.play(n)?);
        tell(&Figure::Phase { name, played })?;
        std::thread::sleep(PAUSE);
    }
    let seconds = started.elapsed().as_secs_f64();
    tell(&Figure::Work { seconds })?;
    if work.verify_one_in > 0 {
        tasks.step(Step::Verify(work.rounds))?;
        let share = 1.0 / f64::from(work.verify_one_in);
        tell(&Figure::Verified { share })?;
    } else if work.read_rounds > 0 {
        tell(&Figure::Verified { share: 1.0 })?;
    }
    tasks.step(Step::End)?;
    for t in &mut tasks.0 {
        let status = t.child.wait()?;
        if !status.success() {
            bail!("task {} ended badly ({status})", t.index);
        }
    }
    Ok(())
}

/// Bytes of one task: whole huge pages, the same for every thread.
fn share(work: &Work) -> usize {
    let shares = work.tasks as usize * work.threads as usize;
    work.region as usize / UNIT / shares * UNIT * work.threads as usize
}

/// Does what the coordinator asks for.
pub fn task(work: &Work) -> Result<()> {
    // The coordinator may be killed while a step runs, which can take minutes.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    words::compress(work.compressible);
    let mut memory = Memory::map(share(work), work)?;
    tell(&Done::default())?;
    for line in std::io::stdin().lines() {
        let mut done = Done::default();
        match serde_json::from_str(&line?)? {
            Step::Write(round) => memory.write(round),
            Step::Read(round) => memory.read(round, 1)?,
            Step::Verify(round) => memory.verify(round, work.verify_one_in)?,
            Step::Random(round) => {
                memory.random(round, work.random_reads / u64::from(work.tasks))?
            }
            Step::Phase(n) => {
                let phase = work.phases.get(n).context("no such phase")?;
                done.played = Some(memory.play(phase, work.rounds, work.tasks)?);
            }
            Step::End => {
                tell(&done)?;
                break;
            }
        }
        tell(&done)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_whole_units() {
        let work = Work {
            region: 100 << 20,
            tasks: 3,
            threads: 2,
            ..Work::default()
        };
        assert_eq!(share(&work), (100 / 2 / 6) * UNIT * 2);
    }
}
