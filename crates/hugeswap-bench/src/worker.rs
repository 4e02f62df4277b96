//! The program that is measured: it maps memory, writes it, reads it and verifies every word, and knows
//! nothing of hugeswap, of the kernel's swap, or of who is measuring.
//!
//! A *coordinator* starts the tasks (processes, this executable again), gives each its share of the region, and
//! lets them do one step at a time: a step ends when the slowest task has ended it. Steps go to a
//! task's stdin and answers come from its stdout, so a task whose coordinator is gone
//! sees the end of its input and ends. Figures go to stdout, one JSON object a line.
//!
//! What a task does with its memory stands in `memory` (rounds) and `phases`.

use super::memory::{Memory, UNIT};
use super::phases::{Part, Phase, Played};
use super::together;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// How long nothing is done before and after a phase, so that counters can be read at its ends.
const PAUSE: Duration = Duration::from_millis(50);
/// Exit status of a worker whose memory did not hold what was written.
pub const CORRUPT: i32 = 3;

/// Advice on huge pages that a task gives for its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Thp {
    /// None.
    #[default]
    Unadvised,
    /// MADV_HUGEPAGE.
    On,
    /// MADV_NOHUGEPAGE.
    Off,
}

/// What a worker is to do.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Work {
    /// Bytes, all tasks together.
    pub region: u64,
    /// Processes.
    pub tasks: u32,
    /// Threads of each.
    pub threads: u32,
    /// Times everything is written.
    pub rounds: u32,
    /// Times everything is read after that.
    pub read_rounds: u32,
    /// Random reads of one word, all tasks together.
    pub random_reads: u64,
    /// After that, one after the other.
    pub phases: Vec<Phase>,
    /// At the end one huge page in so many is verified; 1 verifies all, 0 none (whatever reads verifies anyway).
    pub verify_one_in: u32,
    /// Advice on huge pages.
    pub thp: Thp,
    /// What the advice is for.
    pub thp_part: Part,
    /// The `cgroup.procs` file of a group to enter before anything is mapped.
    pub join: Option<PathBuf>,
    /// The tasks share their memory; where there is no pool it is this file.
    pub shared: Option<PathBuf>,
    /// The index of a task.
    pub task: u32,
}

/// One line of a worker's output.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "lowercase")]
pub enum Figure {
    /// Everything is mapped, by this process and those it started.
    Ready { pid: u32 },
    /// A round of writing it all; rounds count from 1.
    Write { round: u32, mb_s: f64 },
    /// A round of reading it all.
    Read { round: u32, mb_s: f64 },
    /// Random reads: time of one, as its thread sees it.
    Random { us_per_access: f64 },
    /// A phase.
    Phase { name: String, played: Played },
    /// Everything that was asked for has been verified; what share of the region that was.
    Verified { share: f64 },
    /// From the first write to the last read, verification apart.
    Work { seconds: f64 },
}

/// The hidden subcommand: the kind of worker, then its task.
pub fn main(args: &[String]) -> i32 {
    let parse = |json: &str| serde_json::from_str::<Work>(json).context("not a worker's task");
    let done = match args {
        [kind, json] if kind == "work" => parse(json).and_then(|w| coordinate(&w)),
        [kind, json] if kind == "task" => parse(json).and_then(|w| task(&w)),
        [kind, json] if kind == "faults" => super::faults::worker(json),
        [kind, json] if kind == "first-touch" => super::first_touch::worker(json),
        [kind, json] if kind == "ageing" => super::ageing::worker(json),
        [kind, json] if kind == "chaos" => super::chaos::worker(json),
        [kind, procs, program @ ..] if kind == "exec" => exec(procs.as_ref(), program),
        [kind] if kind == "keeper" => super::keeper::main(),
        _ => Err(anyhow::anyhow!(
            "this is for hugeswap bench only: use `hugeswap bench`"
        )),
    };
    match done {
        Ok(()) => 0,
        Err(e) => {
            eprintln!("hugeswap: worker: {e:#}");
            if e.is::<Corrupt>() { CORRUPT } else { 1 }
        }
    }
}

