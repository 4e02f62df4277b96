//! The program that is measured: it maps memory, writes it, reads it and verifies every word, and knows
//! nothing of hugeswap, of the kernel's swap, or of who is measuring.
//!
//! A *coordinator* starts the tasks (processes, this executable again), gives each its share of the region, and
//! lets them do one step at a time: a step ends when the slowest task has ended it. Steps go to a
//! task's stdin and answers come from its stdout, so a task whose coordinator is gone
//! sees the end of its input and ends. Figures go to stdout, one JSON object a line.
//!
//! The word at index `i` of a task holds `seed(task, round) + i * K`: a function of its address, of the round and of the
//! task. Whatever reads, verifies.

use anyhow::{Context, Result, bail};
use memmap2::{Advice, MmapMut};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

/// Bytes of a huge page: what shares and samples are made of.
const UNIT: usize = hugeswap_policy::UNIT_BYTES as usize;
const K: u64 = 0x9e37_79b9_7f4a_7c15;
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
    /// At the end one huge page in so many is verified; 1 verifies all, 0 none (whatever reads verifies anyway).
    pub verify_one_in: u32,
    /// Advice on huge pages.
    pub thp: Thp,
    /// The `cgroup.procs` file of a group to enter before anything is mapped.
    pub join: Option<PathBuf>,
    /// The index of a task.
    pub task: u32,
}

