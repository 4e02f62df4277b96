//! The program of `chaos`: a pool of its own on a faulty device, threads that work on it, and a thread
//! that watches them.

use super::children::{Child, State};
use super::model::Model;
use super::task::{PATIENCE, Report, Task};
use crate::child::tell;
use crate::options::{self, swap_specs};
use anyhow::{Result, anyhow, bail};
use hugeswap::{FaultMode, Pool};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time between two checks of the threads.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The operation of each thread that forks a child; after that one in so many does.
const FIRST_FORK: u64 = 20;
const FORK_ONE_IN: usize = 400;

/// Runs the program.
pub fn worker(task: &Task) -> Result<()> {
    let pool = pool(task)?;
    let shared = Mutex::new(Report::default());
    let stop = AtomicBool::new(false);
    let alive: Vec<AtomicU64> = (0..task.threads).map(|_| AtomicU64::new(0)).collect();
    let done: Vec<AtomicBool> = (0..task.threads).map(|_| AtomicBool::new(false)).collect();
    let bytes = (task.region / u64::from(task.threads)) as usize & !(2 * 1024 * 1024 - 1);
    let start = Instant::now();
    let report = |hangs: u64| {
        let mut report = shared
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let counters = pool.stats().counters.into_iter();
        report.seconds = start.elapsed().as_secs_f64();
        report.hangs += hangs;
        report.counters = counters.map(|(k, v)| (k.into(), v)).collect();
        tell(&report)
    };
    let mut failed = None;
    std::thread::scope(|s| {
        let each = alive.iter().zip(&done).zip(0u64..);
        let threads: Vec<_> = each
            .map(|((alive, done), n)| {
                let (pool, shared, stop) = (&pool, &shared, &stop);
                s.spawn(move || {
                    let model = Model::new(pool, bytes, (n, task.seed), alive)?;
                    let mut thread = Thread {
                        model,
                        alive,
                        child: None,
                        steps: 0,
                        shared,
                    };
                    let result = thread.work(task, stop);
                    // Also after a failure: the watching thread waits for it.
                    done.store(true, Release);
                    result
                })
            })
            .collect();
        watch(task, &alive, &done, &stop, start, |hangs| {
            // A thread that hangs cannot be joined.
            let _ = report(hangs);
            std::process::exit(1);
        });
        for t in threads {
            let ended = t
                .join()
                .unwrap_or_else(|_| Err(anyhow!("a thread panicked")));
            failed = failed.take().or(ended.err());
        }
    });
    match failed {
        Some(e) => Err(e),
        None => report(0),
    }
}

/// One thread of the program.
struct Thread<'a> {
    model: Model<'a>,
    alive: &'a AtomicU64,
    child: Option<Child>,
    steps: u64,
    /// What all threads did.
    shared: &'a Mutex<Report>,
}

impl Thread<'_> {
    fn work(&mut self, task: &Task, stop: &AtomicBool) -> Result<()> {
        let mut operations = 0;
        while !stop.load(Acquire) && operations < task.operations {
            operations = self.step()?;
        }
        self.model.verify_all()?;
        self.check_child(true)?;
        self.note(|_| ());
        Ok(())
    }

    /// Does an operation, and forks a child now and then. Returns the operations of all threads.
    fn step(&mut self) -> Result<u64> {
        let start = Instant::now();
        self.steps += 1;
        let forks = self.steps == FIRST_FORK || self.model.below(FORK_ONE_IN) == 0;
        if forks && self.child.is_none() {
            self.child = Some(Child::fork(&mut self.model)?);
        }
        self.check_child(false)?;
        self.model.act()?;
        let took_ms = start.elapsed().as_secs_f64() * 1e3;
        Ok(self.note(|all| {
            all.operations += 1;
            all.longest_ms = all.longest_ms.max(took_ms);
            all.operations
        }))
    }

    /// Adds to the report what became of pages, and what `f` adds.
    fn note<T>(&mut self, f: impl FnOnce(&mut Report) -> T) -> T {
        if let Some(wrong) = self.model.take_wrong() {
            eprintln!("{wrong}");
        }
        let mut all = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        all.pages.add(&self.model.take_pages());
        f(&mut all)
    }

    /// Takes the report of a child that has ended; waits for that if `wait`.
    fn check_child(&mut self, wait: bool) -> Result<()> {
        while let Some(child) = &mut self.child {
            match child.state()? {
                State::Running if !wait => return Ok(()),
                State::Running => {
                    self.alive.fetch_add(1, Relaxed);
                    std::thread::sleep(Duration::from_millis(5));
                    continue;
                }
                State::Hung => self.note(|all| all.hangs += 1),
                State::Ended(report) => {
                    self.note(|all| {
                        all.children += 1;
                        all.pages.add(&report.pages);
                    });
                    if let Some(wrong) = report.wrong {
                        eprintln!("a forked child: {wrong}");
                    }
                    if let Some(failure) = report.failure {
                        bail!("a forked child: {failure}");
                    }
                }
            }
            self.child = None;
        }
        Ok(())
    }
}

/// Ends the work when its time is over, and calls `hung` if threads do nothing any more.
fn watch(
    task: &Task,
    alive: &[AtomicU64],
    done: &[AtomicBool],
    stop: &AtomicBool,
    start: Instant,
    hung: impl Fn(u64),
) {
    let mut seen: Vec<(u64, Instant)> = alive.iter().map(|_| (0, start)).collect();
    while done.iter().any(|d| !d.load(Acquire)) {
        std::thread::sleep(LOOK_EVERY);
        if start.elapsed().as_secs() >= task.seconds {
            stop.store(true, Release);
        }
        let mut hangs = 0;
        for ((now, last), done) in alive.iter().zip(&mut seen).zip(done) {
            let now = now.load(Relaxed);
            if now != last.0 || done.load(Acquire) {
                *last = (now, Instant::now());
            }
            hangs += u64::from(last.1.elapsed() > PATIENCE);
        }
        if hangs > 0 {
            hung(hangs);
        }
    }
}

fn pool(task: &Task) -> Result<Pool> {
    let mut specs = swap_specs(&task.swap)?;
    if specs.is_empty() {
        let one = hugeswap_engine::pool::swap::default_area()?;
        specs = vec![one; task.areas as usize];
    }
    for spec in &mut specs {
        // Room for everything where one area is gone and others have bad pages.
        spec.size.get_or_insert(task.region * 2);
    }
    let mode = match task.message {
        true => FaultMode::Message,
        false => FaultMode::Signal,
    };
    let pool = options::pool(task.memory, specs, task.faults.iter().chain(&task.set));
    let seed = format!("debug.fault_seed={}", task.seed);
    Ok(pool.set(&seed).fault_mode(mode).build()?)
}