/// Becomes another program, in a group.
fn exec(procs: &Path, argv: &[String]) -> Result<()> {
    let [program, args @ ..] = argv else {
        bail!("no program to run");
    };
    join(procs)?;
    let e = Command::new(program).args(args).exec();
    Err(e).with_context(|| format!("{program} could not be started"))
}

/// Enters a group.
fn join(procs: &Path) -> Result<()> {
    std::fs::write(procs, std::process::id().to_string())
        .with_context(|| format!("cannot enter the memory cgroup through {}", procs.display()))
}

/// Memory did not hold what was written.
#[derive(Debug)]
pub struct Corrupt(pub String);

impl std::fmt::Display for Corrupt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Corrupt {}

/// Prints one figure as a line of JSON.
pub fn tell(figure: &impl Serialize) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, figure)?;
    out.write_all(b"\n")?;
    out.flush().context("nobody reads the figures")
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
        let mut command = Command::new(std::env::current_exe()?);
        if work.shared.is_some() {
            together::as_itself(&mut command);
        }
        let mut child = command
            .args(["__worker", "task", &serde_json::to_string(&work)?])
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
        // It has told the reason itself.
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
    /// Has all tasks do one step; seconds until the slowest had done it.
    fn step(&mut self, step: Step) -> Result<f64> {
        let started = Instant::now();
        self.answers(step)?;
        Ok(started.elapsed().as_secs_f64())
    }

    /// Plays phase number `n`; what all tasks together did.
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

fn coordinate(work: &Work) -> Result<()> {
    if let Some(procs) = &work.join {
        join(procs)?;
    }
    let mut work = work.clone();
    let whole = share(&work) * work.tasks as usize;
    let without_pool = work.shared.is_some() && !together::in_pool();
    let shared = without_pool.then(|| together::memory_file(whole));
    // Held until all have ended.
    let _memory = match shared.transpose()? {
        Some((file, path)) => {
            work.shared = Some(path);
            Some(file)
        }
        None => None,
    };
    let work = &work;
    let mut tasks = Tasks(Vec::new());
    for index in 0..work.tasks {
        tasks.0.push(Task::start(work, index)?);
    }
    // Each says once that its memory is mapped.
    for t in &mut tasks.0 {
        t.answer()?;
    }
    tell(&Figure::Ready {
        pid: std::process::id(),
    })?;
    let bytes = (share(work) * work.tasks as usize) as f64;
    let started = Instant::now();
    for round in 1..=work.rounds {
        let seconds = tasks.step(Step::Write(round))?;
        tell(&Figure::Write {
            round,
            mb_s: bytes / 1e6 / seconds,
        })?;
    }
    if work.random_reads > 0 {
        let seconds = tasks.step(Step::Random(work.rounds))?;
        let at_once = f64::from(work.tasks) * f64::from(work.threads);
        tell(&Figure::Random {
            us_per_access: seconds * 1e6 * at_once / work.random_reads as f64,
        })?;
    }
    for round in 1..=work.read_rounds {
        let seconds = tasks.step(Step::Read(work.rounds))?;
        tell(&Figure::Read {
            round,
            mb_s: bytes / 1e6 / seconds,
        })?;
    }
    for (n, phase) in work.phases.iter().enumerate() {
        std::thread::sleep(PAUSE);
        let played = tasks.play(n)?;
        tell(&Figure::Phase {
            name: phase.name.clone(),
            played,
        })?;
        std::thread::sleep(PAUSE);
    }
    tell(&Figure::Work {
        seconds: started.elapsed().as_secs_f64(),
    })?;
    if work.verify_one_in > 0 {
        tasks.step(Step::Verify(work.rounds))?;
        tell(&Figure::Verified {
            share: 1.0 / f64::from(work.verify_one_in),
        })?;
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

fn task(work: &Work) -> Result<()> {
    // The coordinator may be killed while a step runs, which can take minutes.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
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