/// One line of a worker's output.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "lowercase")]
pub enum Figure {
    /// A round of writing it all; rounds count from 1.
    Write { round: u32, mb_s: f64 },
    /// A round of reading it all.
    Read { round: u32, mb_s: f64 },
    /// Random reads: time of one, as its thread sees it.
    Random { us_per_access: f64 },
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
        let mut child = Command::new(std::env::current_exe()?)
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
    fn answer(&mut self) -> Result<()> {
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        if line.trim() == "done" {
            return Ok(());
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
        let line = format!("{}\n", serde_json::to_string(&step)?);
        let started = Instant::now();
        for t in &mut self.0 {
            t.to.write_all(line.as_bytes())
                .with_context(|| format!("task {} is gone", t.index))?;
        }
        self.0.iter_mut().try_for_each(Task::answer)?;
        Ok(started.elapsed().as_secs_f64())
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
    Verify(u32),
    End,
}

fn coordinate(work: &Work) -> Result<()> {
    if let Some(procs) = &work.join {
        std::fs::write(procs, std::process::id().to_string()).with_context(|| {
            format!("cannot enter the memory cgroup through {}", procs.display())
        })?;
    }
    let mut tasks = Tasks(Vec::new());
    for index in 0..work.tasks {
        tasks.0.push(Task::start(work, index)?);
    }
    // Each says once that its memory is mapped.
    tasks.0.iter_mut().try_for_each(Task::answer)?;
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
    println!("done");
    for line in std::io::stdin().lines() {
        match serde_json::from_str(&line?)? {
            Step::Write(round) => memory.write(round),
            Step::Read(round) => memory.read(round, 1)?,
            Step::Verify(round) => memory.read(round, work.verify_one_in)?,
            Step::Random(round) => {
                memory.random(round, work.random_reads / u64::from(work.tasks))?
            }
            Step::End => {
                println!("done");
                break;
            }
        }
        println!("done");
    }
    Ok(())
}

/// A task's memory, in one piece for each thread.
struct Memory {
    map: MmapMut,
    threads: usize,
    task: u32,
}

impl Memory {
    fn map(len: usize, work: &Work) -> Result<Memory> {
        let map =
            MmapMut::map_anon(len).with_context(|| format!("cannot map {} MiB", len >> 20))?;
        match work.thp {
            Thp::Unadvised => {}
            Thp::On => map
                .advise(Advice::HugePage)
                .context("cannot ask for huge pages")?,
            Thp::Off => map
                .advise(Advice::NoHugePage)
                .context("cannot ask for base pages")?,
        }
        Ok(Memory {
            map,
            threads: work.threads as usize,
            task: work.task,
        })
    }

    fn seed(&self, round: u32) -> u64 {
        seed(self.task, round)
    }

    fn write(&mut self, round: u32) {
        let seed = self.seed(round);
        let piece = self.map.len() / self.threads;
        std::thread::scope(|s| {
            let pieces = self.map.chunks_exact_mut(piece).enumerate();
            // The first piece is this thread's own work.
            let mut rest = pieces.map(|(n, p)| (first_value(seed, n * piece), p));
            let mine = rest.next();
            rest.for_each(|(v, p)| drop(s.spawn(move || fill(p, v))));
            if let Some((v, p)) = mine {
                fill(p, v);
            }
        });
    }

    /// Reads one unit in `one_in` and compares every word of it.
    fn read(&self, round: u32, one_in: u32) -> Result<()> {
        let seed = self.seed(round);
        let piece = self.map.len() / self.threads;
        let check = |start: usize, p: &[u8]| {
            let units = p.chunks(UNIT).enumerate().step_by(one_in as usize);
            for (n, unit) in units {
                let at = start + n * UNIT;
                if let Some(wrong) = differs(unit, first_value(seed, at)) {
                    return Some(at + wrong * 8);
                }
            }
            None
        };
        let wrong = std::thread::scope(|s| {
            let mut rest = self
                .map
                .chunks_exact(piece)
                .enumerate()
                .map(|(n, p)| (n * piece, p));
            let mine = rest.next();
            let others: Vec<_> = rest.map(|(at, p)| s.spawn(move || check(at, p))).collect();
            let mine = mine.and_then(|(at, p)| check(at, p));
            others
                .into_iter()
                .fold(mine, |found, t| found.or(t.join().unwrap_or(Some(0))))
        });
        wrong.map_or(Ok(()), |at| Err(self.corrupt(at, round)))
    }

    /// Reads `count` words at random, shared among the threads, and compares them.
    fn random(&self, round: u32, count: u64) -> Result<()> {
        let seed = self.seed(round);
        let words = self.map.as_chunks::<8>().0;
        let check = |n: usize| {
            let mut state = (n as u64 + 1).wrapping_mul(K) ^ seed;
            for _ in 0..count / self.threads as u64 {
                let i =
                    ((u128::from(next_random(&mut state)) * words.len() as u128) >> 64) as usize;
                if u64::from_ne_bytes(words[i]) != first_value(seed, i * 8) {
                    return Some(i * 8);
                }
            }
            None
        };
        let wrong = std::thread::scope(|s| {
            let others: Vec<_> = (1..self.threads)
                .map(|n| s.spawn(move || check(n)))
                .collect();
            let mine = check(0);
            others
                .into_iter()
                .fold(mine, |found, t| found.or(t.join().unwrap_or(Some(0))))
        });
        wrong.map_or(Ok(()), |at| Err(self.corrupt(at, round)))
    }

    fn corrupt(&self, at: usize, round: u32) -> anyhow::Error {
        Corrupt(format!(
            "task {} found a wrong word at byte {at} of {} after round {round}",
            self.task,
            self.map.len()
        ))
        .into()
    }
}

/// What the words of a task start from in a round; never 0, so that a page of zeros is always wrong.
pub fn seed(task: u32, round: u32) -> u64 {
    let mut state = (u64::from(task) << 32 | u64::from(round)).wrapping_add(1);
    next_random(&mut state) | 1
}

/// The word at byte `at`.
pub fn first_value(seed: u64, at: usize) -> u64 {
    seed.wrapping_add((at as u64 / 8).wrapping_mul(K))
}

/// Writes consecutive words, of which `first` is the first.
pub fn fill(bytes: &mut [u8], first: u64) {
    let mut value = first;
    for word in bytes.as_chunks_mut::<8>().0 {
        *word = value.to_ne_bytes();
        value = value.wrapping_add(K);
    }
}

/// The index of the first word that is not what [`fill`] wrote.
pub fn differs(bytes: &[u8], first: u64) -> Option<usize> {
    let words = bytes.as_chunks::<8>().0;
    let mut value = first;
    let mut difference = 0;
    for word in words {
        difference |= u64::from_ne_bytes(*word) ^ value;
        value = value.wrapping_add(K);
    }
    if difference == 0 {
        return None;
    }
    let right = |i: usize| first.wrapping_add((i as u64).wrapping_mul(K)).to_ne_bytes();
    // A word that was wrong a moment ago and is right now is wrong all the same.
    Some(
        (0..words.len())
            .find(|&i| words[i] != right(i))
            .unwrap_or(0),
    )
}

/// splitmix64 (Steele, Lea and Flood, 2014).
pub fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(K);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(threads: u32) -> Memory {
        let work = Work {
            threads,
            ..Work::default()
        };
        Memory::map(4 * UNIT, &work).unwrap()
    }

    #[test]
    fn what_was_written_is_found() {
        for threads in [1, 2, 4] {
            let mut m = memory(threads);
            m.write(1);
            m.write(2);
            m.read(2, 1).unwrap();
            m.read(2, 3).unwrap();
            m.random(2, 1000).unwrap();
            assert!(m.read(1, 1).unwrap_err().is::<Corrupt>());
            assert!(m.random(1, 1000).is_err());
        }
    }

    #[test]
    fn one_wrong_bit_is_found_and_named() {
        let mut m = memory(2);
        m.write(1);
        let at = 3 * UNIT + 8 * 77;
        m.map[at] ^= 1;
        let e = m.read(1, 1).unwrap_err();
        assert!(e.to_string().contains(&format!("byte {at}")), "{e}");
        m.map[at] ^= 1;
        // A page that came back as zeros.
        m.map[UNIT..UNIT + 4096].fill(0);
        assert!(m.read(1, 1).is_err());
    }

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
